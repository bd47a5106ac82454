"""Looking at a whole root. See the package for what is promised."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from queuekit.backends.admission import DEFAULT_MAX_JOB_BYTES
from queuekit.backends.maildir.fsck import checkpoints, foundation, holders, inventory, jobs, records
from queuekit.backends.maildir.fsck.finding import Finding, by_weight
from queuekit.backends.maildir.fsck.look import Look, Progress
from queuekit.lease import DEFAULT_TTL

PATIENCE_SECONDS = 2.0


def examine(
    root: str | os.PathLike[str],
    *,
    max_job_bytes: int = DEFAULT_MAX_JOB_BYTES,
    ttl: float = DEFAULT_TTL,
    deep: bool = False,
    patience: float = PATIENCE_SECONDS,
    progress: Progress | None = None,
) -> list[Finding]:
    """Everything that is not as it should be in a root, errors first. Nothing is changed.

    `max_job_bytes`: the largest payload; `ttl`: of the leases, seconds; `deep`: read every job in done/ too;
    `patience`: seconds to wait for a stream's lock, once for each stream; `progress`: called with what is looked at,
    how many of how many are done.

    A folder that is closed to us is a finding, and then the root and its folders are all that was looked at. Raises
    `BackendUnavailable` when there is no such root, or a folder of it cannot be opened or listed for another reason.
    """
    look = Look(root, max_job_bytes=max_job_bytes, patience=patience)
    try:
        return sorted(_once(_all(look, ttl, deep, progress)), key=by_weight)
    finally:
        look.close()


def _all(look: Look, ttl: float, deep: bool, progress: Progress | None) -> Iterator[Finding]:
    ground = list(foundation.check(look.root, look.closed))
    yield from ground
    if any(each.kind == "folder-closed" for each in ground):
        return  # what is in there would seem to be nowhere
    found = inventory.take(look, progress)
    yield from inventory.check(look, found)
    open_jobs = jobs.read(look, found, progress)
    yield from jobs.check(look, found, open_jobs, ttl)
    yield from records.check(look, found, open_jobs, deep=deep, progress=progress)
    yield from checkpoints.check(look, found.names["checkpoints"], progress)
    yield from holders.check(look)


def _once(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Each finding once; a lock that is not to be had is one fact, however many files it guards."""
    seen = set()
    for each in findings:
        key = (each.kind, each.what if each.kind == "lock-held" else each.path)
        if key not in seen:
            seen.add(key)
            yield each
