"""Checkpoints as they are stored: files and rows, deaths and failing calls, what others may have left there."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from test_maildir_crash import in_child

from queuekit import FilesystemBackend, PersistenceKitBackend, QueueKit
from queuekit.backends.maildir.fsck import examine
from queuekit.checkpoints import checkpoint_job
from queuekit.errors import BackendUnavailable, QueueError
from queuekit.hlc import HLC
from queuekit.testing.faults import DIED, FaultyOps, die_at, fail_at
from queuekit.wire import encode_job

ID, STREAM = "the-place", "en-code"
FILE = ".workerpool/checkpoints/7-en-code-the-place"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "spool"


def swap(root: Path, expected: bytes | None, payload: bytes, **options: Any) -> bool:
    with closing(FilesystemBackend(root, **options)) as backend:
        return backend.checkpoints.compare_and_swap(ID, STREAM, expected, payload)


def read(root: Path) -> bytes | None:
    with closing(FilesystemBackend(root)) as backend:
        return backend.checkpoints.read(ID, STREAM)


def put(root: Path, data: bytes, name: str = FILE) -> None:
    FilesystemBackend(root).close()
    (root / name).write_bytes(data)
    (root / name).chmod(0o600)


# -- files


def test_a_file_holds_what_a_job_would_for_its_owner_alone(root: Path) -> None:
    before = os.umask(0)
    try:
        assert swap(root, None, b"1")
    finally:
        os.umask(before)
    assert stat.S_IMODE((root / FILE).stat().st_mode) == 0o600
    assert stat.S_IMODE((root / FILE).parent.stat().st_mode) == 0o700
    body = json.loads((root / FILE).read_bytes())
    stamp = body.pop("submitted_at")
    assert stamp["physical_time"] > 0
    assert body == {
        "extensions": {"retainedCheckpoint": True},
        "id": ID,
        "payload": "MQ",
        "priority": 50,
        "stream_id": STREAM,
    }
    assert swap(root, b"1", b"2")
    assert json.loads((root / FILE).read_bytes())["submitted_at"] == stamp
    assert os.listdir(root / "tmp") == []


def replace_one(root: Path, ops: FaultyOps) -> Callable[[], bool]:
    assert swap(root, None, b"old")
    backend = FilesystemBackend(root, ops=ops)
    return lambda: backend.checkpoints.compare_and_swap(ID, STREAM, b"old", b"new")


def make_one(root: Path, ops: FaultyOps) -> Callable[[], bool]:
    backend = FilesystemBackend(root, ops=ops)
    return lambda: backend.checkpoints.compare_and_swap(ID, STREAM, None, b"new")


def remove_one(root: Path, ops: FaultyOps) -> Callable[[], bool]:
    assert swap(root, None, b"old")
    backend = FilesystemBackend(root, ops=ops)
    return lambda: backend.checkpoints.delete(ID, STREAM)


Act = Callable[[Path, FaultyOps], Callable[[], bool]]
ACTS = pytest.mark.parametrize(
    ("act", "before", "after"),
    [(replace_one, b"old", b"new"), (make_one, None, b"new"), (remove_one, b"old", None)],
    ids=["replace", "make", "remove"],
)


@ACTS
def test_a_death_before_any_call_leaves_the_old_one_or_the_new(
    act: Act, before: bytes | None, after: bytes | None, tmp_path: Path
) -> None:
    for number in range(1, 100):
        root = tmp_path / str(number)

        def die(root: Path = root, number: int = number) -> None:
            ops = FaultyOps(syncing=False)
            perform = act(root, ops)
            ops.arm(die_at(number))
            assert perform()

        code = in_child(die)
        assert code in {0, DIED}
        assert read(root) in ([after] if code == 0 else [before, after])
        assert {each.kind for each in examine(root)} <= {"tmp-stale"}
        if code == 0:
            assert number > 3
            return
    pytest.fail("it never finished")


@ACTS
@pytest.mark.parametrize("number_of_error", [errno.ENOSPC, errno.EIO], ids=["full disk", "I/O error"])
def test_a_call_that_fails_is_told_and_leaves_the_old_one_or_the_new(
    act: Act, before: bytes | None, after: bytes | None, number_of_error: int, tmp_path: Path
) -> None:
    for number in range(1, 100):
        root = tmp_path / str(number)
        ops = FaultyOps(syncing=False)
        perform = act(root, ops)
        ops.arm(fail_at(number, number_of_error))
        try:
            assert perform()
        except QueueError:
            assert read(root) in {before, after}
        else:
            assert read(root) == after
        assert os.listdir(root / "tmp") == []
        if len(ops.calls) < number:
            return
    pytest.fail("it never finished")


def a_link(root: Path) -> None:
    (root / FILE).rename(root / "elsewhere")
    (root / FILE).symlink_to(root / "elsewhere")


BROKEN: dict[str, Callable[[Path], object]] = {
    "empty": lambda root: put(root, b""),
    "no job": lambda root: put(root, b"{}"),
    "another's": lambda root: put(root, encode_job(checkpoint_job("other", STREAM, b"1", HLC(1, 0, 1)))),
    "too large": lambda root: put(root, b" " * 2**21),
    "a link": a_link,
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_is_no_checkpoint_is_told_and_can_only_be_deleted(kind: str, root: Path) -> None:
    assert swap(root, None, b"1", max_job_bytes=8)
    BROKEN[kind](root)
    with closing(FilesystemBackend(root, max_job_bytes=8)) as backend:
        store = backend.checkpoints
        for verb in (
            lambda: store.read(ID, STREAM),
            lambda: store.compare_and_swap(ID, STREAM, b"1", b"2"),
            lambda: store.compare_and_swap(ID, STREAM, None, b"2"),
        ):
            with pytest.raises(BackendUnavailable, match=f"{FILE}"):
                verb()
        assert store.delete(ID, STREAM)
        assert store.compare_and_swap(ID, STREAM, None, b"2")


def test_names_that_are_no_checkpoints_are_passed_over(root: Path) -> None:
    assert swap(root, None, b"1")
    put(root, b"", ".workerpool/checkpoints/notes.txt")
    with closing(FilesystemBackend(root)) as backend:
        assert backend.checkpoints.streams() == {STREAM}
        assert backend.checkpoints.list(STREAM) == {ID: b"1"}


def test_a_root_that_is_away_is_not_made_and_one_made_anew_is_used_anew(root: Path) -> None:
    with closing(FilesystemBackend(root)) as backend:
        store = backend.checkpoints
        assert store.compare_and_swap(ID, STREAM, None, b"1")
        root.rename(root.with_name("old"))
        for verb in (store.read, store.delete):
            with pytest.raises(BackendUnavailable):
                verb(ID, STREAM)
        with pytest.raises(BackendUnavailable):
            store.compare_and_swap(ID, STREAM, None, b"2")
        assert not root.exists()
        root.mkdir()
        assert store.read(ID, STREAM) is None
        assert store.compare_and_swap(ID, STREAM, None, b"2")
    assert (read(root), read(root.with_name("old"))) == (b"2", b"1")


@pytest.mark.parametrize(
    ("file", "data", "kind"),
    [
        (FILE, b"", "checkpoint-unreadable"),
        (FILE, encode_job(checkpoint_job("other", STREAM, b"1", HLC(1, 0, 1))), "checkpoint-unreadable"),
        (".workerpool/checkpoints/notes.txt", b"", "not-a-name"),
    ],
    ids=["empty", "another's", "a name"],
)
def test_fsck_knows_them(file: str, data: bytes, kind: str, root: Path) -> None:
    assert swap(root, None, b"1")
    assert examine(root) == []
    put(root, data, file)
    assert [(each.kind, each.path) for each in examine(root)] == [(kind, file)]


# -- several processes


def count(url: str, start: Any) -> None:
    with QueueKit.open(url) as queue:
        start.wait()
        for _ in range(10):
            while True:
                seen = queue.checkpoints.read(ID, STREAM)
                if queue.checkpoints.compare_and_swap(ID, STREAM, seen, b"%d" % (int(seen or 0) + 1)):
                    break


@pytest.fixture(params=["dir", "sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    return f"{request.param}:{tmp_path}/store"


def test_of_many_processes_that_count_none_is_lost(url: str) -> None:
    QueueKit.open(url).close()
    fork = multiprocessing.get_context("fork")
    start = fork.Barrier(3)
    counters = [fork.Process(target=count, args=(url, start)) for _ in range(3)]
    for counter in counters:
        counter.start()
    for counter in counters:
        counter.join()
    assert [counter.exitcode for counter in counters] == [0, 0, 0]
    with QueueKit.open(url) as queue:
        assert queue.checkpoints.list(STREAM) == {ID: b"30"}


# -- rows


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PersistenceKitBackend]:
    url = f"sqlite:{tmp_path}/jobs.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    with ExitStack() as stack:
        yield stack.enter_context(closing(PersistenceKitBackend(url)))


def rows(database: PersistenceKitBackend) -> list[dict[str, Any]]:
    every = sa.text("SELECT * FROM queuekit_jobs")
    return [dict(row._mapping) for row in database.database.run(lambda connection: connection.execute(every).all())]


def test_a_row_is_that_of_the_other_ports(database: PersistenceKitBackend) -> None:
    assert database.checkpoints.compare_and_swap(ID, STREAM, None, b"1")
    (row,) = rows(database)
    stamp = [row.pop(column) for column in ("physical_time", "logical_count", "node_id")]
    pinned = {
        "id": ID,
        "stream_id": STREAM,
        "priority": 50,
        "status": "checkpoint",
        "payload": b"1",
        "extensions": '{"retainedCheckpoint":true}',
    }
    assert {name: value for name, value in row.items() if value is not None} == pinned
    assert stamp[0] > 0
    assert database.checkpoints.compare_and_swap(ID, STREAM, b"1", b"2")
    (row,) = rows(database)
    assert [row[column] for column in ("physical_time", "logical_count", "node_id")] == stamp
    assert row["payload"] == b"2"


def test_a_row_of_another_port_is_a_checkpoint(database: PersistenceKitBackend) -> None:
    def insert(connection: sa.Connection) -> None:
        columns = "id, stream_id, physical_time, logical_count, node_id, priority, status, payload, extensions"
        values = "'theirs', 'a', 1, 0, -1, 50, 'checkpoint', :payload, :extensions"
        given = {"payload": b"1", "extensions": '{"retainedCheckpoint":true}'}
        connection.execute(sa.text(f"INSERT INTO queuekit_jobs ({columns}) VALUES ({values})"), given)

    database.database.run(insert)
    assert database.checkpoints.streams() == {"a"}
    assert database.checkpoints.list("a") == {"theirs": b"1"}
    assert database.checkpoints.compare_and_swap("theirs", "a", b"1", b"2")
    assert database.checkpoints.read("theirs", "a") == b"2"


def test_a_payload_that_is_no_blob_is_told_and_can_only_be_deleted(tmp_path: Path) -> None:
    with closing(PersistenceKitBackend(f"sqlite:{tmp_path}/jobs.db")) as backend:
        store = backend.checkpoints
        assert store.compare_and_swap(ID, STREAM, None, b"1")
        text = sa.text("UPDATE queuekit_jobs SET payload = 'text'")
        backend.database.run(lambda connection: connection.execute(text))
        with pytest.raises(BackendUnavailable, match="invalid checkpoint"):
            store.read(ID, STREAM)
        with pytest.raises(BackendUnavailable, match="invalid checkpoint"):
            store.compare_and_swap(ID, STREAM, b"text", b"2")
        assert store.delete(ID, STREAM)
        assert rows(backend) == []
