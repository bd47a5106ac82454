"""The queue in memory: what every backend means, without a disk. For tests, for trying things out, and to compare with.

`MemoryStore` is the folders: `new`, `later`, `cur`, `done` hold jobs by their file names, so a job can be in two places
exactly when it was sent twice, as on disk. `MemoryBackend` is one consumer of a store, with claims of its own; several
on one store are what several processes are on one folder. One lock guards a store, and every verb holds it from its
check to its act; so a lease that is ours at the check is ours at the act, too.

Nothing survives the process. Jobs are copied on their way in and out: what a caller does to one changes no other.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from queuekit.backends.admission import DEFAULT_MAX_JOB_BYTES, checked_completion, prepare, same_job
from queuekit.backends.claims import Claim, Claims
from queuekit.backends.maildir import layout
from queuekit.backends.memory_checkpoints import MemoryCheckpoints
from queuekit.backends.memory_transfer import MemoryTransfer
from queuekit.clock import ProcessClock, now_ms
from queuekit.completion import ArtifactRef, Completion, SignalFile
from queuekit.contract import JobView, Lease, PutAside, QueueBackend, Tally
from queuekit.errors import BackendUnavailable, IllegalTransition, JobNotFound, LeaseLost, WriteFailed
from queuekit.hlc import HLCGenerator
from queuekit.ids import JobID, SessionID, check_identifier, safe_stream
from queuekit.job import Claimed, Delivery, Job
from queuekit.lease import DEFAULT_TTL, FENCE_BITS, HEARTBEAT_FRACTION, Record, Verdict, judge
from queuekit.lifecycle import State, Verb, target
from queuekit.locks import Life
from queuekit.status import ObservationStatus, check_terminal
from queuekit.watch.base import wait_loop
from queuekit.wire import decode_job, encode_job, encode_signal

_Folder = dict[str, Job]


@dataclasses.dataclass(slots=True, eq=False)
class MemoryStore:
    """The jobs, leases and watchers that backends share. `receipts`: a number for each claim, new at each one.

    `leaving`, `arriving`, `origin`: of a move to another store, see `memory_transfer`.
    """

    new: _Folder = dataclasses.field(default_factory=dict)
    later: _Folder = dataclasses.field(default_factory=dict)
    cur: _Folder = dataclasses.field(default_factory=dict)
    done: _Folder = dataclasses.field(default_factory=dict)
    signals: dict[str, SignalFile] = dataclasses.field(default_factory=dict)
    dossiers: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    receipts: dict[str, int] = dataclasses.field(default_factory=dict)
    checkpoints: dict[tuple[str, str], bytes] = dataclasses.field(default_factory=dict)
    leases: dict[str, bytes] = dataclasses.field(default_factory=dict)
    fences: dict[str, int] = dataclasses.field(default_factory=dict)
    watchers: set[MemoryWatcher] = dataclasses.field(default_factory=set)
    guard: threading.RLock = dataclasses.field(default_factory=threading.RLock)
    count: Iterator[int] = dataclasses.field(default_factory=itertools.count)
    leaving: dict[str, JobView] = dataclasses.field(default_factory=dict)
    arriving: dict[str, JobView] = dataclasses.field(default_factory=dict)
    origin: str | None = None

    def arrive(self, name: str, job: Job) -> None:
        """A job becomes pending, and whoever waits is woken."""
        self.new[name] = job
        for watcher in self.watchers:
            watcher.wake()

    def has_ended(self, name: str) -> bool:
        """Whether a job of this name is finished, with the record of its end."""
        return name in self.done and self.done[name].id in self.signals

    def end(self, name: str, job: Job, signal: SignalFile) -> None:
        """A job is finished."""
        self.done[name] = job
        self.signals[job.id] = signal

    def keep_dossier(self, job_id: str, facts: Mapping[str, Any]) -> None:
        """Add facts to what is known of a job, as JSON would hold them."""
        self.dossiers[job_id] = json.loads(json.dumps({**self.dossiers.get(job_id, {}), **facts}, default=str))


class MemoryBackend(QueueBackend):
    """A `MemoryStore` as a `QueueBackend`.

    `hlc`: the generator for `completed_at` (default: one of this process); `max_job_bytes`: the largest payload;
    `store`: the jobs, to share them with another backend (default: an empty one of its own, `backend.store`).
    """

    def __init__(
        self,
        *,
        hlc: HLCGenerator | None = None,
        max_job_bytes: int = DEFAULT_MAX_JOB_BYTES,
        store: MemoryStore | None = None,
    ) -> None:
        self.store = store or MemoryStore()
        self._max_job_bytes = max_job_bytes
        self._clock = ProcessClock(hlc)
        self._claims = Claims()
        self._closed = False

    # -- producing

    def write(self, job: Job, *, due_ms: int | None = None) -> None:
        """Accept one job. Raises `InvalidIdentifier` or `WriteFailed` for one that no backend could keep."""
        name, data = prepare(job, self._max_job_bytes)
        with self._open() as store:
            if due_ms is None:
                self._accept(store.new, name, decode_job(data), store.arrive)
            else:
                later = layout.later_filename(name, due_ms, retry=False)
                self._accept(store.later, later, decode_job(data), store.later.__setitem__)

    def write_batch(self, jobs: Iterable[Job]) -> int:
        """Accept many; all are checked before the first is accepted."""
        prepared = [prepare(job, self._max_job_bytes) for job in jobs]
        with self._open() as store:
            for name, data in prepared:
                self._accept(store.new, name, decode_job(data), store.arrive)
        return len(prepared)

    def _accept(self, folder: _Folder, name: str, job: Job, put: Callable[[str, Job], None]) -> None:
        if name not in folder:
            put(name, job)
        elif not same_job(folder[name], job):
            raise WriteFailed(name, "another job with the same stream, id and time is pending")

    # -- consuming

    def drain_available(
        self, stream: str | None = None, limit: int | None = None, *, lease: Lease | None = None
    ) -> list[Claimed]:
        """Claim pending jobs. Without a lease it raises `LeaseLost` while somebody holds a fresh one."""
        if stream is not None:
            check_identifier(stream)
        with self._open() as store:
            self._check_drainer(stream, lease)
            self._promote_due(stream)
            session = SessionID.mint()
            claimed: list[Claimed] = []
            for name in sorted(name for name, job in store.new.items() if stream in {None, job.stream_id}):
                if limit is not None and len(claimed) >= limit:
                    break
                job = self._claim(name, session, lease)
                if job is not None:
                    claimed.append(Claimed(job=_copy(job), session_id=session))
        return sorted(claimed, key=lambda each: each.job.submitted_at)

    def _check_drainer(self, stream: str | None, lease: Lease | None) -> None:
        if lease is None:
            for safe in [safe_stream(stream)] if stream is not None else sorted(self.store.leases):
                look = MemoryLease(self.store, safe, DEFAULT_TTL)
                if look.is_held_by_other():
                    raise LeaseLost(stream or safe, look.holder())
        elif lease.stream != stream:
            raise LeaseLost(stream or "(all)", f"a lease of stream {lease.stream!r} was given")
        else:
            self._verify(stream, lease)

    def _promote_due(self, stream: str | None) -> None:
        now = now_ms()
        for later, (due_ms, _, name) in self._deferred(stream).items():
            if due_ms <= now:
                job = self.store.later.pop(later)
                if name not in self.store.new:
                    self.store.arrive(name, job)

    def _claim(self, name: str, session: SessionID, lease: Lease | None) -> Job | None:
        """Take one pending job; None when it was sent twice and its first copy is in flight or has ended."""
        store, job = self.store, self.store.new.pop(name)
        if name in store.cur or store.has_ended(name):
            return None
        store.cur[name] = job
        store.receipts[name] = next(store.count)
        self._claims.add(
            Claim(
                name=name,
                stream=job.stream_id,
                job_id=job.id,
                submitted_at=job.submitted_at,
                session=session,
                receipt=store.receipts[name] if lease is None else None,
                fence=lease.fence if lease else 0,
                job=None,
            )
        )
        return job

    def complete(
        self,
        job_id: str,
        status: ObservationStatus | str,
        artifacts: Sequence[ArtifactRef] = (),
        *,
        dossier: Mapping[str, Any] | None = None,
        lease: Lease | None = None,
    ) -> None:
        """End one job in flight."""
        completion = Completion(JobID(job_id), check_terminal(status), artifacts, dossier)
        if not self.complete_batch([completion], lease=lease):
            raise JobNotFound(job_id, "it is not in flight")

    def complete_batch(self, completions: Sequence[Completion], *, lease: Lease | None = None) -> int:
        """End many; those not in flight are skipped. All are checked before the first is ended."""
        checked = [checked_completion(each) for each in completions]
        with self._open():
            found = [(each, self._find(each.job_id, lease)) for each in checked]
            return sum(self._end(each, claim, lease) for each, claim in found if claim is not None)

    def _end(self, completion: Completion, claim: Claim, lease: Lease | None) -> bool:
        self._verify(claim.stream, lease)
        if not self._take_back(claim):
            return False
        job = self.store.cur.pop(claim.name)
        if completion.dossier is not None:
            self.store.keep_dossier(job.id, completion.dossier)
        self.store.end(claim.name, job, self._signal(job, completion.status, completion.artifacts))
        return True

    def complete_session(
        self, session_id: SessionID, status: ObservationStatus | str, *, lease: Lease | None = None
    ) -> int:
        """End what is left of one of this instance's drain calls; sessions of others are unknown here: 0."""
        ended = check_terminal(status)
        claims = [each for each in self._claims.of_session(session_id) if lease is None or each.stream == lease.stream]
        return self.complete_batch([Completion(JobID(each.job_id), ended) for each in claims], lease=lease)

    def release(self, job_id: str, *, lease: Lease | None = None) -> None:
        """Give back a job in flight, or make a deferred one pending now."""
        with self._open() as store:
            try:
                claim = self._require_in_flight(job_id, lease)
            except JobNotFound:
                if lease is not None:
                    raise
                self.run_now(job_id)
            else:
                store.arrive(claim.name, store.cur.pop(claim.name))

    def run_now(self, job_id: str) -> None:
        state, file, name = self._require(job_id, Verb.RELEASE)
        if state is not State.LATER:  # in flight, but not here any more
            raise IllegalTransition(Verb.RELEASE, state, job_id)
        if name in self.store.new:
            raise WriteFailed(name, "the same job is pending already")
        self.store.arrive(name, self.store.later.pop(file))

    def defer(
        self, job_id: str, due_ms: int, *, error: str = "", crashed: bool = False, lease: Lease | None = None
    ) -> None:
        """Put a job in flight off, with one attempt more in its record."""
        with self._open() as store:
            claim = self._require_in_flight(job_id, lease)
            job = store.cur.pop(claim.name)
            later = layout.later_filename(claim.name, due_ms, retry=True)
            store.later[later] = Delivery.of(job).failed(error, crashed=crashed).onto(job)

    def reclaim_in_flight(self, stream: str, *, lease: Lease | None = None) -> int:
        """Everything of the stream that is in flight becomes pending again."""
        check_identifier(stream)
        with self._open():
            self._claims.drop_stream(stream)
            return self._bring_home(stream, lease)

    def rescue_strays(self, stream: str, *, lease: Lease) -> int:
        """What is in flight in the stream and was not claimed here becomes pending again."""
        with self._open():
            return self._bring_home(stream, lease)

    def _bring_home(self, stream: str, lease: Lease | None) -> int:
        store = self.store
        strays = [name for name, job in store.cur.items() if job.stream_id == stream and name not in self._claims]
        moved = 0
        for name in strays:
            self._verify(stream, lease)
            job = store.cur.pop(name)
            if not store.has_ended(name):
                store.arrive(name, job)
                moved += 1
        return moved

    def adopt(self, job_id: str, *, lease: Lease) -> Claimed | None:
        """Take over one job that a dead consumer left in flight; None when it is not there."""
        with self._open() as store:
            self._verify(lease.stream, lease)
            claim = self._foreign(job_id, lease.stream)
            if claim is None:
                return None
            if store.has_ended(claim.name):
                del store.cur[claim.name]
                return None
            session = SessionID.mint()
            self._claims.add(dataclasses.replace(claim, session=session, fence=lease.fence))
            return Claimed(job=_copy(store.cur[claim.name]), session_id=session)

    def drop_claims(self, stream: str) -> None:
        """Forget what this instance has claimed in a stream."""
        self._claims.drop_stream(stream)

    # -- a person's verbs

    def cancel(self, job_id: str) -> None:
        """End a pending or deferred job as `blocked`."""
        with self._open() as store:
            state, file, name = self._require(job_id, Verb.CANCEL)
            job = (store.new if state is State.NEW else store.later).pop(file)
            if name in store.cur or store.has_ended(name):  # sent twice: this copy never counted
                raise IllegalTransition(Verb.CANCEL, State.DONE, job_id)
            store.keep_dossier(job_id, {"ended": "cancelled", "was": str(state), "at_ms": now_ms()})
            store.end(name, job, self._signal(job, ObservationStatus.BLOCKED))

    def retry(self, job_id: str) -> None:
        """Make a finished job pending again; its earlier end is kept in its dossier."""
        with self._open() as store:
            _, _, name = self._require(job_id, Verb.RETRY)
            if job_id not in store.signals:
                raise IllegalTransition(Verb.RETRY, "without a record of its end", job_id)
            end = encode_signal(store.signals.pop(job_id)).decode()
            ends = store.dossiers.get(job_id, {}).get("earlier_ends", [])
            store.keep_dossier(job_id, {"earlier_ends": [*ends, end]})
            store.arrive(name, Delivery().onto(store.done.pop(name)))

    def prune(
        self,
        older_than: float,
        *,
        limit: int | None = None,
        stream: str | None = None,
        lease: Lease | None = None,
        statuses: Collection[ObservationStatus] | None = None,
    ) -> int:
        """Remove the records of jobs that ended more than `older_than` seconds ago, those sent first first."""
        horizon = now_ms() - int(older_than * 1000)
        with self._open() as store:
            old = [name for name in sorted(store.done) if self._is_old(store.done[name], horizon, stream, statuses)]
            old = old[:limit]
            for name in old:
                self._verify(store.done[name].stream_id, lease)
                job = store.done.pop(name)
                store.signals.pop(job.id, None)
                store.dossiers.pop(job.id, None)
        return len(old)

    def _is_old(
        self, job: Job, horizon: int, stream: str | None, statuses: Collection[ObservationStatus] | None
    ) -> bool:
        signal = self.store.signals.get(job.id)
        ended_at = signal.completed_at if signal else job.submitted_at
        if statuses is not None and (signal.status if signal else ObservationStatus.BLOCKED) not in statuses:
            return False
        return stream in {None, job.stream_id} and ended_at.physical_time <= horizon

    # -- reading

    def tally(self, stream: str | None = None) -> Tally:
        """How many jobs are where."""
        with self._open():
            deferred = self._deferred(stream).values()
            retries = [due_ms for due_ms, retry, _ in deferred if retry]
            return Tally(
                pending=self.pending_count(stream),
                in_flight=self.in_flight_count(stream),
                retrying=len(retries),
                scheduled=len(deferred) - len(retries),
                next_retry_ms=min(retries, default=None),
            )

    def pending_count(self, stream: str | None = None) -> int:
        """How many are pending."""
        with self._open() as store:
            return sum(stream in {None, job.stream_id} for job in store.new.values())

    def in_flight_count(self, stream: str | None = None) -> int:
        """How many are claimed and not ended."""
        with self._open() as store:
            return sum(stream in {None, job.stream_id} for job in store.cur.values())

    def in_flight(self, stream: str | None = None) -> list[Job]:
        """The jobs that are claimed and not ended."""
        with self._open() as store:
            return _in_order(job for job in store.cur.values() if stream in {None, job.stream_id})

    def completed(self, stream: str | None = None) -> list[Job]:
        """The jobs that have ended and are kept."""
        with self._open() as store:
            ended = (job for name, job in store.done.items() if store.has_ended(name))
            return _in_order(job for job in ended if stream in {None, job.stream_id})

    def signal(self, job_id: str) -> SignalFile | None:
        """How a job ended."""
        check_identifier(job_id)
        with self._open() as store:
            return store.signals.get(job_id)

    def look_up(self, job_id: str) -> JobView | None:
        """One job, wherever it is."""
        with self._open() as store:
            found = self._locate(job_id)
            if found is None:
                return None
            state, file, _ = found
            view = self._view(state, file, self._folder(state)[file])
            return dataclasses.replace(view, dossier=_copied(store.dossiers.get(job_id)))

    def jobs(self, states: Collection[State], stream: str | None = None) -> Iterator[JobView | PutAside]:
        """The jobs in these states; a state is looked at when its first job is asked for."""
        for state in (State.LATER, State.NEW, State.CUR, State.DONE):
            if state in states:
                yield from self._views(state, stream)

    def _views(self, state: State, stream: str | None) -> list[JobView]:
        with self._open():
            files = sorted(self._folder(state).items(), key=lambda item: item[0], reverse=state is State.DONE)
            return [self._view(state, file, job) for file, job in files if stream in {None, job.stream_id}]

    def _view(self, state: State, file: str, job: Job) -> JobView:
        """A job as a list shows it: only one that ended `blocked` with its dossier."""
        due_ms, retry, _ = (layout.split_later(file) if state is State.LATER else None) or (None, False, "")
        signal = self.store.signals.get(job.id) if state is State.DONE else None
        blocked = signal is not None and signal.status is ObservationStatus.BLOCKED
        return JobView(
            job=_copy(job),
            state=state,
            due_ms=due_ms,
            retry=retry,
            signal=signal,
            dossier=_copied(self.store.dossiers.get(job.id)) if blocked else None,
        )

    def blocked_counts(self, *, at_most: int) -> dict[str, int]:
        """How many jobs of each stream have ended `blocked`, of `at_most` records."""
        with self._open() as store:
            ended = [(job, store.signals.get(job.id)) for job in store.done.values()]
            blocked = [job.stream_id for job, end in ended if end and end.status is ObservationStatus.BLOCKED]
            return dict(collections.Counter(map(str, blocked[:at_most])))

    def ids_beginning(self, typed: str) -> list[str]:
        """The ids that begin so."""
        with self._open() as store:
            folders = (store.new, store.later, store.cur, store.done)
            return sorted({job.id for folder in folders for job in folder.values() if job.id.startswith(typed)})

    def put_aside(self, typed: str) -> PutAside | None:  # noqa: ARG002  whatever is here was a job when it came
        """None: nothing here cannot be read."""
        return None

    def streams(self, at_most: int | None = None) -> set[str]:  # noqa: ARG002  all of them are no more work
        """The streams of jobs that have not ended."""
        with self._open() as store:
            return {job.stream_id for folder in (store.new, store.later, store.cur) for job in folder.values()}

    def next_due(self, stream: str | None = None) -> float | None:
        """Seconds until the next deferred job is due; None when there is none."""
        with self._open():
            due = [due_ms for due_ms, _, _ in self._deferred(stream).values()]
            return max(0.0, (min(due) - now_ms()) / 1000) if due else None

    # -- waking, leases, life

    def watcher(self, stream: str | None = None) -> MemoryWatcher:  # noqa: ARG002  a spurious wake is fine
        """A watcher that is woken whenever a job becomes pending."""
        with self._open() as store:
            return MemoryWatcher(store)

    def watch(self, on_wake: Callable[[], None], stop: threading.Event | None = None) -> None:
        """Call `on_wake` once, then at every arrival, until `stop` is set."""
        watcher = self.watcher()
        try:
            wait_loop(watcher, lambda _: on_wake(), stop, next_due=self.next_due)
        finally:
            watcher.close()

    def lease(self, stream: str, ttl: float = DEFAULT_TTL, *, exclusive: bool = True) -> MemoryLease:
        """A new lease object for the stream, not yet acquired."""
        if not exclusive:
            raise ValueError("a stream in memory has one consumer at a time: its lease is exclusive")
        check_identifier(stream)
        return MemoryLease(self.store, stream, ttl)

    def transfer(self) -> MemoryTransfer:
        """This store's part in a move to or from another one."""
        return MemoryTransfer(self._open)

    @property
    def checkpoints(self) -> MemoryCheckpoints:
        """The checkpoints of this store: a dict."""
        return MemoryCheckpoints(self.store.checkpoints, self._open, self._max_job_bytes)

    def close(self) -> None:
        """Refuse everything from now on; the store stays for the others that share it."""
        self._closed = True

    # -- shared

    @contextlib.contextmanager
    def _open(self) -> Iterator[MemoryStore]:
        """The store, with its lock held; raises `BackendUnavailable` after `close`."""
        if self._closed:
            raise BackendUnavailable("it is closed")
        with self.store.guard:
            yield self.store

    def _verify(self, stream: str, lease: Lease | None) -> None:
        """Raise `LeaseLost`, and drop every claim in the stream, unless a given lease is the stream's and ours."""
        try:
            if lease is not None:
                if lease.stream != stream:
                    raise LeaseLost(stream, f"a lease of stream {lease.stream!r} was given")
                lease.verify()
        except LeaseLost:
            self._claims.drop_stream(stream)
            raise

    def _find(self, job_id: str, lease: Lease | None) -> Claim | None:
        """The claim that a reply is for: ours, else what others have in flight. None: drop the outcome."""
        stream = lease.stream if lease else None
        claim = self._claims.find(job_id, stream)
        if claim is None:
            return self._foreign(job_id, stream)
        if lease is not None and claim.fence != lease.fence:  # claimed before the lease was lost and won again
            self._claims.drop(claim)
            return None
        return None if claim.lost and lease is not None else claim

    def _foreign(self, job_id: str, stream: str | None) -> Claim | None:
        for name, job in sorted(self.store.cur.items(), key=lambda item: item[0]):
            if job.id == job_id and stream in {None, job.stream_id} and not self._claims.had(name):
                return Claim(name, job.stream_id, job.id, SessionID(""), None, 0, None, job.submitted_at)
        return None

    def _take_back(self, claim: Claim) -> bool:
        """Forget a claim; whether it still stood."""
        receipt = self.store.receipts.get(claim.name)
        if claim.name not in self.store.cur or claim.receipt not in {None, receipt}:
            self._claims.lose(claim)
            return False
        self._claims.drop(claim)
        return True

    def _require_in_flight(self, job_id: str, lease: Lease | None) -> Claim:
        check_identifier(job_id)
        claim = self._find(job_id, lease)
        if claim is None:
            raise JobNotFound(job_id, "it is not in flight")
        self._verify(claim.stream, lease)
        if not self._take_back(claim):
            raise JobNotFound(job_id, "it is not in flight here any more")
        return claim

    def _folder(self, state: State) -> _Folder:
        store = self.store
        return {State.NEW: store.new, State.LATER: store.later, State.CUR: store.cur, State.DONE: store.done}[state]

    def _locate(self, job_id: str) -> tuple[State, str, str] | None:
        """`(state, name there, job file name)` of a job, wherever it is."""
        check_identifier(job_id)
        for state in (State.NEW, State.LATER, State.CUR, State.DONE):
            for file, job in sorted(self._folder(state).items(), key=lambda item: item[0]):
                if job.id == job_id:
                    return state, file, layout.job_filename(job)
        return None

    def _require(self, job_id: str, verb: Verb) -> tuple[State, str, str]:
        found = self._locate(job_id)
        if found is None:
            raise JobNotFound(job_id)
        target(found[0], verb, job_id)
        return found

    def _deferred(self, stream: str | None) -> dict[str, tuple[int, bool, str]]:
        """`(due ms, whether it is a retry, job file name)` of what is put off, soonest first."""
        return {
            file: split
            for file, job in sorted(self.store.later.items(), key=lambda item: item[0])
            if stream in {None, job.stream_id} and (split := layout.split_later(file))
        }

    def _signal(self, job: Job, status: ObservationStatus, artifacts: Sequence[ArtifactRef] = ()) -> SignalFile:
        return SignalFile(
            job_id=job.id,
            status=status,
            completed_at=self._clock.receive(job.submitted_at),
            artifacts=tuple(artifacts),
        )


class MemoryLease:
    """The lease of one stream of a `MemoryStore`, by the rule that leases on disk follow (`queuekit.lease.judge`).

    All holders live in this process, so none is ever found dead: a lease is stale for whoever has seen it unchanged for
    longer than its own `ttl` (seconds).
    """

    def __init__(self, store: MemoryStore, stream: str, ttl: float) -> None:
        self.stream = stream
        self.ttl = ttl
        self.owner = f"pid-{os.getpid()}-{os.urandom(8).hex()}"
        self.fence = 0
        self._store = store
        self._safe = safe_stream(stream)
        self._seen: tuple[bytes | None, float] = (None, time.monotonic())

    @property
    def heartbeat_interval(self) -> float:
        """Seconds between two heartbeats of a holder: a third of the ttl."""
        return self.ttl / HEARTBEAT_FRACTION

    def run_number(self, claims: int, attempt: int) -> int:  # noqa: ARG002
        """The number of the take-over, then of the claim."""
        return self.fence << FENCE_BITS | claims

    def try_acquire(self, now: float | None = None) -> bool:
        """Take the lease when it is free, stale or ours; True when it is ours now. `now`: epoch seconds."""
        at = time.time() if now is None else now
        with self._store.guard:
            verdict = self._judge(at)
            if verdict is Verdict.FRESH:
                return False
            if verdict is not Verdict.OURS or not self.fence:
                self.fence = self._store.fences[self._safe] = self._store.fences.get(self._safe, 0) + 1
            self._store.leases[self._safe] = Record(self.owner, at).encode()
            return True

    def heartbeat(self, now: float | None = None) -> None:
        """Renew it; raises `LeaseLost` when it is another's or gone."""
        with self._store.guard:
            self.verify()
            self._store.leases[self._safe] = Record(self.owner, time.time() if now is None else now).encode()

    def verify(self) -> None:
        """Raise `LeaseLost` unless it is ours."""
        holder = self.holder()
        if holder != self.owner:
            raise LeaseLost(self.stream, holder)

    def holder(self) -> str | None:
        """The owner that the lease names, stale or not; None when there is none."""
        content = self._store.leases.get(self._safe)
        record = Record.decode(content) if content is not None else None
        return record.owner if record else None

    def is_held_by_other(self, now: float | None = None) -> bool:
        """Whether somebody else has it and is not stale. Changes nothing."""
        with self._store.guard:
            return self._judge(time.time() if now is None else now) is Verdict.FRESH

    def release(self) -> None:
        """Give it up if it is ours."""
        with self._store.guard:
            if self.holder() == self.owner:
                del self._store.leases[self._safe]
            self.fence = 0

    def _judge(self, now: float) -> Verdict:
        content, moment = self._store.leases.get(self._safe), time.monotonic()
        if content != self._seen[0]:
            self._seen = (content, moment)
        unchanged = moment - self._seen[1]
        return judge(content, owner=self.owner, now=now, ttl=self.ttl, life=Life.HELD, unchanged=unchanged)


class MemoryWatcher:
    """Woken through a pipe when a job becomes pending. It knows no names: every wake means "look"."""

    kind = "memory"

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        with store.guard:
            store.watchers.add(self)

    def wake(self) -> None:
        """Make `fileno()` readable. Called with the store's lock held."""
        with contextlib.suppress(BlockingIOError):  # full of wakes that nobody has read: one more says nothing new
            os.write(self._writing, b"\0")

    def fileno(self) -> int:
        """A descriptor that is readable when something arrived."""
        return self._reading

    def timeout(self) -> float | None:
        """None: nothing is ever missed."""
        return None

    def read(self) -> tuple[str, ...]:
        """Take all wakes; always `()`."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self._reading, 65536):
                pass
        return ()

    def check(self) -> bool:
        """True: there is no other place to watch."""
        return True

    def close(self) -> None:
        """Stop being woken and release the pipe; any number of times."""
        with self._store.guard:
            if self in self._store.watchers:
                self._store.watchers.remove(self)
                os.close(self._reading)
                os.close(self._writing)


def _copy(job: Job) -> Job:
    return decode_job(encode_job(job))


def _copied(dossier: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if dossier is None else json.loads(json.dumps(dossier))


def _in_order(jobs: Iterable[Job]) -> list[Job]:
    return sorted(map(_copy, jobs), key=lambda job: job.submitted_at)
