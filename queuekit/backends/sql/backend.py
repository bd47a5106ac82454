"""`PersistenceKitBackend`: the queue in a database, as a `QueueBackend`. Each verb is one short transaction.

The table is shared with the other ports (`schema.py`). SQLite is one file for one machine; in PostgreSQL many machines
may work one stream (`lease(…, exclusive=False)`). A job is one row for all its life, and every move is one UPDATE that
names where the job must be for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from queuekit.backends.admission import DEFAULT_MAX_JOB_BYTES
from queuekit.backends.sql import leases, schema
from queuekit.backends.sql.checkpoints import SqlCheckpoints
from queuekit.backends.sql.claiming import Claimer
from queuekit.backends.sql.database import Database
from queuekit.backends.sql.people import People
from queuekit.backends.sql.reading import Reader
from queuekit.backends.sql.sending import Sender
from queuekit.backends.sql.settling import Settler
from queuekit.backends.sql.sqlite import SqliteDatabase
from queuekit.backends.sql.store import Store
from queuekit.backends.sql.transfer import SqlTransfer
from queuekit.clock import ProcessClock
from queuekit.completion import ArtifactRef, Completion, SignalFile
from queuekit.contract import JobView, Lease, PutAside, QueueBackend, Tally, Watcher
from queuekit.errors import JobNotFound
from queuekit.hlc import HLCGenerator
from queuekit.ids import JobID, SessionID, check_identifier
from queuekit.job import Claimed, Job
from queuekit.lease import DEFAULT_TTL
from queuekit.lifecycle import State
from queuekit.status import ObservationStatus, check_terminal
from queuekit.watch.base import wait_loop

PATIENCE_SECONDS = 10.0


class PersistenceKitBackend(QueueBackend):
    """The jobs of one database.

    `url`: `sqlite:PATH` (made if absent, mode 0600) or `postgresql://user@host/database` (its tables are made);
    `durability`: `full` and `batch` sync every commit, `none` leaves that to the database's leisure; `max_job_bytes`:
    the largest payload accepted; `hlc`: the generator for `completed_at`; `patience`: seconds for which a busy database
    is waited for; `poll`: seconds between two looks at SQLite where the system announces no change of its file.

    Raises `ValueError` for another kind of URL, `BackendUnavailable` when the store cannot be opened or has been
    written by a newer version.
    """

    def __init__(
        self,
        url: str,
        *,
        durability: str = "full",
        max_job_bytes: int = DEFAULT_MAX_JOB_BYTES,
        hlc: HLCGenerator | None = None,
        patience: float = PATIENCE_SECONDS,
        poll: float | None = None,
    ) -> None:
        self.database = open_database(url, durability=durability, patience=patience)
        self._patience = patience
        self._poll = poll
        store = Store(database=self.database, clock=ProcessClock(hlc), max_job_bytes=max_job_bytes)
        self._store = store
        self._sender, self._claimer = Sender(store), Claimer(store, self._refuse_if_leased)
        self._settler, self._people, self._reader = Settler(store), People(store), Reader(store)
        self._checkpoints = SqlCheckpoints(store)
        if isinstance(self.database, SqliteDatabase):
            self._folder = self.database.folder
        else:
            self._folder = leases.alive_folder()
        try:
            if self.database.run(schema.version_of, write=False) != schema.VERSION:  # else no writer is waited for
                self.database.run(lambda connection: schema.migrate(connection, self.database.name))
        except BaseException:
            self.database.close()
            raise

    # -- producing

    def write(self, job: Job, *, due_ms: int | None = None) -> None:
        """Accept one job; committed when it returns. The same job again is success, another under its id is refused."""
        self._sender.send([job], due_ms)

    def write_batch(self, jobs: Iterable[Job]) -> int:
        """Accept many in one transaction: all of them or, with an error, none."""
        return self._sender.send(jobs)

    def write_within(self, connection: Any, jobs: Iterable[Job], *, due_ms: int | None = None) -> int:
        """Accept jobs in the caller's own transaction on the same database (a SQLAlchemy connection)."""
        return self._sender.send_within(connection, jobs, due_ms)

    # -- consuming

    def drain_available(
        self, stream: str | None = None, limit: int | None = None, *, lease: Lease | None = None
    ) -> list[Claimed]:
        """Claim what is pending; without a lease it raises `LeaseLost` while somebody holds a fresh one."""
        return self._claimer.drain(stream, limit, lease)

    def complete(
        self,
        job_id: str,
        status: ObservationStatus | str,
        artifacts: Sequence[ArtifactRef] = (),
        *,
        dossier: Mapping[str, Any] | None = None,
        lease: Lease | None = None,
    ) -> None:
        """End one job in flight."""
        completion = Completion(JobID(job_id), check_terminal(status), artifacts, dossier)
        if not self._settler.complete_all([completion], lease):
            raise JobNotFound(job_id, "it is not in flight")

    def complete_batch(self, completions: Sequence[Completion], *, lease: Lease | None = None) -> int:
        """End many in one transaction; those not in flight are skipped and not counted."""
        return self._settler.complete_all(completions, lease)

    def complete_session(
        self, session_id: SessionID, status: ObservationStatus | str, *, lease: Lease | None = None
    ) -> int:
        """End every job of one drain call that is still in flight, whoever made the call."""
        return self._settler.complete_session(session_id, status, lease)

    def release(self, job_id: str, *, lease: Lease | None = None) -> None:
        """Give back a job in flight, or make a deferred one pending now."""
        try:
            self._settler.release(job_id, lease)
        except JobNotFound:
            if lease is not None:
                raise
            self._people.run_now(job_id)

    def defer(
        self, job_id: str, due_ms: int, *, error: str = "", crashed: bool = False, lease: Lease | None = None
    ) -> None:
        """Put a job in flight off, with one attempt more in its record."""
        self._settler.defer(job_id, due_ms, error, crashed, lease)

    def reclaim_in_flight(self, stream: str, *, lease: Lease | None = None) -> int:
        """Every job of the stream in flight becomes pending again; under a shared lease, those of the dead."""
        return self._claimer.reclaim(stream, lease)

    def rescue_strays(self, stream: str, *, lease: Lease) -> int:
        """What is in flight in the stream and belongs to nobody who lives becomes pending again."""
        return self._claimer.rescue(stream, lease)

    def adopt(self, job_id: str, *, lease: Lease) -> Claimed | None:
        """Take over one job that a dead consumer left in flight; None when it is not there, or somebody works on it."""
        return self._claimer.adopt(job_id, lease)

    def drop_claims(self, stream: str) -> None:
        """Forget what this instance has claimed in a stream."""
        self._store.claims.drop_stream(stream)

    # -- a person's verbs

    def run_now(self, job_id: str) -> None:
        """Make a deferred job pending."""
        self._people.run_now(job_id)

    def cancel(self, job_id: str) -> None:
        """End a pending or deferred job as `blocked`."""
        self._people.cancel(job_id)

    def retry(self, job_id: str) -> None:
        """Make a finished job pending again; its earlier end is kept in its dossier."""
        self._people.retry(job_id)

    def prune(
        self,
        older_than: float,
        *,
        limit: int | None = None,
        stream: str | None = None,
        lease: Lease | None = None,
        statuses: Collection[ObservationStatus] | None = None,
    ) -> int:
        """Remove the rows of jobs that ended more than `older_than` seconds ago."""
        return self._people.prune(older_than, limit, stream, lease, statuses)

    # -- reading

    def tally(self, stream: str | None = None) -> Tally:
        """How many jobs are where."""
        return self._reader.tally(stream)

    def pending_count(self, stream: str | None = None) -> int:
        """How many are pending."""
        return self._reader.count(State.NEW, stream)

    def in_flight_count(self, stream: str | None = None) -> int:
        """How many are claimed and not ended."""
        return self._reader.count(State.CUR, stream)

    def in_flight(self, stream: str | None = None) -> list[Job]:
        """The jobs that are claimed and not ended."""
        return self._reader.readable(State.CUR, stream)

    def completed(self, stream: str | None = None) -> list[Job]:
        """The jobs that have ended and are kept."""
        return self._reader.readable(State.DONE, stream)

    def signal(self, job_id: str) -> SignalFile | None:
        """How a job ended."""
        return self._reader.signal(job_id)

    def look_up(self, job_id: str) -> JobView | None:
        """One job, wherever it is."""
        return self._reader.look_up(job_id)

    def jobs(self, states: Collection[State], stream: str | None = None) -> Iterator[JobView | PutAside]:
        """The jobs in these states, a page at a time."""
        return self._reader.jobs(states, stream)

    def blocked_counts(self, *, at_most: int) -> dict[str, int]:
        """How many jobs of each stream have ended `blocked`, of those that ended last."""
        return self._reader.blocked_counts(at_most)

    def ids_beginning(self, typed: str) -> list[str]:
        """The ids that begin so."""
        return self._reader.ids_beginning(typed)

    def put_aside(self, typed: str) -> PutAside | None:
        """A row that ended because it holds no job."""
        return self._reader.put_aside(typed)

    def streams(self, at_most: int | None = None) -> set[str]:  # noqa: ARG002  all of them are no more work
        """The streams of jobs that have not ended."""
        return self._reader.streams()

    def next_due(self, stream: str | None = None) -> float | None:
        """Seconds until the next deferred job that is known here is due; None when there is none."""
        return self._reader.next_due(stream)

    # -- waking, leases, life

    def watcher(self, stream: str | None = None) -> Watcher:  # noqa: ARG002  a spurious wake is fine
        """A watcher that says "look" when something was committed that may be an arrival."""
        return self.database.watcher(self._poll if isinstance(self.database, SqliteDatabase) else None)

    def look_again(self) -> None:
        """Ask the database for due times again, too."""
        self._store.deferrals.forget_looks()

    def watch(self, on_wake: Callable[[], None], stop: threading.Event | None = None) -> None:
        """Call `on_wake` once, then at every arrival, until `stop` is set."""
        watcher = self.watcher()
        try:
            wait_loop(watcher, lambda _: on_wake(), stop, next_due=self.next_due)
        finally:
            watcher.close()

    def lease(self, stream: str, ttl: float = DEFAULT_TTL, *, exclusive: bool = True) -> leases.SqlLease:
        """A new lease object for the stream, not yet acquired. Raises `ValueError` for a shared one on SQLite."""
        check_identifier(stream)
        if isinstance(self.database, SqliteDatabase):
            if not exclusive:
                raise ValueError(
                    "SQLite is for one machine: a stream has one consumer at a time, its lease is exclusive"
                )
            return leases.FileAndRowLease(self.database, stream, ttl, self._folder, self._patience)
        kind = leases.RowLease if exclusive else leases.SharedLease
        return kind(self.database, stream, ttl, self._folder)

    def sharers(self, stream: str) -> dict[str, float]:
        """Who shares a stream, and for how many seconds each has not renewed its session."""
        return leases.sharers(self.database, stream)

    def _refuse_if_leased(self, stream: str | None) -> None:
        if isinstance(self.database, SqliteDatabase):
            leases.refuse_if_leased_by_file(stream, self._folder)
        else:
            leases.refuse_if_leased(self.database, stream, self._folder)

    @property
    def checkpoints(self) -> SqlCheckpoints:
        """The checkpoints of this database: rows of the jobs' table with a status of their own."""
        return self._checkpoints

    def transfer(self) -> SqlTransfer:
        """This store's part in a move to or from another one."""
        return SqlTransfer(self._store)

    def close(self) -> None:
        """Close this process's connections. Jobs in flight stay in flight."""
        self.database.close()


def open_database(url: str, *, durability: str = "full", patience: float = PATIENCE_SECONDS) -> Database:
    """The database that a store's URL names. Raises `ValueError` for another kind of URL."""
    scheme, _, rest = url.partition(":")
    if scheme == "sqlite" and rest:
        return SqliteDatabase(rest, durability=durability, patience=patience)
    if scheme == "postgresql":
        from queuekit.backends.sql.postgres import PostgresDatabase  # psycopg is an extra of its own

        return PostgresDatabase(url, durability=durability, patience=patience)
    raise ValueError(f"{url!r} is no database: write sqlite:PATH or postgresql://user@host/database")


__all__ = ["PersistenceKitBackend", "open_database"]
