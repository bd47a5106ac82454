"""A pool on a database: what it does on a folder, it does there, too. Each test runs on SQLite and on PostgreSQL."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest
from databases import DatabaseEstate
from pool import Estate, Pool, until

from queuekit.job import Delivery

FOUR = ("encode", "link", "mail", "thumb")


@pytest.fixture(params=["sqlite", "postgresql"])
def make_estate(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Estate]]:
    """Make an estate whose queue is in a database."""
    url = f"sqlite:{tmp_path}/jobs.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    with ExitStack() as stack:

        def make(streams: dict[str, dict[str, Any]] | None = None, **tables: Any) -> Estate:
            return stack.enter_context(DatabaseEstate(tmp_path, url, streams or {"encode": {}}, **tables))

        yield make


def test_every_job_of_four_streams_is_handled_exactly_once(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate({name: {"workers": 2} for name in FOUR})
    sent = estate.send_many(400, FOUR)
    pool = estate.run("--burst", patience=60)
    assert pool.code == 0
    assert {job: len(runs) for job, runs in estate.runs().items()} == dict.fromkeys(sent, 1)
    estate.check_settled(sent)


def test_a_job_that_is_sent_while_the_pool_is_idle_is_run(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate()
    pool = estate.start()
    until(pool.is_working(), "the pool")
    for _ in range(3):
        job = estate.send(do="nothing")
        until(estate.finished(job), "its end")
    assert pool.stop() == 0


def test_a_failing_job_is_tried_again_and_then_blocked_with_its_record(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate({"encode": {"retries": 2}})
    job = estate.send(do="raise")
    pool = estate.run("--burst")
    assert pool.code == 6
    assert len(estate.runs()[job]) == 3
    assert estate.status_of(job) == "blocked"
    assert estate.dossier(job)["error"]


def test_a_worker_that_dies_charges_its_job_and_the_stream_goes_on(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate({"encode": {"workers": 1}})
    bad, good = estate.send(do="be killed"), estate.send(do="nothing")
    pool = estate.run("--burst")
    assert pool.code == 6
    assert (estate.status_of(bad), estate.status_of(good)) == ("blocked", "done")
    assert len(estate.runs()[bad]) == 2


def test_a_killed_stream_process_is_followed_at_once_and_only_what_ran_is_charged(
    make_estate: Callable[..., Estate],
) -> None:
    estate = make_estate({"encode": {"workers": 1}}, lease={"ttl": "60s"})
    pool = estate.start()
    gate = estate.folder / "gate"
    running = estate.send(do="wait", file=str(gate))
    until(estate.started(running), "the run")
    waiting = estate.send_many(5)
    gate.touch()
    estate.kill(pool.stream_pid())
    until(estate.finished(running, *waiting), "the ends")
    assert all(len(estate.runs()[job]) == 1 for job in waiting)
    assert pool.stop() == 0
    estate.check_settled([running, *waiting])


def test_jobs_survive_kills_of_every_kind_of_process(make_estate: Callable[..., Estate], dice: Random) -> None:
    estate = make_estate({name: {"workers": 2, "max_crashes": 100} for name in FOUR})
    sent = estate.send_many(400, FOUR, do="sleep", seconds=0.005)
    pool = estate.start("--burst")
    for _ in range(8):
        until(lambda pool=pool: pool.code is not None or pool.is_working(*FOUR)(), "the pool")
        if pool.code is None:
            estate.kill(_victim(pool, dice))
        if pool.code is not None or pool.process.poll() is not None:
            pool = estate.start("--burst")
    if pool.wait(60) not in {0, 6}:
        pool = estate.run("--burst", patience=60)
    assert pool.code == 0
    estate.check_settled(sent)
    estate.check_repeats()


def _victim(pool: Pool, dice: Random) -> int:
    kind, stream = dice.choice(["master", "stream", "worker", "worker"]), dice.choice(FOUR)
    if kind == "master":
        return pool.pid
    return pool.stream_pid(stream) if kind == "stream" else pool.worker_pid(stream)


def test_the_other_pool_goes_on_when_the_holder_is_killed(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate({"encode": {"workers": 1}}, lease={"ttl": "60s"})
    first = estate.start()
    until(first.is_working(), "the first pool")
    second = estate.start()
    until(lambda: (row := second.row()) is not None and row.lease == "standby", "the second pool's standing by")
    first.signal_tree(signal.SIGKILL)
    job = estate.send(do="nothing")
    until(estate.finished(job), "its end", patience=10)
    assert second.stop() == 0


def test_a_stopped_pool_gives_back_what_it_had_not_started(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate({"encode": {"workers": 1}})
    gate = estate.folder / "gate"
    running = estate.send(do="wait", file=str(gate))
    pool = estate.start()
    until(estate.started(running), "the run")
    rest = estate.send_many(5)
    pool.tell(signal.SIGTERM)
    until(lambda: (row := pool.row()) is not None and row.state == "stopping", "the stream's stopping")
    gate.touch()
    assert pool.wait() == 0
    assert estate.check([running, *rest]) == {"done": 1, "new": 5}


@pytest.mark.parametrize(
    ("holds", "held", "free", "jobs"),
    [
        (3, 1.5, 0.5, 60),
        pytest.param(12, 10.0, 5.0, 600, marks=[pytest.mark.torture, pytest.mark.timeout(900)]),
    ],
)
def test_while_somebody_holds_the_write_lock_nothing_is_lost_or_burnt(
    tmp_path: Path, holds: int, held: float, free: float, jobs: int
) -> None:
    """C22: an outside process holds the lock of an SQLite store again and again: nobody crashes, no attempt is burnt,
    nothing runs twice, leases are kept, the journal stays small, and work goes on at once after each release."""
    streams = {name: {"workers": 2} for name in FOUR}
    with DatabaseEstate(tmp_path, f"sqlite:{tmp_path}/jobs.db", streams) as estate:
        sent: list[str] = []
        pool = estate.start()
        until(pool.is_working(*FOUR), "the pool")
        before = {name: pool.stream_pid(name) for name in FOUR}
        for _ in range(holds):
            sent += estate.send_many(jobs, FOUR, do="sleep", seconds=0.02)
            _hold_write_lock(tmp_path / "jobs.db", held)
            released = time.monotonic()
            until(lambda since=released: _ran_since(estate, since), "work after the release", patience=2)
            assert all((row := pool.row(name)) is not None and row.lease == "held" for name in FOUR)
            journal = tmp_path / "jobs.db-wal"
            assert not journal.exists() or journal.stat().st_size < 50e6
            threading.Event().wait(free)
        until(estate.finished(*sent), "the ends", patience=60)
        assert {name: pool.stream_pid(name) for name in FOUR} == before
        assert pool.stop() == 0
        assert "Traceback" not in pool.log
        assert {job: len(runs) for job, runs in estate.runs().items()} == dict.fromkeys(sent, 1)
        assert {Delivery.of(job).attempt for job in estate.queue.completed()} == {0}
        estate.check_settled(sent)


def _ran_since(estate: Estate, since: float) -> bool:
    return any(float(at) > since for _, at, *_ in estate.notes("start"))


def _hold_write_lock(path: Path, seconds: float) -> None:
    holder = sqlite3.connect(path, timeout=30, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    threading.Event().wait(seconds)
    holder.rollback()
    holder.close()


@pytest.mark.parametrize(
    ("count", "max_jobs"),
    [(800, 20), pytest.param(10_000, 25, marks=[pytest.mark.torture, pytest.mark.timeout(900)])],
)
def test_a_pool_that_is_forked_beside_busy_producers_uses_nothing_of_theirs(
    tmp_path: Path, count: int, max_jobs: int
) -> None:
    """C31: threads use the queue before, at and after the fork of the pool; its children come and go meanwhile."""
    streams = {name: {"workers": 1, "handler": "acting:act_fast", "max_jobs": max_jobs} for name in FOUR}
    with DatabaseEstate(tmp_path, f"sqlite:{tmp_path}/jobs.db", streams) as estate:
        program = [sys.executable, str(Path(__file__).with_name("producing_parent.py"))]
        with (tmp_path / "parent.log").open("wb") as log:
            parent = subprocess.Popen(
                [*program, str(estate.config), estate.url, str(count)],
                env=estate.environment(),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert parent.stdout is not None
        master = int(parent.stdout.readline())
        looks = 0
        while not select.select([parent.stdout], [], [], 0.05)[0]:
            looks += _look_for_inherited(master)
        sent = parent.stdout.readline().split()
        assert len(sent) == count
        until(lambda: _ends(estate) == count, "the ends", patience=300)
        _look_for_inherited(master)
        assert looks > 0
        parent.terminate()
        assert parent.wait(30) == 0
        parent.stdout.close()
        runs = estate.runs()
        assert {job: len(each) for job, each in runs.items()} == dict.fromkeys(sent, 1)
        workers = {run.pid for each in runs.values() for run in each}
        assert len(workers) >= count // max_jobs
        estate.check_settled(sent)
        connection = sqlite3.connect(tmp_path / "jobs.db")
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        connection.close()


def _ends(estate: Estate) -> int:
    tally = estate.queue.tally()
    return len(estate.notes("end")) if tally.outstanding == 0 else 0


def _look_for_inherited(master: int) -> int:
    """Fail when a process that has no queue of its own has the database open; returns how many could be looked at.

    The master has none. So a stream process, its child, has opened what it has by itself; and a worker has none.
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        pool = psutil.Process(master)
        streams = pool.children()
        workers = [worker for stream in streams for worker in stream.children()]
        if streams:  # before, the pool tries whether the store can be used, and closes it again
            return sum(_has_nothing_of_it(process) for process in (pool, *workers))
    return 0


def _has_nothing_of_it(process: psutil.Process) -> bool:
    folder = f"/proc/{process.pid}/fd"
    try:
        files = [os.readlink(f"{folder}/{number}") for number in os.listdir(folder)]
    except OSError:
        return False  # it ended, or closes one of its files just now
    assert not [file for file in files if "jobs.db" in file], f"{process} has {files}"
    return True


def test_a_server_that_restarts_interrupts_nobody_for_long(own_postgres: Callable[..., Any], tmp_path: Path) -> None:
    server = own_postgres()
    with DatabaseEstate(tmp_path, server.url(), {"encode": {"workers": 2}}) as estate:
        sent = estate.send_many(60, do="sleep", seconds=0.02)
        pool = estate.start()
        until(lambda: len(estate.runs()) > 5, "the first runs")
        for mode in ("fast", "immediate"):
            server.stop(mode)
            server.start()
        until(estate.finished(*sent), "the ends", patience=60)
        late = estate.send(do="nothing")
        until(estate.finished(late), "one sent after the restart", patience=20)
        assert pool.stop() == 0
        assert {Delivery.of(job).attempt for job in estate.queue.completed()} == {0}
        assert {job: len(runs) for job, runs in estate.runs().items()} == dict.fromkeys([*sent, late], 1)
