"""`workerpool pause` and `resume` with no pool, what `status` says of it, and the unit file of `systemd`."""

from __future__ import annotations

import getpass
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from queuekit import QueueKit
from workerpool.board import Board, Kind
from workerpool.cli import pause as pause_module
from workerpool.cli.main import cli

CONFIG = """
[streams.mail]
handler = "handlers:mail"
[streams.print]
handler = "handlers:print"
[shutdown]
hard = "90s"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "config.toml").write_text(CONFIG)
    QueueKit(tmp_path / "spool").close()
    return tmp_path / "config.toml"


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The pids that a signal was sent to; a board of this process stands for a pool."""
    pids: list[int] = []

    def send(pid: int, start: str, number: int) -> bool:
        assert number == signal.SIGUSR1
        pids.append(pid)
        return True

    monkeypatch.setattr(pause_module, "kill_process", send)
    return pids


def run(config: Path, command: str, *arguments: str) -> Result:
    return CliRunner().invoke(cli, [command, *arguments, "--config", str(config)])


def mail(config: Path) -> dict[str, Any]:
    stream: dict[str, Any] = json.loads(run(config, "status", "--json").stdout)["streams"][0]
    return stream


def test_a_pause_is_made_and_ended_with_no_pool_and_status_says_since_when(config: Path) -> None:
    assert mail(config)["paused_since_ms"] is None
    made = run(config, "pause", "mail")
    assert (made.exit_code, "no running pool to tell" in made.stdout) == (0, True)
    assert mail(config)["paused_since_ms"] > 0
    assert "stream mail: paused since " in run(config, "status").stdout
    assert run(config, "resume", "mail").exit_code == 0
    assert mail(config)["paused_since_ms"] is None
    assert "paused" not in run(config, "status").stdout


def test_pausing_again_says_since_when_and_by_whom(config: Path) -> None:
    run(config, "pause", "mail")
    since = mail(config)["paused_since_ms"]
    again = run(config, "pause", "mail")
    assert again.exit_code == 0
    assert "paused already, since " in again.stdout
    assert f"by {mail(config)['paused_by']}" in again.stdout
    assert mail(config)["paused_since_ms"] == since


def test_resuming_what_is_not_paused_is_said_and_no_error(config: Path) -> None:
    result = run(config, "resume", "mail")
    assert (result.exit_code, result.stdout) == (0, "stream mail is not paused\n")


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_an_unknown_stream_is_a_usage_error_that_says_which_was_meant(config: Path, command: str) -> None:
    result = run(config, command, "mial")
    assert result.exit_code == 2
    assert "did you mean 'mail'?" in result.stderr
    assert "there are mail, print" in run(config, command, "zzzzzz").stderr
    assert not (config.parent / "spool" / ".workerpool" / "pauses").exists()


def test_the_pause_of_a_stream_that_was_removed_can_be_ended(config: Path) -> None:
    run(config, "pause", "mail")
    config.write_text('[streams.print]\nhandler = "handlers:mail"\n')
    assert run(config, "resume", "mail").stdout.startswith("stream mail goes on")


def test_without_a_configuration_the_streams_are_those_of_the_store(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with QueueKit(tmp_path / "spool") as queue:
        queue.submit("mail", b"x")
    assert CliRunner().invoke(cli, ["pause", "mail", "--store", "spool"]).exit_code == 0
    assert CliRunner().invoke(cli, ["pause", "other", "--store", "spool"]).exit_code == 2


def test_a_store_that_is_not_there_is_exit_3_and_not_made(config: Path) -> None:
    result = run(config, "pause", "mail", "--store", f"dir:{config.parent / 'absent'}")
    assert result.exit_code == 3
    assert not (config.parent / "absent").exists()


def test_a_pause_that_cannot_be_written_is_exit_3(config: Path) -> None:
    (config.parent / "spool" / ".workerpool" / "pauses").write_text("in the way")
    assert run(config, "pause", "mail").exit_code == 3
    assert run(config, "resume", "mail").exit_code == 3
    assert run(config, "status").exit_code == 3


def test_a_stream_that_is_well_and_paused_is_shown_as_paused(config: Path, told: list[int]) -> None:
    board = Board.create(str(config.parent / "spool" / ".workerpool"), 4, str(config))
    try:
        board.row(0).take(kind=Kind.MASTER, name="master", state="running")
        board.row(1).take(kind=Kind.STREAM, stream="mail", name="pid-1-x", state="running")
        run(config, "pause", "mail")
        lines = run(config, "status").stdout.splitlines()
        assert next(line for line in lines if line.startswith("mail")).split()[1] == "paused"
        assert mail(config)["health"] == "running"
        assert told == [os.getpid()]
    finally:
        board.remove()


@pytest.mark.parametrize(("state", "times"), [("running", 1), ("quiet", 1), ("stopping", 0), ("ended", 0), ("", 0)])
def test_only_a_master_that_takes_signals_is_sent_one(config: Path, told: list[int], state: str, times: int) -> None:
    """The signal would kill one that is not set up yet; that one looks by itself when it is."""
    board = Board.create(str(config.parent / "spool" / ".workerpool"), 4, str(config))
    try:
        if state:
            board.row(0).take(kind=Kind.MASTER, name="master", state=state)
        run(config, "pause", "mail")
    finally:
        board.remove()
    assert told == [os.getpid()] * times


# -- systemd


def test_the_unit_names_what_runs_by_absolute_paths(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(config.parent)
    result = CliRunner().invoke(cli, ["systemd", "config.toml"])
    assert result.exit_code == 0
    lines = dict(line.split("=", 1) for line in result.stdout.splitlines() if "=" in line)
    command, verb, path = lines["ExecStart"].split()
    assert (os.path.isabs(command), os.path.basename(command), verb) == (True, "workerpool", "run")
    assert os.access(command, os.X_OK)
    assert path == str(config)
    assert lines["User"] == getpass.getuser()
    assert lines["TimeoutStopSec"] == "95"


def test_another_user_may_run_it(config: Path) -> None:
    assert "User=worker\n" in CliRunner().invoke(cli, ["systemd", str(config), "--user", "worker"]).stdout


def test_a_configuration_with_problems_makes_no_unit(config: Path) -> None:
    config.write_text(CONFIG + "[nonsense]\n")
    result = CliRunner().invoke(cli, ["systemd", str(config)])
    assert (result.exit_code, result.stdout) == (2, "")


def test_a_unit_needs_a_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(cli, ["systemd", "--store", "spool"]).exit_code == 2
