"""The second argument of a handler: what it may know about its run, and what it may hand over.

What is handed over (artifacts, follow-up jobs) takes effect with the job's success, together and durably; a run that
fails leaves nothing of it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from queuekit.completion import ArtifactRef
from queuekit.errors import WriteFailed
from queuekit.hlc import HLC, INT32_MAX
from queuekit.ids import JobID, StreamID
from queuekit.job import DELIVERY, Job
from queuekit.wire import check_sendable, encode_job

_LOGGERS = "workerpool.handler."


@dataclasses.dataclass(slots=True)
class Handed:
    """What one job's run handed over so far: artifacts, and follow-up jobs as the bytes of their files."""

    artifacts: list[ArtifactRef] = dataclasses.field(default_factory=list)
    submitted: list[bytes] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What is the same for every run in one process.

    `stop`: whether the pool wants to end; `progress`: where progress goes (done, total); `max_job_bytes`: the largest
    payload of a follow-up job.
    """

    stop: Callable[[], bool]
    progress: Callable[[int, int], object]
    max_job_bytes: int = 64 * 2**20


class JobContext:
    """One run of one job, or of one batch. Use it from the handler's thread, and not after the handler returned.

    `attempt`: which run this is, 1 = the first (of a batch: the highest); `deadline`: `time.monotonic()` seconds at
    which the worker is killed, None = no limit; `fence`: a number that grows with each new holder of the stream: a
    store that remembers the highest one it saw can refuse a holder that was given up. Where many machines share the
    stream, it has to remember the highest one of each job.
    """

    __slots__ = ("_handed", "_jobs", "_surroundings", "attempt", "deadline", "fence")

    def __init__(
        self, jobs: tuple[Job, ...], surroundings: Surroundings, *, attempt: int, deadline: float | None, fence: int
    ) -> None:
        self.attempt = attempt
        self.deadline = deadline
        self.fence = fence
        self._jobs = jobs
        self._surroundings = surroundings
        self._handed: dict[JobID, Handed] = {}

    @property
    def should_stop(self) -> bool:
        """Whether the pool is stopping: a long job may save its state and raise `Retry`."""
        return self._surroundings.stop()

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records carry `job_id` (of a batch: its first job's), `stream` and `attempt`."""
        first = self._jobs[0]
        facts = {"job_id": first.id, "stream": first.stream_id, "attempt": self.attempt}
        return _JobLogger(logging.getLogger(_LOGGERS + first.stream_id), facts)

    def progress(self, done: int, total: int) -> None:
        """Say how far the run is, in any unit; shown by `status`. Costs about a microsecond."""
        self._surroundings.progress(done, total)

    def artifact(self, ref: ArtifactRef, *, job: Job | None = None) -> None:
        """Name something that the job left behind, in its record. `job`: which one, in a batch.

        Raises `TypeError` when `ref` is no `ArtifactRef`, `ValueError` in a batch without `job`.
        """
        if not isinstance(ref, ArtifactRef):
            raise TypeError(f"an artifact is an ArtifactRef, not of type {type(ref).__name__}")
        self._of(job).artifacts.append(ref)

    def submit(
        self,
        stream: str,
        payload: bytes,
        *,
        priority: int = 50,
        extensions: Mapping[str, Any] | None = None,
        parent: Job | None = None,
    ) -> JobID:
        """Hand over a follow-up job; it is sent before this job counts as done, and only if it does.

        Its id and time follow from the parent's and from the order of the calls, so that a second run that submits the
        same jobs in the same order makes the same ones, once. `parent`: whose, in a batch. Raises at once, and hands
        over nothing, when the job could not be sent: `WriteFailed`, `InvalidIdentifier`; `ValueError` in a batch
        without `parent`, or for the reserved extension `delivery`.
        """
        handed = self._of(parent)
        job = dataclasses.replace(
            follow_up(parent or self._jobs[0], len(handed.submitted), stream),
            priority=priority,
            payload=payload,
            extensions=_unreserved(extensions or {}),
        )
        check_sendable(job)
        if len(job.payload) > self._surroundings.max_job_bytes:
            limit = self._surroundings.max_job_bytes
            raise WriteFailed(f"job {job.id}", f"its payload has {len(job.payload)} bytes, {limit} at most")
        handed.submitted.append(encode_job(job))
        return job.id

    def handed(self, job: Job) -> Handed:
        """What was handed over for one job; for the pool."""
        return self._handed.get(job.id) or Handed()

    def _of(self, job: Job | None) -> Handed:
        if job is None and len(self._jobs) > 1:
            raise ValueError("this run has several jobs: say which one (artifact(…, job=…), submit(…, parent=…))")
        chosen = job or self._jobs[0]
        if all(chosen.id != mine.id for mine in self._jobs):
            raise ValueError(f"the job {chosen.id} is not one of this run's")
        return self._handed.setdefault(chosen.id, Handed())


class _JobLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds a run's facts to each record, beside what the handler gives as `extra`."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(kwargs.get("extra") or {}), **(self.extra or {})}
        return msg, kwargs


def follow_up(parent: Job, index: int, stream: str) -> Job:
    """The `index`-th follow-up job (from 0) of `parent`, still empty: always the same id and time for the same place.

    The id is the first 32 hex digits of the SHA-256 of `<parent id>/<stream>/<index>`; the time is the parent's, one
    logical tick later per job.
    """
    born = parent.submitted_at
    logical = min(born.logical_count + 1 + index, INT32_MAX)
    return Job(
        id=JobID(hashlib.sha256(f"{parent.id}/{stream}/{index}".encode()).hexdigest()[:32]),
        stream_id=StreamID(stream),
        submitted_at=HLC(born.physical_time, logical, born.node_id),
    )


def _unreserved(extensions: Mapping[str, Any]) -> Mapping[str, Any]:
    if DELIVERY in extensions:
        raise ValueError(f"the extension {DELIVERY!r} is the queue's own")
    return extensions
