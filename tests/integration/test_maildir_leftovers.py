"""What a death, a failing disk or another program has left lying about keeps nothing else waiting for ever."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from queuekit.backends import claims
from queuekit.backends.maildir import layout
from queuekit.backends.maildir.backend import FilesystemBackend
from queuekit.backends.maildir.fsck import examine, repair
from queuekit.errors import BackendUnavailable, JobNotFound, QueueError, WriteFailed
from queuekit.facade import QueueKit
from queuekit.job import Delivery, Job
from queuekit.lease import DrainLease
from queuekit.status import ObservationStatus
from queuekit.testing.faults import FaultyOps
from queuekit.testing.jobs import ids_of, make_job
from queuekit.wire import encode_job
from workerpool.config import StreamConfig
from workerpool.config_file import load_config
from workerpool.outcome import Result
from workerpool.stream.journey import Journey

STREAM = "encode"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
def ops() -> FaultyOps:
    return FaultyOps()


@pytest.fixture
def queue(root: Path, ops: FaultyOps) -> FilesystemBackend:
    return FilesystemBackend(root, ops=ops)


@pytest.fixture
def lease(queue: FilesystemBackend) -> DrainLease:
    lease = queue.lease(STREAM)
    assert lease.try_acquire()
    return lease


def end(queue: FilesystemBackend, lease: DrainLease, *ids: str) -> list[Job]:
    """Jobs that have ended as `blocked`."""
    jobs = [make_job(id) for id in ids]
    queue.write_batch(jobs)
    assert len(queue.drain_available(STREAM, lease=lease)) == len(jobs)
    for job in jobs:
        queue.complete(job.id, "blocked", lease=lease)
    return jobs


def intent(root: Path, job: Job) -> Path:
    return root / ".workerpool" / "retry" / layout.job_filename(job)


def cut_off(root: Path, job: Job) -> Path:
    """A retry of an ended job that was killed after its first step; its intent."""
    path = intent(root, job)
    (root / "done" / f"{job.id}.signal").rename(path)
    return path


def kept(queue: FilesystemBackend, job_id: str) -> list[str]:
    """The earlier ends in a job's dossier."""
    view = queue.look_up(job_id)
    assert view is not None
    return list((view.dossier or {}).get("earlier_ends", []))


def put_aside(root: Path) -> list[Path]:
    """What lies beside the intents."""
    return list((root / ".workerpool" / "retry").glob("unreadable-*"))


def deny(ops: FaultyOps, number: int = errno.EIO) -> Callable[[Path], None]:
    """Makes reading one name fail."""

    def fail(path: Path) -> None:
        read = FaultyOps.read

        def refusing(folder: int, name: str, limit: int) -> object:
            if name == path.name and os.path.samestat(os.fstat(folder), path.parent.stat()):
                raise OSError(number, os.strerror(number))
            return read(ops, folder, name, limit)

        ops.read = refusing  # type: ignore[method-assign, assignment]

    return fail


# -- intents that cannot be read


def garble(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.touch(0o600)
    path.write_bytes(b"?")


def empty(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.touch(0o600)


def make_huge(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.touch(0o600)
    with path.open("wb") as file:
        file.truncate(2**30)


def make_folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def make_link(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/etc/hostname")


BROKEN = [garble, empty, make_huge, make_folder, make_link]
IN_THE_DOSSIER: dict[Callable[[Path], None], list[str]] = {garble: ["?"], empty: [""]}
each_break = pytest.mark.parametrize("broken", BROKEN)


@each_break
def test_a_retry_whose_intent_cannot_be_read_goes_on(
    root: Path,
    queue: FilesystemBackend,
    lease: DrainLease,
    broken: Callable[[Path], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    (job,) = end(queue, lease, "a")
    broken(cut_off(root, job))
    assert queue.finish_intents(STREAM, lease=lease) == 1
    assert ids_of(queue.drain_available(STREAM, lease=lease)) == ["a"]
    assert not os.path.lexists(intent(root, job))
    assert kept(queue, "a") == IN_THE_DOSSIER.get(broken, [])
    assert len(put_aside(root)) == (broken not in IN_THE_DOSSIER)
    assert "cannot be read" in caplog.text
    assert queue.finish_intents(STREAM, lease=lease) == 0


@each_break
@pytest.mark.parametrize("state", ["cut off", "ended"])
def test_a_person_can_retry_a_job_whose_intent_cannot_be_read(
    root: Path, queue: FilesystemBackend, lease: DrainLease, broken: Callable[[Path], None], state: str
) -> None:
    (job,) = end(queue, lease, "a")
    if state == "cut off":
        cut_off(root, job)
    broken(intent(root, job))
    queue.retry("a")
    assert ids_of(queue.drain_available(STREAM, lease=lease)) == ["a"]
    assert not os.path.lexists(intent(root, job))
    assert len(put_aside(root)) == (broken not in IN_THE_DOSSIER)


@each_break
def test_a_job_whose_old_intent_cannot_be_read_can_be_pruned(
    root: Path, queue: FilesystemBackend, lease: DrainLease, broken: Callable[[Path], None]
) -> None:
    (job,) = end(queue, lease, "a")
    broken(intent(root, job))
    assert queue.prune(-60.0) == 1
    assert os.listdir(root / "done") == os.listdir(root / ".workerpool" / "jobs") == []
    assert not os.path.lexists(intent(root, job))


@each_break
def test_an_unreadable_intent_of_a_job_that_is_gone_is_put_aside_with_its_bytes(
    root: Path, queue: FilesystemBackend, lease: DrainLease, broken: Callable[[Path], None]
) -> None:
    path = intent(root, make_job("a"))
    broken(path)
    facts = path.lstat()
    assert queue.finish_intents(STREAM, lease=lease) == 0
    (aside,) = put_aside(root)
    assert not os.path.lexists(path)
    assert os.path.samestat(aside.lstat(), facts)
    assert aside.name.endswith(path.name)
    assert queue.finish_intents(STREAM, lease=lease) == 0
    assert put_aside(root) == [aside]


def test_an_intent_with_the_longest_name_is_put_aside(root: Path, queue: FilesystemBackend, lease: DrainLease) -> None:
    path = intent(root, make_job("x" * (255 - len(layout.job_filename(make_job(""))))))
    path.write_bytes(b"?")
    queue.finish_intents(STREAM, lease=lease)
    (aside,) = put_aside(root)
    assert aside.read_bytes() == b"?"


def test_an_intent_that_another_user_closed_is_put_aside(
    root: Path, queue: FilesystemBackend, lease: DrainLease, ops: FaultyOps
) -> None:
    (job,) = end(queue, lease, "a")
    path = cut_off(root, job)
    path.chmod(0)
    deny(ops, errno.EACCES)(path)
    assert queue.finish_intents(STREAM, lease=lease) == 1
    assert len(put_aside(root)) == 1


def test_an_unreadable_intent_of_another_stream_is_its_own_affair(
    root: Path, queue: FilesystemBackend, lease: DrainLease
) -> None:
    job = make_job("b-a", STREAM)
    twin = make_job("a", f"{STREAM}-b", at=job.submitted_at)
    assert layout.job_filename(job) == layout.job_filename(twin)
    queue.write(twin)
    queue.drain_available(twin.stream_id)
    queue.complete("a", "blocked")
    garble(cut_off(root, twin))
    assert queue.finish_intents(STREAM, lease=lease) == 0
    assert intent(root, twin).exists()
    assert queue.finish_intents(twin.stream_id) == 1


def test_one_retry_that_cannot_be_finished_now_keeps_no_other_from_it(
    root: Path, queue: FilesystemBackend, lease: DrainLease, ops: FaultyOps, caplog: pytest.LogCaptureFixture
) -> None:
    for job in end(queue, lease, "a", "b"):
        cut_off(root, job)
    deny(ops)(min((root / ".workerpool" / "retry").iterdir()))
    assert queue.finish_intents(STREAM, lease=lease) == 1
    assert ids_of(queue.drain_available(STREAM, lease=lease)) == ["b"]
    assert os.strerror(errno.EIO) in caplog.text
    del ops.read
    assert queue.finish_intents(STREAM, lease=lease) == 1


def test_a_retry_whose_job_has_become_unreadable_is_undone(
    root: Path, queue: FilesystemBackend, lease: DrainLease, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = end(queue, lease, "a", "b")
    cut_off(root, first)
    cut_off(root, second)
    name = layout.job_filename(first)
    (root / "done" / name).write_bytes(b"spoilt")
    assert queue.finish_intents(STREAM, lease=lease) == 1
    assert ids_of(queue.drain_available(STREAM, lease=lease)) == ["b"]
    assert not intent(root, first).exists()
    assert "the retry of job a is undone" in caplog.text
    assert [each.kind for each in examine(root)] == ["quarantined"]
    assert queue.prune(-60.0) == 1
    assert os.listdir(root / "done") == []


# -- fsck about them


def test_fsck_explains_an_intent_that_was_put_aside(root: Path, queue: FilesystemBackend, lease: DrainLease) -> None:
    make_huge(intent(root, make_job("a")))
    queue.finish_intents(STREAM, lease=lease)
    (found,) = [each for each in examine(root) if each.path.startswith(".workerpool/retry/")]
    assert found.kind == "intent-aside"
    assert not found.repairable


def test_fsck_finishes_a_retry_whose_intent_cannot_be_read(
    root: Path, queue: FilesystemBackend, lease: DrainLease
) -> None:
    (job,) = end(queue, lease, "a")
    garble(cut_off(root, job))
    lease.release()
    (found,) = [each for each in examine(root) if each.kind.startswith("intent")]
    assert (found.kind, found.repairable) == ("intent-unreadable", True)
    (told,) = repair(root, [found])
    assert (told.done, told.did) == (True, "the job is pending")
    assert kept(queue, "a") == ["?"]
    assert examine(root) == []


# -- pruning past what cannot be pruned


def test_one_job_that_cannot_be_pruned_keeps_no_other_from_it(
    root: Path, queue: FilesystemBackend, lease: DrainLease, ops: FaultyOps
) -> None:
    first, _ = end(queue, lease, "a", "b")
    deny(ops)(root / "done" / layout.job_filename(first))
    with pytest.raises(QueueError, match=os.strerror(errno.EIO)):
        queue.prune(-60.0, stream=STREAM, lease=lease)
    assert sorted(os.listdir(root / "done")) == [layout.job_filename(first), "a.signal"]


# -- bringing home past what cannot be read


def test_one_job_in_flight_that_the_disk_does_not_give_keeps_no_other_from_coming_home(
    root: Path, queue: FilesystemBackend, lease: DrainLease, ops: FaultyOps, caplog: pytest.LogCaptureFixture
) -> None:
    """A take-over reclaims first of all: one bad sector would keep the whole stream from being worked."""
    first, second = make_job("a"), make_job("b")
    queue.write_batch([first, second])
    queue.drain_available(STREAM, lease=lease)
    deny(ops)(root / "cur" / layout.job_filename(first))
    assert queue.reclaim_in_flight(STREAM, lease=lease) == 1
    assert os.listdir(root / "new") == [layout.job_filename(second)]
    assert os.listdir(root / "cur") == [layout.job_filename(first)]
    assert os.strerror(errno.EIO) in caplog.text
    del ops.read
    assert queue.rescue_strays(STREAM, lease=lease) == 1


def test_without_descriptors_nothing_is_passed_over(
    root: Path, queue: FilesystemBackend, lease: DrainLease, ops: FaultyOps
) -> None:
    job = make_job("a")
    queue.write(job)
    queue.drain_available(STREAM, lease=lease)
    deny(ops, errno.EMFILE)(root / "cur" / layout.job_filename(job))
    with pytest.raises(BackendUnavailable):
        queue.reclaim_in_flight(STREAM, lease=lease)


# -- quarantine, cut off


def test_a_file_put_aside_under_a_taken_name_is_put_there_once_however_often_that_was_cut_off(
    root: Path, queue: FilesystemBackend, lease: DrainLease, ops: FaultyOps
) -> None:
    (job,) = end(queue, lease, "a")
    name = layout.job_filename(job)
    bad = root / "new" / name
    bad.touch(0o600)
    bad.write_bytes(b"spoilt")

    move = ops.move

    def fail(source: int, file: str, target: int, new_name: str) -> None:
        if new_name.startswith(f"{name}.") and not new_name.endswith(".signal"):  # its signal is there already
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        move(source, file, target, new_name)

    for _ in range(2):
        ops.move = fail  # type: ignore[method-assign, assignment]
        with pytest.raises(QueueError, match=os.strerror(errno.EIO)):
            queue.drain_available(STREAM, lease=lease)
    ops.move = move  # type: ignore[method-assign]
    assert bad.read_bytes() == b"spoilt"
    lease.release()
    assert [each.kind for each in examine(root)] == ["not-a-job"]
    assert lease.try_acquire()
    queue.look_again()
    assert queue.drain_available(STREAM, lease=lease) == []
    files = set(os.listdir(root / "done")) - {name, "a.signal"}
    (aside,) = [each for each in files if not each.endswith(".signal")]
    assert files == {aside, layout.quarantine_signal_filename(aside)}
    assert queue.signal("a") is not None


def test_a_file_that_somebody_else_put_aside_first_gets_no_second_record(
    root: Path, queue: FilesystemBackend, ops: FaultyOps
) -> None:
    name = f"0000000000000001-00000000-0000000001-{STREAM}-bad"
    (root / "new" / name).write_bytes(b"{")

    def snatch(call: str, count: int) -> None:
        if call == "create":
            ops.disarm()
            other = FilesystemBackend(root)
            (root / "cur" / name).rename(root / "new" / name)
            other.drain_available(STREAM)
            other.close()

    ops.arm(snatch)
    assert queue.drain_available() == []
    assert sorted(os.listdir(root / "done")) == [name, f"{name}.signal"]
    assert os.listdir(root / "tmp") == []
    assert queue.quarantined == 0


# -- names that only another program makes


LONGEST_DEFERRABLE = 255 - len(layout.later_filename("", 0, retry=True))


def plant_long(root: Path, size: int) -> Job:
    """A pending job of another port, whose file name takes so many bytes."""
    job = make_job("x" * (size - len(layout.job_filename(make_job("")))))
    name = layout.job_filename(job)
    assert len(name) == size
    (root / "new" / name).write_bytes(encode_job(job))
    return job


@pytest.mark.parametrize("size", [layout.MAX_JOB_NAME + 1, LONGEST_DEFERRABLE])
def test_a_long_name_that_later_can_hold_is_deferred(
    root: Path, queue: FilesystemBackend, lease: DrainLease, size: int
) -> None:
    job = plant_long(root, size)
    assert ids_of(queue.drain_available(STREAM, lease=lease)) == [job.id]
    queue.defer(job.id, 1000, error="boom", lease=lease)
    (again,) = queue.drain_available(STREAM, lease=lease)
    assert Delivery.of(again.job) == Delivery(attempt=1, errors=("boom",))


@pytest.mark.parametrize("size", [LONGEST_DEFERRABLE + 1, 255])
def test_a_name_that_is_too_long_for_later_is_refused_before_anything_is_touched(
    root: Path, queue: FilesystemBackend, lease: DrainLease, size: int
) -> None:
    job = plant_long(root, size)
    queue.drain_available(STREAM, lease=lease)
    with pytest.raises(WriteFailed, match="too long") as refused:
        queue.defer(job.id, 1000, error="boom", lease=lease)
    assert refused.value.__cause__ is None  # no error of the disk: trying again cannot help
    assert os.listdir(root / "tmp") == os.listdir(root / "later") == []
    queue.complete(job.id, "blocked", lease=lease)
    queue.retry(job.id)
    assert [each.job for each in queue.drain_available(STREAM, lease=lease)] == [job]
    queue.release(job.id, lease=lease)
    queue.cancel(job.id)
    signal = queue.signal(job.id)
    assert signal is not None
    assert signal.status is ObservationStatus.BLOCKED
    assert queue.prune(-60.0) == 1


def test_a_job_that_fails_and_cannot_be_put_off_ends_blocked_and_its_stream_goes_on(root: Path) -> None:
    kit = QueueKit(root)
    lease = kit.lease(STREAM)
    assert lease.try_acquire()
    long, other = plant_long(root, 255), make_job("other")
    kit.send(other)
    journey = Journey(kit, stream_config())
    for claimed in kit.drain(STREAM, lease=lease):
        journey.ended(claimed, Result.failed("boom"))
    while journey.waiting:
        journey.carry_out(lease)
    assert (journey.counts.blocked, journey.counts.retried) == (1, 1)
    view = kit.look_up(long.id)
    assert view is not None
    assert view.signal is not None
    assert view.signal.status is ObservationStatus.BLOCKED
    dossier = dict(view.dossier or {})
    assert (dossier["cause"], dossier["errors"]) == ("cannot be put off", ["boom"])
    assert "too long" in dossier["error"]
    assert kit.backend.tally(STREAM).retrying == 1
    kit.close()


def stream_config() -> StreamConfig:
    (stream,) = load_config({"streams": {STREAM: {"handler": "h:f"}}}).streams
    return stream


# -- claims that others have settled


def test_the_book_of_claims_does_not_grow_with_what_others_reply_to(
    root: Path, queue: FilesystemBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A front that only claims, and workers that reply from processes of their own; nobody has a lease."""
    monkeypatch.setattr(claims, "KEPT", 5)
    worker = FilesystemBackend(root)
    in_work = [make_job() for _ in range(3)]
    queue.write_batch(in_work)
    queue.drain_available(STREAM)
    session = ""
    for _ in range(20):
        job = make_job()
        queue.write(job)
        (claimed,) = queue.drain_available(STREAM)
        session = claimed.session_id
        worker.complete(job.id, "done")
    book = queue._claims  # what must not grow is nowhere else to be seen
    assert len(book) <= 2 * (5 + len(in_work)) + 1
    for job in in_work:
        queue.complete(job.id, "done")
    assert queue.complete_session(session, "done") == 0


def test_a_claim_that_was_taken_away_lately_is_not_forgotten(
    root: Path, queue: FilesystemBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "KEPT", 5)
    other = FilesystemBackend(root)
    first = make_job("a")
    queue.write(first)
    queue.drain_available(STREAM)
    for _ in range(4):
        job = make_job()
        queue.write(job)
        queue.drain_available(STREAM)
        other.complete(job.id, "done")
    assert other.reclaim_in_flight(STREAM) == 1
    assert ids_of(other.drain_available(STREAM)) == ["a"]
    with pytest.raises(JobNotFound):
        queue.complete("a", "done")
    other.complete("a", "done")
