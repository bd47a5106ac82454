"""What every backend can do, in the words of the lifecycle table. `QueueKit` forwards to it; the pool uses it too.

Scoped reads and drains are abstract: a default that looked at every stream would be quietly wrong. Only the batch
forms have defaults, because one after the other is slow but right.

Times are ms since the epoch where a name ends in `_ms`, seconds otherwise. `lease`: under the stream's lock the lease
must be that one's, else `LeaseLost` is raised and nothing changed; without it the caller answers for being alone.
"""

from __future__ import annotations

import abc
import dataclasses
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from queuekit.checkpoints import Checkpoints
from queuekit.completion import ArtifactRef, Completion, SignalFile
from queuekit.errors import BackendUnavailable, JobNotFound
from queuekit.ids import JobID, SessionID
from queuekit.job import Claimed, Job
from queuekit.lifecycle import State
from queuekit.status import ObservationStatus


@runtime_checkable
class Lease(Protocol):
    """The right to drain one stream, held by one consumer at a time. See `queuekit.lease.DrainLease`."""

    @property
    def stream(self) -> str:
        """The stream."""

    @property
    def owner(self) -> str:
        """Who this is: `pid-<pid>-<token>`, the same for the life of the object."""

    @property
    def fence(self) -> int:
        """The number of this stream's take-overs so far, as counted when this lease was won; 0 before."""

    def run_number(self, claims: int, attempt: int) -> int:
        """What a run is fenced by, for whoever can refuse smaller numbers than the greatest he saw.

        `claims`: how many jobs this consumer has handed out; `attempt`: which run of its job it is. Under an exclusive
        lease it is greater than that of every earlier run of the stream. Under a shared one that holds for runs of the
        same job: no smaller than before, and greater when its last consumer was given up.
        """

    def try_acquire(self, now: float | None = None) -> bool:
        """Take it when it is free, stale or already ours; True when it is ours now. `now`: seconds, wall clock."""

    def heartbeat(self, now: float | None = None) -> None:
        """Renew it; raises `LeaseLost` when it is another's or gone."""

    def verify(self) -> None:
        """Raise `LeaseLost` unless it is ours. A backend calls this while it holds the stream's lock."""

    def holder(self) -> str | None:
        """The owner that the lease names, stale or not; None when there is none. Changes nothing.

        Of a shared lease: a consumer of the stream that has died and whose place nobody has taken yet.
        """

    def is_held_by_other(self, now: float | None = None) -> bool:
        """Whether somebody else has it and is not stale. Changes nothing."""

    def release(self) -> None:
        """Give it up, so that a successor starts at once. Does nothing when it is not ours."""


class Watcher(Protocol):
    """Says "look": something may have arrived. Spurious wakes are fine; a missed one is a bug.

    Attached when it is made, so that whatever arrives afterwards is noticed. Wait until `fileno()` is readable or
    `timeout()` has passed, then call `read()`.
    """

    @property
    def kind(self) -> str:
        """How it notices: `inotify`, `kqueue`, `poll`, …"""

    def fileno(self) -> int:
        """A descriptor to select on; readable when there is something to read."""

    def timeout(self) -> float | None:
        """Seconds after which `read()` should be called although nothing was readable; None: never."""

    def read(self) -> tuple[str, ...]:
        """Take what has happened, without blocking. Names are hints at what arrived; () can mean anything."""

    def check(self) -> bool:
        """Whether it still watches the right place; it attaches anew (and then answers False: look) when not."""

    def close(self) -> None:
        """Release its descriptors; any number of times."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How many jobs are where. `retrying` and `scheduled` are in later/: after a failure, or put off by a person."""

    pending: int = 0
    in_flight: int = 0
    retrying: int = 0
    scheduled: int = 0
    next_retry_ms: int | None = None

    @property
    def outstanding(self) -> int:
        """What somebody may wait for: pending + in flight + retrying."""
        return self.pending + self.in_flight + self.retrying


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """One job as the store has it: for people who look. `retry` tells the two kinds of deferral apart."""

    job: Job
    state: State
    due_ms: int | None = None
    retry: bool = False
    signal: SignalFile | None = None
    dossier: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PutAside:
    """What could not be read as a job and was put aside for that, with the jobs that ended `blocked`.

    `name`: what the store keeps it under; `stream`: as that name states it, "" when it does not clearly; `ended_ms`:
    when it was put aside; `size`: bytes.
    """

    name: str
    stream: str
    ended_ms: int
    size: int


class Transfer(abc.ABC):
    """One store's part in a move of everything to another store. `queuekit.transfer` says who asks what, and when.

    *Leaving* jobs are out of sight of every reader and consumer here, of other ports too, and can be brought back.
    *Arriving* jobs are not in sight yet, and come into it all together. Everything is durable when a method returns.
    Raises `BackendUnavailable` when the store cannot be read, `WriteFailed` when it cannot be written.
    """

    # -- the store that is left

    @abc.abstractmethod
    def whole(self) -> Iterator[JobView | PutAside]:
        """Every job in sight, with its dossier in any state, and what cannot be read as one. For a store at rest."""

    @abc.abstractmethod
    def leaving(self) -> Iterator[JobView]:
        """Every job that `hide` took out of sight, as it was."""

    @abc.abstractmethod
    def is_leaving(self) -> bool:
        """Whether `hide` has taken anything out of sight that is still here. A look: it changes nothing."""

    @abc.abstractmethod
    def hide(self, views: Sequence[JobView], *, leases: Mapping[str, Lease]) -> int:
        """Take out of sight what is exactly as these views say; the others stay as they are. Returns how many it took.

        `leases`: by stream; where there is one it must be ours, else `LeaseLost` is raised.
        """

    @abc.abstractmethod
    def bring_back(self) -> int:
        """Everything that is leaving comes into sight again as it was; returns how many."""

    @abc.abstractmethod
    def purge(self, limit: int) -> int:
        """Remove at most `limit` files or rows of what is leaving for good; returns how many, 0 when none is left."""

    # -- the store that is moved to

    @abc.abstractmethod
    def take_in(self, views: Sequence[JobView]) -> int:
        """Have these jobs arrive, exactly as the views say; returns how many of them wait here now, out of sight.

        One that waits already is replaced where it differs. One that is in sight exactly so is left, and not counted;
        one that is in sight differently raises `WriteFailed` naming it, and nothing is changed.
        """

    @abc.abstractmethod
    def unlike(self, views: Sequence[JobView]) -> list[JobView]:
        """Those of these jobs that are not here exactly so: not arriving nor, when they are not arriving, in sight."""

    @abc.abstractmethod
    def waiting(self) -> int:
        """How many jobs are arriving."""

    @abc.abstractmethod
    def discard(self) -> int:
        """Forget all that is arriving; returns how many. Raises `WriteFailed` when they are being let in already."""

    @abc.abstractmethod
    def let_in(self, origin: str) -> int:
        """Bring everything that is arriving into sight: once begun, it is only ever finished. Returns how many it took.

        Ends come first, then deferred jobs, then pending ones, oldest first. `origin` is remembered until `forget`.
        """

    @abc.abstractmethod
    def let_in_from(self) -> str | None:
        """The `origin` of a `let_in` that was begun (or finished) and not yet forgotten; None: there is none."""

    @abc.abstractmethod
    def forget(self) -> None:
        """Forget where jobs were let in from; nothing of the move is left here then."""


class QueueBackend(abc.ABC):
    """A store of jobs. Every method is safe to call from several threads; errors are `QueueError`s."""

    # -- producing

    @abc.abstractmethod
    def write(self, job: Job, *, due_ms: int | None = None) -> None:
        """Accept one job; durable when it returns. With `due_ms` it is not claimable before then."""

    def write_batch(self, jobs: Iterable[Job]) -> int:
        """Accept many; returns how many. A crash or an error may leave a prefix of them accepted."""
        count = 0
        for job in jobs:
            self.write(job)
            count += 1
        return count

    def write_within(self, connection: Any, jobs: Iterable[Job], *, due_ms: int | None = None) -> int:  # noqa: ARG002
        """Accept jobs in a transaction of the caller's, on a connection to the store's own database; how many.

        Raises `ValueError` where the store is no database.
        """
        raise ValueError("only a queue in a database can take a job into your transaction on it")

    # -- consuming

    @abc.abstractmethod
    def drain_available(
        self, stream: str | None = None, limit: int | None = None, *, lease: Lease | None = None
    ) -> list[Claimed]:
        """Claim what is there, up to `limit` jobs, of one stream or of all; HLC order, one session per call."""

    @abc.abstractmethod
    def complete(
        self,
        job_id: str,
        status: ObservationStatus | str,
        artifacts: Sequence[ArtifactRef] = (),
        *,
        dossier: Mapping[str, Any] | None = None,
        lease: Lease | None = None,
    ) -> None:
        """End a job that is in flight; durable when it returns. Raises `JobNotFound` when it is not in flight."""

    def complete_batch(self, completions: Sequence[Completion], *, lease: Lease | None = None) -> int:
        """End many; those not in flight are skipped and not counted."""
        count = 0
        for each in completions:
            try:
                self.complete(each.job_id, each.status, each.artifacts, dossier=each.dossier, lease=lease)
            except JobNotFound:
                continue
            count += 1
        return count

    @abc.abstractmethod
    def complete_session(
        self, session_id: SessionID, status: ObservationStatus | str, *, lease: Lease | None = None
    ) -> int:
        """End every job of one drain call that is still in flight; returns how many (0: unknown session)."""

    @abc.abstractmethod
    def release(self, job_id: str, *, lease: Lease | None = None) -> None:
        """Give a job back that is in flight, or make a deferred one pending now. Its attempts stay as they are."""

    @abc.abstractmethod
    def defer(
        self, job_id: str, due_ms: int, *, error: str = "", crashed: bool = False, lease: Lease | None = None
    ) -> None:
        """Put a job in flight off until `due_ms` after a failed run: one attempt more, `error` added to its record."""

    @abc.abstractmethod
    def reclaim_in_flight(self, stream: str, *, lease: Lease | None = None) -> int:
        """Make every job of the stream that is in flight pending again, whoever had it; returns how many.

        Only under a lease just won (or when nobody else can be draining): claims of this instance are dropped too.
        """

    @abc.abstractmethod
    def rescue_strays(self, stream: str, *, lease: Lease) -> int:
        """Make pending what is in flight in a stream that we hold and that this instance did not claim; how many.

        For the slow regular look: a claim of the last holder may have landed after its lease was taken over.
        """

    @abc.abstractmethod
    def adopt(self, job_id: str, *, lease: Lease) -> Claimed | None:
        """Take over one job that a dead consumer left in flight, to settle it here; None when it is not in flight, or
        is this instance's already."""

    @abc.abstractmethod
    def drop_claims(self, stream: str) -> None:
        """Forget what this instance has claimed in a stream: its lease is lost. The jobs stay where they are."""

    # -- a person's verbs

    @abc.abstractmethod
    def run_now(self, job_id: str) -> None:
        """Make a deferred job pending; unlike `release` it never takes a job from whoever runs it."""

    @abc.abstractmethod
    def cancel(self, job_id: str) -> None:
        """End a pending or deferred job as `blocked` without running it."""

    @abc.abstractmethod
    def retry(self, job_id: str) -> None:
        """Make a finished job pending again with its attempts reset."""

    @abc.abstractmethod
    def prune(
        self,
        older_than: float,
        *,
        limit: int | None = None,
        stream: str | None = None,
        lease: Lease | None = None,
        statuses: Collection[ObservationStatus] | None = None,
    ) -> int:
        """Remove the records of jobs that ended more than `older_than` seconds ago; returns how many jobs.

        `limit`: at most so many; `stream`: only that one's, as it must be with a lease; `statuses`: only what ended in
        one of these (what has no record of its end counts as `blocked`).
        """

    def finish_intents(self, stream: str, *, lease: Lease | None = None) -> int:  # noqa: ARG002
        """Go on with verbs that were cut off half-way; returns how many jobs became pending.

        The default is right for a store whose verbs are indivisible.
        """
        return 0

    # -- reading (nothing is claimed)

    @abc.abstractmethod
    def tally(self, stream: str | None = None) -> Tally:
        """How many jobs are where, of one stream or of all."""

    @abc.abstractmethod
    def pending_count(self, stream: str | None = None) -> int:
        """How many are pending."""

    def pending_portions(self, stream: str | None = None) -> Iterator[int]:
        """The same, counted bit by bit: how many there are so far; the last is the count."""
        yield self.pending_count(stream)

    @abc.abstractmethod
    def in_flight_count(self, stream: str | None = None) -> int:
        """How many are claimed and not ended."""

    @abc.abstractmethod
    def in_flight(self, stream: str | None = None) -> list[Job]:
        """The jobs that are claimed and not ended, in HLC order."""

    @abc.abstractmethod
    def completed(self, stream: str | None = None) -> list[Job]:
        """The jobs that have ended and are kept, in HLC order."""

    @abc.abstractmethod
    def signal(self, job_id: str) -> SignalFile | None:
        """How a job ended; None when it has not (or is not known)."""

    @abc.abstractmethod
    def look_up(self, job_id: str) -> JobView | None:
        """One job, wherever it is; None when it is not known."""

    @abc.abstractmethod
    def jobs(self, states: Collection[State], stream: str | None = None) -> Iterator[JobView | PutAside]:
        """The jobs in these states, of one stream or of all, read as they are asked for; nothing is locked.

        Those that have not ended come first: later before new before cur, the deferred ones soonest due first, the
        others oldest first. Then those that have ended, sent last first, and among them what was put aside. A blocked
        job has its dossier. One that moves meanwhile may be missing or come twice; what cannot be read is left out.

        Raises `BackendUnavailable`, while it is iterated, when the store cannot be read.
        """

    @abc.abstractmethod
    def blocked_counts(self, *, at_most: int) -> dict[str, int]:
        """How many jobs of each stream have ended `blocked` and are kept, what was put aside included; no zeros.

        For people who look often: of about `at_most` records it is told, those with a dossier first. Where more are
        kept, a count may be too low, never too high. Raises `BackendUnavailable` when the store cannot be read.
        """

    @abc.abstractmethod
    def ids_beginning(self, typed: str) -> list[str]:
        """The ids of jobs that begin with `typed`, sorted, each once; of what was put aside those that its name states.

        Raises `BackendUnavailable` when the store cannot be read.
        """

    @abc.abstractmethod
    def put_aside(self, typed: str) -> PutAside | None:
        """What was put aside under the name `typed`, or of a job with the id `typed`; None when nothing was."""

    @abc.abstractmethod
    def streams(self, at_most: int | None = None) -> set[str]:
        """The streams that jobs which have not ended belong to, as far as that can be told cheaply.

        `at_most`: of each state look at no more than so many jobs, where looking at all of them is dear.
        """

    @abc.abstractmethod
    def next_due(self, stream: str | None = None) -> float | None:
        """Seconds until the next deferred job that is known here is due (0: it is); None when none is known."""

    # -- waking and leases

    @abc.abstractmethod
    def watcher(self, stream: str | None = None) -> Watcher:
        """A new watcher of arrivals, attached; close it when done."""

    def hint(self, names: Sequence[str]) -> None:  # noqa: B027  a backend without hints needs none
        """Pass on what a watcher's `read()` returned; it makes the next drain cheaper, never wrong."""

    def look_again(self) -> None:  # noqa: B027  a backend that remembers nothing has nothing to forget
        """Let the next drain look at everything, whatever is known: for the slow regular look, after lost events."""

    @abc.abstractmethod
    def watch(self, on_wake: Callable[[], None], stop: threading.Event | None = None) -> None:
        """Call `on_wake` once after attaching and after every arrival until `stop` is set; its errors end the watch."""

    @abc.abstractmethod
    def lease(self, stream: str, ttl: float = 15.0, *, exclusive: bool = True) -> Lease:
        """A new lease object for a stream, not yet acquired. `ttl`: seconds.

        `exclusive=False`: many consumers may work the stream at a time, each with a lease of its own. Raises
        `ValueError` for that where the store cannot do it.
        """

    def sharers(self, stream: str) -> dict[str, float]:  # noqa: ARG002
        """Who shares a stream: the owner of each shared lease, and seconds since its last heartbeat.

        Empty when the stream is nobody's or one's alone; the default is right where leases are exclusive. Raises
        `BackendUnavailable` when the store cannot be read.
        """
        return {}

    # -- moving to another store

    @abc.abstractmethod
    def transfer(self) -> Transfer:
        """This store's part in a move to or from another one."""

    @property
    def checkpoints(self) -> Checkpoints:
        """What long work keeps here to go on after it was cut off.

        Raises `BackendUnavailable` for a store that keeps none, as the default does.
        """
        raise BackendUnavailable("this store keeps no checkpoints")

    @abc.abstractmethod
    def close(self) -> None:
        """Release every descriptor; any number of times. Jobs in flight stay in flight."""


__all__ = ["Checkpoints", "JobID", "JobView", "Lease", "PutAside", "QueueBackend", "Tally", "Transfer", "Watcher"]
