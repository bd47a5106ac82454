"""H5: a disk that is full. What the pool keeps in reserve is enough to write down what has ended, and to be steered."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, NoReturn

import pytest
from lengths import short_and_long
from machine import MOST_CPU, check_untouched, endure, small_disk, used_up
from pool import Estate, Pool, lines_of, until

pytestmark = pytest.mark.needs("linux", "root", "loop")
MEBIBYTE = 2**20
COMMAND = str(Path(sys.executable).with_name("workerpool"))


def reserve_of(estate: Estate) -> Path:
    return estate.root / ".workerpool" / "reserve"


def fill(file: Path) -> None:
    """Write until there is no room left, not for a single block."""
    with file.open("wb", buffering=0) as ballast, pytest.raises(OSError, match="No space left"):
        write_on(ballast)


def write_on(file: IO[bytes]) -> NoReturn:
    while True:
        file.write(b"x" * 1024)


def is_made(estate: Estate) -> Callable[[], bool]:
    """A fact to wait for: the reserve is there and takes up its room."""
    file = reserve_of(estate)
    return lambda: file.exists() and file.stat().st_blocks * 512 >= MEBIBYTE


def command(estate: Estate, name: str) -> subprocess.CompletedProcess[str]:
    """A command of the same configuration, to its end."""
    return subprocess.run(
        [COMMAND, name, str(estate.config)], capture_output=True, text=True, timeout=30, check=False, cwd=estate.folder
    )


def fill_under_way(estate: Estate) -> tuple[Pool, list[str], list[str], Path]:
    """A pool with two jobs that run while the disk becomes full, and twenty that wait."""
    gate = estate.folder / "gate"
    pool = estate.start()
    until(pool.is_working(), "the pool")
    assert is_made(estate)()
    running = [estate.send(do="wait", file=str(gate)) for _ in range(2)]
    for job in running:
        until(estate.started(job), "the runs")
    pending = estate.send_many(20)
    ballast = estate.root / "ballast"
    fill(ballast)
    gate.touch()
    return pool, running, pending, ballast


@pytest.fixture
def estate(make_estate: Callable[..., Estate]) -> Estate:
    return make_estate({"encode": {"workers": 2}})


def test_what_has_ended_is_written_from_the_reserve_and_the_pool_can_be_steered(estate: Estate) -> None:
    with small_disk(estate.root):
        try:
            pool, running, pending, ballast = fill_under_way(estate)
            until(estate.finished(*running), "the replies")
            assert not reserve_of(estate).exists()
            assert len(list(lines_of(pool.log, "the reserve was given up"))) == 1
            assert endure(pool, 3) < MOST_CPU
            assert "the disk is full" in command(estate, "status").stdout
            assert estate.count("new") == len(pending)
            assert command(estate, "stop").returncode == 0
            assert pool.wait() == 0
            assert estate.count("new") == len(pending)
            ballast.unlink()
            assert estate.run("--burst").code == 0
            check_untouched(estate, [*running, *pending])
            assert command(estate, "fsck").stdout.endswith(": nothing found\n")
        finally:
            estate.close()


def test_when_there_is_room_again_the_reserve_is_made_again_and_work_goes_on(estate: Estate) -> None:
    with small_disk(estate.root):
        try:
            pool, running, pending, ballast = fill_under_way(estate)
            until(estate.finished(*running), "the replies")
            ballast.unlink()
            until(estate.finished(*pending), "everything", patience=10)
            until(is_made(estate), "a new reserve")
            assert len(list(lines_of(pool.log, "there is room on the disk again"))) == 1
            assert pool.stop() == 0
            check_untouched(estate, [*running, *pending])
        finally:
            estate.close()


def test_a_disk_without_room_for_a_reserve_is_worked_all_the_same(make_estate: Callable[..., Estate]) -> None:
    """It is said once, and the reserve is made as soon as there is room."""
    estate = make_estate({name: {} for name in ("encode", "dreaming")})
    with small_disk(estate.root):
        try:
            jobs = estate.send_many(20, ("encode", "dreaming"))
            ballast = estate.root / "ballast"
            fill(ballast)
            with ballast.open("r+b") as file:
                file.truncate(ballast.stat().st_size - MEBIBYTE * 3 // 2)
            pool = estate.start()
            until(estate.finished(*jobs), "the jobs")
            assert not reserve_of(estate).exists()
            assert len(list(lines_of(pool.log, "no room is kept"))) == 1
            ballast.unlink()
            until(is_made(estate), "the reserve")
            assert pool.stop() == 0
            check_untouched(estate, jobs)
        finally:
            estate.close()


def test_a_pool_starts_on_a_full_disk_by_the_reserve_of_the_last_one(estate: Estate) -> None:
    with small_disk(estate.root):
        try:
            jobs = estate.send_many(5)
            assert estate.run("--burst").code == 0
            pending = estate.send_many(5)
            assert is_made(estate)()
            ballast = estate.root / "ballast"
            fill(ballast)
            pool = estate.start()
            until(lambda: pool.row() is not None and pool.row().lease == "held", "the lease")
            assert "encode" in command(estate, "status").stdout
            ballast.unlink()
            until(estate.finished(*pending), "everything", patience=10)
            assert pool.stop() == 0
            check_untouched(estate, [*jobs, *pending])
        finally:
            estate.close()


# -- T7


@contextmanager
def full_of_bytes(root: Path) -> Iterator[None]:
    """No block is free, but those that the pool keeps for itself."""
    ballast = root / "ballast"
    fill(ballast)
    yield
    ballast.unlink()


@contextmanager
def full_of_files(root: Path) -> Iterator[None]:
    """No inode is free, but those that the pool gives back."""
    with used_up(Path.touch, root / "ballast"):
        yield


@contextmanager
def kept_full(root: Path) -> Iterator[None]:
    """Whatever becomes free is taken at once, what the pool has kept for itself, too: as a log gone wild does."""
    ballast = root / "ballast"
    is_over = threading.Event()
    eater = threading.Thread(target=eat, args=(ballast, is_over), daemon=True)
    eater.start()
    try:
        until(lambda: os.statvfs(root).f_bavail == 0, "the full disk")
        yield
    finally:
        is_over.set()
        eater.join()
        ballast.unlink()


def eat(file: Path, is_over: threading.Event) -> None:
    with file.open("wb", buffering=0) as ballast:
        while not is_over.is_set():
            try:
                ballast.write(b"x" * 1024)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                is_over.wait(0.01)


@pytest.mark.parametrize("full", [full_of_bytes, full_of_files, kept_full])
@pytest.mark.parametrize("seconds", short_and_long(3, 30, timeout=600))
def test_a_disk_that_fills_up_under_load_fails_no_job_and_repeats_none(
    estate: Estate, full: Callable[[Path], AbstractContextManager[None]], seconds: float
) -> None:
    """T7: filled up in the middle of a load, freed after a while: every job ends well, in its first and only run."""
    with small_disk(estate.root, "-N", "2048"):
        try:
            jobs = estate.send_many(500, do="sleep", seconds=0.01)
            pool = estate.start()
            until(lambda: len(estate.runs()) >= 50, "some runs")
            with full(estate.root):
                until(lambda: has_stopped(estate, pool), "the trouble")
                assert endure(pool, seconds) < MOST_CPU
                left = len(jobs) - sum(1 for each in jobs if estate.status_of(each))
                assert left
            begun = time.monotonic()
            until(estate.finished(*jobs), "everything", patience=60)
            recovery = time.monotonic() - begun
            assert pool.stop() == 0
            assert {estate.status_of(each) for each in jobs} == {"done"}
            assert "Traceback" not in pool.log
            check_untouched(estate, jobs)
        finally:
            estate.close()
    print(
        f"T7, {full.__name__}: full for {seconds:g} s with {left} of {len(jobs)} jobs to go, 0 failed, 0 ran twice, "
        f"all done {recovery:.1f} s after there was room"
    )


def has_stopped(estate: Estate, pool: Pool) -> bool:
    """Whether the pool claims no more, and what runs has ended."""
    said = "the reserve was given up" in pool.log or "No space left" in pool.log
    runs = [run for each in estate.runs().values() for run in each]
    return said and all(run.end for run in runs)
