"""Reading a store: counts, single jobs, lists. Nothing is claimed and nothing is locked."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from queuekit.backends.sql import schema
from queuekit.backends.sql.rows import STATES, STATUSES, job_of, put_aside_of, signal_of, view_of
from queuekit.backends.sql.schema import jobs
from queuekit.backends.sql.store import Store
from queuekit.clock import now_ms
from queuekit.completion import SignalFile
from queuekit.contract import JobView, PutAside, Tally
from queuekit.errors import DecodingFailed
from queuekit.ids import check_identifier
from queuekit.job import Job
from queuekit.lifecycle import State
from queuekit.status import ObservationStatus

_PAGE = 200


class Reader:
    """The looking side of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    # -- counts

    def tally(self, stream: str | None) -> Tally:
        """How many jobs are where."""
        counts = sa.union_all(*(_counted(status, stream) for status in (schema.NEW, schema.CUR, schema.LATER)))
        found = {(row.status, row.deferral == schema.RETRY): row for row in self._rows(counts)}
        retrying = found.get((schema.LATER, True))
        return Tally(
            pending=sum(row.count for (status, _), row in found.items() if status == schema.NEW),
            in_flight=sum(row.count for (status, _), row in found.items() if status == schema.CUR),
            retrying=retrying.count if retrying else 0,
            scheduled=found[schema.LATER, False].count if (schema.LATER, False) in found else 0,
            next_retry_ms=retrying.due if retrying else None,
        )

    def count(self, state: State, stream: str | None) -> int:
        """How many jobs are in one state."""
        wanted = sa.select(sa.func.count()).select_from(jobs).where(schema.is_status(STATUSES[state]), *_of(stream))
        return int(self._rows(wanted)[0][0])

    def blocked_counts(self, at_most: int) -> dict[str, int]:
        """How many jobs of each stream ended `blocked`, as far as `at_most`."""

        def count(connection: sa.Connection) -> dict[str, int]:
            found = {}
            for stream in schema.leaps(connection, jobs.c.stream_id):
                some = sa.select(jobs.c.id).where(
                    *schema.within(schema.DONE, stream),
                    jobs.c.signal_status == ObservationStatus.BLOCKED.value,
                )
                some_of_it = some.limit(at_most).subquery()
                found[stream] = int(connection.scalar(sa.select(sa.func.count()).select_from(some_of_it)) or 0)
            return {stream: blocked for stream, blocked in found.items() if blocked}

        return self._store.database.run(count, write=False)

    def streams(self) -> set[str]:
        """The streams of jobs that have not ended."""

        def look(connection: sa.Connection) -> set[str]:
            is_open = jobs.c.status.in_([schema.NEW, schema.CUR, schema.LATER])
            some = sa.select(jobs.c.status).where(is_open).order_by(jobs.c.status).limit(1)
            known = schema.leaps(connection, jobs.c.stream_id)
            return {stream for stream in known if connection.scalar(some.where(jobs.c.stream_id == stream)) is not None}

        return self._store.database.run(look, write=False)

    def next_due(self, stream: str | None) -> float | None:
        """Seconds until the next deferred job is due; None when there is none."""
        known, wait = self._store.deferrals.wait(stream, now_ms(), time.monotonic())
        if known:
            return wait
        soonest = sa.select(sa.func.min(jobs.c.not_before) - self._store.database.now_ms).where(
            *schema.within(schema.LATER, stream)
        )
        left = self._rows(soonest)[0][0]
        return None if left is None else max(0.0, left / 1000)

    # -- jobs

    def readable(self, state: State, stream: str | None) -> list[Job]:
        """The jobs in one state, in HLC order; what holds no job is left out."""
        found = []
        wanted = sa.select(jobs).where(schema.is_status(STATUSES[state]), *_of(stream)).order_by(*schema.ORDER)
        for row in self._rows(wanted):
            try:
                found.append(job_of(row))
            except DecodingFailed:
                continue
        return found

    def signal(self, job_id: str) -> SignalFile | None:
        """How a job ended."""
        check_identifier(job_id)
        row = self._row(job_id)
        try:
            return signal_of(row) if row is not None else None
        except (DecodingFailed, ValueError):
            return None

    def look_up(self, job_id: str) -> JobView | None:
        """One job, wherever it is."""
        check_identifier(job_id)
        row = self._row(job_id)
        view = view_of(row) if row is not None else None
        return view if isinstance(view, JobView) else None

    def put_aside(self, typed: str) -> PutAside | None:
        """A row that ended because it holds no job."""
        row = self._row(typed)
        if row is None or row.status != schema.DONE or not isinstance(view_of(row), PutAside):
            return None
        return put_aside_of(row)

    def ids_beginning(self, typed: str) -> list[str]:
        """The ids that begin so."""
        wanted = sa.select(jobs.c.id).where(jobs.c.id.startswith(typed, autoescape=True), jobs.c.status.in_(STATES))
        return sorted(id for (id,) in self._rows(wanted) if id.startswith(typed))

    def jobs(self, states: Collection[State], stream: str | None) -> Iterator[JobView | PutAside]:
        """The jobs in these states, a page at a time."""
        for state, keys, newest_first in _LISTS:
            if state in states:
                yield from self._listed(state, keys, newest_first, stream)

    def _listed(
        self, state: State, keys: Sequence[sa.ColumnElement[Any]], newest_first: bool, stream: str | None
    ) -> Iterator[JobView | PutAside]:
        order = [key.desc() if newest_first else key for key in keys]
        page = sa.select(jobs).where(schema.is_status(STATUSES[state]), *_of(stream)).order_by(*order).limit(_PAGE)
        place, last = sa.tuple_(*keys), None
        while True:
            here = page if last is None else page.where(place < last if newest_first else place > last)
            rows = self._rows(here)
            for row in rows:
                view = view_of(row)
                if isinstance(view, JobView):
                    yield _listed_view(view)
                elif state is State.DONE:
                    yield view
            if len(rows) < _PAGE:
                return
            last = sa.tuple_(*(row._mapping[key] for key in keys))

    # -- shared

    def _row(self, job_id: str) -> Any:
        wanted = sa.select(jobs).where(jobs.c.id == job_id, jobs.c.status.in_(STATES))
        return next(iter(self._rows(wanted)), None)

    def _rows(self, wanted: sa.Executable) -> Sequence[Any]:
        return self._store.database.run(lambda connection: connection.execute(wanted).all(), write=False)


_LISTS: tuple[tuple[State, tuple[sa.ColumnElement[Any], ...], bool], ...] = (
    (State.LATER, (jobs.c.not_before, jobs.c.deferral, *schema.ORDER, jobs.c.id), False),
    (State.NEW, (*schema.ORDER, jobs.c.id), False),
    (State.CUR, (*schema.ORDER, jobs.c.id), False),
    (State.DONE, (*schema.ORDER, jobs.c.id), True),
)


def _of(stream: str | None) -> list[sa.ColumnElement[bool]]:
    return [] if stream is None else [jobs.c.stream_id == stream]


def _counted(status: str, stream: str | None) -> sa.Select[str, str, int, int]:
    """Rows `(status, deferral, count, due)`; only of status `later` are the kinds of deferral told apart."""
    is_later = status == schema.LATER
    deferral = jobs.c.deferral if is_later else sa.null()
    due = sa.func.min(jobs.c.not_before) if is_later else sa.null()
    wanted = sa.select(
        sa.literal(status).label("status"),
        sa.cast(deferral, sa.Text).label("deferral"),
        sa.func.count().label("count"),
        sa.cast(due, sa.BigInteger).label("due"),
    ).where(*(schema.within(status, stream) if is_later else [schema.is_status(status), *_of(stream)]))
    return wanted.group_by(jobs.c.deferral) if is_later else wanted


def _listed_view(view: JobView) -> JobView:
    """As a list shows it: only one that ended `blocked` with its dossier."""
    blocked = view.signal is not None and view.signal.status is ObservationStatus.BLOCKED
    return view if blocked else dataclasses.replace(view, dossier=None)
