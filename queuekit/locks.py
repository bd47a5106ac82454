"""The two file locks that leases and settling stand on. System calls only; who may do what is decided elsewhere.

`StreamLock` is the short one: whoever moves a job of a stream out of cur/, later/ or done/, or touches the stream's
lease, holds it meanwhile, so that a check and the act that it allows are never apart. Its file is never unlinked.

`AliveFile` is the lifelong one: a lease holder keeps it locked, and the kernel frees it at the holder's death, however
that comes. Whoever can lock it knows that the holder is dead.

Both are `flock`: it belongs to the open file, so a forked child shares its parent's lock until it closes its copy.
Every descriptor here is therefore close-on-exec and is closed first thing in a forked child.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import fcntl
import functools
import os
import threading
import time
import weakref
from collections.abc import Iterator
from types import TracebackType

from queuekit.errors import BackendUnavailable

PATIENCE_SECONDS = 10.0
_ALIVE = ".alive"
_TELLING_NS = 3600 * 10**9
_FOUND_DEAD = 2  # which line after the boot's, written when somebody first finds that nobody holds the file
_OPEN = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class StreamLock:
    """Exclusive use of one stream's bookkeeping, between threads and processes of one host. Use with `with`;
    a thread that has it may take it again.

    Raises `BackendUnavailable` when it is not free for `patience` seconds (its holder may be stopped) or when its file
    cannot be opened.
    """

    def __init__(self, path: str, patience: float = PATIENCE_SECONDS) -> None:
        self._path = path
        self._patience = patience
        self._fd = -1
        self._threads = threading.RLock()
        self._depth = 0
        self._left = False  # close at the end of the present use
        _open_locks.add(self)

    def __enter__(self) -> None:
        if not self._threads.acquire(timeout=self._patience):
            raise BackendUnavailable(f"another thread holds {self._path}")
        try:
            if self._depth == 0:
                self._lock_file()
            self._depth += 1
        except BaseException:
            self._threads.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        try:
            if self._depth == 0:
                self._unlock_file()
        finally:
            self._threads.release()

    def _unlock_file(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        except OSError:
            self._left = True  # closing it unlocks it, too
        if self._left:
            self._close()

    def close(self) -> None:
        """Close the descriptor, after the use that is under way; the next use opens it anew."""
        if not self._threads.acquire(blocking=False):
            self._left = True
            return
        try:
            if self._depth:
                self._left = True
            else:
                self._close()
        finally:
            self._threads.release()

    def forget(self) -> None:
        """In a forked child: close the copy and forget the parent's threads."""
        self._close()
        self._threads, self._depth = threading.RLock(), 0

    def __del__(self) -> None:
        self._close()

    def _close(self) -> None:
        self._left = False
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            _close(fd)

    def _lock_file(self) -> None:
        pause, deadline = 0.0002, 0.0
        while obstacle := self._try_to_lock():
            deadline = deadline or time.monotonic() + self._patience
            if time.monotonic() >= deadline:
                raise BackendUnavailable(f"{self._path} {obstacle} for {self._patience:g} s")
            time.sleep(pause)
            pause = min(pause * 2, 0.02)

    def _try_to_lock(self) -> str:
        """What is in the way; "" when it is locked now."""
        try:
            if self._fd < 0:
                self._fd = _open_private(self._path)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(self._fd, self._path):
                return ""
        except BlockingIOError:
            return "is held by another process"
        except OSError as error:
            self._close()
            raise BackendUnavailable(f"cannot lock {self._path}: {error.strerror}") from error
        self._close()  # the folder was moved or removed under us: lock the file that others see
        return "is another file at each look"


class Life(enum.Enum):
    """What an alive file tells about its owner."""

    HELD = "held"  # a living process has it locked
    DEAD = "dead"  # of this boot, and free
    UNKNOWN = "unknown"  # no such file, or of another boot: nothing can be told


class AliveFile:
    """The proof of life of one lease owner, in the folder of the leases."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._held = False

    def hold(self) -> None:
        """Lock it until `drop` or death. Objects of one process with the same path share one lock.

        Held already, it is looked at, and made again when its folder is another one by now.
        """
        with _held_guard:
            fd, users = _held_alive.get(self._path, (-1, 0))
            if fd < 0 or not _is_at(fd, self._path):
                fresh = _lock_current_file(self._path)
                _describe(fresh)
                if fd >= 0:
                    _close(fd)
                fd = fresh
            _held_alive[self._path] = (fd, users + (not self._held))
        self._held = True

    def drop(self) -> None:
        """Stop holding it; the last user in this process removes the file."""
        if not self._held:
            return
        self._held = False
        with _held_guard:
            fd, users = _held_alive.pop(self._path, (-1, 0))
            if users > 1:
                _held_alive[self._path] = (fd, users - 1)
            elif fd >= 0:
                with contextlib.suppress(OSError):  # the next take-over removes what is left here
                    os.unlink(self._path)
                _close(fd)


def life_of(path: str) -> Life:
    """What the alive file at `path` tells. Whoever calls this holds the stream's lock."""
    with _try_locked(path) as fd:
        if fd is None:
            return Life.UNKNOWN
        if fd < 0:
            return Life.HELD
        recorded = os.pread(fd, 200, 0).decode(errors="replace").split("\n")[0]
        return Life.DEAD if recorded == boot_id() else Life.UNKNOWN


def remove_dead(path: str) -> bool:
    """Unlink an alive file if nobody holds it; whether that was so."""
    with _try_locked(path) as fd:
        if fd is None or fd < 0 or not _is_at(fd, path):  # given up, and held anew, since it was opened
            return False
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        return True


def sweep_dead(folder: str) -> None:
    """Unlink those alive files of a folder that tell nothing any more; for a folder that many queues have in common.

    Nobody holds them, and they are of another boot, or a sweep found them so an hour ago: who would follow the dead one
    has done it, or goes by the time of its last heartbeat. What cannot be looked at or unlinked stays.
    """
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if name.endswith(_ALIVE):
                _sweep(os.path.join(folder, name))


def _sweep(path: str) -> None:
    now = time.monotonic_ns()
    with contextlib.suppress(OSError), _try_locked(path) as fd:
        if fd is None or fd < 0 or not _is_at(fd, path):
            return
        boot, *facts = os.pread(fd, 200, 0).decode(errors="replace").split("\n")
        found = facts[_FOUND_DEAD] if len(facts) > _FOUND_DEAD else ""
        if boot != boot_id() or (found.isdecimal() and now - int(found) >= _TELLING_NS):
            os.unlink(path)
        elif not found:
            os.pwrite(fd, f"{now}\n".encode(), os.fstat(fd).st_size)


@functools.cache
def boot_id() -> str:
    """A text that is the same until the host restarts. Raises `OSError` when it cannot be read now."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except FileNotFoundError:  # not Linux
        import psutil

        return f"boot-{psutil.boot_time():.0f}"


@contextlib.contextmanager
def _try_locked(path: str) -> Iterator[int | None]:
    """The locked descriptor of an existing file; -1 when somebody holds it, None when there is no such file."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        yield None
        return
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.EISDIR, errno.EACCES}:
            yield None
            return
        raise
    try:
        yield fd if _lock_at_once(fd) else -1
    finally:
        _close(fd)


def _close(fd: int) -> None:
    """Close it, and with that unlock it. What close reports is about data, and there is none that anybody relies on."""
    with contextlib.suppress(OSError):
        os.close(fd)


def _open_private(path: str) -> int:
    """Open the file, made with mode 0600 whatever the umask."""
    fd = os.open(path, _OPEN, 0o600)
    try:
        if os.fstat(fd).st_mode & 0o777 != 0o600:
            os.fchmod(fd, 0o600)
    except BaseException:
        _close(fd)
        raise
    return fd


def _lock_at_once(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_current_file(path: str) -> int:
    """Create or open the file at `path` and lock it, so that the locked one is the one at that path."""
    for _ in range(100):
        fd = _open_private(path)
        try:
            if _lock_at_once(fd) and _is_at(fd, path):
                return fd
        except BaseException:
            _close(fd)
            raise
        _close(fd)
        time.sleep(0.001)  # somebody looks whether it is held, or removed it as left over: that takes an instant
    raise BackendUnavailable(f"cannot lock {path}: it stays in use")


def _describe(fd: int) -> None:
    """Say whose life it is, and of which boot: without that nobody may take it for dead."""
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{boot_id()}\n{os.getpid()}\n{time.monotonic_ns()}\n".encode(), 0)
    except BaseException:
        _close(fd)
        raise


def _is_at(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def forget_all() -> None:
    """Close every lock of this process: for a forked child, which only has its parent's, and for tests."""
    for lock in _open_locks:
        lock.forget()
    for fd, _ in _held_alive.values():
        _close(fd)
    _held_alive.clear()


_open_locks: weakref.WeakSet[StreamLock] = weakref.WeakSet()
_held_alive: dict[str, tuple[int, int]] = {}
_held_guard = threading.Lock()
os.register_at_fork(before=_held_guard.acquire, after_in_parent=_held_guard.release, after_in_child=_held_guard.release)
os.register_at_fork(after_in_child=forget_all)
