"""A pool with nothing to do does nothing, and starts at once when there is something."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pool import Estate, cpu_ticks, until, wakeups

STREAMS = ("encode", "dreaming")
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the counters are those of /proc")


def watch_idleness(estate: Estate, seconds: float) -> None:
    """Over a window with nothing to do, each process uses no more CPU and wakes no more often than heartbeats do.

    A heartbeat comes every five seconds, takes about a millisecond, and may wait for the disk.
    """
    pool = estate.start()
    until(pool.is_working(*STREAMS), "the pool")
    warm = [estate.send(stream) for stream in STREAMS]
    until(estate.finished(*warm), "a first job of each stream")
    begun = [-1]
    until(lambda: settled(pool.tree(), begun), "rest after the first jobs")
    pids = pool.tree()
    before = {pid: (cpu_ms(pid), wakeups(pid)) for pid in pids}
    end = time.monotonic() + seconds
    until(lambda: time.monotonic() > end, "the window", patience=seconds + 5)
    spent = {pid: (round(cpu_ms(pid) - ms, 1), wakeups(pid) - woken) for pid, (ms, woken) in before.items()}
    print(f"in {seconds:g} s, (ms of CPU, wakeups) per process: {spent}")
    assert len(pids) == 1 + 2 * len(STREAMS)
    heartbeats = 1 + seconds / 5
    assert max(ms for ms, _ in spent.values()) <= 3 * heartbeats
    assert max(woken for _, woken in spent.values()) <= 3 * heartbeats
    assert sorted(spent.values())[: len(pids) - len(STREAMS)] == [(0, 0)] * (1 + len(STREAMS))
    assert sorted(pool.tree()) == sorted(pids)
    delays = [start_delay(estate) for _ in range(20)]
    print(f"a job starts {min(delays) * 1000:.1f} to {max(delays) * 1000:.1f} ms after its sending has begun")
    assert sorted(delays)[len(delays) // 2] < 0.1
    assert pool.stop() == 0


def cpu_ms(pid: int) -> float:
    """Milliseconds of CPU that a process has used, to the microsecond: ticks are charged whole to whom they meet."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6


def settled(pids: list[int], last: list[int]) -> bool:
    """Whether no process was woken between two looks."""
    now = sum(wakeups(pid) for pid in pids)
    same, last[0] = now == last[0], now
    return same


def start_delay(estate: Estate) -> float:
    """Seconds from the call of `send` until the handler runs."""
    sent = time.monotonic()
    job_id = estate.send()
    until(estate.finished(job_id), "the job")
    return estate.runs()[job_id][0].start - sent


@ON_LINUX
def test_an_idle_pool_uses_no_cpu_and_starts_a_job_at_once(make_estate: Callable[..., Estate]) -> None:
    watch_idleness(make_estate({name: {} for name in STREAMS}, lease={"ttl": "15s"}, watch={"scan": "30s"}), 8)


@ON_LINUX
@pytest.mark.torture
def test_an_idle_pool_uses_no_cpu_over_a_minute(make_estate: Callable[..., Estate]) -> None:
    watch_idleness(make_estate({name: {} for name in STREAMS}, lease={"ttl": "15s"}, watch={"scan": "30s"}), 60)


@ON_LINUX
def test_another_streams_jobs_do_not_keep_a_pool_awake(make_estate: Callable[..., Estate]) -> None:
    """A backlog of a stream that nobody works costs the pool nothing."""
    estate = make_estate()
    estate.send_many(200, ("elsewhere",))
    pool = estate.start()
    until(pool.is_working(), "the pool")
    job = estate.send()
    until(estate.finished(job), "a job")
    stream = pool.stream_pid()
    ticks, end = cpu_ticks(stream), time.monotonic() + 2
    until(lambda: time.monotonic() > end, "the window")
    assert cpu_ticks(stream) - ticks <= 0.05 * 2 * os.sysconf("SC_CLK_TCK")
    assert json.dumps(estate.count("new")) == "200"
    assert pool.stop() == 0
