"""Accepting jobs: one INSERT each, one transaction for a batch, or inside a transaction of the caller's.

In a database an id names one job. The same job sent again is success, whatever has become of it; another job under an
id that is taken is refused, and a batch with one is refused whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from queuekit.backends.admission import prepare, same_job
from queuekit.backends.sql import schema
from queuekit.backends.sql.rows import job_of, values_of
from queuekit.backends.sql.schema import jobs
from queuekit.backends.sql.store import Store, portions
from queuekit.errors import DecodingFailed, WriteFailed
from queuekit.job import Job


class Sender:
    """The producing side of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def send(self, accepted: Iterable[Job], due_ms: int | None = None) -> int:
        """Accept jobs in one transaction; durable when it returns. Returns how many there were.

        Raises `InvalidIdentifier` or `WriteFailed` before anything is written.
        """
        checked = self._checked(accepted)
        if not checked:
            return 0
        named = {job.id: job for job in checked}
        what = f"job {next(iter(named))}" if len(named) == 1 else f"a batch of {len(named)} jobs"
        self._store.database.run(
            lambda connection: self._insert(connection, named, due_ms), failure=lambda reason: WriteFailed(what, reason)
        )
        self._store.database.notify({job.stream_id for job in named.values()})
        if due_ms is not None:
            self._store.deferrals.forget_looks()
        return len(checked)

    def send_within(self, connection: sa.Connection, accepted: Iterable[Job], due_ms: int | None = None) -> int:
        """Accept jobs in the caller's transaction: they are there when it commits, and never were when it does not."""
        database = self._store.database
        database.check_theirs(connection)
        checked = self._checked(accepted)
        if not checked:
            return 0
        named = {job.id: job for job in checked}
        try:
            self._insert(connection, named, due_ms)
            database.notify_within(connection, {job.stream_id for job in named.values()})
        except sa.exc.DBAPIError as error:
            raise WriteFailed(f"{len(named)} jobs within a transaction", str(error.orig).strip()) from error
        return len(checked)

    def _checked(self, accepted: Iterable[Job]) -> list[Job]:
        checked = list(accepted)
        seen: dict[str, Job] = {}
        for job in checked:
            prepare(job, self._store.max_job_bytes)
            if not same_job(seen.setdefault(job.id, job), job):
                raise WriteFailed(f"job {job.id}", "the batch holds another job with this id")
        return checked

    def _insert(self, connection: sa.Connection, named: dict[Any, Job], due_ms: int | None) -> None:
        rows = [{**values_of(job), **_place(due_ms)} for job in named.values()]
        statement = schema.insert_if_absent(connection, jobs)
        if len(rows) == 1:
            inserted = connection.execute(statement.values(rows[0])).rowcount
        else:
            inserted = connection.execute(statement, rows).rowcount
        if inserted != len(rows):
            absent = named.keys() - self._check_present(connection, named)
            if absent:  # what had the id when it was inserted has been removed since
                self._insert(connection, {job_id: named[job_id] for job_id in absent}, due_ms)

    def _check_present(self, connection: sa.Connection, named: dict[Any, Job]) -> set[Any]:
        """The ids that are there. Each must be of the job that was sent."""
        present = set()
        for portion in portions(named):
            for row in connection.execute(sa.select(jobs).where(jobs.c.id.in_(portion))):
                present.add(row.id)
                if row.status == schema.CHECKPOINT:
                    raise WriteFailed(f"job {row.id}", f"its id is taken by a checkpoint of stream {row.stream_id!r}")
                try:
                    same = same_job(job_of(row), named[row.id])
                except DecodingFailed:
                    same = False
                if not same:
                    raise WriteFailed(f"job {row.id}", f"its id is taken by another job, of stream {row.stream_id!r}")
        return present


def _place(due_ms: int | None) -> dict[str, Any]:
    if due_ms is None:
        return {"status": schema.NEW}
    return {"status": schema.LATER, "not_before": due_ms, "deferral": schema.SCHEDULED}
