"""Ending a burst: when every stream has said, and said again, that nothing of it is outstanding.

Paused streams are not waited for, nor those whose handler cannot be imported, nor those whose processes die again and
again; what was not worked is said at the end.
"""

from __future__ import annotations

import logging

from workerpool.master.desk import EXIT_FAILED, Desk
from workerpool.master.state import Condition, Ending
from workerpool.master.stopping import Stopping

_log = logging.getLogger("workerpool.master")


class Bursting:
    """Nothing, in a pool that is no burst. What is decided when is `state.Burst`'s."""

    def __init__(self, desk: Desk, stopping: Stopping) -> None:
        self._desk = desk
        self._stopping = stopping

    def act(self, now: float) -> None:
        """Ask the streams again, or end the pool, when it is time."""
        burst, states = self._desk.burst, self._desk.states
        if burst is None or self._desk.is_ending:
            return
        question = burst.next_question(states)
        if question is not None:
            self._desk.tell({"t": "confirm", "n": question})
        if burst.question and burst.is_over(states):
            self._say_what_was_not_worked()
            self._stopping.begin(Ending.GRACEFUL, now)

    def _say_what_was_not_worked(self) -> None:
        failing = [state.name for state in self._desk.states if state.condition is Condition.FAILING]
        if failing:
            _log.error("not worked, the handler cannot be imported: %s", ", ".join(failing))
            self._desk.code = EXIT_FAILED
        hopeless = [state.name for state in self._desk.states if state.is_hopeless]
        if hopeless:
            _log.error("not worked, the stream's process dies again and again: %s", ", ".join(hopeless))
            self._desk.code = EXIT_FAILED
        for member in self._desk.members.values():
            if member.left:
                _log.warning("not worked, stream %s is paused; jobs left: %d", member.config.name, member.left)
