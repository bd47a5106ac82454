"""`workerpool status`, `stop` and `reload` on boards that this test writes: a failing stream is never shown as well."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner, Result

from queuekit import QueueKit
from queuekit.testing.jobs import make_job
from workerpool.board import Board, Kind
from workerpool.cli.main import cli
from workerpool.process import start_identity

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
    assert (stream["health"], stream["done"], stream["blocked_by_this_run"]) == ("running", 5, 2)
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
    assert (stream["health"], stream["done"], stream["blocked_by_this_run"]) == ("stopped", 5, 2)


def test_a_process_without_a_sign_of_life_is_stuck(config: Path, board: Board) -> None:
    assert facts(config)["ok"] is True
    board.row(1).beat(time.monotonic_ns() - 16 * 10**9)
    result = status(config)
    assert result.exit_code == 1
    assert "its process is stuck" in result.stdout
    assert f"`kill -KILL {board.view(1).pid}`" in result.stdout
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
    assert "its process is stuck" in told["warnings"][0]
    assert "kill" not in told["warnings"][0]  # whoever it is, it is none of a pool


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


# -- what is wrong, and what to type


def end_blocked(config: Path, *ids: str) -> None:
    with QueueKit(config.parent / "spool") as queue:
        queue.send_batch([make_job(id, "mail") for id in ids])
        for claimed in queue.drain("mail"):
            queue.reply(claimed.job.id, "blocked")


def test_what_is_kept_of_blocked_jobs_is_counted_whoever_has_blocked_them(config: Path, board: Board) -> None:
    """Also what an earlier run has blocked, and what this one has blocked and somebody has retried since."""
    end_blocked(config, "a", "b", "c")
    board.row(1).add(jobs_blocked=7)
    told = facts(config)
    assert (told["streams"][0]["blocked"], told["streams"][0]["blocked_by_this_run"]) == (3, 7)
    assert told["ok"] is True
    [warning] = told["warnings"]
    assert "3 jobs ended blocked or cancelled" in warning
    assert f"`workerpool jobs --state blocked --config {os.path.relpath(config)}`" in warning
    assert "`workerpool retry --all-blocked --stream mail --config" in warning


def test_a_stream_that_has_only_blocked_jobs_left_is_shown_although_nobody_names_it(config: Path) -> None:
    end_blocked(config, "a")
    config.write_text(CONFIG.replace("mail", "other"))
    assert [(stream["name"], stream["blocked"]) for stream in facts(config)["streams"]] == [("other", 0), ("mail", 1)]


def test_running_is_what_workers_have_begun_and_claimed_what_was_taken(config: Path, board: Board) -> None:
    with QueueKit(config.parent / "spool") as queue:
        ids = [queue.submit("mail") for _ in range(5)]
        queue.drain("mail")
    assert (mail(config)["claimed"], mail(config)["running"]) == (5, 0)
    board.row(2).start_job(ids[0])
    assert (mail(config)["claimed"], mail(config)["running"]) == (5, 1)
    board.row(2).start_batch(ids[:3])
    assert mail(config)["running"] == 3


def test_who_is_on_no_board_runs_what_it_has_claimed(config: Path) -> None:
    with QueueKit(config.parent / "spool") as queue:
        lease = queue.lease("mail")
        assert lease.try_acquire()
        queue.submit("mail")
        queue.drain("mail", lease=lease)
        assert (mail(config)["claimed"], mail(config)["running"]) == (1, 1)
        lease.release()


def test_what_keeps_a_stream_from_its_work_is_told_with_its_length(config: Path, board: Board) -> None:
    board.row(1).set(trouble_ms=int(time.time() * 1000) - 28_500)
    board.row(1).say(trouble="settling jobs: No space left on device")
    result = status(config)
    assert result.exit_code == 1
    assert "! stream mail: settling jobs: No space left on device, since 2" in result.stdout
    assert mail(config)["health"] == "in trouble"
    board.row(1).adopt(2**22 + 1, "nobody")
    assert mail(config)["trouble"] is None  # a dead process has no other trouble than that


def test_of_dead_pools_the_one_that_had_the_stream_last_is_told_of(config: Path, board: Board) -> None:
    folder = str(config.parent / "spool" / ".workerpool")
    board.row(1).set(held_ms=5000)
    board.row(1).add(jobs_done=8)
    board.row(0).say(state="ended")
    os.rename(board.path, moved := f"{folder}/board-1-1")
    board.close()
    board.path = moved
    standby = Board.create(folder, 4, str(config))
    standby.row(1).take(kind=Kind.STREAM, stream="mail", name="pid-2-y", state="ended")
    standby.row(0).take(kind=Kind.MASTER, state="ended")
    standby.close()
    assert mail(config)["done"] == 8
    standby.remove()


class Asleep:
    """A process of ours that was stopped, for the time of a test."""

    def __enter__(self) -> subprocess.Popen[bytes]:
        self.process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)
        return self.process

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


@pytest.mark.parametrize("row", [1, 2])
def test_a_stopped_process_is_told_at_once_and_what_to_type(config: Path, board: Board, row: int) -> None:
    with Asleep() as process:
        board.row(row).adopt(process.pid, str(start_identity(process.pid)))
        result = status(config)
    assert result.exit_code == 1
    assert f"is stopped; `kill -CONT {process.pid}` lets it go on" in result.stdout


def test_a_stopped_master_is_told_and_a_stop_says_that_it_cannot_be_heard(
    config: Path, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workerpool.cli.report.is_stopped", lambda pid: pid == board.header.pid)
    monkeypatch.setattr("workerpool.cli.steer.is_stopped", lambda pid: pid == board.header.pid)
    monkeypatch.setattr("workerpool.cli.steer.kill_process", lambda *_: True)
    result = status(config)
    assert result.exit_code == 1
    assert f"`kill -CONT {board.header.pid}`" in result.stdout
    monkeypatch.setattr("workerpool.cli.steer._has_terminal", lambda _: False)
    (config.parent / "handlers.py").write_text("def mail(job): pass\n")
    for command in (["stop"], ["stop", "--now"], ["reload"]):
        refused = CliRunner().invoke(cli, [*command, str(config)])
        assert refused.exit_code == 1, command
        assert f"`kill -CONT {board.header.pid}`" in refused.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows what a process has open")
def test_a_pool_whose_board_was_removed_is_shown_and_steered_all_the_same(
    config: Path, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    monkeypatch.setattr("workerpool.cli.steer.kill_process", lambda pid, start, number: sent.append(number) or True)
    os.unlink(board.path)
    told = facts(config)
    assert (told["running"], told["streams"][0]["health"], told["ok"]) == (True, "running", True)
    assert "its board was removed" in told["warnings"][0]
    assert CliRunner().invoke(cli, ["stop", str(config)]).exit_code == 0
    assert sent == [signal.SIGTERM]


def test_a_lease_that_a_dead_process_has_left_is_not_called_held(config: Path) -> None:
    taking = (
        "import os, sys; from queuekit import QueueKit; assert QueueKit(sys.argv[1]).lease('mail').try_acquire();"
        "os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", taking, str(config.parent / "spool")], check=True)
    assert mail(config)["lease"]["state"] == "left"
    assert "left by the dead or silent pid" in status(config).stdout


def test_a_pool_that_was_killed_names_the_next_step(config: Path, board: Board) -> None:
    for row in (1, 2):
        board.row(row).adopt(2**22 + 1, "nobody")
    board.close()
    [warning] = facts(config)["warnings"]
    assert warning.endswith(f"`workerpool run --config {os.path.relpath(config)}` takes over what it left")


# -- a configuration with mistakes


@pytest.mark.parametrize(
    "mistake",
    [
        "[streams.mail\n",
        "[streams.mail]\nhandler = 7\n",
        "[straems.mail]\nhandler = 'h:f'\n",
        "[log]\nlevel = 'loud'\n",
    ],
)
@pytest.mark.parametrize("store", ["", '[store] # here\nurl = "dir:./spool"\n[lease]\nttl = "20s"\n'])
def test_a_running_pool_is_seen_and_stopped_although_its_configuration_has_a_mistake(
    config: Path, board: Board, monkeypatch: pytest.MonkeyPatch, mistake: str, store: str
) -> None:
    sent: list[int] = []

    def send(_pid: int, _start: str, number: int) -> bool:
        sent.append(number)
        return True

    monkeypatch.setattr("workerpool.cli.steer.kill_process", send)
    config.write_text(store + mistake)
    for command in ("status", "jobs", "stop"):
        result = CliRunner().invoke(cli, [command, str(config)])
        assert result.exit_code == 0, command
        assert f"{config}" in result.stderr.splitlines()[0]
        assert "these mistakes aside, this is about its store" in result.stderr
    assert sent == [signal.SIGTERM]
    assert facts_of(status(config, "--json"))["streams"][0]["health"] == "running"
    assert CliRunner().invoke(cli, ["reload", str(config)]).exit_code == 2


def facts_of(result: Result) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(result.stdout)
    return read


@pytest.mark.parametrize(
    "text",
    [
        'store.url = "dir:./other"\n[streams.mail\n',
        'store = { url = "dir:./other" }\n[streams.mail\n',
        "[store]\nurl = dir:./other\n",
        '["store"]\nurl = "dir:./other"\n[streams.mail\n',
        '[store]\nurl = "ftp:other"\n[streams.mail]\nhandler = "h:f"\n',
    ],
)
def test_of_a_store_that_is_not_told_for_sure_nothing_is_shown(config: Path, text: str) -> None:
    config.write_text(text)
    result = status(config)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--store URL does without this configuration" in result.stderr
    assert status(config, "--store", f"dir:{config.parent / 'spool'}").exit_code == 0


def test_a_configuration_that_others_can_write_is_not_even_asked_for_its_store(config: Path) -> None:
    config.write_text(CONFIG)
    config.chmod(0o666)
    assert status(config).exit_code == 2


# -- a store that was moved away from its pool

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows what a process has open")


@linux_only
@pytest.mark.parametrize("gone", [False, True])
def test_a_pool_whose_store_is_not_at_its_path_is_named_and_can_be_stopped(
    config: Path, board: Board, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    spool, pid, sent = config.parent / "spool", board.header.pid, list[int]()
    monkeypatch.setattr("workerpool.cli.steer.kill_process", lambda pid, start, number: sent.append(number) or True)
    monkeypatch.setattr("workerpool.cli.steer._PATIENCE_SECONDS", 0.0)
    shutil.rmtree(spool) if gone else spool.rename(config.parent / "away")
    result = status(config)
    assert (result.exit_code, result.stdout) == (3, "")
    assert f"`kill -TERM {pid}` ends the pool" in result.stderr
    assert "makes it" not in result.stderr
    assert gone or f"in {config.parent / 'away'}: move it back" in result.stderr
    assert CliRunner().invoke(cli, ["stop", str(config)]).exit_code == 0
    assert sent == [signal.SIGTERM]
    board.row(0).say(state="stopping")
    assert CliRunner().invoke(cli, ["stop", "--now", str(config)]).exit_code == 0
    assert sent == [signal.SIGTERM, signal.SIGINT]


@linux_only
def test_beside_a_new_store_the_pool_of_the_moved_one_is_a_warning(config: Path, board: Board) -> None:
    (config.parent / "spool").rename(config.parent / "away")
    QueueKit(config.parent / "spool").close()
    told = facts(config)
    assert (told["running"], told["streams"][0]["health"]) == (False, "stopped")
    [warning] = told["warnings"]
    assert warning.startswith(
        f"pool {board.header.pid} of this configuration works a store in {config.parent / 'away'}"
    )


@linux_only
def test_a_living_pool_of_another_configuration_is_not_named(config: Path, board: Board) -> None:
    (config.parent / "spool").rename(config.parent / "away")
    other = config.with_name("other.toml")
    other.write_text(CONFIG)
    assert str(board.header.pid) not in status(other).stderr
    assert CliRunner().invoke(cli, ["stop", str(other)]).exit_code == 1


# -- dead pools


@pytest.fixture
def dead(config: Path, board: Board) -> Board:
    """The same pool, killed: it had its stream."""
    board.row(1).set(held_ms=1000)
    for row in (1, 2):
        board.row(row).adopt(2**22 + 1, "nobody")
    os.rename(board.path, moved := str(Path(board.path).with_name("board-1-1")))
    board.close()
    board.path = moved
    return board


@pytest.mark.parametrize(("held_ms", "warned"), [(0, True), (999, True), (1001, False)])
def test_a_dead_pool_is_told_of_until_another_has_taken_over(
    config: Path, dead: Board, held_ms: int, warned: bool
) -> None:
    assert any("ended without clearing up; `workerpool run" in warning for warning in facts(config)["warnings"])
    heir = Board.create(str(config.parent / "spool" / ".workerpool"), 4, str(config))
    heir.row(0).take(kind=Kind.MASTER, name="master", state="running")
    heir.row(1).take(kind=Kind.STREAM, stream="mail", name="pid-2-x", state="running")
    heir.row(1).set(held_ms=held_ms)
    warnings = facts(config)["warnings"]
    heir.remove()
    assert any("without clearing up; a pool that works its streams takes over" in each for each in warnings) == warned


# -- what is wrong has a next step, and its word


def test_a_handler_that_cannot_be_imported_has_a_next_step(config: Path, board: Board) -> None:
    board.row(1).say(state="failing", error="handler 'nomod:f': there is no module nomod")
    assert "no module nomod; mend it, then `workerpool check` and `workerpool reload`" in status(config).stdout
    with QueueKit(config.parent / "spool") as queue:
        id = queue.submit("mail", b"x")
    shown = CliRunner().invoke(cli, ["show", id, "--config", str(config)]).stdout
    assert "there is no module nomod" in shown
    assert re.search(r"next +workerpool check", shown)


def test_a_stream_whose_processes_die_is_not_told_to_mend_its_handler(config: Path, board: Board) -> None:
    board.row(1).say(error="exited with code 1")
    board.row(1).adopt(2**22 + 1, "nobody")
    shown = status(config).stdout
    assert "exited with code 1" in shown
    assert "mend" not in shown


@pytest.mark.parametrize("row", [1, 2])
def test_show_has_the_same_reason_as_status_for_what_is_held_up(config: Path, board: Board, row: int) -> None:
    with QueueKit(config.parent / "spool") as queue:
        id = queue.submit("mail", b"x")
    with Asleep() as process:
        board.row(row).adopt(process.pid, str(start_identity(process.pid)))
        shown = CliRunner().invoke(cli, ["show", id, "--config", str(config)]).stdout
        word = mail(config)["health"]
    assert f"`kill -CONT {process.pid}` lets it go on" in shown
    assert "about to be claimed" not in shown
    assert word == ("stuck" if row == 1 else "running")


def test_show_says_what_trouble_its_stream_is_in(config: Path, board: Board) -> None:
    with QueueKit(config.parent / "spool") as queue:
        id = queue.submit("mail", b"x")
    board.row(1).say(trouble="the disk is full")
    board.row(1).set(trouble_ms=int(time.time() * 1000))
    assert "held up: the disk is full, since" in CliRunner().invoke(cli, ["show", id, "--config", str(config)]).stdout


def test_a_dead_worker_has_no_running_clock(config: Path, board: Board) -> None:
    board.row(2).start_job("job-7")
    board.row(2).adopt(2**22 + 1, "nobody")
    [worker] = mail(config)["workers"]
    assert (worker["state"], worker["job"], worker["seconds"]) == ("dead", "job-7", None)
