"""What the service manager is told: ready, reloading, how it goes; and feeding its watchdog while every stream lives.

Ready is the pool when each stream has had its first try: it works, or its handler cannot be imported, or its process
has died or cannot be made. Nothing here wakes an idle pool but the watchdog, where there is one.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from workerpool.master.desk import Desk, Member
from workerpool.master.state import Condition

_STATUS_SECONDS = 5.0
_HUNGRY_SHARE = 10  # while a stream gives no sign of life, it is looked at so much more often
_log = logging.getLogger("workerpool.master")


class Service:
    """The pool as a service; nothing, where no manager listens."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._notifier = desk.place.notifier
        self._interval = self._notifier.watchdog_interval
        self._is_ready = False
        self._feed_at = self._status_at = 0.0
        self._said = ""
        self._news: tuple[bool, list[str]] | None = None
        self._silent: list[str] = []

    def act(self, now: float) -> None:
        """Say what has changed; feed the watchdog."""
        if not self._notifier.is_heard:
            return
        if not self._is_ready and not self._desk.is_ending and all(map(_was_tried, self._wanted())):
            self._is_ready = True
            self._notifier.ready()
        self._say_status(now)
        if self._interval is not None and now >= self._feed_at:
            self._feed(now, self._interval)

    def next(self) -> float | None:
        """When the watchdog is to be fed."""
        return None if self._interval is None else self._feed_at

    @contextlib.contextmanager
    def reloading(self) -> Iterator[None]:
        """Around a reload."""
        if self._is_ready:
            self._notifier.reloading()
        try:
            yield
        finally:
            if self._is_ready:
                self._notifier.ready()

    def _wanted(self) -> list[Member]:
        return [member for member in self._desk.members.values() if not member.state.dismissed]

    # -- the status line

    def _say_status(self, now: float) -> None:
        failing = [member.config.name for member in self._wanted() if _is_failing(member)]
        news = (self._desk.is_ending, failing)
        if now < self._status_at and news == self._news:
            return
        self._status_at, self._news = now + _STATUS_SECONDS, news
        text = self._status(failing)
        if text != self._said:
            self._said = text
            self._notifier.status(text)

    def _status(self, failing: list[str]) -> str:
        members = self._wanted()
        rows = [self._desk.place.board.view(member.first_row) for member in members]
        done, blocked = sum(row.jobs_done for row in rows), sum(row.jobs_blocked for row in rows)
        parts = [f"{len(members)} stream{'' if len(members) == 1 else 's'}", f"{done:,} jobs done"]
        parts += [f"{blocked:,} blocked"] if blocked else []
        parts += [f"failing: {' '.join(failing)}"] if failing else []
        return ", ".join(["stopping", *parts] if self._desk.is_ending else parts)

    # -- the watchdog

    def _feed(self, now: float, interval: float) -> None:
        """Feed it, unless a stream is silent; the end of a pool has a deadline of its own."""
        silent = [] if self._desk.is_ending else [m.config.name for m in self._wanted() if self._is_silent(m, now)]
        if silent and silent != self._silent:
            _log.error("no sign of life, so the watchdog is not fed: %s", ", ".join(silent))
        self._silent = silent
        if silent:
            self._feed_at = now + interval / _HUNGRY_SHARE
        else:
            self._feed_at = now + interval
            self._notifier.feed()

    def _is_silent(self, member: Member, now: float) -> bool:
        """Whether its process has not turned for longer than its lease, or the manager, would put up with."""
        if member.child is None or self._interval is None:
            return False
        row = self._desk.place.board.view(member.first_row)
        beat = row.heartbeat_ns / 1e9 if row.pid == member.child.pid else member.state.started
        return now - beat > max(self._desk.pool.lease.ttl, self._interval)


def _was_tried(member: Member) -> bool:
    return member.state.ever_ready or _is_failing(member)


def _is_failing(member: Member) -> bool:
    state = member.state
    died = bool(state.failures) and state.condition is not Condition.READY
    return state.condition is Condition.FAILING or died or member.starting.lasts
