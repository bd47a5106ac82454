"""Memory: a limit that is too small (C81), and the memory killer (C30)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest
from machine import memory_cgroup, move_into
from pool import Estate, until

LIMIT_MIB = 200


# -- C81


def leak(estate: Estate, limit: str, count: int) -> float:
    """Run `count` jobs that each keep memory; returns how long the runs took, from the first start to the last end."""
    (estate.folder / "leaking.py").write_text(
        "import acting\nKEPT = []\n"
        "def leak(job, ctx):\n"
        "    acting.note('start', job.id, ctx.attempt)\n"
        "    KEPT.append(bytearray(b'x') * 300_000)\n"
        "    acting.note('end', job.id, ctx.attempt)\n"
    )
    estate.configure({"encode": {"handler": "leaking:leak", "max_memory": limit}})
    sent = estate.send_many(count)
    pool = estate.run("--burst", patience=120)
    assert pool.code == 0
    assert {len(runs) for job, runs in estate.runs().items() if job in sent} == {1}
    mine = [run for job, (run,) in estate.runs().items() if job in sent]
    return max(run.end or 0.0 for run in mine) - min(run.start for run in mine)


def test_a_memory_limit_below_what_any_job_needs_is_said_once_and_costs_no_storm(
    make_estate: Callable[..., Estate],
) -> None:
    """C81: a worker is replaced, but never after each job; none lives for less than a second."""
    estate = make_estate()
    seconds = leak(estate, "1MB", 200)
    workers = {run.pid for runs in estate.runs().values() for run in runs}
    print(f"{len(workers)} workers in {seconds:.1f} s")
    assert len(workers) <= seconds + 2
    assert estate.pools[0].log.count("max_memory") <= 1
    estate.check_settled(list(estate.runs()))


@pytest.mark.torture
def test_a_memory_limit_that_is_too_small_does_not_halve_the_throughput(make_estate: Callable[..., Estate]) -> None:
    """C81."""
    estate = make_estate()
    unlimited, limited = leak(estate, "0", 2000), leak(estate, "1MB", 2000)
    print(f"2,000 jobs: {unlimited:.2f} s without a limit, {limited:.2f} s with one of 1 MB")
    assert limited <= 2 * unlimited + 1


# -- C30


@pytest.mark.needs("linux", "root")
def test_the_memory_killer_takes_one_worker_and_one_attempt_of_its_job(make_estate: Callable[..., Estate]) -> None:
    """C30: the other streams and the job's own stream go on, and the pool does not end with 0 as if all were well."""
    with memory_cgroup(f"workerpool-test-{os.getpid()}", LIMIT_MIB * 2**20) as group:
        estate = make_estate({"encode": {"handler": "acting_cases:act", "max_crashes": 2}, "dreaming": {}})
        pool = estate.start()
        until(pool.is_working("encode", "dreaming"), "the pool")
        move_into(group, pool)
        processes = {pool.pid, pool.stream_pid("encode"), pool.stream_pid("dreaming"), pool.worker_pid("dreaming")}
        greedy = estate.send(do="take memory", mib=2 * LIMIT_MIB)
        others = estate.send_many(20, ("encode", "dreaming"), do="sleep", seconds=0.02)
        until(estate.finished(greedy, *others), "all jobs")
        assert {estate.status_of(job) for job in others} == {"done"}
        assert {len(estate.runs()[job]) for job in others} == {1}
        assert (estate.status_of(greedy), len(estate.runs()[greedy]), estate.notes("took")) == ("blocked", 2, [])
        dossier = estate.dossier(greedy)
        assert (dossier["cause"], dossier["crashes"]) == ("crashed too often", 2)
        assert "was killed by SIGKILL" in dossier["error"]
        assert processes <= set(pool.tree())
        begun = time.monotonic()
        assert pool.stop() == 0
        assert time.monotonic() - begun < 10
        estate.check_settled([greedy, *others])
