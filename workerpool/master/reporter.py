"""The reporter's process, where there is one: it serves the user's own telemetry hooks, and may die without harm."""

from __future__ import annotations

import contextlib
import logging
import os
import signal

from workerpool.master.desk import Desk
from workerpool.master.state import LIVED_LONG_SECONDS
from workerpool.policy import respawn_delay
from workerpool.process import Child, kill_group, spawn
from workerpool.trouble import Trouble

_log = logging.getLogger("workerpool.master")


class Reporter:
    """Kept running until the pool ends; nothing when the pool needs none."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._child: Child | None = None
        self._start_at = self._began = 0.0
        self._failures = 0
        self._starting = Trouble("starting the reporter", _log)

    @property
    def pid(self) -> int | None:
        """Its pid while it lives."""
        return None if self._child is None else self._child.pid

    def act(self, now: float) -> None:
        """Start it when it is due."""
        if self._is_wanted() and now >= self._start_at:
            self._start(now)

    def next(self) -> float | None:
        """When it is due."""
        return self._start_at if self._is_wanted() else None

    def _is_wanted(self) -> bool:
        return self._desk.place.be_reporter is not None and self._child is None and not self._desk.is_ending

    def _start(self, now: float) -> None:
        serve, keep = self._desk.place.be_reporter, self._desk.place.keep
        if serve is None:
            return
        try:
            self._child = spawn(serve, name="reporter", own_group=True, ignore_int=True, keep=keep)
        except OSError as error:
            self._starting.met(error, now)
            self._start_at = self._starting.until
            return
        self._began = now
        self._starting.over(now)

    def ended(self, pid: int, now: float) -> None:
        """A child of the master is gone; when it was the reporter, it is started again ever more slowly."""
        if self._child is not None and pid == self._child.pid:
            self._failed(now)

    def _failed(self, now: float) -> None:
        lived_long = self._child is not None and now - self._began >= LIVED_LONG_SECONDS
        self._child = None
        self._failures = 1 if lived_long else self._failures + 1
        self._start_at = now + respawn_delay(self._failures, ever_ready=False)

    def kill(self) -> None:
        """Kill it with whatever its hooks have started."""
        if self._child is not None:
            kill_group(self._child.pid, self._child.start, signal.SIGKILL, session=self._child.session)

    def bury(self) -> None:
        """Wait for it, after `kill`."""
        if self._child is not None:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._child.pid, 0)
            self._child = None
