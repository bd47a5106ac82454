"""A wall clock that a test sets for some processes, while the machine's own goes on: nobody else notices.

As a program, `python shifted_clock.py FILE PROGRAM ARGUMENTS…`, it runs a Python program in this very process whose
`time.time` and its like are off by what FILE says: so are all processes that it forks, and a change of FILE is seen by
all of them at their next look. Monotonic clocks and what the kernel stamps files with stay as they are.

For a test, `ShiftedClock(file)` makes the file and sets it.
"""

from __future__ import annotations

import mmap
import os
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_SIZE = 8


class ShiftedClock:
    """How far the wall clock of some processes is off. `before`: what a command line begins with that follows it."""

    def __init__(self, file: Path) -> None:
        file.write_bytes(bytes(_SIZE))
        self.before = [sys.executable, os.path.abspath(__file__), str(file)]
        self._offset = _mapped(str(file))

    @property
    def seconds(self) -> float:
        """By how much it is ahead."""
        return self._offset[0] / 1e9

    def set(self, seconds: float) -> None:
        """Let it be ahead by so many seconds from now on; less than nothing: behind."""
        self._offset[0] = int(seconds * 1e9)

    def step(self, seconds: float) -> None:
        """Set it by so many seconds."""
        self.set(self.seconds + seconds)


def _mapped(path: str) -> memoryview:
    """The number of nanoseconds in a file, shared by all who have it mapped."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return memoryview(mmap.mmap(fd, _SIZE)).cast("q")
    finally:
        os.close(fd)


def follow(path: str) -> None:
    """Let the wall clock of this process, and of all that it forks, be off by what the file says."""
    offset = _mapped(path)
    real_ns, real_gettime, real_gettime_ns = time.time_ns, time.clock_gettime, time.clock_gettime_ns

    def now_ns() -> int:
        return real_ns() + offset[0]

    def now() -> float:
        return now_ns() / 1e9

    def gettime(clock: int) -> float:
        return real_gettime(clock) + (offset[0] / 1e9 if clock == time.CLOCK_REALTIME else 0)

    def gettime_ns(clock: int) -> int:
        return real_gettime_ns(clock) + (offset[0] if clock == time.CLOCK_REALTIME else 0)

    def of_now(real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda seconds=None: real(now() if seconds is None else seconds)

    shifted = {"time": now, "time_ns": now_ns, "clock_gettime": gettime, "clock_gettime_ns": gettime_ns}
    shifted |= {name: of_now(getattr(time, name)) for name in ("gmtime", "localtime", "ctime")}
    for name, function in shifted.items():
        setattr(time, name, function)


def main() -> None:
    """See above."""
    follow(sys.argv[1])
    del sys.argv[:2]
    sys.path[0] = os.path.dirname(sys.argv[0])
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
