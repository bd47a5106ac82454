"""Moves between stores on a disk and in databases: whatever a job says, wherever it goes, whoever dies on the way."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import itertools
import os
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from children import in_child
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from queuekit import (
    DrainLease,
    FilesystemBackend,
    MemoryBackend,
    PersistenceKitBackend,
    QueueError,
    QueueKit,
    WriteFailed,
)
from queuekit.backends.likeness import likeness
from queuekit.contract import JobView, QueueBackend
from queuekit.job import Delivery, Job
from queuekit.lifecycle import State
from queuekit.status import ObservationStatus
from queuekit.testing import strategies
from queuekit.testing.contract.transferring import everything, fill
from queuekit.testing.faults import DIED, FaultyOps
from queuekit.testing.jobs import ids_of, make_job, make_jobs
from queuekit.transfer import Found, MoveRefused, Side, move

CHANGING = {"make_folder", "create", "write", "move", "move_new", "unlink"}


def likenesses(backend: QueueBackend) -> list[Any]:
    return [likeness(view) for view in everything(backend.transfer())]


def moved(source: str, target: str, **options: Any) -> Found:
    """Move between two stores that are opened for just that."""
    with QueueKit.open(source) as one, QueueKit.open(target) as other:
        found = move(Side(name=source, backend=one.backend), Side(name=target, backend=other.backend), **options)
    assert found is not None
    return found


@pytest.fixture
def ring(tmp_path: Path, postgres_url: str) -> list[str]:
    """Stores of each kind, and back to the first kind."""
    return [f"dir:{tmp_path}/first", f"sqlite:{tmp_path}/jobs.db", postgres_url, f"dir:{tmp_path}/last"]


def test_from_store_to_store_nothing_changes(ring: list[str]) -> None:
    with QueueKit.open(ring[0]) as first:
        fill(first.backend)
        first.backend.checkpoints.compare_and_swap("c", "encode", None, b"\0place")
        before = likenesses(first.backend)
    for source, target in itertools.pairwise(ring):
        found = moved(source, target)
        assert (found.moved, found.checkpoints, found.left) == (7, 1, ())
        with QueueKit.open(source) as left, QueueKit.open(target) as reached:
            assert likenesses(reached.backend) == before
            assert likenesses(left.backend) == []
            assert left.backend.checkpoints.streams() == set()
    with QueueKit.open(ring[-1]) as last:
        assert last.backend.checkpoints.read("c", "encode") == b"\0place"
        assert ids_of(last.drain()) == ["again", "pending"]
        last.retry("well")
        assert ids_of(last.drain()) == ["well"]


def test_thousands_are_moved_in_portions_and_in_order(ring: list[str]) -> None:
    jobs = make_jobs(2500)
    with QueueKit.open(ring[0]) as first:
        first.send_batch(jobs)
    told: list[tuple[str, int, int]] = []
    for source, target in itertools.pairwise(ring):
        moved(source, target, tell=lambda *step: told.append(step))
    assert [done for step, done, _ in told if step == "copying"] == [1000, 2000, 2500] * 3
    with QueueKit.open(ring[-1]) as last:
        assert ids_of(last.drain()) == ids_of(jobs)


@st.composite
def views(draw: st.DrawFn) -> list[JobView]:
    """Jobs of any content in any state, as one store could have them: each id once."""
    found: dict[str, JobView] = {}
    for job in draw(st.lists(strategies.jobs(), max_size=5)):
        state = draw(st.sampled_from([State.NEW, State.LATER, State.DONE]))
        signal = draw(strategies.signals()) if state is State.DONE and draw(st.booleans()) else None
        dossier = draw(
            st.none() | st.dictionaries(st.text(max_size=5), strategies.json_values(), min_size=1, max_size=3)
        )
        found[job.id] = JobView(
            job=Delivery(attempt=draw(st.integers(0, 3)), errors=("é\n\0",)).onto(job),
            state=state,
            due_ms=draw(st.integers(0, 2**53)) if state is State.LATER else None,
            retry=state is State.LATER and draw(st.booleans()),
            signal=None if signal is None else _of(signal, job),
            dossier=dossier,
        )
    return list(found.values())


def _of(signal: Any, job: Job) -> Any:
    return dataclasses.replace(signal, job_id=job.id)


@settings(
    deadline=None,
    max_examples=25,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
@given(views())
def test_whatever_a_job_holds_arrives(drawn: list[JobView]) -> None:
    memory = MemoryBackend()
    memory.transfer().take_in(drawn)
    memory.transfer().let_in("drawn")
    memory.transfer().forget()
    before = likenesses(memory)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        sides = [Side(name="memory", backend=memory)]
        for url in (f"sqlite:{folder}/jobs.db", f"dir:{folder}/spool"):
            sides.append(Side(name=url, backend=stack.enter_context(QueueKit.open(url)).backend))
        for one, other in itertools.pairwise([*sides, Side(name="last", backend=MemoryBackend())]):
            move(one, other)
            assert likenesses(other.backend) == before


# -- what cannot be moved


def test_files_that_hold_no_job_stay_and_are_named(tmp_path: Path) -> None:
    spool, database = tmp_path / "spool", f"sqlite:{tmp_path}/jobs.db"
    names = [f"0001700000000000-00000000-0000000001-encode-{digit * 32}" for digit in "abc"]
    with QueueKit(spool) as queue:
        (spool / "new" / names[0]).write_bytes(b"no job")
        queue.drain("encode")  # which puts it aside
        (spool / "new" / names[1]).write_bytes(b"no job either")
        (spool / "later" / f"{4 * 10**12:016d}-r-{names[2]}").write_bytes(b"")
        queue.send(make_job("j"))
    found = moved(f"dir:{spool}", database)
    assert found.moved == 1
    assert sorted(each.name[-32:] for each in found.left) == [digit * 32 for digit in "abc"]
    assert (spool / "new" / names[1]).read_bytes() == b"no job either"
    assert moved(f"dir:{spool}", database).moved == 0


def test_a_row_that_holds_no_job_stays_and_is_named(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/jobs.db"
    with QueueKit.open(url) as queue:
        queue.send_batch([make_job("bad"), make_job("good")])
    with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        connection.execute("UPDATE queuekit_jobs SET extensions = '[' WHERE id = 'bad'")
        connection.commit()
    found = moved(url, f"dir:{tmp_path}/spool")
    assert (found.moved, [each.name for each in found.left]) == (1, ["bad"])
    with QueueKit.open(url) as queue:
        assert queue.backend.put_aside("bad") is None
        assert queue.pending_count() == 1


def test_a_folder_that_cannot_be_read_moves_nothing(tmp_path: Path) -> None:
    source = FilesystemBackend(tmp_path / "one", ops=(ops := FaultyOps()))
    source.write(make_job("j"))
    target = FilesystemBackend(tmp_path / "other")

    def fault(call: str, count: int) -> None:
        if call == "read":
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    ops.arm(fault)
    with pytest.raises(QueueError, match="Input/output"):
        move(Side(name="one", backend=source), Side(name="other", backend=target))
    ops.disarm()
    assert (source.pending_count(), target.transfer().waiting()) == (1, 0)


# -- who is killed, or meets an error, at any change of a folder


def at_change(number: int, act: Callable[[], None]) -> Callable[[str, int], None]:
    """A fault before the n-th call that changes anything, on both sides together."""
    changes = itertools.count(1)

    def fault(call: str, count: int) -> None:
        if call in CHANGING and next(changes) == number:
            act()

    return fault


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs are moved two at a time, so that a few make several portions."""
    monkeypatch.setattr("queuekit.transfer._PORTION_JOBS", 2)


def sides_of(root: Path, fault: Callable[[str, int], None] | None = None) -> tuple[Side, Side]:
    ops = FaultyOps(syncing=False)
    sides = tuple(Side(name=name, backend=FilesystemBackend(root / name, ops=ops)) for name in ("one", "other"))
    if fault is not None:
        ops.arm(fault)
    return sides[0], sides[1]


def prepared(root: Path) -> tuple[list[Any], set[str]]:
    with contextlib.closing(FilesystemBackend(root / "one", ops=FaultyOps(syncing=False))) as backend:
        fill(backend)
        before = likenesses(backend)
    return before, {view[0] for view in before}


def check(root: Path, before: list[Any], ids: set[str]) -> None:
    """Nothing may be had twice and nothing is gone; then the move goes on, and all is there as it was."""
    one, other = sides_of(root)
    claimable = [
        {view.job.id for view in side.backend.jobs([State.NEW, State.LATER]) if isinstance(view, JobView)}
        for side in (one, other)
    ]
    assert not claimable[0] & claimable[1]
    assert move(one, other) is not None
    assert likenesses(other.backend) == before
    assert likenesses(one.backend) == []
    assert left_over(root) == []
    for side in (one, other):
        side.backend.close()


def left_over(root: Path) -> list[Path]:
    """What a finished move must not leave: shelves, records without jobs."""
    shelves = [
        root / side / ".workerpool" / shelf for side in ("one", "other") for shelf in ("arriving", "arrived", "leaving")
    ]
    records = [*(root / "one" / "done").iterdir(), *(root / "one" / ".workerpool" / "jobs").iterdir()]
    return [path for path in [*shelves, *records] if path.exists()]


@pytest.mark.usefixtures("few")
def test_killed_before_any_change_of_a_folder_it_goes_on(tmp_path: Path) -> None:
    for number in itertools.count(1):
        root = tmp_path / str(number)
        before, ids = prepared(root)
        code = in_child(lambda root=root, number=number: _move_and_die(root, number))  # type: ignore[misc]
        assert code in {0, DIED}
        check(root, before, ids)
        if code == 0:
            break
    assert number > 50


def _move_and_die(root: Path, number: int) -> None:
    move(*sides_of(root, at_change(number, lambda: os._exit(DIED))))


def error_of(act: Callable[[], object]) -> str:
    """What it raises, as text; "" when it raises nothing."""
    try:
        act()
    except QueueError as error:
        return str(error)
    return ""


@pytest.mark.usefixtures("few")
def test_an_error_at_any_change_of_a_folder_is_told_and_it_goes_on(tmp_path: Path) -> None:
    def fail() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for number in itertools.count(1):
        root = tmp_path / str(number)
        before, ids = prepared(root)
        one, other = sides_of(root, at_change(number, fail))
        told = error_of(lambda one=one, other=other: move(one, other))  # type: ignore[misc]
        assert "No space left" in told or not told
        for side in (one, other):
            side.backend.close()
        check(root, before, ids)
        if not told and number > 200:
            break
    assert number > 50


# -- folders only


def test_a_job_sent_to_the_target_meanwhile_is_kept_once(tmp_path: Path) -> None:
    job, ended = make_job("j"), make_job("k")
    with QueueKit(tmp_path / "one") as one, QueueKit(tmp_path / "other") as other:
        one.send_batch([job, ended])

        def meanwhile(found: Found) -> bool:
            other.send(job)
            return True

        sides = [Side(name=name, backend=queue.backend) for name, queue in (("one", one), ("other", other))]
        move(sides[0], sides[1], agreed=meanwhile)
        assert ids_of(other.drain()) == ["j", "k"]


def test_the_record_of_a_reply_that_was_cut_off_does_not_stay_behind(tmp_path: Path) -> None:
    with QueueKit(tmp_path / "one") as one, QueueKit(tmp_path / "other") as other:
        one.send(make_job("j"))
        one.drain()
        one.reply("j", ObservationStatus.DONE)
        (name,) = [path.name for path in (tmp_path / "one" / "done").iterdir() if not path.name.endswith(".signal")]
        os.rename(tmp_path / "one" / "done" / name, tmp_path / "one" / "cur" / name)  # killed between the two renames
        sides = [Side(name=name, backend=queue.backend) for name, queue in (("one", one), ("other", other))]
        move(sides[0], sides[1])
        assert ids_of(other.drain()) == ["j"]
        assert other.backend.signal("j") is None
        assert list((tmp_path / "one" / "done").iterdir()) == []


def test_a_retry_that_was_cut_off_is_finished_first(tmp_path: Path) -> None:
    with QueueKit(tmp_path / "one") as one, QueueKit(tmp_path / "other") as other:
        one.send(make_job("j"))
        one.drain()
        one.reply("j", ObservationStatus.BLOCKED)
        done = tmp_path / "one" / "done"
        (name,) = [path.name for path in done.iterdir() if not path.name.endswith(".signal")]
        os.rename(done / "j.signal", tmp_path / "one" / ".workerpool" / "retry" / name)
        sides = [Side(name=name, backend=queue.backend) for name, queue in (("one", one), ("other", other))]
        found = move(sides[0], sides[1])
        assert found is not None
        assert found.states == {State.NEW: 1}
        view = other.backend.look_up("j")
        assert view is not None
        assert view.dossier is not None
        assert len(view.dossier["earlier_ends"]) == 1


@pytest.mark.parametrize("lease", ["workerpool_migrate", "encode"])
@pytest.mark.parametrize("at", ["first", "second"])
def test_a_lease_that_a_power_cut_has_emptied_is_waited_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lease: str, at: str
) -> None:
    """T4: nobody would ever rewrite it, and each new move looked at it only once."""
    stores = [f"dir:{tmp_path}/first", f"dir:{tmp_path}/second"]
    for store in stores:
        QueueKit.open(store).close()
    with QueueKit.open(stores[0]) as first:
        first.send(make_job())
    (tmp_path / at / f"{lease}.drain.lease").touch(0o600)
    monkeypatch.setattr(FilesystemBackend, "lease", short_lease)
    assert moved(*stores).moved == 1


def short_lease(backend: FilesystemBackend, stream: str, ttl: float = 0.1, *, exclusive: bool = True) -> DrainLease:
    return DrainLease(backend.root, stream, os.urandom(4).hex(), 0.1)


def test_a_name_too_long_for_a_folder_is_refused_with_the_job(tmp_path: Path) -> None:
    long = make_job("i" * 150, "s" * 80)
    memory = MemoryBackend()
    memory.transfer().take_in([JobView(job=long, state=State.LATER, due_ms=1)])
    memory.transfer().let_in("somewhere")
    memory.transfer().forget()
    with QueueKit(tmp_path / "spool") as queue, pytest.raises(WriteFailed, match="iii"):
        move(Side(name="memory", backend=memory), Side(name="spool", backend=queue.backend))
    assert memory.tally().scheduled == 1


# -- databases only


def test_an_id_that_the_database_has_is_refused_and_nothing_changes(url: str, tmp_path: Path) -> None:
    with QueueKit.open(url) as queue, QueueKit(tmp_path / "spool") as spool:
        queue.send(make_job("j", "other"))
        spool.send_batch([make_job("j"), make_job("k")])
        with pytest.raises(WriteFailed, match="job j"):
            move(Side(name="spool", backend=spool.backend), Side(name="database", backend=queue.backend))
        assert (queue.pending_count(), spool.pending_count()) == (1, 2)
        assert ids_of(queue.drain()) == ["j"]


def test_a_held_row_lease_is_refused_with_its_owner(url: str, tmp_path: Path) -> None:
    with contextlib.closing(PersistenceKitBackend(url)) as backend, QueueKit(tmp_path / "spool") as spool:
        backend.write(make_job("j"))
        lease = backend.lease("encode")
        assert lease.try_acquire()
        sides = Side(name="database", backend=backend), Side(name="spool", backend=spool.backend)
        with pytest.raises(MoveRefused, match=lease.owner):
            move(*sides)
        lease.release()
        assert move(*sides) is not None


def test_a_retried_send_of_a_job_that_arrives_is_no_second_job(url: str, tmp_path: Path) -> None:
    job = make_job("j")
    with QueueKit.open(url) as queue, QueueKit(tmp_path / "spool") as spool:
        spool.send(job)

        def meanwhile(found: Found) -> bool:
            queue.send(job)
            assert queue.pending_count() == 0
            return True

        sides = Side(name="spool", backend=spool.backend), Side(name="database", backend=queue.backend)
        move(*sides, agreed=meanwhile)
        assert ids_of(queue.drain()) == ["j"]
