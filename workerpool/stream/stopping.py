"""Ending in order: claim nothing more, give back what was not started, let what runs end, and at last kill it.

    begin ──soft──▶ jobs are asked to stop ──hard──▶ workers are killed; their jobs stay in flight, to be reclaimed

A worker with nothing to do is told to go at once; when it does not (an import that hangs), it is killed.
"""

from __future__ import annotations

import logging

from queuekit import JobNotFound, LeaseLost
from workerpool.stream.calling_back import CallingBack
from workerpool.stream.desk import STORE_ERRORS, Desk
from workerpool.stream.state import SlotState
from workerpool.stream.tenure import Phase

_LAST_WORD_SECONDS = 1.0
_log = logging.getLogger("workerpool.stream")


class Stopping:
    """How far the end of a stream process has come. `gave_up`: jobs were left to be reclaimed."""

    def __init__(self, desk: Desk, calling_back: CallingBack) -> None:
        self.gave_up = False
        self._desk = desk
        self._calling_back = calling_back
        self._trouble = desk.troubles.new("giving jobs back", _log)
        self._soft = self._hard = float("inf")
        self._asked = self._killed = False
        self._last_word: float | None = None

    def begin(self, now: float) -> None:
        """Start to end; a second call changes nothing."""
        desk = self._desk
        if desk.stopping:
            return
        desk.stopping = True
        self._soft, self._hard = now + desk.pool.shutdown.soft, now + desk.pool.shutdown.hard
        desk.row.say(state="stopping")
        self._calling_back.call_all()

    def hurry(self, now: float) -> None:
        """Kill what runs now."""
        self.begin(now)
        self._hard = now

    def act(self, now: float) -> None:
        """Go on with it; raises `LeaseLost`."""
        if not self._desk.stopping:
            return
        self._give_back(now)
        if now >= self._soft and not self._asked:
            self._asked = True
            self._desk.crew.ask_to_stop()
        if now >= self._hard and not self._killed:
            self._give_up()
        self._dismiss(now)

    def next(self, now: float) -> float | None:  # noqa: ARG002
        """When the next step is due."""
        if not self._desk.stopping:
            return None
        times = [] if self._asked else [self._soft]
        times += [] if self._killed else [self._hard]
        times += [self._trouble.until] if self._has_to_give_back() else []
        times += [] if self._last_word is None or self._desk.roster.busy else [self._last_word]
        return min(times, default=None)

    def is_over(self, now: float) -> bool:
        """Whether nobody and nothing is left to wait for."""
        desk = self._desk
        if not desk.stopping or len(desk.crew):
            return False
        if desk.journey.waiting or desk.roster.waiting:
            return now >= self._hard
        return True

    def _has_to_give_back(self) -> bool:
        return bool(self._desk.roster.waiting) and self._desk.tenure.phase is not Phase.STANDBY

    def _give_back(self, now: float) -> None:
        """Release what no worker has started."""
        desk = self._desk
        while self._has_to_give_back() and not self._trouble.blocks(now):
            claims = desk.roster.waiting[0].claims
            try:
                desk.backend.release(claims[-1].job.id, lease=desk.lease)
            except LeaseLost:
                raise
            except JobNotFound:
                _log.warning("job %s could not be given back: it is not in flight here any more", claims[-1].job.id)
            except STORE_ERRORS as error:
                self._trouble.met(error, now)
                return
            claims.pop()
            if not claims:
                desk.roster.waiting.popleft()

    def _give_up(self) -> None:
        self._killed = True
        self.gave_up = self._desk.roster.busy
        for slot in self._desk.roster.slots:
            slot.units.clear()
        self._desk.crew.kill_all()

    def _dismiss(self, now: float) -> None:
        """Send away who has nothing to do; kill who does not go."""
        for slot in self._desk.roster.slots:
            if slot.state in {SlotState.STARTING, SlotState.READY} and not slot.units:
                slot.dismiss()
                self._desk.crew.stop(slot)
                self._last_word = now + _LAST_WORD_SECONDS
        if self._last_word is not None and now >= self._last_word and not self._desk.roster.busy:
            self._last_word = now + _LAST_WORD_SECONDS
            self._desk.crew.kill_all()
