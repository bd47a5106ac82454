"""The clocks of a process: timestamps (wall time in, a node id of its own also after a fork), and the end of delays."""

from __future__ import annotations

import dataclasses
import os
import time

from queuekit.hlc import HLC, HLCGenerator


class ProcessClock:
    """Stamps what this process sends and completes. With a given generator it ticks that one, and its node id stays."""

    def __init__(self, generator: HLCGenerator | None = None) -> None:
        self._given = generator
        self._own = generator or _fresh_generator()
        self._pid = os.getpid()

    def send(self) -> HLC:
        """A timestamp for something that happens now."""
        return self._generator().send(now_ms())

    def receive(self, remote: HLC) -> HLC:
        """A timestamp later than `remote`, for what follows from it."""
        return self._generator().receive(remote, now_ms())

    def _generator(self) -> HLCGenerator:
        if self._given is None and self._pid != os.getpid():
            self._own, self._pid = _fresh_generator(), os.getpid()
        return self._own


def now_ms() -> int:
    """The wall clock, ms since the epoch; 0 for a clock that stands before it."""
    return max(0, time.time_ns() // 1_000_000)


@dataclasses.dataclass(frozen=True, slots=True)
class Due:
    """When a job is due. `at_ms`: by the wall clock; `deadline`: by the monotonic one, seconds.

    Made when the delay begins: to write it down can take long, and the wall clock may be set meanwhile.
    """

    at_ms: int
    deadline: float

    @classmethod
    def by(cls, at_ms: int) -> Due:
        """For a delay that begins now."""
        return cls(at_ms, time.monotonic() + max(0, at_ms - now_ms()) / 1000)


def _fresh_generator() -> HLCGenerator:
    return HLCGenerator(int.from_bytes(os.urandom(4), "little", signed=True))
