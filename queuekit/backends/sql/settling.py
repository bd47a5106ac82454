"""Ending, giving back and putting off jobs in flight: a look at their rows, then one guarded UPDATE, one transaction.

A reply counts while the row is in flight under the session that claimed it and, where many share the stream, under the
lease of the one who replies. One for a row that ended by this very reply (its acknowledgement was lost on the way) is a
success; for any other it is dropped, and nothing is written.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from queuekit.backends.admission import checked_completion
from queuekit.backends.claims import Claim
from queuekit.backends.sql import schema
from queuekit.backends.sql.leases import SharedLease
from queuekit.backends.sql.rows import NOT_IN_FLIGHT, end_values, merged_dossier, values_of
from queuekit.backends.sql.schema import jobs
from queuekit.backends.sql.store import Store, hlc_of
from queuekit.clock import Due
from queuekit.completion import Completion
from queuekit.contract import Lease
from queuekit.errors import JobNotFound
from queuekit.hlc import HLC
from queuekit.ids import SessionID, check_identifier
from queuekit.job import Delivery, Job
from queuekit.status import ObservationStatus, check_terminal
from queuekit.wire import decode_extensions, encode_artifacts, encode_extensions

_log = logging.getLogger("queuekit.sql")


class Settler:
    """The replying side of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    # -- ending

    def complete_all(self, completions: Sequence[Completion], lease: Lease | None) -> int:
        """End what is in flight of these; returns how many. All are checked before the first is ended."""
        by_id: dict[str, Completion] = {}
        for each in map(checked_completion, completions):
            by_id.setdefault(each.job_id, each)
        if not by_id:
            return 0
        claims = {job_id: self._store.claim_of(job_id, lease) for job_id in by_id}
        repeated = {each.job_id for each in by_id.values() if _is_repeated(claims[each.job_id][0], each)}

        def act(connection: sa.Connection) -> set[str]:
            if lease is not None:
                self._store.verify(connection, lease.stream, lease)
            rows = self._store.look(connection, list(by_id))
            ended, updates = set(), []
            for job_id, completion in by_id.items():
                claim, trusted = claims[job_id]
                row = rows.get(job_id)
                if row is None and claim is not None and claim.job is not None and lease is not None:
                    self._write_again(connection, claim.job, completion)
                    ended.add(job_id)
                elif row is not None and job_id in repeated and _has_ended_so(row, claim, completion):
                    ended.add(job_id)
                elif row is not None and _is_in_flight(row, claim, trusted, lease):
                    updates.append({"of": job_id, **self._end(row, completion)})
                    ended.add(job_id)
            if updates:
                connection.execute(_ENDING, updates)
            return ended

        for job_id, (claim, _) in claims.items():
            if claim is not None:
                claim.reply = (by_id[job_id], b"")
        ended = self._store.database.run(act)
        self._settle_claims(claims, ended)
        return len(ended)

    def _end(self, row: Any, completion: Completion) -> dict[str, Any]:
        dossier = row.dossier if completion.dossier is None else merged_dossier(row, completion.dossier)
        stamp = self._store.clock.receive(hlc_of(row))
        return {
            **end_values(completion.status, stamp, encode_artifacts(completion.artifacts)),
            "dossier": dossier,
        }

    def _write_again(self, connection: sa.Connection, job: Job, completion: Completion) -> None:
        """Somebody has deleted the row of a job that is ours: what we know of it is its record."""
        _log.error(
            "the row of job %s is gone although it was in flight here; it is written again, with its end", job.id
        )
        stamp = self._store.clock.receive(job.submitted_at)
        ended = end_values(completion.status, stamp, encode_artifacts(completion.artifacts))
        connection.execute(sa.insert(jobs).values(**values_of(job), **ended))

    def _settle_claims(self, claims: Mapping[str, tuple[Claim | None, bool]], ended: Collection[str]) -> None:
        for job_id, (claim, _) in claims.items():
            if claim is not None:
                (self._store.claims.drop if job_id in ended else self._store.claims.lose)(claim)

    def complete_session(self, session: SessionID, status: ObservationStatus | str, lease: Lease | None) -> int:
        """End everything that is in flight under a session, whoever claimed it: one UPDATE. Returns how many."""
        ended = check_terminal(status)

        def act(connection: sa.Connection) -> list[str]:
            if lease is not None:
                self._store.verify(connection, lease.stream, lease)
            here = [jobs.c.session_id == str(session), *schema.within(schema.CUR)]
            if lease is not None:
                here.append(jobs.c.stream_id == lease.stream)
            if isinstance(lease, SharedLease):
                here.append(jobs.c.claimed_by == lease.tag)
            latest = (
                sa.select(*schema.ORDER).where(*here).order_by(*(column.desc() for column in schema.ORDER)).limit(1)
            )
            row = connection.execute(latest).one_or_none()
            if row is None:
                return []
            values = end_values(ended, self._store.clock.receive(hlc_of(row)))
            return list(connection.scalars(sa.update(jobs).where(*here).values(**values).returning(jobs.c.id)))

        ids = self._store.database.run(act)
        self._store.claims.drop_all(each for each in self._store.claims.of_session(session) if each.job_id in set(ids))
        return len(ids)

    # -- giving back, putting off

    def release(self, job_id: str, lease: Lease | None) -> None:
        """Make a job in flight pending again. Raises `JobNotFound`."""
        stream = self._move(job_id, lease, lambda _: {"status": schema.NEW})
        self._store.database.notify({stream})

    def defer(self, job_id: str, due_ms: int, error: str, crashed: bool, lease: Lease | None) -> None:
        """Put a job in flight off, with one failed run more in its record. Raises `JobNotFound`."""

        def put_off(row: Any) -> dict[str, Any]:
            return {
                "status": schema.LATER,
                "not_before": due_ms,
                "deferral": schema.RETRY,
                "extensions": _failed_once_more(row.extensions, error, crashed),
            }

        due = Due.by(due_ms)
        stream = self._move(job_id, lease, put_off)
        self._store.deferrals.add(job_id, stream, due)

    def _move(self, job_id: str, lease: Lease | None, values: Any) -> str:
        """Take one job out of flight, with these values for its row; returns its stream."""
        check_identifier(job_id)
        claim, trusted = self._store.claim_of(job_id, lease)

        def act(connection: sa.Connection) -> str | None:
            if lease is not None:
                self._store.verify(connection, lease.stream, lease)
            row = self._store.look(connection, [job_id]).get(job_id)
            if row is None or not _is_in_flight(row, claim, trusted, lease):
                return None
            moved = sa.update(jobs).where(jobs.c.id == job_id).values(**NOT_IN_FLIGHT, **values(row))
            connection.execute(moved)
            return str(row.stream_id)

        stream = self._store.database.run(act)
        self._settle_claims({job_id: (claim, trusted)}, {job_id} if stream is not None else ())
        if stream is None:
            raise JobNotFound(job_id, "it is not in flight" + ("" if trusted else " here any more"))
        return stream


def _is_in_flight(row: Any, claim: Claim | None, trusted: bool, lease: Lease | None) -> bool:
    """Whether a reply for this row may be carried out."""
    if row.status != schema.CUR or (lease is not None and row.stream_id != lease.stream):
        return False
    if isinstance(lease, SharedLease) and row.claimed_by != lease.tag:
        return False  # the stream is not all ours: what another one works on is not even known by its id
    return trusted if claim is None else bool(row.session_id == claim.session)


def _is_repeated(claim: Claim | None, completion: Completion) -> bool:
    """Whether this very reply was begun before, and nobody could tell us how that ended."""
    return claim is not None and claim.reply is not None and claim.reply[0].status == completion.status


def _has_ended_so(row: Any, claim: Claim | None, completion: Completion) -> bool:
    """Whether a row shows that a repeated reply was carried out the first time."""
    if claim is None or row.status != schema.DONE:
        return False
    return bool(row.session_id == claim.session and row.signal_status == completion.status.value)


def _failed_once_more(extensions: str, error: str, crashed: bool) -> str:
    """A job's extensions with one failed run more in its delivery record."""
    carrier = Job(id="", stream_id="", submitted_at=HLC(0, 0, 0), extensions=decode_extensions(extensions))  # type: ignore[arg-type]
    return encode_extensions(Delivery.of(carrier).failed(error, crashed=crashed).onto(carrier).extensions)


_ENDING = (
    sa.update(jobs)
    .where(jobs.c.id == sa.bindparam("of"))
    .values(
        {
            name: sa.bindparam(name)
            for name in (
                "status",
                "signal_status",
                "artifacts",
                "completed_at",
                "completed_logical",
                "completed_node",
                "dossier",
            )
        }
    )
)
