"""T20: what a pool's master and its stream processes hold after very many jobs, deaths of workers, and reloads.

A soak goes in rounds. In each, a batch of jobs is sent, some workers are killed while it is worked, and the
configuration is read anew; it has changed each time, and every other time a second stream comes or goes. The first
rounds are for warming up; what is held after them is what may be held at the end, with the same configuration.
"""

from __future__ import annotations

import dataclasses
import random
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from databases import DatabaseEstate
from lengths import short_and_long
from pool import Estate, Pool, until
from vitals import Holdings, holdings, resident_mib, told

from workerpool.board import Kind

pytestmark = pytest.mark.needs("linux")
WORKERS = 4
MASTER_MIB = 5.0
STREAM_MIB = 10.0
PATIENCE = 120.0
BYTES_OF_A_RUN = 120  # in the history
CYCLE = 4  # rounds from one configuration to the same one
TAKEN_ON = b"stream encode: new configuration"


@dataclasses.dataclass(frozen=True)
class Length:
    """How much of everything. `warm`: so many of the rounds are for warming up."""

    jobs: int
    respawns: int
    rounds: int
    warm: int

    @property
    def batch(self) -> int:
        """Jobs of one round."""
        return self.jobs // self.rounds

    @property
    def kills(self) -> int:
        """Workers that are killed in one round: half of all that are to be replaced."""
        return max(1, self.respawns // 2 // self.rounds)

    @property
    def life(self) -> int:
        """Jobs after which a worker is recycled: the other half."""
        return max(2, 2 * self.jobs // self.respawns)


class Soak:
    """One pool that is worked hard."""

    def __init__(self, estate: Estate, length: Length, dice: random.Random) -> None:
        self._estate, self._length, self._dice = estate, length, dice
        self._sent: list[str] = []
        self._reloads = 0
        self._write_config(0)
        self.pool: Pool = estate.start()
        until(self.pool.is_working(), "the pool")
        self._watched = {"master": self.pool.pid, "stream": self.pool.stream_pid()}

    def round(self, number: int) -> None:
        """One batch, some deaths, one reload."""
        begun = self._history_bytes()
        self._sent += self._estate.send_many(self._length.batch)
        moments = [self._dice.randrange(self._length.batch * BYTES_OF_A_RUN) for _ in range(self._length.kills)]
        for moment in sorted(moments):
            self._kill_one(begun + moment)
        self._write_config(number)
        before = {row.pid for row in self._workers()}
        self.pool.tell(signal.SIGHUP)
        self._reloads += 1
        until(lambda: self._estate.queue.tally().outstanding == 0, "the batch", PATIENCE)
        until(lambda: self._is_at_rest(before), "the end of the reload", PATIENCE)

    def _history_bytes(self) -> int:
        return self._estate.history.stat().st_size

    def _kill_one(self, moment: int) -> None:
        """Kill a worker when the history is so long, or no job waits any more."""
        tally = self._estate.queue.tally
        until(lambda: self._history_bytes() >= moment or not tally().pending, "the moment", PATIENCE)
        workers = [row.pid for row in self._workers()]
        if workers:
            self._estate.kill(self._dice.choice(workers))

    def _workers(self) -> list[Any]:
        rows = self.pool.rows()
        return [row for row in rows if row.kind is Kind.WORKER and row.stream == "encode" and row.owner_is_running()]

    def _is_at_rest(self, before: set[int]) -> bool:
        """Every worker is a new one and ready, nothing else is forked, the passing stream has come or gone."""
        workers = self._workers()
        ready = {row.pid for row in workers if row.state == "ready"} - before
        children = {child.pid for child in psutil.Process(self._watched["stream"]).children()}
        is_over = self.pool.output.read_bytes().count(TAKEN_ON) >= self._reloads
        return is_over and len(ready) == WORKERS and ready == children and self._passing_is_as_wanted()

    def _passing_is_as_wanted(self) -> bool:
        row = self.pool.row("passing")
        return (row is not None and row.state == "running") == ("streams.passing" in self._estate.config.read_text())

    def _write_config(self, number: int) -> None:
        encode = {
            "handler": "acting:act_fast",
            "workers": WORKERS,
            "max_jobs": self._length.life + number % CYCLE,
            "max_crashes": 1_000_000,
        }
        passing: Mapping[str, Mapping[str, Any]] = {"passing": {}} if number % CYCLE >= CYCLE // 2 else {}
        self._estate.configure({"encode": encode, **passing}, log={"format": "json"})

    # -- what is held

    def holdings(self) -> dict[str, Holdings]:
        """Of master and stream, after one more job: what was closed before a fork is open again."""
        job = self._estate.send()
        self._sent.append(job)
        until(self._estate.finished(job), "one more job")
        return {name: holdings(pid) for name, pid in self._watched.items()}

    def memory(self) -> dict[str, float]:
        """Of master and stream, in MiB."""
        return {name: resident_mib(pid) for name, pid in self._watched.items()}

    def check_holdings(self, before: Mapping[str, Holdings]) -> None:
        """Fail when they hold more than before for good: a fork or a look at a folder may be under way."""
        for name, pid in self._watched.items():
            try:
                until(lambda: not holdings(pid) - before[name], "", patience=10)  # noqa: B023
            except AssertionError:
                pytest.fail(f"{name} holds more than before: {holdings(pid) - before[name]}")

    def end(self) -> int:
        """Stop the pool, and judge; returns how many workers there were."""
        assert self.pool.stream_pid() == self._watched["stream"]
        assert self.pool.stop() == 0
        assert "Traceback" not in self.pool.log
        self._estate.check_settled(self._sent)
        self._estate.check_repeats()
        runs = self._estate.runs()
        assert set(runs) == set(self._sent)
        return len({run.pid for each in runs.values() for run in each})


def soak(estate: Estate, length: Length, dice: random.Random, name: str) -> None:
    begun = time.monotonic()
    work = Soak(estate, length, dice)
    number = 0
    held = {"master": Holdings(), "stream": Holdings()}
    while number < length.warm or number % CYCLE:
        work.round(number)
        number += 1
        if number % CYCLE == 0:
            held = {name: held[name] | now for name, now in work.holdings().items()}
    memory = work.memory()
    print(f"after {number} rounds: {memory}", flush=True)
    last = number + length.rounds
    while number < last or number % CYCLE:
        work.round(number)
        number += 1
        if number % max(CYCLE, length.rounds // 10) == 0:
            print(f"after {number} rounds, {time.monotonic() - begun:.0f} s: {work.memory()}", flush=True)
    now = work.holdings()
    work.check_holdings(held)
    grown = {each: mib - memory[each] for each, mib in work.memory().items()}
    workers = work.end()
    print(
        f"T20 {name}: {number * length.batch:,} jobs, {workers:,} workers, {number} reloads in"
        f" {time.monotonic() - begun:.0f} s",
        *(f"{each} {grown[each]:+.1f} MiB, {told(held[each])} before, {told(now[each])} after" for each in held),
        sep="; ",
    )
    assert workers >= length.respawns
    assert grown["master"] <= MASTER_MIB
    assert grown["stream"] <= STREAM_MIB


@pytest.mark.parametrize(
    "length", short_and_long(Length(5_000, 30, 10, 8), Length(200_000, 1_000, 200, 16), timeout=7200)
)
def test_a_pool_on_a_folder_holds_no_more_after_a_long_life(
    make_estate: Callable[..., Estate], dice: random.Random, length: Length
) -> None:
    """T20: master +5 MB at most, descriptors, threads and inotify watches +0."""
    soak(make_estate(), length, dice, "folder")


@pytest.mark.parametrize("length", short_and_long(Length(1_000, 20, 8, 8), Length(20_000, 200, 40, 16), timeout=7200))
def test_a_pool_on_sqlite_holds_no_more_after_a_long_life(tmp_path: Path, dice: random.Random, length: Length) -> None:
    """T20, in a database."""
    with DatabaseEstate(tmp_path, f"sqlite:{tmp_path}/jobs.db", {"encode": {}}) as estate:
        soak(estate, length, dice, "SQLite")
