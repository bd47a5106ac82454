"""The queue in a directory: `FilesystemBackend` puts the parts together and is what `QueueKit` talks to.

    mount      the open folders, the stream locks         layout     the names
    send       tmp/ -> new/, later/                       drain      new/ -> cur/
    deferred   later/ -> new/                             settle     cur/ -> done/, later/, new/
    keep       cancel, retry, prune, intents              census     counting and reading
    listing    reading for people                         ownership  whose file it is
    quarantine what is no job -> done/                    fsops      the system calls
    transfer   moving it all to another store             shelf      jobs out of sight
    claims     what this instance has                     checkpoints  .workerpool/checkpoints/

Every move is one rename of the one file, so a job is always in exactly one place; a process may die between any two
calls. Required of the filesystem: a rename's addition is on disk no later than its removal (ext4, xfs, btrfs, apfs).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from queuekit.backends.admission import DEFAULT_MAX_JOB_BYTES
from queuekit.backends.claims import Claims
from queuekit.backends.maildir import layout
from queuekit.backends.maildir.census import Census
from queuekit.backends.maildir.checkpoints import MaildirCheckpoints
from queuekit.backends.maildir.deferred import Deferred
from queuekit.backends.maildir.drain import Drainer
from queuekit.backends.maildir.fsops import FileOps
from queuekit.backends.maildir.keep import Keeper
from queuekit.backends.maildir.listing import Listing
from queuekit.backends.maildir.mount import Durability, Mount
from queuekit.backends.maildir.ownership import Ownership
from queuekit.backends.maildir.quarantine import Quarantine
from queuekit.backends.maildir.send import Sender
from queuekit.backends.maildir.settle import Settler
from queuekit.backends.maildir.transfer import MaildirTransfer
from queuekit.clock import Due, ProcessClock
from queuekit.completion import ArtifactRef, Completion, SignalFile
from queuekit.contract import JobView, Lease, PutAside, QueueBackend, Tally, Watcher
from queuekit.errors import JobNotFound
from queuekit.hlc import HLCGenerator
from queuekit.ids import JobID, SessionID, check_identifier
from queuekit.job import Claimed, Job
from queuekit.lease import DEFAULT_TTL, DrainLease
from queuekit.lifecycle import State
from queuekit.locks import PATIENCE_SECONDS
from queuekit.status import ObservationStatus, check_terminal
from queuekit.watch import open_watcher, wait_loop


class FilesystemBackend(QueueBackend):
    """A maildir root as a `QueueBackend`.

    `root`: its folder, made if absent; a link to it is resolved once. `durability`: `full` (a send or reply survives a
    power cut), `batch` (only the folders are synced), `none`. `max_job_bytes`: the largest payload. `ops`: the system
    calls, for tests. `patience`: seconds to wait for a stream's lock. `poll_interval`: seconds between two looks where
    the filesystem gives no events.

    Raises `DirectoryCreationFailed` when the root cannot be made or must not be trusted.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        hlc: HLCGenerator | None = None,
        durability: str = "full",
        max_job_bytes: int = DEFAULT_MAX_JOB_BYTES,
        ops: FileOps | None = None,
        patience: float = PATIENCE_SECONDS,
        poll_interval: float = 0.2,
    ) -> None:
        self._mount = Mount(
            root,
            ops=ops or FileOps(),
            clock=ProcessClock(hlc),
            durability=Durability(durability),
            max_job_bytes=max_job_bytes,
            patience=patience,
        )
        self._patience = patience
        self._poll_interval = poll_interval
        self._claims = Claims()
        self._ownership = Ownership(self._mount)
        self._quarantine = Quarantine(self._mount)
        self._deferred = Deferred(self._mount, self._ownership)
        self._sender = Sender(self._mount)
        self._drainer = Drainer(self._mount, self._claims, self._ownership, self._deferred, self._quarantine)
        self._settler = Settler(self._mount, self._claims, self._ownership, self._deferred)
        self._keeper = Keeper(self._mount, self._ownership, self._settler)
        self._census = Census(self._mount, self._ownership, self._keeper, self._settler)
        self._listing = Listing(self._mount, self._census, self._settler)
        self._checkpoints = MaildirCheckpoints(self._mount)

    @property
    def root(self) -> str:
        """The absolute path of the queue's folder, links resolved."""
        return self._mount.root

    @property
    def quarantined(self) -> int:
        """How many files this instance has put aside because they could not be read as jobs."""
        return self._quarantine.count

    # -- producing

    def write(self, job: Job, *, due_ms: int | None = None) -> None:
        """Accept one job; see the contract. Raises `InvalidIdentifier`, `WriteFailed` or `RenameFailed`."""
        due = None if due_ms is None else Due.by(due_ms)
        name = self._sender.send(job, due_ms)
        if due is None:
            self._drainer.hint([name])
        else:
            self._deferred.note(layout.later_filename(name, due.at_ms, retry=False), due)

    def write_batch(self, jobs: Iterable[Job]) -> int:
        """Accept many behind one barrier for each 2,000. All are checked first; a crash leaves a whole prefix."""
        names = self._sender.send_all(jobs)
        self._drainer.hint(names)
        return len(names)

    # -- consuming

    def drain_available(
        self, stream: str | None = None, limit: int | None = None, *, lease: Lease | None = None
    ) -> list[Claimed]:
        """Claim pending jobs. Without a lease it raises `LeaseLost` while somebody holds a fresh one."""
        if stream is not None:
            check_identifier(stream)
        return self._drainer.drain(stream, limit, lease)

    def complete(
        self,
        job_id: str,
        status: ObservationStatus | str,
        artifacts: Sequence[ArtifactRef] = (),
        *,
        dossier: Mapping[str, Any] | None = None,
        lease: Lease | None = None,
    ) -> None:
        """End one job in flight: its signal and its move into done/ are durable when this returns."""
        self._settler.complete(Completion(JobID(job_id), check_terminal(status), artifacts, dossier), lease)

    def complete_batch(self, completions: Sequence[Completion], *, lease: Lease | None = None) -> int:
        """End many behind one barrier; those not in flight are skipped."""
        return self._settler.complete_all(completions, lease)

    def complete_session(
        self, session_id: SessionID, status: ObservationStatus | str, *, lease: Lease | None = None
    ) -> int:
        """End what is left of one of this instance's drain calls; sessions of others are unknown here: 0."""
        return self._settler.complete_session(session_id, status, lease)

    def release(self, job_id: str, *, lease: Lease | None = None) -> None:
        """Give back a job in flight, or make a deferred one pending now."""
        try:
            self._drainer.hint([self._settler.release(job_id, lease)])
        except JobNotFound:
            if lease is not None:
                raise
            self.run_now(job_id)

    def defer(
        self, job_id: str, due_ms: int, *, error: str = "", crashed: bool = False, lease: Lease | None = None
    ) -> None:
        """Put a job in flight off; its record with one attempt more is durable when this returns."""
        self._settler.defer(job_id, due_ms, error, crashed, lease)

    def reclaim_in_flight(self, stream: str, *, lease: Lease | None = None) -> int:
        """Everything of the stream in cur/ and claim/ becomes pending again."""
        check_identifier(stream)
        self._mount.heal()  # a lease that was just won may be that of another root at the same path
        return self._took(self._settler.reclaim(stream, lease))

    def rescue_strays(self, stream: str, *, lease: Lease) -> int:
        """What is in flight in a stream that we hold and that this instance did not claim becomes pending again."""
        return self._took(self._settler.rescue(stream, lease))

    def adopt(self, job_id: str, *, lease: Lease) -> Claimed | None:
        """Take over one job that a dead consumer left in flight, to settle it; None when it is not there (any more)."""
        return self._settler.adopt(job_id, lease)

    def drop_claims(self, stream: str) -> None:
        """Forget what this instance has claimed in a stream: its lease is lost."""
        self._claims.drop_stream(stream)

    def next_due(self, stream: str | None = None) -> float | None:
        """Seconds until the next deferred job known here is due; None when none is known."""
        return self._deferred.next_due(stream)

    # -- a person's verbs, housekeeping

    def run_now(self, job_id: str) -> None:
        """Make a deferred job pending."""
        self._drainer.hint([self._keeper.run_now(job_id)])

    def cancel(self, job_id: str) -> None:
        """End a pending or deferred job as `blocked`."""
        self._keeper.cancel(job_id)

    def retry(self, job_id: str) -> None:
        """Make a finished job pending again; its earlier end is kept in its dossier."""
        self._drainer.hint([self._keeper.retry(job_id)])

    def prune(
        self,
        older_than: float,
        *,
        limit: int | None = None,
        stream: str | None = None,
        lease: Lease | None = None,
        statuses: Collection[ObservationStatus] | None = None,
    ) -> int:
        """Remove the records of jobs that ended more than `older_than` seconds ago."""
        return self._keeper.prune(older_than, limit, stream, lease, statuses)

    def finish_intents(self, stream: str, *, lease: Lease | None = None) -> int:
        """Go on with retries that were cut off; returns how many jobs became pending."""
        return self._took(self._keeper.finish_intents(stream, lease))

    def look_again(self) -> None:
        """Let the next drain list new/ and later/, whatever is known: for the slow look and after lost events."""
        self._drainer.look_again()
        self._deferred.look_again()

    # -- reading

    def tally(self, stream: str | None = None) -> Tally:
        """How many jobs are where; by names only, unless a name does not tell its stream."""
        return self._census.tally(stream)

    def pending_count(self, stream: str | None = None) -> int:
        """How many are in new/."""
        return self._census.pending_count(stream)

    def pending_portions(self, stream: str | None = None) -> Iterator[int]:
        """The same, some thousand files at a time."""
        return self._census.pending_portions(stream)

    def in_flight_count(self, stream: str | None = None) -> int:
        """How many are in cur/ and claim/."""
        return self._census.in_flight_count(stream)

    def in_flight(self, stream: str | None = None) -> list[Job]:
        """The jobs in cur/ and claim/."""
        return self._census.in_flight(stream)

    def completed(self, stream: str | None = None) -> list[Job]:
        """The jobs in done/ with a signal; what was quarantined is not among them."""
        return self._census.completed(stream)

    def signal(self, job_id: str) -> SignalFile | None:
        """The signal of a job that has ended."""
        return self._census.signal(job_id)

    def look_up(self, job_id: str) -> JobView | None:
        """One job, wherever it is."""
        return self._census.look_up(job_id)

    def jobs(self, states: Collection[State], stream: str | None = None) -> Iterator[JobView | PutAside]:
        """The jobs in these states; see the contract."""
        return self._listing.jobs(states, stream)

    def blocked_counts(self, *, at_most: int) -> dict[str, int]:
        """How many jobs of each stream have ended `blocked`; see the contract."""
        return self._listing.blocked_counts(at_most)

    def ids_beginning(self, typed: str) -> list[str]:
        """The ids that begin so; by names only, unless a name does not tell its id."""
        return self._listing.ids_beginning(typed)

    def put_aside(self, typed: str) -> PutAside | None:
        """The file in done/ of this name, or with this id at the end of its name, that could not be read as a job."""
        return self._listing.put_aside(typed)

    def streams(self, at_most: int | None = None) -> set[str]:
        """Streams of jobs that have not ended, as far as their names state them, and those of `at_most` files."""
        return self._census.streams(at_most)

    # -- waking, leases

    def watcher(self, stream: str | None = None) -> Watcher:  # noqa: ARG002  arrivals of all streams share new/
        """A watcher of new/, and of later/: what others put there may be due before anything else happens."""
        new, later = (os.path.join(self.root, folder) for folder in ("new", "later"))
        return open_watcher(self.root, new, later, poll_interval=self._poll_interval)

    def hint(self, names: Sequence[str]) -> None:
        """Names that a watcher has seen arrive."""
        self._drainer.hint([name for name in names if layout.split_later(name) is None])

    def watch(self, on_wake: Callable[[], None], stop: threading.Event | None = None) -> None:
        """Call `on_wake` once, then at every arrival, until `stop` is set."""
        watcher = self.watcher()

        def wake(names: tuple[str, ...]) -> None:
            self.hint(names)
            if not names:
                self._drainer.doubt_folders()
            on_wake()

        try:
            wait_loop(watcher, wake, stop, next_due=self.next_due)
        finally:
            watcher.close()

    def lease(self, stream: str, ttl: float = DEFAULT_TTL, *, exclusive: bool = True) -> DrainLease:
        """A new lease object for the stream, with a token of its own. A folder's streams have one drainer at a time."""
        if not exclusive:
            raise ValueError("a stream in a folder has one consumer at a time: its lease is exclusive")
        return DrainLease(self.root, stream, os.urandom(8).hex(), ttl, patience=self._patience)

    @property
    def checkpoints(self) -> MaildirCheckpoints:
        """The checkpoints of this root: files of ours, one each."""
        return self._checkpoints

    def transfer(self) -> MaildirTransfer:
        """This store's part in a move to or from another one."""
        return MaildirTransfer(self._mount)

    def close(self) -> None:
        """Close every descriptor; any number of times."""
        self._mount.close()

    def _took(self, names: list[str]) -> int:
        self._drainer.hint(names)
        return len(names)
