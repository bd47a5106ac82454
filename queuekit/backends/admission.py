"""What every store asks of a job before it takes it, and of a completion before it writes it down. No I/O.

A job that one store would take and another refuse could not be moved between them, so the rules stand here once: the
backends call them before they touch anything, and whoever wants to know beforehand calls them, too.
"""

from __future__ import annotations

from queuekit.backends.maildir import layout
from queuekit.checkpoints import checkpoint_job
from queuekit.completion import ArtifactRef, Completion
from queuekit.errors import WriteFailed
from queuekit.hlc import HLC
from queuekit.ids import check_identifier
from queuekit.job import Delivery, Job
from queuekit.status import check_terminal
from queuekit.wire import check_sendable, encode_job

DEFAULT_MAX_JOB_BYTES = 64 * 2**20
"""The largest payload, in bytes, unless a store is opened with another limit."""
EXTENSIONS_BYTES = 2**20
"""What an encoded job may hold beside its payload when it is sent, in bytes."""


def prepare(job: Job, max_job_bytes: int) -> tuple[str, bytes]:
    """A new job's file name and its bytes, after everything that can be wrong with it has been looked at.

    The name sorts as the job's timestamp and is the same for the same job only, on every store. Raises
    `InvalidIdentifier`, or `WriteFailed` for values that ports do not share and for too many bytes.
    """
    check_sendable(job)
    name = layout.check_job_name(job)
    if len(job.payload) > max_job_bytes:
        raise WriteFailed(f"job {job.id}", f"its payload has {len(job.payload)} bytes, {max_job_bytes} at most")
    data = encode_job(job)
    if len(data) - len(job.payload) * 4 // 3 > EXTENSIONS_BYTES:
        raise WriteFailed(f"job {job.id}", f"its extensions take more than {EXTENSIONS_BYTES} bytes")
    return name, data


def same_job(one: Job, other: Job) -> bool:
    """Whether two jobs of one name are the same, whatever has happened to either of them since it was sent."""
    if one is other:
        return True
    fresh = Delivery()
    return encode_job(fresh.onto(one)) == encode_job(fresh.onto(other))


def check_checkpoint(id: str, stream: str) -> None:
    """Raise `InvalidIdentifier` unless every store could hold a checkpoint of this id and stream."""
    layout.check_job_name(checkpoint_job(id, stream, b"", HLC(0, 0, 0)))


def checked_completion(completion: Completion) -> Completion:
    """The completion itself; raises what `complete` raises before anything is touched.

    That is `InvalidIdentifier`, `InvalidTerminalStatus`, or `WriteFailed` for an artifact that is none.
    """
    check_identifier(completion.job_id)
    status = check_terminal(completion.status)
    for artifact in completion.artifacts:
        if not isinstance(artifact, ArtifactRef):
            raise WriteFailed(f"the signal of job {completion.job_id}", f"{artifact!r} is no ArtifactRef")
    return Completion(completion.job_id, status, tuple(completion.artifacts), completion.dossier)
