"""A pool on a PostgreSQL that is in trouble: nothing is lost or burnt, nothing runs twice, nothing spins, and it ends.

The long forms are those of the short tests, with more rounds; they measure, and print what they saw.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest
from databases import DatabaseEstate
from machine import MOST_CPU, check_untouched, endure, needs_linux
from pool import Pool, until
from postgres import Server

SHARED = {"encode": {"exclusive": False, "workers": 2}}
ALONE = {"encode": {"workers": 2}}
FAULTS = """
    CREATE FUNCTION fail() RETURNS trigger AS $$
    DECLARE lot int := abs(hashtext(txid_current()::text)) % 100;
    BEGIN
        IF lot BETWEEN TG_ARGV[0]::int AND TG_ARGV[0]::int + 11 THEN
            RAISE EXCEPTION 'could not serialize access' USING ERRCODE = '40001';
        ELSIF lot BETWEEN TG_ARGV[0]::int + 12 AND TG_ARGV[0]::int + 19 THEN
            RAISE EXCEPTION 'deadlock detected' USING ERRCODE = '40P01';
        END IF;
        RETURN NEW;
    END $$ LANGUAGE plpgsql;
    CREATE TRIGGER fails_at_once BEFORE UPDATE ON queuekit_jobs FOR EACH ROW EXECUTE FUNCTION fail(0);
    CREATE CONSTRAINT TRIGGER fails_at_commit AFTER UPDATE ON queuekit_jobs DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION fail(20);
    CREATE CONSTRAINT TRIGGER fails_at_commit AFTER UPDATE ON queuekit_leases DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION fail(20);
"""
EVERYBODY = "FROM pg_stat_activity WHERE application_name = 'queuekit' AND pid <> pg_backend_pid()"

Make = Callable[..., tuple[Server, DatabaseEstate]]


@pytest.fixture
def make_estate_on(own_postgres: Callable[..., Server], tmp_path: Path) -> Iterator[Make]:
    """Make a server of one's own, and an estate on it."""
    with ExitStack() as stack:

        def make(streams: dict[str, dict[str, Any]] | None = None, **tables: Any) -> tuple[Server, DatabaseEstate]:
            server = own_postgres(deadlock_timeout="20ms")
            return server, stack.enter_context(DatabaseEstate(tmp_path, server.url(), streams or ALONE, **tables))

        yield make


@contextmanager
def person_at(server: Server) -> Iterator[psycopg.Connection[Any]]:
    """A session of somebody who may do everything."""
    with psycopg.connect(f"{server.url()}&options=-cdefault_transaction_read_only%3Doff", autocommit=True) as session:
        yield session


def under_load(estate: DatabaseEstate, count: int) -> tuple[Pool, list[str]]:
    """A pool in the middle of so many jobs."""
    pool = estate.start()
    until(pool.is_working(), "the pool")
    jobs = estate.send_many(count, do="sleep", seconds=0.02)
    until(lambda: len(estate.runs()) > 3, "the first runs")
    return pool, jobs


# -- cut connections


@pytest.mark.parametrize("streams", [ALONE, SHARED], ids=["alone", "shared"])
@pytest.mark.parametrize(
    "cuts", [20, pytest.param(200, marks=[pytest.mark.torture, pytest.mark.timeout(900)])], ids=["few", "many"]
)
def test_connections_that_are_cut_cost_nothing(
    make_estate_on: Make, dice: Random, cuts: int, streams: dict[str, dict[str, Any]]
) -> None:
    server, estate = make_estate_on(streams)
    pool, jobs = under_load(estate, 40)
    left = cuts
    with person_at(server) as person:
        while left:
            if estate.finished(jobs[-10])():
                jobs += estate.send_many(40, do="sleep", seconds=0.02)
            pids = [pid for (pid,) in person.execute(f"SELECT pid {EVERYBODY}")]
            if pids:
                person.execute("SELECT pg_terminate_backend(%s)", (dice.choice(pids),))
                left -= 1
            threading.Event().wait(dice.uniform(0.02, 0.15))
    until(estate.finished(*jobs), "the ends", patience=90)
    assert pool.stop() == 0
    print(f"{cuts} connections were cut during {len(jobs)} jobs")
    check_untouched(estate, jobs)
    assert "Traceback" not in pool.log


# -- a server that is gone, or stands still


@needs_linux
def test_while_the_server_is_down_nothing_spins_and_afterwards_all_goes_on(make_estate_on: Make) -> None:
    server, estate = make_estate_on()
    pool, jobs = under_load(estate, 150)
    server.stop("immediate")
    until(lambda: "settling jobs" in pool.log or "claiming jobs" in pool.log, "the trouble")
    assert endure(pool, 4) < MOST_CPU
    assert len(pool.log.splitlines()) < 25
    server.start()
    until(lambda: "listening again" in pool.log, "its listening")
    until(estate.finished(*jobs), "the ends", patience=60)
    assert pool.stop() == 0
    check_untouched(estate, jobs)
    assert "Traceback" not in pool.log


@needs_linux
def test_a_server_that_stands_still_is_waited_for_without_spinning(make_estate_on: Make) -> None:
    """For longer than the ttl: nobody else is there to take over, so nothing is lost by it."""
    server, estate = make_estate_on(SHARED)
    pool, jobs = under_load(estate, 150)
    server.pause()
    until(lambda: "does not answer" in pool.log or "timeout" in pool.log, "the trouble")
    assert endure(pool, 4) < MOST_CPU
    server.resume()
    until(estate.finished(*jobs), "the ends", patience=60)
    assert pool.stop() == 0
    check_untouched(estate, jobs)
    assert "Traceback" not in pool.log


@pytest.mark.parametrize("streams", [ALONE, SHARED], ids=["alone", "shared"])
def test_a_pool_ends_in_time_although_the_server_stands_still(
    make_estate_on: Make, streams: dict[str, dict[str, Any]]
) -> None:
    """C56: the job that runs cannot be settled; it stays in flight, and the exit code says so."""
    server, estate = make_estate_on(streams, shutdown={"soft": "500ms", "hard": "1s"})
    gate = estate.folder / "gate"
    pool = estate.start()
    job = estate.send(do="wait", file=str(gate))
    until(estate.started(job), "the run")
    server.pause()
    gate.touch()
    begun = time.monotonic()
    assert pool.stop(patience=1 + 5) == 5
    print(f"stopped {time.monotonic() - begun:.1f} s after it was told to; hard is 1 s")
    assert estate.processes() == []
    server.resume()
    assert estate.check([job]) == {"cur": 1}
    assert estate.run("--burst").code == 0
    estate.check_settled([job])


# -- a server that refuses


@needs_linux
def test_a_server_that_is_read_only_for_a_while_costs_nothing(make_estate_on: Make) -> None:
    """C67: as a primary that became a standby."""
    server, estate = make_estate_on()
    pool, jobs = under_load(estate, 150)
    with person_at(server) as person:
        person.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        person.execute("SELECT pg_reload_conf()")
        until(lambda: "read-only" in pool.log, "the trouble")
        assert endure(pool, 4) < MOST_CPU
        assert len(pool.log.splitlines()) < 25
        person.execute("ALTER SYSTEM SET default_transaction_read_only = off")
        person.execute("SELECT pg_reload_conf()")
    until(estate.finished(*jobs), "the ends", patience=30)
    assert pool.stop() == 0
    check_untouched(estate, jobs)
    assert "Traceback" not in pool.log


@pytest.mark.parametrize("streams", [ALONE, SHARED], ids=["alone", "shared"])
def test_serialization_failures_and_deadlocks_are_tried_again_whole(
    make_estate_on: Make, streams: dict[str, dict[str, Any]]
) -> None:
    """Two in five transactions fail so, one of them at once and the other when it is committed."""
    server, estate = make_estate_on(streams)
    assert estate.queue.pending_count() == 0
    with person_at(server) as person:
        person.execute(FAULTS)
    jobs = estate.send_many(120, do="sleep", seconds=0.005)
    pool = estate.run("--burst", patience=90)
    assert pool.code == 0
    assert server.log().count("could not serialize access") > 20
    check_untouched(estate, jobs)
    assert "pipeline" not in pool.log


def test_locks_that_are_taken_the_wrong_way_round_delay_but_harm_nothing(make_estate_on: Make) -> None:
    """Somebody locks jobs first and their lease then, again and again: real deadlocks with a real server."""
    server, estate = make_estate_on()
    pool, jobs = under_load(estate, 200)
    until(lambda: _deadlocks(server, 40) > 0, "a deadlock")
    until(estate.finished(*jobs), "the ends", patience=60)
    assert pool.stop() == 0
    check_untouched(estate, jobs)


def _deadlocks(server: Server, rounds: int) -> int:
    """Get in the way so often; how often the server has ended a deadlock so far."""
    with person_at(server) as person:
        for _ in range(rounds):
            try:
                with person.transaction():
                    person.execute("SELECT id FROM queuekit_jobs WHERE status = 'cur' ORDER BY id DESC FOR UPDATE")
                    person.execute("SELECT pg_sleep(0.01)")
                    person.execute("UPDATE queuekit_leases SET fence = fence")
            except psycopg.errors.DeadlockDetected:
                continue
    return server.log().count("deadlock detected")
