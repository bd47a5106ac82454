"""Ending the pool: in order, then harder, then at once; and what it exits with.

    GRACEFUL ──hard, or asked again──▶ KILL_WORKERS ──a moment, or asked again──▶ KILL_ALL

The streams keep `soft` and `hard` themselves; the master only sees that it is over a moment after `hard`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from workerpool import logs
from workerpool.master.desk import EXIT_BLOCKED, EXIT_FAILED, EXIT_GAVE_UP, EXIT_OK, Desk
from workerpool.master.state import NEXT_WORDS, Ending

_GRACE_SECONDS = 2.0
_log = logging.getLogger("workerpool.master")


class Stopping:
    """How far the end has come. `kill_everything`: the last resort."""

    def __init__(self, desk: Desk, kill_everything: Callable[[], None]) -> None:
        self._desk = desk
        self._kill_everything = kill_everything
        self._kill_at = 0.0
        self._all_done = False  # a burst has ended the pool: nothing is outstanding, so nothing can be given up

    def begin(self, ending: Ending, now: float, *, asked: bool = False) -> None:
        """End the pool so, unless it ends at least as hard already. `asked`: a person or a manager wants it."""
        desk = self._desk
        if ending <= desk.ending:
            return
        if not desk.is_ending:
            desk.place.notifier.stopping()
            self._all_done = desk.burst is not None and desk.code == EXIT_OK and not asked
        desk.ending = ending
        shutdown = desk.pool.shutdown
        if asked or desk.burst is None or ending is not Ending.GRACEFUL:
            logs.announce(_log, NEXT_WORDS[ending].format(hard=shutdown.hard))
        desk.place.board.row(0).say(state="stopping")
        match ending:
            case Ending.GRACEFUL:
                desk.tell({"t": "stop"})
                self._kill_at = now + shutdown.hard + _GRACE_SECONDS / 2
            case Ending.KILL_WORKERS:
                desk.tell({"t": "kill"})
                self._kill_at = min(self._kill_at or now + _GRACE_SECONDS, now + _GRACE_SECONDS)
            case Ending.KILL_ALL:
                if desk.code == EXIT_OK:
                    desk.code = EXIT_GAVE_UP
                self._kill_everything()

    def act(self, now: float) -> None:
        """Kill what has had its time."""
        if self._waits_for_the_end and now >= self._kill_at:
            _log.error("the time for stopping is over")
            self._desk.code = self._desk.code or EXIT_GAVE_UP
            self.begin(Ending.KILL_ALL, now)

    def next(self) -> float | None:
        """When the time is over."""
        return self._kill_at if self._waits_for_the_end else None

    @property
    def _waits_for_the_end(self) -> bool:
        return bool(self._kill_at) and self._desk.ending is not Ending.KILL_ALL

    def is_over(self) -> bool:
        """Whether no stream process is left to wait for."""
        return self._desk.is_ending and all(member.child is None for member in self._desk.members.values())

    def note_end(self, code: int | None) -> None:
        """What the end of a stream process (None: by a signal) means for ours: a reason that is known already stays."""
        if code is None and self._all_done:
            return
        if self._desk.is_ending and self._desk.code == EXIT_OK and code != EXIT_OK:
            self._desk.code = EXIT_GAVE_UP if code in {None, EXIT_GAVE_UP} else EXIT_FAILED

    def exit_code(self) -> int:
        """What the pool exits with."""
        desk = self._desk
        if desk.code != EXIT_OK or desk.burst is None:
            return desk.code
        if any(state.is_hopeless for state in desk.states):
            return EXIT_FAILED
        return EXIT_BLOCKED if desk.counts[1] else EXIT_OK
