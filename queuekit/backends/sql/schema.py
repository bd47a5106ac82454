"""The tables of a queue in a database, and how a store of an older version becomes one of this.

`queuekit_jobs` is a contract with the other ports: its first twelve columns, its primary key and its first three
indices are theirs. Our columns are additions that they leave alone, and so is our status `later`: they look at `new`,
`cur` and `done` only, so a job that is not due cannot be claimed by them. `checkpoint` rows are no jobs; nothing here
but `checkpoints.py` touches them.

Migrations are ordered, each runs once, all in one transaction that nobody else can enter. A store that is newer than
this code is refused: an older program cannot know what a newer one relies on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from queuekit.errors import BackendUnavailable

KIT = "QueueKit"
NEW, LATER, CUR, DONE, CHECKPOINT = "new", "later", "cur", "done", "checkpoint"
RETRY, SCHEDULED = "r", "s"

metadata = sa.MetaData()


def _pinned_columns() -> list[sa.Column[Any]]:
    return [
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("stream_id", sa.Text, nullable=False),
        sa.Column("physical_time", sa.BigInteger, nullable=False),
        sa.Column("logical_count", sa.Integer, nullable=False),
        sa.Column("node_id", sa.Integer, nullable=False),
        sa.Column("priority", sa.BigInteger, nullable=False, server_default="50"),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("payload", sa.LargeBinary, nullable=False),
        sa.Column("extensions", sa.Text, nullable=False),
        sa.Column("signal_status", sa.Text),
        sa.Column("artifacts", sa.Text),
        sa.Column("session_id", sa.Text),
    ]


def _added_columns() -> list[sa.Column[Any]]:
    return [
        sa.Column("not_before", sa.BigInteger),  # ms; of status `later` only
        sa.Column("deferral", sa.Text),  # RETRY or SCHEDULED; of status `later` only
        sa.Column("claimed_by", sa.Text),  # the lease under which it is in flight, with its fence
        sa.Column("completed_at", sa.BigInteger),  # the three parts of the end's timestamp
        sa.Column("completed_logical", sa.Integer),
        sa.Column("completed_node", sa.Integer),
        sa.Column("dossier", sa.Text),  # JSON
    ]


jobs = sa.Table("queuekit_jobs", metadata, *_pinned_columns(), *_added_columns())
leases = sa.Table(
    "queuekit_leases",
    metadata,
    sa.Column("stream_id", sa.Text, primary_key=True),
    sa.Column("owner", sa.Text),  # NULL: free
    sa.Column("beat", sa.BigInteger, nullable=False),  # ms, the database's clock
    sa.Column("fence", sa.BigInteger, nullable=False),
)
sessions = sa.Table(
    "queuekit_sessions",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),  # <owner>.<fence>, as in `claimed_by`
    sa.Column("stream_id", sa.Text, nullable=False),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("beat", sa.BigInteger, nullable=False),
)
versions = sa.Table(
    "queuekit_schema",
    metadata,
    sa.Column("kit", sa.Text, primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
)


Stream = str | sa.BindParameter[str] | None
"""A stream, or the parameter that will name it; None: all."""


def is_status(status: str) -> sa.ColumnElement[bool]:
    """`status = '…'`, written out."""
    return jobs.c.status == _written(status)


def within(status: str, stream: Stream = None) -> tuple[sa.ColumnElement[bool], ...]:
    """The rows of a status, and of a stream, said as our own indices say it: one of these serves, or none.

    Said plainly, several would. A database that takes the backlog for small, because it was when it looked last, finds
    one as good as the other, and may go through all rows of a status or sort all of a stream, for each claim.
    """
    found = _apart(jobs.c.status) == _written(status)
    return (found,) if stream is None else (found, _stream == stream)


def _apart(column: sa.Column[Any]) -> sa.ColumnElement[str]:
    """The same text, but nothing that an index over the column itself has."""
    return column.op("||")(_written(""))


def _written(text: str) -> sa.ColumnElement[str]:
    return sa.literal_column(f"'{text}'", sa.Text)


_stream = _apart(jobs.c.stream_id)
DUE = jobs.c.not_before + sa.literal_column("0", sa.BigInteger)
"""When a job is due, for a look at those of all streams."""


def once(value: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    """A value that is reckoned once for a whole statement. A clock is volatile to PostgreSQL: compared with a column
    for each row anew, it keeps every index from being used."""
    return sa.select(value).scalar_subquery()


def leaps(connection: sa.Connection, column: sa.Column[Any], *where: sa.ColumnElement[bool]) -> Iterator[str]:
    """What a column holds, apart from NULL, sorted: one leap in an index for each, however many rows there are."""
    least = sa.select(column).where(*where, column.is_not(None)).order_by(column).limit(1)
    found = connection.scalar(least)
    while found is not None:
        yield str(found)
        found = connection.scalar(least.where(column > as_read(found)))


class DamagedText(bytes):
    """What was read from a column of text and is no UTF-8; SQLite keeps such. It never equals a text."""


def as_read(value: Any) -> Any:
    """A value as it was read, for a comparison with its column: the damaged text that it came from, if it is that."""
    if not isinstance(value, DamagedText):
        return value
    return sa.cast(sa.literal(bytes(value), sa.LargeBinary), sa.Text)


def insert_if_absent(connection: sa.Connection, table: sa.Table) -> Any:
    """An INSERT that leaves out what is there already, by primary key. Its row count tells how many it added."""
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    return insert(table).on_conflict_do_nothing().execution_options(preserve_rowcount=True)


ORDER = (jobs.c.physical_time, jobs.c.logical_count, jobs.c.node_id)

_SHARED_INDICES = (
    sa.Index("idx_queuekit_status", jobs.c.status),
    sa.Index("idx_queuekit_claim_order", jobs.c.status, *ORDER),
    sa.Index("idx_queuekit_stream", jobs.c.stream_id, jobs.c.status),
)


def _ours(name: str, status: str, *columns: sa.ColumnElement[Any], where: Any = ()) -> sa.Index:
    rows = sa.and_(*within(status), *where)
    return sa.Index(f"idx_queuekit_{name}", *columns, sqlite_where=rows, postgresql_where=rows)


_OUR_INDICES = (
    _ours("pending", NEW, _stream, *ORDER),
    _ours("in_flight", CUR, jobs.c.session_id),
    _ours("deferred", LATER, _stream, jobs.c.not_before),
    _ours("due", LATER, DUE),
    _ours("ended", DONE, _stream, jobs.c.signal_status, jobs.c.completed_at),
    _ours(  # by another port, which writes no time
        "undated", DONE, _stream, jobs.c.signal_status, jobs.c.physical_time, where=[jobs.c.completed_at.is_(None)]
    ),
)


INDICES = {str(index.name): index for index in (*_SHARED_INDICES, *_OUR_INDICES)}
"""Every index that the table of jobs has, by name."""


def make_index(connection: sa.Connection, name: str) -> None:
    """Make one of `INDICES` anew."""
    connection.execute(sa.schema.DropIndex(INDICES[name], if_exists=True))
    connection.execute(sa.schema.CreateIndex(INDICES[name]))


def _pinned_table(connection: sa.Connection) -> None:
    """Version 1: what every port has. It may be there already, made by one of them."""
    sa.Table(jobs.name, sa.MetaData(), *_pinned_columns()).create(connection, checkfirst=True)
    for index in _SHARED_INDICES:
        index.create(connection, checkfirst=True)


def _our_additions(connection: sa.Connection) -> None:
    """Version 2: due times, leases, ends, dossiers."""
    present = {column["name"] for column in sa.inspect(connection).get_columns(jobs.name)}
    for column in _added_columns():
        if column.name not in present:
            kind = column.type.compile(connection.dialect)
            connection.execute(sa.text(f"ALTER TABLE {jobs.name} ADD COLUMN {column.name} {kind}"))
    for index in _OUR_INDICES:
        connection.execute(sa.schema.CreateIndex(index, if_not_exists=True))
    for table in (leases, sessions):
        table.create(connection, checkfirst=True)


MIGRATIONS: tuple[Callable[[sa.Connection], None], ...] = (_pinned_table, _our_additions)
"""`MIGRATIONS[n]` takes a store from version n to n + 1."""
VERSION = len(MIGRATIONS)


def version_of(connection: sa.Connection) -> int:
    """The version that a store has; 0 for one without our tables."""
    if not sa.inspect(connection).has_table(versions.name):
        return 0
    found = connection.scalar(sa.select(versions.c.version).where(versions.c.kit == KIT))
    return 0 if found is None else int(found)


def migrate(connection: sa.Connection, name: str) -> None:
    """Bring a store to this version, inside one write transaction. `name`: of the store, for messages.

    Raises `BackendUnavailable` for a store that a newer version has written.
    """
    if (
        connection.dialect.name == "postgresql"
    ):  # two starting at once: one waits; given back at the end of the transaction
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(hashtext('queuekit_schema'))"))
    version = version_of(connection)
    if version > VERSION:
        raise BackendUnavailable(
            f"{name} has schema version {version}, and this queuekit knows versions up to {VERSION}: upgrade it"
        )
    if version == VERSION:
        return
    versions.create(connection, checkfirst=True)
    for step in MIGRATIONS[version:]:
        step(connection)
    connection.execute(sa.delete(versions).where(versions.c.kit == KIT))
    connection.execute(sa.insert(versions).values(kit=KIT, version=VERSION))
