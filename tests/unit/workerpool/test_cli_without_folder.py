"""The commands over a store that is no folder: only the contract's words are there to ask, and a place for pools."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from queuekit import BackendUnavailable, JobID, MemoryBackend, ObservationStatus, QueueKit
from queuekit.backends.memory import MemoryStore
from queuekit.contract import JobView, PutAside
from queuekit.lifecycle import State
from workerpool.board import Board, Kind
from workerpool.cli.main import cli
from workerpool.config_file import load_config
from workerpool.locations import board_directory, make_board_directory, store_folder, store_path

CONFIG = '[store]\nurl = "postgresql://host/db"\n[streams.mail]\nhandler = "handlers:mail"\n'
ASIDE = PutAside(name="row-7", stream="mail", ended_ms=1_700_000_000_000, size=12)


class Database(MemoryBackend):
    """A store in memory that has put something aside, as a database can."""

    def jobs(self, states: Collection[State], stream: str | None = None) -> Iterator[JobView | PutAside]:
        yield from super().jobs(states, stream)
        if State.DONE in states and stream in {None, ASIDE.stream}:
            yield ASIDE

    def put_aside(self, typed: str) -> PutAside | None:
        return ASIDE if typed == ASIDE.name else None


@dataclasses.dataclass
class Place:
    """A configuration of a database, and the queue in it."""

    folder: Path
    queue: QueueKit

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(cli, [*arguments, "--config", str(self.folder / "config.toml")])

    def read(self, *arguments: str) -> dict[str, Any]:
        result = self.run(*arguments, "--json")
        assert result.exit_code == 0, result.output
        read: dict[str, Any] = json.loads(result.stdout)
        return read

    def ended(self, status: ObservationStatus) -> JobID:
        id = self.queue.submit("mail", b"x")
        assert [each.job.id for each in self.queue.drain("mail")] == [id]
        self.queue.reply(id, status)
        return id


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    store = MemoryStore()
    (tmp_path / "config.toml").write_text(CONFIG)

    def open_database(url: str, **options: Any) -> QueueKit:
        assert url == "postgresql://host/db"
        return QueueKit(backend=Database(store=store), estate=options["estate"])

    monkeypatch.setattr("workerpool.cli.store.QueueKit.open", open_database)
    return Place(tmp_path, QueueKit(backend=Database(store=store)))


def test_jobs_are_listed_by_state_and_stream(place: Place) -> None:
    done, blocked = place.ended(ObservationStatus.DONE), place.ended(ObservationStatus.BLOCKED)
    pending, other = place.queue.submit("mail"), place.queue.submit("print")
    later = place.queue.submit("mail", delay=60)

    def listed(*options: str) -> list[str]:
        return [job["id"] for job in place.read("jobs", *options)["jobs"]]

    assert listed() == [later, pending, other, blocked, done, ASIDE.name]
    assert listed("--stream", "print") == [other]
    assert listed("--state", "failed") == [blocked, ASIDE.name]
    assert listed("--state", "scheduled", "--state", "done") == [later, done]
    assert listed("--state", "retrying") == []


def test_what_was_put_aside_is_shown_and_cannot_be_replayed(place: Place) -> None:
    shown = place.run("show", ASIDE.name)
    assert shown.exit_code == 0
    assert f"row {ASIDE.name} of stream mail: blocked (quarantined)" in shown.stdout
    assert "done/" not in shown.stdout
    assert "could not be read as a job" in place.run("replay", ASIDE.name).stderr


def test_the_beginning_of_an_id_is_enough(place: Place) -> None:
    blocked = place.ended(ObservationStatus.BLOCKED)
    assert place.run("show", blocked[:6]).stdout.startswith(f"job {blocked} of stream mail: blocked")
    assert place.run("retry", blocked[:6]).stdout == f"{blocked} pending again\n"
    assert place.run("cancel", blocked[:6]).stdout == f"{blocked} cancelled\n"
    assert place.run("retry", "--all-blocked", "--yes").stdout == "no such jobs\n"  # a cancelled one is not meant


def test_status_tells_who_has_a_stream_by_its_lease(place: Place) -> None:
    assert place.read("status")["streams"][0]["lease"]["state"] == "free"
    lease = place.queue.lease("mail")
    assert lease.try_acquire()
    told = place.read("status")["streams"][0]["lease"]
    assert (told["state"], told["owner"], told["pid"], told["age"]) == ("held", lease.owner, os.getpid(), None)
    screen = place.run("status")
    assert f"held by pid {os.getpid()}" in " ".join(screen.stdout.split())


def test_status_tells_who_shares_a_stream_and_how_many_of_them_are_here(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    sharers = {"pid-7-elsewhere": 1.5, "pid-1-x": 0.5, "pid-8-elsewhere": 2.5}
    monkeypatch.setattr(Database, "sharers", lambda self, stream: sharers if stream == "mail" else {})
    told = place.read("status")["streams"][0]["lease"]
    assert (told["state"], told["owner"]) == ("held", None)
    board = Board.create(make_board_directory(load_config(place.folder / "config.toml")), 2, "config.toml")
    board.row(0).take(kind=Kind.MASTER, name="master", state="running")
    board.row(1).take(kind=Kind.STREAM, stream="mail", name="pid-1-x", state="running")
    board.row(1).say(lease="held")
    told = place.read("status")["streams"][0]["lease"]
    assert told["sharers"] == [
        {"owner": owner, "age": age, "on_board": owner == "pid-1-x"} for owner, age in sharers.items()
    ]
    assert "shared by 3, 1 of them here" in " ".join(place.run("status").stdout.split())
    board.remove()


def test_status_tells_of_a_shared_stream_by_the_board(place: Place) -> None:
    board = Board.create(make_board_directory(load_config(place.folder / "config.toml")), 2, "config.toml")
    board.row(0).take(kind=Kind.MASTER, name="master", state="running")
    board.row(1).take(kind=Kind.STREAM, stream="mail", name="pid-1-x", state="running")
    board.row(1).say(lease="held")
    told = place.read("status")["streams"][0]["lease"]
    assert (told["state"], told["on_board"], told["pid"]) == ("held", True, os.getpid())
    board.remove()


def test_a_pause_is_kept_beside_the_configuration_for_its_owner_only(place: Place) -> None:
    before = os.umask(0)
    try:
        assert place.run("pause", "mail").exit_code == 0
    finally:
        os.umask(before)
    private = place.folder / ".workerpool"
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert place.read("status")["streams"][0]["paused_since_ms"] is not None
    assert place.run("resume", "mail").exit_code == 0
    assert place.read("status")["streams"][0]["paused_since_ms"] is None


def test_looking_leaves_nothing_beside_the_configuration(place: Place) -> None:
    for command in ("status", "jobs"):
        assert place.run(command).exit_code == 0
    assert [each.name for each in place.folder.iterdir()] == ["config.toml"]


def test_a_database_file_that_is_not_there_is_not_made_by_looking(place: Place) -> None:
    result = place.run("jobs", "--store", f"sqlite:{place.folder}/absent.db")
    assert result.exit_code == 3
    assert f"there is no queue at {place.folder}/absent.db yet" in result.stderr


# -- where things are


@pytest.mark.parametrize(
    ("url", "folder", "path", "boards"),
    [
        ("dir:spool", "spool", "spool", "spool/.workerpool"),
        ("sqlite:jobs.db", None, "jobs.db", ".workerpool"),
        ("postgresql://host/db", None, None, ".workerpool"),
    ],
)
def test_where_each_kind_of_store_has_its_things(
    tmp_path: Path, url: str, folder: str | None, path: str | None, boards: str
) -> None:
    config = load_config({"store": {"url": url}}, base=tmp_path, streams_required=False)
    assert store_folder(config) == (None if folder is None else str(tmp_path / folder))
    assert store_path(config) == (None if path is None else str(tmp_path / path))
    assert board_directory(config) == str(tmp_path / boards)


def test_a_linked_folder_has_one_place_for_its_boards(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    config = load_config({"store": {"url": "dir:link"}}, base=tmp_path, streams_required=False)
    assert board_directory(config) == str(tmp_path / "real" / ".workerpool")


def test_the_place_for_boards_is_made_once_and_refused_where_it_cannot_be(tmp_path: Path) -> None:
    config = load_config({"store": {"url": "sqlite:jobs.db"}}, base=tmp_path, streams_required=False)
    assert make_board_directory(config) == make_board_directory(config) == str(tmp_path / ".workerpool")
    (tmp_path / ".workerpool").rmdir()
    (tmp_path / ".workerpool").write_text("")
    with pytest.raises(BackendUnavailable, match="not a folder"):
        make_board_directory(config)
    absent = load_config({"store": {"url": "sqlite:jobs.db"}}, base=tmp_path / "absent", streams_required=False)
    with pytest.raises(BackendUnavailable, match="cannot make"):
        make_board_directory(absent)
