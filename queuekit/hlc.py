"""Hybrid logical clock: timestamps that follow the wall clock, never repeat and never run backwards in one process.

The rules of send and receive are those of Kulkarni et al., "Logical Physical Clocks" (2014). A timestamp is
(physical ms since the epoch, logical counter, node id); its total order is lexicographic with a signed node id, while
the wire writes the node id as the unsigned view of the same 32 bits.
"""

from __future__ import annotations

import dataclasses
import struct
import threading

_WIRE = struct.Struct("<qii")
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


class HLCError(ValueError):
    """Bytes that are not a timestamp. Attributes: `length` (bytes found)."""

    def __init__(self, length: int) -> None:
        self.length = length
        super().__init__(f"a timestamp takes 16 bytes (packed: 8), not {length}")


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class HLC:
    """One timestamp. `physical_time` int64 ms since the epoch, `logical_count` int32, `node_id` int32 (signed)."""

    physical_time: int
    logical_count: int
    node_id: int

    def advanced(self) -> HLC:
        """The next logical tick of the same millisecond; the counter wraps at int32."""
        return HLC(self.physical_time, _int32(self.logical_count + 1), self.node_id)

    def to_bytes(self) -> bytes:
        """16 bytes, little endian: 8 physical, 4 logical, 4 node."""
        return _WIRE.pack(self.physical_time, self.logical_count, self.node_id)

    @classmethod
    def from_bytes(cls, data: bytes) -> HLC:
        """The inverse of `to_bytes`; raises `HLCError` unless there are 16 bytes."""
        if len(data) != _WIRE.size:
            raise HLCError(len(data))
        return cls(*_WIRE.unpack(data))

    def to_packed(self) -> bytes:
        """8 bytes, little endian, lossy: node low 8 bits, then logical low 16, then physical low 40."""
        node, logical, physical = self.node_id & 0xFF, self.logical_count & 0xFFFF, self.physical_time & (2**40 - 1)
        return (node | logical << 8 | physical << 24).to_bytes(8, "little")

    @classmethod
    def from_packed(cls, data: bytes) -> HLC:
        """The inverse of `to_packed` as far as it goes: only the node's byte is sign-extended."""
        if len(data) != 8:
            raise HLCError(len(data))
        value = int.from_bytes(data, "little")
        node = value & 0xFF
        return cls(value >> 24, value >> 8 & 0xFFFF, node - 256 if node > 127 else node)


ZERO = HLC(0, 0, 0)


def unsigned_node(node_id: int) -> int:
    """The node id as files and names hold it: the unsigned view of its 32 bits."""
    return node_id & 0xFFFFFFFF


def signed_node(node_id: int) -> int:
    """The node id in memory, from its unsigned view."""
    return node_id - 2**32 if node_id > INT32_MAX else node_id


def sortable_hlc(hlc: HLC) -> str:
    """The prefix of a job's file name: 36 characters for values in the normal range, `physical-logical-node`."""
    return f"{hlc.physical_time:016d}-{hlc.logical_count:08d}-{hlc.node_id & 0xFFFFFFFF:010d}"


class HLCGenerator:
    """A clock of one process; safe to use from several threads.

    `node_id` (int32) must differ between processes that write into one queue. The generator reads no clock: callers
    pass `now_ms`.
    """

    def __init__(self, node_id: int, last: HLC | None = None) -> None:
        self.node_id = signed_node(node_id & 0xFFFFFFFF)
        self._physical = last.physical_time if last else 0
        self._logical = last.logical_count if last else 0
        self._lock = threading.Lock()

    def send(self, now_ms: int) -> HLC:
        """A timestamp for something that happens now; later than each one before, also when the clock stepped back."""
        with self._lock:
            if now_ms > self._physical:
                self._physical, self._logical = now_ms, 0
            else:
                self._logical = _int32(self._logical + 1)
            return HLC(self._physical, self._logical, self.node_id)

    def receive(self, remote: HLC, now_ms: int) -> HLC:
        """A timestamp later than `remote` and than each one before: for what follows from something received."""
        with self._lock:
            latest = max(self._physical, remote.physical_time, now_ms)
            if latest == self._physical and latest == remote.physical_time:
                logical = max(self._logical, remote.logical_count) + 1
            elif latest == self._physical:
                logical = self._logical + 1
            elif latest == remote.physical_time:
                logical = remote.logical_count + 1
            else:
                logical = 0
            self._physical, self._logical = latest, _int32(logical)
            return HLC(self._physical, self._logical, self.node_id)

    def current(self) -> HLC:
        """The last timestamp, without a tick."""
        with self._lock:
            return HLC(self._physical, self._logical, self.node_id)


def _int32(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31
