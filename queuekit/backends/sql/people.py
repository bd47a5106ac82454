"""A person's verbs: run now, cancel, retry, prune. Each is one look and one UPDATE in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import sqlalchemy as sa

from queuekit.backends.sql import schema
from queuekit.backends.sql.rows import (
    JOB_COLUMNS,
    NO_END,
    NOT_IN_FLIGHT,
    STATES,
    dossier_of,
    end_values,
    job_of,
    merged_dossier,
    signal_of,
)
from queuekit.backends.sql.schema import jobs
from queuekit.backends.sql.store import Store, hlc_of, portions
from queuekit.clock import now_ms
from queuekit.contract import Lease
from queuekit.errors import DecodingFailed, IllegalTransition, JobNotFound
from queuekit.ids import check_identifier
from queuekit.job import Delivery
from queuekit.lifecycle import State, Verb, target
from queuekit.status import ObservationStatus
from queuekit.wire import encode_extensions, encode_signal

_PENDING = {"status": schema.NEW, "not_before": None, "deferral": None}


class People:
    """What people do to single jobs of one store, and to its old records."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def run_now(self, job_id: str) -> None:
        """Make a deferred job pending."""

        def act(connection: sa.Connection, row: Any) -> dict[str, Any]:  # noqa: ARG001
            if STATES[row.status] is not State.LATER:
                raise IllegalTransition(Verb.RELEASE, STATES[row.status], job_id)
            return _PENDING

        self._change(job_id, Verb.RELEASE, act)

    def cancel(self, job_id: str) -> None:
        """End a pending or deferred job as `blocked`."""

        def act(connection: sa.Connection, row: Any) -> dict[str, Any]:  # noqa: ARG001
            facts = {"ended": "cancelled", "was": str(STATES[row.status]), "at_ms": now_ms()}
            ended = end_values(ObservationStatus.BLOCKED, self._store.clock.receive(hlc_of(row)))
            return {**_PENDING, **ended, "dossier": merged_dossier(row, facts)}

        self._change(job_id, Verb.CANCEL, act, tell=False)

    def retry(self, job_id: str) -> None:
        """Make a finished job pending again with its attempts reset; its earlier end is kept in its dossier."""

        def act(connection: sa.Connection, row: Any) -> dict[str, Any]:
            signal = signal_of(row)
            if signal is None:
                raise IllegalTransition(Verb.RETRY, "without a record of its end", job_id)
            try:
                job = job_of(connection.execute(sa.select(*JOB_COLUMNS).where(jobs.c.id == job_id)).one())
            except DecodingFailed as error:
                raise IllegalTransition(Verb.RETRY, f"unreadable ({error.reason})", job_id) from error
            ends = (dossier_of(row) or {}).get("earlier_ends", [])
            return {
                **NO_END,
                **NOT_IN_FLIGHT,
                "status": schema.NEW,
                "extensions": encode_extensions(Delivery().onto(job).extensions),
                "dossier": merged_dossier(row, {"earlier_ends": [*ends, encode_signal(signal).decode()]}),
            }

        self._change(job_id, Verb.RETRY, act)

    def _change(
        self,
        job_id: str,
        verb: Verb,
        values: Callable[[sa.Connection, Any], dict[str, Any]],
        *,
        tell: bool = True,
    ) -> None:
        """One job from where it is to where the verb takes it. Raises `JobNotFound` or `IllegalTransition`."""
        check_identifier(job_id)

        def act(connection: sa.Connection) -> str:
            row = self._store.look(connection, [job_id]).get(job_id)
            if row is None or row.status not in STATES:
                raise JobNotFound(job_id)
            target(STATES[row.status], verb, job_id)
            connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values(**values(connection, row)))
            return str(row.stream_id)

        stream = self._store.database.run(act)
        self._store.deferrals.forget([job_id])
        self._store.deferrals.forget_looks()
        if tell:
            self._store.database.notify({stream})

    def prune(
        self,
        older_than: float,
        limit: int | None,
        stream: str | None,
        lease: Lease | None,
        statuses: Collection[ObservationStatus] | None,
    ) -> int:
        """Remove the records of what ended more than `older_than` seconds ago, those that ended first first.

        Ends that another port has written bear no time; the time when the job was sent counts for them.
        """

        def act(connection: sa.Connection) -> int:
            if lease is not None:
                self._store.verify(connection, stream or lease.stream, lease)
            horizon = int(connection.scalar(sa.select(self._store.database.now_ms)) or 0) - int(older_than * 1000)
            streams = schema.leaps(connection, jobs.c.stream_id) if stream is None else [stream]
            found = [
                row
                for each in streams
                for kind in _kinds(connection, each, statuses)
                for row in _old(connection, each, kind, horizon, limit)
            ]
            found.sort(key=lambda row: row.ended)
            return sum(
                connection.execute(sa.delete(jobs).where(jobs.c.id.in_(portion))).rowcount
                for portion in portions([schema.as_read(row.id) for row in found[:limit]])
            )

        return self._store.database.run(act)


def _kinds(connection: sa.Connection, stream: str, statuses: Collection[ObservationStatus] | None) -> list[str | None]:
    """What the rows that are meant have as their `signal_status`."""
    if statuses is None:
        here = schema.within(schema.DONE, stream)
        return [None, *schema.leaps(connection, jobs.c.signal_status, *here)]
    unrecorded = [None] if ObservationStatus.BLOCKED in statuses else []
    return [*unrecorded, *(status.value for status in statuses)]


def _old(connection: sa.Connection, stream: str, kind: str | None, horizon: int, limit: int | None) -> list[Any]:
    """The rows of a stream that ended in one way before the horizon, the oldest ones, locked: `(id, ended)`."""
    here = [*schema.within(schema.DONE, stream), jobs.c.signal_status == kind]
    dated = sa.select(jobs.c.id, jobs.c.completed_at.label("ended")).where(*here, jobs.c.completed_at <= horizon)
    undated = sa.select(jobs.c.id, jobs.c.physical_time.label("ended")).where(*here, jobs.c.completed_at.is_(None))
    oldest = (
        dated.order_by(jobs.c.signal_status, jobs.c.completed_at),
        undated.order_by(jobs.c.signal_status, jobs.c.physical_time),
    )
    return [
        row
        for wanted in oldest
        for row in connection.execute(wanted.limit(limit).with_for_update(skip_locked=True))
        if row.ended <= horizon  # as a condition for the undated, it would lead SQLite to another index
    ]
