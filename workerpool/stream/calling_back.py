"""Calling units back from behind a long run: they wait in a worker's pipe while another worker could take them.

A call is one store into the worker's row. It holds for sure for what the worker is seen not to have started a moment
later (see `Row.recall`); what it drops by itself it says.
"""

from __future__ import annotations

import dataclasses

from workerpool.stream.desk import Desk
from workerpool.stream.state import Slot, SlotState, Unit

_SOON = 0.002


@dataclasses.dataclass(frozen=True, slots=True)
class _Call:
    """Units up to `number` were called back while the worker was in the run of `job` that began at `since_ns`."""

    number: int
    job: str
    since_ns: int


class CallingBack:
    """The calls that are not confirmed yet, by slot."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._calls: dict[int, _Call] = {}

    def act(self, now: float) -> None:  # noqa: ARG002
        """Take back what is confirmed, and call back what is stuck."""
        for slot in [slot for slot in self._desk.roster.slots if slot.index in self._calls]:
            self._confirm(slot)
        for slot in self._desk.roster.stuck():
            self.call(slot)

    def next(self, now: float) -> float | None:
        """Soon while a call is to be confirmed, else when something will be stuck."""
        if self._calls:
            return now + _SOON
        stuck = self._desk.roster.next_stuck()
        return None if stuck is None else max(stuck, now + _SOON)

    def call(self, slot: Slot) -> None:
        """Call back what waits behind the run that the slot's worker is in."""
        row = self._desk.crew.recall(slot)
        if row.job and slot.units:
            self._calls[slot.index] = _Call(slot.units[-1].number, row.job, row.since_ns)

    def call_all(self) -> None:
        """The same for every worker with more than one unit: nothing more is to be started."""
        for slot in self._desk.roster.slots:
            if len(slot.units) > 1 and slot.state is not SlotState.EMPTY:
                self.call(slot)

    def dropped(self, slot: Slot, number: int) -> None:
        """The worker says that it did not start this unit."""
        self._take_back(slot, [unit for unit in slot.units if unit.number == number])

    def forget(self, slot: Slot) -> None:
        """The worker is gone."""
        self._calls.pop(slot.index, None)

    def _confirm(self, slot: Slot) -> None:
        call = self._calls.pop(slot.index)
        row = self._desk.crew.view(slot)
        if (row.job, row.since_ns) == (call.job, call.since_ns):
            self._take_back(slot, [unit for unit in slot.behind(call.job) if unit.number <= call.number])

    def _take_back(self, slot: Slot, units: list[Unit]) -> None:
        for unit in units:
            slot.units.remove(unit)
        self._desk.roster.first(units)
