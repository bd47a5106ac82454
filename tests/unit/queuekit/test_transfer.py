"""Moving a store, in memory: cut off at every step and gone on with, refused, undone. What holds meanwhile is checked
at each cut: no job can be had from both stores, and none is gone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from queuekit.backends.likeness import likeness
from queuekit.backends.memory import MemoryBackend, MemoryStore
from queuekit.contract import JobView, QueueBackend, Transfer
from queuekit.job import Job
from queuekit.lifecycle import State
from queuekit.status import ObservationStatus
from queuekit.testing.contract.transferring import everything, fill
from queuekit.testing.jobs import ids_of, make_job, make_jobs
from queuekit.transfer import Found, MoveRefused, Side, move, portions, undo, unfinished

METHODS = [name for name in vars(Transfer) if not name.startswith("_")]


class Cut(BaseException):
    """A kill."""


class Cutting(MemoryBackend):
    """A backend whose part in a move dies before or after its n-th call."""

    def __init__(self, store: MemoryStore, calls: Iterator[int], at: int, *, after: bool) -> None:
        super().__init__(store=store)
        self._calls, self._at, self._after = calls, at, after

    def transfer(self) -> Any:
        part = super().transfer()
        for name in METHODS:
            setattr(part, name, self._cutting(getattr(part, name)))
        return part

    def _cutting(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **keywords: Any) -> Any:
            now = next(self._calls)
            if now == self._at and not self._after:
                raise Cut
            answer = method(*args, **keywords)
            if now == self._at and self._after:
                raise Cut
            return answer

        return call


class Stores:
    """Two stores in memory, as somebody sees them who comes after a kill."""

    def __init__(self) -> None:
        self.one, self.other = MemoryStore(), MemoryStore()
        self.sides = (
            Side(name="one", backend=MemoryBackend(store=self.one)),
            Side(name="other", backend=MemoryBackend(store=self.other)),
        )

    @property
    def source(self) -> QueueBackend:
        return self.sides[0].backend

    @property
    def target(self) -> QueueBackend:
        return self.sides[1].backend

    def cut(self, at: int, *, after: bool, **options: Any) -> bool:
        """Move, and die at the `at`-th call of both stores together; whether it came so far."""
        calls = itertools.count(1)
        sides = [
            Side(name=side.name, backend=Cutting(store, calls, at, after=after))
            for side, store in zip(self.sides, (self.one, self.other), strict=True)
        ]
        try:
            move(*sides, **options)
        except Cut:
            return True
        finally:
            for store in (self.one, self.other):
                store.leases.clear()  # as the kernel frees the locks of the dead
        return False


def likenesses(backend: QueueBackend) -> list[Any]:
    return [likeness(view) for view in everything(backend.transfer())]


def claimable(backend: QueueBackend) -> set[str]:
    return {view.job.id for view in backend.jobs([State.NEW, State.LATER]) if isinstance(view, JobView)}


def anywhere(stores: Stores) -> set[str]:
    """Every job that either store has, hidden or not."""
    views = itertools.chain.from_iterable(
        itertools.chain(side.backend.transfer().whole(), side.backend.transfer().leaving()) for side in stores.sides
    )
    return {view.job.id for view in views if isinstance(view, JobView)}


@pytest.fixture
def stores() -> Stores:
    return Stores()


def test_everything_is_moved_as_it_was(stores: Stores) -> None:
    fill(stores.source)
    before, told = likenesses(stores.source), list[tuple[str, int, int]]()
    asked: list[Found] = []
    found = move(*stores.sides, agreed=lambda found: not asked.append(found), tell=lambda *step: told.append(step))
    assert found is not None
    assert (found.moved, found.streams, found.left, found.resumed) == (7, ("encode", "other"), (), False)
    assert dict(found.states) == {State.DONE: 3, State.LATER: 2, State.NEW: 2}
    assert [each.states.total() for each in asked] == [7]
    assert likenesses(stores.target) == before
    assert likenesses(stores.source) == []
    assert {step for step, _, _ in told} >= {"copying", "hiding", "verifying", "letting in", "removing files or rows"}
    assert (stores.one.leases, stores.other.leases) == ({}, {})
    assert (stores.one.leaving, stores.other.arriving, stores.other.origin) == ({}, {}, None)


def test_what_is_in_the_target_stays(stores: Stores) -> None:
    stores.target.write(make_job("there"))
    stores.source.write(make_job("here"))
    move(*stores.sides)
    assert ids_of(stores.target.drain_available()) == ["there", "here"]


def test_an_empty_store_is_moved(stores: Stores) -> None:
    found = move(*stores.sides)
    assert found is not None
    assert found.moved == 0
    assert stores.other.origin is None


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("keep", [False, True], ids=["removing", "keeping"])
def test_cut_off_at_any_call_it_goes_on(after: bool, keep: bool) -> None:
    for at in itertools.count(1):
        stores = Stores()
        fill(stores.source)
        before = likenesses(stores.source)
        ids = anywhere(stores)
        if not stores.cut(at, after=after, keep=keep):
            break
        assert anywhere(stores) == ids
        if not keep:
            assert not claimable(stores.source) & claimable(stores.target)
        assert move(*stores.sides, keep=keep) is not None
        assert likenesses(stores.target) == before
        assert likenesses(stores.source) == (before if keep else [])
        assert (stores.one.leaving, stores.other.arriving, stores.other.origin) == ({}, {}, None)
    assert at > 10


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_pool_started_too_early_on_either_side_does_no_harm(after: bool) -> None:
    for at in itertools.count(1):
        stores = Stores()
        jobs = make_jobs(3)
        stores.source.write_batch(jobs)
        if not stores.cut(at, after=after):
            break
        ran = work(stores.source) + work(stores.target)
        stores.source.prune(0.0)
        move(*stores.sides)
        ran += work(stores.target)
        assert sorted(ran) == sorted(ids_of(jobs)), f"cut at call {at}"
        assert work(stores.source) == []


def work(backend: QueueBackend) -> list[str]:
    """What a pool does: every job that can be had, ended."""
    claimed = ids_of(backend.drain_available())
    for job_id in claimed:
        backend.complete(job_id, ObservationStatus.DONE)
    return claimed


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_cut_off_anywhere_it_can_be_undone_or_only_finished(after: bool) -> None:
    finished = 0
    for at in itertools.count(1):
        stores = Stores()
        fill(stores.source)
        before = likenesses(stores.source)
        if not stores.cut(at, after=after):
            break
        if stores.other.origin is None and stores.other.arriving:
            undo(*stores.sides)
            assert likenesses(stores.source) == before
            assert (likenesses(stores.target), stores.other.arriving) == ([], {})
        elif stores.other.origin is not None:
            finished += 1
            with pytest.raises(MoveRefused, match="only be finished"):
                undo(*stores.sides)
    assert finished > 2


def test_a_copy_of_what_the_source_has_no_more_is_dropped(stores: Stores) -> None:
    stores.target.transfer().take_in([JobView(job=make_job("pruned"), state=State.NEW)])
    stores.source.write(make_job("here"))
    move(*stores.sides)
    assert ids_of(stores.target.drain_available()) == ["here"]


def test_whoever_says_no_has_changed_nothing(stores: Stores) -> None:
    fill(stores.source)
    before = likenesses(stores.source)
    assert move(*stores.sides, agreed=lambda found: False) is None
    assert (likenesses(stores.source), likenesses(stores.target)) == (before, [])
    assert (stores.one.leaving, stores.other.arriving, stores.one.leases) == ({}, {}, {})


def test_what_the_dead_had_in_flight_is_moved_as_pending(stores: Stores) -> None:
    stores.source.write_batch(make_jobs(2))
    stores.source.drain_available(limit=1)
    found = move(*stores.sides)
    assert found is not None
    assert found.states == {State.NEW: 2}


def test_a_store_whose_stream_somebody_works_is_refused_with_his_name(stores: Stores) -> None:
    stores.source.write(make_job("j"))
    for side in stores.sides:
        lease = side.backend.lease("encode")
        assert lease.try_acquire()
        with pytest.raises(MoveRefused, match=rf"stream 'encode' of {side.name} is held by {lease.owner}"):
            move(*stores.sides)
        lease.release()
    assert stores.other.arriving == {}
    assert list(stores.one.leases) == []


def paused(stores: Stores) -> list[Side]:
    return [Side(name=side.name, backend=side.backend, paused=lambda stream: True) for side in stores.sides]


def test_a_paused_stream_is_moved_when_nothing_of_it_runs(stores: Stores) -> None:
    stores.source.write_batch(make_jobs(2))
    lease = stores.source.lease("encode")
    assert lease.try_acquire()
    (claimed,) = stores.source.drain_available("encode", 1, lease=lease)
    with pytest.raises(MoveRefused, match="still run"):
        move(*paused(stores))
    stores.source.complete(claimed.job.id, ObservationStatus.DONE, lease=lease)
    found = move(*paused(stores))
    assert found is not None
    assert found.moved == 2


def test_streams_whose_leases_have_one_name_are_moved_together(stores: Stores) -> None:
    stores.source.write_batch([make_job("j", "a.b"), make_job("k", "a_b")])
    stores.source.drain_available()
    found = move(*stores.sides)
    assert found is not None
    assert found.states == {State.NEW: 2}


def test_one_move_at_a_time(stores: Stores) -> None:
    third = Side(name="third", backend=MemoryBackend())
    stores.source.write(make_job("j"))

    def meanwhile(found: Found) -> bool:
        for sides in ((stores.sides[0], third), (third, stores.sides[1])):
            with pytest.raises(MoveRefused, match="being moved"):
                move(*sides)
        return True

    assert move(*stores.sides, agreed=meanwhile) is not None


def test_a_store_is_not_moved_to_itself(stores: Stores) -> None:
    with pytest.raises(MoveRefused, match="one store"):
        move(stores.sides[0], stores.sides[0])
    with pytest.raises(MoveRefused, match="being moved"):
        move(stores.sides[0], Side(name="another name", backend=stores.source))


def test_an_unfinished_move_from_elsewhere_is_finished_first(stores: Stores) -> None:
    third = Side(name="third", backend=MemoryBackend())
    stores.target.transfer().let_in("third")
    for sides in (stores.sides, (stores.sides[1], stores.sides[0])):
        with pytest.raises(MoveRefused, match="third"):
            move(*sides)
    move(third, stores.sides[1])
    assert move(*stores.sides) is not None


def test_one_id_for_two_jobs_is_refused(stores: Stores) -> None:
    stores.source.write_batch([make_job("j", "a"), make_job("j", "b")])
    with pytest.raises(MoveRefused, match="'j' is in one twice"):
        move(*stores.sides)
    assert claimable(stores.source) == {"j"}


def test_a_job_that_the_target_has_otherwise_is_named(stores: Stores) -> None:
    job = make_job("j")
    stores.source.write_batch([job, make_job("k")])
    stores.target.write(job)
    stores.target.cancel("j")
    with pytest.raises(Exception, match="job j"):
        move(*stores.sides)
    assert claimable(stores.source) == {"j", "k"}


class Restless(MemoryBackend):
    """A store to which jobs are sent while it is moved, as often as it is told."""

    sends = 0

    def transfer(self) -> Any:
        part = super().transfer()
        leaving = part.leaving

        def interrupted() -> Any:
            if self.sends:
                self.sends -= 1
                self.write(make_job())
            return leaving()

        setattr(part, "leaving", interrupted)  # noqa: B010
        return part


def test_what_is_sent_meanwhile_is_moved_too(stores: Stores) -> None:
    restless = Restless(store=stores.one)
    restless.write(make_job())
    restless.sends = 3
    assert move(Side(name="one", backend=restless), stores.sides[1]) is not None
    assert len(claimable(stores.target)) == 4
    assert likenesses(stores.source) == []


def test_a_store_that_never_comes_to_rest_is_refused_and_keeps_its_jobs(stores: Stores) -> None:
    restless = Restless(store=stores.one)
    restless.sends = 1000
    with pytest.raises(MoveRefused, match="stop whoever"):
        move(Side(name="one", backend=restless), stores.sides[1])
    assert claimable(stores.target) == set()
    ids = anywhere(stores)
    restless.sends = 0
    assert move(*stores.sides) is not None
    assert claimable(stores.target) == ids


def test_checkpoints_move_with_the_jobs(stores: Stores) -> None:
    stores.source.checkpoints.compare_and_swap("c", "encode", None, b"place")
    stores.source.write(make_job("j"))
    found = move(*stores.sides)
    assert found is not None
    assert found.checkpoints == 1
    assert stores.target.checkpoints.read("c", "encode") == b"place"
    assert stores.source.checkpoints.streams() == set()


def test_another_checkpoint_in_the_target_is_refused_before_anything_is_done(stores: Stores) -> None:
    stores.source.checkpoints.compare_and_swap("c", "encode", None, b"one")
    stores.target.checkpoints.compare_and_swap("c", "encode", None, b"other")
    stores.source.write(make_job("j"))
    with pytest.raises(MoveRefused, match="checkpoint 'c'"):
        move(*stores.sides)
    assert claimable(stores.source) == {"j"}


def test_what_is_kept_is_left_as_it_is_and_may_be_removed_later(stores: Stores) -> None:
    fill(stores.source)
    stores.source.checkpoints.compare_and_swap("c", "encode", None, b"place")
    before = likenesses(stores.source)
    assert move(*stores.sides, keep=True) is not None
    assert likenesses(stores.source) == likenesses(stores.target) == before
    assert stores.source.checkpoints.read("c", "encode") == b"place"
    found = move(*stores.sides)
    assert found is not None
    assert (found.moved, found.states.total()) == (0, 7)
    assert (likenesses(stores.source), likenesses(stores.target)) == ([], before)


def test_a_half_done_move_is_told_by_both_stores(stores: Stores) -> None:
    fill(stores.source)
    views = everything(stores.source.transfer())
    assert [unfinished(each) for each in (stores.source, stores.target)] == [None, None]
    stores.target.transfer().take_in(views)
    assert unfinished(stores.source) is None
    assert "from another store to here" in (unfinished(stores.target) or "")
    stores.source.transfer().hide(views, leases={})
    assert "from here to another store" in (unfinished(stores.source) or "")
    stores.target.transfer().let_in("one")
    assert "from one to here is not finished" in (unfinished(stores.target) or "")
    assert move(*stores.sides) is not None
    assert [unfinished(each) for each in (stores.source, stores.target)] == [None, None]


def view_of(job: Job) -> JobView:
    return JobView(job=job, state=State.NEW)


def test_portions_are_neither_long_nor_large() -> None:
    small = [view_of(make_job(payload=b"x")) for _ in range(2500)]
    assert [len(each) for each in portions(small)] == [1000, 1000, 500]
    large = [view_of(make_job(payload=bytes(6 * 2**20))) for _ in range(4)]
    assert [len(each) for each in portions(large)] == [3, 1]
    assert list(portions([])) == []
    assert list(itertools.chain.from_iterable(portions(small))) == small
