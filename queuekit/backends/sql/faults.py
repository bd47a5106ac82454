"""What may be wrong in a queue's database, row by row: the kinds, their words, and what sets each right. No I/O.

`judge(row, …)` is asked of whole rows of `queuekit_jobs`. A fault comes with the columns that set it right, or without
where only a person can tell. What a job is made of is never changed: a row that cannot be read keeps its bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from queuekit.backends.maildir.fsck.finding import Finding, Kind, Severity, worded
from queuekit.backends.sql import schema
from queuekit.backends.sql.rows import (
    NO_END,
    NOT_IN_FLIGHT,
    STATES,
    UNREADABLE,
    dossier_of,
    end_values,
    job_of,
    merged_dossier,
    signal_of,
)
from queuekit.backends.sql.transfer import ARRIVING, LEAVING
from queuekit.errors import DecodingFailed, InvalidTerminalStatus
from queuekit.hlc import HLC
from queuekit.status import ObservationStatus, check_terminal

_E, _W, _N = Severity.ERROR, Severity.WARNING, Severity.NOTE
_NOT_DUE: dict[str, Any] = {"not_before": None, "deferral": None}
_FAR_MS = 366 * 24 * 3600 * 1000

KINDS = {
    # -- the database
    "damaged": Kind(
        _E,
        "the database is not consistent in itself; a failing disk, a copy of a file that was in use, or a program that "
        "went round the database did it",
        "stop every pool, keep a copy of its files, and restore a backup or let the database's own tools recover it",
    ),
    "schema-old": Kind(
        _N,
        "an older version or another program has made the tables; nothing else has been looked at",
        "nothing: the next use brings it up to date; then run fsck again",
    ),
    "index-missing": Kind(
        _E,
        "without it the database goes through all rows for what a pool does all the time",
        "make it, or let --repair",
        "makes it",
    ),
    "index-invalid": Kind(
        _E,
        "the database does not use it, so it goes through all rows for what a pool does all the time",
        "REINDEX it, or let --repair",
        "makes it anew",
    ),
    "statistics-small": Kind(
        _W,
        "somebody let the database count its rows (ANALYZE) when there were hardly any, so it goes through all of them "
        "for each claim",
        "ANALYZE",
        "counts again",
    ),
    # -- jobs
    "status-unknown": Kind(
        _E,
        "nobody looks at rows of this status, so it is neither run nor shown; it was changed by hand, or by another "
        "program",
        "set it right if you know what it was",
        "ends it with a `blocked` record that says so; `workerpool retry ID` then runs it",
    ),
    "not-a-job": Kind(
        _E,
        "a row that cannot be read as a job cannot be run; another program wrote it, or it was changed by hand",
        "nothing: the next drain of its stream ends it with a `blocked` record, its bytes as they are",
        "ends it with a `blocked` record, its bytes as they are",
    ),
    "due-missing": Kind(
        _E,
        "it is deferred without a time when it is due; it was changed by hand",
        "`workerpool release ID` runs it now, `workerpool cancel ID` ends it",
        "makes it due now",
    ),
    "due-far": Kind(
        _N,
        "a due time of over a year from now is mostly a mistake in units or a wrong clock",
        "`workerpool release ID` runs it now, `workerpool cancel ID` ends it",
    ),
    "deferral-unknown": Kind(
        _W,
        "nobody can tell whether a person put it off or a failure did, and so whether to wait for it",
        "nothing: it is run when it is due",
        "takes it for put off by a person",
    ),
    "in-flight-unclaimed": Kind(
        _E,
        "it counts as running, but under no claim, so no reply can end it; it was changed by hand",
        "nothing: the next pool that takes the stream over runs it again",
    ),
    "column-left": Kind(
        _W,
        "what belongs to another state was left in its row; the states of the job are told by its status alone",
        "nothing: the job goes its way",
        "clears what was left",
    ),
    "in-flight-unheld": Kind(
        _N,
        "they were claimed, and nobody holds the stream's lease: their consumer died, or works without a lease",
        "nothing: the next pool that works the stream runs them again",
    ),
    # -- records
    "no-record": Kind(
        _W,
        "nobody knows how it ended, and it is never run again by itself; another program ended it, or the record was "
        "removed by hand",
        "`workerpool prune` removes it",
        "gives it a `blocked` record that says so; `workerpool retry ID` then runs it again",
    ),
    "signal-unreadable": Kind(
        _E,
        "nobody can tell how the job ended; another program wrote the record, or it was changed by hand",
        "look at the row",
        "keeps what it said in the job's dossier and writes a `blocked` record in its place",
    ),
    "quarantined": Kind(
        _N,
        "they could not be read as jobs when they were claimed, and were put aside with their bytes",
        "look at them; `workerpool prune` removes them in time",
    ),
    "dossier-unreadable": Kind(
        _W,
        "what was kept about the job (its last error, its earlier ends) cannot be shown",
        "look at the row; the job itself is not touched by it",
    ),
}


def finding(kind: str, path: str, what: str, *, repairable: bool = False, count: int = 1) -> Finding:
    """A finding of one of these kinds, with its words. `path`: a table, an index, a stream or `job ID`."""
    return worded(KINDS[kind], kind, path, what, repairable=repairable, count=count)


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a row. `values`: the columns that set it right; None where nothing may."""

    kind: str
    what: str
    values: Mapping[str, Any] | None = None


def judge(row: Any, now_ms: int, stamp: HLC) -> Iterator[Fault]:
    """What is wrong with a row; one that cannot be read has no other fault. `stamp`: of an end that a repair writes."""
    if row.status == schema.CHECKPOINT or _is_moving(row.status):
        return
    if row.status not in STATES:
        yield Fault(
            "status-unknown", f"its status is {row.status!r}", _aside(row, f"its status was {row.status!r}", stamp)
        )
    elif row.status == schema.DONE:
        yield from _of_an_end(row, stamp)
    else:
        try:
            job_of(row)
        except DecodingFailed as error:
            is_free = row.status != schema.CUR  # a claim in flight is brought home by the stream's next holder first
            values = _aside(row, error.reason, stamp) if is_free else None
            yield Fault("not-a-job", f"it cannot be read as a job: {error.reason}", values)
        else:
            yield from _of_an_open_job(row, now_ms)


def _of_an_open_job(row: Any, now_ms: int) -> Iterator[Fault]:
    if row.status == schema.LATER:
        if not isinstance(row.not_before, int):
            yield Fault("due-missing", f"its due time is {row.not_before!r}", {"not_before": now_ms})
        elif row.not_before - now_ms > _FAR_MS:
            yield Fault("due-far", f"it is due in {(row.not_before - now_ms) // 86_400_000:,} days")
        if row.deferral not in {schema.RETRY, schema.SCHEDULED}:
            yield Fault("deferral-unknown", f"its deferral is {row.deferral!r}", {"deferral": schema.SCHEDULED})
    if row.status == schema.CUR and row.session_id is None:
        yield Fault("in-flight-unclaimed", "it is in flight without a session")
    foreign = {**NO_END}
    foreign |= {} if row.status == schema.LATER else _NOT_DUE
    foreign |= {} if row.status == schema.CUR else NOT_IN_FLIGHT
    yield from _left(row, foreign)
    yield from _dossier(row)


def _of_an_end(row: Any, stamp: HLC) -> Iterator[Fault]:
    if row.signal_status is None:
        yield Fault("no-record", "it has ended without a record", _ended_anew(row, "it had no record", stamp))
    else:
        try:
            check_terminal(row.signal_status)
            signal_of(row)
        except (InvalidTerminalStatus, DecodingFailed, ValueError, TypeError) as error:
            said = f"its record said {row.signal_status!r}, with {row.artifacts!r} at {row.completed_at!r}"
            yield Fault("signal-unreadable", f"its record cannot be read: {error}", _ended_anew(row, said, stamp))
    yield from _left(row, _NOT_DUE)
    yield from _dossier(row)


def _left(row: Any, foreign: Mapping[str, None]) -> Iterator[Fault]:
    left = sorted(column for column in foreign if getattr(row, column) is not None)
    if left:
        yield Fault("column-left", f"it is {row.status} and has {', '.join(left)}", dict.fromkeys(left))


def _dossier(row: Any) -> Iterator[Fault]:
    if row.dossier and dossier_of(row) is None:
        yield Fault("dossier-unreadable", "what is kept of it cannot be read")


def _aside(row: Any, reason: str, stamp: HLC) -> dict[str, Any]:
    """Ended as `blocked`, with the reason, everything that makes the job as it was."""
    dossier = merged_dossier(row, {UNREADABLE: reason, "error": reason})
    return {**_NOT_DUE, **NOT_IN_FLIGHT, **end_values(ObservationStatus.BLOCKED, stamp), "dossier": dossier}


def _ended_anew(row: Any, said: str, stamp: HLC) -> dict[str, Any]:
    dossier = merged_dossier(row, {"ended": "unknown", "error": f"{said}; fsck has put this one in its place"})
    return {**end_values(ObservationStatus.BLOCKED, stamp), "dossier": dossier}


def _is_moving(status: Any) -> bool:
    return isinstance(status, str) and status.startswith((ARRIVING, LEAVING))
