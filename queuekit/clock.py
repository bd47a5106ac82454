"""The hybrid logical clock of a process: wall time in, timestamps out, a node id of its own also after a fork."""

from __future__ import annotations

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


def _fresh_generator() -> HLCGenerator:
    return HLCGenerator(int.from_bytes(os.urandom(4), "little", signed=True))
