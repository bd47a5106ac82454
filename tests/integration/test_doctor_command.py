"""`workerpool doctor` on real stores: what it says, what it leaves alone, and the exit codes."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import psycopg
import pytest
from click.testing import CliRunner, Result

from queuekit import QueueKit
from queuekit.backends.maildir.fsops import FileOps
from queuekit.testing.jobs import make_job
from workerpool.cli.diagnosis import look_folder, look_sqlite
from workerpool.cli.main import cli

if TYPE_CHECKING:
    from postgres import Server

CONFIG = '[store]\nurl = "{url}"\n[streams.encode]\nhandler = "handlers:work"\nworkers = 2\n'
KEYS = {"store", "config", "ok", "errors", "warnings", "notes", "findings", "facts"}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tmp_path.chmod(0o700)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORKERPOOL_CONFIG", raising=False)
    return tmp_path


def doctor(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["doctor", *arguments])


def told(*arguments: str, code: int = 0) -> dict[str, Any]:
    result = doctor("--json", *arguments)
    assert result.exit_code == code, result.output
    report: dict[str, Any] = json.loads(result.stdout)
    assert report.keys() == KEYS
    assert report["ok"] == (code == 0)
    return report


def found(report: dict[str, Any], topic: str) -> list[str]:
    return [f"{each['level']}: {each['found']}" for each in report["findings"] if each["topic"] == topic]


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    paths = sorted(folder.rglob("*"))
    return {str(path): (path.lstat().st_ino, 0 if path.is_dir() else path.lstat().st_size) for path in paths}


def send_some(url: str) -> None:
    with QueueKit.open(url) as queue:
        queue.send_batch([make_job(), make_job(), make_job(stream="dreaming")])
        (claimed,) = queue.drain("dreaming")
        queue.reply(claimed.job.id, "done")
        queue.send(make_job(), delay=3600)


# -- folders


def test_a_folder_is_looked_at_and_left_as_it_was(place: Path) -> None:
    send_some("dir:spool")
    (place / "config.toml").write_text(CONFIG.format(url="dir:./spool"))
    before = tree(place)
    report = told()
    assert tree(place) == before
    assert found(report, "store") == [f"ok: {place}/spool is a queue in a folder"]
    assert found(report, "jobs") == ["ok: 1 stream with jobs to do: 2 pending, 0 claimed, 1 put off, 1 ended"]
    assert found(report, "lease") == ["ok: no stream is held"]
    probe = report["facts"]["folder"]["probe"]
    assert (probe["exclusive"], probe["locks"], len(probe["sync_ms"])) == (True, True, 5)
    assert report["facts"]["machine"]["descriptors_needed"] > 32


def test_the_text_says_what_to_type(place: Path) -> None:
    send_some("dir:spool")
    (place / "spool").chmod(0o755)
    result = doctor("--store", "dir:spool")
    assert result.exit_code == 0
    text = " ".join(result.stdout.split())
    assert f"note modes others may look into {place}/spool (0755)" in text
    assert f"To do: chmod -R go= {place}/spool" in text
    assert result.stdout.splitlines()[-1].startswith(f"dir:{place}/spool: ")


@pytest.mark.parametrize("url", ["dir:nope", "sqlite:nope.db", "sqlite:far/nope.db"])
def test_a_store_that_is_not_there_is_exit_3_and_is_not_made(place: Path, url: str) -> None:
    report = told("--store", url, code=3)
    assert "there is no queue at" in found(report, "store")[0]
    assert found(report, "disk")
    assert list(place.iterdir()) == []


def test_a_folder_that_is_no_queue_is_said_to_be_none(place: Path) -> None:
    (place / "docs").mkdir(mode=0o700)
    assert found(told("--store", "dir:docs"), "store")[0].startswith("note: ")
    (place / "docs" / "thesis").touch()
    assert "holds other things: thesis" in found(told("--store", "dir:docs"), "store")[0]
    assert os.listdir(place / "docs") == ["thesis"]


def test_a_file_instead_of_a_folder_and_a_root_for_everybody_are_exit_3(place: Path) -> None:
    (place / "file").touch()
    assert "is not a folder" in found(told("--store", "dir:file", code=3), "store")[0]
    send_some("dir:spool")
    (place / "spool").chmod(0o777)
    assert "can be written by others" in found(told("--store", "dir:spool", code=3), "store")[0]


def test_a_file_in_place_of_one_of_its_folders_is_exit_3(place: Path) -> None:
    for name in ("new", ".workerpool"):
        send_some("dir:spool")
        shutil.move(place / "spool" / name, place / f"was-{name}")
        (place / "spool" / name).touch()
        assert f"{place}/spool/{name}" in found(told("--store", "dir:spool", code=3), "store")[0]
        (place / "spool" / name).unlink()


def test_what_cannot_be_read_is_exit_3_and_no_traceback(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    send_some("dir:spool")

    def refuse(root: str, _: object) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied", f"{root}/new")

    monkeypatch.setattr(look_folder, "count_jobs", refuse)
    report = told("--store", "dir:spool", code=3)
    assert f"error: cannot look at {place}/spool/new: Permission denied" in found(report, "store")
    assert found(report, "lease")


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC])
def test_a_disk_that_takes_nothing_is_exit_3_and_the_jobs_are_told(
    place: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    send_some("dir:spool")

    class Refusing(FileOps):
        def create(self, folder: int, name: str, data: bytes, *, sync: bool) -> NoReturn:
            raise OSError(number, os.strerror(number), name)

        def unlink(self, folder: int, name: str) -> None:
            raise OSError(number, os.strerror(number), name)

    monkeypatch.setattr(look_folder, "FileOps", Refusing)
    report = told("--store", "dir:spool", code=3)
    assert found(report, "store") == [f"error: cannot write in {place}/spool/tmp: {os.strerror(number)}"]
    assert "2 pending" in found(report, "jobs")[0]


def test_a_linked_folder_is_exit_3(place: Path) -> None:
    send_some("dir:spool")
    (place / "spool" / "later").rename(place / "later")
    (place / "spool" / "later").symlink_to(place / "later")
    assert found(told("--store", "dir:spool", code=3), "store") == [f"error: {place}/spool/later is a link"]


def test_who_holds_a_stream_is_told_by_its_alive_file(place: Path) -> None:
    send_some("dir:spool")
    with QueueKit.open("dir:spool") as queue:
        lease = queue.lease("encode")
        assert lease.try_acquire()
        assert found(told("--store", "dir:spool"), "lease")[0].startswith(
            f"ok: stream encode is held by pid {os.getpid()}"
        )
        lease.release()
    (place / "spool" / "other.drain.lease").write_text("host-x-7\ninf")
    (place / "spool" / "odd.drain.lease").write_text("nonsense")
    (line,) = found(told("--store", "dir:spool"), "lease")
    assert line == "note: stream other is held by host-x-7"


def test_without_events_it_says_why(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    send_some("dir:spool")
    monkeypatch.setattr(look_folder, "is_silent", lambda _: True)
    (line,) = (each for each in found(told("--store", "dir:spool"), "events") if "polling" in each)
    assert "does not announce every change" in line


def test_counting_a_large_folder_stops(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    send_some("dir:spool")
    monkeypatch.setattr(look_folder, "COUNTED", 1)
    (line,) = found(told("--store", "dir:spool"), "jobs")
    assert "at least" in line


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="there is no filesystem in memory to try")
def test_a_folder_in_memory_is_warned_of(place: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        send_some(f"dir:{folder}/spool")
        assert found(told("--store", f"dir:{folder}/spool"), "filesystem")[0] == "warning: tmpfs is memory"


# -- configurations


def test_a_config_with_mistakes_is_exit_2_and_its_store_is_looked_at(place: Path) -> None:
    send_some("dir:spool")
    (place / "config.toml").write_text(CONFIG.format(url="dir:./spool") + "wrokers = 3\n")
    report = told(code=2)
    assert "wrokers" in found(report, "config")[0]
    assert found(report, "jobs")


@pytest.mark.parametrize("url", ["postgresql:db", "redis://host"])
def test_a_config_that_tells_no_store_is_exit_2(place: Path, url: str) -> None:
    (place / "config.toml").write_text(CONFIG.format(url=url))
    result = doctor()
    assert result.exit_code == 2
    assert "--store URL" in result.stderr


def test_a_config_that_others_can_write_is_not_trusted(place: Path) -> None:
    send_some("dir:spool")
    (place / "config.toml").write_text(CONFIG.format(url="dir:./spool"))
    (place / "config.toml").chmod(0o666)
    result = doctor()
    assert result.exit_code == 2
    assert "can be written by every user" in result.stderr


# -- SQLite


def test_an_sqlite_file_is_looked_at_and_not_migrated(place: Path) -> None:
    send_some("sqlite:jobs.db")
    report = told("--store", "sqlite:jobs.db")
    assert found(report, "schema") == ["ok: schema version 2, the one of this code"]
    assert found(report, "jobs") == ["ok: 1 stream with jobs to do: 2 pending, 0 claimed, 1 put off, 1 ended"]
    assert found(report, "integrity")[0].startswith("ok: quick_check found nothing")
    assert "synchronous=" in found(report, "journal")[0]


def test_a_database_without_a_queue_stays_one(place: Path) -> None:
    with sqlite3.connect("mine.db") as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    (place / "mine.db").chmod(0o600)
    report = told("--store", "sqlite:mine.db")
    assert found(report, "schema") == [f"note: {place}/mine.db holds no queue of ours yet"]
    with sqlite3.connect("mine.db") as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("mine",)]
    connection.close()


def test_a_newer_schema_and_a_file_that_is_no_database_are_exit_3(place: Path) -> None:
    send_some("sqlite:jobs.db")
    with sqlite3.connect("jobs.db") as connection:
        connection.execute("UPDATE queuekit_schema SET version = 99")
    connection.close()
    assert "schema version 99" in found(told("--store", "sqlite:jobs.db", code=3), "schema")[0]
    (place / "text.db").write_bytes(b"this is no database at all, whatever its name says" * 100)
    (place / "text.db").chmod(0o600)
    assert "not a database" in found(told("--store", "sqlite:text.db", code=3), "store")[0]


def test_a_damaged_file_is_exit_3(place: Path) -> None:
    with QueueKit.open("sqlite:jobs.db") as queue:
        queue.send_batch([make_job() for _ in range(2000)])
    size = (place / "jobs.db").stat().st_size
    with (place / "jobs.db").open("r+b") as file:
        file.seek(size // 2)
        file.write(os.urandom(8192))
    report = told("--store", "sqlite:jobs.db", code=3)
    assert any(each.startswith("error: ") for each in found(report, "integrity") + found(report, "store"))


def test_a_check_that_takes_too_long_is_broken_off(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with QueueKit.open("sqlite:jobs.db") as queue:
        queue.send_batch([make_job() for _ in range(2000)])
    monkeypatch.setattr(look_sqlite, "_CHECK_SECONDS_ALONE", -1.0)
    monkeypatch.setattr(look_sqlite, "_STEPS", 10)
    assert "broken off" in found(told("--store", "sqlite:jobs.db"), "integrity")[0]


def test_a_file_that_is_being_written_is_waited_for_and_not_called_damaged(place: Path) -> None:
    send_some("sqlite:jobs.db")
    words = "import sqlite3, sys; c = sqlite3.connect('jobs.db', isolation_level=None)\n"
    words += "c.execute('PRAGMA journal_mode=DELETE'); c.execute('BEGIN EXCLUSIVE'); print('locked', flush=True)\n"
    with subprocess.Popen(
        [sys.executable, "-c", f"{words}sys.stdin.read()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"locked\n"
        report = told("--store", "sqlite:jobs.db", code=3)
        writer.kill()
    assert "is locked by somebody else" in found(report, "store")[0]
    assert found(report, "integrity") == []


def test_a_wal_file_is_not_opened_by_an_sqlite_with_the_fault(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    send_some("sqlite:jobs.db")
    with sqlite3.connect("jobs.db") as connection:
        connection.execute("PRAGMA journal_mode=WAL")
    connection.close()
    monkeypatch.setattr("queuekit.backends.sql.sqlite.is_fixed", lambda _: False)
    before = tree(place)
    report = told("--store", "sqlite:jobs.db", code=3)
    assert "is in WAL mode" in found(report, "store")[0]
    assert tree(place) == before


# -- PostgreSQL


def test_an_empty_database_stays_empty(place: Path, postgres_url: str) -> None:
    report = told("--store", postgres_url)
    assert "holds no queue of ours yet" in found(report, "schema")[0]
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)


def test_a_postgresql_store_is_looked_at(place: Path, postgres_url: str) -> None:
    send_some(postgres_url)
    (place / "config.toml").write_text(CONFIG.format(url=postgres_url))
    report = told()
    assert "answers: PostgreSQL" in found(report, "store")[0]
    assert found(report, "jobs") == ["ok: 1 stream with jobs to do: 2 pending, 0 claimed, 1 put off, 1 ended"]
    assert found(report, "events")[0].startswith("ok: a NOTIFY to ourselves came after")
    assert found(report, "durability")[0].startswith("warning: fsync=off")  # the tests' server saves itself the syncs
    seen = report["facts"]["postgresql"]
    assert abs(seen["ahead"]) < 1
    assert (seen["needed"], seen["missing_privileges"]) == (2, [])


def test_a_role_that_may_do_too_little_is_told_what_it_lacks(place: Path, postgres_url: str) -> None:
    send_some(postgres_url)
    role = f"poor_{os.getpid()}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 7")
        connection.execute(f"GRANT SELECT, INSERT ON queuekit_jobs TO {role}")
        try:
            report = told("--store", postgres_url.replace("postgres@", f"{role}@"), code=3)
        finally:
            connection.execute(f"DROP OWNED BY {role}")
            connection.execute(f"DROP ROLE {role}")
    (line,) = found(report, "rights")
    assert "UPDATE ON queuekit_jobs" in line
    assert "INSERT ON queuekit_jobs" not in line
    assert report["facts"]["postgresql"]["connections_free"] <= 6


def test_a_database_in_another_encoding_is_an_error(place: Path, postgres_server: Server) -> None:
    name = f"latin_{os.getpid()}"
    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'")
        try:
            report = told("--store", postgres_server.url(name), code=1)
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
    assert any("encoding is LATIN1" in each for each in found(report, "store"))


def test_a_server_with_few_connections_and_quick_commits_is_warned_of(
    place: Path, own_postgres: Callable[..., Server]
) -> None:
    server = own_postgres(max_connections=8, superuser_reserved_connections=3, autovacuum="off", timezone="Asia/Tokyo")
    streams = "".join(f'[streams.s{number}]\nhandler = "handlers:work"\n' for number in range(4))
    (place / "config.toml").write_text(f'[store]\nurl = "{server.url()}"\ndurability = "none"\n{streams}')
    report = told()
    assert found(report, "limits")[0].startswith("warning: ")
    assert found(report, "vacuum") == ["warning: autovacuum is off"]
    assert "synchronous_commit=off" in found(report, "durability")[0]
    assert "its time zone (Asia/Tokyo) does not matter" in found(report, "clock")[0]


def test_sessions_of_a_shared_stream_are_told(place: Path, postgres_url: str) -> None:
    with QueueKit.open(postgres_url) as queue:
        lease = queue.lease("encode", exclusive=False)
        assert lease.try_acquire()
        (line,) = found(told("--store", postgres_url), "lease")
        lease.release()
    assert line.startswith(f"ok: stream encode is shared by pid {os.getpid()}")


def test_a_server_that_does_not_answer_is_exit_3_and_no_password_is_told(place: Path) -> None:
    url = f"postgresql://me:secret@/db?host={place}"
    report = told("--store", url, code=3)
    assert found(report, "store")[0].startswith("error: ")
    assert "secret" not in json.dumps(report)
