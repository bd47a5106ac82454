"""Gathers the facts about a store in PostgreSQL. Nothing is made or migrated.

The NOTIFY that is tried goes to a channel of our own: no pool wakes for it.
"""

from __future__ import annotations

import os
import time
from typing import Any

import psycopg
import sqlalchemy as sa

from queuekit.backends.sql import leases, schema
from queuekit.backends.sql.postgres import PostgresDatabase
from workerpool.cli.diagnosis.look_sqlite import count_rows
from workerpool.cli.diagnosis.look_tenants import lease_of
from workerpool.cli.diagnosis.postgres import Postgres
from workerpool.cli.diagnosis.tenants import Jobs, Lease
from workerpool.config import PoolConfig

CONNECTIONS_A_STREAM = 2
_ROUND_TRIPS = 10
_NOTIFY_SECONDS = 2.0
_SETTINGS = ("fsync", "synchronous_commit", "full_page_writes", "autovacuum", "TimeZone", "server_version_num")
_ACTS = ("SELECT", "INSERT", "UPDATE", "DELETE")


def look_at_postgres(config: PoolConfig, *, pool_runs: bool) -> tuple[Postgres, Jobs | None, tuple[Lease, ...]]:
    """The server, the store's jobs (None: they may not be read), and who holds what.

    Raises `BackendUnavailable` when it cannot be asked.
    """
    database = PostgresDatabase(config.store.url, durability=config.store.durability.value, patience=5.0)
    try:
        facts = database.run(lambda connection: _server(connection, database, config, pool_runs), write=False)
        if facts.missing_privileges:
            return facts, None, ()
        counted = database.run(lambda connection: count_rows(connection, config), write=False)
        return facts, counted, database.run(lambda connection: _leases(connection, database), write=False)
    finally:
        database.close()


def _server(connection: sa.Connection, database: PostgresDatabase, config: PoolConfig, pool_runs: bool) -> Postgres:
    def ask(words: str, **values: object) -> Any:
        return connection.execute(sa.text(words), values).one()[0]

    ahead, uncertain, trips = _clock(connection, database)
    settings = {name: str(ask("SELECT current_setting(:name)", name=name)) for name in _SETTINGS}
    rows = _rows(connection)
    missing = tuple(_missing_privileges(connection))
    return Postgres(
        name=database.name,
        version=str(ask("SHOW server_version")),
        number=int(settings.pop("server_version_num")),
        standby=bool(ask("SELECT pg_is_in_recovery()")),
        encoding=str(ask("SHOW server_encoding")),
        round_trip_ms=trips,
        ahead=ahead,
        uncertain=uncertain,
        notify_ms=_notify(config.store.url),
        settings=settings,
        connections=int(ask("SELECT sum(numbackends) FROM pg_stat_database")),
        connections_free=_free_connections(ask),
        pool_runs=pool_runs,
        needed=CONNECTIONS_A_STREAM * len(config.streams),
        schema=None if missing else schema.version_of(connection),
        known=schema.VERSION,
        missing_privileges=missing,
        bytes=int(ask("SELECT pg_database_size(current_database())")),
        dead_rows=rows[0],
        live_rows=rows[1],
        durability=config.store.durability.value,
    )


def _clock(connection: sa.Connection, database: PostgresDatabase) -> tuple[float, float, tuple[float, ...]]:
    """Seconds that its clock is ahead, by the quickest round trip; how exactly that is known; ms of each round trip."""
    ahead, uncertain, trips = 0.0, float("inf"), []
    for _ in range(_ROUND_TRIPS):
        before, begun = time.time(), time.perf_counter()
        theirs = float(connection.scalar(sa.select(database.now_ms)) or 0) / 1000
        took = time.perf_counter() - begun
        trips.append(took * 1000)
        if took / 2 < uncertain:
            ahead, uncertain = theirs - (before + took / 2), took / 2
    return ahead, max(uncertain, 0.001), tuple(trips)  # it is told in whole ms


def _notify(url: str) -> float | None:
    """Milliseconds that a NOTIFY takes to come back; None when it does not."""
    channel = f"queuekit_doctor_{os.getpid()}_{os.urandom(4).hex()}"
    try:
        with psycopg.connect(url, autocommit=True, connect_timeout=5) as session:
            session.execute(f"LISTEN {channel}")  # our own word: letters, digits, _
            begun = time.perf_counter()
            session.execute("SELECT pg_notify(%s, '')", (channel,))
            for _ in session.notifies(timeout=_NOTIFY_SECONDS, stop_after=1):
                return (time.perf_counter() - begun) * 1000
    except psycopg.Error:  # a standby, or a pooler, that does not know LISTEN
        return None
    return None


def _free_connections(ask: Any) -> int:
    """How many more this role may open in this database, by the least of the limits. A limit below 0 is none."""
    used, reserved = "SELECT sum(numbackends) FROM pg_stat_database", "SHOW superuser_reserved_connections"
    left = [int(ask("SHOW max_connections")) - int(ask(reserved)) - int(ask(used))]
    of_role = "SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user"
    of_database = "SELECT datconnlimit FROM pg_database WHERE datname = current_database()"
    for limit, used in (
        (of_role, "SELECT count(*) FROM pg_stat_activity WHERE usename = current_user"),
        (of_database, "SELECT numbackends FROM pg_stat_database WHERE datname = current_database()"),
    ):
        if (most := int(ask(limit))) >= 0:
            left.append(most - int(ask(used)))
    return max(0, min(left))


def _missing_privileges(connection: sa.Connection) -> list[str]:
    present = [table for table in schema.metadata.sorted_tables if sa.inspect(connection).has_table(table.name)]
    if not present:
        may = connection.scalar(sa.text("SELECT has_schema_privilege(current_schema(), 'CREATE')"))
        return [] if may else ["CREATE ON SCHEMA"]
    has = sa.text("SELECT has_table_privilege(:table, :act)")
    return [
        f"{act} ON {table.name}"
        for table in present
        for act in _ACTS
        if not connection.scalar(has, {"table": table.name, "act": act})
    ]


def _rows(connection: sa.Connection) -> tuple[int, int]:
    """Dead and living rows of the jobs' table as the server reckons; 0, 0 without the table."""
    words = "SELECT n_dead_tup, n_live_tup FROM pg_stat_user_tables WHERE relid = to_regclass('queuekit_jobs')"
    row = connection.execute(sa.text(words)).one_or_none()
    return (0, 0) if row is None else (int(row[0]), int(row[1]))


def _leases(connection: sa.Connection, database: PostgresDatabase) -> tuple[Lease, ...]:
    """The exclusive ones that are held, and the sessions of shared streams; ages by the server's clock."""
    found = []
    for table, shared in ((schema.leases, False), (schema.sessions, True)):
        if not sa.inspect(connection).has_table(table.name):
            continue
        age = (database.now_ms - table.c.beat).label("age")
        wanted = sa.select(table.c.stream_id, table.c.owner, age).where(table.c.owner.is_not(None))
        for row in connection.execute(wanted.order_by(table.c.stream_id, table.c.owner)):
            folder = leases.alive_folder()
            found.append(lease_of(row.stream_id, row.owner, row.age / 1000, folder, shared=shared))
    return tuple(found)
