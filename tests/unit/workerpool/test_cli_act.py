"""`cancel` and `retry` of what is in flight: who has it, by the boards and the leases, on every kind of store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from queuekit import QueueKit
from workerpool.board import Board, Kind
from workerpool.cli.main import cli


@pytest.fixture(params=["dir:./spool", "sqlite:./jobs.db"])
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "config.toml"
    path.write_text(f'[store]\nurl = "{request.param}"\n[streams.mail]\nhandler = "handlers:mail"\n')
    return path


@pytest.fixture
def queue(config: Path) -> Iterator[QueueKit]:
    url = config.read_text().split('"')[1]
    with QueueKit.open(url) as made:
        yield made


@pytest.fixture
def board(config: Path, queue: QueueKit) -> Iterator[Board]:
    """A living pool of this very process, on any store."""
    folder = config.parent / ("spool" if (config.parent / "spool").exists() else ".") / ".workerpool"
    folder.mkdir(exist_ok=True)
    made = Board.create(str(folder), 4, str(config))
    made.row(0).take(kind=Kind.MASTER, name="master", state="running")
    made.row(1).take(kind=Kind.STREAM, stream="mail", name="pid-1-x", state="running")
    made.row(2).take(kind=Kind.WORKER, stream="mail", name="mail-1", state="ready")
    yield made
    made.remove()


def why(verb: str, job_id: str) -> str:
    result = CliRunner().invoke(cli, [verb, job_id])
    assert result.exit_code == 1
    return result.stderr


def claimed(queue: QueueKit) -> str:
    id = queue.submit("mail")
    assert len(queue.drain("mail")) == 1
    return id


@pytest.mark.parametrize("verb", ["retry", "cancel", "release"])
def test_what_runs_is_named_with_its_worker(queue: QueueKit, board: Board, verb: str) -> None:
    id = claimed(queue)
    board.row(2).start_job(id)
    assert f"it is running in mail-1 (pid {board.view(2).pid}); wait for its end" in why(verb, id)


@pytest.mark.parametrize("verb", ["retry", "cancel"])
def test_what_waits_for_a_worker_does_not_run(queue: QueueKit, board: Board, verb: str) -> None:
    said = why(verb, claimed(queue))
    assert "a pool has claimed it, and runs it as soon as a worker is free" in said
    assert "running" not in said


def test_what_nobody_has_is_not_called_running(queue: QueueKit) -> None:
    said = why("cancel", claimed(queue))
    assert "left there by somebody who is gone: the next `workerpool run` makes it pending again" in said
    assert "`workerpool pause mail` comes first" in said


def test_who_has_claimed_it_under_a_lease_is_named(queue: QueueKit) -> None:
    lease = queue.lease("mail")
    assert lease.try_acquire()
    id = queue.submit("mail")
    queue.drain("mail", lease=lease)
    assert f"claimed by {lease.owner}" in why("cancel", id)
    lease.release()


def test_the_step_for_another_state_can_be_typed_as_it_is(queue: QueueKit) -> None:
    id = claimed(queue)
    queue.reply(id, "blocked")
    assert f"`workerpool retry {id}` runs it again" in why("cancel", id)
