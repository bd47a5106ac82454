"""Checkpoints of a database: rows of the jobs' table with the status `checkpoint`, as other ports write them.

Nobody who looks for jobs looks for that status, so such a row is never claimed, counted, listed or pruned. Its id is
the table's primary key like that of a job, and an id that something else has is refused. The timestamp is that of the
first write. A swap is one transaction: a row that is there is locked from its comparison to its update, and of two
that expect none, one inserts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import sqlalchemy as sa

from queuekit.backends.admission import check_checkpoint, prepare
from queuekit.backends.sql import schema
from queuekit.backends.sql.rows import values_of
from queuekit.backends.sql.schema import jobs
from queuekit.backends.sql.store import Store
from queuekit.checkpoints import Checkpoints, checkpoint_job
from queuekit.errors import BackendUnavailable, QueueError, WriteFailed
from queuekit.ids import check_identifier

_T = TypeVar("_T")
_COLUMNS = (jobs.c.id, jobs.c.stream_id, jobs.c.status, jobs.c.payload)


class SqlCheckpoints(Checkpoints):
    """The checkpoints of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def read(self, id: str, stream: str) -> bytes | None:
        """The payload; None when there is none."""
        check_checkpoint(id, stream)
        wanted = sa.select(*_COLUMNS).where(*_is(id, stream))
        row = self._read(lambda connection: connection.execute(wanted).one_or_none())
        return None if row is None else _payload_of(row)

    def compare_and_swap(self, id: str, stream: str, expected: bytes | None, payload: bytes) -> bool:
        """Write the row if it is `expected`; see the contract."""
        wanted = checkpoint_job(id, stream, payload, self._store.clock.send())
        prepare(wanted, self._store.max_job_bytes)
        values = {**values_of(wanted), "status": schema.CHECKPOINT}

        def act(connection: sa.Connection) -> bool:
            if expected is None:
                insert = schema.insert_if_absent(connection, jobs).values(values).returning(jobs.c.id)
                if connection.scalar(insert) is not None:
                    return True
            row = connection.execute(sa.select(*_COLUMNS).where(jobs.c.id == id).with_for_update()).one_or_none()
            if row is None:
                return False
            _refuse_foreign(row, stream)
            if expected is None or _payload_of(row) != expected:
                return False
            connection.execute(sa.update(jobs).where(*_is(id, stream)).values(payload=payload))
            return True

        return self._store.database.run(act, failure=_write_failed(f"checkpoint {id}"))

    def delete(self, id: str, stream: str) -> bool:
        """Remove its row, readable or not."""
        check_checkpoint(id, stream)
        gone = sa.delete(jobs).where(*_is(id, stream))
        failure = _write_failed(f"the end of checkpoint {id}")
        return self._store.database.run(lambda connection: connection.execute(gone).rowcount > 0, failure=failure)

    def list(self, stream: str) -> dict[str, bytes]:
        """The payloads of a stream, by id."""
        check_identifier(stream)
        wanted = sa.select(*_COLUMNS).where(jobs.c.stream_id == stream, schema.is_status(schema.CHECKPOINT))
        rows = self._read(lambda connection: connection.execute(wanted).all())
        return {row.id: _payload_of(row) for row in rows}

    def streams(self) -> set[str]:
        """The streams that have any."""
        wanted = sa.select(jobs.c.stream_id).where(schema.is_status(schema.CHECKPOINT)).distinct()
        return set(self._read(lambda connection: connection.scalars(wanted).all()))

    def _read(self, work: Callable[[sa.Connection], _T]) -> _T:
        return self._store.database.run(work, write=False)


def _is(id: str, stream: str) -> tuple[sa.ColumnElement[bool], ...]:
    return jobs.c.id == id, jobs.c.stream_id == stream, schema.is_status(schema.CHECKPOINT)


def _payload_of(row: Any) -> bytes:
    """The bytes in a row: columns of SQLite hold values of any type."""
    if isinstance(row.payload, bytes | memoryview):
        return bytes(row.payload)
    raise BackendUnavailable(f"{row.id!r} of stream {row.stream_id!r} is an invalid checkpoint: its payload is no blob")


def _refuse_foreign(row: Any, stream: str) -> None:
    """Raise `WriteFailed` for what is no checkpoint of this stream."""
    if row.status != schema.CHECKPOINT:
        raise WriteFailed(f"checkpoint {row.id}", f"its id is taken by a job, of stream {row.stream_id!r}")
    if row.stream_id != stream:
        raise WriteFailed(f"checkpoint {row.id}", f"its id is taken by a checkpoint of stream {row.stream_id!r}")


def _write_failed(what: str) -> Callable[[str], QueueError]:
    return lambda reason: WriteFailed(what, reason)
