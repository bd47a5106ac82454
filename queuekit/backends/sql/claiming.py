"""Claiming: one guarded UPDATE under a fresh session; and bringing home what nobody works on any more."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from queuekit.backends.maildir.claims import Claim
from queuekit.backends.sql import schema
from queuekit.backends.sql.leases import SqlLease
from queuekit.backends.sql.rows import JOB_COLUMNS, NOT_IN_FLIGHT, UNREADABLE, end_values, job_of, merged_dossier
from queuekit.backends.sql.schema import jobs
from queuekit.backends.sql.store import Store, portions
from queuekit.contract import Lease
from queuekit.errors import DecodingFailed, LeaseLost
from queuekit.ids import SessionID, check_identifier
from queuekit.job import Claimed, Job
from queuekit.status import ObservationStatus

_log = logging.getLogger("queuekit.sql")
_PROMOTED = {"status": schema.NEW, "not_before": None, "deferral": None}


class Claimer:
    """The consuming side of one store. `refuse_if_leased(stream)` is asked before a drain without a lease."""

    def __init__(self, store: Store, refuse_if_leased: Callable[[str | None], None]) -> None:
        self._store = store
        self._refuse_if_leased = refuse_if_leased

    def drain(self, stream: str | None, limit: int | None, lease: Lease | None) -> list[Claimed]:
        """Claim what is due and pending, oldest first; what is no job is put aside, and others are taken instead."""
        if stream is not None:
            check_identifier(stream)
        if lease is None:
            self._refuse_if_leased(stream)
        elif stream is None or lease.stream != stream:
            raise LeaseLost(stream or "(all)", f"a lease of stream {lease.stream!r} was given")
        while self._has_work(stream, lease) and limit != 0:
            claimed, put_aside = self._claim(stream, limit, lease)
            if claimed or not put_aside:
                return claimed
        return []

    # -- looking

    def _has_work(self, stream: str | None, lease: Lease | None) -> bool:
        """Whether there is something to claim; takes no lock, so an idle consumer is in nobody's way."""
        database = self._store.database

        def look(connection: sa.Connection) -> tuple[bool, Any, int]:
            if lease is not None and stream is not None:
                self._store.verify(connection, stream, lease, keep=False)
            pending = sa.select(jobs.c.id).where(schema.is_status(schema.NEW), *_of(stream)).limit(1)
            soonest = (
                sa.select(jobs.c.id, jobs.c.stream_id, jobs.c.not_before)
                .where(schema.is_status(schema.LATER), *_of(stream))
                .order_by(jobs.c.not_before)
                .limit(1)
            )
            found = connection.execute(pending).first() is not None
            return found, connection.execute(soonest).first(), int(connection.scalar(sa.select(database.now_ms)) or 0)

        found, soonest, now_ms = database.run(look, write=False)
        self._store.deferrals.learn(stream, tuple(soonest) if soonest else None, now_ms, time.monotonic())
        due = soonest is not None and (soonest.not_before is None or soonest.not_before <= now_ms)
        return found or due or bool(self._store.due_ids(stream))

    # -- claiming

    def _claim(self, stream: str | None, limit: int | None, lease: Lease | None) -> tuple[list[Claimed], int]:
        """`(claimed, how many were put aside)`."""
        session = SessionID.mint()
        due_ids = self._store.due_ids(stream)

        def act(connection: sa.Connection) -> tuple[list[Job], list[Any]]:
            if lease is not None and stream is not None:
                self._store.verify(connection, stream, lease)
            self._promote(connection, stream, due_ids)
            rows = connection.execute(self._claiming(stream, limit, lease, session)).all()
            return self._sort_out(connection, rows)

        readable, put_aside = self._store.database.run(act)
        self._store.deferrals.forget(due_ids)
        for row, why in put_aside:
            _log.warning("put job %r of stream %r aside: %s", row.id, row.stream_id, why)
        for job in readable:
            self.book(job, session, lease)
        readable.sort(key=lambda job: job.submitted_at)
        return [Claimed(job=job, session_id=session) for job in readable], len(put_aside)

    def _promote(self, connection: sa.Connection, stream: str | None, due_ids: list[str]) -> None:
        due = sa.or_(jobs.c.not_before.is_(None), jobs.c.not_before <= self._store.database.now_ms)
        if due_ids:
            due = sa.or_(due, jobs.c.id.in_(due_ids[:500]))
        connection.execute(sa.update(jobs).where(schema.is_status(schema.LATER), *_of(stream), due).values(**_PROMOTED))

    def _claiming(
        self, stream: str | None, limit: int | None, lease: Lease | None, session: SessionID
    ) -> sa.UpdateBase:
        oldest = sa.select(jobs.c.id).where(schema.is_status(schema.NEW), *_of(stream)).order_by(*schema.ORDER)
        if limit is not None:
            oldest = oldest.limit(limit)
        taken = oldest.with_for_update(skip_locked=True).cte("oldest")  # looked for once, also by PostgreSQL
        return (
            sa.update(jobs)
            .where(jobs.c.id.in_(sa.select(taken.c.id)), schema.is_status(schema.NEW))
            .values(status=schema.CUR, session_id=str(session), claimed_by=_tag(lease))
            .returning(*JOB_COLUMNS, jobs.c.dossier)
        )

    def _sort_out(self, connection: sa.Connection, rows: Any) -> tuple[list[Job], list[Any]]:
        """`(jobs, rows that hold none, each with the reason)`; the latter are ended as `blocked`, their bytes kept."""
        readable: list[Job] = []
        put_aside: list[Any] = []
        for row in rows:
            try:
                readable.append(job_of(row))
            except DecodingFailed as error:
                put_aside.append((row, error.reason))
                ended = end_values(ObservationStatus.BLOCKED, self._store.clock.send())
                dossier = merged_dossier(row, {UNREADABLE: error.reason})
                connection.execute(
                    sa.update(jobs).where(jobs.c.id == row.id).values(**ended, **NOT_IN_FLIGHT, dossier=dossier)
                )
        return readable, put_aside

    def book(self, job: Job, session: SessionID, lease: Lease | None) -> None:
        """Note a claim of ours."""
        self._store.claims.add(
            Claim(
                name=job.id,
                stream=job.stream_id,
                job_id=job.id,
                session=session,
                receipt=0 if lease is None else None,
                fence=lease.fence if lease else 0,
                job=job if lease else None,
                submitted_at=job.submitted_at,
            )
        )

    # -- what others left

    def reclaim(self, stream: str, lease: Lease | None) -> int:
        """Every job of the stream in flight that nobody who lives has; our own claims are dropped."""
        check_identifier(stream)
        self._store.claims.drop_stream(stream)
        return self._bring_home(stream, lease)

    def rescue(self, stream: str, lease: Lease) -> int:
        """What is in flight in the stream, was not claimed here, and nobody who lives has."""
        return self._bring_home(stream, lease)

    def _bring_home(self, stream: str, lease: Lease | None) -> int:
        def act(connection: sa.Connection) -> int:
            self._store.verify(connection, stream, lease)
            abandoned = lease.abandoned(connection) if isinstance(lease, SqlLease) else sa.true()
            here = sa.select(jobs.c.id).where(jobs.c.stream_id == stream, schema.is_status(schema.CUR), abandoned)
            strays = [id for id in connection.scalars(here) if id not in self._store.claims]
            home = sa.update(jobs).values(status=schema.NEW, **NOT_IN_FLIGHT)
            return sum(
                connection.execute(home.where(jobs.c.id.in_(portion), schema.is_status(schema.CUR))).rowcount
                for portion in portions(strays)
            )

        moved = self._store.database.run(act)
        if moved:
            self._store.database.notify({stream})
        return moved

    def adopt(self, job_id: str, lease: Lease) -> Claimed | None:
        """Take over one job that a dead consumer left in flight; None when it is not there, or somebody works on it."""
        check_identifier(job_id)
        session = SessionID.mint()

        def act(connection: sa.Connection) -> Job | None:
            self._store.verify(connection, lease.stream, lease)
            row = self._store.look(connection, [job_id]).get(job_id)
            if row is None or row.status != schema.CUR or row.stream_id != lease.stream or job_id in self._store.claims:
                return None
            if isinstance(lease, SqlLease) and not lease.may_adopt(connection, row.claimed_by):
                return None
            try:
                job = job_of(connection.execute(sa.select(*JOB_COLUMNS).where(jobs.c.id == job_id)).one())
            except DecodingFailed:
                return None  # brought home with the others; the next drain puts it aside
            mine = sa.update(jobs).where(jobs.c.id == job_id).values(session_id=str(session), claimed_by=_tag(lease))
            connection.execute(mine)
            return job

        job = self._store.database.run(act)
        if job is None:
            return None
        self.book(job, session, lease)
        return Claimed(job=job, session_id=session)


def _of(stream: str | None) -> list[sa.ColumnElement[bool]]:
    return [] if stream is None else [jobs.c.stream_id == stream]


def _tag(lease: Lease | None) -> str | None:
    return lease.tag if isinstance(lease, SqlLease) else None
