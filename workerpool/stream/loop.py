"""The stream process: one event loop that holds the lease, claims, feeds the workers, and settles what they return.

It runs no user code and no thread: nothing that a handler does can keep it from its heartbeat. A turn is a list of
steps; most are parts with a module of their own, around one `Desk`. Each part looks at the clock once, at `now`, and
says when it wants its next turn: that decides how long the selector may wait.
"""

from __future__ import annotations

import logging
import random
import selectors
import signal
import time
from collections.abc import Callable, Set

from queuekit import LeaseLost, QueueKit
from workerpool.board import Kind, Row, RowView
from workerpool.config import PoolConfig, StreamConfig
from workerpool.process import Channel, Exit, SignalPipe
from workerpool.stream.arrivals import Arrivals
from workerpool.stream.calling_back import CallingBack
from workerpool.stream.claiming import Claiming
from workerpool.stream.crew import Crew
from workerpool.stream.desk import STORE_ERRORS, Desk
from workerpool.stream.housekeeping import Housekeeping
from workerpool.stream.inline import Inline
from workerpool.stream.journey import Journey
from workerpool.stream.limits import Limits
from workerpool.stream.orders import Orders
from workerpool.stream.pausing import Pausing
from workerpool.stream.reloading import Reloading
from workerpool.stream.reserve import FullDisk
from workerpool.stream.state import Roster, Slot, SlotState
from workerpool.stream.stopping import Stopping
from workerpool.stream.succession import Predecessor
from workerpool.stream.taking_over import TakingOver
from workerpool.stream.tenure import Tenure
from workerpool.stream.unit_ends import UnitEnds, describe
from workerpool.stream.words import Words
from workerpool.worker.loop import EXIT_BAD_HANDLER
from workerpool.worker.protocol import Dropped, Failed, Message, Out, Ready, Spent

EXIT_OK, EXIT_GAVE_UP = 0, 5
_LONGEST_WAIT = 60.0
_log = logging.getLogger("workerpool.stream")


class Stream:
    """One stream of one pool, in its own process: `run` it, or, in a test, `turn` it by hand.

    `signals`: those of this process; `crew`: makes the workers, given the selector and the question whether a stop
    waits; `directory`: where boards and pauses are; `predecessor`: what this place on the board said before it was
    taken again; `clock`: monotonic seconds.
    """

    def __init__(
        self,
        config: StreamConfig,
        pool: PoolConfig,
        *,
        queue: QueueKit,
        master: Channel,
        row: Row,
        crew: Callable[[selectors.BaseSelector, Callable[[], bool]], Crew | Inline],
        directory: str,
        predecessor: Predecessor | None,
        burst: bool,
        signals: SignalPipe,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._orders = Orders(self._selector, master, signals)
        lease = queue.lease(config.name, pool.lease.ttl, exclusive=config.exclusive)
        self._desk = desk = Desk(
            config=config,
            pool=pool,
            queue=queue,
            row=row,
            master=master,
            crew=crew(self._selector, self._orders.stop_is_waiting),
            roster=Roster(config),
            journey=Journey(queue, config, clock=clock),
            tenure=Tenure(lease, pool.lease.ttl, pool.lease.heartbeat),
        )
        self._arrivals = Arrivals(desk, self._selector)
        self._claiming = Claiming(desk, self._arrivals)
        self._calling_back = CallingBack(desk)
        self._limits = Limits(desk)
        self._reloading = Reloading(desk, self._arrivals)
        self._full_disk = FullDisk(desk, self._arrivals, directory)
        self._unit_ends = UnitEnds(desk.roster, desk.journey)
        self._taking_over = TakingOver(desk, self._arrivals, directory, predecessor)
        self._pausing = Pausing(desk, self._arrivals, directory)
        self._housekeeping = Housekeeping(
            desk, self._arrivals, self._pausing, self._taking_over, self._is_busy, clock=clock
        )
        self._stopping = Stopping(desk, self._calling_back)
        self._words = Words(desk, burst=burst, is_busy=self._is_busy)
        self._leasing = desk.troubles.new("holding the lease", _log)
        self._settling = desk.troubles.new("settling jobs", _log)
        self._starting = desk.troubles.new("starting a worker", _log)

    # -- the loop

    def run(self) -> int:
        """Work until told to stop; returns the exit code."""
        self._desk.row.take(kind=Kind.STREAM, stream=self._desk.stream, name=self._desk.lease.owner)
        try:
            while not self.is_over():
                self.turn(self.patience())
        finally:
            self._desk.crew.close()
            self._arrivals.close()
        return self._leave()

    def is_over(self) -> bool:
        """Whether it was told to stop, and has."""
        return self._stopping.is_over(self._clock())

    def turn(self, patience: float) -> None:
        """Wait for an event, at most `patience` seconds, and do what there is to do."""
        readable = {key.fileobj for key, _ in self._selector.select(patience)}
        try:
            self._listen(self._clock(), readable)
            self._work(self._clock())  # not the same time: an inline handler may have run
        except LeaseLost as error:
            self._lose_lease(error)
        self._desk.crew.flush()
        self._claiming.report()
        self._desk.master.flush()
        self._words.trouble()
        self._desk.row.beat()

    def _listen(self, now: float, readable: Set[object]) -> None:
        self._obey(now)
        self._arrivals.act(now, readable)
        self._hold_lease(now)
        self._take_words(now)

    def _work(self, now: float) -> None:
        self._reap(now)
        self._reloading.act()
        self._settle(now)
        self._pausing.act(now)
        self._taking_over.act(now)
        self._limits.act(now)
        self._start_workers(now)
        self._claiming.act(now)
        self._calling_back.act(now)
        self._housekeeping.act(now)
        self._stopping.act(now)
        self._words.act(now)

    def patience(self) -> float:
        """Seconds until something is to be done that no event announces."""
        if self._desk.crew.pending:
            return 0.0
        now = self._clock()
        parts = (self._arrivals, self._taking_over, self._claiming, self._limits, self._calling_back)
        others = (self._housekeeping, self._pausing, self._stopping, self._words, self._desk.crew)
        times = [part.next(now) for part in (*parts, *others)]
        times += [self._next_beat(), self._next_settling(), self._next_worker()]
        return max(0.0, min((each for each in times if each is not None), default=now + _LONGEST_WAIT) - now)

    def _is_busy(self) -> bool:
        """Whether there is work here, or may be some that was not looked for yet."""
        desk = self._desk
        if desk.roster.busy or desk.roster.waiting or desk.journey.waiting:
            return True
        return self._arrivals.hungry and desk.tenure.may_claim and not (desk.paused or desk.full)

    # -- what comes in

    def _obey(self, now: float) -> None:
        for order in self._orders.take():
            match order:
                case {"t": "stop"}:
                    self._stopping.begin(now)
                case {"t": "kill"}:
                    self._stopping.hurry(now)
                case {"t": "quiet", "on": bool(on)}:
                    self._desk.quiet = on
                    self._arrivals.hungry = True
                case {"t": "look"}:
                    self._pausing.look()
                case {"t": "confirm", "n": int(number)}:
                    self._words.asked(number)
                    self._arrivals.hungry = True
                case {"t": "reload", "stream": dict(values)}:
                    self._reloading.ask(StreamConfig.from_dict(values))
                case {"t": "stacks"}:
                    self._desk.crew.tell(signal.SIGUSR2)

    def _take_words(self, now: float) -> None:
        for slot, message in self._desk.crew.messages():
            self._take_word(slot, message, now)

    def _take_word(self, slot: Slot, message: Message, now: float) -> None:
        match message:
            case Ready():
                slot.became_ready(now)
                self._words.ready()
            case Failed(error):
                self._words.failed(error)
            case Out(job_id, result):
                self._unit_ends.run_ended(slot, job_id, result, now)
            case Dropped(number):
                self._calling_back.dropped(slot, number)
            case Spent(reason):
                _log.warning("worker %d is replaced: %s", slot.index + 1, reason)
                slot.dismiss()

    # -- the lease

    def _hold_lease(self, now: float) -> None:
        at = self._next_beat()
        if at is None or now < at:
            return
        self._taking_over.follow(now)
        try:
            won = self._desk.tenure.act(now)
        except LeaseLost:
            raise
        except STORE_ERRORS as error:
            self._leasing.met(error, now)
            self._full_disk.met(error)
            return
        trouble = self._desk.tenure.error
        if trouble is None:
            self._leasing.over(now)
        else:
            self._leasing.met(trouble, now)
        if won:
            self._desk.taken_over = False
            self._housekeeping.began(now)
            self._words.lease_moved()
        self._arrivals.check(now)
        self._check_disk()
        self._words.lease()

    def _check_disk(self) -> None:
        tenure = self._desk.tenure
        if tenure.error is not None:
            if self._full_disk.met(tenure.error):
                tenure.hurry()
        elif tenure.may_claim:
            self._full_disk.check()

    def _next_beat(self) -> float | None:
        tenure = self._desk.tenure
        return None if self._desk.stopping and tenure.is_standby else tenure.next_act()

    def _lose_lease(self, error: LeaseLost) -> None:
        """Somebody else has the stream: nothing that is here may have an effect any more."""
        _log.error("%s: workers are killed, what they were doing runs elsewhere", error)
        desk = self._desk
        desk.tenure.lost(self._clock())
        desk.taken_over = False
        desk.journey.forget()
        desk.troubles.forget()
        desk.backend.drop_claims(desk.stream)
        desk.roster.give_up()
        desk.crew.kill_all()
        self._arrivals.close()
        self._words.lease()
        self._words.lease_moved()

    # -- workers

    def _start_workers(self, now: float) -> None:
        desk = self._desk
        if desk.stopping or self._starting.blocks(now):
            return
        for slot in desk.roster.to_start(now):
            try:
                desk.crew.start(slot, desk.config)
            except OSError as error:
                self._starting.met(error, now)
                return
            roster = desk.roster
            most = roster.most_jobs(random.random())  # noqa: S311  no secret
            slot.began(now, roster.generation, batched=roster.batched, most_jobs=most)
            self._starting.over(now)
        self._retire(desk.roster.to_retire())

    def _next_worker(self) -> float | None:
        start = self._desk.roster.next_start()
        return None if start is None or self._desk.stopping else max(start, self._starting.until)

    def _retire(self, slot: Slot | None) -> None:
        if slot is not None:
            slot.dismiss()
            self._desk.crew.recall(slot)
            self._desk.crew.stop(slot)

    def _reap(self, now: float) -> None:
        for slot, end, row, last_words in self._desk.crew.reap():
            for message in last_words:
                self._take_word(slot, message, now)
            self._bury(slot, end, row, now)

    def _bury(self, slot: Slot, end: Exit, row: RowView, now: float) -> None:
        """A worker is gone: what it had goes back, but for what it was running."""
        timed_out = self._limits.ended(slot)
        self._calling_back.forget(slot)
        blameless = slot.state is SlotState.RETIRING or timed_out
        earlier = slot.ran
        left = slot.exited(now, blameless=blameless)
        self._desk.row.add(crashes=not blameless and end.code != EXIT_BAD_HANDLER)
        death = self._desk.crew.death(slot)
        seconds = max(0.0, now - row.since_ns / 1e9) if row.job else None
        how = describe(end, seconds, death, earlier)
        for unit in reversed(left):  # each that goes back goes before those that went back already
            ran = row.runs(unit.job_ids[0]) or (death.unheard and unit is left[0] and not blameless)
            if timed_out:
                self._unit_ends.timed_out(unit, limit=self._desk.config.timeout, last_lines=death.last_lines)
            else:
                self._unit_ends.worker_died(unit, ran=ran, how=how)

    # -- settling

    def _settle(self, now: float) -> None:
        desk = self._desk
        if not desk.journey.waiting or desk.tenure.is_standby or self._settling.blocks(now):
            return
        if desk.tenure.is_due_soon(now):
            desk.tenure.hurry()
            self._hold_lease(now)
        try:
            with desk.counting():
                desk.journey.carry_out(desk.lease)
        except LeaseLost:
            raise
        except STORE_ERRORS as error:
            self._settling.met(error, now)
            if self._full_disk.met(error):
                self._settling.until = now
        else:
            self._settling.over(now)

    def _next_settling(self) -> float | None:
        return self._settling.until if self._desk.journey.waiting else None

    # -- the end

    def _leave(self) -> int:
        desk = self._desk
        gave_up = self._stopping.gave_up or desk.journey.waiting or desk.roster.waiting
        try:
            desk.tenure.release()
        except STORE_ERRORS as error:
            _log.error("the lease could not be released, its ttl will end it: %s", error)
        desk.row.say(state="ended", lease="")
        self._words.last()
        desk.queue.close()
        return EXIT_GAVE_UP if gave_up else EXIT_OK
