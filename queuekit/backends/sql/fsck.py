"""Checking a queue's database, and setting right what is surely right to be set right.

    findings = examine("sqlite:./jobs.db")            # changes nothing; errors first
    repair("sqlite:./jobs.db", findings)              # does what their remedies say where `repairable`

Both may be used beside a running pool. The database's own check comes first (SQLite's `integrity_check`; PostgreSQL
keeps its own order, so there only the indices are asked for), then the schema and its indices, then the rows: jobs that
have not ended, each by itself; those that have, `deep` or where their record is missing or unknown. A repair looks
again at the row, locked, and changes it only if the fault is still there.
"""

from __future__ import annotations

import collections
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import sqlalchemy as sa

from queuekit.backends.maildir.fsck.finding import Finding, Repaired, by_weight
from queuekit.backends.sql import schema
from queuekit.backends.sql.backend import PersistenceKitBackend, open_database
from queuekit.backends.sql.database import Database
from queuekit.backends.sql.faults import finding, judge
from queuekit.backends.sql.rows import job_of
from queuekit.backends.sql.schema import jobs
from queuekit.clock import ProcessClock, now_ms
from queuekit.errors import BackendUnavailable, DecodingFailed, QueueError
from queuekit.lease import DEFAULT_TTL
from queuekit.status import ObservationStatus

Progress = Callable[[str, int, int], None]
_PAGE = 200
_LINES = 20  # of what SQLite says about a damage
_DAMAGES = (11, 26)  # CORRUPT, NOTADB
_MANY_ROWS, _TIMES = 1000, 100
"""Statistics are small when there are so many rows, and so many times as many as they say."""


def examine(
    url: str, *, ttl: float = DEFAULT_TTL, deep: bool = False, progress: Progress | None = None
) -> list[Finding]:
    """What is not as it should be in the database at `url`; errors first. Nothing is changed.

    `ttl`: of leases, seconds; `deep`: read the rows of all jobs that have ended, too; `progress`: told
    `(what, done, total)` now and then. Raises `BackendUnavailable` when there is no queue, when it cannot be read, or
    when a newer version has written it.
    """
    database = _open(url)
    try:
        damages = list(_damages(database))
        if damages:
            return damages
        version = database.run(schema.version_of, write=False)
        if version == 0 and not _has_jobs(database):
            raise BackendUnavailable(f"there is no queue in {database.name}")
        if version < schema.VERSION:
            said = f"its tables have version {version}, and this one makes version {schema.VERSION}"
            return [finding("schema-old", database.name, said)]
        if version > schema.VERSION:
            raise BackendUnavailable(
                f"{database.name} has schema version {version}, which is newer: upgrade workerpool"
            )
        found = [*_indices(database), *_statistics(database), *_rows(database, deep, progress)]
    finally:
        database.close()
    return sorted([*found, *_unheld(url, ttl)], key=by_weight)


def repair(url: str, findings: Iterable[Finding], *, progress: Progress | None = None) -> list[Repaired]:
    """Set right those of the findings that `examine` called repairable, and tell of each what was done.

    One that cannot be set right is told too, with the reason, and keeps no other from it.
    """
    wanted = [each for each in findings if each.repairable]
    database, done = _open(url), []
    try:
        for count, each in enumerate(wanted):
            if progress is not None:
                progress("repairing", count, len(wanted))
            try:
                did = _set_right(database, each)
            except QueueError as error:
                did = Repaired(kind=each.kind, path=each.path, did=f"could not be repaired: {error}", done=False)
            if did is not None:
                done.append(did)
    finally:
        database.close()
    return done


def _open(url: str) -> Database:
    scheme, _, path = url.partition(":")
    if scheme == "sqlite" and not os.path.lexists(path):
        raise BackendUnavailable(f"there is no queue in {path}")
    return open_database(url)


# -- the database


def _damages(database: Database) -> Iterator[Finding]:
    if database.scheme != "sqlite":
        return
    try:
        lines = [line for (line,) in _asked(database, f"PRAGMA integrity_check({_LINES})")]
    except BackendUnavailable as error:
        if getattr(error.__cause__, "sqlite_errorcode", 0) & 0xFF not in _DAMAGES:
            raise
        lines = [str(error.__cause__)]
    for line in lines:
        if line != "ok":
            yield finding("damaged", database.name, f"it says: {line}")


def _has_jobs(database: Database) -> bool:
    return database.run(lambda connection: sa.inspect(connection).has_table(jobs.name), write=False)


def _indices(database: Database) -> Iterator[Finding]:
    present = {str(name): bool(valid) for name, valid in _asked(database, _PRESENT[database.scheme])}
    for name in schema.INDICES:
        if name not in present:
            yield finding("index-missing", name, "the index is not there", repairable=True)
        elif not present[name]:
            yield finding("index-invalid", name, "the index is there, but not in order", repairable=True)


_PRESENT = {
    "sqlite": "SELECT name, 1 FROM sqlite_master WHERE type = 'index' AND tbl_name = 'queuekit_jobs'",
    "postgresql": "SELECT c.relname, i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
    " WHERE i.indrelid = 'queuekit_jobs'::regclass",
}


def _statistics(database: Database) -> Iterator[Finding]:
    if database.scheme != "sqlite":
        return  # it counts by itself
    if not _asked(database, "SELECT 1 FROM sqlite_master WHERE name = 'sqlite_stat1'"):
        return
    stats = _asked(database, "SELECT stat FROM sqlite_stat1 WHERE tbl = 'queuekit_jobs'")
    known = max((int(str(stat).split()[0]) for (stat,) in stats), default=0)
    ((rows,),) = _asked(database, "SELECT count(*) FROM queuekit_jobs")
    if stats and rows >= max(_MANY_ROWS, _TIMES * known):
        what = f"they speak of {known:,} rows, and there are {rows:,}"
        yield finding("statistics-small", "sqlite_stat1", what, repairable=True)


def _asked(database: Database, statement: str) -> list[Any]:
    return list(database.run(lambda connection: connection.exec_driver_sql(statement).all(), write=False))


# -- rows


def _rows(database: Database, deep: bool, progress: Progress | None) -> Iterator[Finding]:
    clock, now = ProcessClock(), now_ms()
    total, quarantined = 0, collections.Counter[str]()
    wanted = sa.true() if deep else _suspicious()
    if progress is not None:
        total = database.run(lambda connection: connection.scalar(_count(wanted)), write=False) or 0
    for seen, row in enumerate(_pages(database, wanted)):
        if progress is not None and seen % _PAGE == 0:
            progress("rows", seen, total)
        for fault in judge(row, now, clock.send()):
            yield finding(fault.kind, f"job {row.id}", fault.what, repairable=fault.values is not None)
        if row.status == schema.DONE and _holds_no_job(row):
            quarantined[str(row.stream_id)] += 1
    for stream, count in sorted(quarantined.items()):
        yield finding("quarantined", f"stream {stream}", f"{count:,} rows hold no job", count=count)


def _suspicious() -> sa.ColumnElement[bool]:
    """All but ends whose columns are as they should be, checkpoints, and what is being moved."""
    terminal = [status.value for status in ObservationStatus if status.is_terminal]
    record = sa.func.coalesce(jobs.c.signal_status, "").not_in(terminal)
    left = jobs.c.not_before.is_not(None) | jobs.c.deferral.is_not(None)
    return sa.or_(jobs.c.status != schema.DONE, record, left)


def _count(wanted: sa.ColumnElement[bool]) -> sa.Select[Any]:
    return sa.select(sa.func.count()).select_from(jobs).where(wanted)


def _pages(database: Database, wanted: sa.ColumnElement[bool]) -> Iterator[Any]:
    page = sa.select(jobs).where(wanted).order_by(jobs.c.id).limit(_PAGE)
    last: Any = None
    while True:
        here = page if last is None else page.where(jobs.c.id > last)
        rows = database.run(lambda connection, here=here: connection.execute(here).all(), write=False)  # type: ignore[misc]
        yield from rows
        if len(rows) < _PAGE:
            return
        last = rows[-1].id


def _holds_no_job(row: Any) -> bool:
    try:
        job_of(row)
    except DecodingFailed:
        return True
    return False


# -- leases


def _unheld(url: str, ttl: float) -> Iterator[Finding]:
    backend = PersistenceKitBackend(url)
    try:
        in_flight = sa.select(jobs.c.stream_id, sa.func.count()).where(schema.is_status(schema.CUR))
        counts = in_flight.group_by(jobs.c.stream_id)
        found = backend.database.run(lambda connection: connection.execute(counts).all(), write=False)
        for stream, count in found:
            if not backend.lease(stream, ttl).is_held_by_other():
                yield finding("in-flight-unheld", f"stream {stream}", f"{count:,} jobs are in flight", count=count)
    finally:
        backend.close()


# -- repairs


def _set_right(database: Database, found: Finding) -> Repaired | None:
    if found.kind in {"index-missing", "index-invalid"}:
        database.run(lambda connection: schema.make_index(connection, found.path))
        return Repaired(kind=found.kind, path=found.path, did="made it")
    if found.kind == "statistics-small":
        database.run(lambda connection: connection.exec_driver_sql("ANALYZE").close())
        return Repaired(kind=found.kind, path=found.path, did="counted again")
    job_id = found.path.removeprefix("job ")
    return database.run(lambda connection: _set_row_right(connection, found, job_id))


_DID = {
    "status-unknown": "ended it with a `blocked` record",
    "not-a-job": "ended it with a `blocked` record, its bytes as they were",
    "due-missing": "made it due now",
    "deferral-unknown": "took it for put off by a person",
    "column-left": "cleared what was left",
    "no-record": "gave it a `blocked` record",
    "signal-unreadable": "gave it a `blocked` record; what the old one said is in its dossier",
}


def _set_row_right(connection: sa.Connection, found: Finding, job_id: str) -> Repaired | None:
    """Look again and act; None when the fault is gone."""
    row = connection.execute(sa.select(jobs).where(jobs.c.id == job_id).with_for_update()).one_or_none()
    if row is None:
        return None
    for fault in judge(row, now_ms(), ProcessClock().send()):
        if fault.kind == found.kind and fault.values is not None:
            connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values(**fault.values))
            return Repaired(kind=found.kind, path=found.path, did=_DID[fault.kind])
    return None
