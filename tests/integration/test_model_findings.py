"""What exploring the model (tests/model) has found, on the real code: each test is the shortest way to the fault."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from stream_config import make_config

from queuekit import Claimed, IllegalTransition, JobNotFound, LeaseLost, QueueKit, WriteFailed
from queuekit.backends.maildir import layout
from queuekit.backends.maildir.backend import FilesystemBackend
from queuekit.ids import SessionID
from queuekit.job import Delivery
from queuekit.lease import DrainLease
from queuekit.status import ObservationStatus
from queuekit.testing.faults import FaultyOps
from queuekit.testing.jobs import ids_of, make_job
from workerpool.outcome import Result, classify
from workerpool.stream.journey import Journey

STREAM = "encode"
DONE = ObservationStatus.DONE
ID, NEXT = "a" * 32, "b" * 32  # such names tell their stream: nothing is read before the claim
JOB = make_job(ID)
CONFIG = make_config()
NAME = layout.job_filename(JOB)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
def ops() -> FaultyOps:
    return FaultyOps()


@pytest.fixture
def stuck(root: Path, ops: FaultyOps) -> FilesystemBackend:
    """The queue of the holder that is stuck in the middle of something, or whose disk fails."""
    return FilesystemBackend(root, ops=ops)


@pytest.fixture
def other(root: Path) -> FilesystemBackend:
    return FilesystemBackend(root)


def won(queue: FilesystemBackend) -> DrainLease:
    lease = queue.lease(STREAM)
    assert lease.try_acquire()
    return lease


def taken_over(queue: FilesystemBackend, stale: DrainLease) -> DrainLease:
    """As after a ttl of silence."""
    os.unlink(stale.path)
    lease = won(queue)
    queue.reclaim_in_flight(STREAM, lease=lease)
    return lease


def before_call(ops: FaultyOps, call: str, act: Callable[[], None], error: int | None = None) -> None:
    """At the first call of this name: do `act`, then fail with `error`, if any."""

    def fault(name: str, count: int) -> None:
        if name == call:
            ops.disarm()
            act()
            if error is not None:
                raise OSError(error, os.strerror(error))

    ops.arm(fault)


def files(root: Path, folder: str) -> list[str]:
    return sorted(os.listdir(root / folder))


def test_what_cannot_be_read_is_not_taken_from_the_next_holder(
    root: Path, ops: FaultyOps, stuck: FilesystemBackend, other: FilesystemBackend
) -> None:
    """Claimed by one that is stuck before it reads; brought home and claimed by the next one, it stays that one's."""
    stale = won(stuck)
    stuck.write(JOB)
    leases: list[DrainLease] = []

    def next_holder() -> None:
        leases.append(taken_over(other, stale))
        assert ids_of(other.drain_available(STREAM, lease=leases[0])) == [ID]

    before_call(ops, "read", next_holder, errno.EIO)
    with pytest.raises(LeaseLost):
        stuck.drain_available(STREAM, lease=stale)
    assert (files(root, "new"), files(root, "cur")) == ([], [NAME])
    other.complete(ID, DONE, lease=leases[0])


def test_a_second_copy_is_not_dropped_from_the_next_holders_claim(
    root: Path, ops: FaultyOps, stuck: FilesystemBackend, other: FilesystemBackend
) -> None:
    """Else the next holder, which has found that the job has ended, may find it retried at its second look, and runs
    a copy that is gone: the retried job runs twice."""
    stale = won(stuck)
    stuck.write(JOB)
    stuck.drain_available(STREAM, lease=stale)
    stuck.complete(ID, DONE, lease=stale)
    stuck.write(JOB)

    def next_holder() -> None:
        taken_over(other, stale)
        other.write(JOB)
        os.rename(root / "new" / NAME, root / "cur" / NAME)  # claimed by it, and not looked at yet

    before_call(ops, "read", lambda: before_call(ops, "stat", next_holder))  # then it looks whether it has ended
    with pytest.raises(LeaseLost):
        stuck.drain_available(STREAM, lease=stale)
    assert files(root, "cur") == [NAME]


def test_a_lost_lease_found_while_claiming_ends_the_drain(
    ops: FaultyOps, stuck: FilesystemBackend, other: FilesystemBackend
) -> None:
    """What was claimed before in the same call is somebody else's now: none of it is handed out or remembered."""
    stale = won(stuck)
    stuck.write_batch([JOB, make_job(NEXT)])

    def after_the_first() -> None:
        before_call(ops, "read", lambda: leases.append(taken_over(other, stale)), errno.EIO)

    leases: list[DrainLease] = []
    before_call(ops, "read", after_the_first)
    with pytest.raises(LeaseLost):
        stuck.drain_available(STREAM, lease=stale)
    assert len(stuck._claims) == 0
    assert ids_of(other.drain_available(STREAM, lease=leases[0])) == [ID, NEXT]


def fail_the_sync(ops: FaultyOps) -> None:
    before_call(ops, "sync_folder", lambda: None, errno.EIO)


def half_replied(stuck: FilesystemBackend, ops: FaultyOps) -> DrainLease:
    """A holder whose reply is in done/ and not acknowledged: its last sync failed. Returns its lease."""
    lease = won(stuck)
    stuck.write(JOB)
    stuck.drain_available(STREAM, lease=lease)
    fail_the_sync(ops)
    with pytest.raises(WriteFailed):
        stuck.complete(ID, DONE, lease=lease)
    return lease


def test_a_repeated_reply_does_not_end_a_retried_job_that_another_has_claimed(
    root: Path, ops: FaultyOps, stuck: FilesystemBackend, other: FilesystemBackend
) -> None:
    """Its last sync failed, a person retried the job, and a late claim of the last holder took it to cur/."""
    lease = half_replied(stuck, ops)
    other.retry(ID)
    os.rename(root / "new" / NAME, root / "cur" / NAME)
    with pytest.raises(JobNotFound):
        stuck.complete(ID, DONE, lease=lease)
    assert (files(root, "done"), files(root, "cur")) == ([], [NAME])
    assert stuck.rescue_strays(STREAM, lease=lease) == 1


def test_a_repeated_reply_does_not_make_up_a_job_that_was_removed(
    root: Path, ops: FaultyOps, stuck: FilesystemBackend, other: FilesystemBackend
) -> None:
    lease = half_replied(stuck, ops)
    assert other.prune(-60.0, stream=STREAM) == 1
    with pytest.raises(JobNotFound):
        stuck.complete(ID, DONE, lease=lease)
    assert files(root, "done") == []


def test_a_repeated_deferral_leaves_a_job_alone_that_is_in_flight_again(
    root: Path, ops: FaultyOps, stuck: FilesystemBackend, other: FilesystemBackend
) -> None:
    lease = won(stuck)
    stuck.write(JOB)
    stuck.drain_available(STREAM, lease=lease)
    fail_the_sync(ops)
    with pytest.raises(WriteFailed):
        stuck.defer(ID, 1, error="x", lease=lease)
    (later,) = files(root, "later")
    os.rename(root / "later" / later, root / "cur" / NAME)
    with pytest.raises(JobNotFound):
        stuck.defer(ID, 1, error="x", lease=lease)
    assert (files(root, "later"), files(root, "cur")) == ([], [NAME])


# -- a result that the store has not taken, and the same job claimed again


def journey_of(queue: FilesystemBackend) -> Journey:
    return Journey(QueueKit(backend=queue), CONFIG)


def claimed_again(queue: FilesystemBackend, journey: Journey, lease: DrainLease) -> Claimed:
    (again,) = queue.drain_available(STREAM, lease=lease)
    journey.claimed([again])
    return again


def in_trouble(ops: FaultyOps, journey: Journey, lease: DrainLease) -> None:
    fail_the_sync(ops)
    with pytest.raises(WriteFailed):
        journey.carry_out(lease)
    assert journey.waiting == 1


def test_the_result_of_an_earlier_run_does_not_end_the_retried_job(ops: FaultyOps, stuck: FilesystemBackend) -> None:
    """The reply's last sync failed; before it was repeated a person retried the job, and it was claimed again."""
    lease, journey = won(stuck), journey_of(stuck)
    stuck.write(JOB)
    journey.ended(stuck.drain_available(STREAM, lease=lease)[0], classify(None))
    in_trouble(ops, journey, lease)
    stuck.retry(ID)
    claimed_again(stuck, journey, lease)
    journey.carry_out(lease)
    assert journey.waiting == 0
    assert ids_of(stuck.in_flight()) == [ID]
    assert stuck.signal(ID) is None


def test_the_failure_of_an_earlier_run_does_not_put_off_the_next_one(ops: FaultyOps, stuck: FilesystemBackend) -> None:
    """The deferral's last sync failed; before it was repeated the job was due, and it was claimed again."""
    lease, journey = won(stuck), journey_of(stuck)
    stuck.write(JOB)
    journey.ended(stuck.drain_available(STREAM, lease=lease)[0], Result.failed("boom"))
    in_trouble(ops, journey, lease)
    stuck.release(ID)
    again = claimed_again(stuck, journey, lease)
    assert Delivery.of(again.job).attempt == 1
    journey.carry_out(lease)
    assert ids_of(stuck.in_flight()) == [ID]
    stuck.complete(ID, DONE, lease=lease)


def test_the_result_of_another_job_with_the_same_id_is_kept(ops: FaultyOps, stuck: FilesystemBackend) -> None:
    lease, journey = won(stuck), journey_of(stuck)
    stuck.write(JOB)
    journey.ended(stuck.drain_available(STREAM, lease=lease)[0], classify(None))
    in_trouble(ops, journey, lease)
    namesake = Claimed(job=make_job(ID), session_id=SessionID.mint())
    journey.claimed([namesake])
    assert journey.waiting == 1


# -- power cuts, where the folders reach the disk each in its own time


class Diary(FaultyOps):
    """Writes down which folder was synced, and from which a file was unlinked."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[tuple[str, str]] = []
        self.folders: dict[int, str] = {}

    def _say(self, verb: str, folder: int) -> None:
        self.said.append((verb, self.folders.get(folder, "")))

    def sync_folder(self, folder: int) -> None:
        self._say("sync", folder)
        super().sync_folder(folder)

    def unlink(self, folder: int, name: str) -> None:
        self._say("unlink", folder)
        super().unlink(folder, name)


@pytest.fixture
def diary() -> Diary:
    return Diary()


@pytest.fixture
def told(root: Path, diary: Diary) -> FilesystemBackend:
    queue = FilesystemBackend(root, ops=diary)
    mount = queue._mount
    diary.folders = {
        mount.new: "new",
        mount.cur: "cur",
        mount.done: "done",
        mount.later: "later",
        mount.intents: "retry",
    }
    return queue


def deferred_with_a_copy(queue: FilesystemBackend, root: Path, copy: str) -> None:
    """A job in later/, due, and a copy of it that another producer has just renamed into place, not synced yet."""
    queue.write(JOB)
    os.rename(root / "new" / NAME, root / "later" / layout.later_filename(NAME, 1, retry=True))
    queue.write(JOB)
    os.rename(root / "new" / NAME, root / copy / NAME)


def since_begun(diary: Diary, act: Callable[[], object]) -> list[tuple[str, str]]:
    diary.said.clear()
    act()
    return diary.said


def comes_before(said: list[tuple[str, str]], first: tuple[str, str], second: tuple[str, str]) -> bool:
    return said.index(first) < said.index(second)


def test_a_promotion_drops_a_deferred_copy_when_the_pending_one_is_on_disk(
    root: Path, diary: Diary, told: FilesystemBackend
) -> None:
    deferred_with_a_copy(told, root, "new")
    said = since_begun(diary, lambda: told.drain_available(STREAM, 1))
    assert comes_before(said, ("sync", "new"), ("unlink", "later"))


def test_run_now_drops_a_deferred_copy_when_the_pending_one_is_on_disk(
    root: Path, diary: Diary, told: FilesystemBackend
) -> None:
    """It arrives when the deferred one has just been found."""
    told.write(JOB)
    os.rename(root / "new" / NAME, root / "later" / layout.later_filename(NAME, 1, retry=True))
    before_call(diary, "move_new", lambda: FilesystemBackend(root).write(JOB))
    said = since_begun(diary, lambda: told.run_now(ID))
    assert comes_before(said, ("sync", "new"), ("unlink", "later"))


@pytest.mark.parametrize("copy", ["cur", "done"])
def test_a_cancel_drops_a_copy_when_the_other_one_is_on_disk(
    root: Path, diary: Diary, told: FilesystemBackend, copy: str
) -> None:
    deferred_with_a_copy(told, root, copy)
    (root / "done" / layout.signal_filename(ID)).write_bytes(b"{}")

    def cancel() -> None:
        with pytest.raises(IllegalTransition):
            told.cancel(ID)

    assert comes_before(since_begun(diary, cancel), ("sync", copy), ("unlink", "later"))


def test_an_intent_goes_when_it_is_on_disk_where_the_job_has_gone(
    root: Path, diary: Diary, told: FilesystemBackend, ops: FaultyOps, stuck: FilesystemBackend
) -> None:
    """A retry killed after the job went to new/: without a sync of done/ a power cut could bring the job back there,
    without its signal and, by then, without the intent."""
    stuck.write(JOB)
    stuck.drain_available(STREAM)
    stuck.complete(ID, DONE)

    def die() -> None:
        raise KeyboardInterrupt

    before_call(ops, "move", lambda: before_call(ops, "move", lambda: before_call(ops, "sync_folder", die)))
    with pytest.raises(KeyboardInterrupt):
        stuck.retry(ID)
    assert (files(root, "new"), files(root, ".workerpool/retry")) == ([NAME], [NAME])
    said = since_begun(diary, lambda: told.finish_intents(STREAM))
    assert files(root, ".workerpool/retry") == []
    assert comes_before(said, ("sync", "new"), ("unlink", "retry"))
    assert comes_before(said, ("sync", "done"), ("unlink", "retry"))
