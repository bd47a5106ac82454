"""kill -9 at random moments: nothing is lost, and nothing runs twice that was not in flight at a kill (C07, C09, C59).

The history that handlers write tells who ran when; the oracle (`Estate.check`, `Estate.check_repeats`) compares it with
the moments of the kills and with every file of the root. The long storms are in torture/.
"""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import time
from collections.abc import Callable

import pytest
from pool import Estate, is_dead, until
from storm import STREAMS, Storm, streams

from workerpool.board import Kind


@pytest.mark.needs("linux")
def test_no_job_is_lost_and_none_repeated_without_need_when_processes_are_killed(
    make_estate: Callable[..., Estate], dice: random.Random
) -> None:
    """T1 in little: twenty kills."""
    with Storm(make_estate(streams()), dice) as storm:
        storm.rage(20)
        storm.calm_down()
        print(storm.judge())


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_each_stream_works_on_within_five_seconds_after_each_of_five_hundred_kills(
    make_estate: Callable[..., Estate], dice: random.Random
) -> None:
    """C07."""
    estate = make_estate({name: {"workers": 2, "max_crashes": 50, "retries": 50} for name in STREAMS})
    pool = estate.start()
    sent = []
    for _ in range(500):
        sent += estate.send_many(80, STREAMS)
        rows = [row for row in pool.rows() if row.kind in {Kind.STREAM, Kind.WORKER} and row.owner_is_running()]
        if rows:
            estate.kill(dice.choice(rows).pid)
        probes = [estate.send(stream) for stream in STREAMS]
        until(estate.finished(*probes), "a job of each stream after a kill", patience=5)
        sent += probes
    until(estate.finished(*sent), "the rest")
    before = time.monotonic()
    assert pool.stop() == 0
    assert time.monotonic() - before < 2
    estate.check_settled(sent)
    estate.check_repeats()


def test_a_killed_stream_process_is_restarted_and_only_the_running_job_is_charged(
    make_estate: Callable[..., Estate],
) -> None:
    estate = make_estate({"encode": {"max_crashes": 5}})
    gate = estate.folder / "gate"
    pool = estate.start()
    warm = [estate.send() for _ in range(20)]  # so that the stream process sends jobs ahead
    until(estate.finished(*warm), "the first jobs")
    running = estate.send(do="wait", file=str(gate))
    until(estate.started(running), "the run")
    waiting = [estate.send() for _ in range(5)]
    first, worker = pool.stream_pid(), pool.worker_pid()
    estate.kill(first)
    until(lambda: is_dead(worker), "the worker's end")
    until(lambda: pool.is_working()() and pool.stream_pid() != first, "a new stream process")
    gate.touch()
    until(estate.finished(running, *waiting), "all jobs")
    assert [run.end is None for run in estate.runs()[running]] == [True, False]
    assert attempts(estate, running) == (1, 1)
    assert {attempts(estate, job_id) for job_id in waiting} == {(0, 0)}
    assert pool.stop() == 0
    estate.check_settled([*warm, running, *waiting])


def test_a_killed_worker_takes_one_job_with_it_and_the_stream_goes_on(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate({"encode": {"max_crashes": 5}})
    pool = estate.start()
    gate = estate.folder / "gate"
    running = estate.send(do="wait", file=str(gate))
    until(estate.started(running), "the run")
    others = [estate.send() for _ in range(5)]
    stream, worker = pool.stream_pid(), pool.worker_pid()
    estate.kill(worker)
    until(lambda: len(estate.runs()[running]) == 2, "the second run")
    gate.touch()
    until(estate.finished(running, *others), "all jobs")
    assert attempts(estate, running) == (1, 1)
    assert {attempts(estate, job_id) for job_id in others} == {(0, 0)}
    assert pool.stream_pid() == stream
    assert pool.stop() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="there is no subreaper elsewhere")
def test_a_daemon_whose_worker_and_stream_are_killed_together_does_not_outlive_them(
    make_estate: Callable[..., Estate],
) -> None:
    estate = make_estate({"encode": {}, "dreaming": {}})
    pool = estate.start()
    estate.send(do="spawn", daemon=True, then="hang")
    ((*_, daemon),) = until(lambda: estate.notes("child"), "the daemon")
    stream, worker, other = pool.stream_pid(), pool.worker_pid(), pool.stream_pid("dreaming")
    os.kill(stream, signal.SIGSTOP)
    estate.kill(worker)
    estate.kill(stream)
    until(lambda: is_dead(int(daemon)), "the end of the daemon")
    assert pool.stream_pid("dreaming") == other


def test_a_job_that_kills_its_worker_each_time_ends_blocked_and_says_how(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate({"encode": {"max_crashes": 2, "retries": 10}})
    poison, good = estate.send(do="be killed"), estate.send()
    assert estate.run("--burst").code == 6
    assert estate.status_of(good) == "done"
    assert estate.status_of(poison) == "blocked"
    assert len(estate.runs()[poison]) == 2
    assert "SIGKILL" in estate.dossier(poison)["error"]


def test_the_record_of_an_inline_crash_has_the_signal_too(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate({"encode": {"max_crashes": 1, "workers": 0}})
    poison = estate.send(do="crash")
    assert estate.run("--burst").code == 6
    assert (
        "its stream's process, in which it ran (workers = 0), was killed by SIGSEGV" in estate.dossier(poison)["error"]
    )


def test_the_record_of_a_crash_has_the_signal_the_time_the_memory_the_last_words_and_the_stack(
    make_estate: Callable[..., Estate],
) -> None:
    estate = make_estate({"encode": {"max_crashes": 1}})
    poison = estate.send(do="crash", say="before the end\n")
    estate.run("--burst")
    facts, _, words = estate.dossier(poison)["error"].partition("its last words:\n")
    assert re.search(r"was killed by SIGSEGV after \d+\.\d s of this job; its memory was at most \d+ MiB", facts)
    assert words.startswith("before the end\n")
    assert re.search(r'File ".*acting.py", line \d+ in perform', words)
    assert "before the end" in estate.pools[0].log


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_nothing_of_a_pool_outlives_its_master(make_estate: Callable[..., Estate], busy: bool) -> None:
    """C09: an idle tree is gone within 2 s; a busy one finishes its handler, and a new master runs nothing twice."""
    estate = make_estate({name: {} for name in STREAMS})
    pool = estate.start()
    until(pool.is_working(*STREAMS), "the pool")
    gate = estate.folder / "gate"
    sent = [estate.send(stream, do="wait", file=str(gate)) for stream in STREAMS] if busy else []
    for job_id in sent:
        until(estate.started(job_id), "the run")
    os.kill(pool.pid, signal.SIGKILL)
    pool.wait()
    gate.touch()
    until(lambda: estate.processes() == [], "the end of the tree", patience=2)
    assert estate.run("--burst").code == 0
    assert {len(runs) for runs in estate.runs().values()} == ({1} if busy else set())
    estate.check_settled(sent)


def test_pools_that_are_killed_again_and_again_leave_no_heap_of_boards(make_estate: Callable[..., Estate]) -> None:
    """Each of the next would have to look through all of them before it knows what ran."""
    estate = make_estate({"encode": {}, "dreaming": {}})
    for _ in range(4):
        pool = estate.start()
        until(pool.is_working("encode", "dreaming"), "the pool")
        boards = list((estate.root / ".workerpool").glob("board-*"))
        assert [board.name.split("-")[1] for board in boards] == [str(pool.pid)]
        estate.kill(pool.pid)
        until(lambda: estate.processes() == [], "the end of the tree")


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_stopping_at_any_instant_loses_and_repeats_nothing(
    make_estate: Callable[..., Estate], dice: random.Random
) -> None:
    """C13: TERM at a random instant, started again at once, two hundred times or until everything is done."""
    estate = make_estate({"encode": {"handler": "acting:act_fast", "workers": 2}})
    sent = estate.send_many(20_000)
    for _ in range(200):
        pool = estate.start()
        moment = time.monotonic() + dice.uniform(0, 0.8)
        until(lambda end=moment: time.monotonic() > end, "the moment")
        if pool.stop() == -signal.SIGTERM:  # it had not even installed its handlers
            continue
        assert pool.code == 0, pool.log
        assert "Traceback" not in pool.log
    assert estate.run("--burst", patience=120).code == 0
    estate.check_settled(sent)
    assert {len(runs) for runs in estate.runs().values()} == {1}


def attempts(estate: Estate, job_id: str) -> tuple[int, int]:
    """Failed runs and crashes that a finished job carries."""
    from queuekit.job import Delivery

    job = next(job for job in estate.queue.completed() if job.id == job_id)
    record = Delivery.of(job)
    return record.attempt, record.crashes
