"""A database that is moved to another store, or the other way round.

A job that arrives or leaves is a row whose status is `arriving:` or `leaving:` and the status that it will have, or
had. Nobody looks at such rows, this port as little as the others. Coming into sight is one UPDATE of them all, in one
transaction with the mark that tells where they came from: a table of one row, which is there only meanwhile.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa

from queuekit.backends.likeness import alike
from queuekit.backends.sql import schema
from queuekit.backends.sql.rows import NO_END, NOT_IN_FLIGHT, STATES, STATUSES, end_values, values_of, view_of
from queuekit.backends.sql.schema import jobs
from queuekit.backends.sql.store import PORTION, Store, portions
from queuekit.contract import JobView, Lease, PutAside, Transfer
from queuekit.errors import BackendUnavailable, WriteFailed
from queuekit.lifecycle import State
from queuekit.wire import encode_artifacts

_T = TypeVar("_T")
ARRIVING, LEAVING = "arriving:", "leaving:"
_MOVABLE = (schema.DONE, schema.LATER, schema.NEW)
_PAGE = 200

_marks = sa.Table("queuekit_move", sa.MetaData(), sa.Column("origin", sa.Text, primary_key=True))


class SqlTransfer(Transfer):
    """One database's part in a move."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._database = store.database

    # -- the store that is left

    def whole(self) -> Iterator[JobView | PutAside]:
        for row in self._pages(list(STATES)):
            yield view_of(row)

    def leaving(self) -> Iterator[JobView]:
        for row in self._pages([LEAVING + status for status in _MOVABLE]):
            view = _as_if_in_sight(row, LEAVING)
            if view is None:
                raise BackendUnavailable(
                    f"{self._database.name}: the row of job {row.id!r}, which is leaving, is damaged"
                )
            yield view

    def _pages(self, statuses: Sequence[str]) -> Iterator[Any]:
        page = sa.select(jobs).where(jobs.c.status.in_(statuses)).order_by(jobs.c.id).limit(_PAGE)
        last: Any = None
        while True:
            here = page if last is None else page.where(jobs.c.id > last)
            rows = self._database.run(lambda connection, here=here: connection.execute(here).all(), write=False)  # type: ignore[misc]
            yield from rows
            if len(rows) < _PAGE:
                return
            last = rows[-1].id

    def is_leaving(self) -> bool:
        wanted = sa.select(sa.exists().where(_is(LEAVING)))
        return bool(self._database.run(lambda connection: connection.scalar(wanted), write=False))

    def hide(self, views: Sequence[JobView], *, leases: Mapping[str, Lease]) -> int:
        mine = {view.job.stream_id: leases[view.job.stream_id] for view in views if view.job.stream_id in leases}

        def act(connection: sa.Connection) -> int:
            for stream in sorted(mine):
                self._store.verify(connection, stream, mine[stream])
            rows = self._rows(connection, [view.job.id for view in views])
            same = [view.job.id for view in views if _is_so(rows.get(view.job.id), view)]
            for portion in portions(same):
                out_of_sight = sa.update(jobs).where(jobs.c.id.in_(portion))
                connection.execute(out_of_sight.values(status=sa.literal(LEAVING) + jobs.c.status))
            return len(same)

        return self._write(act)

    def bring_back(self) -> int:
        return self._into_sight(LEAVING, None)

    def purge(self, limit: int) -> int:
        return self._delete(LEAVING, limit)

    # -- the store that is moved to

    def take_in(self, views: Sequence[JobView]) -> int:
        return self._write(lambda connection: self._arrive(connection, views))

    def _arrive(self, connection: sa.Connection, views: Sequence[JobView]) -> int:
        rows = self._rows(connection, [view.job.id for view in views])
        fresh, changed, waiting = [], [], 0
        for view in views:
            if view.state is State.CUR:
                raise WriteFailed(f"job {view.job.id}", "it is in flight")
            row = rows.get(view.job.id)
            if row is None:
                fresh.append(_values(view))
            elif row.status in STATES:
                if not _is_so(row, view):
                    raise WriteFailed(f"job {view.job.id}", "its id is taken here, by another job or in another state")
                continue
            elif not row.status.startswith(ARRIVING):
                raise WriteFailed(f"job {view.job.id}", f"its id is taken here, by a row that is {row.status}")
            elif not _waits_so(row, view):
                changed.append(_values(view))
            waiting += 1
        if fresh:
            connection.execute(sa.insert(jobs), fresh)
        for values in changed:
            connection.execute(sa.update(jobs).where(jobs.c.id == values["id"]).values(**values))
        return waiting

    def unlike(self, views: Sequence[JobView]) -> list[JobView]:
        def look(connection: sa.Connection) -> dict[str, Any]:
            return self._rows(connection, [view.job.id for view in views], lock=False)

        rows = self._database.run(look, write=False)
        found = ((view, rows.get(view.job.id)) for view in views)
        return [view for view, row in found if not (_waits_so(row, view) or _is_so(row, view))]

    def waiting(self) -> int:
        wanted = sa.select(sa.func.count()).select_from(jobs).where(_is(ARRIVING))
        return int(self._database.run(lambda connection: connection.scalar(wanted), write=False) or 0)

    def discard(self) -> int:
        discarded = 0
        while count := self._delete(ARRIVING, PORTION):
            discarded += count
        return discarded

    def let_in(self, origin: str) -> int:
        return self._into_sight(ARRIVING, origin)

    def let_in_from(self) -> str | None:
        def look(connection: sa.Connection) -> str | None:
            if not sa.inspect(connection).has_table(_marks.name):
                return None
            return connection.scalar(sa.select(_marks.c.origin))

        return self._database.run(look, write=False)

    def forget(self) -> None:
        self._write(lambda connection: _marks.drop(connection, checkfirst=True))

    # -- shared

    def _into_sight(self, prefix: str, origin: str | None) -> int:
        """Everything with this prefix loses it, and `origin`, where there is one, is written down."""

        def act(connection: sa.Connection) -> tuple[int, set[str]]:
            if origin is not None:
                _marks.create(connection, checkfirst=True)
                connection.execute(sa.delete(_marks))
                connection.execute(sa.insert(_marks).values(origin=origin))
            streams = set(connection.scalars(sa.select(jobs.c.stream_id).where(_is(prefix)).distinct()))
            return sum(_become(connection, prefix + status, status) for status in _MOVABLE), streams

        moved, streams = self._write(act)
        self._store.deferrals.forget_looks()
        if streams:
            self._database.notify(streams)
        return moved

    def _delete(self, prefix: str, limit: int) -> int:
        some = sa.delete(jobs).where(jobs.c.id.in_(sa.select(jobs.c.id).where(_is(prefix)).limit(limit)))
        return self._write(lambda connection: connection.execute(some).rowcount)

    def _write(self, act: Callable[[sa.Connection], _T]) -> _T:
        return self._database.run(act, failure=lambda reason: WriteFailed("jobs that are moved", reason))

    def _rows(self, connection: sa.Connection, ids: Sequence[str], *, lock: bool = True) -> dict[str, Any]:
        """Whole rows by id, whatever their status; `lock`: nobody else's to change until the transaction ends."""
        found: dict[str, Any] = {}
        for portion in portions(ids):
            wanted = sa.select(jobs).where(jobs.c.id.in_(portion)).order_by(jobs.c.id)
            rows = connection.execute(wanted.with_for_update() if lock else wanted)
            found.update((row.id, row) for row in rows)
        return found


def _become(connection: sa.Connection, before: str, after: str) -> int:
    """Change a status, in many short statements: a server gives up a long one. Returns of how many rows."""
    count, last = 0, ""
    while True:
        some = sa.select(jobs.c.id).where(*schema.within(before), jobs.c.id > last).order_by(jobs.c.id).limit(PORTION)
        ids = connection.scalars(some).all()
        if not ids:
            return count
        count += connection.execute(sa.update(jobs).where(jobs.c.id.in_(ids)).values(status=after)).rowcount
        last = ids[-1]


def _is(prefix: str) -> sa.ColumnElement[bool]:
    return jobs.c.status.in_([prefix + status for status in _MOVABLE])


def _is_so(row: Any, view: JobView) -> bool:
    """Whether a row is in sight exactly as a view says."""
    if row is None or row.status not in STATES:
        return False
    found = view_of(row)
    return isinstance(found, JobView) and alike(found, view)


def _waits_so(row: Any, view: JobView) -> bool:
    """Whether a row is arriving exactly as a view says."""
    found = _as_if_in_sight(row, ARRIVING)
    return found is not None and alike(found, view)


def _as_if_in_sight(row: Any, prefix: str) -> JobView | None:
    """What a row with this prefix shows without it; None when it has another status, or is damaged."""
    if row is None or not row.status.startswith(prefix):
        return None
    found = view_of(types.SimpleNamespace(**{**row._mapping, "status": row.status.removeprefix(prefix)}))
    return found if isinstance(found, JobView) else None


def _values(view: JobView) -> dict[str, Any]:
    """All columns of a job that arrives."""
    values = {**values_of(view.job), **NOT_IN_FLIGHT, **NO_END, "not_before": None, "deferral": None}
    if view.state is State.LATER:
        values.update(not_before=max(view.due_ms or 0, 0), deferral=schema.RETRY if view.retry else schema.SCHEDULED)
    if view.state is State.DONE and view.signal is not None:
        artifacts = encode_artifacts(view.signal.artifacts)
        values.update(end_values(view.signal.status, view.signal.completed_at, artifacts))
    values["dossier"] = json.dumps(dict(view.dossier), default=str) if view.dossier else None
    values["status"] = ARRIVING + STATUSES[view.state]
    return values
