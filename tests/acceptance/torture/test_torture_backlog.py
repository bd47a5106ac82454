"""T18 and C43: a backlog of a million jobs is worked as a small one is."""

from __future__ import annotations

import dataclasses
import itertools
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from backlog import fill_folder, fill_table, job_of, own_disk
from databases import DatabaseEstate
from lengths import short_and_long
from pool import PATIENCE, Estate, until

from queuekit import QueueKit

SMALL = 1000
SMALL_RUNS = 3
FIRST_SECONDS, GAP_SECONDS, LEAST_SHARE, MORE_MIB = 2.0, 2.0, 0.5, 100
DEFAULTS = {"watch": {"scan": "30s"}, "lease": {"ttl": "15s"}, "telemetry": {"hooks": ["log"]}}
"""The product's own, not those that make other tests short."""
STREAMS = {"encode": {"handler": "acting:act_fast"}}


@dataclasses.dataclass(frozen=True)
class Figures:
    """How a pool works a backlog: seconds to its first job, jobs per second, longest gap in seconds, MiB by process."""

    first: float
    rate: float
    gap: float
    memory: list[float]

    def __str__(self) -> str:
        memory = "/".join(f"{each:.0f}" for each in self.memory)
        return f"first job {self.first:.2f} s, {self.rate:.0f} jobs/s, gap {self.gap:.2f} s, {memory} MiB"


def work(estate: Estate, last: int, seconds: float) -> Figures:
    """Start a pool on an estate with a backlog: until its last job has run, or for so many seconds."""
    estate.history.write_text("")
    begun = time.monotonic()
    pool = estate.start()
    until(lambda: estate.history.stat().st_size, "the first job")
    end = time.monotonic() + seconds
    until(lambda: time.monotonic() > end or _has_ended(estate, last), "the time", seconds + PATIENCE)
    memory = [_most_memory(pid) for pid in pool.tree()]
    assert pool.stop() == 0
    starts = [float(line[1]) for line in estate.notes("start")]
    assert len({line[2] for line in estate.notes("start")}) == len(starts), "a job ran twice"
    gap = max(later - earlier for earlier, later in itertools.pairwise(starts))
    return Figures(starts[0] - begun, (len(starts) - 1) / (starts[-1] - starts[0]), gap, memory)


def _has_ended(estate: Estate, number: int) -> bool:
    """Whether this job's end is the last thing in the history, which is too long to be read again and again."""
    with estate.history.open("rb") as history:
        history.seek(-min(200, history.seek(0, os.SEEK_END)), os.SEEK_CUR)
        lines = history.read().splitlines()
    return lines[-1].startswith(b"end") and job_of(number, "encode").id.encode() in lines[-1]


def _most_memory(pid: int) -> float:
    """The most that a process has had resident, in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no such line")


def usual(runs: list[Figures]) -> Figures:
    """The usual one of some: its rate is what the large backlog's is compared with, its memory what it is added to."""
    return Figures(
        statistics.median(run.first for run in runs),
        statistics.median(run.rate for run in runs),
        max(run.gap for run in runs),
        [max(column) for column in zip(*(run.memory for run in runs), strict=True)],
    )


def compare(
    what: str, make: Callable[[str], Estate], fill: Callable[[Estate, range], None], count: int, seconds: float
) -> None:
    """Let pools work some small backlogs, and one of `count`; print the figures, and hold them to the goals."""
    with make("small") as estate:
        runs = []
        for number in range(SMALL_RUNS):
            numbers = range(number * SMALL, (number + 1) * SMALL)
            fill(estate, numbers)
            runs.append(work(estate, numbers[-1], PATIENCE))
    small = usual(runs)
    with make("large") as estate:
        fill(estate, range(count))
        large = work(estate, count - 1, seconds)
    share = large.rate / small.rate
    print(f"T18: {count} jobs in {what}: {large}; {SMALL} jobs: {small}; the rate is {100 * share:.0f} %")
    assert large.first <= max(FIRST_SECONDS, 2 * small.first)  # a busy machine starts nothing in 2 s
    assert share >= LEAST_SHARE
    assert large.gap <= GAP_SECONDS
    assert all(more <= base + MORE_MIB for more, base in zip(large.memory, small.memory, strict=True))


@pytest.mark.needs("root", "loop", "linux")
@pytest.mark.parametrize("filesystem", ["ext4", "tmpfs"])
@pytest.mark.parametrize(("count", "seconds"), short_and_long((50_000, 10), (1_000_000, 60), timeout=1800))
def test_a_folder_with_a_million_jobs_is_worked_like_one_with_a_thousand(
    tmp_path: Path, filesystem: str, count: int, seconds: float
) -> None:
    """T18 and C43, a folder: on a disk, and where a disk has no part in it."""
    disk = tmp_path / "disk"

    def make(name: str) -> Estate:
        (disk / name).mkdir()
        estate = Estate(disk / name, STREAMS, **DEFAULTS)
        QueueKit(str(estate.root)).close()
        return estate

    def fill(estate: Estate, numbers: range) -> None:
        fill_folder(estate.root / "new", numbers)
        subprocess.run(["sync", "-f", str(disk)], check=True)  # else the pool's first sync writes all of it

    with own_disk(disk, max(2**30, 6000 * count), filesystem):
        compare(f"a folder on {filesystem}", make, fill, count, seconds)


@pytest.mark.parametrize(("count", "seconds"), short_and_long((50_000, 10), (1_000_000, 60), timeout=1800))
def test_a_database_with_a_million_jobs_is_worked_like_one_with_a_thousand(
    tmp_path: Path, count: int, seconds: float
) -> None:
    """T18, SQLite."""

    def make(name: str) -> Estate:
        (tmp_path / name).mkdir()
        estate = DatabaseEstate(tmp_path / name, f"sqlite:{file_of(name)}", STREAMS, **DEFAULTS)
        QueueKit.open(estate.url).close()
        return estate

    def file_of(name: str) -> Path:
        return tmp_path / name / "jobs.db"

    def fill(estate: Estate, numbers: range) -> None:
        fill_table(file_of(estate.folder.name), numbers)

    compare("SQLite", make, fill, count, seconds)
