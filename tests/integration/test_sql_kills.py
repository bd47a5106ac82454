"""Many processes on one database, some of them killed: no job is lost, none is worked twice without a death between."""

from __future__ import annotations

import collections
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lengths import short_and_long

from queuekit import QueueKit
from queuekit.lifecycle import State
from queuekit.testing.jobs import make_job

CONSUMERS = 8
STREAMS = [f"s{number}" for number in range(6)]
PROGRAM = Path(__file__).with_name("sql_consumer.py")
PATIENCE = 120.0
SENT_PER_KILL = 60


class Store:
    """A database, the consumers that work on it and the history that they write."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.history = folder / "history"
        self.history.touch()
        self.queue = QueueKit.open(url)
        self.sent: list[str] = []
        self.killed: set[int] = set()
        self.consumers: list[subprocess.Popen[bytes]] = []
        self._output = (folder / "output").open("wb")

    def send(self, count: int) -> None:
        jobs = [make_job(stream=STREAMS[number % len(STREAMS)]) for number in range(count)]
        self.queue.send_batch(jobs)
        self.sent += [str(job.id) for job in jobs]

    def start(self, *arguments: str) -> None:
        command = [sys.executable, str(PROGRAM), self.url, str(self.history), *arguments]
        self.consumers.append(subprocess.Popen(command, stdout=self._output, stderr=self._output))

    def kill_one(self, dice: random.Random) -> None:
        last = self.notes()[-1:]  # who noted last is in the midst of it; else anybody
        busy = [each for each in self.consumers if dice.random() < 0.7 and last and int(last[0][2]) == each.pid]
        victim = (busy or [dice.choice(self.consumers)])[0]
        self.consumers.remove(victim)
        assert victim.poll() is None, "it ended by itself"
        victim.kill()
        victim.wait()
        self.killed.add(victim.pid)

    def close(self) -> None:
        for consumer in self.consumers:
            consumer.kill()
            consumer.wait()
        self.queue.close()
        self._output.close()
        print((Path(self.history).with_name("output")).read_text()[-3000:])

    def notes(self) -> list[list[str]]:
        return [line.split() for line in self.history.read_text().splitlines()]

    def check(self) -> int:
        """Every job has ended, every run but its last died; returns how many runs were repeats."""
        ended = collections.Counter(str(view.job.id) for view in self.queue.backend.jobs({State.DONE}))  # type: ignore[union-attr]
        assert ended == collections.Counter(self.sent)
        assert self.queue.tally().outstanding == 0
        runs: dict[str, list[int]] = collections.defaultdict(list)
        acknowledged = set()
        for what, job_id, pid in self.notes():
            if what == "run":
                assert job_id not in acknowledged, f"{job_id} was worked again after its end had been told"
                runs[job_id].append(int(pid))
            else:
                acknowledged.add(job_id)
        assert runs.keys() == set(self.sent)
        early = [pid for pids in runs.values() for pid in pids[:-1]]
        assert set(early) <= self.killed, "a job was worked again although nobody was killed meanwhile"
        if self.url.startswith("sqlite:"):
            with sqlite3.connect(self.url.removeprefix("sqlite:")) as connection:
                assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            connection.close()
        return len(early)


@pytest.fixture
def store(url: str, tmp_path: Path) -> Iterator[Store]:
    opened = Store(url, tmp_path)
    yield opened
    opened.close()


def until(fact: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
    end = time.monotonic() + patience
    while not fact():
        assert time.monotonic() < end, f"{what} did not come true within {patience:g} s"
        time.sleep(0.005)


@pytest.mark.parametrize(
    "count",
    [5_000, pytest.param(100_000, marks=[pytest.mark.torture, pytest.mark.timeout(3600)])],
)
def test_eight_processes_drain_a_backlog_each_job_once(store: Store, count: int) -> None:
    store.send(count)
    for _ in range(CONSUMERS):
        store.start()
    codes = [consumer.wait(3600) for consumer in store.consumers]
    assert codes == [0] * CONSUMERS
    assert store.check() == 0
    workers = {pid for what, _, pid in store.notes() if what == "run"}
    assert len(workers) > 1, "one did all the work"


@pytest.mark.parametrize("kills", [10, *short_and_long(30, 500)])
def test_killed_consumers_lose_and_double_nothing(store: Store, kills: int) -> None:
    """T21, and the same on PostgreSQL (T22): `integrity_check` is ok, nothing is doubled, nobody fails."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    for _ in range(CONSUMERS):
        store.start("--leased", *STREAMS)
    for number in range(kills):
        store.send(SENT_PER_KILL)
        size = store.history.stat().st_size
        more = dice.randrange(1, 4000)
        until(lambda size=size, more=more: store.history.stat().st_size >= size + more or idle(store), f"kill {number}")
        store.kill_one(dice)
        store.start("--leased", *STREAMS)
    until(lambda: store.queue.tally().outstanding == 0, "the end of all jobs")
    for consumer in store.consumers:
        consumer.send_signal(signal.SIGTERM)
    codes = {consumer.wait(PATIENCE) for consumer in store.consumers}
    assert codes <= {0, -signal.SIGTERM}, "one failed"  # the signal also ends one that was just being started
    repeats = store.check()
    kind = store.url.split(":")[0]
    print(f"T21, {kind}: {kills} kills, {len(store.sent)} jobs, 0 lost, {repeats} worked again after a kill")


def idle(store: Store) -> bool:
    """Whether there is nothing left to wait for."""
    return store.queue.tally().outstanding == 0
