"""T17: a root that cannot be written any more under a running pool. What was moved or removed: test_pool_machine.py."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from lengths import short_and_long
from machine import MOST_CPU, RECOVERY_SECONDS, check_untouched, endure, small_disk
from pool import Estate, Pool, lines_of, until

MOST_LINES = 20
seconds_long = pytest.mark.parametrize("seconds", short_and_long(5, 30, timeout=600))


@contextmanager
def bound_read_only(root: Path) -> Iterator[None]:
    """What is opened in this folder meanwhile is on a mount that cannot be written; what is open stays as it was."""
    subprocess.run(["mount", "--bind", str(root), str(root)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(root)], check=True)
        yield
    finally:
        umount = ["umount", str(root)]
        until(lambda: subprocess.run(umount, check=False, capture_output=True).returncode == 0, "the unmounting")


def work_under_way(estate: Estate) -> tuple[Pool, list[str], list[str], Path]:
    """A pool with two jobs that run, twenty that wait, and the gate that the two wait for."""
    gate = estate.folder / "gate"
    pool = estate.start()
    running = [estate.send(do="wait", file=str(gate)) for _ in range(2)]
    for job in running:
        until(estate.started(job), "the runs")
    return pool, running, estate.send_many(20), gate


def check_loud_and_calm(pool: Pool, seconds: float) -> float:
    """It is said within ten seconds, nothing spins, and the log does not fill up; returns when it was said."""
    begun = time.monotonic()
    until(lambda: list(lines_of(pool.log, "Read-only file system")), "a word", RECOVERY_SECONDS)
    said = time.monotonic() - begun
    assert endure(pool, seconds) < MOST_CPU
    assert len(list(lines_of(pool.log, "Read-only file system"))) < MOST_LINES
    assert "Traceback" not in pool.log
    return said


@pytest.mark.needs("root", "namespaces")
@seconds_long
def test_a_root_that_is_read_only_for_a_while_is_told_of_and_waited_for(
    make_estate: Callable[..., Estate], seconds: int
) -> None:
    """T17: a read-only bind mount; no attempt is burnt, nothing runs twice, and all goes on when it is gone."""
    estate = make_estate({"encode": {"workers": 2}})
    pool, running, pending, gate = work_under_way(estate)
    with bound_read_only(estate.root):
        gate.touch()
        said = check_loud_and_calm(pool, seconds)
    begun = time.monotonic()
    until(estate.finished(*running, *pending), "everything", RECOVERY_SECONDS)
    print(f"T17, bound read-only for {seconds} s: said after {said:.1f} s, done {time.monotonic() - begun:.1f} s after")
    assert pool.stop() == 0
    check_untouched(estate, [*running, *pending])


@pytest.mark.needs("loop")
@seconds_long
def test_a_file_system_that_has_given_up_is_told_of_and_the_pool_can_be_stopped(
    make_estate: Callable[..., Estate], seconds: int
) -> None:
    """T17: ext4 makes itself read-only after an error. Mounted again, it has every job, and the next pool runs them."""
    estate = make_estate({"encode": {"workers": 2}}, shutdown={"soft": "500ms", "hard": "1s"})
    with small_disk(estate.root):
        try:
            pool, running, pending, gate = work_under_way(estate)
            subprocess.run(["mount", "-o", "remount,abort", str(estate.root)], check=False, capture_output=True)
            gate.touch()
            said = check_loud_and_calm(pool, seconds)
            begun = time.monotonic()
            assert pool.stop(patience=1 + 2) == 5
            stopped = time.monotonic() - begun
            assert estate.processes() == []
        finally:
            estate.close()
        mount_again(estate.root)
        try:
            assert estate.check([*running, *pending]).total() == len([*running, *pending])
            assert estate.run("--burst").code == 0
            estate.check_settled([*running, *pending])
        finally:
            estate.close()
    runs = estate.runs()
    assert {len(runs[job]) for job in pending} == {1}
    assert {len(runs[job]) for job in running} == {2}
    print(f"T17, ext4 given up: said after {said:.1f} s, stopped within {stopped:.1f} s, 22 jobs kept")


def mount_again(folder: Path) -> None:
    """Unmount it, check it as a start of the system would, and mount it."""
    image = folder.with_name(f"{folder.name}.img")
    until(lambda: subprocess.run(["umount", str(folder)], check=False).returncode == 0, "the unmounting")
    assert subprocess.run(["fsck.ext4", "-fp", str(image)], check=False, capture_output=True).returncode <= 1
    subprocess.run(["mount", "-o", "loop", str(image), str(folder)], check=True)
