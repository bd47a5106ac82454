"""What the verbs of one backend share: the database, the book of its claims, its clock, what it knows of due times."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa

from queuekit.backends.claims import Claim, Claims
from queuekit.backends.sql.database import Database
from queuekit.backends.sql.deferrals import Deferrals
from queuekit.backends.sql.leases import SqlLease
from queuekit.backends.sql.schema import jobs
from queuekit.clock import ProcessClock
from queuekit.contract import Lease
from queuekit.errors import LeaseLost
from queuekit.hlc import HLC

_T = TypeVar("_T")
PORTION = 500
"""Rows that one statement names by their ids: databases bound the number of parameters."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Store:
    """One consumer's view of one database."""

    database: Database
    clock: ProcessClock
    max_job_bytes: int
    claims: Claims = dataclasses.field(default_factory=Claims)
    taking: set[str] = dataclasses.field(
        default_factory=set
    )  # sessions under way: claimed, perhaps, and not yet booked
    deferrals: Deferrals = dataclasses.field(default_factory=Deferrals)

    def verify(self, connection: sa.Connection, stream: str, lease: Lease | None, *, keep: bool = True) -> None:
        """Raise `LeaseLost`, and drop every claim in the stream, unless a given lease is the stream's and ours.

        `keep`: it stays so until the transaction ends, which must be one that may write.
        """
        try:
            if lease is None:
                return
            if lease.stream != stream:
                raise LeaseLost(stream, f"a lease of stream {lease.stream!r} was given")
            if isinstance(lease, SqlLease):
                lease.check(connection, keep=keep)
            else:
                lease.verify()
        except LeaseLost:
            self.claims.drop_stream(stream)
            raise

    def look(self, connection: sa.Connection, ids: Sequence[str]) -> dict[str, Any]:
        """Whole rows by id, without their payloads; nobody else can change them until this transaction ends."""
        found: dict[str, Any] = {}
        for portion in portions(sorted(ids)):  # always in one order, so that two who look wait for each other in turn
            found.update((row.id, row) for row in connection.execute(_LOOK, {"ids": portion}))
        return found

    def claim_of(self, job_id: str, lease: Lease | None) -> tuple[Claim | None, bool]:
        """Our claim of a job, and whether a reply may be for somebody else's: never for one that we had and lost."""
        claim = self.claims.find(job_id, lease.stream if lease else None)
        if claim is None:
            return None, not self.claims.had(job_id)
        if lease is not None and claim.fence != lease.fence:  # claimed before the lease was lost and won again
            self.claims.drop(claim)
            return None, False
        return claim, False

    def due_here(self, stream: str | None) -> dict[str, int]:
        """Deferred jobs that are due by this process's own clock, whatever the database's says; see `Deferrals.due`."""
        return self.deferrals.due(stream, time.monotonic())


_LOOK = (
    sa.select(*(column for column in jobs.columns if column is not jobs.c.payload))
    .where(jobs.c.id.in_(sa.bindparam("ids", expanding=True)))
    .order_by(jobs.c.id)
    .with_for_update()
)


def portions(ids: Collection[_T]) -> Iterator[list[_T]]:
    """The ids, as many at a time as one statement may name."""
    listed = list(ids)
    for start in range(0, len(listed), PORTION):
        yield listed[start : start + PORTION]


def hlc_of(row: Any) -> HLC:
    """When the job of a row was sent."""
    return HLC(row.physical_time, row.logical_count, row.node_id)
