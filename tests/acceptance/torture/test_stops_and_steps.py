"""Holders that stand still, clocks that are set, and kills, all at once, with a second pool that waits for its turn."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import os
import random
import signal
import time
from collections.abc import Callable

import psutil
import pytest
from lengths import short_and_long
from pool import Estate, Pool, is_dead, suppressed_end
from shifted_clock import ShiftedClock
from watching import EndWitness, LeaseWitness, pid_of

from queuekit import QueueError
from queuekit.backends.maildir.fsck import Severity, examine
from queuekit.lease import Record
from queuekit.testing.jobs import make_job
from workerpool.board import Kind

STREAMS = ("encode", "dreaming", "import", "replay", "index", "embed")
TTL = 1.0
LONGEST_STOP = 3 * TTL
STEPS = (3600.0, -3600.0, 86_400.0, -86_400.0)
OUTSTANDING = 8  # jobs of each stream
QUIET_STEPS = 5  # in each quiet time, when nobody is stopped or killed
KILLED_ONE_IN, STANDBY_ONE_IN, WITH_WORKERS_ONE_IN = 10, 8, 3
SETTLING = 3.0  # seconds from a handler's end until its reply is on disk, at most


@dataclasses.dataclass
class Victim:
    """A stream and what is being done to it. `at`: when the next thing happens; `awaited`: its lease before CONT."""

    stream: str
    at: float
    stopped: list[int] = dataclasses.field(default_factory=list)
    awaited: bytes | None = None


class Weather:
    """Two pools on one root, kept busy, and what befalls them. One loop does everything: `turn`."""

    def __init__(self, estate: Estate, clock: ShiftedClock, dice: random.Random) -> None:
        self.estate, self.clock, self.dice = estate, clock, dice
        self.leases, self.ends = LeaseWitness(estate.root, STREAMS), EndWitness(estate.queue)
        self.count: collections.Counter[str] = collections.Counter()
        self.sent: dict[str, str] = {}
        self.worker_deaths: dict[str, list[float]] = {stream: [] for stream in STREAMS}
        self.late_wakings: dict[str, list[float]] = {stream: [] for stream in STREAMS}
        self._outstanding: dict[str, set[str]] = {stream: set() for stream in STREAMS}
        self._counted_ends: set[str] = set()
        self._fed = 0.0
        self.pools = [self._start(), self._start()]
        self.victims = {stream: Victim(stream, 0.0) for stream in STREAMS}

    def _start(self) -> Pool:
        return self.estate.start(before=self.clock.before)

    def turn(self) -> None:
        """Look, feed, and start what has died altogether."""
        self.leases.look()
        self.ends.look()
        self._feed()
        for place, pool in enumerate(self.pools):
            if pool.code is not None:
                self.pools[place] = self._start()
        time.sleep(0.002)

    def turns_until(self, fact: Callable[[], bool], what: str, patience: float = 60) -> None:
        """Go on turning until something is so."""
        end = time.monotonic() + patience
        while not fact():
            assert time.monotonic() < end, f"{what} did not come true within {patience:g} s"
            self.turn()

    def turns_for(self, seconds: float) -> None:
        """Go on turning for some time."""
        end = time.monotonic() + seconds
        self.turns_until(lambda: time.monotonic() > end, "the time", patience=seconds + 60)

    # -- work

    def _feed(self) -> None:
        if time.monotonic() < self._fed + 0.05:
            return
        self._fed = time.monotonic()
        fresh = self.ends.ended - self._counted_ends
        self._counted_ends |= fresh
        for stream, outstanding in self._outstanding.items():
            outstanding.difference_update(fresh)
            self._send(stream, OUTSTANDING - len(outstanding))

    def _send(self, stream: str, count: int) -> None:
        seconds = self.dice.choice((0.0, 0.02, 0.1))
        payload = b'{"do": "sleep", "seconds": %.2f}' % seconds
        jobs = [make_job(stream=stream, payload=payload) for _ in range(count)]
        self.sent |= {str(job.id): stream for job in jobs}
        self._outstanding[stream] |= {str(job.id) for job in jobs}
        while jobs:
            try:
                self.estate.queue.send_batch(jobs)
            except QueueError as error:  # a pool that starts in another time takes fresh drafts for old ones
                self.count["sends repeated"] += 1
                print(f"sending again: {error}")
            else:
                return

    # -- what befalls them

    def befall(self, victim: Victim) -> None:
        """The next thing that happens to a stream, when its time has come."""
        now = time.monotonic()
        if victim.stopped:
            if now >= victim.at:
                self._wake(victim)
        elif victim.awaited is not None:
            if self.leases.content(victim.stream) != victim.awaited:
                victim.awaited, victim.at = None, now + self.dice.uniform(0, TTL / 2)
        elif now >= victim.at and (holder := self.leases.holder(victim.stream)) is not None:
            self._strike(victim, pid_of(holder))

    def _strike(self, victim: Victim, holder: int) -> None:
        if self.dice.randrange(KILLED_ONE_IN) == 0:
            self._kill(victim, holder)
            return
        pid = holder if self.dice.randrange(STANDBY_ONE_IN) else self._other(victim.stream, holder)
        victim.stopped = self._stop(pid)
        victim.at = time.monotonic() + self.dice.uniform(0, LONGEST_STOP)
        self.count["stops"] += bool(victim.stopped)
        self.count["stops of who stood by"] += bool(victim.stopped) and pid != holder

    def _other(self, stream: str, holder: int) -> int:
        """The stream's process in the pool that does not hold it; the holder where there is none."""
        rows = [pool.row(stream) for pool in self.pools]
        return next((row.pid for row in rows if row is not None and row.pid != holder), holder)

    def _stop(self, pid: int) -> list[int]:
        """Stop a process, at times with its workers; those that there were."""
        try:
            workers = psutil.Process(pid).children() if self.dice.randrange(WITH_WORKERS_ONE_IN) == 0 else []
            os.kill(pid, signal.SIGSTOP)
        except (ProcessLookupError, psutil.NoSuchProcess):
            return []
        for worker in workers:
            with suppressed_end():
                worker.send_signal(signal.SIGSTOP)
        return [pid, *(worker.pid for worker in workers)]

    def _wake(self, victim: Victim) -> None:
        if self.dice.randrange(KILLED_ONE_IN) == 0:
            self.count["killed while stopped"] += 1
            self.estate.kill(victim.stopped[0])
        victim.awaited = self.leases.content(victim.stream)
        self.late_wakings[victim.stream].append(time.monotonic())
        for pid in victim.stopped:
            with suppressed_end():
                os.kill(pid, signal.SIGCONT)
        victim.stopped = []

    def _kill(self, victim: Victim, holder: int) -> None:
        """Kill the holder, its worker, or (seldom) a whole pool."""
        pool = self._pool_of(holder)
        match self.dice.choices(("stream", "worker", "master", "tree"), (6, 4, 1, 1))[0]:
            case "worker" if pool is not None and (row := pool.row(victim.stream, Kind.WORKER)) is not None:
                self.worker_deaths[victim.stream].append(time.monotonic())
                self._hit("worker", [row.pid])
                victim.at = time.monotonic() + TTL / 2
            case "master" if pool is not None:
                self._hit("master", [pool.pid])
            case "tree" if pool is not None:
                self._hit("tree", list(reversed(pool.tree())))
            case _:
                victim.awaited = self.leases.content(victim.stream)
                self._hit("stream", [holder])

    def _hit(self, what: str, pids: list[int]) -> None:
        self.count[f"{what} killed"] += 1
        for pid in pids:
            self.estate.kill(pid)

    def _pool_of(self, holder: int) -> Pool | None:
        return next((pool for pool in self.pools if holder in pool.tree()), None)

    def step(self) -> None:
        """Set the clock, never further than some days from the truth."""
        choices = [step for step in STEPS if abs(self.clock.seconds + step) < 3 * 86_400]
        self.clock.step(self.dice.choice(choices))
        self.count["steps"] += 1

    # -- times

    def storm(self, stops: int, steps: int) -> None:
        """So many stops more, and meanwhile at most so many steps."""
        until_stops, left = self.count["stops"] + stops, steps
        next_step = time.monotonic()
        while self.count["stops"] < until_stops:
            self.turn()
            for victim in self.victims.values():
                self.befall(victim)
            if left and time.monotonic() > next_step:
                self.step()
                left, next_step = left - 1, time.monotonic() + self.dice.uniform(0, 4 * TTL)
        for _ in range(left):
            self.step()
            self.turns_for(TTL / 10)

    def calm(self) -> None:
        """Nobody is stopped any more, and every stream has a holder that renews its lease."""
        for victim in self.victims.values():
            if victim.stopped:
                self._wake(victim)
            victim.awaited, victim.at = None, 0.0
        for stream in STREAMS:
            self.turns_until(lambda stream=stream: self._is_held(stream), f"a living holder of {stream}")
            before = self.leases.content(stream)
            self.turns_until(
                lambda stream=stream, before=before: self.leases.content(stream) != before, f"a heartbeat of {stream}"
            )
        for pool in self.pools:
            self.turns_until(lambda pool=pool: all(pool.row(stream) for stream in STREAMS), "both pools")

    def _is_held(self, stream: str) -> bool:
        holder = self.leases.holder(stream)
        return holder is not None and not is_dead(pid_of(holder))

    def steps_alone(self, steps: int) -> None:
        """Nothing but steps, and then time enough for whoever was misled by them."""
        before = len(self.leases.take_overs)
        for _ in range(steps):
            self.step()
            self.turns_for(self.dice.uniform(0, TTL))
        self.turns_for(2 * TTL + 1)
        for stream in STREAMS:
            lease = Record.decode(self.leases.content(stream) or b"")
            assert lease is not None
            assert lease.at - time.time() == pytest.approx(self.clock.seconds, abs=60), "its clock was not set"
        self.count["steps alone"] += steps
        self.count["take-overs in quiet times"] += len(self.leases.take_overs) - before

    def end(self) -> None:
        """Let everything be done, and stop both pools."""
        self.calm()
        self._fed = float("inf")
        self.turns_until(lambda: set(self.sent) <= self.ends.ended, "the end of all jobs", patience=120)
        assert [pool.stop() for pool in self.pools] == [0, 0]
        self.ends.look()
        self.ends.close()

    # -- the oracle

    def check(self) -> None:
        """Nothing lost, nothing ended twice, no stream taken from one who lived and beat, no run without a cause."""
        self.estate.check_settled(list(self.sent))
        assert self.ends.doubled == [], f"acknowledged twice: {self.ends.doubled[:5]}"
        unjust = self.leases.unjust(TTL)
        assert unjust == [], f"taken over from the living: {unjust[:5]}"
        assert {self.estate.status_of(job_id) for job_id in self.sent} == {"done"}
        self.count["repeated runs"] = self._check_repeats()
        self.count["repeated replies"] = self.ends.repeated
        assert [each for each in examine(self.estate.root) if each.severity is not Severity.NOTE] == []

    def _check_repeats(self) -> int:
        """Every run but a job's last was cut off by a take-over of its stream, or its worker's death.

        Or it was begun by one who was stopped between its look at the lease and its claim, and woke too late.
        """
        causes: dict[str, list[float]] = {stream: list(times) for stream, times in self.worker_deaths.items()}
        for each in self.leases.take_overs:
            causes[each.stream].append(each.at)
        repeats = 0
        for job_id, runs in self.estate.runs().items():
            for run, later in itertools.pairwise(runs):
                repeats += 1
                first, last = run.start - 1, later.start + 1
                stream = self.sent[job_id]
                if not any(first <= at <= last for at in causes[stream]):
                    self.count["claims that came late"] += 1
                    late = any(at <= run.start <= at + TTL for at in self.late_wakings[stream])
                    assert late, f"{run}, and again {later}"
                assert run.end is None or later.start < run.end + LONGEST_STOP + SETTLING, f"{run}, and again {later}"
        return repeats


@pytest.mark.needs("linux")
@pytest.mark.parametrize(("stops", "steps"), short_and_long((40, 8), (2_000, 200), timeout=5400))
def test_holders_that_stand_still_and_clocks_that_are_set_end_no_job_twice(
    make_estate: Callable[..., Estate], dice: random.Random, stops: int, steps: int
) -> None:
    """T2: SIGSTOP for 0 to 3 ttl, then CONT; steps of an hour and of a day, half of them with nothing else; kills."""
    estate = make_estate(
        {name: {"workers": 1, "retries": 1000, "max_crashes": 1000} for name in STREAMS},
        lease={"ttl": f"{TTL:g}s"},
        watch={"scan": "2s"},
    )
    weather = Weather(estate, ShiftedClock(estate.folder / "clock"), dice)
    weather.calm()
    quiet_times = max(1, steps // 2 // QUIET_STEPS)
    for number in range(quiet_times):
        weather.storm(stops * (number + 1) // quiet_times - stops * number // quiet_times, steps // 2 // quiet_times)
        weather.calm()
        weather.steps_alone(steps // 2 // quiet_times)
    weather.end()
    weather.check()
    print(
        f"T2: {dict(weather.count)}, {len(weather.sent)} jobs, {len(weather.leases.take_overs)} take-overs;"
        f" 0 lost, 0 ended twice, 0 taken over from a living holder that beat"
    )
    assert weather.count["stops"] >= stops
    assert weather.count["steps"] == steps
    assert weather.count["take-overs in quiet times"] == 0
