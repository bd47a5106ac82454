"""A reply looks before it writes: who may end a job, and what happens to outcomes that come too late or twice."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from queuekit.backends.maildir import layout, settle
from queuekit.backends.maildir.backend import FilesystemBackend
from queuekit.completion import Completion
from queuekit.errors import IllegalTransition, JobNotFound, LeaseLost, WriteFailed
from queuekit.hlc import HLC
from queuekit.ids import JobID
from queuekit.job import Claimed, Delivery, Job
from queuekit.lease import DrainLease
from queuekit.lifecycle import State
from queuekit.status import ObservationStatus
from queuekit.testing.faults import FaultyOps
from queuekit.testing.jobs import ids_of, make_job, make_jobs, wait_until

STREAM = "encode"
DONE = ObservationStatus.DONE


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
def ops() -> FaultyOps:
    return FaultyOps()


@pytest.fixture
def queue(root: Path, ops: FaultyOps) -> FilesystemBackend:
    return FilesystemBackend(root, ops=ops)


def won(queue: FilesystemBackend, stream: str = STREAM) -> DrainLease:
    lease = queue.lease(stream)
    assert lease.try_acquire()
    return lease


def claimed(queue: FilesystemBackend, *ids: str, lease: DrainLease | None = None) -> list[Job]:
    jobs = [make_job(id) for id in ids]
    queue.write_batch(jobs)
    assert ids_of(queue.drain_available(STREAM, lease=lease)) == list(ids)
    return jobs


def move(root: Path, source: str, target: str, job: Job, *, prefix: str = "") -> None:
    name = layout.job_filename(job)
    os.rename(root / source / name, root / target / f"{prefix}{name}")


def listing(root: Path, folder: str) -> list[str]:
    return sorted(os.listdir(root / folder))


def fail_once(ops: FaultyOps, call: str, number: int = errno.EIO, *, nth: int = 1) -> None:
    def fault(made: str, count: int) -> None:
        if made == call and ops.calls.count(call) == nth:
            raise OSError(number, os.strerror(number))

    ops.arm(fault)


# -- the order of a completion


def test_signals_are_synced_then_pairs_renamed_then_done_synced_once(queue: FilesystemBackend, ops: FaultyOps) -> None:
    lease = won(queue)
    claimed(queue, "a", "b", lease=lease)
    ops.arm()
    assert queue.complete_batch([Completion(JobID(id), DONE) for id in "ab"], lease=lease) == 2
    staged = ["create", "write", "sync_data", "close"] * 2
    assert ops.calls == [*staged, *["stat", "move", "move"] * 2, "sync_folder"]


# -- where the job is when the reply comes


@pytest.mark.parametrize("leased", [True, False], ids=["leased", "without a lease"])
@pytest.mark.parametrize(
    ("target", "prefix"), [("new", ""), ("later", f"{1:016d}-r-"), ("claim", f"{'0' * 32}-"), ("done", "")]
)
def test_a_job_that_is_elsewhere_is_left_there_and_nothing_is_written(
    root: Path, queue: FilesystemBackend, leased: bool, target: str, prefix: str
) -> None:
    lease = won(queue) if leased else None
    (job,) = claimed(queue, "a", lease=lease)
    move(root, "cur", target, job, prefix=prefix)
    with pytest.raises(JobNotFound):
        queue.complete("a", "done", lease=lease)
    with pytest.raises(JobNotFound):
        queue.complete("a", "blocked", dossier={"error": "x"}, lease=lease)
    assert listing(root, target) == [prefix + layout.job_filename(job)]
    assert listing(root, "tmp") == listing(root, ".workerpool/jobs") == []
    assert not (root / "done" / "a.signal").exists()


def test_anothers_signal_is_not_replaced(root: Path, queue: FilesystemBackend) -> None:
    (job,) = claimed(queue, "a")
    move(root, "cur", "done", job)
    (root / "done" / "a.signal").write_bytes(b"another's")
    with pytest.raises(JobNotFound):
        queue.complete("a", "done")
    assert (root / "done" / "a.signal").read_bytes() == b"another's"


def test_a_job_that_vanished_is_written_again_with_its_end(root: Path, queue: FilesystemBackend) -> None:
    lease = won(queue)
    (job,) = claimed(queue, "a", lease=lease)
    (root / "cur" / layout.job_filename(job)).unlink()
    queue.complete("a", "done", lease=lease)
    assert queue.completed() == [job]
    assert listing(root, "cur") == []


def test_a_job_that_vanished_is_not_made_up_without_a_lease(root: Path, queue: FilesystemBackend) -> None:
    (job,) = claimed(queue, "a")
    (root / "cur" / layout.job_filename(job)).unlink()
    with pytest.raises(JobNotFound):
        queue.complete("a", "done")
    assert listing(root, "done") == []


def test_a_removed_tmp_is_no_missing_job(root: Path, queue: FilesystemBackend) -> None:
    claimed(queue, "a")
    (root / "tmp").rmdir()
    queue.complete("a", "done")
    assert ids_of(queue.completed()) == ["a"]


@pytest.mark.parametrize("gone", ["done", "later", "new"])
def test_a_folder_removed_before_the_act_is_made_again(root: Path, queue: FilesystemBackend, gone: str) -> None:
    lease = won(queue)
    claimed(queue, "a", lease=lease)
    (root / gone).rmdir()
    acts = {
        "done": lambda: queue.complete("a", "done", lease=lease),
        "later": lambda: queue.defer("a", 1, lease=lease),
        "new": lambda: queue.release("a", lease=lease),
    }
    acts[gone]()
    view = queue.look_up("a")
    assert view is not None
    assert view.state == {"done": State.DONE, "later": State.LATER, "new": State.NEW}[gone]


# -- receipts


ACTS = {
    "complete": lambda queue: queue.complete("a", "done"),
    "release": lambda queue: queue.release("a"),
    "defer": lambda queue: queue.defer("a", 1),
}


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_a_zombie_does_not_touch_the_next_claim(
    root: Path, queue: FilesystemBackend, act: Callable[[FilesystemBackend], None]
) -> None:
    """F9: reclaimed and claimed again by another instance, the first one's outcome is dropped, however often."""
    claimed(queue, "a")
    other = FilesystemBackend(root)
    assert other.reclaim_in_flight(STREAM) == 1
    assert ids_of(other.drain_available(STREAM)) == ["a"]
    for _ in range(2):
        with pytest.raises((JobNotFound, IllegalTransition)):
            act(queue)
    assert listing(root, "done") == []
    other.complete("a", "done")
    assert ids_of(queue.completed()) == ["a"]


def test_a_reclaim_without_leases_waits_a_tick_of_the_kernels_clock(
    queue: FilesystemBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a claim just after it could carry the ctime of the one before."""
    waits: list[float] = []
    monkeypatch.setattr(settle.time, "sleep", waits.append)
    claimed(queue, "a")
    queue.reclaim_in_flight(STREAM)
    assert len(waits) == 1
    assert waits[0] > 0.01
    lease = won(queue)
    queue.drain_available(STREAM, lease=lease)
    queue.reclaim_in_flight(STREAM, lease=lease)
    assert len(waits) == 1


def test_a_reply_from_a_process_that_did_not_claim_is_trusted(root: Path, queue: FilesystemBackend) -> None:
    claimed(queue, "a")
    FilesystemBackend(root).complete("a", "done")
    with pytest.raises(JobNotFound):
        queue.complete("a", "done")


def test_an_id_is_the_one_inside_and_whole(queue: FilesystemBackend) -> None:
    """F2."""
    claimed(queue, "a-b", "b")
    queue.complete("b", "done")
    assert ids_of(queue.completed()) == ["b"]
    assert ids_of(queue.in_flight()) == ["a-b"]


# -- acknowledgements that failed


@pytest.mark.parametrize("leased", [True, False], ids=["leased", "without a lease"])
def test_a_reply_whose_last_sync_failed_is_known_when_it_is_repeated(
    queue: FilesystemBackend, ops: FaultyOps, leased: bool
) -> None:
    lease = won(queue) if leased else None
    claimed(queue, "a", "b", lease=lease)
    replies = [Completion(JobID(id), DONE) for id in "ab"]
    fail_once(ops, "sync_folder")
    with pytest.raises(WriteFailed):
        queue.complete_batch(replies, lease=lease)
    assert queue.complete_batch(replies, lease=lease) == 2
    assert ops.calls[-1] == "sync_folder"
    assert queue.complete_batch(replies, lease=lease) == 0


def test_a_batch_that_failed_half_way_is_counted_whole_when_it_is_repeated(
    queue: FilesystemBackend, ops: FaultyOps
) -> None:
    lease = won(queue)
    claimed(queue, "a", "b", "c", lease=lease)
    replies = [Completion(JobID(id), DONE) for id in "abc"]
    fail_once(ops, "move", errno.ENOSPC, nth=4)
    with pytest.raises(WriteFailed):
        queue.complete_batch(replies, lease=lease)
    assert ids_of(queue.in_flight()) == ["b", "c"]
    assert queue.complete_batch(replies, lease=lease) == 3


def test_another_outcome_for_a_reply_that_was_not_acknowledged_is_dropped(
    queue: FilesystemBackend, ops: FaultyOps
) -> None:
    claimed(queue, "a")
    fail_once(ops, "sync_folder")
    with pytest.raises(WriteFailed):
        queue.complete("a", "done")
    with pytest.raises(JobNotFound):
        queue.complete("a", "blocked")
    signal = queue.signal("a")
    assert signal is not None
    assert signal.status is DONE


def test_a_deferral_whose_last_sync_failed_is_known_and_counts_one_attempt(
    queue: FilesystemBackend, ops: FaultyOps
) -> None:
    claimed(queue, "a")
    fail_once(ops, "sync_folder")
    with pytest.raises(WriteFailed):
        queue.defer("a", 1, error="x")
    queue.defer("a", 1, error="x")
    (again,) = queue.drain_available(STREAM)
    assert Delivery.of(again.job) == Delivery(attempt=1, errors=("x",))


# -- jobs sent twice


def test_a_twin_of_a_job_in_flight_is_dropped(root: Path, queue: FilesystemBackend) -> None:
    (job,) = claimed(queue, "a")
    queue.write(job)
    assert queue.drain_available(STREAM) == []
    assert listing(root, "new") == []
    queue.complete("a", "done")


def test_a_twin_of_a_job_that_has_ended_is_dropped(root: Path, queue: FilesystemBackend) -> None:
    (job,) = claimed(queue, "a")
    queue.complete("a", "done")
    queue.write(job)
    assert queue.drain_available(STREAM) == []
    assert listing(root, "new") == listing(root, "cur") == []


def test_a_job_in_done_without_a_signal_does_not_count_as_ended(root: Path, queue: FilesystemBackend) -> None:
    job = make_job("a")
    queue.write(job)
    move(root, "new", "done", job)
    queue.write(job)
    assert ids_of(queue.drain_available(STREAM)) == ["a"]
    queue.complete("a", "done")
    assert queue.completed() == [job]


def test_a_signal_without_its_job_in_done_does_not_count(root: Path, queue: FilesystemBackend) -> None:
    """Killed between the two renames: not acknowledged, so it runs again and its signal is replaced."""
    claimed(queue, "a")
    (root / "done" / "a.signal").write_bytes(b"half an end")
    assert queue.reclaim_in_flight(STREAM) == 1
    assert ids_of(queue.drain_available(STREAM)) == ["a"]
    queue.complete("a", "done")
    assert queue.signal("a") is not None


@pytest.mark.parametrize("folders", [("new", "cur"), ("new", "done"), ("cur", "done")])
def test_two_names_of_one_file_become_one_job(root: Path, queue: FilesystemBackend, folders: tuple[str, str]) -> None:
    """C83: a rename between them would report success and do nothing."""
    job = make_job("a")
    queue.write(job)
    name = layout.job_filename(job)
    os.link(root / "new" / name, root / "spare")
    (root / "new" / name).unlink()
    for folder in folders:
        os.link(root / "spare", root / folder / name)
    (root / "spare").unlink()
    runs = 0
    for _ in range(3):
        contender = FilesystemBackend(root)
        lease = won(contender)
        contender.reclaim_in_flight(STREAM, lease=lease)
        for each in contender.drain_available(STREAM, lease=lease):
            runs += 1
            contender.complete(each.job.id, "done", lease=lease)
        lease.release()
    assert runs == 1
    assert (listing(root, "new"), listing(root, "cur")) == ([], [])
    assert (root / "done" / name).stat().st_nlink == 1


# -- whose job it is


def lying(root: Path, queue: FilesystemBackend) -> Job:
    """A job of stream `a` whose name looks like one of stream `a-b`."""
    job = make_job(f"b-{'0' * 32}", "a")
    queue.write(job)
    assert layout.clear_stream(layout.job_filename(job)) == "a-b"
    return job


def test_a_name_that_lies_about_its_stream_deceives_no_claim(root: Path, queue: FilesystemBackend) -> None:
    job = lying(root, queue)
    other, mine = won(queue, "a-b"), won(queue, "a")
    assert queue.drain_available("a-b", lease=other) == []
    assert ids_of(queue.drain_available("a", lease=mine)) == [job.id]


def test_a_name_that_lies_about_its_stream_deceives_no_drain_of_all(root: Path, queue: FilesystemBackend) -> None:
    job = lying(root, queue)
    assert ids_of(queue.drain_available()) == [job.id]
    queue.complete(job.id, "done")


def test_a_name_that_lies_about_its_stream_deceives_no_reclaim(root: Path, queue: FilesystemBackend) -> None:
    job = lying(root, queue)
    mine = won(queue, "a")
    queue.drain_available("a", lease=mine)
    stranger = FilesystemBackend(root)
    other = won(stranger, "a-b")
    assert stranger.reclaim_in_flight("a-b", lease=other) == 0
    assert stranger.rescue_strays("a-b", lease=other) == 0
    queue.complete(job.id, "done", lease=mine)


def test_a_strays_rescue_spares_what_is_being_claimed(root: Path, ops: FaultyOps, queue: FilesystemBackend) -> None:
    """From another thread, between the rename and the entry in the book."""
    lease = won(queue)
    queue.write(make_job("a"))
    rescued: list[list[str]] = []

    def fault(call: str, count: int) -> None:
        if call == "read" and not rescued:
            ops.disarm()
            thread = threading.Thread(target=lambda: rescued.append(queue._settler.rescue(STREAM, lease)))
            thread.start()
            thread.join()

    ops.arm(fault)
    assert ids_of(queue.drain_available(STREAM, lease=lease)) == ["a"]
    assert rescued == [[]]
    queue.complete("a", "done", lease=lease)


def test_a_claim_that_landed_after_a_take_over_is_rescued(root: Path, queue: FilesystemBackend) -> None:
    lease = won(queue)
    claimed(queue, "mine", lease=lease)
    job = make_job("stray")
    queue.write(job)
    move(root, "new", "cur", job)
    assert queue.rescue_strays(STREAM, lease=lease) == 1
    assert ids_of(queue.drain_available(STREAM, lease=lease)) == ["stray"]


def test_every_act_needs_the_lease_to_be_ours(queue: FilesystemBackend) -> None:
    lease = won(queue)
    claimed(queue, "a", "b", "c", lease=lease)
    os.unlink(lease.path)
    acts = [
        lambda: queue.complete("a", "done", lease=lease),
        lambda: queue.reclaim_in_flight(STREAM, lease=lease),
        lambda: queue.adopt("a", lease=lease),
        lambda: queue.prune(-60.0, stream=STREAM, lease=lease),
        lambda: queue.release("b", lease=lease),
        lambda: queue.defer("c", 1, lease=lease),
    ]
    queue.write(make_job("ended"))
    other = won(queue)
    assert queue.drain_available(STREAM, lease=other)
    queue.complete("ended", "done", lease=other)
    other.release()
    for act in acts:
        with pytest.raises(LeaseLost):
            act()
    assert len(queue.in_flight()) == 3


# -- retries and their intents


def test_a_retry_cut_off_after_its_intent_goes_on(root: Path, queue: FilesystemBackend) -> None:
    (job,) = claimed(queue, "a")
    queue.complete("a", "blocked")
    intent = root / ".workerpool" / "retry" / layout.job_filename(job)
    os.rename(root / "done" / "a.signal", intent)
    assert queue.prune(-60.0) == 0
    assert queue.drain_available(STREAM) == []
    lease = won(queue)
    assert queue.finish_intents(STREAM, lease=lease) == 1
    assert ids_of(queue.drain_available(STREAM, lease=lease)) == ["a"]
    assert not intent.exists()
    view = queue.look_up("a")
    assert view is not None
    assert view.dossier is not None
    assert len(view.dossier["earlier_ends"]) == 1


def test_a_retry_cut_off_can_be_asked_for_again(root: Path, queue: FilesystemBackend, ops: FaultyOps) -> None:
    claimed(queue, "a")
    queue.complete("a", "blocked")
    fail_once(ops, "create", errno.ENOSPC)
    with pytest.raises(WriteFailed):
        queue.retry("a")
    queue.retry("a")
    assert ids_of(queue.drain_available(STREAM)) == ["a"]
    assert listing(root, ".workerpool/retry") == []


def test_an_intent_left_over_after_the_job_ended_again_is_closed(root: Path, queue: FilesystemBackend) -> None:
    (job,) = claimed(queue, "a")
    queue.complete("a", "done")
    intent = root / ".workerpool" / "retry" / layout.job_filename(job)
    intent.write_bytes((root / "done" / "a.signal").read_bytes())
    assert queue.finish_intents(STREAM, lease=won(queue)) == 0
    assert not intent.exists()
    assert ids_of(queue.completed()) == ["a"]


def test_without_a_record_of_its_end_there_is_no_retry(root: Path, queue: FilesystemBackend) -> None:
    claimed(queue, "a")
    queue.complete("a", "done")
    (root / "done" / "a.signal").unlink()
    with pytest.raises(IllegalTransition):
        queue.retry("a")
    assert queue.drain_available(STREAM) == []


def test_a_prune_under_a_lease_takes_what_was_put_aside_too(root: Path, queue: FilesystemBackend) -> None:
    (root / "new" / f"0000000000000001-00000000-0000000001-{STREAM}-bad").write_bytes(b"{")
    lease = won(queue)
    assert queue.drain_available(STREAM, lease=lease) == []
    assert len(listing(root, "done")) == 2
    assert queue.prune(-60.0, stream=STREAM, lease=lease) == 1
    assert listing(root, "done") == []


# -- deferred jobs and clocks


class Clocks:
    """The wall clock (ms) and the monotonic one (s) as the deferred jobs see them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.wall, self.monotonic = 2_000_000_000_000, 500.0
        for module in ("queuekit.backends.maildir.deferred", "queuekit.clock"):
            patch.setattr(f"{module}.now_ms", lambda: self.wall)
        patch.setattr("queuekit.backends.maildir.deferred.time.monotonic", lambda: self.monotonic)


@pytest.mark.parametrize("step", [-3_600_000, 0])
def test_a_deferral_ends_on_time_although_the_clock_was_set_back(
    queue: FilesystemBackend, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    lease = won(queue)
    claimed(queue, "a", lease=lease)
    with monkeypatch.context() as patch:
        clocks = Clocks(patch)
        queue.drain_available(STREAM, lease=lease)
        queue.defer("a", clocks.wall + 10_000, lease=lease)
        clocks.wall += step
        assert queue.next_due(STREAM) == pytest.approx(10.0)
        clocks.monotonic += 9.9
        assert queue.drain_available(STREAM, lease=lease) == []
        clocks.monotonic += 0.1
        assert ids_of(queue.drain_available(STREAM, lease=lease)) == ["a"]


def test_a_clock_set_forward_makes_it_due(queue: FilesystemBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    claimed(queue, "a")
    with monkeypatch.context() as patch:
        clocks = Clocks(patch)
        queue.defer("a", clocks.wall + 10_000)
        assert queue.drain_available(STREAM) == []
        clocks.wall += 10_000
        assert ids_of(queue.drain_available(STREAM)) == ["a"]


def test_what_waits_for_others_does_not_hide_ours(queue: FilesystemBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuekit.backends.maildir.deferred._KEPT", 3)
    for number in range(10):
        queue.write(make_job(stream="other", at=HLC(number, 0, 1)), due_ms=1)
    queue.write(make_job("ours"), due_ms=2)
    assert ids_of(queue.drain_available(STREAM)) == ["ours"]
    others: list[Claimed] = []
    wait_until(lambda: others.extend(queue.drain_available("other")) or len(others) == 10)


def test_the_same_job_twice_in_later_runs_once(root: Path, queue: FilesystemBackend) -> None:
    job = make_jobs(1)[0]
    queue.write(job, due_ms=1)
    queue.write(job, due_ms=2)
    assert len(listing(root, "later")) == 2
    assert queue.drain_available(STREAM) != []
    assert queue.drain_available(STREAM) == []
    assert listing(root, "later") == listing(root, "new") == []
