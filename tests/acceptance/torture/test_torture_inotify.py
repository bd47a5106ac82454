"""T13: inotify refused, overflowing, with its folder replaced, or a moment late: every job starts soon all the same.

The limits are those of a user namespace that only the pool is in; the length of the kernel's queue is read when a
watcher is made, so it is short for no longer than that takes.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from backlog import fill_folder
from databases import DatabaseEstate
from lengths import short_and_long
from machine import endure
from pool import Estate, Pool, until

from queuekit import QueueKit

POLL = 0.2
MOST_DELAY = POLL + 0.5
MOST_CPU_POLLING = 0.3
"""Of one CPU. A poll costs a hundredth of that; whoever is woken for ever takes all of it."""
SLOW = {"watch": {"scan": "60s", "poll": f"{POLL:g}s"}, "lease": {"ttl": "15s"}}
"""A slow look that comes too late to make up for what was missed."""
STREAMS = {"encode": {"handler": "acting_marked:act"}}
SLOW_CALLS = 2.0
LIMITS = Path("/proc/sys/user")
QUEUED = Path("/proc/sys/fs/inotify/max_queued_events")
STORES = ["folder", "sqlite"]


def an_estate(folder: Path, store: str = "folder") -> Estate:
    """An estate over either store; its workers note when they have imported their handler."""
    (folder / "acting_marked.py").write_text("import acting\nacting.note('imported')\nact = acting.act\n")
    if store == "folder":
        return Estate(folder, STREAMS, **SLOW)
    return DatabaseEstate(folder, f"sqlite:{folder / 'jobs.db'}", STREAMS, **SLOW)


def with_limit(name: str, limit: int) -> list[str]:
    """What executes a command in a user namespace of its own, with this limit there."""
    script = f'echo {limit} > {LIMITS / name} && exec "$@"'
    return ["unshare", "--user", "--map-root-user", "sh", "-c", script, "sh"]


def set_limit(pool: Pool, name: str, limit: int) -> None:
    """Set a limit of the user namespace that a pool is in."""
    inside = ["nsenter", "--user", "--preserve-credentials", "--target", str(pool.pid)]
    subprocess.run([*inside, "sh", "-c", f"echo {limit} > {LIMITS / name}"], check=True)


def send_now(estate: Estate) -> tuple[str, float]:
    """Send one job; its id, and when it was accepted."""
    job = estate.send()
    return job, time.monotonic()


def delay_of(estate: Estate, job: str, since: float) -> float:
    """How long after that moment a job started; fails when it did not at all."""
    until(estate.started(job), "the job's start", patience=20)
    return max(0.0, estate.runs()[job][0].start - since)


def delays_of(estate: Estate, count: int, dice: random.Random) -> list[float]:
    """Send one job after the other, each at its own moment of the poll; how long after its sending each started."""
    delays = []
    for _ in range(count):
        pause_until(time.monotonic() + dice.uniform(0, POLL))
        delays.append(delay_of(estate, *send_now(estate)))
    return delays


def pause_until(moment: float) -> None:
    """Let time pass: at which moment a job arrives is what these tests are about."""
    until(lambda: time.monotonic() >= moment, "the moment")


def judge(what: str, delays: list[float], most: float = MOST_DELAY) -> None:
    """Print how long jobs waited, and hold it to the goal."""
    print(f"T13: {what}: {len(delays)} jobs, 0 missed, longest start delay {max(delays):.3f} s")
    assert max(delays) <= most


def warnings(pool: Pool) -> list[str]:
    """What a pool has warned of, or worse."""
    said = [json.loads(line) for line in pool.log.splitlines() if line.startswith("{")]
    return [each["message"] for each in said if each["level"] in {"warning", "error"}]


# -- C38


@pytest.mark.needs("root", "linux", "namespaces")
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("limit", ["max_inotify_instances", "max_inotify_watches"])
@pytest.mark.parametrize("count", short_and_long(10, 300))
def test_without_inotify_jobs_start_within_the_poll_interval(
    tmp_path: Path, dice: random.Random, store: str, limit: str, count: int
) -> None:
    """T13 and C38: no instance or no watch is left. One warning names inotify."""
    with an_estate(tmp_path, store) as estate:
        pool = estate.start(before=with_limit(limit, 0))
        until(pool.is_working(), "the pool")
        delays = delays_of(estate, count, dice)
        (warning,) = warnings(pool)
        assert "inotify" in warning
        assert "polling" in warning
        assert pool.stop() == 0
    judge(f"{limit} = 0, {store}", delays)


@pytest.mark.needs("root", "linux", "namespaces")
@pytest.mark.parametrize("rounds", short_and_long(3, 50))
def test_watches_that_run_out_while_a_pool_runs_are_polled_for(
    tmp_path: Path, dice: random.Random, rounds: int
) -> None:
    """T13 and C38: new/ is replaced while no watch is left, which is said once; then there are some again."""
    with an_estate(tmp_path) as estate:
        pool = estate.start(before=with_limit("max_inotify_watches", 10))
        until(pool.is_working(), "the pool")
        process = pool.stream_pid()
        delays = []
        for number in range(1, rounds + 1):
            set_limit(pool, "max_inotify_watches", number % 2)  # none at all, or fewer than are needed
            replace(estate.root / "new")
            delays += delays_of(estate, 3, dice)
            assert endure(pool, 1) < MOST_CPU_POLLING
            assert len([warning for warning in warnings(pool) if "inotify" in warning]) == number
            set_limit(pool, "max_inotify_watches", 10)
            delays += delays_of(estate, 3, dice)
        assert pool.stream_pid() == process
        assert len(warnings(pool)) == rounds
        assert pool.stop() == 0
    judge("watches that run out meanwhile", delays)


def replace(folder: Path) -> None:
    """Put an empty folder where an empty one was."""
    old = folder.with_name(f"old-{time.monotonic_ns()}")
    folder.rename(old)
    folder.mkdir(0o700, exist_ok=True)  # the pool may have been faster
    old.rmdir()


# -- the folder is replaced


@pytest.mark.parametrize("rounds", short_and_long(10, 300))
def test_jobs_in_a_new_folder_start_at_once(tmp_path: Path, dice: random.Random, rounds: int) -> None:
    """T13: new/ is replaced, and the only event of the new one comes at some moment after that."""
    with an_estate(tmp_path) as estate:
        pool = estate.start()
        until(pool.is_working(), "the pool")
        delays = []
        for _ in range(rounds):
            replace(estate.root / "new")
            pause_until(time.monotonic() + dice.choice([0, dice.uniform(0, 0.01), dice.uniform(0, 0.3)]))
            delays.append(delay_of(estate, *send_now(estate)))
        assert pool.stop() == 0
    judge("new/ replaced", delays)


# -- the kernel's queue overflows


@pytest.mark.alone
@pytest.mark.needs("root", "linux")
@pytest.mark.parametrize("rounds", short_and_long(10, 300))
def test_an_overflow_hides_no_job(tmp_path: Path, dice: random.Random, rounds: int) -> None:
    """T13: a queue of 16 events. What arrives last while the stream process stands still is told by none of them.

    Nor is it found by the way: with so many jobs of another stream, new/ is not listed without a reason.
    """
    with an_estate(tmp_path) as estate:
        QueueKit(str(estate.root)).close()
        fill_folder(estate.root / "new", range(50_000), "another")
        with short_event_queue(16):
            pool = estate.start()
            until(pool.is_working(), "the pool")
        process = pool.stream_pid()
        delays = []
        for _ in range(rounds):
            os.kill(process, signal.SIGSTOP)
            estate.send_many(dice.randint(16, 200), ["another"])
            job = estate.send()
            os.kill(process, signal.SIGCONT)
            delays.append(delay_of(estate, job, time.monotonic()))
        assert pool.stop() == 0
    judge("overflows", delays)


@contextmanager
def short_event_queue(length: int) -> Iterator[None]:
    """Watchers that are made meanwhile keep no more events than that."""
    usual = QUEUED.read_text()
    QUEUED.write_text(str(length))
    try:
        yield
    finally:
        QUEUED.write_text(usual)


# -- C39


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("rounds", short_and_long(10, 300))
def test_a_job_that_arrives_while_the_pool_starts_is_not_overlooked(
    tmp_path: Path, dice: random.Random, store: str, rounds: int
) -> None:
    """T13 and C39: one job, and nothing else, at every moment of a start, from its beginning until it is long over."""
    with an_estate(tmp_path, store) as estate:
        estate.send()
        estate.run("--burst")
        begun = time.monotonic()
        usual = time_to_work(estate, begun, estate.start())
        judge(
            f"one job while the pool starts, {store}",
            [race(estate, 1.5 * usual * (number + dice.random()) / rounds) for number in range(rounds)],
        )


def time_to_work(estate: Estate, begun: float, pool: Pool) -> float:
    until(pool.is_working(), "the pool")
    took = time.monotonic() - begun
    assert pool.stop() == 0
    return took


def race(estate: Estate, after: float, before: Sequence[str] = ()) -> float:
    """Start a pool and send one job so much later; how long that waited once there was a worker to run it."""
    imported = len(estate.notes("imported"))
    begun = time.monotonic()
    pool = estate.start(before=before)
    pause_until(begun + after)
    job, sent = send_now(estate)
    until(estate.started(job), "the job's start", patience=20)
    ready = float(estate.notes("imported")[imported][1])
    assert pool.stop() == 0
    return delay_of(estate, job, max(sent, ready))


@pytest.mark.needs("linux", "strace")
@pytest.mark.parametrize("rounds", short_and_long(6, 100))
def test_a_job_that_arrives_while_the_watch_is_being_set_up_is_not_overlooked(
    tmp_path: Path, dice: random.Random, rounds: int
) -> None:
    """C39, with the moment before and the moment after the call made long: half a second each."""
    trace = tmp_path / "trace"
    # new/ and later/ are watched, and the pool may be said to work before either is
    inject = "inject=inotify_add_watch:delay_enter=500000:delay_exit=500000"
    slowly = ["strace", "-D", "-f", "-qq", "-o", str(trace), "-e", "trace=inotify_add_watch", "-e", inject]
    with an_estate(tmp_path) as estate:
        delays = []
        for _ in range(rounds):
            trace.write_text("")
            pool = estate.start(before=slowly)
            until(lambda: "inotify_add_watch" in trace.read_text(), "the call")
            pause_until(time.monotonic() + dice.uniform(0, 1))
            job, _ = send_now(estate)
            until(pool.is_working(), "the pool")
            delays.append(delay_of(estate, job, time.monotonic()))
            assert pool.stop() == 0
    judge("a slow inotify_add_watch", delays, MOST_DELAY + SLOW_CALLS)
