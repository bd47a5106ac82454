"""How databases look for the rows of what a pool does all the time: by an index that leads to just these rows.

The statements are overheard while the verbs run, then the database is asked how it would carry them out: with no
statistics, with those of an almost empty table (and since then there are many rows), and with those of many rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from queuekit.backends.sql.backend import PersistenceKitBackend
from queuekit.completion import Completion
from queuekit.contract import Lease
from queuekit.job import Claimed
from queuekit.status import ObservationStatus
from queuekit.testing.jobs import make_job

ROWS = 4000  # of each status, and some in flight
STREAMS = 4
MINE = "s0"
NUMBERS = {
    "sqlite": "WITH RECURSIVE many(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM many WHERE n < :count)",
    "postgresql": "WITH many(n) AS (SELECT generate_series(1, :count))",
}
FILLING = """
    INSERT INTO queuekit_jobs (id, stream_id, physical_time, logical_count, node_id, status, payload, extensions,
        signal_status, completed_at, not_before, deferral)
    {numbers} SELECT :status || n, 's' || (n % :streams), n, 0, 1, :status, CAST('x' AS {bytes}), '{{}}',
        CASE WHEN :status = 'done' THEN 'done' END, CASE WHEN :status = 'done' THEN n END,
        CASE WHEN :status = 'later' THEN 4000000000000 + n END, CASE WHEN :status = 'later' THEN 's' END
    FROM many"""
PENDING, DEFERRED = "idx_queuekit_pending", "idx_queuekit_deferred"
ENDED, UNDATED = "idx_queuekit_ended", "idx_queuekit_undated"
KEY = {"sqlite": "sqlite_autoindex_queuekit_jobs_1", "postgresql": "queuekit_jobs_pkey"}


def do(queue: PersistenceKitBackend, statement: str) -> None:
    queue.database.run(lambda connection: connection.exec_driver_sql(statement).close())


def fill(queue: PersistenceKitBackend, count: int) -> None:
    kind = "BLOB" if queue.database.scheme == "sqlite" else "bytea"
    statement = sa.text(FILLING.format(numbers=NUMBERS[queue.database.scheme], bytes=kind))

    def insert(connection: sa.Connection) -> None:
        for status in ("new", "later", "cur", "done"):
            rows = count // 100 if status == "cur" else count
            connection.execute(statement, {"count": rows, "streams": STREAMS, "status": status})

    queue.database.run(insert)


def analyze(queue: PersistenceKitBackend) -> None:
    do(queue, "ANALYZE")


def without_statistics(queue: PersistenceKitBackend) -> None:
    fill(queue, ROWS)


def with_those_of_one_row(queue: PersistenceKitBackend) -> None:
    queue.write(make_job("first", MINE))
    analyze(queue)
    fill(queue, ROWS)


def with_those_of_many_rows(queue: PersistenceKitBackend) -> None:
    fill(queue, ROWS)
    analyze(queue)


def with_those_of_an_empty_backlog(queue: PersistenceKitBackend) -> None:
    """Everything had ended when the database looked."""
    fill(queue, ROWS)
    do(queue, "UPDATE queuekit_jobs SET status='done'")
    analyze(queue)
    do(queue, "DELETE FROM queuekit_jobs")
    fill(queue, ROWS)


def with_those_of_one_stream(queue: PersistenceKitBackend) -> None:
    """Everything was pending, of one stream."""
    fill(queue, ROWS)
    do(queue, "UPDATE queuekit_jobs SET status='new', stream_id='s0'")
    analyze(queue)
    do(queue, "DELETE FROM queuekit_jobs")
    fill(queue, ROWS)


KNOWLEDGE = [
    without_statistics,
    with_those_of_one_row,
    with_those_of_many_rows,
    with_those_of_an_empty_backlog,
    with_those_of_one_stream,
]
CASES = [
    (scheme, knowledge)
    for scheme in KEY
    for knowledge in KNOWLEDGE
    if (scheme, knowledge) != ("sqlite", with_those_of_one_row)  # only a person's ANALYZE makes SQLite believe so
]


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}, {case[1].__name__}")
def backend(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[PersistenceKitBackend]:
    """A store of many rows, of which its database knows what it knows."""
    scheme, knowledge = request.param
    queue = PersistenceKitBackend(
        f"sqlite:{tmp_path}/jobs.db" if scheme == "sqlite" else request.getfixturevalue("postgres_url")
    )
    if scheme == "postgresql":
        do(queue, "ALTER TABLE queuekit_jobs SET (autovacuum_enabled = off)")  # it is not to learn more meanwhile
    knowledge(queue)
    yield queue
    queue.close()


class Overheard:
    """The statements that touch jobs, of one verb after the other, and how the database would carry them out."""

    def __init__(self, queue: PersistenceKitBackend) -> None:
        self.key = KEY[queue.database.scheme]
        self._database = queue.database
        self._said: list[tuple[str, Any]] = []
        queue.pending_count()  # there is an engine from now on
        engine = queue.database._engine
        assert engine is not None
        event.listen(engine, "before_cursor_execute", self._note)

    def _note(self, _c: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool) -> None:
        if "queuekit_jobs" in statement:
            self._said.append((statement, parameters[0] if many else parameters))

    def plans(self, verb: Callable[[], Any]) -> list[str]:
        """How each statement of a verb would be carried out."""
        self._said.clear()
        verb()
        said = list(self._said)
        print(*(line for each in said for line in each), sep="\n")
        assert said
        return self._database.run(lambda connection: [self._explain(connection, *each) for each in said])

    def _explain(self, connection: sa.Connection, statement: str, parameters: Any) -> str:
        if self._database.scheme == "sqlite":
            rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
            lines = [row[3] for row in rows]
        else:
            rows = connection.exec_driver_sql(f"EXPLAIN {statement}", parameters)
            lines = [row[0] for row in rows]
        return "\n".join([statement, *lines])


def indices(plan: str) -> set[str]:
    """Those by which a plan finds jobs; `all` for one that goes through the table, or sorts what it has found."""
    words = plan.replace(",", " ").split()
    found = {
        word for word in words if word.startswith(("idx_", "sqlite_autoindex_queuekit_jobs", "queuekit_jobs_pkey"))
    }
    lines = [line.strip(" ->") for line in plan.splitlines()]
    scans = ("Seq Scan on queuekit_jobs", "SCAN queuekit_jobs\n")
    return found | {"all" for line in lines if f"{line}\n".startswith(scans)}


@pytest.fixture
def overheard(backend: PersistenceKitBackend) -> Overheard:
    return Overheard(backend)


@pytest.fixture
def lease(backend: PersistenceKitBackend) -> Iterator[Lease]:
    mine = backend.lease(MINE)
    assert mine.try_acquire()
    yield mine
    mine.release()


def test_a_claim_and_its_replies(backend: PersistenceKitBackend, overheard: Overheard, lease: Lease) -> None:
    claimed: list[Claimed] = []
    look, claim = overheard.plans(lambda: claimed.extend(backend.drain_available(MINE, 3, lease=lease)))
    assert indices(look) == {PENDING, DEFERRED}
    assert indices(claim) == {PENDING, overheard.key}
    ends = [Completion(each.job.id, ObservationStatus.DONE) for each in claimed]
    looking, ending = overheard.plans(lambda: backend.complete_batch(ends, lease=lease))
    assert (indices(looking), indices(ending)) == ({overheard.key}, {overheard.key})


def test_a_promotion(backend: PersistenceKitBackend, overheard: Overheard, lease: Lease) -> None:
    do(backend, "UPDATE queuekit_jobs SET not_before = 1 WHERE id = 'later4'")
    plans = overheard.plans(lambda: backend.drain_available(MINE, 1, lease=lease))
    expected = [{PENDING, DEFERRED}, {DEFERRED, overheard.key}, {PENDING, overheard.key}]
    assert [indices(plan) for plan in plans if "AND queuekit_jobs.id IN (" not in plan] == expected


def test_the_next_due_time(backend: PersistenceKitBackend, overheard: Overheard) -> None:
    def ask() -> None:
        backend.look_again()
        backend.next_due(MINE)

    (plan,) = overheard.plans(ask)
    assert indices(plan) == {DEFERRED}


def test_bringing_home_goes_by_the_stream_or_by_what_is_in_flight(
    backend: PersistenceKitBackend, overheard: Overheard, lease: Lease
) -> None:
    looking, *moving = overheard.plans(lambda: backend.rescue_strays(MINE, lease=lease))
    assert indices(looking) in [{"idx_queuekit_stream"}, {"idx_queuekit_status"}, {"idx_queuekit_claim_order"}]
    assert "cur" in looking.partition("Cond")[2] or "status=?" in looking
    assert all(indices(plan) == {overheard.key} for plan in moving)


@pytest.mark.parametrize("status", [ObservationStatus.DONE, ObservationStatus.BLOCKED])
def test_a_portion_of_a_prune(
    backend: PersistenceKitBackend, overheard: Overheard, lease: Lease, status: ObservationStatus
) -> None:
    plans = overheard.plans(lambda: backend.prune(0, limit=5, stream=MINE, lease=lease, statuses=[status]))
    looking = [indices(plan) for plan in plans if plan.startswith("SELECT")]
    assert looking == [{ENDED}, {UNDATED}] * (2 if status is ObservationStatus.BLOCKED else 1)
    assert [indices(plan) for plan in plans if plan.startswith("DELETE")] == (
        [{overheard.key}] if status is ObservationStatus.DONE else []
    )


def test_what_people_ask_never_goes_through_all_rows(backend: PersistenceKitBackend, overheard: Overheard) -> None:
    for ask in (
        lambda: backend.prune(0, limit=5),
        lambda: backend.blocked_counts(at_most=100),
        lambda: backend.drain_available(None, 3),
        backend.streams,
    ):
        for plan in overheard.plans(ask):
            assert "all" not in indices(plan)
