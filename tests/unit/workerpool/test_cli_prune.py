"""`prune`: in portions, with a rest where removing does harm, said how far it is, and never interrupted by halves."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from queuekit import BackendUnavailable, Completion, JobID, ObservationStatus, QueueKit
from queuekit.backends.maildir.backend import FilesystemBackend
from queuekit.backends.maildir.creation import CreationCost
from queuekit.testing.jobs import make_job
from workerpool.cli import prune
from workerpool.cli.main import cli

Prune = Callable[..., int]


class Store:
    """A queue in which 250 jobs have ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.queue = QueueKit(folder)
        self.queue.send_batch([make_job(stream="s") for _ in range(250)])
        ends = [Completion(JobID(each.job.id), ObservationStatus.DONE) for each in self.queue.drain()]
        assert self.queue.reply_batch(ends) == 250

    def run(self, *arguments: str) -> Result:
        flags = ["--store", f"dir:{self.folder}", "--older-than", "0"]
        return CliRunner().invoke(cli, ["prune", *flags, *arguments])

    def left(self) -> int:
        """How many jobs are kept; none without its record."""
        names = os.listdir(self.folder / "done")
        signals = sum(name.endswith(".signal") for name in names)
        assert signals * 2 == len(names)
        return signals


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "spool")
    yield made
    made.queue.close()


class SlowDisk:
    """One on which making files was seen to become slow, and is not slow now."""

    rises = True

    def __init__(self, root: str) -> None: ...

    def has_risen(self) -> bool:
        return False


@pytest.fixture(autouse=True)
def harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine's disk does: removing does no harm unless a test says so."""
    monkeypatch.setattr(CreationCost, "has_risen", lambda _: False)
    monkeypatch.setattr("queuekit.backends.maildir.creation.has_no_journal", lambda _: False)


def after_each_portion(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> list[int]:
    """Do `act` whenever a portion was removed; returns the sizes of the portions asked for."""
    real: Prune = FilesystemBackend.prune
    asked: list[int] = []

    def pruned(self: FilesystemBackend, older_than: float, *, limit: int | None = None, **more: Any) -> int:
        assert limit is not None
        asked.append(limit)
        count = real(self, older_than, limit=limit, **more)
        act()
        return count

    monkeypatch.setattr(FilesystemBackend, "prune", pruned)
    return asked


def test_an_interrupt_is_obeyed_after_the_portion_and_the_next_run_goes_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        after_each_portion(patch, lambda: os.kill(os.getpid(), signal.SIGINT))
        result = store.run()
    assert result.exit_code == 130
    assert result.stderr == "interrupted: 100 jobs removed; run it again to go on\n"
    assert store.left() == 150
    assert store.run().stdout == "150 jobs removed\n"
    assert store.left() == 0


def test_a_store_that_fails_half_way_is_told_with_how_far_it_came(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    portions = iter([None, BackendUnavailable("the disk is gone")])

    def fail() -> None:
        error = next(portions)
        if error is not None:
            raise error

    after_each_portion(monkeypatch, fail)
    result = store.run()
    assert result.exit_code == 3
    assert result.stderr.splitlines()[0] == "100 jobs removed, or a few more"
    assert "the disk is gone" in result.stderr.splitlines()[1]


def test_how_far_it_is_is_said_in_lines_where_there_is_no_terminal(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prune, "_LINE_SECONDS", 0.0)
    result = store.run()
    assert result.stderr == "100 jobs removed so far\n250 jobs removed so far\n"
    assert result.stdout == "250 jobs removed\n"


def test_portions_grow_while_they_do_no_harm_and_begin_anew_after_a_rest(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([False, True, True, False, False])
    rests: list[int] = []
    monkeypatch.setattr(CreationCost, "has_risen", lambda _: next(looks))
    monkeypatch.setattr(prune, "_rest", lambda _: rests.append(store.left()))
    asked = after_each_portion(monkeypatch, lambda: None)
    assert store.run().stdout == "250 jobs removed\n"
    assert rests == [150, 150]
    assert asked == [100, 100, 200]


def test_where_making_files_becomes_slow_it_rests_after_each_portion(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[int] = []
    monkeypatch.setattr(prune, "CreationCost", SlowDisk)
    monkeypatch.setattr(prune, "_rest", lambda _: rests.append(store.left()))
    asked = after_each_portion(monkeypatch, lambda: None)
    assert store.run().stdout == "250 jobs removed\n"
    assert rests == [150, 50]
    assert asked == [100] * 3


def test_an_interrupt_ends_a_rest(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def risen(_: CreationCost) -> bool:
        os.kill(os.getpid(), signal.SIGINT)
        return True

    monkeypatch.setattr(CreationCost, "has_risen", risen)
    monkeypatch.setattr(prune, "_REST_SECONDS", 3600.0)
    result = store.run()
    assert result.exit_code == 130
    assert result.stderr.startswith("interrupted: 0 jobs removed")
    assert store.left() == 250


def test_at_once_never_looks_what_it_does_to_others(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def risen(_: CreationCost) -> bool:
        raise AssertionError("looked")

    monkeypatch.setattr(CreationCost, "has_risen", risen)
    assert store.run("--at-once").stdout == "250 jobs removed\n"
