"""Alive files that the dead have left: removed when they tell nothing any more, and never under a living one."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from queuekit import locks
from queuekit.backends.sql.backend import PersistenceKitBackend
from queuekit.backends.sql.leases import SqlLease
from queuekit.locks import AliveFile, Life, life_of, remove_dead, sweep_dead

LONG = 600.0
HOUR = 3600.0


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let so many seconds pass."""
    real, passed = time.monotonic_ns, [0]
    monkeypatch.setattr(time, "monotonic_ns", lambda: real() + passed[0])

    def let_pass(seconds: float) -> None:
        passed[0] += int(seconds * 1e9)

    return let_pass


def killed_holder(hold: Callable[[], Any]) -> None:
    """Hold something in a process that is killed with it."""
    pid = os.fork()
    if pid == 0:
        try:
            hold()
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def dead_file(folder: Path, name: str = "dead") -> Path:
    path = folder / f"{name}.alive"
    killed_holder(AliveFile(str(path)).hold)
    return path


# -- one folder


def test_a_dead_ones_file_stays_for_an_hour_after_it_was_first_found(
    tmp_path: Path, later: Callable[[float], None]
) -> None:
    """Till then it may be what a successor knows of the death."""
    path = dead_file(tmp_path)
    later(2 * HOUR)
    for passing in (0.0, HOUR - 1):
        later(passing)
        sweep_dead(str(tmp_path))
        assert life_of(str(path)) is Life.DEAD
    later(2)
    sweep_dead(str(tmp_path))
    assert not path.exists()


def test_a_living_ones_file_stays(tmp_path: Path, later: Callable[[float], None]) -> None:
    alive = AliveFile(str(tmp_path / "living.alive"))
    alive.hold()
    for _ in range(3):
        sweep_dead(str(tmp_path))
        later(HOUR + 1)
    assert life_of(str(tmp_path / "living.alive")) is Life.HELD
    alive.drop()
    assert os.listdir(tmp_path) == []


def test_one_that_holds_it_again_is_not_taken_for_long_dead_at_its_next_death(
    tmp_path: Path, later: Callable[[float], None]
) -> None:
    path = dead_file(tmp_path)
    sweep_dead(str(tmp_path))
    later(HOUR + 1)
    dead_file(tmp_path)
    sweep_dead(str(tmp_path))
    assert life_of(str(path)) is Life.DEAD


@pytest.mark.parametrize("content", ["another boot\n1\n1\n", "", "\0\0\0", "x" * 5000])
def test_what_proves_nothing_is_removed_at_once(tmp_path: Path, content: str) -> None:
    path = tmp_path / "old.alive"
    path.write_text(content)
    sweep_dead(str(tmp_path))
    assert not path.exists()


def test_what_is_no_alive_file_stays(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("")
    (tmp_path / "folder.alive").mkdir()
    (tmp_path / "link.alive").symlink_to(tmp_path / "notes")
    sweep_dead(str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == ["folder.alive", "link.alive", "notes"]


def test_a_folder_that_is_gone_is_no_trouble(tmp_path: Path) -> None:
    sweep_dead(str(tmp_path / "gone"))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("tidy", [remove_dead, lambda path: sweep_dead(os.path.dirname(path))], ids=["one", "all"])
def test_a_file_that_was_given_up_and_is_held_again_meanwhile_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tidy: Callable[[str], object]
) -> None:
    """Whoever tidies up has opened the file of before: its lock is free, and the name leads to another by now."""
    path = str(tmp_path / "again.alive")
    (tmp_path / "again.alive").write_text("another boot\n1\n1\n")
    alive = AliveFile(path)
    real, todo = locks._lock_at_once, [True]

    def lock_after_that(fd: int) -> bool:
        if todo and todo.pop():
            os.unlink(path)
            alive.hold()
        return real(fd)

    monkeypatch.setattr(locks, "_lock_at_once", lock_after_that)
    tidy(path)
    assert not todo
    assert life_of(path) is Life.HELD
    alive.drop()


# -- consumers of a PostgreSQL


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, for this test alone."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def lease(postgres_url: str, temporary: Path) -> Iterator[Callable[..., SqlLease]]:
    """A lease as another consumer has it."""
    with contextlib.ExitStack() as stack:

        def make(stream: str, *, exclusive: bool) -> SqlLease:
            backend = stack.enter_context(contextlib.closing(PersistenceKitBackend(postgres_url)))
            return backend.lease(stream, LONG, exclusive=exclusive)

        yield make


@pytest.mark.parametrize("exclusive", [True, False], ids=["exclusive", "shared"])
def test_killed_consumers_leave_no_files_for_good(
    lease: Callable[..., SqlLease], temporary: Path, later: Callable[[float], None], exclusive: bool
) -> None:
    (temporary / f"queuekit-{os.getuid()}").mkdir(mode=0o700)
    for number in range(5):
        killed_holder(lambda number=number: lease(f"stream-{number}", exclusive=exclusive).try_acquire())
    for stream in ("first", "second"):
        mine = lease(stream, exclusive=exclusive)
        assert mine.try_acquire()
        later(HOUR + 1)
    names = os.listdir(temporary / f"queuekit-{os.getuid()}")
    assert len(names) == 2
    assert f"{mine.owner}.alive" in names


@pytest.mark.parametrize("exclusive", [True, False], ids=["exclusive", "shared"])
def test_a_successor_still_follows_a_dead_one_at_once_after_a_sweep(
    lease: Callable[..., SqlLease], exclusive: bool
) -> None:
    killed_holder(lambda: lease("encode", exclusive=exclusive).try_acquire())
    assert lease("other", exclusive=exclusive).try_acquire()
    heir = lease("encode", exclusive=exclusive)
    assert heir.holder() is not None
    assert heir.try_acquire()
