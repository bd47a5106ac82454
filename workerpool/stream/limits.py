"""What a worker may take: time for one run, time for its import, memory from job to job.

A run that lasts for longer than `timeout` ends with its worker, in two steps, so that its record can tell where it was:

    too long ──▶ overdue: nothing behind it is started; asked where it is ──`_STACK_SECONDS`──▶ killed, with its group

From the first step on nothing counts that the run still says: the question is a signal, and may have ended a call that
would have gone on. A slow import is only mentioned: nobody can say how long a model takes to load. Memory is looked at
between jobs, and the worker replaced in order (see `Roster.weigh`).
"""

from __future__ import annotations

import logging

from workerpool.stream.desk import Desk
from workerpool.stream.state import Slot, SlotState, Unit
from workerpool.units import format_size

_log = logging.getLogger("workerpool.stream")
_FIRST_LOOK = 0.05
_STACK_SECONDS = 0.1
_WEIGH_SECONDS = 0.25
SLOW_IMPORT_SECONDS = 30.0


class Limits:
    """The limits of one stream's workers."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._overdue: dict[int, float | None] = {}  # by slot: when its worker is to be killed, None: it was
        self._slow: dict[int, float] = {}
        self._weigh_at = 0.0
        self._said_young = False

    def act(self, now: float) -> None:
        """Kill whose run has lasted for too long; note who has grown too much."""
        self._watch_runs(now)
        self._kill_overdue(now)
        self._watch_imports(now)
        self._weigh(now)

    def next(self, now: float) -> float | None:
        """When a run or an import may have lasted for too long."""
        times = [slot.head_since + self._desk.config.timeout + _FIRST_LOOK for slot in self._running()]
        times += [slot.started + SLOW_IMPORT_SECONDS for slot in self._importing()]
        looks = [max(min(times), now + _FIRST_LOOK)] if times else []
        return min([*looks, *self._kills()], default=None)

    def _kills(self) -> list[float]:
        return [at for at in self._overdue.values() if at is not None]

    def ended(self, slot: Slot) -> bool:
        """The worker is gone; whether that was for a run that took too long."""
        self._slow.pop(slot.index, None)
        was_overdue = slot.index in self._overdue
        self._overdue.pop(slot.index, None)
        return was_overdue

    def _running(self) -> list[Slot]:
        if not self._desk.config.timeout:
            return []
        return [slot for slot in self._desk.roster.slots if slot.units and slot.index not in self._overdue]

    def _importing(self) -> list[Slot]:
        slots = self._desk.roster.slots
        return [slot for slot in slots if slot.state is SlotState.STARTING and slot.index not in self._slow]

    def _watch_runs(self, now: float) -> None:
        limit = self._desk.config.timeout
        for slot in self._running():
            row = self._desk.crew.view(slot)
            unit = slot.unit_of(row.job) if row.job and now - row.since_ns / 1e9 > limit else None
            if unit is not None:
                _log.error("job %s runs for longer than %g s: its worker is killed", row.job, limit)
                self._give_notice(slot, unit, now)

    def _give_notice(self, slot: Slot, unit: Unit, now: float) -> None:
        unit.overdue = True
        self._overdue[slot.index] = now + _STACK_SECONDS
        self._desk.crew.recall(slot)
        self._desk.crew.ask_where(slot)

    def _kill_overdue(self, now: float) -> None:
        for slot in self._desk.roster.slots:
            at = self._overdue.get(slot.index)
            if at is not None and now >= at:
                self._overdue[slot.index] = None
                self._desk.crew.kill(slot)

    def _watch_imports(self, now: float) -> None:
        for slot in self._importing():
            if now - slot.started >= SLOW_IMPORT_SECONDS:
                self._slow[slot.index] = slot.started
                handler = self._desk.config.handler
                _log.warning("%s is still being imported after %g s", handler, SLOW_IMPORT_SECONDS)

    def _weigh(self, now: float) -> None:
        roster = self._desk.roster
        if not roster.max_memory or now < self._weigh_at:
            return
        for slot in [slot for slot in roster.slots if slot.state is SlotState.READY and slot.ran]:
            self._weigh_at = now + _WEIGH_SECONDS
            self._note_weight(slot, self._desk.crew.view(slot).rss, now)

    def _note_weight(self, slot: Slot, rss: int, now: float) -> None:
        stays = self._desk.roster.weigh(slot, rss, now)
        grown, limit = (rss - slot.first_rss) // 2**20, format_size(self._desk.config.max_memory)
        if stays and not self._said_young:
            self._said_young = True
            _log.warning(
                "worker %d has grown by %d MiB in %d jobs, over max_memory = %s, and is too young to be replaced: "
                "starting workers would take longer than their jobs (said once)",
                slot.index + 1,
                grown,
                slot.ran,
                limit,
            )
        if slot.outgrown:
            _log.info("worker %d has grown by %d MiB in %d jobs: it is replaced", slot.index + 1, grown, slot.ran)
