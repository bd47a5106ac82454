"""What strangers put into the queue: nothing blocks, nothing is followed, bytes are kept, good jobs behind it run."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from queuekit.backends.maildir import layout
from queuekit.backends.maildir.backend import FilesystemBackend
from queuekit.errors import DirectoryCreationFailed, LeaseLost, QueueError
from queuekit.job import Job
from queuekit.lease import DrainLease
from queuekit.testing.jobs import ids_of, make_job, make_jobs
from queuekit.wire import encode_job

STREAM = "encode"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
def queue(root: Path) -> FilesystemBackend:
    return FilesystemBackend(root)


def won(queue: FilesystemBackend) -> DrainLease:
    lease = queue.lease(STREAM)
    assert lease.try_acquire()
    return lease


def bad_name(id: str = "bad") -> str:
    """The name of a job older than every other."""
    return f"0000000000000001-00000000-0000000001-{STREAM}-{id}"


def quarantined(root: Path, name: str) -> bytes:
    """The bytes of a file that was put aside, after a look at its signal."""
    signal = (root / "done" / layout.quarantine_signal_filename(name)).read_bytes()
    assert b'"status":"blocked"' in signal
    return (root / "done" / name).read_bytes()


def truncated() -> bytes:
    data = encode_job(make_job("bad"))
    return data[: len(data) // 2]


BAD_CONTENT: dict[str, Callable[[], bytes]] = {
    "0 bytes": lambda: b"",
    "half": truncated,
    "NULs": lambda: b"\x00" * 300,
    "not JSON": lambda: b"hello",
    "a list": lambda: b"[]",
    "brackets": lambda: b"[" * 100_000,
    "NaN": lambda: encode_job(make_job("bad")).replace(b"50", b"NaN"),
    "another job": lambda: encode_job(make_job("good")),
    "another stream's job": lambda: encode_job(make_job("bad", "other")),
    "not UTF-8": lambda: b'{"id":"\xff"}',
    "an id that no file can have": lambda: encode_job(make_job("a/b")),
}


@pytest.mark.parametrize("leased", [True, False], ids=["leased", "without a lease"])
@pytest.mark.parametrize("content", BAD_CONTENT.values(), ids=BAD_CONTENT)
def test_a_bad_file_at_the_head_is_put_aside_and_those_behind_it_run(
    root: Path, queue: FilesystemBackend, content: Callable[[], bytes], leased: bool
) -> None:
    """C02."""
    data, jobs = content(), make_jobs(8)
    (root / "new" / bad_name()).write_bytes(data)
    queue.write_batch(jobs)
    lease = won(queue) if leased else None
    assert ids_of(queue.drain_available(STREAM, lease=lease)) == ids_of(jobs)
    assert quarantined(root, bad_name()) == data
    assert queue.quarantined == 1
    tally = queue.tally(STREAM)
    assert (tally.pending, tally.in_flight) == (0, 8)
    assert queue.completed(STREAM) == []


def test_a_huge_file_is_put_aside_unread(root: Path) -> None:
    queue = FilesystemBackend(root, max_job_bytes=1000)
    path = root / "new" / bad_name()
    with path.open("wb") as file:
        file.truncate(20 * 2**30)  # of nothing: reading it would end this process
    queue.write(make_job("good"))
    assert ids_of(queue.drain_available(STREAM)) == ["good"]
    assert (root / "done" / bad_name()).stat().st_size == 20 * 2**30


def test_a_bad_file_does_not_replace_the_record_of_a_job_that_ended(root: Path, queue: FilesystemBackend) -> None:
    job = make_job("a")
    queue.write(job)
    queue.drain_available(STREAM)
    queue.complete("a", "done")
    name = layout.job_filename(job)
    (root / "new" / name).write_bytes(b"spoilt")
    assert queue.drain_available(STREAM) == []
    assert ids_of(queue.completed(STREAM)) == ["a"]
    (kept,) = [
        each for each in (root / "done").iterdir() if each.name.startswith(f"{name}.") and each.suffix != ".signal"
    ]
    assert quarantined(root, kept.name) == b"spoilt"


def test_a_bad_file_with_the_longest_name_is_put_aside(root: Path, queue: FilesystemBackend) -> None:
    name = bad_name("x" * (255 - len(bad_name(""))))
    (root / "new" / name).write_bytes(b"{")
    assert queue.drain_available(STREAM) == []
    assert quarantined(root, name) == b"{"


def test_a_bad_file_in_flight_or_deferred_is_put_aside_in_the_end(root: Path, queue: FilesystemBackend) -> None:
    (root / "cur" / bad_name("one")).write_bytes(b"{")
    (root / "later" / f"{1:016d}-r-{bad_name('two')}").write_bytes(b"{")
    assert queue.tally(STREAM).outstanding == 2
    lease = won(queue)
    assert queue.reclaim_in_flight(STREAM, lease=lease) == 1
    assert queue.drain_available(STREAM, lease=lease) == []
    assert quarantined(root, bad_name("one")) == quarantined(root, bad_name("two")) == b"{"
    assert queue.tally().outstanding == 0


def test_a_bad_file_is_only_its_own_streams_affair(root: Path, queue: FilesystemBackend) -> None:
    (root / "new" / bad_name()).write_bytes(b"{")
    assert queue.drain_available("other") == []
    assert (root / "new" / bad_name()).exists()


def test_oddities_are_left_alone_mentioned_once_and_block_nothing(
    root: Path, queue: FilesystemBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """C26."""
    new = root / "new"
    os.mkfifo(new / bad_name("pipe"))
    (new / bad_name("folder")).mkdir()
    os.mknod(new / bad_name("socket"), stat.S_IFSOCK | 0o600)
    for name in (".swp", "d~", "a", f"x-{STREAM}-y"):
        (new / name).write_bytes(b"x")
    odd = sorted(os.listdir(new))
    jobs = make_jobs(10)
    queue.write_batch(jobs)
    lease = won(queue)
    with caplog.at_level(logging.WARNING, "queuekit"):
        assert ids_of(queue.drain_available(STREAM, lease=lease)) == ids_of(jobs)
        queue.look_again()
        assert queue.drain_available(STREAM, lease=lease) == []
    assert sorted(os.listdir(new)) == odd
    assert queue.pending_count() == queue.pending_count(STREAM) == 0
    for name in odd:
        assert sum(repr(name) in record.getMessage() for record in caplog.records) == 1, name


@pytest.mark.parametrize("kind", ["pipe", "folder", "socket", "link"])
def test_a_hint_at_something_odd_takes_nothing_away(root: Path, queue: FilesystemBackend, kind: str) -> None:
    """C26: a watcher's names come unseen."""
    path = root / "new" / bad_name()
    queue.drain_available(STREAM)
    make: dict[str, Callable[[], object]] = {
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
        "socket": lambda: os.mknod(path, stat.S_IFSOCK | 0o600),
        "link": lambda: path.symlink_to("/etc/passwd"),
    }
    make[kind]()
    queue.write(make_job("good"))
    queue.hint([path.name])
    assert ids_of(queue.drain_available(STREAM)) == ["good"]
    assert path.is_symlink() or path.exists()
    assert os.listdir(root / "cur") == [layout.job_filename(queue.in_flight()[0])]


def test_names_that_are_not_utf8_are_put_aside(root: Path, queue: FilesystemBackend) -> None:
    """C26."""
    name = os.fsdecode(os.fsencode(bad_name()) + b"\xff\xfe")
    (root / "new" / name).write_bytes(b"{")
    queue.write(make_job("good"))
    assert ids_of(queue.drain_available(STREAM)) == ["good"]
    assert quarantined(root, name) == b"{"
    assert queue.tally().outstanding == 1


@pytest.mark.parametrize("folder", ["new", "cur", "done", "claim", "later"])
def test_links_are_neither_read_nor_written(root: Path, queue: FilesystemBackend, tmp_path: Path, folder: str) -> None:
    """C71."""
    job = make_job("victim")
    victim = tmp_path / "victim"
    victim.write_bytes(encode_job(job))
    name = layout.job_filename(job)
    shown = {"claim": f"{'0' * 32}-{name}", "later": f"{1:016d}-r-{name}"}.get(folder, name)
    (root / folder / shown).symlink_to(victim)
    queue.write(make_job("good"))
    lease = won(queue)
    queue.reclaim_in_flight(STREAM, lease=lease)
    assert ids_of(queue.drain_available(STREAM, lease=lease)) == ["good"]
    assert ids_of(queue.in_flight()) == ["good"]
    assert queue.completed() == []
    assert queue.look_up("victim") is None
    assert victim.read_bytes() == encode_job(job)


def test_a_planted_signal_link_is_replaced_and_its_target_left_alone(
    root: Path, queue: FilesystemBackend, tmp_path: Path
) -> None:
    """C71."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (root / "done" / "a.signal").symlink_to(victim)
    queue.write(make_job("a"))
    queue.drain_available(STREAM)
    queue.complete("a", "done")
    assert victim.read_bytes() == b"precious"
    assert not (root / "done" / "a.signal").is_symlink()
    assert queue.signal("a") is not None


def test_a_link_where_a_new_jobs_file_belongs_is_not_written_through(
    root: Path, queue: FilesystemBackend, tmp_path: Path
) -> None:
    """C71."""
    job, victim = make_job("a"), tmp_path / "victim"
    victim.write_bytes(b"precious")
    (root / "new" / layout.job_filename(job)).symlink_to(victim)
    with pytest.raises(QueueError):
        queue.write(job)
    assert victim.read_bytes() == b"precious"
    assert os.listdir(root / "tmp") == []


# -- roots and folders


@pytest.mark.parametrize("folder", ["tmp", "new", "cur", "done", "claim", "later", ".workerpool", ".workerpool/lease"])
def test_a_linked_folder_is_refused(root: Path, tmp_path: Path, folder: str) -> None:
    """C71."""
    FilesystemBackend(root).close()
    (root / folder).rename(tmp_path / "elsewhere")
    (root / folder).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DirectoryCreationFailed) as raised:
        FilesystemBackend(root)
    assert raised.value.path == str(root / folder)


def test_a_linked_root_is_resolved_once(root: Path, tmp_path: Path) -> None:
    FilesystemBackend(root).close()
    link = tmp_path / "link"
    link.symlink_to(root)
    queue = FilesystemBackend(link)
    assert queue.root == str(root)
    link.unlink()
    queue.write(make_job("a"))
    assert ids_of(queue.drain_available(STREAM)) == ["a"]


@pytest.mark.parametrize(("mode", "refused"), [(0o777, True), (0o702, True), (0o1777, False), (0o750, False)])
def test_a_root_that_others_can_write_is_refused(root: Path, mode: int, refused: bool) -> None:
    """C71."""
    root.mkdir()
    root.chmod(mode)
    if refused:
        with pytest.raises(DirectoryCreationFailed, match="others can write"):
            FilesystemBackend(root)
    else:
        FilesystemBackend(root)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o277])
def test_everything_is_ours_alone_under_any_umask(root: Path, mask: int) -> None:
    """C72."""
    before = os.umask(mask)
    try:
        queue = FilesystemBackend(root)
        for id in ("a", "b", "c"):
            queue.write(make_job(id))
        lease = won(queue)
        queue.drain_available(STREAM, lease=lease)
        queue.complete("a", "blocked", dossier={"error": "x"}, lease=lease)
        queue.complete("c", "done", lease=lease)
        queue.defer("b", 1, lease=lease)
        queue.retry("c")
    finally:
        os.umask(before)
    everything = [root, *root.rglob("*")]
    modes = {(each.is_dir(), stat.S_IMODE(each.lstat().st_mode)) for each in everything}
    assert modes == {(True, 0o700), (False, 0o600)}


# -- other users; what is not ours to read


def as_nobody(act: Callable[[], None]) -> None:
    """Do it as another user, in a child; where this is not root there is only one user, who does it here."""
    if os.geteuid() != 0:
        act()
        return
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setegid(65534)
            os.seteuid(65534)
            act()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def open_to_all(path: Path) -> None:
    while path != Path("/tmp") and path != path.parent:
        if path.stat().st_uid == os.geteuid():
            path.chmod(0o711)
        path = path.parent


def test_another_users_root_is_refused(root: Path) -> None:
    """C72: one clear error."""
    if os.geteuid() == 0:
        FilesystemBackend(root).close()
        open_to_all(root)
        refused_root = root
    else:
        refused_root = Path("/")

    def mount() -> None:
        with pytest.raises(DirectoryCreationFailed) as raised:
            FilesystemBackend(refused_root)
        assert "belongs to uid" in str(raised.value)

    as_nobody(mount)


@pytest.mark.parametrize("leased", [True, False], ids=["leased", "without a lease"])
def test_a_file_without_read_permission_is_put_aside(tmp_path: Path, leased: bool) -> None:
    """C26: by a consumer that is not root."""
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o777)
    open_to_all(tmp_path)

    def work() -> None:
        root = home / "spool"
        queue = FilesystemBackend(root)
        job = make_job("bad", at=make_job().submitted_at)
        queue.write(job)
        path = root / "new" / layout.job_filename(job)
        path.chmod(0)
        queue.write(make_job("good"))
        lease = won(queue) if leased else None
        claimed: list[Job] = [each.job for each in queue.drain_available(STREAM, lease=lease)]
        assert ids_of(claimed) == ["good"]
        queue.complete("good", "done", lease=lease)
        assert queue.tally().outstanding == 0
        assert (root / "done" / path.name).exists()
        assert queue.prune(-60.0, lease=lease, stream=STREAM if lease else None) == 2

    as_nobody(work)


def test_a_full_name_of_a_lease_that_is_not_utf8_blocks_no_drain(root: Path, queue: FilesystemBackend) -> None:
    (root / os.fsdecode(b"\xff.drain.lease")).write_bytes(b"x\n9e99")
    queue.write(make_job("a"))
    assert ids_of(queue.drain_available()) == ["a"]


def test_a_garbled_lease_does_not_keep_drains_without_one_out_for_ever(
    root: Path, queue: FilesystemBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C50."""
    now = 1000.0
    defaults = {**DrainLease.__init__.__kwdefaults__, "monotonic": lambda: now}
    monkeypatch.setattr(DrainLease.__init__, "__kwdefaults__", defaults)
    (root / f"{STREAM}.drain.lease").write_bytes(b"")
    queue.write(make_job("a"))
    with pytest.raises(LeaseLost):
        queue.drain_available(STREAM)
    now += 16.0
    assert ids_of(queue.drain_available(STREAM)) == ["a"]
