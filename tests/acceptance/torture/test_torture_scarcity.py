"""T9: one stream has no descriptors, no processes or no memory left; it recovers by itself, and others go on."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from lengths import short_and_long
from machine import RECOVERY_SECONDS, memory_cgroup, move_into, no_more_descriptors, no_more_processes
from pool import Estate, Pool, until

from queuekit import HLC
from queuekit.testing.jobs import make_job

LEAST_SHARE = 0.8
JOB_SECONDS = 0.02
LIMIT_MIB = 200
STREAMS = {"encode": {"handler": "acting_cases:act", "workers": 2}, "other": {}}

Trouble = Callable[[Estate, Pool], AbstractContextManager[list[str]]]
"""A time of trouble for stream `encode`; the ids of the jobs that it has sent and that must end blocked."""


@contextmanager
def no_descriptors(estate: Estate, pool: Pool) -> Iterator[list[str]]:
    """The stream process can open nothing, and one of its workers dies."""
    with no_more_descriptors(pool.stream_pid()):
        estate.kill(pool.worker_pid())
        yield []


@contextmanager
def no_descriptors_in_the_master(estate: Estate, pool: Pool) -> Iterator[list[str]]:
    """The master can open nothing, and the stream process dies."""
    with no_more_descriptors(pool.pid):
        estate.kill(pool.stream_pid())
        yield []


@contextmanager
def no_processes(estate: Estate, pool: Pool) -> Iterator[list[str]]:
    """Nothing in the pool can fork, and the stream process dies."""
    with no_more_processes(pool.tree()):
        estate.kill(pool.stream_pid())
        yield []


@contextmanager
def no_memory(estate: Estate, pool: Pool) -> Iterator[list[str]]:
    """Handlers take more than the pool may have, and the kernel kills them for it."""
    payload = json.dumps({"do": "take memory", "mib": 2 * LIMIT_MIB}).encode()
    greedy = [make_job(payload=payload, at=HLC(number, 0, 1)) for number in range(1, 6)]  # the oldest: they go first
    begun = time.monotonic()
    estate.queue.send_batch(greedy)
    yield [str(job.id) for job in greedy]
    estate.kills.append((begun, time.monotonic()))


def rate(estate: Estate, jobs: set[str], begin: float, end: float) -> float:
    """How many of these jobs have ended per second between two moments."""
    ends = [float(at) for _, at, job, *_ in estate.notes("end") if job in jobs]
    return sum(begin <= at < end for at in ends) / (end - begin)


def first_start(estate: Estate, jobs: set[str], after: float) -> float | None:
    """When the first of these jobs was started after a moment; None when none was yet."""
    starts = (float(at) for _, at, job, *_ in estate.notes("start") if job in jobs)
    return min((at for at in starts if at > after), default=None)


def pass_time(seconds: float) -> tuple[float, float]:
    """Let so many seconds pass; when they began and ended."""
    begun = time.monotonic()
    until(lambda: time.monotonic() > begun + seconds, "the window", patience=seconds + 5)
    return begun, time.monotonic()


@pytest.mark.needs("root", "linux")
@pytest.mark.parametrize(
    "trouble", [no_descriptors, no_descriptors_in_the_master, no_processes, no_memory], ids=lambda each: each.__name__
)
@pytest.mark.parametrize("seconds", short_and_long(4, 60))
def test_what_one_stream_lacks_does_not_slow_another(
    make_estate: Callable[..., Estate], trouble: Trouble, seconds: float
) -> None:
    """T9: works again <= 10 s after the release, burns no attempt; the other stream keeps 80 % of its rate."""
    with memory_cgroup(f"workerpool-scarcity-{os.getpid()}", LIMIT_MIB * 2**20) as group:
        estate = make_estate(STREAMS)
        try:
            pool = estate.start()
            until(pool.is_working("encode", "other"), "the pool")
            move_into(group, pool)
            endure(estate, pool, trouble, seconds)
        finally:
            estate.close()


def endure(estate: Estate, pool: Pool, trouble: Trouble, seconds: float) -> None:
    """Two streams with enough to do; one of them in trouble, and released."""
    enough = int((2 * seconds + RECOVERY_SECONDS) / JOB_SECONDS)
    others = set(estate.send_many(enough, ["other"], do="sleep", seconds=JOB_SECONDS))
    ours = set(estate.send_many(2 * enough, ["encode"], do="sleep", seconds=JOB_SECONDS))
    until(lambda: first_start(estate, ours, 0) and first_start(estate, others, 0), "both streams")
    before = pass_time(seconds)
    with trouble(estate, pool) as doomed:
        during = pass_time(seconds)
    released = time.monotonic()
    recovery = until(lambda: first_start(estate, ours, released), "a run", patience=RECOVERY_SECONDS) - released
    until(estate.finished(*doomed), "the greedy")
    usual, then = rate(estate, others, *before), rate(estate, others, *during)
    assert pool.stop() == 0
    estate.check([*ours, *others, *doomed])
    ended = {job: estate.status_of(job) for job in [*ours, *others, *doomed]}
    assert {job for job, status in ended.items() if status == "blocked"} == set(doomed)
    repeats = estate.check_repeats()
    print(
        f"T9: {recovery:.2f} s after the release a run began; the other stream kept {100 * then / usual:.0f} % of"
        f" {usual:.0f} jobs/s; {repeats} runs were repeated, all of them were in flight at a kill"
    )
    assert then >= LEAST_SHARE * usual
