"""Signals for a loop: noted in a pipe, acted on by whoever reads it.

No handler does work. The interpreter's C handler writes the signal's number into the pipe, which wakes the selector;
`take` empties the pipe and gives the numbers in the order of their arrival. Take first and act afterwards: what arrives
while acting wakes the loop again.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from types import FrameType
from typing import Any


class SignalPipe:
    """The signals of one process; make it in the main thread, one at a time."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._owner = os.getpid()
        self._previous: dict[int, Any] = {}
        self._previous_fd = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)

    def install(self, signals: Iterable[int]) -> None:
        """Note these signals from now on instead of their default action; raises `OSError` for SIGKILL and SIGSTOP."""
        for number in signals:
            previous = signal.signal(number, _note)
            self._previous.setdefault(number, previous)

    def fileno(self) -> int:
        """Readable when there is something to `take`."""
        return self._reader

    def take(self) -> list[int]:
        """The signals noted since the last call, in order, one entry per delivery; never waits."""
        noted: list[int] = []
        while True:
            try:
                data = os.read(self._reader, 65536)
            except BlockingIOError:
                return noted
            noted += data
            if len(data) < 65536:
                return noted

    def close(self) -> None:
        """Put the former handlers back (in the process that made the pipe) and close it; a second call does nothing."""
        if self._reader < 0:
            return
        if self._owner == os.getpid():
            for number, previous in self._previous.items():
                signal.signal(number, previous)
            signal.set_wakeup_fd(self._previous_fd, warn_on_full_buffer=False)
        os.close(self._reader)
        os.close(self._writer)
        self._reader = self._writer = -1


def _note(_number: int, _frame: FrameType | None) -> None:
    """Nothing to do: the interpreter has written the number into the pipe before it calls this."""
