"""A store in an SQLite file: what was seen, and what that means. No I/O."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from workerpool.cli import words
from workerpool.cli.diagnosis.finding import Finding, Part, error, note, ok, warning
from workerpool.cli.diagnosis.folder import IN_MEMORY

_LARGE_WAL = 64 * 2**20
_MUCH_EMPTY, _EMPTY_SHARE = 64 * 2**20, 0.5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sqlite:
    """`library`: its name and version, `fixed`: without the WAL fault; `journal`: the sentence of
    `SqliteDatabase.journal_reason`, "" when the file could not be opened; `version`: of its schema, 0 = no queue,
    `known`: the one of this code; `complaint`: what quick_check said, "" = all is well, None = it was broken off;
    sizes in bytes; `trouble`: why it cannot be used, "" when it can."""

    path: str
    library: str
    fixed: bool
    filesystem: str
    trouble: str = ""
    journal: str = ""
    durability: str = "full"
    size: int = 0
    wal_size: int = 0
    empty_bytes: int = 0
    version: int = 0
    known: int = 0
    complaint: str | None = ""
    check_seconds: float = 0.0
    mode: int = 0o600


def judge(sqlite: Sqlite) -> Iterator[Finding]:
    """What the facts mean."""
    yield _judge_library(sqlite)
    if sqlite.trouble:
        yield error("store", sqlite.trouble, "no pool and no sender can use it", "", Part.STORE)
        return
    yield ok("store", f"{sqlite.path} can be read, on {sqlite.filesystem or 'a filesystem of unknown type'}")
    if sqlite.filesystem in IN_MEMORY:
        means = "jobs survive kill -9, and are gone after a reboot or power cut"
        yield warning("filesystem", f"{sqlite.filesystem} is memory", means)
    yield _judge_journal(sqlite)
    yield from judge_version(sqlite.version, sqlite.known, sqlite.path)
    yield from _judge_sizes(sqlite)
    yield _judge_integrity(sqlite)
    if sqlite.mode & 0o077:
        found = f"the file's mode is {sqlite.mode:04o}"
        yield note("modes", found, "other users may read jobs' payloads", f"chmod 600 {sqlite.path}")


def _judge_library(sqlite: Sqlite) -> Finding:
    if sqlite.fixed:
        return ok("sqlite", f"{sqlite.library}, free of the WAL fault")
    return note(
        "sqlite",
        f"{sqlite.library} can corrupt a database in WAL mode that several processes write",
        "files are kept in DELETE mode with it, which is as durable, and slower",
        "pip install pysqlite3",
    )


def _judge_journal(sqlite: Sqlite) -> Finding:
    if sqlite.durability == "none":
        return warning(
            "journal", sqlite.journal, "durability is none: a power cut may lose what was accepted, or the file"
        )
    return ok("journal", sqlite.journal)


def judge_version(version: int, known: int, name: str) -> Iterator[Finding]:
    """Of a schema; for both kinds of databases."""
    if version > known:
        yield error(
            "schema",
            f"{name} has schema version {version}, and this workerpool knows versions up to {known}",
            "it must not be touched by this version",
            "pip install --upgrade workerpool",
            Part.STORE,
        )
    elif version == 0:
        yield note("schema", f"{name} holds no queue of ours yet", "the first send or run makes its tables")
    elif version < known:
        yield note("schema", f"schema version {version} of {known}", "the next send or run brings it up to date")
    else:
        yield ok("schema", f"schema version {version}, the one of this code")


def _judge_sizes(sqlite: Sqlite) -> Iterator[Finding]:
    found = f"the file has {words.size(sqlite.size)}, its -wal {words.size(sqlite.wal_size)}"
    if sqlite.wal_size > _LARGE_WAL:
        yield warning(
            "size",
            found,
            "some program reads in one long transaction, so that the -wal cannot be emptied; everything gets slower",
            f"find it with `lsof {sqlite.path}`, and let it end",
        )
    else:
        yield ok("size", found)
    if sqlite.empty_bytes > _MUCH_EMPTY and sqlite.empty_bytes > _EMPTY_SHARE * sqlite.size:
        yield note(
            "size",
            f"{words.size(sqlite.empty_bytes)} of it are empty",
            "they are used again; to give them back to the disk, stop the pool first",
            f'sqlite3 {sqlite.path} "VACUUM"',
        )


def _judge_integrity(sqlite: Sqlite) -> Finding:
    took = words.duration(sqlite.check_seconds)
    if sqlite.complaint is None:
        return note(
            "integrity", f"quick_check was not done after {took}, and was broken off", "so far nothing was wrong"
        )
    if sqlite.complaint:
        return error(
            "integrity",
            f"quick_check: {words.printable(sqlite.complaint)}",
            "the file is damaged",
            f'stop the pool, keep a copy, then `sqlite3 {sqlite.path} ".recover"` into a new file',
            Part.STORE,
        )
    return ok("integrity", f"quick_check found nothing, in {took}")
