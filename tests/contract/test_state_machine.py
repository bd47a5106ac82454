"""Two backends, step by step: whatever one does and shows, the other does and shows, too.

The rules know nothing of what ought to happen; `MemoryBackend` is the expectation. Each side has two consumers of one
store, so that claims, sessions and leases of several processes meet. Due times lie in the past or far in the future, so
nothing depends on when it runs. A bounded drain takes the oldest jobs that its process knows of: what a watcher would
have told is passed on before, as a pool does.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from queuekit import (
    HLC,
    ArtifactRef,
    Completion,
    FilesystemBackend,
    Job,
    JobID,
    JobNotFound,
    Lease,
    LeaseLost,
    MemoryBackend,
    ObservationStatus,
    PersistenceKitBackend,
    QueueBackend,
    QueueError,
)
from queuekit.contract import JobView, PutAside
from queuekit.job import Claimed
from queuekit.lifecycle import State
from queuekit.testing.jobs import EPOCH_MS, FAR_MS, make_job, wait_until

if TYPE_CHECKING:
    from postgres import Server

STREAMS = ("a", "a-b")
IDS = ("1", "b-1", "00000000000000000000000000000001")
JOBS = [
    make_job(
        job_id,
        stream,
        at=HLC(EPOCH_MS + serial, serial % 3, serial % 2 * -5 + 1),
        payload=bytes([serial]),
        extensions={"n": serial} if serial % 2 else {},
    )
    for serial, (stream, job_id) in enumerate((stream, job_id) for stream in STREAMS for job_id in IDS)
]
ENDS = [status for status in ObservationStatus if status.is_terminal]

jobs = st.sampled_from(JOBS)
ids = st.sampled_from([*IDS, "unknown"])
streams = st.sampled_from(STREAMS)
statuses = st.sampled_from(ENDS)
due_times = st.sampled_from([EPOCH_MS, EPOCH_MS + 1, FAR_MS, FAR_MS + 1])
consumers = st.sampled_from([0, 1])
under_lease = st.booleans()
positions = st.integers(0, 50)


class Side:
    """One backend with two consumers, the leases each of them has, and the sessions it was given."""

    def __init__(self, consumers: list[QueueBackend]) -> None:
        self.consumers = consumers
        self.leases: list[dict[str, Lease]] = [{}, {}]
        self.sessions: list[Any] = []

    def lease(self, who: int, stream: str, ttl: float = 3600.0) -> Lease:
        return self.leases[who].setdefault(stream, self.consumers[who].lease(stream, ttl))


class Backends(RuleBasedStateMachine):
    """On a maildir. `sessions_are_private`: a session is known to the consumer that it was given to only;
    `prunes_in_order`: those that were sent first are removed first."""

    sessions_are_private = True
    prunes_in_order = True

    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.mkdtemp(prefix="queuekit-")
        memory = MemoryBackend()
        self.sides = [
            Side([memory, MemoryBackend(store=memory.store)]),
            Side([self.open() for _ in range(2)]),
        ]

    def open(self) -> QueueBackend:
        """One more consumer of the store that is compared."""
        return FilesystemBackend(self.root, durability="none")

    def may_send(self, job: Job, *, later: bool = False) -> bool:
        """Whether both stores have room for the job as it is now."""
        return True

    def teardown(self) -> None:
        for side in self.sides:
            for consumer in side.consumers:
                consumer.close()
            for leases in side.leases:
                for lease in leases.values():
                    with contextlib.suppress(QueueError):
                        lease.release()
        shutil.rmtree(self.root)

    def both(self, act: Callable[[Side], Any]) -> None:
        expected, got = (_outcome(act, side) for side in self.sides)
        assert got == expected

    def tell(self, who: int) -> None:
        """What a watcher would have told by now."""
        self.sides[1].consumers[who].hint(os.listdir(os.path.join(self.root, "new")))

    def lease_of(self, side: Side, who: int, stream: str, used: bool) -> Lease | None:
        return side.lease(who, stream) if used else None

    def rightful(self, who: int, stream: str) -> tuple[int, bool]:
        """The consumer that may work the stream now, and whether under a lease; `who` when nobody has leased it."""
        for holder, leases in enumerate(self.sides[0].leases):
            if stream in leases and leases[stream].holder() == leases[stream].owner:
                return holder, True
        return who, False

    @initialize(batch=st.lists(jobs, min_size=3, max_size=8), who=consumers)
    def begin_with_some_jobs(self, batch: list[Job], who: int) -> None:
        self.send_batch(batch, who)

    # -- what a well-behaved consumer does

    @rule(who=consumers, stream=streams, limit=st.sampled_from([None, 1, 2]))
    def work(self, who: int, stream: str, limit: int | None) -> None:
        who, leased = self.rightful(who, stream)
        if leased:
            self.drain_under_lease(who, stream, limit)
        else:
            self.drain(who, stream, limit)

    @rule(
        who=consumers,
        position=positions,
        verb=st.sampled_from(["complete", "defer", "release", "batch"]),
        due_ms=due_times,
        status=statuses,
    )
    def settle_one(self, who: int, position: int, verb: str, due_ms: int, status: ObservationStatus) -> None:
        running = self.sides[0].consumers[0].in_flight()
        if not running:
            return
        job = running[position % len(running)]
        who, leased = self.rightful(who, job.stream_id)
        match verb:
            case "complete":
                self.complete(who, job.id, status, job.stream_id, leased)
            case "defer":
                self.defer(who, job.id, due_ms, "no", False, job.stream_id, leased)
            case "release":
                self.release(who, job.id, job.stream_id, leased)
            case _:
                self.complete_batch(who, [job.id, running[-1].id], status, job.stream_id, leased)

    @rule(who=consumers, position=positions, verb=st.sampled_from(["cancel", "retry", "release"]))
    def a_person_acts(self, who: int, position: int, verb: str) -> None:
        views = [self.sides[0].consumers[0].look_up(job_id) for job_id in IDS]
        wanted = {"cancel": {State.NEW, State.LATER}, "retry": {State.DONE}, "release": {State.LATER}}[verb]
        found = [view.job.id for view in views if view is not None and view.state in wanted]
        if found:
            self.both(lambda side: getattr(side.consumers[who], verb)(found[position % len(found)]))

    # -- producing

    @rule(job=jobs, who=consumers)
    def send(self, job: Job, who: int) -> None:
        if self.may_send(job):
            self.both(lambda side: side.consumers[who].write(job))

    @rule(job=jobs, who=consumers, due_ms=due_times)
    def schedule(self, job: Job, who: int, due_ms: int) -> None:
        if self.may_send(job, later=True):
            self.both(lambda side: side.consumers[who].write(job, due_ms=due_ms))

    @rule(batch=st.lists(jobs, max_size=5), who=consumers)
    def send_batch(self, batch: list[Job], who: int) -> None:
        sendable = [job for job in batch if self.may_send(job)]
        self.both(lambda side: side.consumers[who].write_batch(sendable))

    # -- consuming

    @rule(who=consumers, stream=st.sampled_from([*STREAMS, None]), limit=st.sampled_from([None, 0, 1, 2]))
    def drain(self, who: int, stream: str | None, limit: int | None) -> None:
        self.tell(who)
        self.both(lambda side: _drained(side, side.consumers[who].drain_available(stream, limit)))

    @rule(who=consumers, stream=streams, limit=st.sampled_from([None, 1, 2]))
    def drain_under_lease(self, who: int, stream: str, limit: int | None) -> None:
        self.tell(who)
        self.both(
            lambda side: _drained(
                side, side.consumers[who].drain_available(stream, limit, lease=side.lease(who, stream))
            )
        )

    @rule(who=consumers, job_id=ids, status=statuses, stream=streams, used=under_lease)
    def complete(self, who: int, job_id: str, status: ObservationStatus, stream: str, used: bool) -> None:
        artifacts = [ArtifactRef.file_path("/x")]
        self.both(
            lambda side: side.consumers[who].complete(
                job_id, status, artifacts, lease=self.lease_of(side, who, stream, used)
            )
        )

    @rule(who=consumers, batch=st.lists(ids, max_size=4), status=statuses, stream=streams, used=under_lease)
    def complete_batch(self, who: int, batch: list[str], status: ObservationStatus, stream: str, used: bool) -> None:
        completions = [Completion(JobID(job_id), status, dossier={"n": 1}) for job_id in batch]
        self.both(
            lambda side: side.consumers[who].complete_batch(completions, lease=self.lease_of(side, who, stream, used))
        )

    @rule(who=consumers, position=positions, status=statuses)
    def complete_session(self, who: int, position: int, status: ObservationStatus) -> None:
        if self.sides[0].sessions and self.sessions_are_private:
            which = position % len(self.sides[0].sessions)
            self.both(lambda side: side.consumers[who].complete_session(side.sessions[which], status))

    @rule(who=consumers, job_id=ids, stream=streams, used=under_lease)
    def release(self, who: int, job_id: str, stream: str, used: bool) -> None:
        self.both(lambda side: side.consumers[who].release(job_id, lease=self.lease_of(side, who, stream, used)))

    @rule(
        who=consumers,
        job_id=ids,
        due_ms=due_times,
        error=st.sampled_from(["", "no"]),
        crashed=st.booleans(),
        stream=streams,
        used=under_lease,
    )
    def defer(self, who: int, job_id: str, due_ms: int, error: str, crashed: bool, stream: str, used: bool) -> None:
        self.both(
            lambda side: side.consumers[who].defer(
                job_id, due_ms, error=error, crashed=crashed, lease=self.lease_of(side, who, stream, used)
            )
        )

    @rule(who=consumers, stream=streams, used=under_lease)
    def reclaim(self, who: int, stream: str, used: bool) -> None:
        self.both(
            lambda side: side.consumers[who].reclaim_in_flight(stream, lease=self.lease_of(side, who, stream, used))
        )

    # -- leases

    @rule(who=consumers, stream=streams)
    def acquire(self, who: int, stream: str) -> None:
        self.both(lambda side: (side.lease(who, stream).try_acquire(), side.lease(who, stream).fence))

    @rule(who=consumers, stream=streams)
    def take_over(self, who: int, stream: str) -> None:
        """The holder has not renewed it for as long as a successor waits: 0 seconds."""

        def act(side: Side) -> Any:
            impatient, lease = side.consumers[who].lease(stream, 0.0), side.lease(who, stream)
            wait_until(impatient.try_acquire)
            impatient.release()
            return lease.try_acquire(), lease.fence, side.consumers[who].reclaim_in_flight(stream, lease=lease)

        self.both(act)

    @rule(who=consumers, stream=streams)
    def heartbeat(self, who: int, stream: str) -> None:
        self.both(lambda side: side.lease(who, stream).heartbeat())

    @rule(who=consumers, stream=streams)
    def give_up_lease(self, who: int, stream: str) -> None:
        self.both(lambda side: side.lease(who, stream).release())

    @rule(who=consumers, stream=streams)
    def rescue(self, who: int, stream: str) -> None:
        self.both(lambda side: side.consumers[who].rescue_strays(stream, lease=side.lease(who, stream)))

    @rule(who=consumers, job_id=ids, stream=streams)
    def adopt(self, who: int, job_id: str, stream: str) -> None:
        def act(side: Side) -> Any:
            adopted = side.consumers[who].adopt(job_id, lease=side.lease(who, stream))
            return adopted and _drained(side, [adopted])

        self.both(act)

    @rule(who=consumers, stream=streams)
    def drop_claims(self, who: int, stream: str) -> None:
        self.both(lambda side: side.consumers[who].drop_claims(stream))

    # -- people

    @rule(who=consumers, job_id=ids)
    def cancel(self, who: int, job_id: str) -> None:
        self.both(lambda side: side.consumers[who].cancel(job_id))

    @rule(who=consumers, job_id=ids)
    def retry(self, who: int, job_id: str) -> None:
        self.both(lambda side: side.consumers[who].retry(job_id))

    @rule(
        who=consumers,
        age=st.sampled_from([0.0, 3600.0]),
        limit=st.sampled_from([None, 1]),
        stream=st.sampled_from([*STREAMS, None]),
    )
    def prune(self, who: int, age: float, limit: int | None, stream: str | None) -> None:
        portion = limit if self.prunes_in_order else None
        self.both(lambda side: side.consumers[who].prune(age, limit=portion, stream=stream))

    # -- what can be seen

    @invariant()
    def show_the_same(self) -> None:
        expected, got = (_seen(side.consumers[0]) for side in self.sides)
        assert got == expected
        clear, known = self.sides[1].consumers[1].streams(), self.sides[0].consumers[1].streams()
        assert clear <= known


def _outcome(act: Callable[[Side], Any], side: Side) -> Any:
    try:
        return act(side)
    except QueueError as error:
        return type(error)


def _drained(side: Side, claimed: list[Claimed]) -> Any:
    if claimed:
        side.sessions.append(claimed[0].session_id)
    return [each.job for each in claimed], len({each.session_id for each in claimed})


def _seen(backend: QueueBackend) -> Any:
    return (
        [
            (
                backend.tally(stream),
                backend.pending_count(stream),
                backend.in_flight_count(stream),
                backend.in_flight(stream),
                backend.completed(stream),
                [_shown(view) for view in backend.jobs(tuple(State), stream)],
            )
            for stream in (*STREAMS, None)
        ],
        {job_id: _told(backend, job_id) for job_id in IDS},
        [backend.ids_beginning(typed) for typed in ("", "b", "0000")],
    )


def _shown(view: JobView | PutAside) -> Any:
    assert isinstance(view, JobView)
    ended = view.signal and (view.signal.status, view.signal.artifacts)
    return view.job, view.state, view.due_ms, view.retry, ended, _timeless(view.dossier)


def _told(backend: QueueBackend, job_id: str) -> Any:
    signal, view = backend.signal(job_id), backend.look_up(job_id)
    return (
        signal and (signal.status, signal.artifacts),
        view and (view.job, view.state, view.due_ms, view.retry, view.signal == signal, _timeless(view.dossier)),
    )


def _timeless(dossier: Any) -> Any:
    if dossier is None:
        return None
    return {key: value for key, value in dossier.items() if key not in {"at_ms", "earlier_ends"}} | {
        "ends": len(dossier.get("earlier_ends", []))
    }


class Databases(Backends):
    """On a database: an id names one job, so a job is sent again only where that changes nothing on either side."""

    sessions_are_private = False
    prunes_in_order = False

    def may_send(self, job: Job, *, later: bool = False) -> bool:
        if job.stream_id != STREAMS[IDS.index(job.id) % 2]:
            return False
        view = self.sides[0].consumers[0].look_up(job.id)
        return view is None or (view.state is State.NEW and not later)

    def tell(self, who: int) -> None:
        """Nothing: its drains ask the database."""

    def both(self, act: Callable[[Side], Any]) -> None:
        """A database looks at the lease first: there a lost one is said also where memory finds nothing to do."""
        expected, got = (_outcome(act, side) for side in self.sides)
        if got is not LeaseLost or expected not in (0, None, JobNotFound):
            assert got == expected


class OnSqlite(Databases):
    def open(self) -> QueueBackend:
        return PersistenceKitBackend(f"sqlite:{self.root}/jobs.db", durability="none")


class OnPostgres(Databases):
    server: Server
    serial = 0

    def __init__(self) -> None:
        OnPostgres.serial += 1
        self.database = self.server.database(f"machine_{self.serial}")
        self.url = self.database.__enter__()
        super().__init__()

    def open(self) -> QueueBackend:
        return PersistenceKitBackend(self.url, durability="none")

    def teardown(self) -> None:
        super().teardown()
        self.database.__exit__(None, None, None)


TestBackends = Backends.TestCase
TestBackends.settings = settings(
    max_examples=80,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def _bounded(examples: int) -> settings:
    return settings(
        max_examples=examples, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
    )


@pytest.mark.timeout(600)
def test_sqlite_does_what_memory_does() -> None:
    run_state_machine_as_test(OnSqlite, settings=_bounded(12))


@pytest.mark.timeout(600)
def test_postgresql_does_what_memory_does(postgres_server: Server) -> None:
    OnPostgres.server = postgres_server
    run_state_machine_as_test(OnPostgres, settings=_bounded(6))
