"""A consumer of a queue in a database, as a program of its own: `sql_consumer.py URL HISTORY [--leased STREAM…]`.

Without leases it drains everything, until there is nothing. With, it goes round the streams, takes over each that is
free, brings home what was left in flight, works a while and gives it up, until it is told to end (SIGTERM).

The history is a file that many append to: `run ID PID` when a job has been claimed, `ack ID PID` when its end is known.
"""

from __future__ import annotations

import os
import random
import signal
import sys

from queuekit import Claimed, Completion, LeaseLost, ObservationStatus, QueueKit
from queuekit.contract import Lease

BATCH = 40
TURNS = 10


def drain(queue: QueueKit, history: int) -> None:
    """Without leases, until there is nothing."""
    while claimed := queue.drain(limit=random.randint(1, BATCH)):
        work(queue, history, claimed, None)


def go_round(queue: QueueKit, history: int, streams: list[str]) -> None:
    """Under leases, until SIGTERM."""
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    while not told:
        lease = queue.lease(random.choice(streams))
        try:
            if lease.try_acquire():
                work_stream(queue, history, lease)
        except LeaseLost:
            continue


def work_stream(queue: QueueKit, history: int, lease: Lease) -> None:
    """Some batches of one stream."""
    queue.reclaim_in_flight(lease.stream, lease=lease)
    for _ in range(TURNS):
        claimed = queue.drain(lease.stream, random.randint(1, BATCH), lease=lease)
        if not claimed:
            break
        work(queue, history, claimed, lease)
        lease.heartbeat()
    lease.release()


def work(queue: QueueKit, history: int, claimed: list[Claimed], lease: Lease | None) -> None:
    """Note that they run, end them, note that they have ended: some together, some one by one."""
    note(history, "run", claimed)
    replies = [Completion(each.job.id, ObservationStatus.DONE) for each in claimed]
    if random.random() < 0.5:
        assert queue.reply_batch(replies, lease=lease) == len(replies)
    else:
        for each in replies:
            queue.reply(each.job_id, each.status, lease=lease)
    note(history, "ack", claimed)


def note(history: int, what: str, claimed: list[Claimed]) -> None:
    """One write for all of them."""
    os.write(history, "".join(f"{what} {each.job.id} {os.getpid()}\n" for each in claimed).encode())


def main() -> None:
    """See above."""
    url, path, *rest = sys.argv[1:]
    history = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with QueueKit.open(url) as queue:
        if rest:
            go_round(queue, history, rest[1:])
        else:
            drain(queue, history)


if __name__ == "__main__":
    main()
