"""fsck finds what is planted, says it in words, sets right what it may, loses nothing and leaves the healthy alone."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from queue_stories import FOLDER_STORIES, STORIES, Story
from test_maildir_crash import in_child, play

from queuekit.backends.maildir import layout
from queuekit.backends.maildir.backend import FilesystemBackend
from queuekit.backends.maildir.fsck import Finding, Severity, examine, repair
from queuekit.backends.maildir.fsck.finding import KINDS
from queuekit.backends.maildir.fsops import FileOps
from queuekit.completion import Completion
from queuekit.errors import BackendUnavailable, QueueError
from queuekit.hlc import HLC
from queuekit.job import Job
from queuekit.status import ObservationStatus
from queuekit.testing.faults import DIED
from queuekit.testing.jobs import FAR_MS, make_job, make_jobs
from queuekit.wire import encode_job

DONE = ObservationStatus.DONE
HEX = "0123456789abcdef" * 2
JOB = make_job(HEX, payload=b"the work")
NAME = layout.job_filename(JOB)
SIGNAL = f"done/{HEX}.signal"
LONG_AGO = 1_000_000_000


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A root with a pending, a deferred and an ended job, and nothing wrong."""
    queue = FilesystemBackend(tmp_path / "spool")
    end(queue, make_job(stream="quiet"))
    queue.write(make_job(stream="quiet"))
    queue.write(make_job(stream="quiet"), due_ms=1000)
    queue.close()
    assert examine(tmp_path / "spool") == []
    return tmp_path / "spool"


def end(queue: FilesystemBackend, job: Job) -> None:
    lease = queue.lease(job.stream_id)
    assert lease.try_acquire()
    queue.write(job)
    queue.drain_available(job.stream_id, lease=lease)
    queue.complete(job.id, DONE, lease=lease)
    lease.release()


@contextlib.contextmanager
def opened(root: Path) -> Iterator[FilesystemBackend]:
    queue = FilesystemBackend(root)
    yield queue
    queue.close()


def put(root: Path, path: str, data: bytes = b"", mode: int = 0o600) -> Path:
    file = root / path
    file.write_bytes(data)
    file.chmod(mode)
    return file


def put_job(root: Path, path: str, job: Job = JOB) -> Path:
    return put(root, path, encode_job(job))


def place(root: Path, folder: str, job: Job = JOB) -> Path:
    """The job's file, under its own name."""
    return put_job(root, f"{folder}/{layout.job_filename(job)}", job)


def ended(root: Path, job: Job = JOB) -> None:
    with opened(root) as queue:
        end(queue, job)


def unrecorded(root: Path) -> bytes:
    """The job has ended, and the record of that is taken away: here it is."""
    ended(root)
    record = (root / SIGNAL).read_bytes()
    (root / SIGNAL).unlink()
    return record


def put_intent(root: Path, data: bytes) -> None:
    put(root, f".workerpool/retry/{NAME}", data)


# -- what can be planted


def plant_open_root(root: Path) -> str:
    root.chmod(0o777)
    return "everybody can write"


def plant_link(root: Path) -> str:
    (root / "claim").rename(root.parent / "elsewhere")
    (root / "claim").symlink_to(root.parent / "elsewhere")
    return "is a link, not a folder"


def plant_file_for_folder(root: Path) -> str:
    (root / "claim").rmdir()
    put(root, "claim")
    return "is not a folder"


def plant_missing_folder(root: Path) -> str:
    (root / "claim").rmdir()
    return "there is no folder claim/"


def plant_wide_folder(root: Path) -> str:
    (root / "new").chmod(0o755)
    return "has the mode 0755"


def plant_closed_folder(root: Path) -> str:
    (root / "later").chmod(0o400)
    return "later/ is closed to its owner: its mode is 0400"


def plant_wide_files(root: Path) -> str:
    for file in (root / "new").iterdir():
        file.chmod(0o644)
    return "1 file can be read or written by group or others"


def plant_wide_claim(root: Path) -> str:
    place(root, "cur").chmod(0o644)
    return "1 file can be read or written by group or others"


def plant_foreign_owner(root: Path) -> str:
    os.chown(place(root, "new"), 12345, -1)
    return "1 file of another user than the root's owner"


def plant_foreign_root(root: Path) -> str:
    os.chown(root, 12345, -1)
    return "the root belongs to uid 12345"


def plant_pipe(root: Path) -> str:
    os.mkfifo(root / "new" / NAME, 0o600)
    return "it is a pipe, not a regular file"


def plant_folder_in_done(root: Path) -> str:
    (root / "done" / NAME).mkdir(mode=0o700)
    return "it is a folder, not a regular file"


def plant_two_links(root: Path) -> str:
    place(root, "new")
    os.link(root / "new" / NAME, root / "tmp" / "half-published")
    return f"it is the same file as new/{NAME}"


def plant_outside_link(root: Path) -> str:
    os.link(place(root, "new"), root.parent / "backup")
    return "outside of the queue"


def plant_stale_tmp(root: Path) -> str:
    os.utime(put(root, "tmp/left", b"half a j"), (LONG_AGO, LONG_AGO))
    return "left over in tmp/"


def plant_empty_job(root: Path) -> str:
    put(root, f"new/{NAME}")
    return "cannot be read as a job"


def plant_broken_claim(root: Path) -> str:
    put(root, f"cur/{NAME}", encode_job(JOB)[:40])
    return "cannot be read as a job"


def plant_broken_deferred(root: Path) -> str:
    put(root, f"later/{layout.later_filename(NAME, 1000, retry=True)}", b"\0" * 40)
    return "cannot be read as a job"


def plant_broken_foreign_claim(root: Path) -> str:
    put(root, f"claim/{HEX}-{NAME}", b"{}")
    return "cannot be read as a job"


def plant_misnamed(root: Path) -> str:
    put_job(root, f"new/{NAME}", make_job(stream="other"))
    return "whose file is called"


def plant_renamed(root: Path) -> str:
    put_job(root, "new/copy of a job")
    return f"holds job '{HEX}' of stream 'encode'"


def plant_stranger(root: Path) -> str:
    put(root, "new/README", b"hello")
    return "its name is not that of a job"


def plant_malformed_deferral(root: Path) -> str:
    put_job(root, f"later/-5-r-{NAME}")
    return "does not say when it is due"


def plant_malformed_claim(root: Path) -> str:
    place(root, "claim")
    return "under no claim's name"


def plant_twin_of_ended(root: Path) -> str:
    ended(root)
    place(root, "new")
    return f"is in 2 places: done/{NAME} and new/{NAME}"


def plant_twin_in_flight(root: Path) -> str:
    place(root, "new")
    place(root, "cur")
    return f"is in 2 places: cur/{NAME} and new/{NAME}"


def plant_twin_deferred(root: Path) -> str:
    place(root, "new")
    put_job(root, f"later/{layout.later_filename(NAME, 1000, retry=False)}")
    return "is in 2 places"


def plant_claimed_twin_of_ended(root: Path) -> str:
    ended(root)
    place(root, "cur")
    return "is in 2 places"


def plant_different_twin(root: Path) -> str:
    place(root, "cur")
    place(root, "new", dataclasses.replace(JOB, payload=b"other work"))
    return "they do not hold the same"


def plant_unrecorded_twin(root: Path) -> str:
    place(root, "new")
    place(root, "done")
    return "a file without a record of its end has its name in done/"


def plant_same_id(root: Path) -> str:
    place(root, "new")
    place(root, "new", dataclasses.replace(JOB, submitted_at=HLC(1, 0, 1)))
    return f"2 jobs have the id '{HEX}'"


def plant_long_name(root: Path) -> str:
    place(root, "new", make_job("i" * 200))
    return "222 at most"


def plant_far_due(root: Path) -> str:
    put_job(root, f"later/{layout.later_filename(NAME, FAR_MS, retry=False)}")
    return "years"


def plant_overflowing_due(root: Path) -> str:
    put_job(root, f"later/{layout.later_filename(NAME, 10**20, retry=False)}")
    return "ms after 1970"


def plant_in_flight(root: Path) -> str:
    place(root, "cur")
    return "1 job of stream 'encode' in flight, and nobody holds its lease"


def plant_foreign_claim(root: Path) -> str:
    put_job(root, f"claim/{HEX}-{NAME}")
    return "nobody holds its lease"


def plant_unrecorded(root: Path) -> str:
    unrecorded(root)
    return "without a record of its end"


def plant_unrecorded_garbage(root: Path) -> str:
    put(root, f"done/{NAME}", b"?")
    return "without a record of its end"


def plant_lone_signal(root: Path) -> str:
    ended(root)
    (root / "done" / NAME).unlink()
    return f"no folder has the job '{HEX}'"


def plant_empty_signal(root: Path) -> str:
    ended(root)
    put(root, SIGNAL)
    return "the record is empty"


def plant_broken_signal(root: Path) -> str:
    ended(root)
    put(root, SIGNAL, b'{"status":"fine"}')
    return "the record cannot be read"


def plant_foreign_signal(root: Path) -> str:
    ended(root)
    other = make_job()
    ended(root, other)
    put(root, SIGNAL, (root / f"done/{other.id}.signal").read_bytes())
    return "speaks of job"


def plant_quarantined(root: Path) -> str:
    put(root, f"new/{NAME}", b"?")
    with opened(root) as queue:
        assert queue.drain_available("encode") == []
    return "1 file that held no job put aside"


def plant_intent(root: Path) -> str:
    put_intent(root, unrecorded(root))
    return "was cut off"


def plant_late_intent(root: Path) -> str:
    ended(root)
    put_intent(root, (root / SIGNAL).read_bytes())
    return "was cut off"


def plant_broken_intent(root: Path) -> str:
    unrecorded(root)
    put_intent(root, b"?")
    return "cannot be read"


def plant_intent_aside(root: Path) -> str:
    put(root, f".workerpool/retry/{layout.aside_name(NAME, 'ab12')}", b"?")
    return "could not be read, and is kept here"


def plant_broken_dossier(root: Path) -> str:
    place(root, "new")
    put(root, f".workerpool/jobs/{HEX}.json", b"[1,")
    return "not the JSON of an object"


def plant_lone_dossier(root: Path) -> str:
    put(root, f".workerpool/jobs/{HEX}.json", b"{}")
    return f"no folder has the job '{HEX}'"


def plant_broken_checkpoint(root: Path) -> str:
    put(root, ".workerpool/checkpoints/6-encode-place", b"{}")
    return "it is no checkpoint"


def plant_strange_lease(root: Path) -> str:
    put(root, "encode.drain.lease", b"somebody")
    return "does not hold an owner and a time"


def plant_endless_lease(root: Path) -> str:
    put(root, "encode.drain.lease", b"pid-1-a\ninf")
    return "its time is inf"


def plant_dead_lease(root: Path) -> str:
    def hold() -> None:
        assert FilesystemBackend(root).lease("encode").try_acquire()

    assert in_child(hold) == 0
    return "is dead"


def plant_dead_alive_file(root: Path) -> str:
    plant_dead_lease(root)
    (root / "encode.drain.lease").unlink()
    return "no lease names it"


def plant_lease_left(root: Path) -> str:
    os.utime(put(root, ".encode.drain.lease.tmp.pid-1-a", b"pid-1-a"), (LONG_AGO, LONG_AGO))
    return "never finished"


def plant_strange_fence(root: Path) -> str:
    put(root, ".workerpool/lease/encode.fence", b"many")
    return "does not hold a number"


PLANTS: list[tuple[str, Callable[[Path], str]]] = [
    ("root-open", plant_open_root),
    ("root-owner", plant_foreign_root),
    ("folder-unfit", plant_link),
    ("folder-unfit", plant_file_for_folder),
    ("folder-missing", plant_missing_folder),
    ("folder-wide", plant_wide_folder),
    ("folder-closed", plant_closed_folder),
    ("mode-wide", plant_wide_files),
    ("mode-wide", plant_wide_claim),
    ("owner-foreign", plant_foreign_owner),
    ("not-regular", plant_pipe),
    ("not-regular", plant_folder_in_done),
    ("hard-linked", plant_two_links),
    ("hard-linked-outside", plant_outside_link),
    ("tmp-stale", plant_stale_tmp),
    ("not-a-job", plant_empty_job),
    ("not-a-job", plant_broken_claim),
    ("not-a-job", plant_broken_deferred),
    ("not-a-job", plant_broken_foreign_claim),
    ("misnamed", plant_misnamed),
    ("misnamed", plant_renamed),
    ("not-a-name", plant_stranger),
    ("malformed-later", plant_malformed_deferral),
    ("malformed-claim", plant_malformed_claim),
    ("twin", plant_twin_of_ended),
    ("twin", plant_twin_in_flight),
    ("twin", plant_twin_deferred),
    ("twin", plant_claimed_twin_of_ended),
    ("twin-different", plant_different_twin),
    ("twin-unrecorded", plant_unrecorded_twin),
    ("id-twice", plant_same_id),
    ("name-long", plant_long_name),
    ("due-far", plant_far_due),
    ("due-overflow", plant_overflowing_due),
    ("in-flight-unheld", plant_in_flight),
    ("in-flight-unheld", plant_foreign_claim),
    ("no-record", plant_unrecorded),
    ("no-record", plant_unrecorded_garbage),
    ("signal-alone", plant_lone_signal),
    ("signal-unreadable", plant_empty_signal),
    ("signal-unreadable", plant_broken_signal),
    ("signal-foreign", plant_foreign_signal),
    ("quarantined", plant_quarantined),
    ("intent-open", plant_intent),
    ("intent-open", plant_late_intent),
    ("intent-aside", plant_intent_aside),
    ("intent-unreadable", plant_broken_intent),
    ("dossier-unreadable", plant_broken_dossier),
    ("dossier-alone", plant_lone_dossier),
    ("checkpoint-unreadable", plant_broken_checkpoint),
    ("lease-unreadable", plant_strange_lease),
    ("lease-unreadable", plant_endless_lease),
    ("lease-dead", plant_dead_lease),
    ("alive-dead", plant_dead_alive_file),
    ("lease-left", plant_lease_left),
    ("fence-unreadable", plant_strange_fence),
]
ROOT_ONLY = {plant_foreign_owner, plant_foreign_root}
each_plant = pytest.mark.parametrize(("kind", "plant"), PLANTS, ids=lambda value: getattr(value, "__name__", value))


def planted(root: Path, plant: Callable[[Path], str]) -> str:
    if plant in ROOT_ONLY and os.geteuid() != 0:
        pytest.skip("only root can give files away")
    return plant(root)


def snapshot(root: Path) -> dict[str, tuple[int, bytes]]:
    """Mode and bytes of everything but the lock files."""
    found = {}
    for path in root.rglob("*"):
        if path.suffix != ".lock":
            mode = path.lstat().st_mode
            found[str(path.relative_to(root))] = (mode, path.read_bytes() if path.is_file() else b"")
    return found


def kinds(findings: list[Finding]) -> set[str]:
    return {each.kind for each in findings}


@each_plant
def test_what_is_planted_is_found_and_nothing_is_changed(kind: str, plant: Callable[[Path], str], root: Path) -> None:
    words = planted(root, plant)
    before = snapshot(root)
    found = examine(root)
    assert snapshot(root) == before
    assert words in next(each for each in found if each.kind == kind).what
    besides = {"owner-foreign"} if kind == "root-owner" else {"in-flight-unheld"}
    assert kinds(found) <= {kind, *besides}


@each_plant
def test_a_repair_loses_nothing_and_leaves_nothing_to_repair(
    kind: str, plant: Callable[[Path], str], root: Path
) -> None:
    planted(root, plant)
    found = examine(root)
    wanted = [each for each in found if each.repairable]
    bytes_before = job_bytes(root)
    told = repair(root, found)
    assert len(told) == len(wanted)
    assert all(each.done for each in told), told
    again = examine(root)
    assert [each for each in again if each.repairable] == []
    assert {each.kind for each in wanted}.isdisjoint(kinds(again))
    assert job_bytes(root) >= bytes_before
    assert bool(wanted) == (kind in REPAIRED and plant not in LEFT_ALONE)


REPAIRED = {kind for kind, facts in KINDS.items() if facts.repair}
LEFT_ALONE = {plant_wide_claim, plant_renamed}


def job_bytes(root: Path) -> set[bytes]:
    """What job files hold, each content once; a retry changes the record inside, so jobs are compared by payload."""
    folders = ("new", "cur", "later", "claim", "done")
    return {
        file.read_bytes()
        for folder in folders
        if (root / folder).is_dir()
        for file in (root / folder).iterdir()
        if file.is_file() and not file.name.endswith(".signal")
    }


def test_every_kind_is_planted() -> None:
    assert {kind for kind, _ in PLANTS} | {"unreadable-now", "lock-held"} == set(KINDS)


# -- what a repair leaves behind


def fixed(root: Path, plant: Callable[[Path], str]) -> None:
    """Planted, found and repaired."""
    plant(root)
    told = repair(root, examine(root))
    assert told
    assert all(each.done for each in told)


def test_a_file_without_a_record_becomes_visible_and_can_be_retried(root: Path) -> None:
    fixed(root, plant_unrecorded)
    with opened(root) as queue:
        signal = queue.signal(HEX)
        assert signal is not None
        assert signal.status is ObservationStatus.BLOCKED
        view = queue.look_up(HEX)
        assert view is not None
        assert "nobody knows how it ended" in (view.dossier or {})["error"]
        queue.retry(HEX)
        assert [each.job for each in queue.drain_available("encode") if each.job.id == HEX] == [JOB]


def test_a_broken_record_is_kept_in_the_dossier(root: Path) -> None:
    fixed(root, plant_broken_signal)
    with opened(root) as queue:
        signal = queue.signal(HEX)
        assert signal is not None
        assert signal.status is ObservationStatus.BLOCKED
        view = queue.look_up(HEX)
        assert view is not None
        assert (view.dossier or {})["earlier_ends"] == ['{"status":"fine"}']


def test_a_retry_that_was_cut_off_goes_on(root: Path) -> None:
    fixed(root, plant_intent)
    assert (root / "new" / NAME).read_bytes() == encode_job(JOB)
    assert list((root / ".workerpool/retry").iterdir()) == []


def test_what_is_no_job_keeps_its_bytes_and_its_plain_name(root: Path) -> None:
    fixed(root, plant_broken_deferred)
    assert (root / "done" / NAME).read_bytes() == b"\0" * 40
    assert (root / "done" / f"{NAME}.signal").exists()


def test_what_was_left_in_claim_is_pending(root: Path) -> None:
    fixed(root, plant_malformed_claim)
    assert (root / "new" / NAME).read_bytes() == encode_job(JOB)


def test_a_copy_in_work_is_its_holders_matter(root: Path) -> None:
    plant_claimed_twin_of_ended(root)
    with opened(root) as queue:
        lease = queue.lease("encode")
        assert lease.try_acquire()
        found = examine(root)
        assert kinds(found) == {"twin"}
        assert repair(root, found) == []
        lease.release()
    assert (root / "cur" / NAME).exists()


def test_deep_reads_what_has_ended(root: Path) -> None:
    ended(root)
    put(root, f"done/{NAME}", b"rotten")
    assert examine(root) == []
    found = examine(root, deep=True)
    assert [each.kind for each in found] == ["not-a-job"]
    assert "the job has ended, but" in found[0].what
    assert not found[0].repairable


def test_a_lock_that_is_not_to_be_had_is_said_once_and_not_waited_for_again(root: Path) -> None:
    for number in range(3):
        put(root, f"new/{layout.job_filename(make_job(stream='quiet'))}", str(number).encode())
    with (root / ".workerpool/lease/quiet.lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = examine(root, patience=0.01)
    assert [each.kind for each in found] == ["lock-held"]


def test_an_error_of_the_disk_is_not_taken_for_a_bad_job(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(ops: FileOps, folder: int, name: str, limit: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(FileOps, "read", fail)
    found = [each for each in examine(root, deep=True) if each.path.startswith(("new/", "later/", "done/"))]
    assert len(found) == 4
    assert kinds(found) == {"unreadable-now"}
    assert all("Input/output error" in each.what and not each.repairable for each in found)


@pytest.mark.parametrize("closed", ["new", "done", ".workerpool/jobs"])
def test_a_folder_that_the_system_does_not_open_is_not_taken_for_an_empty_one(
    root: Path, closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every record of a job in it would look as if it were alone."""
    ended(root)
    open_folder = FileOps.open_folder

    def refuse(ops: FileOps, path: str) -> int:
        if path == str(root / closed):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return open_folder(ops, path)

    monkeypatch.setattr(FileOps, "open_folder", refuse)
    (found,) = examine(root)
    assert (found.kind, found.path, found.severity) == ("folder-closed", closed, Severity.ERROR)
    assert os.strerror(errno.EACCES) in found.what
    assert repair(root, [found]) == []


def test_without_descriptors_nothing_is_found_out(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(ops: FileOps, path: str) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(FileOps, "open_folder", refuse)
    with pytest.raises(BackendUnavailable, match=os.strerror(errno.EMFILE)):
        examine(root)


def test_a_root_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailable, match="there is no queue"):
        examine(tmp_path / "nowhere")


def test_ids_and_streams_with_hyphens_are_told_apart(tmp_path: Path) -> None:
    root = tmp_path / "spool"
    with opened(root) as queue:
        for stream, id in (("a", "b-c"), ("a-b", "d"), ("a", "c"), ("x", "a-b-c")):
            end(queue, make_job(id, stream))
    assert examine(root, deep=True) == []
    (root / "done" / "b-c.signal").unlink()
    found = examine(root)
    assert [each.kind for each in found] == ["no-record"]
    assert "-a-b-c" in found[0].path


def test_progress_is_told_and_an_interruption_passes(root: Path) -> None:
    told: list[tuple[str, int, int]] = []
    examine(root, progress=lambda *step: told.append(step))
    assert ("reading records", 1, 1) in told

    def interrupt(what: str, done: int, total: int) -> None:
        if what == "reading records":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        examine(root, progress=interrupt)
    with opened(root) as queue:
        queue.write(make_job())


# -- beside those who work


def test_a_root_in_use_gives_no_finding(tmp_path: Path) -> None:
    root = tmp_path / "spool"
    FilesystemBackend(root).close()
    stop, errors = threading.Event(), []

    def guarded(act: Callable[[FilesystemBackend], None]) -> threading.Thread:
        def run() -> None:
            with opened(root) as queue:
                try:
                    act(queue)
                except BaseException as error:
                    errors.append(error)
                    raise
                finally:
                    stop.set()

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    threads = [guarded(lambda q: produce(q, stop)), guarded(lambda q: work(q, stop)), guarded(lambda q: steer(q, stop))]
    looks, seen = 0, []
    deadline = time.monotonic() + 60
    try:
        while looks < 40 and not stop.is_set() and time.monotonic() < deadline:
            seen += examine(root, patience=30)
            looks += 1
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not errors
    assert looks == 40
    assert seen == []


def produce(queue: FilesystemBackend, stop: threading.Event) -> None:
    while not stop.is_set():
        queue.write_batch(make_jobs(5))
        queue.write(make_job(), due_ms=1000)
        stop.wait(0.005)


def work(queue: FilesystemBackend, stop: threading.Event) -> None:
    lease = queue.lease("encode")
    assert lease.try_acquire()
    while not stop.is_set():
        jobs = [each.job for each in queue.drain_available("encode", 12, lease=lease)]
        for job in jobs[:2]:
            queue.defer(job.id, 1000, error="again", lease=lease)
        for job in jobs[2:4]:
            queue.release(job.id, lease=lease)
        queue.complete_batch([Completion(job.id, DONE) for job in jobs[4:]], lease=lease)
        lease.heartbeat()
    queue.reclaim_in_flight("encode", lease=lease)
    lease.release()


def steer(queue: FilesystemBackend, stop: threading.Event) -> None:
    """What people do meanwhile; a job that has just moved on is no error."""
    while not stop.is_set():
        ended = queue.completed("encode")
        job = make_job()
        queue.write(job, due_ms=FAR_MS // 4)
        with contextlib.suppress(QueueError):
            queue.cancel(job.id)
        for each in ended[:3]:
            with contextlib.suppress(QueueError):
                queue.retry(each.id)
        queue.prune(-60.0, limit=max(0, len(ended) - 30))


# -- after a death


@pytest.mark.parametrize("story", STORIES + FOLDER_STORIES, ids=str)
def test_after_every_death_only_what_repairs_itself_is_found(story: Story, tmp_path: Path) -> None:
    for number in range(1, 500):
        root = tmp_path / str(number)
        code = in_child(lambda root=root, number=number: play(root, story, number))
        assert code in {0, DIED}
        found = examine(root)
        foreseen = AFTER_A_DEATH | ({"twin"} if "twin" in story.name else set())
        foreseen |= {"no-record"} if story.name == "prune" else set()
        assert kinds(found) <= foreseen, found
        before = job_bytes(root)
        assert all(each.done for each in repair(root, found))
        left = examine(root)
        assert [each for each in left if each.repairable or each.severity is not Severity.NOTE] == []
        if story.does != "retry":
            assert job_bytes(root) >= before
        if code == 0:
            return
    pytest.fail("the story never finished")


AFTER_A_DEATH = {
    "in-flight-unheld",  # the next holder reclaims
    "lease-dead",  # the next holder takes over at once
    "alive-dead",  # the next take-over removes it
    "intent-open",  # the next holder finishes it
    "dossier-alone",  # a prune, before its last step
    "quarantined",
    "not-a-job",  # the next drain puts it aside
}
