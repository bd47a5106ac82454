"""A disk that takes longer for one call than a lease lives, with a second pool that waits: T16."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from lengths import short_and_long
from machine import RENAMES, SYNCS, slowed, small_disk
from pool import Estate, Pool, suppressed_end, until
from watching import EndWitness, LeaseWitness, pid_of

from queuekit.backends.maildir.fsck import Severity, examine

STREAM = "encode"
JOBS = 3
SLOW = {"syncs": SYNCS, "renames": RENAMES, "syncs and renames": f"{SYNCS},{RENAMES}"}


@contextmanager
def throttled(pids: list[int], folder: Path, bytes_per_second: int) -> Iterator[None]:
    """These processes write no faster to the disk that this folder is on, meanwhile."""
    base = Path("/sys/fs/cgroup/blkio")
    if not (base / "blkio.throttle.write_bps_device").exists():
        pytest.skip("there is no blkio cgroup here")
    device = os.stat(folder).st_dev
    group = base / f"workerpool-test-{os.getpid()}"
    group.mkdir()
    try:
        limit = f"{os.major(device)}:{os.minor(device)} {bytes_per_second}"
        (group / "blkio.throttle.write_bps_device").write_text(limit)
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            with suppressed_end():
                (base / "cgroup.procs").write_text(pid)
        until(lambda: not (group / "cgroup.procs").read_text(), "the end of the cgroup")
        group.rmdir()


class TwoPools:
    """One that holds the stream, and one that stands by, under the eyes of two witnesses."""

    def __init__(self, estate: Estate) -> None:
        self.estate = estate
        self.ends, self.leases = EndWitness(estate.queue), LeaseWitness(estate.root, (STREAM,))
        first = estate.start()
        until(first.is_working(STREAM), "the holder")
        self.pools = (first, estate.start())
        until(lambda: self._lease(self.pools[1]) == "standby", "the one that stands by")

    @staticmethod
    def _lease(pool: Pool) -> str:
        row = pool.row(STREAM)
        return "" if row is None else row.lease

    def watch_until(self, fact: Callable[[], bool], what: str, patience: float) -> None:
        """Look on until something is so."""
        until(lambda: fact() or self._look(), what, patience)

    def _look(self) -> None:
        self.ends.look()
        self.leases.look()

    def work_slowly(self, calls: str, seconds: float) -> list[str]:
        """Some jobs, while the holder's disk is slow; their ids."""
        self.watch_until(lambda: self.leases.holder(STREAM) is not None, "a holder", 30)
        slow = pid_of(self.leases.holder(STREAM) or "")
        before = len(self.leases.take_overs)
        with slowed(slow, calls, seconds):
            sent = self.estate.send_many(JOBS, (STREAM,), do="sleep", seconds=0.05)
            self.watch_until(lambda: self.ends.ended >= {*sent}, "the end of all jobs", 30 * seconds)
        if len(self.leases.take_overs) > before:
            self.watch_until(lambda: self._stands_by(slow), "the slow one's standing by", 30 * seconds)
        return sent

    def work_throttled(self, jobs: int, bytes_per_second: int) -> list[str]:
        """Many jobs, while the holder's pool may write so much and no more; their ids."""
        with throttled(self.pools[0].tree(), self.estate.root, bytes_per_second):
            sent = self.estate.send_many(jobs, (STREAM,))
            self.watch_until(lambda: self.ends.ended >= {*sent}, "the end of all jobs", 300)
        return sent

    def check(self, sent: list[str], ttl: float) -> None:
        """Every job has one end, and nobody was displaced who had renewed its lease."""
        assert [pool.stop(patience=60) for pool in self.pools] == [0, 0]
        self.ends.look()
        self.ends.close()
        assert self.ends.doubled == []
        assert self.leases.unjust(ttl) == []
        assert {self.estate.status_of(job) for job in sent} == {"done"}
        assert self.estate.check(sent) == {"done": len(sent)}
        assert [each for each in examine(self.estate.root) if each.severity is not Severity.NOTE] == []

    def _stands_by(self, pid: int) -> bool:
        """Whether the stream's process of this pid knows that the stream is not its any more."""
        rows = (pool.row(STREAM) for pool in self.pools)
        return any(row is not None and row.pid == pid and row.lease == "standby" for row in rows)


@pytest.mark.needs("strace")
@pytest.mark.parametrize("slow", SLOW)
@pytest.mark.parametrize(("ttl", "seconds", "rounds"), short_and_long((2.0, 2.5, 1), (5.0, 6.0, 6), timeout=3600))
def test_a_disk_slower_than_the_ttl_ends_no_job_twice(
    make_estate: Callable[..., Estate], slow: str, ttl: float, seconds: float, rounds: int
) -> None:
    """T16: no take-over, or the holder stops by itself; never two replies for one job."""
    estate = make_estate({STREAM: {"retries": 100, "max_crashes": 100}}, lease={"ttl": f"{ttl:g}s"})
    two = TwoPools(estate)
    sent = [job for _ in range(rounds) for job in two.work_slowly(SLOW[slow], seconds)]
    two.check(sent, ttl)
    runs = sum(len(runs) for runs in estate.runs().values())
    print(
        f"T16, {slow} {seconds:g} s late, ttl {ttl:g} s: {len(sent)} jobs, {runs} runs, {len(two.leases.take_overs)}"
        f" take-overs, each of them noticed by the slow one; 0 double replies"
    )


@pytest.mark.needs("linux", "root", "loop")
@pytest.mark.parametrize("jobs", short_and_long(300, 1500, timeout=1200))
def test_a_disk_that_takes_64_kilobytes_a_second_ends_no_job_twice(
    make_estate: Callable[..., Estate], tmp_path: Path, jobs: int
) -> None:
    """T16: the holder's pool is throttled, the one that stands by is not."""
    ttl = 1.0
    with small_disk(tmp_path / "spool"):
        estate = make_estate({STREAM: {"handler": "acting:act_fast"}}, lease={"ttl": f"{ttl:g}s"})
        two = TwoPools(estate)
        begun = time.monotonic()
        sent = two.work_throttled(jobs, 64 * 1024)
        took = time.monotonic() - begun
        two.check(sent, ttl)
        runs = sum(len(runs) for runs in estate.runs().values())
        estate.close()
    take_overs = len(two.leases.take_overs)
    print(f"T16, 64 KB/s: {jobs} jobs in {took:.1f} s, {runs} runs, {take_overs} take-overs; 0 double replies")
