"""What `workerpool torture` takes for a run's effects: files, databases, the output of commands."""

from __future__ import annotations

import os
import re
import sqlite3
from pathlib import Path

import click
import pytest

from workerpool.torture.effects import Watched
from workerpool.torture.trap import OwnFiles


def read(folder: Path, watched: Watched) -> dict[str, str]:
    return watched.read(str(folder), {})


def test_everything_below_a_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "hollow").mkdir()
    (tmp_path / "sub" / "text").write_text("grüße\n")
    (tmp_path / "raw").write_bytes(b"\0\xff")
    (tmp_path / "link").symlink_to("sub/text")
    os.mkfifo(tmp_path / "pipe")
    found = read(tmp_path, Watched(paths=(".",)))
    assert found.pop("raw").startswith("(2 bytes, SHA-256 ")
    assert found == {
        "sub/text": "grüße\n",
        "link": "(a link to sub/text)\n",
        "hollow": "(an empty folder)\n",
        "pipe": "(no regular file)\n",
    }


def test_large_files_are_told_apart_by_their_digest(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * 3_000_000)
    before = read(tmp_path, Watched(paths=("large",)))
    with open(tmp_path / "large", "r+b") as file:
        file.seek(2_999_999)
        file.write(b"y")
    after = read(tmp_path, Watched(paths=("large",)))
    assert before["large"].startswith("(3000000 bytes")
    assert before != after


def test_only_what_is_named_counts_without_what_is_skipped_and_masked(tmp_path: Path) -> None:
    for name in ("out", "out.tmp", "other"):
        (tmp_path / name).write_text("at 12:30\n")
    watched = Watched(paths=("out", "out.tmp", "absent"), skip=("*.tmp",), mask=(re.compile(r"\d\d:\d\d"),))
    assert read(tmp_path, watched) == {"out": "at …\n"}


def fill(path: Path, numbers: list[int], journal: str) -> None:
    database = sqlite3.connect(path)
    database.execute(f"PRAGMA journal_mode={journal}")
    database.execute("CREATE TABLE jobs (number INTEGER)")
    for number in numbers:
        database.execute("INSERT INTO jobs VALUES (?)", (number,))
        database.commit()
    database.close()


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_databases_with_the_same_rows_are_the_same(tmp_path: Path, journal: str) -> None:
    for name, numbers in (("a", [1, 2]), ("b", [2, 1]), ("c", [1, 2, 2])):
        (tmp_path / name).mkdir()
        fill(tmp_path / name / "jobs.db", numbers, journal)
    a, b, c = (read(tmp_path / name, Watched(paths=(".",))) for name in "abc")
    assert (tmp_path / "a/jobs.db").read_bytes() != (tmp_path / "b/jobs.db").read_bytes()
    assert a.keys() == {"jobs.db"}
    assert a == b
    assert a != c
    assert 'INSERT INTO "jobs" VALUES(2);' in a["jobs.db"].splitlines()


def test_what_an_unfinished_transaction_wrote_is_no_effect(tmp_path: Path) -> None:
    fill(tmp_path / "jobs.db", [1], "wal")
    expected = read(tmp_path, Watched(paths=(".",)))
    database = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
    database.execute("BEGIN")
    database.execute("INSERT INTO jobs VALUES (2)")
    assert (tmp_path / "jobs.db-wal").exists()
    assert read(tmp_path, Watched(paths=(".",))) == expected
    database.close()


def test_a_damaged_database_is_told_as_one(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_bytes(b"SQLite format 3\0" + b"\x7f" * 500)
    assert read(tmp_path, Watched(paths=(".",)))["jobs.db"].startswith("(an SQLite database that cannot be read: ")


def test_commands_run_in_the_folder_and_tell_when_they_fail(tmp_path: Path) -> None:
    (tmp_path / "here").touch()
    found = Watched(commands=("ls; echo $COLOUR", "echo out; echo why >&2; exit 3")).read(
        str(tmp_path), {"COLOUR": "red"}
    )
    assert found["$ ls; echo $COLOUR"] == "here\nred\n"
    assert found["$ echo out; echo why >&2; exit 3"] == "out\n(it failed with exit code 3)\nwhy\n"


def test_own_files_are_those_of_the_handlers_folders_and_of_its_package(tmp_path: Path) -> None:
    own = OwnFiles([str(tmp_path), str(tmp_path / "inner")], "handlers")
    assert own.name(str(tmp_path / "handlers.py")) == "handlers.py"
    assert own.name(str(tmp_path / "pkg" / "a.py")) == "pkg/a.py"
    assert own.name(str(tmp_path / "inner" / "a.py")) == "a.py"
    assert own.name(str(tmp_path / ".venv/lib/python3/site-packages/x/y.py")) is None
    assert own.name(os.__file__) is None
    assert own.name("<string>") is None
    assert own.name(click.core.__file__) is None
    assert OwnFiles([], "click.core").name(click.core.__file__) == "click/core.py"
