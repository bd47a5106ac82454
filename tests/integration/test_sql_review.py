"""What goes wrong between two statements: each test stops one actor at the worst place and lets another one act there.

Nothing here waits for time: the other's act is called from inside the first one's, or a clock is moved.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import sqlalchemy as sa

from queuekit import Completion, LeaseLost, ObservationStatus, WriteFailed
from queuekit.backends.sql import claiming, schema
from queuekit.backends.sql.backend import PersistenceKitBackend
from queuekit.backends.sql.leases import FileAndRowLease
from queuekit.backends.sql.sightings import Sightings
from queuekit.backends.sql.sqlite import library
from queuekit.contract import PutAside
from queuekit.ids import JobID
from queuekit.lease import DEFAULT_TTL
from queuekit.lifecycle import State
from queuekit.testing.jobs import ids_of, make_job, make_jobs

DONE = ObservationStatus.DONE
STREAM = "encode"
TTL = 600.0
Open = Callable[[], PersistenceKitBackend]


def _opener(url: str) -> Iterator[Open]:
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(contextlib.closing(PersistenceKitBackend(url)))


@pytest.fixture
def consumer(url: str) -> Iterator[Open]:
    """Open the store once more, as another process would."""
    yield from _opener(url)


@pytest.fixture
def on_sqlite(tmp_path: Path) -> Iterator[Open]:
    yield from _opener(f"sqlite:{tmp_path}/jobs.db")


@pytest.fixture
def on_postgres(postgres_url: str) -> Iterator[Open]:
    yield from _opener(postgres_url)


def first_do(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, other: Callable[[], object]) -> None:
    """The first call of a method is preceded by somebody else's act."""
    real, todo = getattr(owner, name), [other]

    def act_between(*args: Any, **keywords: Any) -> Any:
        if todo:
            todo.pop()()
        return real(*args, **keywords)

    monkeypatch.setattr(owner, name, act_between)


def in_thread(act: Callable[[], object]) -> None:
    """Run it in another thread, to its end."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert not failed, failed


# -- sending


def test_a_job_is_accepted_although_what_had_its_id_goes_in_that_moment(
    on_postgres: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, pruner = on_postgres(), on_postgres()
    sender.write(make_job("a", payload=b"old"))
    sender.cancel("a")
    first_do(monkeypatch, sender._sender, "_check_present", lambda: pruner.prune(-60))
    sender.write(make_job("a", payload=b"new"))
    assert [each.job.payload for each in sender.drain_available(STREAM)] == [b"new"]


def test_an_error_of_the_database_has_a_cause_and_a_refused_job_has_none(consumer: Open) -> None:
    """Whoever sends knows by it whether trying again can help."""
    backend = consumer()
    backend.write(make_job("a"))
    with pytest.raises(WriteFailed) as refused:
        backend.write(make_job("a", payload=b"other"))
    assert refused.value.__cause__ is None
    with pytest.raises(WriteFailed) as refused:
        backend.write(make_job("b", extensions={"x": float("nan")}))
    assert refused.value.__cause__ is None
    backend.database.run(lambda connection: connection.execute(sa.text("DROP TABLE queuekit_jobs")))
    with pytest.raises(WriteFailed) as unwritten:
        backend.write(make_job("c"))
    assert unwritten.value.__cause__ is not None


def test_also_an_outage_that_is_known_already_is_a_cause(own_postgres: Callable[..., Any]) -> None:
    server = own_postgres()
    with server.database("outage") as url, contextlib.closing(PersistenceKitBackend(url)) as backend:
        server.stop()
        for _ in range(3):  # the later ones do not even ask the server
            with pytest.raises(WriteFailed) as unwritten:
                backend.write(make_job())
            assert unwritten.value.__cause__ is not None
        server.start()


# -- claiming


def test_what_is_claimed_just_now_by_another_thread_is_no_stray(
    consumer: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = consumer()
    backend.write(make_job("a"))
    lease = backend.lease(STREAM, TTL)
    assert lease.try_acquire()
    look = lambda: in_thread(lambda: backend.rescue_strays(STREAM, lease=lease))  # noqa: E731
    first_do(monkeypatch, backend._claimer, "book", look)
    assert ids_of(backend.drain_available(STREAM, lease=lease)) == ["a"]
    assert backend.complete_batch([Completion(JobID("a"), DONE)], lease=lease) == 1


def test_a_claim_that_failed_is_a_stray_afterwards(consumer: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = consumer()
    backend.write(make_job("a"))
    lease = backend.lease(STREAM, TTL)
    assert lease.try_acquire()
    monkeypatch.setattr(backend._claimer, "book", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        backend.drain_available(STREAM, lease=lease)
    assert backend.rescue_strays(STREAM, lease=lease) == 1


def test_a_retry_waits_for_its_time_also_where_an_earlier_one_was_due_sooner(on_postgres: Open) -> None:
    """One consumer puts a job off, another runs it when it is due and puts it off again, for longer."""
    one, other = on_postgres(), on_postgres()
    mine, theirs = (each.lease(STREAM, TTL, exclusive=False) for each in (one, other))
    assert mine.try_acquire()
    assert theirs.try_acquire()
    one.write(make_job("a"))
    one.drain_available(STREAM, lease=mine)
    one.defer("a", 1, lease=mine)
    assert ids_of(other.drain_available(STREAM, lease=theirs)) == ["a"]
    other.defer("a", 4_000_000_000_000, lease=theirs)
    assert one.drain_available(STREAM, lease=mine) == []
    assert one.tally(STREAM).retrying == 1
    wait = one.next_due(STREAM)
    assert wait is not None
    assert wait > 3600


def test_what_is_claimed_after_a_dead_one_was_given_up_outranks_its_runs(
    on_postgres: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is given up between the look at the own session and the claim."""
    dead, heir, claimer = on_postgres(), on_postgres(), on_postgres()
    its, heirs, lease = (each.lease(STREAM, TTL, exclusive=False) for each in (dead, heir, claimer))
    for each in (its, heirs, lease):
        assert each.try_acquire()
    dead.write(make_job("a"))
    dead.drain_available(STREAM, lease=its)
    first = its.run_number(1, 1)
    dead.write(make_job("b"))

    def give_up() -> None:
        silent = sa.update(schema.sessions).where(schema.sessions.c.id == its.tag).values(beat=0)
        heir.database.run(lambda connection: connection.execute(silent))
        heirs.heartbeat()

    first_do(monkeypatch, claiming, "_claiming", give_up)
    assert ids_of(claimer.drain_available(STREAM, lease=lease)) == ["a", "b"]
    assert lease.run_number(1, 1) > first


TEXTS = ["id", "physical_time", "payload", "extensions", "dossier", "priority"]


@pytest.mark.parametrize("column", TEXTS)
def test_a_text_that_is_no_text_jams_nobody(on_sqlite: Open, tmp_path: Path, column: str) -> None:
    backend = on_sqlite()
    backend.write_batch([make_job("bad"), make_job("good"), make_job("other", stream="zzz")])
    with contextlib.closing(library().module.connect(tmp_path / "jobs.db")) as connection:
        connection.execute(f"UPDATE queuekit_jobs SET {column} = CAST(x'62ff80' AS TEXT) WHERE id = 'bad'")
        connection.commit()
    claimed = ids_of(backend.drain_available(STREAM))
    assert claimed == ["good"] if column != "dossier" else ["bad", "good"]
    assert backend.in_flight_count(STREAM) == len(claimed)
    aside = [view for view in backend.jobs(set(State)) if isinstance(view, PutAside)]
    assert len(aside) == 2 - len(claimed)
    assert backend.blocked_counts(at_most=5) == ({STREAM: 1} if aside else {})
    assert backend.prune(-60) == len(aside)


def test_a_stream_whose_name_is_no_text_hides_no_other(on_sqlite: Open, tmp_path: Path) -> None:
    backend = on_sqlite()
    backend.write_batch([make_job("bad"), make_job("good", stream="zzz")])
    with contextlib.closing(library().module.connect(tmp_path / "jobs.db")) as connection:
        connection.execute("UPDATE queuekit_jobs SET stream_id = CAST(x'62ff80' AS TEXT) WHERE id = 'bad'")
        connection.commit()
    assert "zzz" in backend.streams()
    assert ids_of(backend.drain_available()) == ["good"]
    assert len([view for view in backend.jobs({State.DONE}) if isinstance(view, PutAside)]) == 1


# -- leases


def test_who_is_overtaken_between_lease_file_and_row_has_not_won(
    on_sqlite: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one stands still for longer than a ttl just there; a second one takes the file and the row."""
    slow, fast = (cast("FileAndRowLease", each.lease(STREAM, TTL)) for each in (on_sqlite(), on_sqlite()))

    def overtake() -> None:
        Path(slow._file.path).write_text(f"somebody-else\n{time.time() - 2 * TTL!r}")
        assert fast.try_acquire()

    first_do(monkeypatch, slow._database, "run", overtake)
    assert not slow.try_acquire()
    fast.verify()
    with pytest.raises(LeaseLost):
        slow.verify()


def test_an_outage_gives_no_exclusive_stream_to_one_who_shares(on_postgres: Open) -> None:
    holder, sharer = on_postgres(), on_postgres()
    assert holder.lease(STREAM, TTL).try_acquire()
    mine = sharer.lease(STREAM, TTL, exclusive=False)
    pass_time = outage(sharer, mine)
    assert not mine.try_acquire()
    pass_time(2 * TTL)
    assert mine.is_held_by_other()
    assert not mine.try_acquire()


def test_an_outage_gives_no_shared_stream_to_one_who_wants_it_all(on_postgres: Open) -> None:
    holder, other = on_postgres(), on_postgres()
    assert holder.lease(STREAM, TTL, exclusive=False).try_acquire()
    mine = other.lease(STREAM, TTL)
    pass_time = outage(other, mine)
    assert not mine.try_acquire()
    pass_time(2 * TTL)
    assert mine.is_held_by_other()
    assert not mine.try_acquire()


def test_a_silent_exclusive_holder_elsewhere_is_followed_by_one_who_shares(on_postgres: Open) -> None:
    holder, sharer = on_postgres(), on_postgres()
    held, mine = holder.lease(STREAM, TTL), sharer.lease(STREAM, TTL, exclusive=False)
    assert held.try_acquire()
    Path(holder._folder, f"{held.owner}.alive").unlink()  # as on another host: nothing can be told
    pass_time = outage(sharer, mine)
    for _ in range(8):
        assert not mine.try_acquire()
        pass_time(TTL / 4)
        if mine.try_acquire():
            break
    assert mine.fence


def outage(backend: PersistenceKitBackend, lease: Any) -> Callable[[float], None]:
    """Let time pass for one consumer, on the database's clock and on its own, without its looking."""
    passed = 0.0
    for each in ("_holders", "_sharers"):
        setattr(lease, each, Sightings(getattr(lease, each)._pause, clock=lambda: time.monotonic() + passed))
    real = backend.database.now_ms

    def pass_time(seconds: float) -> None:
        nonlocal passed
        passed += seconds
        backend.database.now_ms = real + round(passed * 1000)  # type: ignore[misc]

    return pass_time


def test_a_long_ttl_is_believed_by_who_drains_without_a_lease(on_postgres: Open) -> None:
    holder, stranger = on_postgres(), on_postgres()
    assert holder.lease(STREAM, 10 * DEFAULT_TTL).try_acquire()
    silent = sa.update(schema.leases).values(beat=schema.leases.c.beat - 2000 * int(DEFAULT_TTL))
    holder.database.run(lambda connection: connection.execute(silent))
    with pytest.raises(LeaseLost):
        stranger.drain_available(STREAM)


# -- opening, moving


def test_a_store_of_this_version_is_opened_while_somebody_writes(on_sqlite: Open, tmp_path: Path) -> None:
    on_sqlite().write(make_job("a"))
    with contextlib.closing(library().module.connect(tmp_path / "jobs.db", isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        backend = PersistenceKitBackend(f"sqlite:{tmp_path}/jobs.db", patience=0)
        with contextlib.closing(backend):
            assert backend.pending_count() == 1


def test_letting_in_is_one_transaction_of_small_statements(consumer: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server gives up a statement after some seconds, however many jobs there are."""
    from queuekit.backends.sql import transfer

    monkeypatch.setattr(transfer, "PORTION", 2)
    source, target = consumer(), consumer()
    source.write_batch(make_jobs(5))
    source.write(make_job(), due_ms=1)
    moving = target.transfer()
    views = [view for view in source.transfer().whole() if not isinstance(view, PutAside)]
    source.database.run(lambda connection: connection.execute(sa.delete(schema.jobs)))
    assert moving.take_in(views) == 6
    touched: list[int] = []
    commits: list[int] = []
    engine = target.database._engine

    def note(_: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if statement.startswith("UPDATE queuekit_jobs"):
            touched.append(cursor.rowcount)

    sa.event.listen(engine, "after_cursor_execute", note)
    sa.event.listen(engine, "commit", lambda _: commits.append(len(touched)))
    assert moving.let_in("there") == 6
    assert sum(touched) == 6
    assert max(touched) <= 2
    assert len([each for each in commits if each]) == 1
