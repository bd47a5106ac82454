"""What the verbs of a queue in a database cost, with few rows and with many, beside the bare statements they need.

    python benchmarks/sql_cost.py DIR [--sizes 1000 1000000] [--rounds 50] [--only sqlite postgresql] [--url URL]

For each size a database gets so many pending jobs and as many that have ended, of four streams. Then one stream is
worked under its lease, and each verb's median in microseconds a call is told, and how many times the first size's it
is. `bare …` are the same transactions in the driver's own words, on the same table, measured in turn with the verbs:
what there is to pay for any code at all. `a verb / bare` is then the price of everything above the driver.

SQLite's file is made below DIR and left there. PostgreSQL is a server of its own that syncs its commits
(`tests/postgres.py`; gone at the end), or with `--url` any: the database named there has to be empty, and is left full.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from queuekit.backends.sql.backend import PersistenceKitBackend
from queuekit.clock import ProcessClock
from queuekit.completion import Completion
from queuekit.ids import JobID, StreamID
from queuekit.job import Job
from queuekit.status import ObservationStatus

STREAMS = 4
STREAM = StreamID("s0")
PAYLOAD = b"x" * 64
PRUNED = 50
BATCHES = (1, 10, 100)
NUMBERS = {
    "sqlite": "WITH RECURSIVE many(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM many WHERE n < :count)",
    "postgresql": "WITH many(n) AS (SELECT generate_series(1, :count))",
}
RANDOM_ID = {"sqlite": "lower(hex(randomblob(16)))", "postgresql": "replace(gen_random_uuid()::text, '-', '')"}
BYTES = {"sqlite": "CAST(:payload AS BLOB)", "postgresql": "CAST(:payload AS bytea)"}
FILLING = """
    INSERT INTO queuekit_jobs (id, stream_id, physical_time, logical_count, node_id, priority, status, payload,
        extensions, session_id, signal_status, artifacts, completed_at, completed_logical, completed_node)
    {numbers} SELECT {id}, 's' || (n % :streams), :first + n / 10, n % 10, 1, 50, :status, {payload}, '{{}}',
        CAST(:session AS TEXT), CAST(:signal AS TEXT), CAST(:artifacts AS TEXT), CAST(:ended AS BIGINT) + n / 10, 0, 1
    FROM many"""
BARE_CLAIM = """
    WITH oldest AS MATERIALIZED (SELECT id FROM queuekit_jobs WHERE status = 'new' AND stream_id = ?
        ORDER BY physical_time, logical_count, node_id LIMIT ? {lock})
    UPDATE queuekit_jobs SET status = 'cur', session_id = ? WHERE id IN (SELECT id FROM oldest)
    RETURNING id, stream_id, physical_time, logical_count, node_id, priority, payload, extensions"""
BARE_END = """UPDATE queuekit_jobs SET status = 'done', signal_status = 'done', artifacts = '[]', completed_at = ?
    WHERE id = ? AND status = 'cur' AND session_id = ?"""
BARE_SEND = """INSERT INTO queuekit_jobs (id, stream_id, physical_time, logical_count, node_id, priority, status,
    payload, extensions) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"""


def driver_of(queue: PersistenceKitBackend) -> Any:
    """A connection of the driver's, set up as the queue sets up its own."""
    database: Any = queue.database
    return database._open()


class Bare:
    """The driver's own connection."""

    def __init__(self, queue: PersistenceKitBackend) -> None:
        self._sqlite = queue.database.scheme == "sqlite"
        self._driver = driver_of(queue)
        self._session = 0

    def _statement(self, words: str) -> str:
        if self._sqlite:
            return words.format(lock="")
        return words.format(lock="FOR UPDATE SKIP LOCKED").replace("?", "%s")

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        if self._sqlite:
            self._driver.execute("BEGIN IMMEDIATE")
        cursor = self._driver.cursor()
        yield cursor
        self._driver.commit()

    def claim(self, limit: int) -> list[str]:
        """One UPDATE; the ids."""
        self._session += 1
        with self._transaction() as cursor:
            cursor.execute(self._statement(BARE_CLAIM), (STREAM, limit, f"bare-{self._session}"))
            return [row[0] for row in cursor.fetchall()]

    def end(self, ids: Sequence[str]) -> None:
        """One UPDATE for each, in one transaction."""
        at = time.time_ns() // 1_000_000
        with self._transaction() as cursor:
            cursor.executemany(self._statement(BARE_END), [(at, each, f"bare-{self._session}") for each in ids])

    def send(self, job: Job) -> None:
        """One INSERT."""
        at = job.submitted_at
        row = (job.id, job.stream_id, at.physical_time, at.logical_count, at.node_id, 50, "new", job.payload, "{}")
        with self._transaction() as cursor:
            cursor.execute(self._statement(BARE_SEND), row)

    def close(self) -> None:
        """It is of no use any more."""
        self._driver.close()


@dataclasses.dataclass
class Watch:
    """Medians of microseconds, by what was done."""

    took: dict[str, list[float]] = dataclasses.field(default_factory=dict)

    def time(self, what: str, work: Callable[[], Any]) -> Any:
        """What the work answers."""
        begun = time.perf_counter()
        answer = work()
        self.took.setdefault(what, []).append((time.perf_counter() - begun) * 1e6)
        return answer

    def medians(self) -> dict[str, float]:
        """In microseconds."""
        return {what: statistics.median(took) for what, took in self.took.items()}


def main() -> None:
    """Measure and print."""
    options = arguments()
    for scheme in options.only:
        with store_of(scheme, options) as open_store:
            found = measure([Subject(open_store(size), size) for size in options.sizes], options.rounds)
        tell(scheme, options.sizes, found)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--only", nargs="+", choices=["sqlite", "postgresql"], default=["sqlite", "postgresql"])
    parser.add_argument("--url", help="of an empty PostgreSQL database; one size only")
    return parser.parse_args()


@contextmanager
def store_of(scheme: str, options: argparse.Namespace) -> Iterator[Callable[[int], PersistenceKitBackend]]:
    """Opens a new queue for a size."""
    if scheme == "sqlite":
        folder = tempfile.mkdtemp(prefix="sql-cost-", dir=options.directory)
        yield lambda size: PersistenceKitBackend(f"sqlite:{os.path.join(folder, str(size), 'jobs.db')}")
    elif options.url:
        yield lambda _: PersistenceKitBackend(options.url)
    else:
        sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
        from postgres import Server

        server = Server(durable=True, shared_buffers="256MB")
        try:
            yield lambda size: PersistenceKitBackend(_database(server, f"cost_{size}"), patience=600)
        finally:
            server.remove()


def _database(server: Any, name: str) -> str:
    server._administer(f'CREATE DATABASE "{name}"')
    return str(server.url(name))


def fill(queue: PersistenceKitBackend, count: int) -> None:
    """So many pending, and as many that have ended; settled as a database that has run for a while."""
    scheme = queue.database.scheme
    statement = FILLING.format(numbers=NUMBERS[scheme], id=RANDOM_ID[scheme], payload=BYTES[scheme])
    first = time.time_ns() // 1_000_000 - 100_000_000
    common = {"count": count, "streams": STREAMS, "first": first, "payload": PAYLOAD.decode()}
    new = {"status": "new", "session": None, "signal": None, "artifacts": None, "ended": None}
    done = {"status": "done", "session": "one", "signal": "done", "artifacts": "[]", "ended": first}
    for facts in (new, done):
        queue.database.run(lambda connection, facts=facts: connection.execute(sa.text(statement), {**common, **facts}))
    vacuum = "PRAGMA wal_checkpoint(TRUNCATE)" if scheme == "sqlite" else "VACUUM ANALYZE queuekit_jobs"
    driver = driver_of(queue)
    if scheme == "postgresql":
        driver.autocommit = True  # SQLite's is so already
    driver.execute(vacuum)
    driver.close()


class Subject:
    """The queue of one size, and what has been measured of it."""

    def __init__(self, queue: PersistenceKitBackend, size: int) -> None:
        fill(queue, size)
        self._queue, self._lease = queue, queue.lease(STREAM)
        if not self._lease.try_acquire():
            raise SystemExit("the lease of a new queue is held by somebody")
        self._clock, self._bare = ProcessClock(), Bare(queue)
        self.watch = Watch()

    def round(self, number: int) -> None:
        """Everything once; what is seldom done, in every tenth round."""
        queue, lease, watch, bare = self._queue, self._lease, self.watch, self._bare
        jobs = [new_job(self._clock) for _ in range(2)]
        watch.time("send", lambda: queue.write(jobs[0]))
        watch.time("bare send", lambda: bare.send(jobs[1]))
        for limit in BATCHES:
            queue.write_batch([new_job(self._clock, old=True) for _ in range(2 * limit)])  # the backlog stays as it is
            claimed = watch.time(f"claim {limit}", lambda n=limit: queue.drain_available(STREAM, n, lease=lease))
            replies = [Completion(each.job.id, ObservationStatus.DONE) for each in claimed]
            assert len(replies) == limit
            watch.time(f"complete {limit}", lambda replies=replies: queue.complete_batch(replies, lease=lease))
            ids = watch.time(f"bare claim {limit}", lambda n=limit: bare.claim(n))
            assert len(ids) == limit
            watch.time(f"bare complete {limit}", lambda ids=ids: bare.end(ids))
        watch.time(f"prune {PRUNED}", lambda: queue.prune(0.0, limit=PRUNED))
        if number % 10 == 0:
            watch.time("prune: nothing old", lambda: queue.prune(1e6, limit=PRUNED))
            watch.time("rescue: no stray", lambda: queue.rescue_strays(STREAM, lease=lease))
            watch.time("tally of a stream", lambda: queue.tally(STREAM))
            watch.time("pending_count", lambda: queue.pending_count(STREAM))
            watch.time("blocked_counts", lambda: queue.blocked_counts(at_most=10_000))
            watch.time("streams", queue.streams)
        lease.heartbeat()

    def close(self) -> None:
        """Give up what it has."""
        self._bare.close()
        self._lease.release()
        self._queue.close()


def measure(subjects: Sequence[Subject], rounds: int) -> list[dict[str, float]]:
    """The medians of each, measured in turn."""
    gc.disable()
    for number in range(rounds):
        for subject in subjects:
            subject.round(number)
    gc.enable()
    for subject in subjects:
        subject.close()
    return [subject.watch.medians() for subject in subjects]


def new_job(clock: ProcessClock, *, old: bool = False) -> Job:
    """A job as a producer makes it; `old`: before all others."""
    at = clock.send()
    if old:
        at = dataclasses.replace(at, physical_time=at.physical_time - 200_000_000)
    return Job(id=JobID.generate(), stream_id=STREAM, submitted_at=at, payload=PAYLOAD)


def tell(scheme: str, sizes: Sequence[int], found: Sequence[dict[str, float]]) -> None:
    """The table of one database."""
    print(f"\n{scheme}: microseconds a call, by pending jobs (and as many ended)")
    heads = "".join(f"{size:>12,}" + (f"{'ratio':>7}" if place else "") for place, size in enumerate(sizes))
    print(f"{'':22}{heads}{'/ bare':>8}")
    for what in found[0]:
        cells = "".join(
            f"{each[what]:12.0f}" + (f"{each[what] / found[0][what]:7.2f}" if place else "")
            for place, each in enumerate(found)
        )
        base = found[-1].get(f"bare {what}")
        print(f"{what:22}{cells}" + (f"{found[-1][what] / base:8.2f}" if base else ""), flush=True)


if __name__ == "__main__":
    main()
