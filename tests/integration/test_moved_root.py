"""A root that is moved away, removed, or made anew under an open queue: nobody acts on a lock, a lease or a folder that
is not at its path any more.
"""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest

from queuekit import BackendUnavailable, DrainLease, LeaseLost, QueueKit
from queuekit.lease import FOLDER
from queuekit.locks import Life, StreamLock, life_of


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "spool"


def is_locked(path: Path) -> bool:
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def test_a_stream_lock_is_on_the_file_that_is_at_its_path(tmp_path: Path) -> None:
    folder = tmp_path / "lease"
    folder.mkdir()
    lock = StreamLock(str(folder / "encode.lock"))
    with lock:
        pass
    folder.rename(tmp_path / "moved")
    with pytest.raises(BackendUnavailable), lock:
        pass
    folder.mkdir()
    with lock:
        assert is_locked(folder / "encode.lock")
        assert not is_locked(tmp_path / "moved" / "encode.lock")


def test_while_the_root_is_away_a_lease_is_neither_held_nor_lost(root: Path) -> None:
    lease = DrainLease(root, "encode", "me")
    assert lease.try_acquire()
    root.rename(root.with_name("away"))
    for act in (lease.verify, lease.heartbeat, lease.try_acquire):
        with pytest.raises(BackendUnavailable):
            act()
    assert not root.exists()
    root.with_name("away").rename(root)
    lease.heartbeat()


def test_in_a_new_root_a_lease_is_lost_and_can_be_won_with_a_proof_of_life(root: Path) -> None:
    lease = DrainLease(root, "encode", "me")
    assert lease.try_acquire()
    root.rename(root.with_name("old"))
    root.mkdir()
    with pytest.raises(LeaseLost):
        lease.heartbeat()
    assert lease.try_acquire()
    assert life_of(str(root / FOLDER / f"{lease.owner}.alive")) is Life.HELD
    assert life_of(str(root.with_name("old") / FOLDER / f"{lease.owner}.alive")) is Life.DEAD


def test_a_lease_survives_the_loss_of_the_private_folder(root: Path) -> None:
    lease = DrainLease(root, "encode", "me")
    assert lease.try_acquire()
    for path in (root / FOLDER).iterdir():
        path.unlink()
    (root / FOLDER).rmdir()
    lease.heartbeat()
    assert (root / FOLDER / "encode.lock").exists()


@pytest.mark.parametrize("moved", [".", "new"])
def test_after_a_doubt_the_folder_at_the_path_is_drained(root: Path, moved: str) -> None:
    with QueueKit(str(root)) as queue:
        old = queue.submit("encode", b"old")
        (root / moved).resolve().rename(root.with_name("moved"))
        with QueueKit(str(root)) as producer:
            fresh = producer.submit("encode", b"fresh")
        queue.backend.look_again()
        assert [claimed.job.id for claimed in queue.drain("encode")] == [fresh]
        queue.reply(fresh, "done")
    assert (root / "done" / f"{fresh}.signal").exists()
    left = root.with_name("moved") / ("new" if moved == "." else "")
    assert [path.name.endswith(old) for path in left.iterdir()] == [True]


def test_a_watch_goes_on_in_a_new_root(root: Path) -> None:
    stop = threading.Event()
    seen: list[bytes] = []

    def handle(job: object, _session: object) -> None:
        seen.append(job.payload)  # type: ignore[attr-defined]
        (stop if job.payload == b"fresh" else first).set()  # type: ignore[attr-defined]

    first = threading.Event()
    with QueueKit(str(root)) as queue:
        queue.submit("encode", b"old")
        watching = threading.Thread(target=queue.watch, args=(handle, stop), daemon=True)
        watching.start()
        assert first.wait(10)
        root.rename(root.with_name("old"))
        with QueueKit(str(root)) as producer:
            producer.submit("encode", b"fresh")
        assert stop.wait(10)
        watching.join(10)
    assert seen == [b"old", b"fresh"]
