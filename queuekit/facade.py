"""`QueueKit`: the queue as its users see it. The same words over every backend; telemetry is wrapped around once, here.

    with QueueKit("spool") as queue:
        queue.submit("encode", b"payload")
        for claimed in queue.drain("encode", limit=10):
            queue.reply(claimed.job.id, ObservationStatus.DONE)

`send` and `reply` are durable when they return (as far as the backend's durability says). Everything is safe to use
from several threads.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from queuekit.backends.admission import DEFAULT_MAX_JOB_BYTES
from queuekit.backends.maildir.backend import FilesystemBackend
from queuekit.checkpoints import Checkpoints
from queuekit.clock import ProcessClock, now_ms
from queuekit.completion import ArtifactRef, Completion, SignalFile
from queuekit.contract import JobView, Lease, PutAside, QueueBackend, Tally
from queuekit.errors import BackendUnavailable, DrainTimeout, QueueError
from queuekit.hlc import HLCGenerator
from queuekit.ids import JobID, SessionID, StreamID
from queuekit.job import Claimed, Job
from queuekit.lease import DEFAULT_TTL
from queuekit.lifecycle import State
from queuekit.locks import PATIENCE_SECONDS
from queuekit.status import ObservationStatus, check_terminal
from queuekit.telemetry import LatencyBox, QueueLatencyWindowBox, report_in_portions

REPORT_INTERVAL = 30.0
POLL_SECONDS = 0.2
_OF_A_DATABASE = ("durability", "max_job_bytes", "patience", "poll")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_SLOW_PROBE_SHARE = 4


class QueueKit:
    """A queue on a maildir root, or on any `QueueBackend`.

    `root`: the folder, made if absent; `backend`: used instead of one; `estate`: the tag on every metric; `hlc`: the
    generator for `submitted_at` and `completed_at` (default: one of this process); `durability`: `full`, `batch` or
    `none`; `max_job_bytes`: the largest payload accepted. `latency`: the box that drain latencies go to (default: one
    of this instance). `patience`: seconds for which locks of others are waited for; `poll`: seconds between two looks
    where the system announces no arrivals.

    Raises `ValueError` for a root that is a URL, `DirectoryCreationFailed` when it cannot be made or trusted.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        backend: QueueBackend | None = None,
        estate: str = "unknown",
        hlc: HLCGenerator | None = None,
        durability: str = "full",
        max_job_bytes: int = DEFAULT_MAX_JOB_BYTES,
        latency: LatencyBox | None = None,
        report_interval: float = REPORT_INTERVAL,
        patience: float = PATIENCE_SECONDS,
        poll: float = POLL_SECONDS,
    ) -> None:
        if backend is None:
            if root is None or root == "":
                raise ValueError("QueueKit needs a root folder or a backend")
            if isinstance(root, str) and _URL.match(root):
                raise ValueError(f"{root!r} is a URL: use QueueKit.open(…); for a folder of that name write ./{root}")
            backend = FilesystemBackend(
                root,
                hlc=hlc,
                durability=durability,
                max_job_bytes=max_job_bytes,
                patience=patience,
                poll_interval=poll,
            )
        self.backend = backend
        self.root = os.fspath(root) if root is not None else None
        self.estate = estate
        self.latency: LatencyBox = latency or QueueLatencyWindowBox()
        self._report_interval = report_interval
        self._clock = ProcessClock(hlc)

    @classmethod
    def open(cls, url: str | os.PathLike[str], **options: Any) -> QueueKit:
        """A queue by its URL: `dir:./spool`, `sqlite:./jobs.db`, `postgresql://user@host/db`; a plain path is a folder.

        Takes the keywords of the constructor. Raises `ValueError` for another kind of URL, `BackendUnavailable` when
        the store cannot be reached, or when what its kind needs is not installed.
        """
        text = os.fspath(url)
        scheme, _, rest = text.partition(":")
        if scheme == "dir":
            return cls(Path(rest) if rest else rest, **options)
        if isinstance(url, str) and _URL.match(text):
            mine = {name: options.pop(name) for name in _OF_A_DATABASE if name in options}
            return cls(backend=_database(text, hlc=options.get("hlc"), **mine), **options)
        return cls(text, **options)

    # -- producing

    def submit(
        self,
        stream: str,
        payload: bytes = b"",
        *,
        priority: int = 50,
        extensions: Mapping[str, Any] | None = None,
        delay: float | None = None,
        connection: Any = None,
    ) -> JobID:
        """Make a job and send it; with `delay` (seconds) it is not claimable before that. Returns its id.

        `connection`: as for `send`.
        """
        job = Job(
            id=JobID.generate(),
            stream_id=StreamID(stream),
            submitted_at=self._clock.send(),
            priority=priority,
            payload=payload,
            extensions=extensions or {},
        )
        self.send(job, delay=delay, connection=connection)
        return job.id

    def send(self, job: Job, *, delay: float | None = None, connection: Any = None) -> None:
        """Accept a job; it survives a power cut when this returns. Sending the same job again is no error.

        `connection`: a SQLAlchemy connection to the queue's own database, inside a transaction of yours. The job is
        accepted when that commits, with your data or not at all. Raises `ValueError` where the queue is in no database.
        """
        if connection is None:
            self.backend.write(job, due_ms=_due(delay))
        else:
            self.backend.write_within(connection, [job], due_ms=_due(delay))

    def send_batch(self, jobs: Iterable[Job], *, connection: Any = None) -> int:
        """Accept many behind shared barriers; returns how many. An error or a crash may leave a prefix accepted.

        In a database it is all of them or none. `connection`: as for `send`.
        """
        if connection is None:
            return self.backend.write_batch(jobs)
        return self.backend.write_within(connection, jobs)

    # -- consuming

    def drain(
        self, stream: str | None = None, limit: int | None = None, *, lease: Lease | None = None
    ) -> list[Claimed]:
        """Claim what is pending, up to `limit` jobs, in HLC order; every one must be settled afterwards.

        One session for the call. Without `lease` it raises `LeaseLost` while somebody else holds the stream's.
        """
        claimed, report = self.drain_and_report_later(stream, limit, lease=lease)
        for _ in report:
            pass
        return claimed

    def drain_and_report_later(
        self, stream: str | None = None, limit: int | None = None, *, lease: Lease | None = None
    ) -> tuple[list[Claimed], Iterator[None]]:
        """The same, with what tells telemetry of it: to be gone through, bit by bit, when the jobs are on their way.

        A report counts what is pending, which takes a second where that is a million.
        """
        begun = time.monotonic()
        claimed = self.backend.drain_available(stream, limit, lease=lease)
        report = report_in_portions(
            self.latency,
            estate=self.estate,
            stream=stream,
            drained=len(claimed),
            latency_ms=(time.monotonic() - begun) * 1000,
            oldest_ms=min((each.job.submitted_at.physical_time for each in claimed), default=None),
            count=lambda: self.backend.pending_portions(stream),
            now=time.time(),
            interval=self._report_interval,
        )
        return claimed, report

    def watch(
        self,
        handler: Callable[[Job, SessionID], None],
        stop: threading.Event | None = None,
        *,
        stream: str | None = None,
    ) -> None:
        """Call `handler` for every job, those there already included, until `stop` is set.

        The handler replies. When it raises, the jobs of the same drain that it has not seen go back, and the error ends
        the watch; so do errors of the drain.
        """

        def on_wake() -> None:
            while not (stop and stop.is_set()):
                batch = self.drain(stream)
                if not batch:
                    return
                self._hand_over(batch, handler, stop)

        self.backend.watch(on_wake, stop)

    def _hand_over(
        self, batch: Sequence[Claimed], handler: Callable[[Job, SessionID], None], stop: threading.Event | None
    ) -> None:
        for position, claimed in enumerate(batch):
            if stop and stop.is_set():
                self._give_back(batch[position:])
                return
            try:
                handler(claimed.job, claimed.session_id)
            except BaseException:
                self._give_back(batch[position + 1 :])
                raise

    def _give_back(self, batch: Sequence[Claimed]) -> None:
        for claimed in batch:
            self.backend.release(claimed.job.id)

    def reply(
        self,
        job_id: str,
        status: ObservationStatus | str,
        artifacts: Sequence[ArtifactRef] = (),
        *,
        lease: Lease | None = None,
    ) -> None:
        """End a job that is in flight; durable when this returns.

        Raises `InvalidTerminalStatus` before anything is touched, `JobNotFound` when the job is not in flight (any
        more: somebody else has it, drop the outcome), `LeaseLost`, `WriteFailed` (it is still in flight: reply again).
        """
        self.backend.complete(job_id, check_terminal(status), artifacts, lease=lease)

    def reply_session(
        self, session_id: SessionID, status: ObservationStatus | str, *, lease: Lease | None = None
    ) -> int:
        """End all jobs of one drain call that are not settled; returns how many. 0 for a session not known here."""
        return self.backend.complete_session(session_id, check_terminal(status), lease=lease)

    def reply_batch(self, completions: Sequence[Completion], *, lease: Lease | None = None) -> int:
        """End many behind one barrier; those not in flight are skipped. Returns how many ended."""
        return self.backend.complete_batch(completions, lease=lease)

    def reclaim_in_flight(self, stream: str, *, lease: Lease | None = None) -> int:
        """Make the jobs pending again that a dead consumer left in flight. Only under a lease just won."""
        return self.backend.reclaim_in_flight(stream, lease=lease)

    def lease(self, stream: str, ttl: float = DEFAULT_TTL, *, exclusive: bool = True) -> Lease:
        """A lease object for the stream, not yet acquired; `ttl` in seconds.

        `exclusive=False`: one of many on the stream; raises `ValueError` where the store cannot do that.
        """
        return self.backend.lease(stream, ttl, exclusive=exclusive)

    # -- one job

    def release(self, job_id: str) -> None:
        """Give a job in flight back, or run a deferred one now."""
        self.backend.release(job_id)

    def defer(self, job_id: str, delay: float) -> None:
        """Put a job in flight off for `delay` seconds; counts as a failed attempt."""
        self.backend.defer(job_id, _due(delay) or now_ms())

    def cancel(self, job_id: str) -> None:
        """End a pending or deferred job as `blocked` without running it."""
        self.backend.cancel(job_id)

    def retry(self, job_id: str) -> None:
        """Make a finished job pending again, with its attempts reset."""
        self.backend.retry(job_id)

    def prune(self, older_than: float) -> int:
        """Remove the records of jobs that ended more than `older_than` seconds ago; returns how many."""
        return self.backend.prune(older_than)

    # -- reading

    def in_flight(self, stream: str | None = None) -> list[Job]:
        """The jobs that are claimed and not ended, in HLC order."""
        return self.backend.in_flight(stream)

    def in_flight_count(self, stream: str | None = None) -> int:
        """How many are claimed and not ended."""
        return self.backend.in_flight_count(stream)

    def pending_count(self, stream: str | None = None) -> int:
        """How many are pending."""
        return self.backend.pending_count(stream)

    def completed(self, stream: str | None = None) -> list[Job]:
        """The jobs that have ended and are kept, in HLC order."""
        return self.backend.completed(stream)

    def tally(self, stream: str | None = None) -> Tally:
        """How many jobs are where."""
        return self.backend.tally(stream)

    def signal(self, job_id: str) -> SignalFile | None:
        """How a job ended; None when it has not."""
        return self.backend.signal(job_id)

    def look_up(self, job_id: str) -> JobView | None:
        """One job, wherever it is; None when it is not known."""
        return self.backend.look_up(job_id)

    def jobs(self, states: Collection[State] = tuple(State), stream: str | None = None) -> Iterator[JobView | PutAside]:
        """The jobs in these states, read as they are asked for: open ones first, then those that ended, newest first.

        Raises `BackendUnavailable`, while it is iterated, when the store cannot be read.
        """
        return self.backend.jobs(states, stream)

    def await_drain(self, stream: str | None = None, poll_interval: float = 0.02, timeout: float = 30.0) -> None:
        """Wait until nothing is pending, in flight or waiting for a retry.

        Raises `DrainTimeout` when the number of outstanding jobs has not fallen for `timeout` seconds; new jobs do not
        extend it, and while a retry is outstanding the time starts at its due time. The first look comes before any
        sleep; errors of the store pass through.
        """
        lowest: int | None = None
        deadline = 0.0
        while True:
            begun = time.monotonic()
            tally = self.backend.tally(stream)
            if tally.outstanding == 0:
                return
            now = time.monotonic()
            if lowest is None or tally.outstanding < lowest:
                lowest, deadline = tally.outstanding, now + timeout
            if tally.next_retry_ms is not None:
                deadline = max(deadline, now + (tally.next_retry_ms - now_ms()) / 1000 + timeout)
            if now >= deadline:
                raise DrainTimeout(tally.pending, tally.in_flight)
            time.sleep(max(poll_interval, _SLOW_PROBE_SHARE * (now - begun)))

    # -- checkpoints

    @property
    def checkpoints(self) -> Checkpoints:
        """Small records by which long work goes on after it was cut off (`queuekit.checkpoints`).

        Raises `BackendUnavailable` where the store keeps none.
        """
        return self.backend.checkpoints

    # -- life

    def close(self) -> None:
        """Release every descriptor; any number of times. Jobs in flight stay in flight."""
        self.backend.close()

    def __enter__(self) -> QueueKit:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _database(url: str, **options: Any) -> QueueBackend:
    """The backend of a database's URL; SQLAlchemy is imported only here."""
    try:
        from queuekit.backends.sql.backend import PersistenceKitBackend

        return PersistenceKitBackend(url, **options)
    except ModuleNotFoundError as error:
        extra = "postgres" if url.startswith("postgres") else "sql"
        raise BackendUnavailable(f"{error.name} is not installed: pip install 'workerpool[{extra}]'") from error


def _due(delay: float | None) -> int | None:
    return None if delay is None else now_ms() + round(max(0.0, delay) * 1000)


__all__ = ["QueueError", "QueueKit"]
