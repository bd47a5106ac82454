"""How long the last drains took, and when it is time to tell. No I/O and no clock: time comes in as an argument.

`QueueLatencyWindow` keeps the last samples, also in order of size, so that a percentile is a look-up.
`QueueLatencyWindowBox` is what several threads share: one window, and per stream a throttle slot and a count of jobs,
all under one lock. `LatencyBox` is what reporting needs of it; `shared_window` has the one for several processes.
"""

from __future__ import annotations

import bisect
import collections
import math
import threading
from typing import Protocol

CAPACITY = 100


class QueueLatencyWindow:
    """The last `capacity` samples, first in, first out. Not for several threads. Raises `ValueError` below 1."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        if capacity < 1:
            raise ValueError(f"a window holds at least one sample, not {capacity}")
        self.capacity = capacity
        self._by_age: collections.deque[float] = collections.deque()
        self._by_size: list[float] = []

    def __len__(self) -> int:
        return len(self._by_age)

    def append(self, ms: float) -> None:
        """Add a sample (ms) and drop the oldest when full. What is not a finite number is no sample: ignored."""
        if not math.isfinite(ms):
            return
        if len(self._by_age) == self.capacity:
            oldest = self._by_age.popleft()
            del self._by_size[bisect.bisect_left(self._by_size, oldest)]
        self._by_age.append(ms)
        bisect.insort(self._by_size, ms)

    def percentile(self, p: float) -> float:
        """The sample at `p` percent of the way up; 0 when there is none, or `p` is no finite number in 0..100."""
        return percentile_of(self._by_size, p)


def percentile_of(ordered: list[float], p: float) -> float:
    """`percentile` of samples that are in ascending order already."""
    if not ordered or not 0 <= p <= 100:
        return 0.0
    return ordered[int(p / 100 * (len(ordered) - 1))]


def throttle(last: float | None, now: float, interval: float) -> tuple[float | None, bool]:
    """Whether to emit at `now`, and the time to remember as the last one. `last` is None when nothing was emitted yet.

    A `now` before `last` means that the clock was set back: the interval is counted from there, so that it is silent
    for one interval and not until the clock has caught up. A `now` that is no number changes nothing.
    """
    if not math.isfinite(now):
        return last, False
    if last is None or now - last >= interval:
        return now, True
    return min(last, now), False


class LatencyBox(Protocol):
    """What a report needs to remember between drains."""

    def sample(self, ms: float, now: float, interval: float, stream: str = "") -> tuple[float, float, bool]:
        """Add a sample; p50, p95, and whether a report of the stream is due."""

    def note_drained(self, stream: str, count: int) -> None:
        """Add to the jobs of a stream that were claimed since its last report."""

    def take_drained(self, stream: str) -> int:
        """That sum, which starts at 0 again."""


class QueueLatencyWindowBox:
    """A window with its throttles, shared by the threads of one process. Takes over `window`, or makes one of 100."""

    def __init__(self, window: QueueLatencyWindow | None = None) -> None:
        self._window = QueueLatencyWindow() if window is None else window
        self._lock = threading.Lock()
        self._emitted: dict[str, float | None] = {}
        self._drained: dict[str, int] = {}

    def sample(self, ms: float, now: float, interval: float, stream: str = "") -> tuple[float, float, bool]:
        """Add a sample of `ms`; returns (p50, p95, should_emit).

        `should_emit` is True at most once per `interval` and stream, by the caller's `now` (both in seconds), and for
        a stream's first sample always.
        """
        with self._lock:
            self._window.append(ms)
            self._emitted[stream], should_emit = throttle(self._emitted.get(stream), now, interval)
            return self._window.percentile(50), self._window.percentile(95), should_emit

    def percentiles(self) -> tuple[float, float]:
        """(p50, p95) in ms, without adding a sample."""
        with self._lock:
            return self._window.percentile(50), self._window.percentile(95)

    def note_drained(self, stream: str, count: int) -> None:
        """Add `count` to the jobs of `stream` that were claimed since `take_drained`."""
        with self._lock:
            self._drained[stream] = self._drained.get(stream, 0) + count

    def take_drained(self, stream: str) -> int:
        """How many that are; they are counted no more."""
        with self._lock:
            return self._drained.pop(stream, 0)
