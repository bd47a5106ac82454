"""Rows and values: a job as columns, and columns as a job, its end and what is known of it. No I/O.

What a row says is trusted as little as a file: columns of SQLite hold values of any type, and other ports check less
than ours does. `job_of` raises `DecodingFailed` for what no maildir could hold, and its callers put such a row aside.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from queuekit.backends.sql import schema
from queuekit.completion import SignalFile
from queuekit.contract import JobView, PutAside
from queuekit.errors import DecodingFailed
from queuekit.hlc import HLC
from queuekit.ids import JobID, StreamID
from queuekit.job import Job
from queuekit.lifecycle import State
from queuekit.status import ObservationStatus
from queuekit.wire import check_read, decode_artifacts, decode_extensions, encode_extensions

_BESIDE_PAYLOAD = (
    schema.jobs.c.id,
    schema.jobs.c.stream_id,
    *schema.ORDER,
    schema.jobs.c.priority,
    schema.jobs.c.extensions,
)
JOB_COLUMNS = (*_BESIDE_PAYLOAD, schema.jobs.c.payload)
LARGE = 2**16
_IS_LARGE = sa.func.length(schema.jobs.c.payload) > LARGE
SMALL_JOB_COLUMNS = (
    *_BESIDE_PAYLOAD,
    sa.case((sa.not_(_IS_LARGE), schema.jobs.c.payload)).label("payload"),
    _IS_LARGE.label("is_large"),
)
"""The same without a payload of over `LARGE` bytes: what an UPDATE returns SQLite has in memory twice more."""
STATES = {schema.NEW: State.NEW, schema.LATER: State.LATER, schema.CUR: State.CUR, schema.DONE: State.DONE}
STATUSES = {state: status for status, state in STATES.items()}
UNREADABLE = "unreadable"
"""The key of a dossier that says why a row was put aside."""

_Row = Any  # a row of SQLAlchemy's, by column names


def values_of(job: Job) -> dict[str, Any]:
    """The columns that hold a job, apart from its status."""
    at = job.submitted_at
    return {
        "id": str(job.id),
        "stream_id": str(job.stream_id),
        "physical_time": at.physical_time,
        "logical_count": at.logical_count,
        "node_id": at.node_id,
        "priority": job.priority,
        "payload": job.payload,
        "extensions": encode_extensions(job.extensions),
    }


def job_of(row: _Row) -> Job:
    """The job in a row that has `JOB_COLUMNS`. Raises `DecodingFailed` when there is none."""
    return _job_with(row, row.payload)


def claimed_job_of(connection: sa.Connection, row: _Row) -> Job:
    """The same of a row that has `SMALL_JOB_COLUMNS`."""
    if not row.is_large:
        return job_of(row)
    this = schema.jobs.c.id == schema.as_read(row.id)
    return _job_with(row, connection.scalar(sa.select(schema.jobs.c.payload).where(this)))


def _job_with(row: _Row, payload: Any) -> Job:
    if not isinstance(row.extensions, str):
        raise DecodingFailed("its extensions are no text", row.id if isinstance(row.id, str) else None)
    if isinstance(payload, schema.DamagedText):
        raise DecodingFailed("its payload is a text, and a damaged one", row.id if isinstance(row.id, str) else None)
    job = Job(
        id=JobID(row.id),
        stream_id=StreamID(row.stream_id),
        submitted_at=HLC(row.physical_time, row.logical_count, row.node_id),
        priority=row.priority,
        payload=bytes(payload) if isinstance(payload, memoryview) else payload,
        extensions=decode_extensions(row.extensions),
    )
    return check_read(job)


def end_values(status: ObservationStatus, completed_at: HLC, artifacts: str = "[]") -> dict[str, Any]:
    """The columns of a job's end; `artifacts` as JSON."""
    return {
        "status": schema.DONE,
        "signal_status": status.value,
        "artifacts": artifacts,
        "completed_at": completed_at.physical_time,
        "completed_logical": completed_at.logical_count,
        "completed_node": completed_at.node_id,
    }


NO_END: dict[str, Any] = dict.fromkeys(
    ("signal_status", "artifacts", "completed_at", "completed_logical", "completed_node")
)
NOT_IN_FLIGHT: dict[str, Any] = {"session_id": None, "claimed_by": None}


def signal_of(row: _Row) -> SignalFile | None:
    """How a job ended, from a whole row; None when it has not. Where no time is kept, that of its sending counts."""
    if row.status != schema.DONE or row.signal_status is None:
        return None
    at = HLC(row.physical_time, row.logical_count, row.node_id)
    if row.completed_at is not None:
        at = HLC(row.completed_at, row.completed_logical or 0, row.completed_node or 0)
    return SignalFile(
        job_id=JobID(row.id),
        status=ObservationStatus(row.signal_status),
        completed_at=at,
        artifacts=decode_artifacts(row.artifacts or "[]"),
    )


def dossier_of(row: _Row) -> dict[str, Any] | None:
    """What is kept of a job beside its record; None when nothing that can be read is."""
    try:
        dossier = json.loads(row.dossier) if row.dossier else None
    except (ValueError, RecursionError):
        return None
    return dossier if isinstance(dossier, dict) else None


def merged_dossier(row: _Row, facts: Mapping[str, Any]) -> str:
    """The dossier with more facts in it, as it is stored."""
    return json.dumps({**(dossier_of(row) or {}), **facts}, default=str)


def view_of(row: _Row) -> JobView | PutAside:
    """A whole row for people who look."""
    try:
        job, signal = job_of(row), signal_of(row)
    except (DecodingFailed, ValueError):
        return put_aside_of(row)
    state = STATES[row.status]
    return JobView(
        job=job,
        state=state,
        due_ms=row.not_before if state is State.LATER else None,
        retry=state is State.LATER and row.deferral == schema.RETRY,
        signal=signal,
        dossier=dossier_of(row),
    )


def put_aside_of(row: _Row) -> PutAside:
    """A row that holds no job, as it may be shown."""
    payload = row.payload
    size = len(payload) if isinstance(payload, bytes | str) else 0
    ended = row.completed_at if isinstance(row.completed_at, int) else 0
    return PutAside(name=str(row.id), stream=str(row.stream_id), ended_ms=ended, size=size)
