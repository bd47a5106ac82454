"""A storm of kills over a running pool whose work never runs out, and the judgement of what came of it.

`Storm` keeps four streams of different kinds supplied with jobs (workers, batches, inline, a coroutine; some fail, some
are put off, some submit follow-up jobs) and kills: a worker, a stream process, any child, the master, or everything at
once. It starts the master again, as a service manager would; nobody else helps. The witnesses are in witness.py.
"""

from __future__ import annotations

import collections
import json
import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

from pool import Estate, Pool, is_dead, suppressed_end, until
from witness import Kill, Ledger, Recoveries, judge_repeats, quantile

from queuekit import Job
from queuekit.testing.jobs import make_job
from workerpool.board import Kind
from workerpool.worker.context import follow_up

STREAMS: dict[str, dict[str, Any]] = {
    "encode": {"workers": 2},
    "dreaming": {"workers": 1, "handler": "acting_storm:act_together", "batch_size": 8},
    "import": {"workers": 0},
    "replay": {"workers": 2, "handler": "acting_storm:act_async"},
}
TARGETS = {"worker": 47, "stream": 32, "child": 12, "master": 5, "all": 4}
"""What is killed, and how often in a hundred kills."""
PAUSES = {(0.05, 0.2): 83, (0.2, 0.6): 12, (0.6, 2.0): 2, None: 3}
"""Seconds to the next kill, and how often in a hundred; None: until every stream works again, and a little."""
WORK = {(0.0, 0.005): 40, (0.02, 0.15): 40, (0.15, 0.5): 20}
"""How long a job takes, in seconds, and how often in a hundred."""
_FEW, _ENOUGH = 20, 40  # jobs outstanding in a stream: when more are sent, and up to how many
_PROGRESS = 250


def streams() -> dict[str, dict[str, Any]]:
    """The four streams, for `make_estate`: a job survives more kills than it will ever meet."""
    patient = {"handler": "acting_storm:act", "max_crashes": 10_000, "retries": 10_000}
    return {name: patient | keys for name, keys in STREAMS.items()}


class Storm:
    """A pool under fire, with a producer that goes on sending; use it as a context. `kills`: all so far."""

    def __init__(self, estate: Estate, dice: random.Random) -> None:
        self.estate, self.dice = estate, dice
        self.kills: list[Kill] = []
        self.pool: Pool
        self._stream_of: dict[str, str] = {}  # of every job that was sent, or will be submitted
        self._outstanding: collections.Counter[str] = collections.Counter()
        self._feed()  # makes the folders, too
        self._ledger, self._recoveries = Ledger(estate), Recoveries(estate, list(STREAMS))

    def __enter__(self) -> Storm:
        return self

    def __exit__(self, *_: object) -> None:
        self._ledger.close()
        self._recoveries.close()

    def rage(self, kills: int) -> None:
        """Start a pool and kill so many times."""
        self.pool = self.estate.start()
        begun = time.monotonic()
        for number in range(1, kills + 1):
            self._strike(self._roll(dict(TARGETS)))
            self._pause(self._roll(dict(PAUSES)))
            if number % _PROGRESS == 0:
                print(f"{number} kills, {len(self._ledger.ended)} jobs, {time.monotonic() - begun:.0f} s", flush=True)

    def calm_down(self) -> None:
        """Let what is left be done, and stop the pool."""
        until(lambda: self._watch() or not +self._outstanding, "the rest of the jobs", patience=120)
        assert self.pool.stop() == 0
        self._ledger.read()

    # -- work

    def _feed(self) -> None:
        for stream in STREAMS:
            if self._outstanding[stream] < _FEW:
                self._send([self._job(stream) for _ in range(_ENOUGH - self._outstanding[stream])])

    def _send(self, jobs: list[Job]) -> None:
        """All of them, the last one sometimes for later."""
        if self.dice.random() < 0.2:
            self.estate.queue.send(jobs.pop(), delay=self.dice.uniform(0.1, 1.0))
        self.estate.queue.send_batch(jobs)

    def _job(self, stream: str) -> Job:
        into = self.dice.choice(list(STREAMS))
        extra = self._roll({(): 91, ("fail", 1): 3, ("retry", 1): 3, ("submit", into): 3})
        told = {"seconds": round(self.dice.uniform(*self._roll(dict(WORK))), 4)} | dict([extra] if extra else [])
        job = make_job(stream=stream, payload=json.dumps(told).encode())
        self._expect(job)
        if "submit" in told:
            self._expect(follow_up(job, 0, into))
        return job

    def _expect(self, job: Job) -> None:
        self._stream_of[str(job.id)] = str(job.stream_id)
        self._outstanding[str(job.stream_id)] += 1

    def _watch(self) -> None:
        for job_id in self._ledger.read():
            self._outstanding[self._stream_of[job_id]] -= 1
        self._recoveries.read()
        assert self.pool.code is None, f"the master ended by itself with {self.pool.code}:\n{self.pool.log[-4000:]}"

    def _pause(self, bounds: tuple[float, float] | None) -> None:
        if bounds is None:
            self._work_on(self._recoveries.are_complete, "work in each stream")
        end = time.monotonic() + self.dice.uniform(*(bounds or (0.0, 0.2)))
        self._work_on(lambda: time.monotonic() > end, "the pause")

    def _work_on(self, fact: Callable[[], Any], what: str) -> Any:
        """Wait for a fact, and return it, while the work goes on."""

        def look() -> Any:
            self._watch()
            self._feed()
            return fact()

        return until(look, what, patience=120)

    # -- kills

    def _strike(self, target: str) -> None:
        """Kill one of these as soon as there is one."""
        pid = self.dice.choice(self._work_on(lambda: self._find(target), f"a living {target}"))
        before = self._known()
        alive = frozenset([*self.pool.tree(), *before])
        first = time.monotonic()
        self._kill_everything() if target == "all" else self._kill(pid)
        last = time.monotonic()
        stream = None
        if target not in {"master", "all"}:
            target, stream = (before | self._known()).get(pid, ("stream", None))
        kill = Kill(target, first, last, pid, stream, alive)
        self.kills.append(kill)
        self.estate.kills.append((first, last))
        self._recoveries.expect(kill)
        if target in {"master", "all"}:
            self.pool.wait()
            self.pool = self.estate.start()

    def _find(self, target: str) -> list[int]:
        """The living processes of that kind."""
        if target in {"master", "all"}:
            return [self.pool.pid]
        if target == "child":
            return [pid for pid in self.pool.tree()[1:] if not is_dead(pid)]
        kind = Kind.STREAM if target == "stream" else Kind.WORKER
        return [row.pid for row in self.pool.rows() if row.kind is kind and row.owner_is_running()]

    def _known(self) -> dict[int, tuple[str, str]]:
        """What each process on the board is: `worker` or `stream`, and whose."""
        rows = [row for row in self.pool.rows() if row.kind in {Kind.STREAM, Kind.WORKER}]
        return {row.pid: (row.kind.name.lower(), row.stream) for row in rows}

    def _kill(self, pid: int) -> None:
        with suppressed_end():
            os.kill(pid, signal.SIGKILL)
        until(lambda: is_dead(pid), f"the death of {pid}")

    def _kill_everything(self) -> None:
        """Also what earlier masters have left and is about to end."""

        def is_done() -> bool:
            living = self.estate.processes()
            for process in living:
                with suppressed_end():
                    process.kill()
            return not living

        for pid in self.pool.tree():
            with suppressed_end():
                os.kill(pid, signal.SIGKILL)
        until(is_done, "the end of all")

    def _roll(self, weights: dict[Any, int]) -> Any:
        return self.dice.choices(list(weights), list(weights.values()))[0]

    # -- the judgement

    def judge(self) -> str:
        """Fail unless every job has ended once as done, and none ran again without need; returns the figures."""
        runs = self.estate.runs()
        sent = list(self._stream_of)
        self._ledger.judge(runs)
        self.estate.check_settled(sent)
        assert set(runs) == set(sent)
        assert {self.estate.status_of(job_id) for job_id in sent} == {"done"}
        assert self.estate.processes() == []
        for pool in self.estate.pools:
            assert "Traceback" not in pool.log, pool.log
        repeats = judge_repeats(runs, self._stream_of, self.kills)
        targets = dict(collections.Counter(kill.target for kill in self.kills))
        return (
            f"{len(self.kills)} kills {targets}, {len(sent)} jobs, {sum(map(len, runs.values()))} runs: "
            f"0 lost, 0 vanished, 0 ended twice; of {repeats.in_flight} runs in flight at kills {repeats.cut_off} were "
            f"repeated, and {repeats.failed} that had failed; {self._recoveries.figures()}"
        )

    def recovery_p99(self) -> float:
        """Seconds from a kill until its stream works again, which 99 of 100 do not exceed."""
        return quantile(self._recoveries.times, 0.99)
