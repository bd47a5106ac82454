"""The queue measured as a library, by one process: sending, and claiming with replies, one by one and in batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from queuekit import Completion, Job, JobID, LeaseLost, ObservationStatus, QueueKit, StreamID
from queuekit.clock import ProcessClock
from queuekit.contract import Lease
from workerpool.cli.benching.figures import Figure

STREAM = StreamID("measured")
PAYLOAD = b"x" * 64
SENT_AT_ONCE, CLAIMED_AT_ONCE = 1_000, 100
MOST_SECONDS = 10.0
"""So long a phase takes at most: on a slow disk there are fewer jobs in it."""
_LEASE_SECONDS = 600.0
Tell = Callable[[str, int, int], None]


def measure_library(queue: QueueKit, count: int, tell: Tell) -> Iterator[Figure]:
    """Four figures; the queue is empty before and after. `tell(what, done, of)`: how far it is."""
    clock = ProcessClock()
    lease = queue.lease(STREAM, _LEASE_SECONDS)
    if not lease.try_acquire():
        raise LeaseLost(STREAM, lease.holder())
    yield _send_singly(queue, count, clock, tell)
    yield _send_in_batches(queue, count, clock, tell)
    yield _work_singly(queue, count, lease, tell)
    yield _work_in_batches(queue, lease, tell)
    lease.release()


def new_job(stream: StreamID, clock: ProcessClock, payload: bytes = PAYLOAD) -> Job:
    """A job as a producer makes it."""
    return Job(id=JobID.generate(), stream_id=stream, submitted_at=clock.send(), payload=payload)


def _send_singly(queue: QueueKit, count: int, clock: ProcessClock, tell: Tell) -> Figure:
    what = "send, one by one"

    def send(done: int) -> int:
        job = new_job(STREAM, clock)
        tell(what, done, count)
        queue.send(job)
        return 1

    return _repeat("send_single", what, count, send)


def _send_in_batches(queue: QueueKit, count: int, clock: ProcessClock, tell: Tell) -> Figure:
    size = min(count, SENT_AT_ONCE)
    what = f"send, {size:,} at once"

    def send(done: int) -> int:
        tell(what, done, count)
        return queue.send_batch([new_job(STREAM, clock) for _ in range(min(size, count - done))])

    return _repeat("send_batch", what, count, send, singly=False)


def _work_singly(queue: QueueKit, count: int, lease: Lease, tell: Tell) -> Figure:
    what = "claim and reply, one by one"

    def work(done: int) -> int:
        tell(what, done, count)
        claimed = queue.drain(STREAM, 1, lease=lease)
        for each in claimed:
            queue.reply(each.job.id, ObservationStatus.DONE, lease=lease)
        return len(claimed)

    return _repeat("work_single", what, count, work)


def _work_in_batches(queue: QueueKit, lease: Lease, tell: Tell) -> Figure:
    what = f"claim and reply, {CLAIMED_AT_ONCE} at once"
    count = queue.backend.pending_count(STREAM)

    def work(done: int) -> int:
        tell(what, done, count)
        claimed = queue.drain(STREAM, CLAIMED_AT_ONCE, lease=lease)
        queue.reply_batch([Completion(each.job.id, ObservationStatus.DONE) for each in claimed], lease=lease)
        return len(claimed)

    return _repeat("work_batch", what, count, work, singly=False)


def _repeat(key: str, what: str, count: int, act: Callable[[int], int], *, singly: bool = True) -> Figure:
    """Act until `count` jobs are done, nothing is left, or the time is over. `act(done so far)`: how many it did."""
    done, each = 0, []
    begun = now = time.perf_counter()
    while done < count and now - begun < MOST_SECONDS:
        before = now
        did = act(done)
        now = time.perf_counter()
        if not did:
            break
        done += did
        each.append((now - before) * 1000)
    return Figure(key=key, what=what, jobs=done, seconds=now - begun, each_ms=tuple(each) if singly else ())
