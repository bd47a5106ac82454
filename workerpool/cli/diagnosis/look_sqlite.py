"""Gathers the facts about a store in an SQLite file, which is there. Nothing is migrated; only reading transactions.

A file in WAL mode is not opened at all by an SQLite that has the WAL fault: being open is what harms it. Which mode a
file is in is read from its header then, before SQLite could hold a lock on it in this process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
import time
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from queuekit import BackendUnavailable
from queuekit.backends.sql import schema
from queuekit.backends.sql.schema import jobs
from queuekit.backends.sql.sqlite import SqliteDatabase, library
from queuekit.watch import filesystem_type
from workerpool.cli.diagnosis.sqlite import Sqlite
from workerpool.cli.diagnosis.tenants import Jobs
from workerpool.config import PoolConfig

COUNTED = 1_000_000
"""So many rows of each state are counted."""
_CHECK_SECONDS = {True: 2.0, False: 0.25}  # of quick_check, by whether it is a WAL database: else it holds writers up
_CHECK_SECONDS_ALONE = 20.0
_STEPS = 10_000  # of SQLite's machine between two looks at the clock
_WAL_FORMAT = 2
_INTERRUPT, _DAMAGED = 9, frozenset({11, 26})  # SQLite's codes; CORRUPT and NOTADB


def look_at_sqlite(config: PoolConfig, path: str, *, alone: bool) -> tuple[Sqlite, Jobs | None]:
    """What is there, and its jobs where they can be counted. `alone`: nobody works it, so a check may take longer."""
    base = Sqlite(
        path=path,
        library=str(library()),
        fixed=library().fixed,
        filesystem=filesystem_type(path),
        durability=config.store.durability.value,
        known=schema.VERSION,
    )
    if not library().fixed and _is_wal(path):
        why = f"{path} is in WAL mode, and {library()} can corrupt it; it was not opened. pip install pysqlite3"
        return dataclasses.replace(base, trouble=why), None
    try:
        database = SqliteDatabase(path, durability=config.store.durability.value, patience=2.0)
    except BackendUnavailable as error:
        return dataclasses.replace(base, trouble=str(error)), None
    try:
        return _read(base, database, alone), database.run(lambda c: count_rows(c, config), write=False)
    except BackendUnavailable as error:
        return dataclasses.replace(base, trouble=str(error)), None
    finally:
        database.close()


def _is_wal(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(20)[18:20] == bytes([_WAL_FORMAT, _WAL_FORMAT])
    except OSError:
        return False


def _read(base: Sqlite, database: SqliteDatabase, alone: bool) -> Sqlite:
    journal = database.journal_reason
    seconds = _CHECK_SECONDS_ALONE if alone else _CHECK_SECONDS[journal.startswith("WAL")]

    def look(connection: sa.Connection) -> Sqlite:
        empty = connection.exec_driver_sql("PRAGMA freelist_count").scalar_one()
        page = connection.exec_driver_sql("PRAGMA page_size").scalar_one()
        return dataclasses.replace(
            base, journal=journal, version=schema.version_of(connection), empty_bytes=int(empty) * int(page)
        )

    seen = database.run(look, write=False)
    begun = time.monotonic()
    complaint = database.run(lambda connection: _quick_check(connection, begun + seconds), write=False)
    facts = os.lstat(base.path)
    return dataclasses.replace(
        seen,
        complaint=complaint,
        check_seconds=time.monotonic() - begun,
        size=facts.st_size,
        wal_size=_size(f"{base.path}-wal"),
        mode=stat.S_IMODE(facts.st_mode),
    )


def _quick_check(connection: sa.Connection, deadline: float) -> str | None:
    """The first complaint, "" for none; None when the time was over before."""
    driver: Any = connection.connection.driver_connection
    driver.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
    try:
        said = str(connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one())
    except DBAPIError as error:
        code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
        if code == _INTERRUPT:
            return None
        if code in _DAMAGED:
            return str(error.orig)
        raise
    finally:
        driver.set_progress_handler(None, 0)
    return "" if said == "ok" else said


def _size(path: str) -> int:
    with contextlib.suppress(FileNotFoundError):
        return os.lstat(path).st_size
    return 0


def count_rows(connection: sa.Connection, config: PoolConfig) -> Jobs:
    """The jobs of a database, by the indices that every version has; none where there is no table yet."""
    configured = tuple(stream.name for stream in config.streams)
    if not sa.inspect(connection).has_table(jobs.name):
        return Jobs(streams=(), configured=configured, pending=0, claimed=0, later=0, ended=0)
    counts = {status: _count(connection, status) for status in (schema.NEW, schema.CUR, schema.LATER, schema.DONE)}
    return Jobs(
        streams=tuple(stream for stream in schema.leaps(connection, jobs.c.stream_id) if _waits(connection, stream)),
        configured=configured,
        pending=counts[schema.NEW],
        claimed=counts[schema.CUR],
        later=counts[schema.LATER],
        ended=counts[schema.DONE],
        at_least=max(counts.values()) >= COUNTED,
    )


def _waits(connection: sa.Connection, stream: str) -> bool:
    """Whether a stream has jobs that have not ended."""
    open_states = jobs.c.status.in_([schema.NEW, schema.CUR, schema.LATER])
    return connection.scalar(sa.select(jobs.c.id).where(jobs.c.stream_id == stream, open_states).limit(1)) is not None


def _count(connection: sa.Connection, status: str) -> int:
    some = sa.select(jobs.c.status).where(schema.is_status(status)).limit(COUNTED).subquery()
    return int(connection.scalar(sa.select(sa.func.count()).select_from(some)) or 0)
