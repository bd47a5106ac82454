"""A time limit inside one process: an exception raised in the middle of the main thread's code."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from types import FrameType

_EARLY = 0.005
_NOT_OURS = "a SIGALRM that the handler has asked for; with a soft timeout this signal and its timer are the pool's"


@contextlib.contextmanager
def alarm(seconds: float, error: Exception) -> Iterator[None]:
    """Raise `error` in the body if it still runs after `seconds` (0 or less: never); once, in the main thread only.

    Uses SIGALRM and the real-time timer; both are as before afterwards. A body that sits in one call of C code gets it
    when that returns. Where a `SignalPipe` is open, the alarm's number appears in it too. An alarm before its time is
    somebody else's, who has set the one timer for himself: that raises `RuntimeError` in the body, and the limit stays.
    """
    if seconds <= 0:
        yield
        return
    armed = True

    def ring(_number: int, _frame: FrameType | None) -> None:
        if not armed:
            return
        left = end - time.monotonic()
        if left > _EARLY:
            signal.setitimer(signal.ITIMER_REAL, left)
            raise RuntimeError(_NOT_OURS)
        raise error

    end = time.monotonic() + seconds
    previous = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
