"""H5: a disk that is full. What the pool keeps in reserve is enough to write down what has ended, and to be steered."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, NoReturn

import pytest
from machine import MOST_CPU, check_untouched, endure, needs_linux, small_disk
from pool import Estate, Pool, lines_of, until

pytestmark = needs_linux
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
