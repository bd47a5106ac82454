"""The stream process: one event loop that holds the lease, claims, feeds the workers, and settles what they return.

    select ─▶ note signals, words from the master, words from workers, arrivals
           ─▶ tenure ─▶ reap ─▶ settle ─▶ start workers ─▶ claim and assign ─▶ watch limits ─▶ housekeeping ─▶ flush

It runs no user code and no thread: nothing that a handler does can keep it from its heartbeat. Every step looks at the
clock once, at `now`, and what it is to do next decides how long the selector may wait.
"""

from __future__ import annotations

import dataclasses
import logging
import selectors
import signal
import time
from collections.abc import Callable

from queuekit import LeaseLost, QueueError, QueueKit
from queuekit.contract import Watcher
from workerpool.board import Kind, Row
from workerpool.config import PoolConfig, StreamConfig
from workerpool.outcome import Result, ResultKind
from workerpool.process import Channel, Exit, SignalPipe
from workerpool.stream import succession
from workerpool.stream.crew import Crew
from workerpool.stream.inline import Inline
from workerpool.stream.journey import Counts, Journey
from workerpool.stream.state import Roster, Slot, SlotState, Unit
from workerpool.stream.succession import Predecessor
from workerpool.stream.tenure import Phase, Tenure
from workerpool.stream.trouble import Trouble
from workerpool.worker.loop import EXIT_BAD_HANDLER
from workerpool.worker.protocol import Dropped, Failed, Message, Out, Ready

EXIT_OK, EXIT_GAVE_UP = 0, 5
_log = logging.getLogger("workerpool.stream")
_CHECK_SECONDS = 5.0
_IDLE_LOOK_SECONDS = 1.0
_LAST_WORD_SECONDS = 1.0
_FIRST_LOOK_AT_LIMITS = 0.05


class Stream:
    """One stream of one pool, in its own process."""

    def __init__(
        self,
        config: StreamConfig,
        pool: PoolConfig,
        *,
        queue: QueueKit,
        master: Channel,
        row: Row,
        crew: Callable[[selectors.BaseSelector, SignalPipe], Crew | Inline],
        directory: str,
        predecessor: Predecessor | None,
        burst: bool,
    ) -> None:
        self._config = config
        self._pool = pool
        self._queue = queue
        self._backend = queue.backend
        self._master = master
        self._row = row
        self._directory = directory
        self._in_place = predecessor
        self._burst = burst
        self._selector = selectors.DefaultSelector()
        self._signals = SignalPipe()
        self._crew = crew(self._selector, self._signals)
        self._roster = Roster(config)
        self._journey = Journey(queue, config)
        self._tenure = Tenure(queue.lease(config.name, pool.lease.ttl), pool.lease.ttl, pool.lease.heartbeat)
        self._watcher: Watcher | None = None
        self._claiming, self._settling = Trouble("claiming jobs", _log), Trouble("settling jobs", _log)
        self._starting = Trouble("starting a worker", _log)
        self._taken_over = False
        self._said_standby = False
        self._hungry = False
        self._batch_until: float | None = None
        self._next_check = self._next_scan = self._next_idle_look = 0.0
        self._recalls: dict[int, tuple[int, str, int]] = {}
        self._timed_out: set[int] = set()
        self._quiet = False
        self._stop: _Stop | None = None
        self._gave_up = False
        self._said_ready = False
        self._confirm: int | None = None
        self._handled = 0
        self._code = EXIT_OK

    # -- the loop

    def run(self) -> int:
        """Work until told to stop; returns the exit code."""
        self._row.take(kind=Kind.STREAM, stream=self._config.name, name=self._tenure.lease.owner)
        self._signals.install([signal.SIGTERM, signal.SIGCHLD])
        self._selector.register(self._signals, selectors.EVENT_READ)
        self._selector.register(self._master, selectors.EVENT_READ)
        try:
            while not self._is_over():
                self._selector.select(self._patience())
                self._turn(time.monotonic())
        finally:
            self._crew.close()
            self._close_watcher()
        return self._leave()

    def _turn(self, now: float) -> None:
        self._take_signals(now)
        self._take_orders(now)
        self._take_arrivals()
        self._hold_lease(now)
        self._take_words(now)
        self._reap(now)
        self._settle(now)
        self._start_workers(now)
        self._claim(now)
        self._watch_limits(now)
        self._call_back(now)
        self._keep_house(now)
        self._go_on_stopping(now)
        self._report(now)
        self._crew.flush()
        self._master.flush()

    def _patience(self) -> float:
        """Seconds until something is to be done that no event announces."""
        if self._crew.pending:
            return 0.0
        now = time.monotonic()
        times = [self._next_tenure(), self._next_claim(now), self._next_house(now), self._next_worker()]
        times += [self._next_limit(now), self._next_call_back(now), self._next_stop(), self._next_report()]
        if self._journey.waiting:
            times.append(self._settling.until)
        return max(0.0, min((each for each in times if each is not None), default=now + 60.0) - now)

    def _next_tenure(self) -> float | None:
        return None if self._stop and self._tenure.phase is Phase.STANDBY else self._tenure.next_act()

    def _next_claim(self, now: float) -> float | None:
        if self._tenure.may_claim and not self._taken_over:
            return self._claiming.until
        if not self._may_claim() or not self._roster.room(self._batched):
            return self._batch_until
        due = 0.0 if self._hungry else self._backend.next_due(self._config.name)
        times = [self._batch_until, None if due is None else max(self._claiming.until, now + due)]
        return min((each for each in times if each is not None), default=None)

    def _next_worker(self) -> float | None:
        start = self._roster.next_start()
        return None if start is None or self._stop else max(start, self._starting.until)

    def _next_house(self, now: float) -> float | None:
        if self._watcher is None or self._stop:
            return None
        wait = self._watcher.timeout()
        times = [self._next_check, self._next_scan, *([] if wait is None else [now + wait])]
        return min(times)

    @property
    def _batched(self) -> bool:
        return self._config.batch_size > 1

    # -- what comes in

    def _take_signals(self, now: float) -> None:
        for number in self._signals.take():
            if number == signal.SIGTERM and self._stop is None:
                self._begin_stop(now)

    def _take_orders(self, now: float) -> None:
        for frame in self._master.receive():
            match frame.header:
                case {"t": "stop"}:
                    self._begin_stop(now)
                case {"t": "kill"}:
                    self._begin_stop(now).hard = now
                case {"t": "quiet", "on": bool(on)}:
                    self._quiet = on
                    self._hungry = True
                case {"t": "confirm", "n": int(number)}:
                    self._confirm, self._hungry, self._next_idle_look = number, True, 0.0
                case {"t": "reload", "stream": dict(values)}:
                    self._reload(StreamConfig.from_dict(values))
                case {"t": "stacks"}:
                    self._crew.tell(signal.SIGUSR2)
        if self._master.eof and self._stop is None:
            _log.warning("the master is gone: finishing what runs")
            self._begin_stop(now)

    def _take_arrivals(self) -> None:
        if self._watcher is None:
            return
        names = self._watcher.read()
        if names:
            self._backend.hint(names)
            self._hungry = True
        elif self._watcher.timeout() is not None:
            self._hungry = True

    def _take_words(self, now: float) -> None:
        for slot, message in self._crew.messages():
            self._take_word(slot, message, now)

    def _take_word(self, slot: Slot, message: Message, now: float) -> None:
        match message:
            case Ready():
                slot.became_ready()
                self._say_ready()
            case Failed(error):
                self._row.say(state="failing", error=error)
                self._master.send({"t": "failed", "error": error})
            case Out(job_id, result):
                self._run_ended(slot, job_id, result, now)
            case Dropped(number):
                self._take_back(slot, [unit for unit in slot.units if unit.number == number])

    def _run_ended(self, slot: Slot, job_id: str, result: Result, now: float) -> None:
        unit = next((unit for unit in slot.units if job_id in unit.job_ids and job_id not in unit.results), None)
        if unit is None:
            _log.info("dropped the result of job %s: it was given up here before its worker ended it", job_id)
            return
        unit.results[job_id] = result
        if len(unit.results) == len(unit.claims):
            slot.ended(unit, result.run_seconds, now)
            self._unit_ended(unit)

    def _unit_ended(self, unit: Unit) -> None:
        """All of a unit's jobs have a result; a batch that failed as a whole is halved before anybody is blamed."""
        results = [unit.results[each] for each in unit.job_ids]
        if len(results) > 1 and all(result.kind is ResultKind.FAILED for result in results):
            self._roster.first(unit.halves())
            return
        for claimed, result in zip(unit.claims, results, strict=True):
            self._journey.ended(claimed, result)

    # -- the lease

    def _hold_lease(self, now: float) -> None:
        if self._stop is not None and self._tenure.phase is Phase.STANDBY:
            return
        try:
            holder = self._holder() if self._tenure.phase is Phase.STANDBY and now >= self._tenure.next_act() else None
            won = self._tenure.act(now, holder)
        except LeaseLost as error:
            self._lose_lease(str(error))
        except QueueError as error:
            self._claiming.met(error, now)
        else:
            self._taken_over = self._taken_over and not won
            self._show_lease(holder)
        if self._tenure.may_claim and not self._taken_over and not self._claiming.blocks(now):
            self._succeed(now)

    def _succeed(self, now: float) -> None:
        try:
            self._take_over(now)
        except LeaseLost as error:
            self._lose_lease(str(error))
        except (QueueError, OSError) as error:
            self._claiming.met(error, now)
        else:
            self._claiming.over(now)
            self._taken_over = True

    def _holder(self) -> str | None:
        holder = getattr(self._tenure.lease, "holder", None)
        return holder() if holder is not None else None

    def _take_over(self, now: float) -> None:
        """Bring home what a dead predecessor left: its workers first, then its jobs, those that it ran charged."""
        owner = self._tenure.predecessor
        found = succession.find(owner, self._directory, self._in_place) if owner else None
        if found is not None:
            succession.kill_left_over(found.workers)
            for job_id, how in found.running_jobs():
                claimed = self._backend.adopt(job_id, lease=self._tenure.lease)
                if claimed is not None:
                    self._journey.crashed(claimed, how)
        self._in_place = None
        self._journey.carry_out(self._tenure.lease)
        reclaimed = self._backend.reclaim_in_flight(self._config.name, lease=self._tenure.lease)
        if reclaimed or owner:
            _log.warning("took over stream %s; %d jobs were in flight", self._config.name, reclaimed)
        self._backend.finish_intents(self._config.name, lease=self._tenure.lease)
        self._open_watcher()
        self._next_scan = now + self._pool.watch.scan
        self._hungry = True

    def _lose_lease(self, why: str) -> None:
        """Somebody else has the stream: nothing that is here may have an effect any more."""
        _log.error("%s: workers are killed, what they were doing runs elsewhere", why)
        self._tenure.lost(time.monotonic())
        self._journey.forget()
        self._backend.drop_claims(self._config.name)
        self._roster.waiting.clear()
        for slot in self._roster.slots:
            slot.units.clear()
        self._crew.kill_all()
        self._close_watcher()

    def _show_lease(self, holder: str | None) -> None:
        standby = self._tenure.phase is Phase.STANDBY
        if standby and holder is not None and not self._said_standby:
            _log.warning("stream %s is worked by %s: standing by", self._config.name, holder)
            self._master.send({"t": "standby", "holder": holder})
        self._said_standby = standby and (self._said_standby or holder is not None)
        self._row.say(lease=self._tenure.phase.value)

    # -- workers

    def _start_workers(self, now: float) -> None:
        if self._stop is not None or self._starting.blocks(now):
            return
        for slot in self._roster.to_start(now):
            try:
                slot.generation, slot.started = self._roster.generation, now
                self._crew.start(slot, self._config)
            except OSError as error:
                self._starting.met(error, now)
                return
            slot.state = SlotState.STARTING
            self._starting.over(now)
        retiring = self._roster.to_retire()
        if retiring is not None:
            retiring.state = SlotState.RETIRING
            self._crew.recall(retiring)
            self._crew.stop(retiring)

    def _reap(self, now: float) -> None:
        for slot, end, row, last_words in self._crew.reap():
            for message in last_words:
                self._take_word(slot, message, now)
            retiring = slot.state is SlotState.RETIRING
            self._recalls.pop(slot.index, None)
            timed_out = slot.index in self._timed_out
            self._timed_out.discard(slot.index)
            blameless = retiring or timed_out or self._stop is not None or self._tenure.phase is Phase.STANDBY
            left = slot.exited(now, blameless=blameless)
            self._row.add(crashes=not blameless and end.code != EXIT_BAD_HANDLER)
            for unit in left:
                self._account(unit, row.runs(unit.job_ids[0]), end, timed_out)

    def _account(self, unit: Unit, ran: bool, end: Exit, timed_out: bool) -> None:
        """What a dead worker's unit comes to: only what ran is charged; of a batch the guilty one is found first."""
        unfinished = [claimed for claimed in unit.claims if claimed.job.id not in unit.results]
        if self._stop is not None and self._gave_up:
            return
        for claimed in unit.claims:
            if claimed.job.id in unit.results:
                self._journey.ended(claimed, unit.results[claimed.job.id])
        if not unfinished:
            return
        if not ran:
            self._roster.first([Unit(unfinished)])
        elif len(unfinished) > 1:
            self._roster.first(Unit(unfinished).halves())
        elif timed_out:
            limit = f"killed after {self._config.timeout:g} s (timeout)"
            self._journey.ended(unfinished[0], Result.failed(limit, run_seconds=self._config.timeout))
        else:
            self._journey.crashed(unfinished[0], _describe(end))

    def _watch_limits(self, now: float) -> None:
        """Kill the workers whose run has lasted for longer than `timeout`."""
        if not self._config.timeout:
            return
        for slot in self._roster.slots:
            if slot.units and slot.index not in self._timed_out:
                row = self._crew.view(slot)
                if row.job and now - row.since_ns / 1e9 > self._config.timeout:
                    _log.error("job %s runs for longer than %g s: its worker is killed", row.job, self._config.timeout)
                    self._timed_out.add(slot.index)
                    self._crew.kill(slot)

    def _next_limit(self, now: float) -> float | None:
        if not self._config.timeout:
            return None
        starts = [slot.head_since for slot in self._roster.slots if slot.units and slot.index not in self._timed_out]
        if not starts:
            return None
        return max(min(starts) + self._config.timeout + _FIRST_LOOK_AT_LIMITS, now + _FIRST_LOOK_AT_LIMITS)

    # -- calling units back from behind a long run

    def _call_back(self, now: float) -> None:
        for slot in list(self._recalling()):
            number, job, since = self._recalls.pop(slot.index)
            row = self._crew.view(slot)
            if row.job == job and row.since_ns == since:  # still in the run that it was in when it was told
                self._take_back(slot, [unit for unit in slot.behind(job) if unit.number <= number])
        for slot in self._roster.stuck(now):
            if slot.index not in self._recalls:
                self._recall(slot)

    def _recall(self, slot: Slot) -> None:
        row = self._crew.recall(slot)
        if row.job and slot.units:
            self._recalls[slot.index] = (slot.units[-1].number, row.job, row.since_ns)

    def _recalling(self) -> list[Slot]:
        return [slot for slot in self._roster.slots if slot.index in self._recalls]

    def _next_call_back(self, now: float) -> float | None:
        if self._recalls:
            return now + 0.002
        return now + 0.05 if any(len(slot.units) > 1 for slot in self._roster.slots) else None

    def _take_back(self, slot: Slot, units: list[Unit]) -> None:
        for unit in units:
            slot.units.remove(unit)
        self._roster.first(units)

    # -- claiming

    def _may_claim(self) -> bool:
        return self._tenure.may_claim and self._taken_over and self._stop is None and not self._quiet

    def _claim(self, now: float) -> None:
        due = self._backend.next_due(self._config.name)
        if due is not None and due <= 0:
            self._hungry = True
        while self._may_claim() and self._hungry and not self._claiming.blocks(now):
            room = self._roster.room(self._batched)
            if not room:
                break
            try:
                claimed = self._queue.drain(self._config.name, room, lease=self._tenure.lease)
            except LeaseLost as error:
                self._lose_lease(str(error))
                return
            except QueueError as error:
                self._claiming.met(error, now)
                break
            self._claiming.over(now)
            self._hungry = len(claimed) >= room
            if claimed:
                self._roster.add(claimed)
        self._assign(now)

    def _assign(self, now: float) -> None:
        if self._stop is not None or not self._tenure.may_claim or not self._batch_is_full(now):
            return
        for slot, unit in self._roster.assign():
            self._crew.give(slot, unit, self._tenure.lease)
            slot.give(unit, now)

    def _batch_is_full(self, now: float) -> bool:
        """Whether the next batch may start: it is full, or it has waited for `batch_wait`."""
        waiting = sum(len(unit.claims) for unit in self._roster.waiting)
        if not self._config.batch_wait or not waiting or waiting >= self._config.batch_size:
            self._batch_until = None
            return True
        if self._batch_until is None:
            self._batch_until = now + self._config.batch_wait
        return now >= self._batch_until

    # -- settling

    def _settle(self, now: float) -> None:
        if not self._journey.waiting or self._tenure.phase is Phase.STANDBY or self._settling.blocks(now):
            return
        if self._tenure.is_due_soon(now):
            self._tenure.hurry()
            self._hold_lease(now)
        before = dataclasses.replace(self._journey.counts)
        try:
            self._journey.carry_out(self._tenure.lease)
        except LeaseLost as error:
            self._lose_lease(str(error))
        except QueueError as error:
            self._settling.met(error, now)
        else:
            self._settling.over(now)
        self._count(before, self._journey.counts)

    def _count(self, before: Counts, after: Counts) -> None:
        self._row.add(
            jobs_done=after.done - before.done,
            jobs_retried=after.retried - before.retried,
            jobs_blocked=after.blocked - before.blocked,
        )

    # -- housekeeping

    def _open_watcher(self) -> None:
        self._close_watcher()
        self._watcher = self._backend.watcher(self._config.name)
        self._selector.register(self._watcher, selectors.EVENT_READ)

    def _close_watcher(self) -> None:
        if self._watcher is not None:
            self._selector.unregister(self._watcher)
            self._watcher.close()
            self._watcher = None

    def _keep_house(self, now: float) -> None:
        if self._tenure.phase is not Phase.HOLDING or self._stop is not None or self._watcher is None:
            return
        if now >= self._next_check:
            self._next_check = now + _CHECK_SECONDS
            if not self._watcher.check():
                self._look_again()
        if now >= self._next_scan:
            self._next_scan = now + self._pool.watch.scan
            self._scan(now)

    def _scan(self, now: float) -> None:
        """The slow look: what no event announced, what was stranded by a late claim, retries that were cut off."""
        lease = self._tenure.lease
        try:
            self._backend.rescue_strays(self._config.name, lease=lease)
            self._backend.finish_intents(self._config.name, lease=lease)
        except LeaseLost as error:
            self._lose_lease(str(error))
        except QueueError as error:
            self._claiming.met(error, now)
        self._look_again()

    def _look_again(self) -> None:
        self._backend.look_again()
        self._hungry = True

    # -- reloading

    def _reload(self, config: StreamConfig) -> None:
        _log.info("stream %s: new configuration, workers are replaced one by one", config.name)
        self._config = self._journey.config = config
        self._roster.resize(config)
        self._hungry = True

    # -- stopping

    def _begin_stop(self, now: float) -> _Stop:
        """Claim nothing more, give back what was not started, let what runs end."""
        if self._stop is None:
            self._stop = _Stop(soft=now + self._pool.shutdown.soft, hard=now + self._pool.shutdown.hard)
            self._row.say(state="stopping")
            for slot in self._roster.slots:
                if len(slot.units) > 1:
                    self._recall(slot)
        return self._stop

    def _go_on_stopping(self, now: float) -> None:
        if self._stop is None:
            return
        self._give_back(now)
        if not self._stop.asked and now >= self._stop.soft:
            self._stop.asked = True
            self._crew.ask_to_stop()
        if now >= self._stop.hard and not self._gave_up:
            self._give_up_now()
        for slot in self._roster.slots:
            if slot.state in {SlotState.STARTING, SlotState.READY} and not slot.units:
                slot.state = SlotState.RETIRING
                self._crew.stop(slot)
                self._stop.last_word = now + _LAST_WORD_SECONDS
        if self._stop.last_word and now >= self._stop.last_word and not self._roster.busy:
            self._crew.kill_all()

    def _give_back(self, now: float) -> None:
        """Release what no worker has started."""
        while self._roster.waiting and self._tenure.phase is not Phase.STANDBY and not self._claiming.blocks(now):
            for claimed in self._roster.waiting[0].claims:
                try:
                    self._backend.release(claimed.job.id, lease=self._tenure.lease)
                except LeaseLost as error:
                    self._lose_lease(str(error))
                    return
                except QueueError as error:
                    self._claiming.met(error, now)
                    return
            self._roster.waiting.popleft()

    def _give_up_now(self) -> None:
        """The time is over: kill the workers; what they were doing stays in flight and will be reclaimed."""
        self._gave_up = True
        if self._roster.busy:
            self._code = EXIT_GAVE_UP
        for slot in self._roster.slots:
            slot.units.clear()
        self._crew.kill_all()

    def _next_stop(self) -> float | None:
        if self._stop is None:
            return None
        times = [self._stop.hard] if not self._gave_up else []
        times += [self._claiming.until] if self._roster.waiting and self._gave_up is False else []
        times += [self._stop.soft] if not self._stop.asked else []
        times += [self._stop.last_word] if self._stop.last_word else []
        return min(times, default=None)

    def _is_over(self) -> bool:
        if self._stop is None or len(self._crew):
            return False
        if self._journey.waiting or self._roster.waiting:
            return time.monotonic() >= self._stop.hard
        return True

    def _leave(self) -> int:
        if self._journey.waiting or self._roster.waiting:
            self._code = EXIT_GAVE_UP
        try:
            self._tenure.release()
        except QueueError as error:
            _log.error("the lease could not be released, its ttl will end it: %s", error)
        self._row.say(state="ended", lease="")
        self._say_counts()
        self._master.flush_blocking()
        self._queue.close()
        return self._code

    # -- telling the master

    def _say_ready(self) -> None:
        self._row.say(state="running", error="")
        if not self._said_ready:
            self._said_ready = True
            self._master.send({"t": "ready"})

    def _report(self, now: float) -> None:
        """For `--burst`: say whether anything of this stream is outstanding."""
        if not self._burst or self._stop is not None or now < self._next_idle_look:
            return
        if self._is_busy():
            return
        self._next_idle_look = now + _IDLE_LOOK_SECONDS
        try:
            outstanding = self._queue.tally(self._config.name).outstanding
        except QueueError as error:
            self._claiming.met(error, now)
            return
        if outstanding == 0:
            self._say_counts()
            self._master.send({"t": "idle", "n": self._confirm, "handled": self._ended_jobs()})

    def _next_report(self) -> float | None:
        return self._next_idle_look if self._burst and self._stop is None and not self._is_busy() else None

    def _is_busy(self) -> bool:
        if self._roster.busy or self._roster.waiting or self._journey.waiting:
            return True
        return self._hungry and self._tenure.may_claim

    def _ended_jobs(self) -> int:
        counts = self._journey.counts
        return counts.done + counts.blocked + counts.retried

    def _say_counts(self) -> None:
        counts = self._journey.counts
        self._master.send({"t": "counts", "done": counts.done, "blocked": counts.blocked, "retried": counts.retried})


class _Stop:
    """How far a stop has come. Times are monotonic seconds."""

    def __init__(self, soft: float, hard: float) -> None:
        self.soft, self.hard = soft, hard
        self.asked = False
        self.last_word = 0.0


def _describe(end: Exit) -> str:
    if end.signal is not None:
        return f"its worker was killed by {signal.Signals(end.signal).name} while it ran this job"
    return f"its worker exited with code {end.code} while it ran this job"
