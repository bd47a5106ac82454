"""What only a store in a database has: its table shared with other ports, its migrations, and your own transactions.

Each test runs on SQLite and on PostgreSQL.
"""

from __future__ import annotations

import contextlib
import select
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from queuekit import (
    BackendUnavailable,
    IllegalTransition,
    JobNotFound,
    ObservationStatus,
    PersistenceKitBackend,
    QueueKit,
    WriteFailed,
)
from queuekit.backends.sql import schema
from queuekit.backends.sql.sqlite import library
from queuekit.contract import JobView, PutAside
from queuekit.lifecycle import State
from queuekit.testing.jobs import EPOCH_MS, FAR_MS, ids_of, make_job, make_jobs

DONE, BLOCKED = ObservationStatus.DONE, ObservationStatus.BLOCKED

PINNED = """
CREATE TABLE queuekit_jobs (
  id TEXT PRIMARY KEY, stream_id TEXT NOT NULL, physical_time BIGINT NOT NULL, logical_count BIGINT NOT NULL,
  node_id BIGINT NOT NULL, priority BIGINT NOT NULL DEFAULT 50, status TEXT NOT NULL, payload {bytes} NOT NULL,
  extensions TEXT NOT NULL, signal_status TEXT, artifacts TEXT, session_id TEXT)
"""
"""The table as another port makes it."""


@pytest.fixture
def engine(url: str) -> Iterator[sa.Engine]:
    """The store as its user's own code reaches it."""
    mine = url.replace("sqlite:", "sqlite:///").replace("postgresql:", "postgresql+psycopg:")
    engine = sa.create_engine(mine, **({"module": library().module} if url.startswith("sqlite:") else {}))
    yield engine
    engine.dispose()


@pytest.fixture
def backend(url: str) -> Iterator[PersistenceKitBackend]:
    with contextlib.closing(PersistenceKitBackend(url)) as backend:
        yield backend


def execute(engine: sa.Engine, statement: str, **values: object) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text(statement), values)


def insert_row(engine: sa.Engine, **values: object) -> None:
    """A row as another port writes it, with these columns changed."""
    row = {
        "id": "theirs",
        "stream_id": "encode",
        "physical_time": EPOCH_MS,
        "logical_count": 0,
        "node_id": -5,
        "priority": 50,
        "status": "new",
        "payload": b"p",
        "extensions": "{}",
        **values,
    }
    names = ", ".join(row)
    execute(engine, f"INSERT INTO queuekit_jobs ({names}) VALUES ({', '.join(':' + name for name in row)})", **row)


# -- the table


def test_the_table_has_the_columns_and_indices_of_the_other_ports(
    backend: PersistenceKitBackend, engine: sa.Engine
) -> None:
    inspector = sa.inspect(engine)
    columns = [column["name"] for column in inspector.get_columns("queuekit_jobs")]
    assert columns[:12] == [
        "id", "stream_id", "physical_time", "logical_count", "node_id", "priority", "status", "payload", "extensions",
        "signal_status", "artifacts", "session_id",
    ]  # fmt: skip
    assert inspector.get_pk_constraint("queuekit_jobs")["constrained_columns"] == ["id"]
    indices = {index["name"]: index["column_names"] for index in inspector.get_indexes("queuekit_jobs")}
    assert indices["idx_queuekit_status"] == ["status"]
    assert indices["idx_queuekit_claim_order"] == ["status", "physical_time", "logical_count", "node_id"]
    assert indices["idx_queuekit_stream"] == ["stream_id", "status"]


def test_a_store_of_another_port_is_taken_over_with_its_jobs(url: str, engine: sa.Engine) -> None:
    execute(engine, PINNED.format(bytes="BYTEA" if engine.dialect.name == "postgresql" else "BLOB"))
    insert_row(engine, id="pending")
    insert_row(engine, id="running", status="cur", session_id="s")
    insert_row(engine, id="ended", status="done", signal_status="done", artifacts='[{"type":"file_path","value":"/x"}]')
    insert_row(engine, id="mark", status="checkpoint", extensions='{"retainedCheckpoint":true}')
    with contextlib.closing(PersistenceKitBackend(url)) as backend:
        assert ids_of(backend.in_flight()) == ["running"]
        assert ids_of(backend.completed()) == ["ended"]
        signal = backend.signal("ended")
        assert signal is not None
        assert (signal.status, signal.artifacts[0].value) == (DONE, "/x")
        assert ids_of(backend.drain_available("encode")) == ["pending"]
        backend.complete("pending", DONE)
        assert backend.look_up("mark") is None
        assert backend.prune(0) == 2
        views = list(backend.jobs(set(State)))
        assert [view.job.id for view in views if isinstance(view, JobView)] == ["running"]
    with engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT status FROM queuekit_jobs WHERE id = 'mark'")) == "checkpoint"


def test_rows_are_as_the_other_ports_write_and_read_them(backend: PersistenceKitBackend, engine: sa.Engine) -> None:
    job = make_job("j", payload=b"\x00\xff", extensions={"b": 1, "a": "ä"}, priority=7)
    backend.write(job)
    session = backend.drain_available()[0].session_id
    with engine.connect() as connection:
        row = connection.execute(sa.text("SELECT * FROM queuekit_jobs")).one()
    at = job.submitted_at
    assert (row.physical_time, row.logical_count, row.node_id) == (at.physical_time, at.logical_count, at.node_id)
    assert (row.status, row.session_id, bytes(row.payload)) == ("cur", session, b"\x00\xff")
    assert (row.extensions, row.priority) == ('{"a":"ä","b":1}', 7)
    backend.complete("j", DONE)
    with engine.connect() as connection:
        row = connection.execute(sa.text("SELECT * FROM queuekit_jobs")).one()
    assert (row.status, row.signal_status, row.artifacts, row.session_id) == ("done", "done", "[]", session)


def test_what_is_not_due_is_out_of_the_other_ports_sight(backend: PersistenceKitBackend, engine: sa.Engine) -> None:
    backend.write(make_job("j"), due_ms=FAR_MS)
    with engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT status FROM queuekit_jobs")) not in {"new", "cur", "done"}


def test_a_newer_store_is_refused_with_the_way_out(url: str, backend: PersistenceKitBackend, engine: sa.Engine) -> None:
    execute(engine, f"UPDATE queuekit_schema SET version = {schema.VERSION + 1}")
    with pytest.raises(BackendUnavailable, match=f"version {schema.VERSION + 1}.*upgrade"):
        PersistenceKitBackend(url)


def test_migrating_twice_changes_nothing(url: str, backend: PersistenceKitBackend, engine: sa.Engine) -> None:
    backend.write(make_job("j"))
    with contextlib.closing(PersistenceKitBackend(url)) as again:
        assert ids_of(again.drain_available()) == ["j"]


# -- rows that hold no job


@pytest.mark.parametrize(
    "damage", [{"extensions": "{"}, {"extensions": '{"a":1,"a":2}'}, {"id": "a/b"}, {"stream_id": "encode", "id": ".."}]
)
def test_a_row_that_holds_no_job_is_put_aside_and_the_others_are_claimed(
    backend: PersistenceKitBackend, engine: sa.Engine, damage: dict[str, object]
) -> None:
    insert_row(engine, **damage)
    jobs = make_jobs(3)
    backend.write_batch(jobs)
    assert ids_of(backend.drain_available("encode", 1)) == ids_of(jobs[:1])
    assert ids_of(backend.drain_available("encode")) == ids_of(jobs[1:])
    shown = [view for view in backend.jobs({State.DONE}) if isinstance(view, PutAside)]
    assert [(each.stream, each.size) for each in shown] == [("encode", 1)]
    assert backend.put_aside(shown[0].name) is not None
    assert (backend.pending_count(), backend.in_flight_count()) == (0, 3)
    assert backend.completed() == []


def test_columns_of_the_wrong_type_hold_no_job(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/jobs.db"
    engine = sa.create_engine(f"sqlite:///{tmp_path}/jobs.db", module=library().module)
    with contextlib.closing(PersistenceKitBackend(url)) as backend:
        damages = [
            {"payload": "text"},
            {"priority": "high"},
            {"physical_time": 1.5},
            {"logical_count": 2**40},
            {"node_id": "x"},
        ]
        for number, damage in enumerate(damages):
            insert_row(engine, id=f"bad-{number}", **damage)
        backend.write(make_job("good"))
        assert ids_of(backend.drain_available("encode")) == ["good"]
        assert len([view for view in backend.jobs({State.DONE}) if isinstance(view, PutAside)]) == 5
    engine.dispose()


def test_an_unreadable_row_cannot_be_retried(backend: PersistenceKitBackend, engine: sa.Engine) -> None:
    insert_row(engine, extensions="{")
    assert backend.drain_available() == []
    with pytest.raises(IllegalTransition):
        backend.retry("theirs")
    assert backend.prune(0) == 1


# -- sessions


def test_a_session_of_another_consumer_can_be_ended(url: str, backend: PersistenceKitBackend) -> None:
    backend.write_batch(make_jobs(3))
    session = backend.drain_available(limit=2)[0].session_id
    with contextlib.closing(PersistenceKitBackend(url)) as other:
        assert other.complete_session(session, DONE) == 2
    assert (backend.in_flight_count(), backend.pending_count()) == (0, 1)


def test_a_row_that_somebody_deleted_is_written_again_with_its_end(
    backend: PersistenceKitBackend, engine: sa.Engine
) -> None:
    job = make_job("j", payload=b"kept")
    backend.write(job)
    lease = backend.lease("encode")
    assert lease.try_acquire()
    backend.drain_available("encode", lease=lease)
    execute(engine, "DELETE FROM queuekit_jobs")
    backend.complete("j", BLOCKED, lease=lease)
    view = backend.look_up("j")
    assert view is not None
    assert (view.job, view.signal and view.signal.status) == (job, BLOCKED)


# -- a transaction of one's own


@pytest.fixture
def notes(engine: sa.Engine) -> sa.Table:
    """A table of the user's, beside the queue's."""
    table = sa.Table("notes", sa.MetaData(), sa.Column("text", sa.Text))
    table.create(engine)
    return table


def test_jobs_and_data_are_committed_together(
    backend: PersistenceKitBackend, engine: sa.Engine, notes: sa.Table
) -> None:
    queue = QueueKit(backend=backend)
    with engine.begin() as connection:
        connection.execute(sa.insert(notes).values(text="mine"))
        job_id = queue.submit("encode", b"p", connection=connection)
        queue.send_batch(make_jobs(2), connection=connection)
        queue.send(make_job("later"), delay=3600, connection=connection)
    assert job_id in ids_of(queue.drain("encode"))
    assert queue.tally().scheduled == 1
    with engine.connect() as connection:
        assert connection.scalars(sa.select(notes.c.text)).all() == ["mine"]


def test_jobs_and_data_are_rolled_back_together(
    backend: PersistenceKitBackend, engine: sa.Engine, notes: sa.Table
) -> None:
    queue = QueueKit(backend=backend)
    with contextlib.suppress(ZeroDivisionError), engine.begin() as connection:
        connection.execute(sa.insert(notes).values(text="mine"))
        queue.submit("encode", b"p", connection=connection)
        raise ZeroDivisionError
    assert queue.pending_count() == 0
    with engine.connect() as connection:
        assert connection.scalars(sa.select(notes.c.text)).all() == []


def test_a_waiting_consumer_wakes_when_the_transaction_commits(
    backend: PersistenceKitBackend, engine: sa.Engine
) -> None:
    watcher = backend.watcher()
    try:
        watcher.read()
        with engine.begin() as connection:
            QueueKit(backend=backend).submit("encode", connection=connection)
        assert select.select([watcher], [], [], 10)[0]
        watcher.read()
    finally:
        watcher.close()
    assert backend.pending_count() == 1


def test_a_refused_job_leaves_the_transaction_to_its_owner(
    backend: PersistenceKitBackend, engine: sa.Engine, notes: sa.Table
) -> None:
    queue = QueueKit(backend=backend)
    backend.write(make_job("taken"))
    with engine.begin() as connection:
        connection.execute(sa.insert(notes).values(text="mine"))
        with pytest.raises(WriteFailed):
            queue.send(make_job("taken", payload=b"other"), connection=connection)
    with engine.connect() as connection:
        assert connection.scalars(sa.select(notes.c.text)).all() == ["mine"]
    assert backend.pending_count() == 1


def test_a_connection_to_another_kind_of_database_is_refused(backend: PersistenceKitBackend) -> None:
    queue = QueueKit(backend=backend)
    if backend.database.scheme == "sqlite":
        stranger: Any = sa.create_mock_engine("postgresql+psycopg://", print)
    else:
        stranger = sa.create_engine("sqlite://").connect()
    with pytest.raises(ValueError, match=stranger.dialect.name):
        queue.submit("encode", connection=stranger)


def test_a_connection_of_another_sqlite_library_is_refused(tmp_path: Path) -> None:
    """Closing it would drop the locks that the queue's own library holds for this process."""
    path = tmp_path / "jobs.db"
    theirs = types.ModuleType("othersqlite.dbapi2")
    theirs.__dict__.update(library().module.__dict__, __name__="othersqlite.dbapi2")
    with contextlib.closing(PersistenceKitBackend(f"sqlite:{path}")) as backend:
        engine = sa.create_engine(f"sqlite:///{path}", module=theirs)
        with engine.begin() as connection, pytest.raises(ValueError, match=rf"module={library().name}\.dbapi2"):
            QueueKit(backend=backend).submit("encode", connection=connection)
        engine.dispose()
        assert backend.pending_count() == 0


def test_a_library_behind_an_asynchronous_driver_counts(tmp_path: Path) -> None:
    """What `run_sync` hands over: its dialect has an adapter, which names the library."""
    path = tmp_path / "jobs.db"
    adapter = types.SimpleNamespace(sqlite=types.ModuleType("othersqlite"))
    adapter.sqlite.sqlite_version_info = (3, 53, 0)
    stranger: Any = types.SimpleNamespace(dialect=types.SimpleNamespace(name="sqlite", dbapi=adapter))
    with (
        contextlib.closing(PersistenceKitBackend(f"sqlite:{path}")) as backend,
        pytest.raises(ValueError, match="of othersqlite"),
    ):
        QueueKit(backend=backend).submit("encode", connection=stranger)


def test_a_job_that_has_gone_is_not_found(backend: PersistenceKitBackend, engine: sa.Engine) -> None:
    backend.write(make_job("j"))
    backend.drain_available()
    execute(engine, "DELETE FROM queuekit_jobs")
    with pytest.raises(JobNotFound):
        backend.complete("j", DONE)
