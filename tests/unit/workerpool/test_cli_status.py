"""`workerpool status`, `stop` and `reload` on boards that this test writes: a failing stream is never shown as well."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner, Result

from queuekit import QueueKit
from workerpool.board import Board, Kind
from workerpool.cli.main import cli

CONFIG = '[streams.mail]\nhandler = "handlers:mail"\n'


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "config.toml").write_text(CONFIG)
    QueueKit(tmp_path / "spool").close()
    return tmp_path / "config.toml"


@pytest.fixture
def board(config: Path) -> Iterator[Board]:
    """A living pool of this very process: a master, the stream mail, one worker."""
    made = Board.create(str(config.parent / "spool" / ".workerpool"), 4, str(config))
    made.row(0).take(kind=Kind.MASTER, name="master", state="running")
    made.row(1).take(kind=Kind.STREAM, stream="mail", name="pid-1-x", state="running")
    made.row(2).take(kind=Kind.WORKER, stream="mail", name="mail-1", state="ready")
    yield made
    made.remove()


def status(config: Path, *options: str) -> Result:
    return CliRunner().invoke(cli, ["status", str(config), *options])


def facts(config: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(status(config, "--json").stdout)
    return read


def mail(config: Path) -> dict[str, Any]:
    stream: dict[str, Any] = facts(config)["streams"][0]
    return stream


def test_it_works_with_no_pool_running(config: Path) -> None:
    with QueueKit(config.parent / "spool") as queue:
        queue.submit("mail", b"x")
        queue.submit("mail", b"x", delay=60)
    result = status(config)
    assert result.exit_code == 0
    assert "none runs" in result.stdout
    stream = mail(config)
    assert (stream["pending"], stream["scheduled"], stream["running"]) == (1, 1, 0)
    assert (stream["health"], stream["lease"]["state"]) == ("stopped", "free")


def test_looking_at_a_queue_that_is_not_there_makes_none(config: Path) -> None:
    result = status(config, "--store", f"dir:{config.parent / 'absent'}")
    assert result.exit_code == 3
    assert not (config.parent / "absent").exists()


def test_a_running_stream_with_its_worker(config: Path, board: Board) -> None:
    board.row(2).start_job("job-7")
    board.row(2).progress(3, 10)
    board.row(1).add(jobs_done=5, jobs_blocked=2)
    stream = mail(config)
    assert (stream["health"], stream["done"], stream["blocked"]) == ("running", 5, 2)
    [worker] = stream["workers"]
    assert (worker["job"], worker["progress"], worker["state"]) == ("job-7", [3, 10], "ready")
    shown = status(config)
    assert shown.exit_code == 0
    assert "job-7" in shown.stdout


def test_a_stream_whose_handler_cannot_be_loaded_is_failing(config: Path, board: Board) -> None:
    board.row(1).say(state="failing", error="importing handlers failed: ValueError: no")
    result = status(config)
    assert result.exit_code == 1
    assert "ValueError: no" in result.stdout
    assert mail(config)["health"] == "failing"


def test_a_stream_that_restarts_all_the_time_is_failing_however_fresh_it_is(
    config: Path, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workerpool.cli.pools.STEADY_SECONDS", float("inf"))
    for _ in range(3):
        board.row(1).take(kind=Kind.STREAM, stream="mail", name="pid-1-x", state="running")
    result = status(config)
    assert result.exit_code == 1
    assert "restarted 3 times" in result.stdout
    assert (mail(config)["health"], mail(config)["restarts"]) == ("failing", 3)


def test_a_worker_that_dies_at_its_import_makes_its_stream_failing(config: Path, board: Board) -> None:
    board.row(1).say(state="starting")
    assert mail(config)["health"] == "starting"
    board.row(2).take(kind=Kind.WORKER, stream="mail", name="mail-1", state="starting")
    assert mail(config)["health"] == "failing"
    assert "no worker gets ready" in mail(config)["error"]


def test_a_stream_whose_workers_died_later_is_failing_too(config: Path, board: Board) -> None:
    for _ in range(3):
        board.row(2).take(kind=Kind.WORKER, stream="mail", name="mail-1", state="starting")
    assert mail(config)["health"] == "failing"


def test_a_stream_without_a_process_is_failing(config: Path, board: Board) -> None:
    board.row(1).adopt(2**22 + 1, "nobody")
    assert mail(config)["health"] == "failing"


def test_jobs_of_a_stream_that_the_configuration_does_not_name_are_named(config: Path) -> None:
    with QueueKit(config.parent / "spool") as queue:
        queue.submit("forgotten", b"x")
    assert "does not name: forgotten" in status(config).stdout
    assert [stream["configured"] for stream in facts(config)["streams"]] == [True, False]


def test_a_holder_on_no_board_is_shown_with_its_lease(config: Path) -> None:
    with QueueKit(config.parent / "spool") as queue:
        lease = queue.lease("mail")
        assert lease.try_acquire()
        told = mail(config)["lease"]
        lease.release()
    assert (told["state"], told["owner"], told["on_board"]) == ("held", lease.owner, False)


def test_who_stands_by_is_shown(config: Path, board: Board) -> None:
    board.row(1).say(lease="standby")
    with QueueKit(config.parent / "spool") as queue:
        lease = queue.lease("mail")
        assert lease.try_acquire()
        told = mail(config)["lease"]
        lease.release()
    assert told["state"] == "held"
    assert told["standby_pids"] == [board.view(1).pid]


def test_a_dead_pools_board_tells_what_was_running_and_is_still_in_flight(config: Path, board: Board) -> None:
    with QueueKit(config.parent / "spool") as queue:
        id = queue.submit("mail", b"x")
        queue.drain("mail")
        board.row(2).start_job(id)
        for row in (1, 2):
            board.row(row).adopt(2**22 + 1, "nobody")
        board.close()
        told = facts(config)
        assert told["running"] is False
        assert [worker["job"] for worker in told["pools"][0]["was_running"]] == [id]
        assert "running 1 job, which will run again" in told["warnings"][0]
        queue.reply(id, "done")
    [warning] = facts(config)["warnings"]
    assert "will run again" not in warning


def test_a_pool_whose_master_alone_died_has_survivors(config: Path, board: Board) -> None:
    board.row(2).start_job("job-7")
    board.close()
    [warning] = facts(config)["warnings"]
    assert "has lost its master; 2 processes of it still run" in warning
    assert "again" not in warning


def test_the_board_of_a_pool_that_ended_in_order_is_read_without_a_warning(config: Path, board: Board) -> None:
    board.row(1).add(jobs_done=5, jobs_blocked=2)
    board.row(1).say(state="ended")
    board.row(0).say(state="ended")
    board.close()
    told = facts(config)
    assert (told["ok"], told["warnings"]) == (True, [])
    stream = told["streams"][0]
    assert (stream["health"], stream["done"], stream["blocked"]) == ("stopped", 5, 2)


def test_a_process_without_a_sign_of_life_is_stuck(config: Path, board: Board) -> None:
    assert facts(config)["ok"] is True
    board.row(1).beat(time.monotonic_ns() - 16 * 10**9)
    result = status(config)
    assert result.exit_code == 1
    assert "its process is stopped or stuck" in result.stdout
    assert mail(config)["stuck"] == board.view(1).pid


def test_a_process_that_runs_its_handler_itself_may_be_silent_meanwhile(config: Path, board: Board) -> None:
    config.write_text(CONFIG + "workers = 0\n")
    board.row(1).beat(time.monotonic_ns() - 16 * 10**9)
    assert (facts(config)["ok"], mail(config)["stuck"]) == (True, None)


def test_a_held_lease_that_is_not_renewed_is_a_stuck_process(config: Path) -> None:
    with QueueKit(config.parent / "spool") as queue:
        lease = queue.lease("mail")
        assert lease.try_acquire()
        place = config.parent / "spool" / "mail.drain.lease"
        place.write_text(f"{lease.owner}\n{time.time() - 60}")
        told = facts(config)
    assert told["ok"] is False
    assert "its process is stopped or stuck" in told["warnings"][0]


def test_boards_that_cannot_be_listed_are_an_unusable_store(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(directory: str) -> NoReturn:
        raise PermissionError(13, "Permission denied", directory)

    monkeypatch.setattr("workerpool.cli.pools.find_boards", refuse)
    for command in ("status", "stop", "reload"):
        result = CliRunner().invoke(cli, [command, str(config)])
        assert result.exit_code == 3, command
        assert result.stderr.count("\n") == 1


def test_control_codes_of_an_error_do_not_reach_the_terminal(config: Path, board: Board) -> None:
    board.row(1).say(state="failing", error="\x1b]0;gone\x07 [red]markup[/red]")
    assert "\x1b]" not in status(config).stdout
    assert "[red]markup[/red]" in status(config).stdout


def test_top_without_a_terminal_draws_once(config: Path) -> None:
    result = CliRunner().invoke(cli, ["top", str(config)])
    assert result.exit_code == 0
    assert "mail" in result.stdout


@pytest.mark.parametrize("command", ["stop", "reload"])
def test_there_is_nobody_to_signal(config: Path, command: str) -> None:
    result = CliRunner().invoke(cli, [command, str(config)])
    assert result.exit_code == 1
    assert "no pool runs here" in result.stderr


def test_a_bad_configuration_is_not_passed_on(config: Path, board: Board) -> None:
    config.write_text("[streams.mail]\n")
    assert CliRunner().invoke(cli, ["reload", str(config)]).exit_code == 2


def test_a_handler_that_does_not_import_is_not_passed_on_either(
    config: Path, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    monkeypatch.setattr("workerpool.cli.steer._has_terminal", lambda _: False)

    def send(_pid: int, _start: str, number: int) -> bool:
        sent.append(number)
        return True

    monkeypatch.setattr("workerpool.cli.steer.kill_process", send)
    refused = CliRunner().invoke(cli, ["reload", str(config)])
    assert refused.exit_code == 2
    assert "config.toml:2: streams.mail.handler: 'handlers:mail': there is no module handlers" in refused.stderr
    assert sent == []
    (config.parent / "handlers.py").write_text("def mail(job): pass\n")
    assert CliRunner().invoke(cli, ["reload", str(config)]).exit_code == 0
    assert sent == [signal.SIGHUP]
