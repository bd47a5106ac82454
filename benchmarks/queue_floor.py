"""What a job costs on a maildir, in microseconds: one send, a batch send, a claim, a reply.

    python benchmarks/queue_floor.py DIR [--jobs 20000] [--batch 100] [--rounds 3] [--durability full]

Makes a new folder below DIR for each round and removes none: on ext4 a mass deletion slows down the creation of files
for minutes, so delete them yourself when you are done. A stream lease is held while jobs are claimed and replied to.
The least of the rounds is what the code costs; the spread is the machine's.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator

from queuekit.backends.maildir.backend import FilesystemBackend
from queuekit.completion import Completion
from queuekit.hlc import HLCGenerator
from queuekit.ids import JobID, StreamID
from queuekit.job import Job
from queuekit.status import ObservationStatus

STREAM = StreamID("bench")
PAYLOAD = b"x" * 64
SINGLE_SENDS = 500


def main() -> None:
    """Measure and print."""
    options = arguments()
    clock = HLCGenerator(1)
    print(f"{options.jobs} jobs, batches of {options.batch}, durability {options.durability}; microseconds per job")
    print(f"{'send':>10} {'batch send':>10} {'claim':>10} {'reply':>10}")
    rounds = [measure(options, clock) for _ in range(options.rounds)]
    for figures in rounds:
        print(" ".join(f"{each:10.1f}" for each in figures))
    print(" ".join(f"{min(each):10.1f}" for each in zip(*rounds, strict=True)), " least")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory")
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=100, help="jobs claimed and replied to at once")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--durability", default="full", choices=["full", "batch", "none"])
    return parser.parse_args()


def measure(options: argparse.Namespace, clock: HLCGenerator) -> tuple[float, float, float, float]:
    """One round on a new queue: microseconds per job of each kind of work."""
    root = tempfile.mkdtemp(prefix="queue-floor-", dir=options.directory)
    queue = FilesystemBackend(os.path.join(root, "spool"), durability=options.durability)
    single = [new_job(clock) for _ in range(SINGLE_SENDS)]
    many = [new_job(clock) for _ in range(options.jobs)]
    one = per_job(lambda: [queue.write(job) for job in single], len(single))
    batch = per_job(lambda: queue.write_batch(many), len(many))
    lease = queue.lease(STREAM)
    if not lease.try_acquire():
        raise SystemExit("the lease of a new queue is held by somebody")
    claiming = replying = 0.0
    for claimed, seconds in claims(lambda: queue.drain_available(STREAM, options.batch, lease=lease)):
        claiming += seconds
        replies = [Completion(each.job.id, ObservationStatus.DONE) for each in claimed]
        begun = time.perf_counter()
        queue.complete_batch(replies, lease=lease)
        replying += time.perf_counter() - begun
    lease.release()
    queue.close()
    total = len(single) + len(many)
    return one, batch, claiming * 1e6 / total, replying * 1e6 / total


def claims(drain: Callable[[], list]) -> Iterator[tuple[list, float]]:
    """Batches until there is nothing left, each with the seconds that it took."""
    while True:
        begun = time.perf_counter()
        claimed = drain()
        seconds = time.perf_counter() - begun
        if not claimed:
            return
        yield claimed, seconds


def per_job(work: Callable[[], object], count: int) -> float:
    """Microseconds per job."""
    begun = time.perf_counter()
    work()
    return (time.perf_counter() - begun) * 1e6 / count


def new_job(clock: HLCGenerator) -> Job:
    """A job as a producer makes it."""
    return Job(
        id=JobID.generate(), stream_id=STREAM, submitted_at=clock.send(time.time_ns() // 1_000_000), payload=PAYLOAD
    )


if __name__ == "__main__":
    main()
