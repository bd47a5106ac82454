"""PostgreSQL: the store for many machines, by psycopg 3.

**Nobody waits for ever.** Locks are waited for `patience` seconds, a statement may take `ANSWER_SECONDS - 1` more (both
kept by the server), and a server that does not answer at all, because it is stopped or the network swallows everything,
is given up by this side after `patience + ANSWER_SECONDS`: the connection is dropped then, and whether a COMMIT under
way took effect is unknown. The server in turn gives up a client that stands still inside a transaction for as long, so
that its locks do not outlive it. What the URL says wins over these settings where both speak.

**Waking.** NOTIFY comes after the commit, since inside it would serialize all commits of the database; it is a commit
of its own that needs no disk. Whoever listens looks by itself now and then, so a lost one is made up for.

**Forks.** A child replaces its copy of the socket by a dead one: nothing that it does can reach the parent's session.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections.abc import Collection
from typing import Any, TypeVar

import psycopg
import sqlalchemy
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from queuekit.backends.sql.database import Database, Failed, Held, Trouble, log
from queuekit.contract import Watcher

RV = TypeVar("RV")

CHANNEL = "queuekit"
ANSWER_SECONDS = 3.0
_CONNECT_SECONDS = (2, 5)  # at least, at most
_POLL_SECONDS = 2.0
_PAYLOAD_BYTES = 7000  # the server takes up to 7999

_AGAIN = frozenset({"40001", "40P01"})
_READ_ONLY = "25006"  # a primary that became a standby: connect anew
_RING = "SELECT set_config('synchronous_commit', 'off', true), pg_notify(%s, %s)"
_SETTINGS = """
    SELECT set_config('statement_timeout', %(statement)s, false), set_config('lock_timeout', %(lock)s, false),
        set_config('idle_in_transaction_session_timeout', %(idle)s, false),
        set_config('default_transaction_isolation', 'read committed', false),
        set_config('synchronous_commit', CASE WHEN %(sync)s = 'off' THEN 'off'
            WHEN current_setting('synchronous_commit') = 'off' THEN 'on'
            ELSE current_setting('synchronous_commit') END, false)
"""


def _is_news(record: logging.LogRecord) -> bool:
    """Whether what the driver logs is not raised, too: the end of a batch that failed is, with the reason."""
    return not record.getMessage().startswith("error ignored terminating")


logging.getLogger("psycopg").addFilter(_is_news)


class PostgresDatabase(Database):
    """The database that `url` (as libpq takes it: `postgresql://user@host:port/name?…`) leads to. See `Database`.

    Nothing is connected before it is used. Raises `ValueError` when the URL cannot be understood.
    """

    scheme = "postgresql"
    now_ms = sqlalchemy.literal_column(
        "CAST(FLOOR(EXTRACT(EPOCH FROM clock_timestamp()) * 1000) AS BIGINT)", sqlalchemy.BigInteger
    )

    def __init__(self, url: str, *, durability: str = "full", patience: float = 10.0) -> None:
        try:
            given = conninfo_to_dict(url)
        except psycopg.ProgrammingError:  # its text has the URL in it, and so the password
            given = {}
        if not _is_unambiguous(given):
            raise ValueError(
                "this is no PostgreSQL URL: write postgresql://user@host/database, in which the special characters of a"
                " password are encoded, as %40 for @"
            )
        super().__init__(_name(given), durability=durability, patience=patience)
        self._conninfo = make_conninfo("", **{**_connecting(patience), **given})

    def notify(self, streams: Collection[str]) -> None:
        """One NOTIFY, committed when this returns."""
        if not streams or self._closed:
            return
        payload, began = _payload(streams), time.monotonic()
        try:
            if not self._ring(payload) and time.monotonic() - began < self.patience:
                self._ring(payload)
        except (psycopg.Error, Failed) as error:
            log.debug("%s: a wake was lost: %s", self.name, error)

    def _ring(self, payload: str) -> bool:
        """False when an older connection turned out to be lost: then it is worth another try."""
        with self._in_use() as held:
            try:
                _ring(held.driver, payload)
            except psycopg.OperationalError:
                if not held.driver.closed:
                    raise
                held.broken = True
                self._reach.lost(held.opened)
                if held.fresh:
                    raise
                return False
            held.fresh = False
            self._reach.succeeded()
            return True

    def notify_within(self, connection: sqlalchemy.Connection, streams: Collection[str]) -> None:
        """One NOTIFY that goes out with the commit of `connection`."""
        if streams:
            connection.execute(sqlalchemy.select(sqlalchemy.func.pg_notify(CHANNEL, _payload(streams))))

    def watcher(self, poll: float | None = None) -> Watcher:
        """See `listen`."""
        from queuekit.backends.sql.listen import NotifyWatcher

        return NotifyWatcher(self._conninfo, self.name, poll=_POLL_SECONDS if poll is None else poll)

    def _make_engine(self) -> sqlalchemy.Engine:
        return sqlalchemy.create_engine(
            "postgresql+psycopg://", creator=self._open, poolclass=NullPool, use_native_hstore=False
        )

    def _open(self) -> AnsweringConnection:
        connection = AnsweringConnection.connect(self._conninfo, autocommit=True)
        connection.answer_seconds = self.patience + ANSWER_SECONDS
        try:
            connection.execute(
                _SETTINGS,
                {
                    "lock": _ms(self.patience),
                    "statement": _ms(self.patience + ANSWER_SECONDS - 1),
                    "idle": _ms(self.patience + ANSWER_SECONDS),
                    "sync": "off" if self.durability == "none" else "on",
                },
            )
            connection.autocommit = False
        except BaseException:
            connection.close()
            raise
        return connection

    def _begin(self, connection: sqlalchemy.Connection, write: bool) -> None:
        """The driver begins with the first statement; what only reads needs no transaction around each statement."""
        driver: Any = connection.connection.driver_connection
        driver.autocommit = not write

    def _trouble(self, error: DBAPIError) -> Trouble:
        state = getattr(error.orig, "sqlstate", None) or ""
        if state in _AGAIN:
            return Trouble.AGAIN
        if error.connection_invalidated or state == _READ_ONLY or state.startswith(("08", "57P")):
            return Trouble.LOST
        return Trouble.OTHER

    def _forget(self, held: Held) -> None:
        silence(held.driver.pgconn)


class AnsweringConnection(psycopg.Connection[Any]):
    """A connection that breaks when the server says nothing at all for `answer_seconds`."""

    answer_seconds = 10.0

    def wait(self, gen: PQGen[RV], *args: Any, **options: Any) -> RV:
        """What the driver does to wait for its socket."""
        return super().wait(self._bounded(gen), *args, **options)

    def _bounded(self, gen: PQGen[RV]) -> PQGen[RV]:
        """The same conversation; the driver comes back with nothing every tenth of a second while nothing happens."""
        deadline = time.monotonic() + self.answer_seconds
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() > deadline:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"the server does not answer for {self.answer_seconds:g} s")
                wanted = gen.send(ready)
        except StopIteration as done:
            value: RV = done.value
            return value


def silence(pgconn: psycopg.pq.abc.PGconn) -> None:
    """In a forked child: put a dead socket where its copy of the connection's was."""
    try:
        inherited = pgconn.socket
    except psycopg.OperationalError:
        return  # it was closed before
    dead, other = socket.socketpair()
    other.close()
    os.dup2(dead.fileno(), inherited, inheritable=False)
    dead.close()


def _ring(driver: AnsweringConnection, payload: str) -> None:
    driver.autocommit = True
    driver.execute(_RING, (CHANNEL, payload))
    driver.autocommit = False


def _payload(streams: Collection[str]) -> str:
    """The streams, for whoever listens with other tools; nothing when they are too many."""
    listed = ",".join(sorted(streams))
    return listed if len(listed.encode()) <= _PAYLOAD_BYTES else ""


def _connecting(patience: float) -> dict[str, str | int]:
    answer = patience + ANSWER_SECONDS
    shortest, longest = _CONNECT_SECONDS
    return {
        "application_name": "queuekit",
        "connect_timeout": min(max(math.ceil(patience), shortest), longest),
        "keepalives": 1,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": round(answer * 1000),
    }


def _name(given: dict[str, Any]) -> str:
    """What messages call it: no password, no options."""
    user = f"{given['user']}@" if given.get("user") else ""
    port = f":{given['port']}" if given.get("port") else ""
    return f"postgresql://{user}{given.get('host') or given.get('hostaddr') or ''}{port}/{given.get('dbname') or ''}"


def _is_unambiguous(given: dict[str, Any]) -> bool:
    """Whether no part of a password with an @ or / in it was taken for the host, which messages name."""
    places = "".join(str(given.get(each) or "") for each in ("host", "hostaddr", "port", "dbname"))
    ports = str(given.get("port") or "").replace(",", "")
    return bool(given) and "@" not in places and (not ports or ports.isdecimal())


def _ms(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))
