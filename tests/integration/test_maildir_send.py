"""What is on disk when `send` returns, and what is not when it raises."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from queuekit.backends.maildir import layout, mount
from queuekit.backends.maildir.backend import FilesystemBackend
from queuekit.errors import InvalidIdentifier, QueueError, WriteFailed
from queuekit.job import Job
from queuekit.testing.faults import FaultyOps, fail_at
from queuekit.testing.jobs import FAR_MS, ids_of, make_job, make_jobs
from queuekit.wire import encode_job

STREAM = "encode"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "spool"


def armed(root: Path, **values: str) -> tuple[FilesystemBackend, FaultyOps]:
    ops = FaultyOps()
    queue = FilesystemBackend(root, ops=ops, **values)
    ops.arm()
    return queue, ops


def waiting(root: Path, folder: str = "new") -> list[str]:
    return sorted(os.listdir(root / folder))


# -- the order of things


def test_a_job_is_synced_then_named_then_its_folder_synced(root: Path) -> None:
    queue, ops = armed(root)
    queue.write(make_job())
    assert ops.calls == ["create", "write", "sync_data", "close", "move_new", "sync_folder"]


def test_so_is_one_for_later(root: Path) -> None:
    queue, ops = armed(root)
    queue.write(make_job("a"), due_ms=FAR_MS)
    assert ops.calls == ["create", "write", "sync_data", "close", "move_new", "sync_folder"]
    assert waiting(root) == []
    assert [name[:19] for name in waiting(root, "later")] == [f"{FAR_MS:016d}-s-"]


def test_a_batch_is_named_after_one_barrier_and_its_folder_synced_once(root: Path) -> None:
    queue, ops = armed(root)
    count = mount._SYNC_EACH + 1
    queue.write_batch(make_jobs(count))
    written = ["create", "write", "close"] * count
    assert ops.calls == [*written, "sync_filesystem", *["move_new"] * count, "sync_folder"]


def test_a_small_batch_syncs_each_file_before_it_names_any(root: Path) -> None:
    queue, ops = armed(root)
    queue.write_batch(make_jobs(2))
    written = ["create", "write", "sync_data", "close"] * 2
    assert ops.calls == [*written, "move_new", "move_new", "sync_folder"]


@pytest.mark.parametrize(
    ("durability", "syncs"), [("full", ["sync_data", "sync_folder"]), ("batch", ["sync_folder"]), ("none", [])]
)
def test_each_durability_syncs_what_it_says(root: Path, durability: str, syncs: list[str]) -> None:
    queue, ops = armed(root, durability=durability)
    queue.write_batch(make_jobs(1))
    assert [call for call in ops.calls if call.startswith("sync")] == syncs


def test_a_slow_barrier_is_replaced_by_single_syncs(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, ops = armed(root)
    monkeypatch.setattr(mount, "_SLOW_BARRIER_SECONDS", -1.0)
    queue.write_batch(make_jobs(20))
    queue.write_batch(make_jobs(20))
    assert ops.calls.count("sync_filesystem") == 1
    assert ops.calls.count("sync_data") == 20


# -- faults


@pytest.mark.parametrize("nth", range(1, 7))
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EXDEV, errno.EDQUOT, errno.EROFS])
def test_an_error_before_it_is_durable_is_reported_and_leaves_nothing_half_done(
    root: Path, nth: int, number: int
) -> None:
    queue, ops = armed(root)
    ops.fault = fail_at(nth, number)
    with pytest.raises(QueueError) as raised:
        queue.write(make_job("a"))
    assert isinstance(raised.value.__cause__, OSError)
    assert raised.value.__cause__.errno == number
    assert waiting(root, "tmp") == []
    ops.disarm()
    queue.write(make_job("b"))
    assert "b" in ids_of(queue.drain_available(STREAM))


def test_a_failed_sync_is_not_tried_again_on_the_same_file(root: Path) -> None:
    """T8: the kernel may have dropped the data, and a second sync would say that all is well."""
    queue, ops = armed(root)
    ops.fault = fail_at(3, errno.EIO)
    with pytest.raises(WriteFailed):
        queue.write(make_job())
    assert ops.calls == ["create", "write", "sync_data", "unlink"]


def test_a_failed_barrier_leaves_no_file(root: Path) -> None:
    queue, ops = armed(root)

    def fault(call: str, count: int) -> None:
        if call == "sync_filesystem":
            raise OSError(errno.EIO, "bad disk")

    ops.fault = fault
    with pytest.raises(WriteFailed):
        queue.write_batch(make_jobs(20))
    assert waiting(root) == waiting(root, "tmp") == []
    assert ops.calls.count("sync_filesystem") == 1


def test_short_writes_go_on_where_they_stopped(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, real = make_job("a", payload=bytes(range(256))), os.write
    queue = FilesystemBackend(root)
    with monkeypatch.context() as patch:
        patch.setattr("queuekit.backends.maildir.fsops.os.write", lambda fd, data: real(fd, bytes(data)[:7]))
        queue.write(job)
    assert (root / "new" / layout.job_filename(job)).read_bytes() == encode_job(job)


@pytest.mark.parametrize("gone", ["new", "tmp", "later"])
def test_a_folder_removed_meanwhile_is_made_again(root: Path, gone: str) -> None:
    queue, ops = armed(root)

    def fault(call: str, count: int) -> None:
        if call == ("create" if gone == "tmp" else "move_new") and not removed:
            os.rmdir(root / gone)
            removed.append(gone)

    removed: list[str] = []
    ops.fault = fault
    queue.write(make_job("a"), due_ms=1 if gone == "later" else None)
    assert removed
    assert ids_of(queue.drain_available(STREAM)) == ["a"]


def test_a_batch_survives_the_loss_of_its_folder_half_way(root: Path) -> None:
    queue, ops = armed(root)
    jobs = make_jobs(6)

    def fault(call: str, count: int) -> None:
        if call == "move_new" and ops.calls.count("move_new") == 3:
            for name in waiting(root):
                os.rename(root / "new" / name, root / "cur" / name)  # others have claimed what was there
            os.rmdir(root / "new")

    ops.fault = fault
    assert queue.write_batch(jobs) == 6
    assert len(waiting(root)) == 4
    assert len(waiting(root, "cur")) == 2


def test_a_root_removed_between_two_sends_is_made_again(root: Path) -> None:
    queue = FilesystemBackend(root)
    queue.write(make_job("a"))
    os.rename(root, root.with_name("away"))
    for name in sorted(root.with_name("away").rglob("*"), reverse=True):
        name.rmdir() if name.is_dir() else name.unlink()
    queue.write(make_job("b"))
    assert ids_of(queue.drain_available(STREAM)) == ["b"]


# -- what is refused


def test_nothing_is_touched_for_a_job_that_cannot_be_sent(root: Path) -> None:
    queue, ops = armed(root)
    with pytest.raises(InvalidIdentifier):
        queue.write_batch([make_job("a"), make_job("a/b")])
    with pytest.raises(InvalidIdentifier):
        queue.write(make_job("x" * 200))
    with pytest.raises(WriteFailed):
        queue.write(make_job(payload=b"x", extensions={"f": float("nan")}))
    assert ops.calls == []


def test_the_payload_limit_is_exact(root: Path) -> None:
    queue = FilesystemBackend(root, max_job_bytes=1000)
    queue.write(make_job("fits", payload=b"x" * 1000))
    with pytest.raises(WriteFailed):
        queue.write(make_job("too large", payload=b"x" * 1001))
    assert ids_of(queue.drain_available(STREAM)) == ["fits"]


# -- the same name again


def test_one_that_is_there_and_cannot_be_synced_is_not_accepted(root: Path) -> None:
    queue, ops = armed(root)
    job = make_job()
    queue.write(job)

    def missing(call: str, count: int) -> None:
        if call == "sync_file":  # some filesystems say so of what they have lost
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    ops.arm(missing)
    with pytest.raises(WriteFailed):
        queue.write(job)


def variants(job: Job) -> tuple[Job, Job]:
    """The same job with another delivery record, and another job of the same name."""
    ran = Job(
        id=job.id,
        stream_id=job.stream_id,
        submitted_at=job.submitted_at,
        payload=job.payload,
        extensions={"delivery": {"attempt": 2, "crashes": 0, "errors": []}},
    )
    other = Job(id=job.id, stream_id=job.stream_id, submitted_at=job.submitted_at, payload=b"other")
    return ran, other


def test_a_send_that_is_repeated_succeeds_once_it_is_durable(root: Path) -> None:
    queue, ops = armed(root)
    job = make_job("a", payload=b"x")
    queue.write(job)
    ops.arm()
    queue.write(job)
    assert ops.calls.count("sync_file") == 1
    assert ops.calls[-1] == "sync_folder"
    assert len(waiting(root)) == 1
    assert waiting(root, "tmp") == []


def test_the_delivery_record_makes_no_difference_anything_else_does(root: Path) -> None:
    queue = FilesystemBackend(root)
    job = make_job("a", payload=b"x")
    ran, other = variants(job)
    queue.write(ran)
    queue.write(job)
    with pytest.raises(WriteFailed):
        queue.write(other)
    (name,) = waiting(root)
    assert (root / "new" / name).read_bytes() == encode_job(ran)
    assert waiting(root, "tmp") == []


def test_without_an_exclusive_rename_nothing_is_replaced_either(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuekit.backends.maildir.fsops._exclusive_rename", lambda: None)
    queue = FilesystemBackend(root)
    job = make_job("a", payload=b"x")
    queue.write(job)
    queue.write(job)
    with pytest.raises(WriteFailed):
        queue.write(variants(job)[1])
    assert ids_of(queue.drain_available(STREAM)) == ["a"]
    queue.write(job)
    assert queue.drain_available(STREAM) == []
    assert waiting(root) == []
    queue.write(make_job("b"), due_ms=1)
    assert ids_of(queue.drain_available(STREAM)) == ["b"]
