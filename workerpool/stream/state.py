"""What a stream process decides, without I/O: which jobs go to which worker, who is started, retired, killed, and when.

Facts come in as arguments (times are monotonic seconds), decisions go out as values; `loop` performs them.

A unit is what one run of the handler gets: one job, or a batch. Each worker has a short queue of units: the first one
is running (or about to), the others wait in the worker's pipe so that it never waits for us. How many depends on how
long its runs take: about `_AHEAD_SECONDS` of work. What waits behind a run that takes long can be called back.

    slot:  EMPTY ──spawn──▶ STARTING ──ready──▶ READY ──retire──▶ RETIRING ──exit──▶ EMPTY (and again)
             ▲                  │ failed, died     │ died
             └──────────────────┴──────────────────┘   next start after `respawn_delay`
"""

from __future__ import annotations

import dataclasses
import enum
from collections import deque
from collections.abc import Iterable, Sequence

from queuekit.job import Claimed
from workerpool.config import StreamConfig
from workerpool.outcome import Result
from workerpool.policy import respawn_delay

_AHEAD_SECONDS = 0.03
_MOST_AHEAD = 64
_RUN_OVERHEAD_SECONDS = 0.0001
_SMOOTHING = 0.2
STUCK_SECONDS = 0.1
LIVED_LONG_SECONDS = 10.0


class SlotState(enum.Enum):
    """Where a worker's place stands."""

    EMPTY = "empty"
    STARTING = "starting"
    READY = "ready"
    RETIRING = "retiring"


@dataclasses.dataclass(slots=True, eq=False)
class Unit:
    """Jobs that run together. `number`: given when it is sent to a worker; `results`: of the jobs that have ended."""

    claims: list[Claimed]
    number: int = 0
    results: dict[str, Result] = dataclasses.field(default_factory=dict)

    @property
    def job_ids(self) -> list[str]:
        """Their ids."""
        return [claimed.job.id for claimed in self.claims]

    def halves(self) -> list[Unit]:
        """Two units of half the jobs each, to find the one that makes all fail."""
        middle = (len(self.claims) + 1) // 2
        return [Unit(self.claims[:middle]), Unit(self.claims[middle:])]


@dataclasses.dataclass(slots=True)
class Slot:
    """The place of one worker. `index`: its number from 0; `generation`: of the configuration it was started with."""

    index: int
    state: SlotState = SlotState.EMPTY
    generation: int = 0
    units: deque[Unit] = dataclasses.field(default_factory=deque)
    head_since: float = 0.0
    started: float = 0.0
    start_at: float = 0.0
    failures: int = 0
    ever_ready: bool = False
    ran: int = 0
    mean_seconds: float | None = None

    @property
    def busy(self) -> bool:
        """Whether a unit is with its worker."""
        return bool(self.units)

    def window(self, batched: bool) -> int:
        """How many units may be with the worker at a time."""
        if self.state is not SlotState.READY:
            return 0
        if self.mean_seconds is None or batched:
            return 1
        return max(1, min(_MOST_AHEAD, int(_AHEAD_SECONDS / (self.mean_seconds + _RUN_OVERHEAD_SECONDS))))

    def give(self, unit: Unit, now: float) -> None:
        """Note that a unit was sent to the worker."""
        if not self.units:
            self.head_since = now
        self.units.append(unit)

    def behind(self, job_id: str) -> list[Unit]:
        """The units behind the one that has this job; none when none has it."""
        for place, unit in enumerate(self.units):
            if job_id in unit.job_ids:
                return list(self.units)[place + 1 :]
        return []

    def ended(self, unit: Unit, seconds: float, now: float) -> None:
        """Note that a unit's run ended after `seconds`."""
        self.units.remove(unit)
        self.head_since = now
        self.ran += len(unit.claims)
        mean = self.mean_seconds
        self.mean_seconds = seconds if mean is None else mean + _SMOOTHING * (seconds - mean)

    def became_ready(self) -> None:
        """The handler is imported."""
        self.state = SlotState.READY
        self.ever_ready = True

    def exited(self, now: float, *, blameless: bool) -> list[Unit]:
        """The worker is gone; returns what it had. `blameless`: it was told to go, so it is started again at once."""
        if blameless or (self.ever_ready and now - self.started >= LIVED_LONG_SECONDS):
            self.failures = 0
        if not blameless:
            self.failures += 1
        self.start_at = now + respawn_delay(self.failures, self.ever_ready)
        self.state, self.mean_seconds, self.ran = SlotState.EMPTY, None, 0
        left, self.units = list(self.units), deque()
        return left


class Roster:
    """The slots of one stream, and what waits for a free one."""

    def __init__(self, config: StreamConfig) -> None:
        self.slots = [Slot(index) for index in range(max(1, config.workers))]
        self.wanted = len(self.slots)
        self.generation = 0
        self.batch_size = config.batch_size
        self.max_jobs = config.max_jobs
        self.waiting: deque[Unit] = deque()

    def resize(self, config: StreamConfig) -> None:
        """A new configuration: every worker of an older one is to be replaced; surplus ones are dismissed."""
        self.generation += 1
        self.wanted = max(1, config.workers)
        self.batch_size, self.max_jobs = config.batch_size, config.max_jobs
        for index in range(len(self.slots), self.wanted):
            self.slots.append(Slot(index, generation=self.generation))

    def to_start(self, now: float) -> list[Slot]:
        """Slots whose worker is to be started now."""
        return [slot for slot in self.slots[: self.wanted] if slot.state is SlotState.EMPTY and slot.start_at <= now]

    def next_start(self) -> float | None:
        """When the next slot is due; None when none waits."""
        times = [slot.start_at for slot in self.slots[: self.wanted] if slot.state is SlotState.EMPTY]
        return min(times, default=None)

    def to_retire(self) -> Slot | None:
        """The next worker to replace or dismiss: one at a time, and only while no other one is starting."""
        current = self.slots[: self.wanted]
        surplus = [slot for slot in self.slots[self.wanted :] if slot.state is SlotState.READY]
        if any(slot.state in {SlotState.STARTING, SlotState.RETIRING} for slot in current):
            return surplus[0] if surplus else None
        return next(iter([*surplus, *filter(self._is_used_up, current)]), None)

    def _is_used_up(self, slot: Slot) -> bool:
        if slot.state is not SlotState.READY:
            return False
        return slot.generation < self.generation or 0 < self.max_jobs <= slot.ran

    def room(self, batched: bool) -> int:
        """How many more jobs could be claimed now without piling up here."""
        free = sum(max(0, slot.window(batched) - len(slot.units)) for slot in self.slots)
        waiting = sum(len(unit.claims) for unit in self.waiting)
        return max(0, free * self.batch_size - waiting)

    def assign(self) -> list[tuple[Slot, Unit]]:
        """Which waiting unit goes to which worker: to the one with the shortest queue, as long as there is room."""
        chosen: list[tuple[Slot, Unit]] = []
        batched = self.batch_size > 1
        lengths = {slot.index: len(slot.units) for slot in self.slots}
        while self.waiting:
            open_slots = [slot for slot in self.slots if lengths[slot.index] < slot.window(batched)]
            if not open_slots:
                break
            slot = min(open_slots, key=lambda each: lengths[each.index])
            lengths[slot.index] += 1
            chosen.append((slot, self.waiting.popleft()))
        return chosen

    def add(self, claims: Sequence[Claimed]) -> None:
        """Jobs just claimed, as units, behind what waits."""
        for begin in range(0, len(claims), self.batch_size):
            self.waiting.append(Unit(list(claims[begin : begin + self.batch_size])))

    def first(self, units: Iterable[Unit]) -> None:
        """Units that come before everything that waits: they were with a worker already."""
        self.waiting.extendleft(reversed(list(units)))

    def stuck(self, now: float) -> list[Slot]:
        """Slots with units that wait behind a long run while another worker has nothing to do."""
        if not any(slot.state is SlotState.READY and not slot.units for slot in self.slots) or self.waiting:
            return []
        return [s for s in self.slots if len(s.units) > 1 and now - s.head_since > STUCK_SECONDS]

    def held(self) -> list[Claimed]:
        """Every job that is here, running or waiting."""
        units = [*self.waiting, *(unit for slot in self.slots for unit in slot.units)]
        return [claimed for unit in units for claimed in unit.claims]

    @property
    def busy(self) -> bool:
        """Whether any worker has a unit."""
        return any(slot.units for slot in self.slots)
