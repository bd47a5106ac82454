"""What a stream process tells its master: that it is ready, failing or standing by, and what became of its jobs.

For `--burst` it says "idle" whenever nothing of its stream is outstanding, with the number of jobs that it has handled
and of the last question that it saw; the master puts these together. A paused stream says so too, with what is left:
nobody waits for that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from queuekit.clock import now_ms
from workerpool.process import wait_writable
from workerpool.stream.desk import STORE_ERRORS, Desk

_IDLE_LOOK_SECONDS = 1.0
_SOONEST_LOOK_SECONDS = 0.02
_LOOKS_SHARE = 10  # between two looks lies ten times what one of them takes
_LAST_WORDS_SECONDS = 1.0
_FULL = "the disk is full: nothing is claimed until there is room"
_log = logging.getLogger("workerpool.stream")


class Words:
    """The way to the master. `is_busy`: whether there is work to do here."""

    def __init__(self, desk: Desk, *, burst: bool, is_busy: Callable[[], bool]) -> None:
        self._desk = desk
        self._burst = burst
        self._is_busy = is_busy
        self._counting = desk.troubles.new("counting jobs", _log)
        self._question: int | None = None
        self._look_at = self._look_soon = 0.0
        self._looked_after = 0
        self._failing: str | None = None
        self._said_trouble = ""
        self._said_ready = self._said_standby = False

    # -- how it is doing

    def ready(self) -> None:
        """A worker has imported the handler."""
        if not self._desk.stopping:
            self._desk.row.say(state="running", error="")
        if not self._said_ready or self._failing is not None:
            self._said_ready, self._failing = True, None
            self._desk.master.send({"t": "ready"})

    def failed(self, error: str) -> None:
        """A worker could not import the handler; the same reason is said once."""
        self._desk.row.say(state="failing", error=error)
        if error != self._failing:
            self._failing = error
            self._desk.master.send({"t": "failed", "error": error})

    def lease(self) -> None:
        """How it stands with the lease; who has it, when that is somebody else."""
        tenure = self._desk.tenure
        self._desk.row.say(lease=tenure.phase.value)
        if tenure.may_claim:
            self._said_standby = False
        elif tenure.is_standby and tenure.holder is not None and not self._said_standby:
            self._said_standby = True
            _log.warning("stream %s is worked by %s: standing by", self._desk.stream, tenure.holder)
            self._desk.master.send({"t": "standby", "holder": tenure.holder})

    def trouble(self) -> None:
        """What keeps the stream from its work, for the board; it began when anything first did."""
        desk, worst = self._desk, self._desk.troubles.worst()
        text = worst.text if worst is not None else _FULL if desk.full else ""
        if text == self._said_trouble:
            return
        if not (text and self._said_trouble):
            desk.row.set(trouble_ms=now_ms() if text else 0)
        desk.row.say(trouble=text)
        self._said_trouble = text

    def lease_moved(self) -> None:
        """The lease was won or lost; the master sees whether that is because the root is another one."""
        self._desk.master.send({"t": "lease moved"})

    def last(self) -> None:
        """The counts, and everything that was not sent yet, unless the master does not listen."""
        self._counts()
        deadline = time.monotonic() + _LAST_WORDS_SECONDS
        master = self._desk.master
        master.flush()
        while master.wants_write and (left := deadline - time.monotonic()) > 0:
            wait_writable(master, left)
            master.flush()

    def _counts(self) -> None:
        counts = self._desk.journey.counts
        said = {"done": counts.done, "blocked": counts.blocked, "retried": counts.retried}
        self._desk.master.send({"t": "counts", **said})

    # -- a burst

    def asked(self, question: int) -> None:
        """The master wants to know again whether anything is outstanding."""
        self._question, self._look_at, self._look_soon = question, 0.0, 0.0

    def act(self, now: float) -> None:
        """Say "idle" when nothing is outstanding that could be worked."""
        if not self._is_due(now):
            return
        self._look_at, self._looked_after = now + _IDLE_LOOK_SECONDS, self._desk.journey.counts.handled
        try:
            outstanding = self._desk.queue.tally(self._desk.stream).outstanding
            self._look_soon = now + max(_SOONEST_LOOK_SECONDS, _LOOKS_SHARE * (time.monotonic() - now))
        except STORE_ERRORS as error:
            self._counting.met(error, now)
            return
        self._counting.over(now)
        if outstanding == 0 or self._desk.paused:
            self._counts()
            left = {"left": outstanding} if outstanding else {}
            handled = self._desk.journey.counts.handled
            self._desk.master.send({"t": "idle", "n": self._question, "handled": handled, **left})

    def next(self, now: float) -> float | None:  # noqa: ARG002
        """When it wants to look whether anything is outstanding: soon when jobs were handled since it last did."""
        if not self._burst or self._desk.stopping or self._is_busy():
            return None
        news = self._desk.journey.counts.handled != self._looked_after
        return min(self._look_soon, self._look_at) if news else self._look_at

    def _is_due(self, now: float) -> bool:
        at = self.next(now)
        return at is not None and now >= at
