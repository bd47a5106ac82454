"""What the crash and error sweeps go through: each story is a state of the queue and one act on it.

Not a test file. `Story.prepare` returns the act; `recover` is what the next holder does after a crash.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

from queuekit.backends.maildir import layout
from queuekit.backends.maildir.backend import FilesystemBackend
from queuekit.completion import Completion
from queuekit.hlc import HLC
from queuekit.ids import JobID, StreamID
from queuekit.job import Delivery, Job
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
    """`before`: ids of jobs accepted before the act; `sends`: by the act; `does`: what it means for those before."""

    name: str
    prepare: Callable[[FilesystemBackend], Act]
    before: tuple[str, ...] = ("a",)
    sends: tuple[str, ...] = ()
    does: str = ""

    def __str__(self) -> str:
        return self.name


def _held(q: FilesystemBackend) -> Any:
    lease = q.lease(STREAM)
    assert lease.try_acquire()
    return lease


def _claimed(q: FilesystemBackend, *ids: str) -> Any:
    for id in ids:
        q.write(job(id))
    lease = _held(q)
    assert len(q.drain_available(STREAM, lease=lease)) == len(ids)
    return lease


def _ended(q: FilesystemBackend, *ids: str) -> None:
    lease = _claimed(q, *ids)
    assert q.complete_batch([Completion(JobID(id), DONE) for id in ids], lease=lease) == len(ids)
    lease.release()


def _send(q: FilesystemBackend) -> Act:
    return lambda: q.write(job("a"))


def _send_again(q: FilesystemBackend) -> Act:
    q.write(job("a"))
    return lambda: q.write(job("a"))


def _send_batch(q: FilesystemBackend) -> Act:
    return lambda: q.write_batch([job(id) for id in MANY])


def _send_few(q: FilesystemBackend) -> Act:
    return lambda: q.write_batch([job(id) for id in MANY[:2]])


def _send_later(q: FilesystemBackend) -> Act:
    return lambda: q.write(job("a"), due_ms=PAST_MS)


def _claim(q: FilesystemBackend) -> Act:
    for id in "abc":
        q.write(job(id))
    lease = _held(q)
    return lambda: q.drain_available(STREAM, 2, lease=lease)


def _claim_without_lease(q: FilesystemBackend) -> Act:
    for id in "abc":
        q.write(job(id))
    return lambda: q.drain_available(STREAM)


def _claim_twin_in_flight(q: FilesystemBackend) -> Act:
    lease = _claimed(q, "a")
    q.write(job("a"))
    return lambda: q.drain_available(STREAM, lease=lease)


def _claim_twin_of_ended(q: FilesystemBackend) -> Act:
    _ended(q, "a")
    q.write(job("a"))
    lease = _held(q)
    return lambda: q.drain_available(STREAM, lease=lease)


def _promote(q: FilesystemBackend) -> Act:
    q.write(job("a"), due_ms=PAST_MS)
    lease = _held(q)
    return lambda: q.drain_available(STREAM, lease=lease)


def _reply(q: FilesystemBackend) -> Act:
    lease = _claimed(q, "a")
    return lambda: q.complete("a", DONE, lease=lease)


def _reply_without_lease(q: FilesystemBackend) -> Act:
    q.write(job("a"))
    q.drain_available(STREAM)
    return lambda: q.complete("a", DONE)


def _reply_from_elsewhere(q: FilesystemBackend) -> Act:
    q.write(job("a"))
    other = FilesystemBackend(q.root)
    other.drain_available(STREAM)
    other.close()
    return lambda: q.complete("a", DONE)


def _block(q: FilesystemBackend) -> Act:
    lease = _claimed(q, "a")
    return lambda: q.complete("a", "blocked", dossier={"error": "no"}, lease=lease)


def _reply_batch(q: FilesystemBackend) -> Act:
    lease = _claimed(q, *MANY)
    return lambda: q.complete_batch([Completion(JobID(id), DONE) for id in MANY], lease=lease)


def _reply_few(q: FilesystemBackend) -> Act:
    lease = _claimed(q, *MANY[:2])
    return lambda: q.complete_batch([Completion(JobID(id), DONE) for id in MANY[:2]], lease=lease)


def _release(q: FilesystemBackend) -> Act:
    lease = _claimed(q, "a")
    return lambda: q.release("a", lease=lease)


def _run_now(q: FilesystemBackend) -> Act:
    q.write(job("a"), due_ms=PAST_MS)
    return lambda: q.release("a")


def _defer(q: FilesystemBackend) -> Act:
    lease = _claimed(q, "a")
    return lambda: q.defer("a", PAST_MS, error="again", lease=lease)


def _reclaim(q: FilesystemBackend) -> Act:
    _claimed(q, "a", "b").release()
    lease = _held(q)
    return lambda: q.reclaim_in_flight(STREAM, lease=lease)


def _reclaim_foreign_claim(q: FilesystemBackend) -> Act:
    q.write(job("a"))
    name = layout.job_filename(job("a"))
    os.rename(os.path.join(q.root, "new", name), os.path.join(q.root, "claim", f"{'0' * 32}-{name}"))
    lease = _held(q)
    return lambda: q.reclaim_in_flight(STREAM, lease=lease)


def _cancel(q: FilesystemBackend) -> Act:
    q.write(job("a"))
    return lambda: q.cancel("a")


def _cancel_deferred(q: FilesystemBackend) -> Act:
    q.write(job("a"), due_ms=PAST_MS)
    return lambda: q.cancel("a")


def _retry(q: FilesystemBackend) -> Act:
    _ended(q, "a")
    return lambda: q.retry("a")


def _prune(q: FilesystemBackend) -> Act:
    _ended(q, "a", "b")
    return lambda: q.prune(-60.0)


def _spoil(q: FilesystemBackend, id: str) -> None:
    """A file in new/ under the name of this job that holds none."""
    path = os.path.join(q.root, "new", layout.job_filename(job(id)))
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(fd, b'{"id":')
    os.close(fd)


def _quarantine(q: FilesystemBackend) -> Act:
    q.write(job("a"))
    _spoil(q, "b")
    lease = _held(q)
    return lambda: q.drain_available(STREAM, lease=lease)


def _quarantine_under_a_taken_name(q: FilesystemBackend) -> Act:
    _ended(q, "a")
    _spoil(q, "a")
    lease = _held(q)
    return lambda: q.drain_available(STREAM, lease=lease)


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
    Story("reclaim another port's claim", _reclaim_foreign_claim),
    Story("cancel", _cancel, does="end"),
    Story("cancel a deferred one", _cancel_deferred, does="end"),
    Story("retry", _retry, does="retry"),
    Story("prune", _prune, before=("a", "b"), does="prune"),
    Story("quarantine", _quarantine),
    Story("quarantine under a taken name", _quarantine_under_a_taken_name, does="ended before"),
]


def places(root: str) -> Counter[str]:
    """In how many folders each job file is."""
    found: Counter[str] = Counter()
    for folder in FOLDERS:
        for file in os.listdir(os.path.join(root, folder)):
            split = layout.split_later(file)
            name = split[2] if split else layout.split_claim(file) or file
            rest = layout.tail(name)
            if rest is not None:
                found[rest.removeprefix(f"{STREAM}-")] += 1
    return found


@dataclasses.dataclass
class Recovered:
    """What the next holder found: the jobs that it was given, and those that had ended when all was settled."""

    delivered: dict[str, Job]
    ended: set[str]


def recover(root: str) -> Recovered:
    """Be the next holder: take the lease, bring home, go on with retries, work off everything."""
    q = FilesystemBackend(root, ops=FaultyOps(syncing=False))
    lease = q.lease(STREAM)
    assert lease.try_acquire(), "a dead holder's lease is taken at once"
    q.reclaim_in_flight(STREAM, lease=lease)
    q.finish_intents(STREAM, lease=lease)
    q.look_again()
    delivered = [claimed.job for claimed in q.drain_available(STREAM, lease=lease)]
    assert len({each.id for each in delivered}) == len(delivered), "two copies of one job were handed out"
    assert q.complete_batch([Completion(each.id, DONE) for each in delivered], lease=lease) == len(delivered)
    ended = {each.id for each in q.completed(STREAM)}
    assert q.tally().outstanding == 0
    assert os.listdir(os.path.join(root, layout.INTENTS)) == []
    assert all(q.signal(id) is not None for id in ended)
    lease.release()
    q.close()
    return Recovered({each.id: each for each in delivered}, ended)


def check(root: str, story: Story, *, acknowledged: bool) -> None:
    """The promise, after the act was cut off or acknowledged: nothing lost, nothing twice, no end undone."""
    found = places(root)
    twins = 2 if story.does in {"twin", "ended before"} else 1
    for id in (*story.before, *story.sends):
        assert found[id] <= twins, f"{id} is in {found[id]} places"
        sure = id in story.before or acknowledged
        assert found[id] or not sure or story.does == "prune", f"{id} is lost"
    sent = [id for id in story.sends if found[id]]
    assert sent == list(story.sends[: len(sent)]), "a batch that was cut off leaves a prefix"
    after = recover(root)
    gone = set(story.before) - after.ended
    assert not gone or story.does == "prune", f"{gone} never end"
    assert set(sent) <= after.ended
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
