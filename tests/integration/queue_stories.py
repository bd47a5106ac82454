"""What the crash and error sweeps go through: each story is a state of the queue and one act on it.

Not a test file. `Story.prepare` returns the act. A `Store` is where the queue is, a folder or an SQLite file; `check`
is the promise over either, and `recover` what the next holder does after a crash.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

import sqlalchemy as sa
from children import in_child

from queuekit.backends.maildir import fsck as folder_fsck
from queuekit.backends.maildir import layout
from queuekit.backends.maildir.backend import FilesystemBackend
from queuekit.backends.sql import fsck as database_fsck
from queuekit.backends.sql.backend import PersistenceKitBackend
from queuekit.backends.sql.schema import jobs
from queuekit.backends.sql.sqlite import library
from queuekit.completion import Completion
from queuekit.contract import Lease, PutAside, QueueBackend
from queuekit.errors import IllegalTransition, JobNotFound, QueueError
from queuekit.hlc import HLC
from queuekit.ids import JobID, StreamID
from queuekit.job import Delivery, Job
from queuekit.lease import DEFAULT_TTL
from queuekit.lifecycle import State
from queuekit.status import ObservationStatus
from queuekit.testing.faults import FaultyOps

STREAM = "s"
DONE = ObservationStatus.DONE
PAST_MS = 1_000
FOLDERS = ("new", "cur", "later", "claim", "done")


def job(id: str, **values: Any) -> Job:
    """The same job for the same id, each time."""
    at = HLC(1_700_000_000_000 + sum(id.encode()), 0, 1)
    return Job(id=JobID(id), stream_id=StreamID(STREAM), submitted_at=at, **values)


MANY = tuple(f"m{i:02d}" for i in range(4))
BARRIER_FROM = 2  # more than so many are synced behind one barrier, in the sweeps
Act = Callable[[], object]


@dataclasses.dataclass(frozen=True)
class Story:
    """`before`: ids of jobs accepted before the act; `sends`: by the act; `does`: what it means for those before.

    `fence`: the number of the stream's last take-over before the act.
    """

    name: str
    prepare: Callable[[Any], Act]
    before: tuple[str, ...] = ("a",)
    sends: tuple[str, ...] = ()
    does: str = ""
    fence: int = 0

    def __str__(self) -> str:
        return self.name


# -- where a queue is


class Store(Protocol):
    """A queue on disk, as a sweep looks at it. `root`: its folder."""

    @property
    def root(self) -> str: ...

    def open(self) -> Any:
        """The queue, opened."""

    def places(self) -> Counter[str]:
        """In how many places each job is, by its id."""

    def unfinished(self) -> list[str]:
        """What a verb that was cut off has left to be gone on with."""

    def complaints(self) -> set[str]:
        """What fsck finds that is more than a note."""


@dataclasses.dataclass(frozen=True)
class Folder:
    """A maildir. `syncing=False`: without the syncs."""

    root: str
    syncing: bool = True

    def open(self) -> FilesystemBackend:
        """The queue, opened."""
        return FilesystemBackend(self.root, ops=None if self.syncing else FaultyOps(syncing=False), patience=0.5)

    def places(self) -> Counter[str]:
        """In how many folders each job file is."""
        found: Counter[str] = Counter()
        for folder in FOLDERS:
            for file in self._names(folder):
                split = layout.split_later(file)
                name = split[2] if split else layout.split_claim(file) or file
                rest = layout.tail(name)
                if rest is not None:
                    found[rest.removeprefix(f"{STREAM}-")] += 1
        return found

    def _names(self, folder: str) -> list[str]:
        """What is in a folder, which may not have been made yet."""
        path = os.path.join(self.root, folder)
        return os.listdir(path) if os.path.isdir(path) else []

    def unfinished(self) -> list[str]:
        """The intents of retries."""
        return self._names(layout.INTENTS)

    def complaints(self) -> set[str]:
        """What fsck finds that is more than a note."""
        found = folder_fsck.examine(self.root, deep=True)
        return {each.kind for each in found if each.severity is not folder_fsck.Severity.NOTE}


@dataclasses.dataclass(frozen=True)
class File:
    """An SQLite database in a folder of its own. `journal`: the mode to make it in; "": the library's choice."""

    root: str
    journal: str = ""

    @property
    def url(self) -> str:
        """As a store's URL."""
        return f"sqlite:{self.root}/jobs.db"

    def open(self) -> PersistenceKitBackend:
        """The queue, opened."""
        path = os.path.join(self.root, "jobs.db")
        if self.journal and not os.path.exists(path):
            self._make(path)
        return PersistenceKitBackend(self.url, patience=0.5)

    def _make(self, path: str) -> None:
        os.makedirs(self.root, mode=0o700, exist_ok=True)
        with contextlib.closing(library().module.connect(path)) as connection:
            connection.execute(f"PRAGMA journal_mode={self.journal}")
            connection.execute("VACUUM")
        os.chmod(path, 0o600)

    def places(self) -> Counter[str]:
        """An id is a primary key: one row at most."""
        queue = self.open()
        found = Counter(str(each.job.id) for each in queue.jobs(set(State)) if not isinstance(each, PutAside))
        queue.close()
        return found

    def unfinished(self) -> list[str]:
        """A transaction is all or nothing."""
        return []

    def complaints(self) -> set[str]:
        """What fsck finds that is more than a note; SQLite's integrity check is part of it."""
        found = database_fsck.examine(self.url, deep=True)
        return {each.kind for each in found if each.severity is not folder_fsck.Severity.NOTE}


def store_of(q: Any) -> Store:
    """Where a queue is that has been opened."""
    return Folder(q.root) if isinstance(q, FilesystemBackend) else File(os.path.dirname(q.database.path))


# -- the stories


def _held(q: QueueBackend) -> Any:
    lease = q.lease(STREAM)
    assert lease.try_acquire()
    return lease


def _claimed(q: QueueBackend, *ids: str) -> Any:
    for id in ids:
        q.write(job(id))
    lease = _held(q)
    assert len(q.drain_available(STREAM, lease=lease)) == len(ids)
    return lease


def _ended(q: QueueBackend, *ids: str) -> None:
    lease = _claimed(q, *ids)
    assert q.complete_batch([Completion(JobID(id), DONE) for id in ids], lease=lease) == len(ids)
    lease.release()


def _send(q: QueueBackend) -> Act:
    return lambda: q.write(job("a"))


def _send_again(q: QueueBackend) -> Act:
    q.write(job("a"))
    return lambda: q.write(job("a"))


def _send_batch(q: QueueBackend) -> Act:
    return lambda: q.write_batch([job(id) for id in MANY])


def _send_few(q: QueueBackend) -> Act:
    return lambda: q.write_batch([job(id) for id in MANY[:2]])


def _send_later(q: QueueBackend) -> Act:
    return lambda: q.write(job("a"), due_ms=PAST_MS)


def _claim(q: QueueBackend) -> Act:
    for id in "abc":
        q.write(job(id))
    lease = _held(q)
    return lambda: q.drain_available(STREAM, 2, lease=lease)


def _claim_without_lease(q: QueueBackend) -> Act:
    for id in "abc":
        q.write(job(id))
    return lambda: q.drain_available(STREAM)


def _claim_twin_in_flight(q: QueueBackend) -> Act:
    lease = _claimed(q, "a")
    q.write(job("a"))
    return lambda: q.drain_available(STREAM, lease=lease)


def _claim_twin_of_ended(q: QueueBackend) -> Act:
    _ended(q, "a")
    q.write(job("a"))
    lease = _held(q)
    return lambda: q.drain_available(STREAM, lease=lease)


def _promote(q: QueueBackend) -> Act:
    q.write(job("a"), due_ms=PAST_MS)
    lease = _held(q)
    return lambda: q.drain_available(STREAM, lease=lease)


def _reply(q: QueueBackend) -> Act:
    lease = _claimed(q, "a")
    return lambda: q.complete("a", DONE, lease=lease)


def _reply_without_lease(q: QueueBackend) -> Act:
    q.write(job("a"))
    q.drain_available(STREAM)
    return lambda: q.complete("a", DONE)


def _reply_from_elsewhere(q: QueueBackend) -> Act:
    q.write(job("a"))
    other = store_of(q).open()
    other.drain_available(STREAM)
    other.close()
    return lambda: q.complete("a", DONE)


def _block(q: QueueBackend) -> Act:
    lease = _claimed(q, "a")
    return lambda: q.complete("a", "blocked", dossier={"error": "no"}, lease=lease)


def _reply_batch(q: QueueBackend) -> Act:
    lease = _claimed(q, *MANY)
    return lambda: q.complete_batch([Completion(JobID(id), DONE) for id in MANY], lease=lease)


def _reply_few(q: QueueBackend) -> Act:
    lease = _claimed(q, *MANY[:2])
    return lambda: q.complete_batch([Completion(JobID(id), DONE) for id in MANY[:2]], lease=lease)


def _release(q: QueueBackend) -> Act:
    lease = _claimed(q, "a")
    return lambda: q.release("a", lease=lease)


def _run_now(q: QueueBackend) -> Act:
    q.write(job("a"), due_ms=PAST_MS)
    return lambda: q.release("a")


def _defer(q: QueueBackend) -> Act:
    lease = _claimed(q, "a")
    return lambda: q.defer("a", PAST_MS, error="again", lease=lease)


def _reclaim(q: QueueBackend) -> Act:
    _claimed(q, "a", "b").release()
    lease = _held(q)
    return lambda: q.reclaim_in_flight(STREAM, lease=lease)


def _reclaim_foreign_claim(q: FilesystemBackend) -> Act:
    q.write(job("a"))
    name = layout.job_filename(job("a"))
    os.rename(os.path.join(q.root, "new", name), os.path.join(q.root, "claim", f"{'0' * 32}-{name}"))
    lease = _held(q)
    return lambda: q.reclaim_in_flight(STREAM, lease=lease)


def _cancel(q: QueueBackend) -> Act:
    q.write(job("a"))
    return lambda: q.cancel("a")


def _cancel_deferred(q: QueueBackend) -> Act:
    q.write(job("a"), due_ms=PAST_MS)
    return lambda: q.cancel("a")


def _retry(q: QueueBackend) -> Act:
    _ended(q, "a")
    return lambda: q.retry("a")


def _prune(q: QueueBackend) -> Act:
    _ended(q, "a", "b")

    def prune() -> None:
        if q.prune(-60.0) < 2:
            raise NotTaken("not all was seen: the next prune gets the rest")

    return prune


def _spoil(q: QueueBackend, id: str) -> None:
    """Something pending under the name of this job that holds none."""
    if isinstance(q, FilesystemBackend):
        path = os.path.join(q.root, "new", layout.job_filename(job(id)))
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(fd, b'{"id":')
        os.close(fd)
    else:
        q.write(job(id))
        damage = sa.update(jobs).where(jobs.c.id == id).values(extensions="{")
        q.database.run(lambda connection: connection.execute(damage))  # type: ignore[attr-defined]


def _quarantine(q: QueueBackend) -> Act:
    q.write(job("a"))
    _spoil(q, "b")
    lease = _held(q)

    def claim() -> None:
        q.drain_available(STREAM, lease=lease)
        if isinstance(q, FilesystemBackend) and not q.quarantined:
            raise NotTaken("the good one was claimed; the next drain tries the other one again")

    return claim


def _quarantine_under_a_taken_name(q: QueueBackend) -> Act:
    _ended(q, "a")
    _spoil(q, "a")
    lease = _held(q)
    return lambda: q.drain_available(STREAM, lease=lease)


def _take(lease: Lease) -> None:
    if not lease.try_acquire():
        raise NotTaken("somebody has the lease, or that cannot be told now")


class NotTaken(QueueError):
    """An answer that is no error, after which a consumer waits and asks again."""


def _take_free_lease(q: QueueBackend) -> Act:
    q.write(job("a"))
    lease = q.lease(STREAM)
    return lambda: _take(lease)


def _take_over(q: QueueBackend) -> Act:
    store = store_of(q)

    def hold() -> None:
        _claimed(store.open(), "a")

    assert in_child(hold) == 0
    lease = q.lease(STREAM)
    return lambda: _take(lease)


def _take_again(q: QueueBackend) -> Act:
    lease = _claimed(q, "a")
    return lambda: _take(lease)


def _renew(q: QueueBackend) -> Act:
    lease = _claimed(q, "a")
    act: Act = lease.heartbeat
    return act


def _give_up(q: QueueBackend) -> Act:
    lease = _claimed(q, "a")
    act: Act = lease.release
    return act


def _rescue(q: QueueBackend) -> Act:
    lease = _stray(q)
    return lambda: q.rescue_strays(STREAM, lease=lease)


def _adopt(q: QueueBackend) -> Act:
    lease = _stray(q)

    def settle() -> None:
        q.adopt("a", lease=lease)
        q.complete("a", DONE, lease=lease)

    return settle


def _stray(q: QueueBackend) -> Any:
    """A job in flight that this instance has not claimed, in a stream that it holds."""
    q.write(job("a"))
    other = store_of(q).open()
    assert other.drain_available(STREAM)
    other.close()
    return _held(q)


def _end_session(q: QueueBackend) -> Act:
    for id in "ab":
        q.write(job(id))
    lease = _held(q)
    session = q.drain_available(STREAM, lease=lease)[0].session_id

    def end() -> None:
        if q.complete_session(session, DONE, lease=lease) < 2:
            raise NotTaken("they have ended, or are nobody's claims any more")

    return end


def _open(q: QueueBackend) -> Act:
    q.write(job("a"))
    store = store_of(q)
    q.close()
    return store.open


def _sweep(q: FilesystemBackend) -> Act:
    for name in ("1-left-1", "1-left-2"):
        path = os.path.join(q.root, "tmp", name)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        os.utime(path, (PAST_MS, PAST_MS))
    return _open(q)


def _make(q: QueueBackend) -> Act:
    store = store_of(q)
    q.close()
    shutil.rmtree(store.root)
    return lambda: store.open().write(job("a"))


def _finish_intent(q: FilesystemBackend) -> Act:
    _ended(q, "a")
    intent = os.path.join(q.root, layout.INTENTS, layout.job_filename(job("a")))
    os.rename(os.path.join(q.root, "done", layout.signal_filename("a")), intent)
    lease = _held(q)

    def finish() -> None:
        if not q.finish_intents(STREAM, lease=lease):
            raise NotTaken("nothing was finished: a look at the next turn tells")

    return finish


STORIES = [
    Story("send", _send, before=(), sends=("a",)),
    Story("send again", _send_again),
    Story("send a batch", _send_batch, before=(), sends=MANY),
    Story("send a small batch", _send_few, before=(), sends=MANY[:2]),
    Story("send for later", _send_later, before=(), sends=("a",)),
    Story("claim", _claim, before=("a", "b", "c")),
    Story("claim without a lease", _claim_without_lease, before=("a", "b", "c")),
    Story("claim a twin of one in flight", _claim_twin_in_flight, does="twin"),
    Story("claim a twin of one that has ended", _claim_twin_of_ended, does="ended before"),
    Story("promote", _promote),
    Story("reply", _reply, does="end"),
    Story("reply without a lease", _reply_without_lease, does="end"),
    Story("reply from elsewhere", _reply_from_elsewhere, does="end"),
    Story("block with a dossier", _block, does="end"),
    Story("reply to a batch", _reply_batch, before=MANY, does="end"),
    Story("reply to a small batch", _reply_few, before=MANY[:2], does="end"),
    Story("release", _release),
    Story("run a deferred one now", _run_now),
    Story("defer", _defer, does="defer"),
    Story("reclaim", _reclaim, before=("a", "b")),
    Story("cancel", _cancel, does="end"),
    Story("cancel a deferred one", _cancel_deferred, does="end"),
    Story("retry", _retry, does="retry"),
    Story("prune", _prune, before=("a", "b"), does="prune"),
    Story("quarantine", _quarantine),
]
"""In a folder and in a database."""

FOLDER_STORIES = [
    Story("reclaim another port's claim", _reclaim_foreign_claim),
    Story("quarantine under a taken name", _quarantine_under_a_taken_name, does="ended before"),
    Story("finish a retry that was cut off", _finish_intent, does="retry"),
]
"""Of what there is in a folder only."""

LIFE_STORIES = [
    Story("take a free lease", _take_free_lease, does="take"),
    Story("take over from a dead holder", _take_over, does="take", fence=1),
    Story("take the lease again", _take_again, fence=1),
    Story("renew the lease", _renew, fence=1),
    Story("give the lease up", _give_up, fence=1),
    Story("rescue a stray", _rescue, fence=1),
    Story("adopt a stray", _adopt, does="end"),
    Story("end a session", _end_session, before=("a", "b"), does="end"),
    Story("open", _open),
    Story("make", _make, before=(), sends=("a",)),
]
"""Of leases, and of beginnings: calls of their own, besides those of the maildir's `FileOps`."""

FOLDER_LIFE_STORIES = [Story("sweep", _sweep)]

MAY_FIND_IT_DONE = {
    "release",
    "run a deferred one now",
    "cancel",
    "cancel a deferred one",
    "retry",
    "finish a retry that was cut off",
    "prune",
    "quarantine",
    "end a session",
}
"""A second try of these finds that the first one had been done but for its last sync, and says so."""
SAYS_DONE = (IllegalTransition, JobNotFound, NotTaken)
"""How it says so."""
IN_A_DATABASE_TOO = {*MAY_FIND_IT_DONE, "defer"}
"""The same, after a transaction of which nobody knows whether it was committed."""


# -- the promise


@dataclasses.dataclass
class Recovered:
    """What the next holder found: the jobs that it was given, and those that had ended when all was settled."""

    delivered: dict[str, Job]
    ended: set[str]
    fence: int


def recover(store: Store, *, at_once: bool = True) -> Recovered:
    """Be the next holder: take the lease, bring home, go on with retries, work off everything.

    `at_once`: the last one is known to be dead; else its lease is taken when it has run out.
    """
    q: QueueBackend = store.open()
    lease = q.lease(STREAM)
    assert lease.try_acquire(None if at_once else time.time() + 2 * DEFAULT_TTL), "a dead holder's lease is not taken"
    q.reclaim_in_flight(STREAM, lease=lease)
    q.finish_intents(STREAM, lease=lease)
    q.look_again()
    delivered = [claimed.job for claimed in q.drain_available(STREAM, lease=lease)]
    assert len({each.id for each in delivered}) == len(delivered), "two copies of one job were handed out"
    assert q.complete_batch([Completion(each.id, DONE) for each in delivered], lease=lease) == len(delivered)
    ended = {each.id for each in q.completed(STREAM)}
    assert q.tally().outstanding == 0
    assert store.unfinished() == []
    assert all(q.signal(id) is not None for id in ended)
    fence = lease.fence
    lease.release()
    q.close()
    return Recovered({each.id: each for each in delivered}, ended, fence)


def check(store: Store, story: Story, *, acknowledged: bool, at_once: bool = True) -> None:
    """The promise, after the act was cut off or acknowledged: nothing lost, nothing twice, no end undone.

    `at_once`: as for `recover`.
    """
    found = store.places()
    twins = 2 if story.does in {"twin", "ended before"} else 1
    for id in (*story.before, *story.sends):
        assert found[id] <= twins, f"{id} is in {found[id]} places"
        sure = id in story.before or acknowledged
        assert found[id] or not sure or story.does == "prune", f"{id} is lost"
    sent = [id for id in story.sends if found[id]]
    assert sent == list(story.sends[: len(sent)]), "a batch that was cut off leaves a prefix"
    after = recover(store, at_once=at_once)
    gone = set(story.before) - after.ended
    assert not gone or story.does == "prune", f"{gone} never end"
    assert set(sent) <= after.ended
    charged = {id for id, each in after.delivered.items() if Delivery.of(each).attempt}
    assert not charged or story.does == "defer", f"{charged} are charged with a run"
    assert after.fence > story.fence + (acknowledged and story.does == "take"), "two holders have one number"
    if acknowledged:
        _check_meaning(story, after)
    if story.does == "ended before":
        assert not after.delivered


def _check_meaning(story: Story, after: Recovered) -> None:
    if story.does == "end":
        assert not after.delivered, "delivered after an acknowledged end"
    elif story.does == "prune":
        assert not after.ended
    elif story.does == "defer":
        assert Delivery.of(after.delivered["a"]) == Delivery(attempt=1, errors=("again",))
    elif story.does == "retry":
        assert set(after.delivered) == {"a"}
