"""Whether a person has paused the stream: looked at now and then, and when the master passes on that there is news.

A paused stream keeps its lease and its workers, and claims nothing. What was claimed already is run.
"""

from __future__ import annotations

import logging

from workerpool import pauses
from workerpool.stream.arrivals import Arrivals
from workerpool.stream.desk import Desk

_log = logging.getLogger("workerpool.stream")


class Pausing:
    """Keeps `Desk.paused`, which is None, and nothing is claimed, until it was seen once. `directory`: for `pauses`."""

    def __init__(self, desk: Desk, arrivals: Arrivals, directory: str) -> None:
        self._desk = desk
        self._arrivals = arrivals
        self._directory = directory
        self._trouble = desk.troubles.new("seeing whether the stream is paused", _log)
        self._wanted = True

    def look(self) -> None:
        """Look at the next `act`: it has just started or taken over, was told, or looks at everything now."""
        self._wanted = True

    def act(self, now: float) -> None:
        """Look, when that is wanted; while it cannot be told, the stream stays as it was."""
        if not self._wanted or self._trouble.blocks(now):
            return
        try:
            found = pauses.find(self._directory, self._desk.stream)
        except OSError as error:
            self._trouble.met(error, now)
            return
        self._trouble.over(now)
        self._wanted = False
        self._set(found is not None)

    def next(self, now: float) -> float | None:  # noqa: ARG002
        """When it wants to look (again)."""
        return self._trouble.until if self._wanted else None

    def _set(self, paused: bool) -> None:
        before, self._desk.paused = self._desk.paused, paused
        if paused and not before:
            _log.info("stream %s is paused: nothing is claimed", self._desk.stream)
        elif before and not paused:
            _log.info("stream %s is not paused any more", self._desk.stream)
            self._arrivals.hungry = True
