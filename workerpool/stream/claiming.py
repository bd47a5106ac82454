"""Claiming as many jobs as there is room for, and handing them to workers: one at a time, or in batches.

A batch that is not full waits for `batch_wait`; what there is room for meanwhile fills it up. While the store takes no
results, a few more jobs are run and then none: each of them would run again if this process died.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator

from queuekit import LeaseLost, QueueError
from workerpool.outcome import Result
from workerpool.process import ChannelError
from workerpool.stream.arrivals import Arrivals
from workerpool.stream.desk import STORE_ERRORS, Desk
from workerpool.stream.state import Slot, Unit

_MOST_UNSETTLED = 100
_TELLING_SECONDS = 0.02
_TOLD = object()
_log = logging.getLogger("workerpool.stream")


class Claiming:
    """From the store to the workers."""

    def __init__(self, desk: Desk, arrivals: Arrivals) -> None:
        self._desk = desk
        self._arrivals = arrivals
        self._trouble = desk.troubles.new("claiming jobs", _log)
        self._untold = deque[Iterator[None]]()
        self._growing: Unit | None = None
        self._full_at = 0.0

    def act(self, now: float) -> None:
        """Claim and hand over; raises `LeaseLost`."""
        desk = self._desk
        desk.roster.look_at_runs(now)
        if self._may_claim:
            self._claim(now)
        if self._may_assign:
            self._assign(now)

    def report(self) -> None:
        """Tell telemetry of what was claimed: after it was handed over, and for a moment only in each turn.

        A long queue takes a while to count.
        """
        until = time.monotonic() + _TELLING_SECONDS
        while self._untold and time.monotonic() < until:
            if next(self._untold[0], _TOLD) is _TOLD:
                self._untold.popleft()

    def next(self, now: float) -> float | None:
        """When something is to be claimed or handed over that no event announces."""
        desk = self._desk
        times = [now] if self._untold else []
        if desk.roster.waiting and desk.roster.free and self._may_assign:
            times.append(self._full_at if self._waits_to_fill() else now)
        if self._may_claim and desk.roster.room:
            due = 0.0 if self._arrivals.hungry else self._next_due(now)
            times += [] if due is None else [max(self._trouble.until, now + due)]
        return min(times, default=None)

    def _waits_to_fill(self) -> bool:
        desk = self._desk
        still = self._growing is not None and self._growing is desk.roster.growing
        return still and self._may_assign

    @property
    def _may_claim(self) -> bool:
        return self._desk.may_claim and self._desk.journey.waiting < _MOST_UNSETTLED

    @property
    def _may_assign(self) -> bool:
        return self._desk.tenure.may_claim and not self._desk.stopping

    def _claim(self, now: float) -> None:
        desk, arrivals = self._desk, self._arrivals
        if self._next_due(now) == 0.0:
            arrivals.hungry = True
        while arrivals.hungry and not self._trouble.blocks(now) and (room := desk.roster.room):
            try:
                claimed, report = desk.queue.drain_and_report_later(desk.stream, room, lease=desk.lease)
            except LeaseLost:
                raise
            except STORE_ERRORS as error:
                self._trouble.met(error, now)
                return
            self._trouble.over(now)
            self._untold.append(report)
            arrivals.hungry = len(claimed) >= room
            if desk.journey.waiting:
                desk.journey.claimed(claimed)
            desk.roster.add(claimed)

    def _next_due(self, now: float) -> float | None:
        """Seconds until the next deferred job is due; None when none is known, or that cannot be told now."""
        if self._trouble.blocks(now):
            return None
        try:
            return self._desk.backend.next_due(self._desk.stream)
        except STORE_ERRORS as error:
            self._trouble.met(error, now)
            self._arrivals.hungry = True
            return None

    def _assign(self, now: float) -> None:
        roster = self._desk.roster
        for slot, unit in roster.assign(only_full=self._is_patient(now)):
            self._give(slot, unit, now)

    def _is_patient(self, now: float) -> bool:
        """Whether a batch that is not full should wait for more."""
        growing = self._desk.roster.growing if self._desk.config.batch_wait else None
        if growing is not self._growing:
            self._growing, self._full_at = growing, now + self._desk.config.batch_wait
        return growing is not None and now < self._full_at

    def _give(self, slot: Slot, unit: Unit, now: float) -> None:
        """Hand a unit to a worker; of one that cannot be sent the job is found that makes it so, and fails."""
        desk = self._desk
        try:
            desk.crew.give(slot, unit, desk.lease)
        except (ChannelError, QueueError) as error:
            if len(unit.claims) > 1:
                desk.roster.first(unit.halves())
            else:
                desk.journey.ended(unit.claims[0], Result.failed(f"it cannot be handed to a worker: {error}"))
        else:
            slot.give(unit, now)
