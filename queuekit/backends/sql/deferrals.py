"""What one consumer knows of deferred jobs: when to look next, by two clocks. No I/O.

The database has the due times; the wall clocks behind them can be set back, and then a job would wait for hours. So the
monotonic time at which a job that is known here ought to be due is kept beside, and the earlier of the two counts.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from queuekit.clock import Due

KEPT = 10_000


class Deferrals:
    """Due times by stream. Times are ms since the epoch (`_ms`), else monotonic seconds. Safe from several threads.

    A due time is known with the ms that the database has for it: a job put off anew by somebody else has others.
    """

    def __init__(self) -> None:
        self._jobs: dict[str, tuple[str, int, float]] = {}  # its stream, when it is due by either clock
        self._soonest: dict[str | None, int | None] = {}
        self._guard = threading.Lock()

    def learn(self, stream: str | None, soonest: tuple[str, str, int] | None, now_ms: int, now: float) -> None:
        """What a look at a stream (None: at all) found: `(id, stream, due)` of its soonest deferred job, or none."""
        with self._guard:
            self._soonest[stream] = soonest[2] if soonest else None
            if soonest and self._jobs.get(soonest[0], ("", None))[1] != soonest[2]:
                self._keep(*soonest, now + (soonest[2] - now_ms) / 1000)

    def add(self, job_id: str, stream: str, due: Due) -> None:
        """A job was deferred here."""
        with self._guard:
            self._keep(job_id, stream, due.at_ms, due.deadline)
            for key in (stream, None):
                if key in self._soonest:
                    known = self._soonest[key]
                    self._soonest[key] = due.at_ms if known is None else min(known, due.at_ms)

    def _keep(self, job_id: str, stream: str, due_ms: int, due: float) -> None:
        self._jobs[job_id] = (stream, due_ms, due)
        if len(self._jobs) > KEPT:
            del self._jobs[next(iter(self._jobs))]

    def forget(self, ids: Iterable[str]) -> None:
        """They are not deferred any more."""
        with self._guard:
            for job_id in ids:
                self._jobs.pop(job_id, None)

    def forget_looks(self) -> None:
        """Somebody else may have deferred jobs: the next question is for the database."""
        with self._guard:
            self._soonest.clear()

    def due(self, stream: str | None, now: float) -> dict[str, int]:
        """The jobs known here whose time has come on the monotonic clock, and what that is in ms."""
        with self._guard:
            known = self._jobs.items()
            return {job_id: due_ms for job_id, (its, due_ms, due) in known if due <= now and stream in {None, its}}

    def wait(self, stream: str | None, now_ms: int, now: float) -> tuple[bool, float | None]:
        """Whether the stream was looked at, and the seconds until its next deferred job is due (None: none)."""
        with self._guard:
            if stream not in self._soonest:
                return False, None
            soonest = self._soonest[stream]
            waits = [] if soonest is None else [(soonest - now_ms) / 1000]
            waits += [due - now for its, _, due in self._jobs.values() if stream in {None, its}]
            return True, max(0.0, min(waits)) if waits else None
