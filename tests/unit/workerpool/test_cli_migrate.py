"""`migrate` as it is typed: what it asks, what it says, which line is to be changed, and that it tells no password."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from queuekit import ObservationStatus, QueueKit
from queuekit.testing.jobs import FAR_MS, ids_of, make_job
from workerpool.cli import migrate
from workerpool.cli.main import cli
from workerpool.config_file import load_config


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a store of three jobs in three states."""
    monkeypatch.chdir(tmp_path)
    with QueueKit("spool") as queue:
        queue.send(make_job("ended"))
        queue.drain()
        queue.reply("ended", ObservationStatus.DONE)
        queue.send(make_job("pending"))
        queue.backend.write(make_job("later"), due_ms=FAR_MS)
    return tmp_path


def run(*arguments: str, answer: str = "") -> Result:
    return CliRunner().invoke(cli, ["migrate", *arguments], input=answer)


def open_ids(url: str) -> list[str]:
    with QueueKit.open(url) as queue:
        return ids_of([view.job for view in queue.backend.transfer().whole()])  # type: ignore[union-attr]


@pytest.fixture
def at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(migrate, "standard_input", Terminal)


def test_it_says_what_was_moved(folder: Path) -> None:
    result = run("dir:spool", "sqlite:jobs.db", "--yes")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == (
        f"moved from dir:{folder}/spool to sqlite:{folder}/jobs.db, and compared: "
        "3 jobs: 1 pending, 1 deferred, 1 ended"
    )
    assert "copying: 3 of 3" in result.stderr
    assert sorted(open_ids("sqlite:jobs.db")) == ["ended", "later", "pending"]
    assert open_ids("dir:spool") == []


def test_json_tells_the_same(folder: Path) -> None:
    result = run("spool", "sqlite:jobs.db", "--yes", "--json")
    said = json.loads(result.stdout)
    del said["change"]
    assert said == {
        "from": f"dir:{folder}/spool",
        "to": f"sqlite:{folder}/jobs.db",
        "moved": 3,
        "pending": 1,
        "deferred": 1,
        "ended": 1,
        "streams": ["encode"],
        "checkpoints": 0,
        "left": [],
        "resumed": False,
        "kept": False,
    }


@pytest.mark.usefixtures("folder")
def test_without_a_terminal_to_ask_nothing_is_begun() -> None:
    result = run("dir:spool", "dir:other")
    assert result.exit_code == 2
    assert "--yes" in result.stderr
    assert not Path("other").exists()


@pytest.mark.usefixtures("folder", "at_a_terminal")
def test_whoever_says_no_has_everything_as_it_was() -> None:
    for answer in ("n\n", ""):  # "": the input ends, as by an interrupt
        result = run("dir:spool", "dir:other", answer=answer)
        assert result.exit_code == 1
        assert "3 jobs copied and compared: remove from dir:" in result.stderr
        assert "both stores are as they were" in result.stderr
        assert open_ids("dir:spool") == ["later", "pending", "ended"]
        assert open_ids("dir:other") == []


@pytest.mark.usefixtures("folder", "at_a_terminal")
def test_whoever_says_yes_is_asked_once() -> None:
    result = run("dir:spool", "dir:other", answer="y\n")
    assert result.exit_code == 0
    assert open_ids("dir:spool") == []


@pytest.mark.usefixtures("folder")
def test_what_is_kept_is_said_to_be_of_no_more_use() -> None:
    result = run("dir:spool", "dir:other", "--keep")
    assert result.exit_code == 0
    assert "do not use it any more" in result.stdout
    assert open_ids("dir:spool") == open_ids("dir:other")


@pytest.mark.usefixtures("folder")
def test_what_stays_is_named() -> None:
    name = f"0001700000000000-00000000-0000000001-encode-{'a' * 32}"
    Path("spool/new", name).write_bytes(b"no job")
    result = run("dir:spool", "dir:other", "--yes")
    assert f"stays in dir:{Path.cwd()}/spool, for it cannot be read as a job: {name}" in result.stdout


@pytest.mark.usefixtures("folder")
def test_the_line_of_the_configuration_is_told() -> None:
    Path("handlers.py").write_text("def encode(job): pass\n")
    Path("config.toml").write_text(
        '[store]\nestate = "e"\nurl = "dir:./spool"\n[streams.encode]\nhandler = "handlers:encode"\n'
    )
    result = run("dir:./spool", "sqlite:jobs.db", "--yes")
    assert result.stdout.splitlines()[-1] == f'now change config.toml:3 to   url = "sqlite:{Path.cwd()}/jobs.db"'
    again = run("sqlite:jobs.db", "dir:spool", "--yes")
    assert again.stdout.splitlines()[-1] == (
        f'now change [store] url to "dir:{Path.cwd()}/spool" in every configuration that names the old store'
    )


@pytest.mark.usefixtures("folder")
def test_an_undone_move_says_what_is_back() -> None:
    with QueueKit("spool") as queue, QueueKit("other") as other:
        views = list(queue.backend.transfer().whole())
        other.backend.transfer().take_in(views)  # type: ignore[arg-type]
        queue.backend.transfer().hide(views, leases={})  # type: ignore[arg-type]
    result = run("dir:spool", "dir:other", "--undo")
    assert result.exit_code == 0
    assert result.stdout.startswith("3 jobs back in dir:")
    assert open_ids("dir:spool") == ["later", "pending", "ended"]


@pytest.mark.usefixtures("folder")
def test_after_an_error_it_is_said_that_jobs_are_out_of_sight() -> None:
    with QueueKit("spool") as queue, QueueKit("other") as other:
        (view, *_) = queue.backend.transfer().whole()
        queue.backend.transfer().hide([view], leases={})  # type: ignore[list-item]
        lease = other.lease("encode")
        assert lease.try_acquire()
        result = run("dir:spool", "dir:other", "--yes")
        lease.release()
    assert result.exit_code == 1
    assert f"held by {lease.owner}" in result.stderr
    assert "out of sight: the same command goes on, or --undo back" in result.stderr


@pytest.mark.parametrize("url", ["dir:spool", "sqlite:jobs.db"])
@pytest.mark.usefixtures("folder")
def test_status_tells_of_a_move_that_was_cut_off(url: str) -> None:
    if url != "dir:spool":
        assert run("dir:spool", url, "--yes").exit_code == 0
    with QueueKit.open(url) as queue, QueueKit("other"):
        queue.backend.transfer().hide(list(queue.backend.transfer().whole()), leases={})  # type: ignore[arg-type]
    said = CliRunner().invoke(cli, ["status", "--store", url])
    assert said.exit_code == 0
    assert "jobs are out of sight" in said.stdout
    assert run(url, "dir:other", "--undo").exit_code == 0
    assert "out of sight" not in CliRunner().invoke(cli, ["status", "--store", url]).stdout


@pytest.mark.usefixtures("folder")
def test_what_is_wrong_is_said_before_anything_is_made() -> None:
    for arguments, code, said in (
        (("dir:nowhere", "dir:other", "--yes"), 3, "no queue at"),
        (("dir:spool", "mysql://h/d", "--yes"), 2, "mysql"),
        (("dir:spool", "dir:./spool/../spool", "--yes"), 1, "one store"),
        (("dir:spool", "dir:other", "--keep", "--undo"), 2, "exclude"),
        (("dir:spool", "dir:other", "--undo"), 3, "no queue at"),
    ):
        result = run(*arguments)
        assert (result.exit_code, said in result.stderr) == (code, True), result.stderr
    assert not Path("nowhere").exists()
    assert not Path("other").exists()


def test_a_store_is_called_the_same_without_its_password(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    (tmp_path / "link").symlink_to("spool")
    urls = {"dir": f"dir:{tmp_path}/link", "postgresql": "postgresql://me:secret@host/jobs?password=secret"}
    named = {
        kind: migrate._name(load_config({}, overrides={"store.url": url}, environ={}, streams_required=False))
        for kind, url in urls.items()
    }
    assert named["dir"] == f"dir:{tmp_path}/spool"
    assert "secret" not in named["postgresql"]
    assert named["postgresql"].startswith("postgresql://me:***@host/jobs")
