"""A store that cannot be written for a while: no attempt is burnt, nothing spins or runs twice, and it goes on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from lengths import short_and_long
from machine import MOST_CPU, check_untouched, endure
from pool import Estate, until

FOLDERS = (".", "tmp", "new", "cur", "done", "later", ".workerpool", ".workerpool/lease", ".workerpool/jobs")


@contextmanager
def read_only(root: Path) -> Iterator[None]:
    """No file of this root can be made, moved or removed meanwhile."""
    folders = [root / name for name in FOLDERS if (root / name).exists()]
    for folder in folders:
        folder.chmod(0o500)
    try:
        yield
    finally:
        for folder in folders:
            folder.chmod(0o700)


@pytest.mark.skipif(sys.platform != "linux", reason="CPU is read from /proc")
def test_while_the_store_is_read_only_results_are_kept_and_nothing_spins(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate({"encode": {"workers": 2}})
    gate = estate.folder / "gate"
    pool = estate.start()
    running = [estate.send(do="wait", file=str(gate)) for _ in range(2)]
    for job in running:
        until(estate.started(job), "the runs")
    pending = estate.send_many(20)
    with read_only(estate.root):
        gate.touch()
        until(lambda: "settling jobs" in pool.log, "the trouble")
        assert endure(pool, 3) < MOST_CPU
        assert {estate.status_of(job) for job in running} == {None}
        assert len(pool.log.splitlines()) < 20
    until(estate.finished(*running, *pending), "everything", patience=10)
    assert "works again" in pool.log
    assert "Traceback" not in pool.log
    assert pool.stop() == 0
    check_untouched(estate, [*running, *pending])


def test_a_store_that_cannot_be_written_at_the_start_is_refused(
    make_estate: Callable[..., Estate],
) -> None:
    """Refused with 3, before anything was started."""
    estate = make_estate()
    job = estate.send()
    with read_only(estate.root):
        pool = estate.run(patience=10)
        assert pool.code == 3
        assert "Traceback" not in pool.log
    assert estate.processes() == []
    assert estate.run("--burst").code == 0
    check_untouched(estate, [job])


def test_a_pool_can_be_stopped_while_its_store_is_read_only(make_estate: Callable[..., Estate]) -> None:
    """What cannot be settled by the hard deadline stays in flight and runs again: exit 5."""
    estate = make_estate(shutdown={"soft": "300ms", "hard": "600ms"})
    gate = estate.folder / "gate"
    pool = estate.start()
    job = estate.send(do="wait", file=str(gate))
    until(estate.started(job), "the run")
    with read_only(estate.root):
        gate.touch()
        until(lambda: "settling jobs" in pool.log, "the trouble")
        assert pool.stop(patience=5) == 5
    assert estate.processes() == []
    assert estate.check([job]) == {"cur": 1}
    assert estate.run("--burst").code == 0
    assert len(estate.runs()[job]) == 2
    estate.check_settled([job])


@pytest.mark.needs("linux", "root")
@pytest.mark.parametrize("seconds", short_and_long(3, 30, timeout=600))
def test_while_the_disk_is_full_results_are_kept_and_nothing_spins(
    make_estate: Callable[..., Estate], seconds: float
) -> None:
    """T7, on a small filesystem of its own."""
    estate = make_estate()
    estate.root.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m,mode=0700", "tmpfs", str(estate.root)]
    if subprocess.run(mount, check=False).returncode:
        pytest.skip("no filesystem can be mounted here")
    try:
        fill_and_free(estate, seconds)
    finally:
        estate.close()
        subprocess.run(["umount", str(estate.root)], check=True)


def fill(file: Path) -> None:
    """Write until there is no room left."""
    with file.open("wb", buffering=0) as ballast:
        while True:
            ballast.write(b"x" * 4096)


def fill_and_free(estate: Estate, seconds: float) -> None:
    """Fill it under way, free it again; everything ends as if nothing had been."""
    gate = estate.folder / "gate"
    pool = estate.start()
    running = estate.send(do="wait", file=str(gate))
    until(estate.started(running), "the run")
    pending = estate.send_many(50)
    ballast = estate.root / "ballast"
    with pytest.raises(OSError, match="No space left"):
        fill(ballast)
    gate.touch()
    until(lambda: "settling jobs" in pool.log, "the trouble")
    assert endure(pool, seconds) < MOST_CPU
    ballast.unlink()
    until(estate.finished(running, *pending), "everything", patience=10)
    assert pool.stop() == 0
    check_untouched(estate, [running, *pending])
