"""Claiming: one guarded UPDATE under a fresh session; and bringing home what nobody works on any more."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import sqlalchemy as sa

from queuekit.backends.claims import Claim
from queuekit.backends.sql import schema
from queuekit.backends.sql.leases import SharedLease, SqlLease
from queuekit.backends.sql.rows import (
    JOB_COLUMNS,
    NOT_IN_FLIGHT,
    SMALL_JOB_COLUMNS,
    UNREADABLE,
    claimed_job_of,
    end_values,
    job_of,
    merged_dossier,
)
from queuekit.backends.sql.schema import jobs
from queuekit.backends.sql.store import PORTION, Store, portions
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
        if lease is None and self._store.claims.has_grown:
            self._review_claims()
        while limit != 0:
            pending, due = self._look(stream, lease)
            if not (pending or due):
                break
            claimed, put_aside = self._claim(stream, limit, lease, promote=due)
            if claimed or not put_aside:
                return claimed
        return []

    def _review_claims(self) -> None:
        """Forget claims that somebody else has settled long ago."""
        claims = self._store.claims
        for portion in portions(claims.long_gone(self._in_flight())):
            still = self._in_flight(jobs.c.id.in_([claim.job_id for claim in portion]))  # claimed since the first look
            claims.drop_all(claim for claim in portion if claim.job_id not in still)
        claims.reviewed()

    def _in_flight(self, *among: sa.ColumnElement[bool]) -> set[str]:
        """The ids of the jobs in flight, whoever claimed them."""
        here = sa.select(jobs.c.id).where(*schema.within(schema.CUR), *among)
        return set(self._store.database.run(lambda connection: connection.scalars(here).all(), write=False))

    # -- looking

    def _look(self, stream: str | None, lease: Lease | None) -> tuple[bool, bool]:
        """Whether something is pending, and whether something deferred is due.

        It takes no lock, so an idle consumer is in nobody's way.
        """
        database = self._store.database

        def look(connection: sa.Connection) -> Any:
            if lease is not None and stream is not None:
                self._store.verify(connection, stream, lease, keep=False)
            return connection.execute(_looking(database.now_ms, stream is not None), _named(stream)).one()

        seen = database.run(look, write=False)
        due_ms = seen.not_before if isinstance(seen.not_before, int) else 0  # damaged: it is run rather than forgotten
        soonest = None if seen.id is None else (seen.id, seen.stream_id, due_ms)
        self._store.deferrals.learn(stream, soonest, seen.now_ms, time.monotonic())
        due = soonest is not None and due_ms <= seen.now_ms
        return seen.pending is not None, due or bool(self._store.due_here(stream))

    # -- claiming

    def _claim(
        self, stream: str | None, limit: int | None, lease: Lease | None, *, promote: bool
    ) -> tuple[list[Claimed], int]:
        """`(claimed, how many were put aside)`. `promote`: what is due becomes pending before."""
        session = SessionID.mint()
        due_here = self._store.due_here(stream) if promote else {}
        facts = {**_named(stream), "session": str(session), "tag": _tag(lease)}
        if limit is not None:
            facts["limit"] = limit

        def act(connection: sa.Connection) -> tuple[list[Job], list[Any]]:
            if lease is not None and stream is not None:
                self._store.verify(connection, stream, lease)
            if promote:
                self._promote(connection, stream, due_here, limit)
            rows = connection.execute(_claiming(stream is not None, limit is not None), facts).all()
            if isinstance(lease, SharedLease) and rows:
                lease.saw_fence(rows[0].fence)
            return self._sort_out(connection, rows)

        with self._taking(session):
            readable, put_aside = self._store.database.run(act)
            for job in readable:
                self.book(job, session, lease)
        self._store.deferrals.forget(due_here)
        for row, why in put_aside:
            _log.warning("put job %r of stream %r aside: %s", row.id, row.stream_id, why)
        readable.sort(key=lambda job: job.submitted_at)
        return [Claimed(job=job, session_id=session) for job in readable], len(put_aside)

    @contextlib.contextmanager
    def _taking(self, session: SessionID) -> Iterator[None]:
        """What is claimed under this session is ours, though another thread may see it before it is booked."""
        self._store.taking.add(session)
        try:
            yield
        finally:
            self._store.taking.discard(session)

    def _promote(
        self, connection: sa.Connection, stream: str | None, due_here: Mapping[str, int], limit: int | None
    ) -> None:
        """What is due becomes pending; of very many, those that have waited longest."""
        later = sa.select(jobs.c.id).where(*schema.within(schema.LATER, stream))
        key = _due_key(stream)
        due = later.where(key <= schema.once(self._store.database.now_ms)).order_by(key)
        if limit is not None:
            due = due.limit(max(limit, PORTION))
        connection.execute(sa.update(jobs).where(_among(due)).values(**_PROMOTED))
        if due_here:
            known = later.add_columns(jobs.c.not_before).where(jobs.c.id.in_(list(due_here)[:PORTION]))
            rows = connection.execute(known.with_for_update(skip_locked=True)).all()
            same = [row.id for row in rows if not isinstance(row.not_before, int) or row.not_before <= due_here[row.id]]
            if same:
                connection.execute(sa.update(jobs).where(jobs.c.id.in_(same)).values(**_PROMOTED))

    def _sort_out(self, connection: sa.Connection, rows: Any) -> tuple[list[Job], list[Any]]:
        """`(jobs, rows that hold none, each with the reason)`; the latter are ended as `blocked`, their bytes kept."""
        readable: list[Job] = []
        put_aside: list[Any] = []
        for row in rows:
            try:
                readable.append(claimed_job_of(connection, row))
            except DecodingFailed as error:
                put_aside.append((row, error.reason))
                ended = end_values(ObservationStatus.BLOCKED, self._store.clock.send())
                dossier = merged_dossier(row, {UNREADABLE: error.reason})
                this = jobs.c.id == schema.as_read(row.id)
                connection.execute(sa.update(jobs).where(this).values(**ended, **NOT_IN_FLIGHT, dossier=dossier))
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
            in_flight = jobs.c.stream_id == stream, schema.is_status(schema.CUR), abandoned
            here = sa.select(jobs.c.id, jobs.c.session_id).where(*in_flight)
            locked = here.order_by(jobs.c.id).with_for_update(of=jobs)  # nobody brings one home, to be claimed, now
            strays = [row.id for row in connection.execute(locked) if not self._is_ours(row)]
            home = sa.update(jobs).values(status=schema.NEW, **NOT_IN_FLIGHT)
            return sum(connection.execute(home.where(jobs.c.id.in_(portion))).rowcount for portion in portions(strays))

        moved = self._store.database.run(act)
        if moved:
            self._store.database.notify({stream})
        return moved

    def _is_ours(self, row: Any) -> bool:
        """Whether a row in flight was claimed here. `taking` first: a claim is booked before it leaves that."""
        return row.session_id in self._store.taking or row.id in self._store.claims

    def adopt(self, job_id: str, lease: Lease) -> Claimed | None:
        """Take over one job that a dead consumer left in flight; None when it is not there, or somebody works on it."""
        check_identifier(job_id)
        session = SessionID.mint()

        def act(connection: sa.Connection) -> Job | None:
            self._store.verify(connection, lease.stream, lease)
            row = self._store.look(connection, [job_id]).get(job_id)
            if row is None or row.status != schema.CUR or row.stream_id != lease.stream or self._is_ours(row):
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

        with self._taking(session):
            job = self._store.database.run(act)
            if job is None:
                return None
            self.book(job, session, lease)
        return Claimed(job=job, session_id=session)


# What is built once is found again in SQLAlchemy's cache at once. `one`: of one stream, whose name is a parameter.


@functools.cache
def _looking(now_ms: sa.ColumnElement[int], one: bool) -> sa.Select[Any]:
    """One row: the oldest pending job and the deferred one that is due soonest, if any, and the time."""
    stream = _STREAM if one else None
    soonest = (
        sa.select(jobs.c.id, jobs.c.stream_id, jobs.c.not_before)
        .where(*schema.within(schema.LATER, stream))
        .order_by(_due_key(stream))
        .limit(1)
        .subquery()
    )
    here = sa.select(_oldest(stream).limit(1).scalar_subquery().label("pending"), now_ms.label("now_ms")).subquery()
    return sa.select(here, soonest).select_from(here.outerjoin(soonest, sa.true()))


@functools.cache
def _claiming(one: bool, limited: bool) -> sa.UpdateBase:
    """With each row comes the stream's fence, of the same moment as the row."""
    oldest = _oldest(_STREAM if one else None)
    fence = (
        sa.select(schema.leases.c.fence).where(schema.leases.c.stream_id == _STREAM) if one else sa.select(sa.null())
    )
    return (
        sa.update(jobs)
        .where(_among(oldest.limit(sa.bindparam("limit", type_=sa.Integer)) if limited else oldest))
        .values(status=schema.CUR, session_id=sa.bindparam("session"), claimed_by=sa.bindparam("tag"))
        .returning(*SMALL_JOB_COLUMNS, jobs.c.dossier, fence.scalar_subquery().label("fence"))
    )


_STREAM = sa.bindparam("stream", type_=sa.Text)


def _named(stream: str | None) -> dict[str, Any]:
    return {} if stream is None else {"stream": stream}


def _oldest(stream: schema.Stream) -> sa.Select[Any]:
    """The ids of pending jobs in HLC order, along an index in that order."""
    here = [schema.is_status(schema.NEW)] if stream is None else schema.within(schema.NEW, stream)
    return sa.select(jobs.c.id).where(*here).order_by(*schema.ORDER)


def _among(wanted: sa.Select[Any]) -> sa.ColumnElement[bool]:
    """The guard of an UPDATE: just these rows, found once and nobody else's until the transaction ends.

    A status beside it would say nothing more, and SQLite would look for the rows by that, among all that have it.
    """
    return jobs.c.id.in_(sa.select(wanted.with_for_update(skip_locked=True).cte("wanted").c.id))


def _due_key(stream: schema.Stream) -> sa.ColumnElement[int]:
    """What deferred jobs are in the order of, of one stream or of all."""
    return schema.DUE if stream is None else jobs.c.not_before


def _tag(lease: Lease | None) -> str | None:
    return lease.tag if isinstance(lease, SqlLease) else None
