"""Framed messages between a stream process and its worker, over a socket pair.

A frame is `<header length: uint32><body length: uint32><header: JSON object><body: raw bytes>`, little endian. The
header says what it is, the body carries a job's bytes uncopied. Many small frames go into one system call: `send` only
queues, `flush` writes, so a loop calls `flush` once per turn.

Both ends are non-blocking; the `…_blocking` calls wait, for a worker that has nothing else to do. An end whose peer is
gone never raises on `flush`: what was queued is dropped, `receive` still gives what the peer had sent, and then `eof`
is true. A frame that the peer's death cut short is dropped.

Bytes that cannot be frames (a handler that writes into its worker's descriptor) raise `ChannelError`; the peer cannot
be understood any more then, and should be killed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Mapping
from typing import Any

_LENGTHS = struct.Struct("<II")
_BUFFER_BYTES = 256 * 1024
_JOIN_BELOW = 64 * 1024
_READ_AT_ONCE = 4 * 1024 * 1024
_SLACK = 16 * 1024 * 1024
_encode_header = json.JSONEncoder(separators=(",", ":")).encode
_decode_header = json.JSONDecoder().decode


class ChannelError(Exception):
    """A frame that must not be: too large, or not a frame at all. Attribute: `reason`."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"worker channel: {reason}")


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """One message. `header`: JSON values; `body`: raw bytes, often empty."""

    header: dict[str, Any]
    body: bytes = b""


def frame_limit(max_job_bytes: int) -> int:
    """The largest frame, in bytes, that a job with a payload of `max_job_bytes` can need (base64 and slack)."""
    return max_job_bytes * 4 // 3 + _SLACK


class Channel:
    """One end. Not safe for use from several threads."""

    def __init__(self, sock: socket.socket, max_frame: int = frame_limit(64 * 2**20)) -> None:
        """Takes over `sock` (a connected stream socket). `max_frame`: bytes, header and body together."""
        sock.setblocking(False)
        self.eof = False
        self._broken = False
        self.spoiled: ChannelError | None = None
        self.max_frame = max_frame
        self._socket = sock
        self._outgoing: deque[bytes | memoryview] = deque()
        self._buffer = bytearray(_BUFFER_BYTES)
        self._start = self._end = 0
        self._identity = _identity(sock.fileno())

    @classmethod
    def pair(cls, max_frame: int = frame_limit(64 * 2**20)) -> tuple[Channel, Channel]:
        """Two connected ends; after a fork each side closes the other's."""
        first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(first, max_frame), cls(second, max_frame)

    def fileno(self) -> int:
        """For a selector: readable when `receive` has something, also the end."""
        return self._socket.fileno()

    def is_intact(self) -> bool:
        """Whether its descriptor is still the one it was made with.

        Other code in this process may have closed it, and the number may be another file's by now.
        """
        try:
            return _identity(self._socket.fileno()) == self._identity
        except OSError:
            return False

    def close(self) -> None:
        """Close this end; what is queued is dropped."""
        self._outgoing.clear()
        self._socket.close()

    # -- sending

    @property
    def wants_write(self) -> bool:
        """Whether something is queued: wait for writability too, then `flush`."""
        return bool(self._outgoing)

    def send(self, header: Mapping[str, Any], body: bytes = b"") -> None:
        """Queue a frame; `flush` writes it. Raises `ChannelError` when it is larger than `max_frame`."""
        text = _encode_header(header).encode()
        if len(text) + len(body) > self.max_frame:
            raise ChannelError(f"a frame of {len(text) + len(body)} bytes is larger than {self.max_frame}")
        head = _LENGTHS.pack(len(text), len(body)) + text
        if len(body) < _JOIN_BELOW:
            self._outgoing.append(head + body)
        else:
            self._outgoing += (head, body)

    def flush(self) -> None:
        """Write as much as the socket takes now, without waiting."""
        while self._outgoing:
            chunk = self._next_chunk()
            try:
                written = self._socket.send(chunk)
            except BlockingIOError:
                written = 0
            except (BrokenPipeError, ConnectionResetError):
                self._outgoing.clear()
                self._broken = True
                return
            if written < len(chunk):
                self._outgoing.appendleft(memoryview(chunk)[written:])
                return

    def flush_blocking(self) -> bool:
        """Write everything, waiting as long as it takes; returns False when a write found the peer gone."""
        poller: select.poll | None = None
        while self._outgoing:
            self.flush()
            if not self._outgoing:
                break
            poller = poller or self._poller(select.POLLOUT)
            poller.poll()
        return not self._broken

    def send_blocking(self, header: Mapping[str, Any], body: bytes = b"") -> bool:
        """`send` and `flush_blocking`."""
        self.send(header, body)
        return self.flush_blocking()

    def _next_chunk(self) -> bytes | memoryview:
        """Small frames joined up to the size of one write; a large body alone and uncopied."""
        chunk = self._outgoing.popleft()
        if not self._outgoing or len(chunk) >= _JOIN_BELOW:
            return chunk
        parts, size = [chunk], len(chunk)
        while self._outgoing and size + len(self._outgoing[0]) <= _BUFFER_BYTES:
            size += len(self._outgoing[0])
            parts.append(self._outgoing.popleft())
        return b"".join(parts)

    # -- receiving

    def receive(self) -> list[Frame]:
        """Every frame that is there, without waiting; at most some MiB at a time, so that a loop stays fair.

        Sets `eof` when the peer has closed or died. Raises `ChannelError` for what is not a frame; when there are
        frames before it, these are given, `spoiled` is set, and the next call raises it.
        """
        if self.spoiled is not None:
            raise self.spoiled
        frames: list[Frame] = []
        total = 0
        while total < _READ_AT_ONCE and not self.eof:
            room = len(self._buffer) - self._end
            read = self._read()
            total += read
            self._end += read
            try:
                self._parse(frames)
            except ChannelError as error:
                if not frames:
                    raise
                self.spoiled = error
                break
            if read < room:
                break
        return frames

    def recv_blocking(self) -> list[Frame]:
        """Wait until at least one frame is there; an empty list means `eof`."""
        frames = self.receive()
        if frames or self.eof:
            return frames
        poller = self._poller(select.POLLIN)
        while not frames and not self.eof:
            poller.poll()
            frames = self.receive()
        return frames

    def _read(self) -> int:
        try:
            with memoryview(self._buffer) as view:
                read = self._socket.recv_into(view[self._end :])
        except BlockingIOError:
            return 0
        except ConnectionResetError:
            read = 0
        self.eof = read == 0
        return read

    def _parse(self, frames: list[Frame]) -> None:
        with memoryview(self._buffer) as view:
            while (size := self._frame_size()) and size <= self._end - self._start:
                frames.append(self._take(view, size))
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) != _BUFFER_BYTES:
                self._buffer = bytearray(_BUFFER_BYTES)
        elif size > len(self._buffer) - self._start or len(self._buffer) - self._end < _LENGTHS.size:
            self._make_room(size)

    def _frame_size(self) -> int:
        """The whole size of the frame at `_start`, 0 when its lengths are not there yet."""
        if self._end - self._start < _LENGTHS.size:
            return 0
        header, body = _LENGTHS.unpack_from(self._buffer, self._start)
        if header + body > self.max_frame:
            raise ChannelError(f"the peer announced a frame of {header + body} bytes")
        return int(_LENGTHS.size + header + body)

    def _take(self, view: memoryview, size: int) -> Frame:
        begin = self._start + _LENGTHS.size
        split = begin + _LENGTHS.unpack_from(view, self._start)[0]
        try:
            header = _decode_header(str(view[begin:split], "utf-8"))
        except (ValueError, RecursionError) as error:
            raise ChannelError(f"the peer sent something that is not a frame: {error}") from error
        if not isinstance(header, dict):
            raise ChannelError("the peer sent a frame without a header object")
        self._start += size
        return Frame(header, bytes(view[split : self._start]))

    def _make_room(self, size: int) -> None:
        """Move the beginning of an unfinished frame to the front of a buffer that holds all of it: once per frame."""
        rest = self._buffer[self._start : self._end]
        self._buffer = bytearray(max(size, _BUFFER_BYTES))
        self._buffer[: len(rest)] = rest
        self._start, self._end = 0, len(rest)

    # -- waiting

    def _poller(self, events: int) -> select.poll:
        poller = select.poll()
        poller.register(self._socket, events)
        return poller


def _identity(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino
