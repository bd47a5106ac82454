"""T22: everything that can befall a PostgreSQL under load, one after the other, also together with kills of a pool."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest
from databases import DatabaseEstate
from lengths import short_and_long
from pool import Pool, until
from postgres import Server
from test_pool_postgres import EVERYBODY, FAULTS, person_at

from queuekit.errors import QueueError

STREAMS = {
    "alone": {"workers": 2, "max_crashes": 1_000_000},
    "shared": {"exclusive": False, "workers": 2, "max_crashes": 1_000_000},
}
AT_ONCE = 16
BEHIND = 50  # so many jobs at most wait when the next trouble comes
LONG = 120.0  # patience, in seconds
LONGEST_TROUBLE = 30.0
TROUBLES = ("still", "down", "cut", "restarted")
HARD = 1.0
STOP_WITHIN = HARD + 5.0
NO_MORE_FAULTS = """
    DROP TRIGGER fails_at_once ON queuekit_jobs; DROP TRIGGER fails_at_commit ON queuekit_jobs;
    DROP TRIGGER fails_at_commit ON queuekit_leases; DROP FUNCTION fail();
"""

Make = Callable[..., tuple[Server, DatabaseEstate]]


@pytest.fixture
def make_estate_on(own_postgres: Callable[..., Server], tmp_path: Path) -> Iterator[Make]:
    """Make a server of one's own, and an estate on it."""
    with ExitStack() as stack:

        def make(**tables: Any) -> tuple[Server, DatabaseEstate]:
            server = own_postgres(deadlock_timeout="20ms")
            return server, stack.enter_context(DatabaseEstate(tmp_path, server.url(), STREAMS, **tables))

        yield make


class Storm:
    """What befalls a server and the pool on it. Each trouble is over, and its own, when its method returns."""

    def __init__(self, server: Server, estate: DatabaseEstate, pool: Pool, dice: Random) -> None:
        self._server, self._estate, self._dice = server, estate, dice
        self.pool = pool
        self.seen: Counter[str] = Counter()
        self._kinds = {
            "cut": self._cut,
            "stop": self._stand_still,
            "immediate": lambda: self._restart("immediate"),
            "fast": lambda: self._restart("fast"),
            "kill": self._kill_server,
            "conflict": self._conflict,
            "stream": self._kill_stream,
            "worker": self._kill_worker,
            "both": self._kill_stream_while_down,
        }

    def strike(self) -> None:
        kind = self._dice.choice(list(self._kinds))
        self.seen[kind] += 1
        self._kinds[kind]()

    def _wait(self, most: float) -> None:
        threading.Event().wait(self._dice.uniform(0.0, most))

    def _cut(self) -> None:
        """`pg_terminate_backend` of everybody's, or of one."""
        with person_at(self._server) as person:
            pids = [pid for (pid,) in person.execute(f"SELECT pid {EVERYBODY}")]
            for pid in pids if self._dice.random() < 0.3 else self._dice.sample(pids, min(1, len(pids))):
                person.execute("SELECT pg_terminate_backend(%s)", (pid,))

    def _stand_still(self) -> None:
        self._server.pause()
        self._wait(4.0)
        self._server.resume()

    def _restart(self, mode: str) -> None:
        self._server.stop(mode)
        self._wait(1.0)
        self._server.start()

    def _kill_server(self) -> None:
        self._server.kill()
        self._wait(1.0)
        self._server.start()

    def _conflict(self) -> None:
        """Two in five transactions fail for a moment, as those that meet others do."""
        with person_at(self._server) as person:
            person.execute(FAULTS)
            self._wait(1.5)
            for _ in range(20):
                with contextlib.suppress(psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure):
                    person.execute(NO_MORE_FAULTS.encode())
                    return
        raise AssertionError("the triggers stay")

    def _kill_stream(self) -> None:
        row = self.pool.row(self._dice.choice(list(STREAMS)))
        if row is not None:
            self._estate.kill(row.pid)

    def _kill_worker(self) -> None:
        with contextlib.suppress(AssertionError):  # none is there just now
            self._estate.kill(self.pool.worker_pid(self._dice.choice(list(STREAMS))))

    def _kill_stream_while_down(self) -> None:
        self._server.stop("immediate")
        self._kill_stream()
        self._server.start()


@pytest.mark.parametrize("strikes", short_and_long(12, 400))
def test_a_storm_of_troubles_loses_and_doubles_nothing(make_estate_on: Make, dice: Random, strikes: int) -> None:
    """T22: every job ends once, none is run again but by a kill, and no attempt is burnt by what the server did."""
    server, estate = make_estate_on()
    pool = estate.start()
    until(pool.is_working("alone"), "the pool", patience=LONG)
    storm = Storm(server, estate, pool, dice)
    jobs: list[str] = []
    for _ in range(strikes):
        jobs += send(estate)
        until(lambda: len(estate.notes("end")) > len(jobs) - BEHIND, "some work", patience=LONG)  # noqa: B023
        storm.strike()
    until(lambda: estate.queue.tally().outstanding == 0, "the ends", patience=LONG)
    assert pool.stop() == 0
    estate.check_settled(jobs)
    repeats = estate.check_repeats(settling=LONGEST_TROUBLE)
    assert {estate.status_of(job) for job in jobs} == {"done"}
    assert "Traceback" not in pool.log
    print(f"T22: {strikes} troubles {dict(storm.seen)}, {len(jobs)} jobs: 0 lost, 0 doubled, {repeats} runs repeated")


def send(estate: DatabaseEstate) -> list[str]:
    """Some jobs, although the server may have to be found again."""

    def send_now() -> list[str]:
        try:
            return estate.send_many(AT_ONCE, list(STREAMS), do="sleep", seconds=0.02)
        except QueueError:
            return []

    return until(send_now, "a server that takes jobs", LONG)


@pytest.mark.parametrize("rounds", short_and_long(4, 100))
def test_a_pool_ends_in_time_whatever_has_befallen_its_server(make_estate_on: Make, dice: Random, rounds: int) -> None:
    """T22, C56: within `hard` and 5 s, with nothing left running; what could not be settled is run by the next pool."""
    server, estate = make_estate_on(shutdown={"soft": "500ms", "hard": f"{HARD:g}s"})
    jobs: list[str] = []
    took: dict[str, list[float]] = {trouble: [] for trouble in TROUBLES}
    for trouble in itertools.islice(itertools.cycle(TROUBLES), rounds):
        jobs += estate.send_many(40, list(STREAMS), do="sleep", seconds=0.05)
        pool = estate.start()
        before = len(estate.notes("start"))
        until(lambda before=before: len(estate.notes("start")) > before + dice.randrange(6), "runs", patience=LONG)
        befall(server, trouble)
        begun = time.monotonic()
        assert pool.stop(patience=STOP_WITHIN) in {0, 5}
        took[trouble].append(time.monotonic() - begun)
        assert estate.processes() == []
        mend(server, trouble)
    assert estate.run("--burst", patience=LONG).code == 0
    estate.check_settled(jobs)
    assert {estate.status_of(job) for job in jobs} == {"done"}
    longest = ", ".join(f"{trouble} {max(each):.1f} s" for trouble, each in took.items())
    print(f"T22: {rounds} stops, hard {HARD:g} s, at most so long by what had befallen the server: {longest}")


@pytest.mark.parametrize("rounds", short_and_long(4, 40))
def test_after_each_reconnection_at_most_two_jobs_are_late(make_estate_on: Make, rounds: int) -> None:
    """T22: late is a start without the server's word, at the poll; on a slow machine, what is slow there in calm."""
    server, estate = make_estate_on()
    pool = estate.start()
    until(pool.is_working("alone"), "the pool", patience=LONG)
    jobs, calm = starts_of(estate, 6)
    limit = max(0.25, 3 * max(calm))
    worst_late, worst = 0, 0.0
    for trouble in itertools.islice(itertools.cycle(TROUBLES), rounds):
        noticed = silences(pool)
        befall(server, trouble)
        if trouble == "still":
            until(lambda noticed=noticed: silences(pool) > noticed, "the silence noticed", patience=LONG)
        mend(server, trouble)
        more, delays = starts_of(estate, 6)
        jobs += more
        print(f"{trouble}: start delays in ms:", ", ".join(f"{1000 * delay:.0f}" for delay in delays))
        worst_late, worst = max(worst_late, sum(delay > limit for delay in delays)), max(worst, *delays)
    assert pool.stop() == 0
    estate.check_settled(jobs)
    assert {len(runs) for runs in estate.runs().values()} == {1}
    print(
        f"T22: {rounds} reconnections: at most {worst_late} jobs late (over {limit:.2f} s), the longest {worst:.2f} s"
    )
    assert worst_late <= 2


def silences(pool: Pool) -> int:
    """How often a pool has told of a server that is silent."""
    return pool.log.count("does not answer") + pool.log.count("timeout")


def starts_of(estate: DatabaseEstate, count: int) -> tuple[list[str], list[float]]:
    """Send so many jobs, each after the end of the one before; how long each waited for its start."""
    jobs, delays = [], []
    for _ in range(count):
        job = estate.send("alone")
        sent = time.monotonic()
        until(estate.finished(job), "its end", patience=LONG)
        jobs.append(job)
        delays.append(estate.runs()[job][0].start - sent)
    return jobs, delays


def befall(server: Server, trouble: str) -> None:
    """Begin it."""
    match trouble:
        case "still":
            server.pause()
        case "down":
            server.stop("immediate")
        case "cut":
            with person_at(server) as person:
                person.execute(f"SELECT pg_terminate_backend(pid) {EVERYBODY}")
        case _:
            server.stop("immediate")
            server.start()


def mend(server: Server, trouble: str) -> None:
    """End it."""
    match trouble:
        case "still":
            server.resume()
        case "down":
            server.start()
