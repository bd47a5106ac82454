"""Leases on a real directory, with real deaths: one holder at a time, whatever is killed, stopped, late or planted."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from queuekit.errors import BackendUnavailable, LeaseLost, WriteFailed
from queuekit.lease import FOLDER, DrainLease
from queuekit.locks import AliveFile, Life, StreamLock, life_of

TTL = 15.0


class Ticker:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def ticker() -> Ticker:
    return Ticker()


def lease_of(
    root: Path, token: str, *, stream: str = "s", monotonic: Callable[[], float] = time.monotonic
) -> DrainLease:
    return DrainLease(root, stream, token, TTL, monotonic=monotonic)


@contextlib.contextmanager
def child(act: Callable[[], None]) -> Iterator[int]:
    """A forked process that has done `act` and then waits; its pid. It is killed in the end."""
    ready_read, ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            act()
            os.write(ready, b"x")
            signal.pause()
        finally:
            os._exit(1)
    os.close(ready)
    try:
        assert os.read(ready_read, 1) == b"x", "the child failed"
        yield pid
    finally:
        os.close(ready_read)
        kill(pid)


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def hold(root: Path, token: str = "holder", stream: str = "s") -> Callable[[], None]:
    def act() -> None:
        lease = lease_of(root, token, stream=stream)
        assert lease.try_acquire()
        holders.append(lease)  # kept: its lock lives as long as the process

    return act


holders: list[DrainLease] = []


def plant(root: Path, content: bytes, stream: str = "s") -> Path:
    path = root / f"{stream}.drain.lease"
    path.write_bytes(content)
    return path


# -- two takers of one stale lease


def test_of_two_threads_exactly_one_takes_a_stale_lease(tmp_path: Path) -> None:
    for number in range(200):
        stream = f"s{number}"
        plant(tmp_path, b"somebody\n1.0", stream)
        leases = [lease_of(tmp_path, f"t{each}", stream=stream) for each in range(2)]
        won = race(leases)
        assert sorted(won) == [False, True]
        assert leases[won.index(False)].is_held_by_other()
        leases[won.index(True)].release()


def race(leases: list[DrainLease]) -> list[bool]:
    """Let a thread for each of them try at the same moment."""
    start, won = threading.Barrier(len(leases)), [False] * len(leases)

    def take(each: int) -> None:
        start.wait()
        won[each] = leases[each].try_acquire()

    threads = [threading.Thread(target=take, args=(each,)) for each in range(len(leases))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return won


def test_of_two_processes_exactly_one_takes_a_stale_lease(tmp_path: Path) -> None:
    rounds = 200
    for number in range(rounds):
        plant(tmp_path, b"somebody\n1.0", f"s{number}")
    starts = [os.pipe() for _ in range(2)]
    ends = [os.pipe() for _ in range(2)]
    pids = [os.fork() or contend(tmp_path, each, rounds, starts[each][0], ends[each][1]) for each in range(2)]
    for _ in range(rounds):
        for _, start in starts:
            os.write(start, b"g")
        assert sorted(os.read(end, 1) for end, _ in ends) == [b"0", b"1"]
    for _, start in starts:
        os.write(start, b"e")
    for pid in pids:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    for fd in [fd for pair in (*starts, *ends) for fd in pair]:
        os.close(fd)


def contend(root: Path, each: int, rounds: int, start: int, end: int) -> int:
    """In a child: try for each stream in turn when told to, and tell the result."""
    code = 1
    try:
        for number in range(rounds):
            lease = lease_of(root, f"p{each}", stream=f"s{number}")
            os.read(start, 1)
            os.write(end, b"1" if lease.try_acquire() else b"0")
        os.read(start, 1)  # a dead winner would be succeeded
        code = 0
    finally:
        os._exit(code)


# -- a dead holder, a stopped one


def test_a_killed_holder_is_succeeded_at_once(tmp_path: Path) -> None:
    """C84 too: the token, not the pid, is the identity."""
    successor = lease_of(tmp_path, "successor")
    with child(hold(tmp_path)) as pid:
        assert successor.is_held_by_other()
        assert not successor.try_acquire()
        kill(pid)
        assert not successor.is_held_by_other()
        assert successor.try_acquire()


def test_a_successor_with_the_pid_of_the_dead_holder_is_somebody_else(tmp_path: Path) -> None:
    """C84."""
    with child(hold(tmp_path)) as pid:
        kill(pid)
    successor = lease_of(tmp_path, "successor")
    successor.owner = f"pid-{pid}-successor"
    assert successor.try_acquire()
    assert successor.fence == 2


def test_a_stopped_holder_keeps_it_until_the_waiter_has_seen_it_stand_still_for_a_ttl(
    tmp_path: Path, ticker: Ticker
) -> None:
    successor = lease_of(tmp_path, "successor", monotonic=ticker)
    with child(hold(tmp_path)) as pid:
        os.kill(pid, signal.SIGSTOP)
        far = time.time() + 86_400
        assert not successor.try_acquire(now=far)  # a clock that was set forward says nothing
        ticker.now += TTL
        assert not successor.try_acquire(now=far)
        ticker.now += 0.01
        assert successor.try_acquire(now=far)


def test_a_heartbeat_starts_the_wait_anew(tmp_path: Path, ticker: Ticker) -> None:
    holder = lease_of(tmp_path, "holder")
    successor = lease_of(tmp_path, "successor", monotonic=ticker)
    assert holder.try_acquire(now=1.0)
    assert not successor.try_acquire()
    ticker.now += TTL
    holder.heartbeat(now=2.0)
    assert not successor.try_acquire()
    ticker.now += TTL
    assert not successor.try_acquire()


@pytest.mark.parametrize("step", [-86_400.0, -3600.0, 3600.0, 86_400.0])
def test_a_step_of_the_clock_takes_nothing_from_a_living_holder(tmp_path: Path, step: float) -> None:
    holder, other = lease_of(tmp_path, "holder"), lease_of(tmp_path, "other")
    assert holder.try_acquire()
    assert not other.try_acquire(now=time.time() + step)
    holder.heartbeat(now=time.time() + step)
    assert not other.try_acquire()
    assert other.is_held_by_other()


# -- what is planted


def test_what_names_the_holder_is_on_the_disk_before_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T4: after a power cut an empty lease would have to be watched for a ttl, by each command that is typed."""
    synced = set()
    sync = os.fsync

    def noting(fd: int) -> None:
        sync(fd)
        synced.add(os.fstat(fd).st_ino)

    monkeypatch.setattr(os, "fsync", noting)
    lease = lease_of(tmp_path, "mine")
    assert lease.try_acquire()
    assert os.stat(lease.path).st_ino in synced
    assert os.stat(tmp_path / FOLDER / "s.fence").st_ino in synced
    assert os.stat(tmp_path / FOLDER).st_ino in synced


PLANTED = [
    b"somebody\n99999999999.0",
    b"somebody\ninf",
    b"somebody\nnan",
    b"",
    b"{",
    b"{}",
    b"\x00" * 5000,
    b"somebody\n1\n",
    b'{"version": 99}',
]


@pytest.mark.parametrize("content", PLANTED)
def test_nonsense_holds_for_a_ttl_and_no_longer(tmp_path: Path, ticker: Ticker, content: bytes) -> None:
    """C50."""
    plant(tmp_path, content)
    lease = lease_of(tmp_path, "mine", monotonic=ticker)
    assert lease.is_held_by_other()
    assert not lease.try_acquire()
    ticker.now += TTL + 0.01
    assert lease.try_acquire()
    lease.heartbeat()


@pytest.mark.parametrize("kind", ["folder", "full folder", "link", "dangling link", "pipe", "socket", "50 MB"])
def test_what_is_no_lease_file_holds_for_a_ttl_and_no_longer(tmp_path: Path, ticker: Ticker, kind: str) -> None:
    """C50, C71: never opened for reading when that could block, never followed, never read whole."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"pid-1-x\n99999999999")
    path = tmp_path / "s.drain.lease"
    with plant_kind(kind, path, victim):
        lease = lease_of(tmp_path, "mine", monotonic=ticker)
        assert not lease.try_acquire()
        assert lease.holder() is None
        ticker.now += TTL + 0.01
        assert lease.try_acquire()
    assert stat.S_ISREG(path.lstat().st_mode)
    assert victim.read_bytes() == b"pid-1-x\n99999999999"


@contextlib.contextmanager
def plant_kind(kind: str, path: Path, victim: Path) -> Iterator[None]:
    server = socket.socket(socket.AF_UNIX)
    try:
        if "folder" in kind:
            path.mkdir()
            if kind == "full folder":
                (path / "file").touch()
        elif kind.endswith("link"):
            path.symlink_to(victim if kind == "link" else path.with_name("nowhere"))
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "socket":
            server.bind(os.fspath(path))
        else:
            with path.open("wb") as file:
                file.truncate(50 * 2**20)
        yield
    finally:
        server.close()


@pytest.mark.parametrize("content", PLANTED)
def test_a_holder_whose_lease_is_spoilt_has_lost_it(tmp_path: Path, content: bytes) -> None:
    """C50: the holder stops, so there are never two."""
    holder = lease_of(tmp_path, "holder")
    assert holder.try_acquire()
    plant(tmp_path, content)
    with pytest.raises(LeaseLost):
        holder.heartbeat()
    with pytest.raises(LeaseLost):
        holder.verify()


@pytest.mark.parametrize("kind", ["folder", "link", "pipe", "socket"])
def test_a_take_over_tidies_past_what_others_have_planted(tmp_path: Path, kind: str) -> None:
    with plant_kind(kind, tmp_path / "other.drain.lease", tmp_path / "victim"):
        assert lease_of(tmp_path, "mine").try_acquire()


def test_a_fence_that_cannot_be_read_goes_on_above(tmp_path: Path) -> None:
    lease = lease_of(tmp_path, "mine")
    (tmp_path / FOLDER / "s.fence").write_bytes(b"nonsense")
    before = int(time.time())
    assert lease.try_acquire()
    assert lease.fence > before


# -- late acts of a former holder


def succeeded(root: Path) -> tuple[DrainLease, DrainLease]:
    """A former holder that does not know it yet, and its successor."""
    ticker = Ticker()
    former, successor = lease_of(root, "former"), lease_of(root, "successor", monotonic=ticker)
    assert former.try_acquire()
    assert not successor.try_acquire()
    ticker.now += TTL + 0.01
    assert successor.try_acquire()
    return former, successor


def test_a_late_heartbeat_takes_nothing_back(tmp_path: Path) -> None:
    """C20."""
    former, successor = succeeded(tmp_path)
    with pytest.raises(LeaseLost) as raised:
        former.heartbeat()
    assert raised.value.holder == successor.owner
    successor.verify()


def test_a_late_release_removes_nothing(tmp_path: Path) -> None:
    """C20."""
    former, successor = succeeded(tmp_path)
    former.release()
    successor.heartbeat()
    third = lease_of(tmp_path, "third")
    assert not third.try_acquire()
    assert third.is_held_by_other()


def test_a_heartbeat_does_not_make_a_lease_that_is_gone(tmp_path: Path) -> None:
    lease = lease_of(tmp_path, "mine")
    assert lease.try_acquire()
    os.unlink(lease.path)
    with pytest.raises(LeaseLost):
        lease.heartbeat()
    assert not os.path.exists(lease.path)


def test_a_release_lets_the_successor_start_at_once(tmp_path: Path) -> None:
    former, successor = lease_of(tmp_path, "former"), lease_of(tmp_path, "successor")
    assert former.try_acquire()
    assert not successor.try_acquire()
    former.release()
    former.release()
    assert successor.try_acquire()
    assert os.listdir(tmp_path / FOLDER).count(f"{former.owner}.alive") == 0


def test_the_fence_grows_with_each_take_over(tmp_path: Path) -> None:
    fences = []
    for token in "abc":
        lease = lease_of(tmp_path, token)
        assert lease.try_acquire()
        assert lease.try_acquire()  # once more by the same one is no take-over
        fences.append(lease.fence)
        lease.release()
    assert fences == [1, 2, 3]


# -- the proof of life


def test_a_child_that_inherits_the_descriptors_does_not_keep_the_lease_alive(tmp_path: Path) -> None:
    pid_read, pid_write = os.pipe()

    def hold_and_fork() -> None:
        hold(tmp_path)()
        if os.fork() == 0:
            os.write(pid_write, str(os.getpid()).encode())
            signal.pause()
            os._exit(0)

    with child(hold_and_fork) as pid:
        grandchild = int(os.read(pid_read, 20))
        try:
            assert not lease_of(tmp_path, "other").try_acquire()
            kill(pid)
            os.kill(grandchild, 0)  # it lives, with what it inherited
            assert lease_of(tmp_path, "successor").try_acquire()
        finally:
            os.kill(grandchild, signal.SIGKILL)
    os.close(pid_read)
    os.close(pid_write)


def test_an_alive_file_of_another_boot_proves_nothing(tmp_path: Path) -> None:
    with child(hold(tmp_path)) as pid:
        kill(pid)
    (alive,) = (tmp_path / FOLDER).glob("*.alive")
    alive.write_text("another boot\n1\n1\n")
    waiting = lease_of(tmp_path, "waiting")
    assert not waiting.try_acquire()
    assert waiting.try_acquire(now=time.time() + TTL + 1)  # its own stamp decides then


@pytest.mark.parametrize("age", [0.0, TTL - 1])
def test_another_ports_fresh_lease_is_respected(tmp_path: Path, age: float) -> None:
    plant(tmp_path, f"pid-1-rust\n{time.time() - age}".encode())
    assert not lease_of(tmp_path, "mine").try_acquire()


def test_another_ports_old_lease_is_taken(tmp_path: Path) -> None:
    plant(tmp_path, f"pid-1-rust\n{int(time.time() - TTL - 1)}".encode())
    assert lease_of(tmp_path, "mine").try_acquire()


def test_what_the_dead_have_left_is_removed_by_a_take_over(tmp_path: Path) -> None:
    with child(hold(tmp_path, "first")) as pid:
        (tmp_path / f".s.drain.lease.tmp.pid-{pid}-first").write_bytes(b"half")
        kill(pid)
    assert lease_of(tmp_path, "second").try_acquire()
    third = lease_of(tmp_path, "third", stream="other")
    assert third.try_acquire()
    left = [name for name in os.listdir(tmp_path / FOLDER) if name.endswith(".alive")]
    assert sorted(left) == sorted(f"pid-{os.getpid()}-{token}.alive" for token in ("second", "third"))
    assert [name for name in os.listdir(tmp_path) if "tmp" in name] == []


def test_the_life_of_a_file(tmp_path: Path) -> None:
    path = str(tmp_path / "x.alive")
    assert life_of(path) is Life.UNKNOWN
    mine, same = AliveFile(path), AliveFile(path)
    mine.hold()
    same.hold()
    assert life_of(path) is Life.HELD
    mine.drop()
    assert life_of(path) is Life.HELD
    same.drop()
    assert life_of(path) is Life.UNKNOWN


# -- names and bytes


def test_streams_with_one_safe_name_exclude_each_other(tmp_path: Path) -> None:
    one, other = lease_of(tmp_path, "one", stream="a.b"), lease_of(tmp_path, "other", stream="a_b")
    assert one.path == other.path == str(tmp_path / "a_b.drain.lease")
    assert one.try_acquire()
    assert not other.try_acquire()


def test_the_bytes_of_a_lease(tmp_path: Path) -> None:
    lease = lease_of(tmp_path, "token", stream="Ä-x_1.y")
    assert lease.try_acquire(now=1700000000.25)
    assert (tmp_path / "_-x_1_y.drain.lease").read_bytes() == f"pid-{os.getpid()}-token\n1700000000.25".encode()
    lease.heartbeat(now=1700000005)
    assert (tmp_path / "_-x_1_y.drain.lease").read_bytes() == f"pid-{os.getpid()}-token\n1700000005".encode()


@pytest.mark.parametrize("mask", [0o000, 0o077, 0o277])
def test_everything_is_ours_alone_under_any_umask(tmp_path: Path, mask: int) -> None:
    """C72."""
    before = os.umask(mask)
    try:
        lease = lease_of(tmp_path, "mine")
        assert lease.try_acquire()
    finally:
        os.umask(before)
    files = [Path(lease.path), *(tmp_path / FOLDER).iterdir()]
    assert len(files) == 4
    assert {stat.S_IMODE(each.stat().st_mode) for each in files} == {0o600}
    folders = [tmp_path / FOLDER, (tmp_path / FOLDER).parent]
    assert {stat.S_IMODE(each.stat().st_mode) for each in folders} == {0o700}


def test_a_full_disk_is_reported_and_the_lease_stays_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = lease_of(tmp_path, "mine")
    assert lease.try_acquire(now=1.0)
    with monkeypatch.context() as patch:
        patch.setattr("queuekit.lease.os.write", lambda fd, data: len(data) - 1)
        with pytest.raises(WriteFailed):
            lease.heartbeat(now=2.0)
    assert Path(lease.path).read_bytes().endswith(b"\n1.0")
    assert [name for name in os.listdir(tmp_path) if "tmp" in name] == []
    lease.heartbeat(now=3.0)


# -- the short lock


def test_the_lock_is_exclusive_between_threads_and_taken_again_by_its_own(tmp_path: Path) -> None:
    lock = StreamLock(str(tmp_path / "lock"))
    inside, most, count = 0, 0, 0

    def work() -> None:
        nonlocal inside, most, count
        for _ in range(200):
            with lock, lock:
                inside += 1
                most = max(most, inside)
                count += 1
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, count) == (1, 800)


def test_a_lock_held_elsewhere_is_waited_for_only_so_long(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    with StreamLock(path), pytest.raises(BackendUnavailable), StreamLock(path, patience=0.05):
        pytest.fail("both have it")
    with StreamLock(path, patience=0.05):
        assert os.path.exists(path)


def test_a_lock_whose_holder_was_killed_is_free(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")

    def enter() -> None:
        lock = StreamLock(path)
        lock.__enter__()
        locks.append(lock)

    locks: list[StreamLock] = []
    with child(enter) as pid:
        with pytest.raises(BackendUnavailable), StreamLock(path, patience=0.02):
            pytest.fail("both have it")
        kill(pid)
        with StreamLock(path, patience=0.02):
            assert os.path.exists(path)


def test_a_lock_whose_folder_was_made_anew_is_the_one_that_others_see(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    lock = StreamLock(str(folder / "lock"))
    with lock:
        (folder / "lock").unlink()
        folder.rmdir()
        folder.mkdir()
    other = StreamLock(str(folder / "lock"), patience=0.02)
    with lock, pytest.raises(BackendUnavailable), other:
        pytest.fail("both have it")


def test_a_lock_closed_while_it_is_held_is_given_up_at_the_end(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    lock, other = StreamLock(path), StreamLock(path, patience=0.02)
    with lock:
        lock.close()
        with pytest.raises(BackendUnavailable), other:
            pytest.fail("both have it")
    with other:
        assert os.path.exists(path)
    with lock:
        assert os.path.exists(path)
