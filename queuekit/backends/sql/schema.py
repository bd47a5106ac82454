"""The tables of a queue in a database, and how a store of an older version becomes one of this.

`queuekit_jobs` is a contract with the other ports: its first twelve columns, its primary key and its first three
indices are theirs. Our columns are additions that they leave alone, and so is our status `later`: they look at `new`,
`cur` and `done` only, so a job that is not due cannot be claimed by them. `checkpoint` rows are no jobs; nothing here
but `checkpoints.py` touches them.

Migrations are ordered, each runs once, all in one transaction that nobody else can enter. A store that is newer than
this code is refused: an older program cannot know what a newer one relies on.
"""

from __future__ import annotations

from collections.abc import Callable
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


def is_status(status: str) -> sa.ColumnElement[bool]:
    """`status = '…'` written out, not bound: only then may a database use an index over just those rows."""
    return jobs.c.status == sa.literal_column(f"'{status}'")


def insert_if_absent(connection: sa.Connection, table: sa.Table) -> Any:
    """An INSERT that leaves out what is there already, by primary key. Its row count tells how many it added."""
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    return insert(table).on_conflict_do_nothing()


ORDER = (jobs.c.physical_time, jobs.c.logical_count, jobs.c.node_id)

_SHARED_INDICES = (
    sa.Index("idx_queuekit_status", jobs.c.status),
    sa.Index("idx_queuekit_claim_order", jobs.c.status, *ORDER),
    sa.Index("idx_queuekit_stream", jobs.c.stream_id, jobs.c.status),
)


def _partial(name: str, *columns: sa.Column[Any], where: sa.ColumnElement[bool]) -> sa.Index:
    return sa.Index(name, *columns, sqlite_where=where, postgresql_where=where)


_OUR_INDICES = (
    _partial("idx_queuekit_pending", jobs.c.stream_id, *ORDER, where=is_status(NEW)),
    _partial("idx_queuekit_in_flight", jobs.c.stream_id, jobs.c.session_id, where=is_status(CUR)),
    _partial("idx_queuekit_deferred", jobs.c.stream_id, jobs.c.not_before, where=is_status(LATER)),
    _partial("idx_queuekit_ended", jobs.c.completed_at, where=is_status(DONE)),
)


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
        index.create(connection, checkfirst=True)
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
