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
LEAST_LIFE_SECONDS = 1.0
LIFE_PER_START = 20


class SlotState(enum.Enum):
    """Where a worker's place stands."""

    EMPTY = "empty"
    STARTING = "starting"
    READY = "ready"
    RETIRING = "retiring"


@dataclasses.dataclass(slots=True, eq=False)
class Unit:
    """Jobs that run together.

    `number`: given when it is sent to a worker; `results`: of the jobs that have ended; `closed`: no job may be added;
    `overdue`: its run took too long, and nothing that comes of it counts any more; `halved_from`: of how many jobs the
    batch was that failed and from which it was halved, 0 = of none.
    """

    claims: list[Claimed]
    number: int = 0
    results: dict[str, Result] = dataclasses.field(default_factory=dict)
    closed: bool = False
    overdue: bool = False
    halved_from: int = 0

    @property
    def job_ids(self) -> list[str]:
        """Their ids."""
        return [claimed.job.id for claimed in self.claims]

    def halves(self) -> list[Unit]:
        """Two units of half the jobs each, to find the one that makes all fail."""
        middle = (len(self.claims) + 1) // 2
        whole = self.halved_from or len(self.claims)
        return [Unit(half, closed=True, halved_from=whole) for half in (self.claims[:middle], self.claims[middle:])]

    def portions(self, size: int) -> list[Unit]:
        """Itself, or what it holds in units of `size` jobs when there are more."""
        if len(self.claims) <= size:
            return [self]
        begins = range(0, len(self.claims), size)
        return [Unit(self.claims[begin : begin + size], closed=True) for begin in begins]

    def takes(self, claimed: Claimed, size: int) -> bool:
        """Whether a job may be added: there is room, and no other of its id (results are told apart by the id)."""
        return not self.closed and len(self.claims) < size and claimed.job.id not in self.job_ids


@dataclasses.dataclass(slots=True)
class Slot:
    """The place of one worker. `index`: its number from 0; `generation`: of the configuration it was started with.

    `batched`: whether its worker takes batches; `ever_ready`: whether the last one became ready; `first_rss`: the bytes
    it had resident after its first job; `outgrown`: it has grown by more than is allowed; `long`: its run takes long;
    `most_jobs`: how many jobs its worker may run in its life, 0 = any number.
    """

    index: int
    state: SlotState = SlotState.EMPTY
    generation: int = 0
    batched: bool = False
    units: deque[Unit] = dataclasses.field(default_factory=deque)
    head_since: float = 0.0
    started: float = 0.0
    start_at: float = 0.0
    failures: int = 0
    ever_ready: bool = False
    ready_at: float = 0.0
    ran: int = 0
    most_jobs: int = 0
    first_rss: int = 0
    outgrown: bool = False
    long: bool = False
    mean_seconds: float | None = None

    @property
    def busy(self) -> bool:
        """Whether a unit is with its worker."""
        return bool(self.units)

    def window(self, batched: bool) -> int:
        """How many units may be with the worker at a time; none when it was not made for units of this kind."""
        if self.state is not SlotState.READY or self.batched is not batched:
            return 0
        if self.mean_seconds is None or batched:
            return 1
        return max(1, min(_MOST_AHEAD, int(_AHEAD_SECONDS / (self.mean_seconds + _RUN_OVERHEAD_SECONDS))))

    def give(self, unit: Unit, now: float) -> None:
        """Note that a unit was sent to the worker."""
        if not self.units:
            self.head_since = now
        unit.closed = True
        self.units.append(unit)

    def unit_of(self, job_id: str) -> Unit | None:
        """The first unit that has this job and waits for its result; None when none does."""
        return next((unit for unit in self.units if job_id in unit.job_ids and job_id not in unit.results), None)

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

    def began(self, now: float, generation: int, *, batched: bool, most_jobs: int = 0) -> None:
        """A worker was started in it."""
        self.state, self.started, self.generation, self.batched = SlotState.STARTING, now, generation, batched
        self.most_jobs = most_jobs

    def became_ready(self, now: float) -> None:
        """The handler is imported; a worker that was told to go meanwhile is not ready for anything."""
        if self.state is SlotState.STARTING:
            self.state, self.ready_at = SlotState.READY, now
            self.ever_ready = True

    def dismiss(self) -> None:
        """Its worker was told to go, or killed by us: that it ends is no failure."""
        if self.state is not SlotState.EMPTY:
            self.state = SlotState.RETIRING

    def exited(self, now: float, *, blameless: bool) -> list[Unit]:
        """The worker is gone; returns what it had. `blameless`: it was told to go, so it is started again at once."""
        if self.state is SlotState.STARTING:
            self.ever_ready = False
        if blameless or (self.ever_ready and now - self.started >= LIVED_LONG_SECONDS):
            self.failures = 0
        if not blameless:
            self.failures += 1
        self.start_at = now + respawn_delay(self.failures, self.ever_ready)
        self.state, self.mean_seconds, self.ran = SlotState.EMPTY, None, 0
        self.first_rss, self.outgrown = 0, False
        left, self.units = list(self.units), deque()
        return left


class Roster:
    """The slots of one stream, and what waits for a free one."""

    def __init__(self, config: StreamConfig) -> None:
        self.slots = [Slot(index) for index in range(max(1, config.workers))]
        self.wanted = len(self.slots)
        self.generation = 0
        self.batch_size = config.batch_size
        self.max_jobs, self.max_memory = config.max_jobs, config.max_memory
        self.waiting: deque[Unit] = deque()

    def resize(self, config: StreamConfig) -> None:
        """A new configuration: every worker of an older one is to be replaced; surplus ones are dismissed.

        What could not be started with the old one is tried at once with the new one.
        """
        self.generation += 1
        self.wanted = max(1, config.workers)
        self.batch_size, self.max_jobs, self.max_memory = config.batch_size, config.max_jobs, config.max_memory
        for index in range(len(self.slots), self.wanted):
            self.slots.append(Slot(index))
        for slot in self.slots:
            if slot.state is SlotState.EMPTY:
                slot.failures, slot.start_at = 0, 0.0
        waiting, self.waiting = self.waiting, deque()
        self.first(waiting)

    def most_jobs(self, rand: float) -> int:
        """How many jobs the next worker may run: `max_jobs`, or where there are several workers up to a fifth less, so
        that those which started together are not replaced together. `rand`: a random number in [0, 1).
        """
        spread = self.max_jobs // 5 if self.wanted > 1 else 0
        return self.max_jobs - int(rand * (spread + 1))

    def to_start(self, now: float) -> list[Slot]:
        """Slots whose worker is to be started now."""
        return [slot for slot in self.slots[: self.wanted] if slot.state is SlotState.EMPTY and slot.start_at <= now]

    def next_start(self) -> float | None:
        """When the next slot is due; None when none waits."""
        times = [slot.start_at for slot in self.slots[: self.wanted] if slot.state is SlotState.EMPTY]
        return min(times, default=None)

    def to_retire(self) -> Slot | None:
        """The next worker to replace or dismiss: one at a time, and only while every other one is ready.

        So a new configuration whose handler cannot be imported costs one worker, not all of them. But one that has run
        `max_jobs` gets nothing more, and goes at once.
        """
        current = self.slots[: self.wanted]
        spent = next(filter(self._has_run_all, current), None)
        if spent is not None:
            return spent
        surplus = [slot for slot in self.slots[self.wanted :] if slot.state is SlotState.READY]
        if any(slot.state is not SlotState.READY for slot in current):
            return surplus[0] if surplus else None
        return next(iter([*surplus, *filter(self._is_used_up, current)]), None)

    def _is_used_up(self, slot: Slot) -> bool:
        if slot.state is not SlotState.READY:
            return False
        return slot.generation < self.generation or slot.outgrown

    def _has_run_all(self, slot: Slot) -> bool:
        return slot.state is SlotState.READY and not slot.units and 0 < slot.most_jobs <= slot.ran

    def look_at_runs(self, now: float) -> None:
        """Note whose run takes long: that worker gets nothing more, and what it has goes to others that can take it."""
        for slot in self.slots:
            slot.long = slot.busy and now - slot.head_since > STUCK_SECONDS

    def _window(self, slot: Slot) -> int:
        """How many units may be with a worker at a time: none more behind a long run, `max_jobs` in its whole life."""
        if slot.long:
            return 0
        window = slot.window(self.batched)
        return min(window, max(0, slot.most_jobs - slot.ran)) if slot.most_jobs else window

    def weigh(self, slot: Slot, rss: int, now: float) -> bool:
        """Note what a worker weighs between two jobs (bytes); it is to be replaced when it has outgrown `max_memory`.

        True: it has, but it stays for now. A limit below what any job needs must not cost more time for starting
        workers than for jobs, so a worker lives for at least `LIFE_PER_START` times as long as its start took; one that
        has grown far too much by then ends by itself (`worker.loop.FAR_BYTES`).
        """
        if not self.max_memory or slot.state is not SlotState.READY or not slot.ran or not rss:
            return False
        slot.first_rss = slot.first_rss or rss
        if rss - slot.first_rss <= self.max_memory:
            return False
        life = max(LEAST_LIFE_SECONDS, LIFE_PER_START * (slot.ready_at - slot.started))
        slot.outgrown = now - slot.ready_at >= life
        return not slot.outgrown

    @property
    def batched(self) -> bool:
        """Whether the handler takes lists of jobs."""
        return self.batch_size > 1

    @property
    def free(self) -> int:
        """How many more units the workers could take now."""
        return sum(max(0, self._window(slot) - len(slot.units)) for slot in self.slots)

    @property
    def room(self) -> int:
        """How many more jobs could be claimed now without piling up here."""
        return max(0, self.free * self.batch_size - sum(len(unit.claims) for unit in self.waiting))

    @property
    def growing(self) -> Unit | None:
        """The batch that waits, is not full yet, and may still be filled up."""
        last = self.waiting[-1] if self.waiting else None
        return last if last is not None and self._may_grow(last) else None

    def _may_grow(self, unit: Unit) -> bool:
        return not unit.closed and len(unit.claims) < self.batch_size

    def assign(self, *, only_full: bool = False) -> list[tuple[Slot, Unit]]:
        """Which waiting unit goes to which worker: to the one with the shortest queue, as long as there is room.

        `only_full`: a batch that may still be filled up stays.
        """
        chosen: list[tuple[Slot, Unit]] = []
        lengths = {slot.index: len(slot.units) for slot in self.slots}
        while self.waiting and not (only_full and self._may_grow(self.waiting[0])):
            open_slots = [slot for slot in self.slots if lengths[slot.index] < self._window(slot)]
            if not open_slots:
                break
            slot = min(open_slots, key=lambda each: lengths[each.index])
            lengths[slot.index] += 1
            chosen.append((slot, self.waiting.popleft()))
        return chosen

    def add(self, claims: Sequence[Claimed]) -> None:
        """Jobs just claimed, behind what waits: they fill up the last batch, and make new ones."""
        for claimed in claims:
            if self.waiting and self.waiting[-1].takes(claimed, self.batch_size):
                self.waiting[-1].claims.append(claimed)
            else:
                self.waiting.append(Unit([claimed]))

    def first(self, units: Iterable[Unit]) -> None:
        """Units that come before everything that waits: they were with a worker already."""
        fitting = [portion for unit in units for portion in unit.portions(self.batch_size)]
        self.waiting.extendleft(reversed(fitting))

    def give_up(self) -> None:
        """Forget every job: they are somebody else's now. Workers are with their old ones until they are killed."""
        self.waiting.clear()
        for slot in self.slots:
            slot.units.clear()
            slot.dismiss()

    def stuck(self) -> list[Slot]:
        """Slots with units that wait behind a long run while another worker could take them."""
        return [slot for slot in self._with_units_behind() if slot.long]

    def next_stuck(self) -> float | None:
        """When a slot's units count as stuck, should its run go on; None when nothing could be done for them."""
        return min((slot.head_since + STUCK_SECONDS for slot in self._with_units_behind()), default=None)

    def _with_units_behind(self) -> list[Slot]:
        able = {slot.index for slot in self.slots if slot.state is SlotState.READY and not slot.long}
        return [slot for slot in self.slots if len(slot.units) > 1 and able - {slot.index}]

    @property
    def busy(self) -> bool:
        """Whether any worker has a unit."""
        return any(slot.units for slot in self.slots)
