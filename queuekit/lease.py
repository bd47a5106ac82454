"""Drain leases: one consumer a stream at a time, on a file that all ports understand.

`<root>/<stream>.drain.lease` holds `<owner>\\n<epoch seconds>` and is replaced as a whole. The holder renews it;
whoever waits takes it when its time is over. Two more facts make that sound on one host, and other ports do not mind
them:

* every look and every write happens under the stream's lock (`locks.StreamLock`), so two takers cannot both win, a late
  heartbeat cannot steal a lease back, and a late release cannot remove a successor's;
* the holder keeps an alive file locked. Free: it is dead, and the lease is taken at once. Held: it lives, and only a
  lease that the waiter has itself seen unchanged for a whole ttl, on a clock that cannot be stepped, counts as stale.

A lease is on the disk before its name is, so that a power cut leaves one that can be read, and judged at once by
whoever comes next. (Heartbeats are not synced: ext4 and btrfs write out what replaces a file, others may leave an empty
one, which everybody has to watch for a ttl.)

`judge` is the rule, without I/O; `DrainLease` gathers the facts for it and acts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import errno
import logging
import math
import os
import stat
import time
from collections.abc import Callable, Iterator

from queuekit.errors import BackendUnavailable, DirectoryCreationFailed, InvalidIdentifier, LeaseLost, WriteFailed
from queuekit.ids import check_identifier, safe_stream
from queuekit.locks import PATIENCE_SECONDS, AliveFile, Life, StreamLock, life_of, remove_dead
from queuekit.private import make_folders

FOLDER = ".workerpool/lease"  # below the queue's root: locks, alive files, take-over counters
SUFFIX = ".drain.lease"
DEFAULT_TTL = 15.0
HEARTBEAT_FRACTION = 3
FENCE_BITS = 32  # of a run's number, below those of the take-over
_LARGEST = 4096
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_log = logging.getLogger("queuekit.lease")


class Verdict(enum.Enum):
    """What a lease is to somebody who looks at it."""

    FREE = "free"
    OURS = "ours"
    STALE = "stale"
    FRESH = "fresh"


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """What a lease file says: its owner, and when it was last renewed (epoch seconds, by the owner's clock)."""

    owner: str
    at: float

    def encode(self) -> bytes:
        """The file's content: no newline at the end."""
        return f"{self.owner}\n{self.at!r}".encode()

    @classmethod
    def decode(cls, content: bytes) -> Record | None:
        """The record; None when the content is nothing that any port writes."""
        try:
            owner, at = content.decode().split("\n")
            return cls(owner, float(at)) if owner and not owner.endswith("\r") else None
        except ValueError:
            return None


def judge(content: bytes | None, *, owner: str, now: float, ttl: float, life: Life, unchanged: float) -> Verdict:
    """What a lease file with this content (None: absent) is to `owner`.

    `now`: wall clock, seconds; `life`: what the alive file of its holder tells; `unchanged`: for how many seconds of a
    monotonic clock the one who asks has seen just this content.
    """
    if content is None:
        return Verdict.FREE
    record = Record.decode(content)
    if record and record.owner == owner:
        return Verdict.OURS
    if life is Life.DEAD or unchanged > ttl:
        return Verdict.STALE
    if life is Life.HELD or record is None or not math.isfinite(record.at):
        return Verdict.FRESH
    return Verdict.STALE if now - record.at > ttl else Verdict.FRESH


class DrainLease:
    """The lease of one stream, as seen by one would-be holder. Safe to use from several threads.

    `directory`: the queue's root; `instance_token`: text that is different for each start of each consumer; `ttl`:
    seconds after which a lease that is not renewed counts as stale; `patience`: seconds to wait for the stream's lock.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        stream: str,
        instance_token: str,
        ttl: float = DEFAULT_TTL,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        check_identifier(stream)
        check_identifier(instance_token)
        self.stream = stream
        self.ttl = ttl
        self.owner = f"pid-{os.getpid()}-{instance_token}"
        self.fence = 0
        self._directory = os.fspath(directory)
        self._leases = os.path.join(self._directory, FOLDER)
        self._safe = safe_stream(stream)
        self._monotonic = monotonic
        self._alive = AliveFile(self._alive_path(self.owner))
        self._seen: tuple[bytes | None, float] = (None, monotonic())
        try:
            make_folders(self._leases)
        except OSError as error:
            raise DirectoryCreationFailed(self._leases, error.strerror or "") from error
        self._lock = StreamLock(os.path.join(self._leases, f"{self._safe}.lock"), patience)

    @property
    def path(self) -> str:
        """The lease file."""
        return os.path.join(self._directory, f"{self._safe}{SUFFIX}")

    @property
    def heartbeat_interval(self) -> float:
        """Seconds between two heartbeats of a holder: a third of the ttl."""
        return self.ttl / HEARTBEAT_FRACTION

    def run_number(self, claims: int, attempt: int) -> int:  # noqa: ARG002
        """The number of the take-over, then of the claim."""
        return self.fence << FENCE_BITS | claims

    def try_acquire(self, now: float | None = None) -> bool:
        """Take the lease when it is absent, stale or already ours; True when it is ours now.

        `now`: epoch seconds (default: the clock). Raises `WriteFailed` or `BackendUnavailable` when the lease cannot be
        written or locked.
        """
        at = time.time() if now is None else now
        self._restore_folder()
        with self._lock:
            verdict = self._judge(at)
            if verdict is Verdict.FRESH:
                return False
            with _as_write_failed(self.path):
                self._alive.hold()
                if verdict is not Verdict.OURS or not self.fence:
                    self.fence = self._count_take_over()
                self._write(at, sync=verdict is not Verdict.OURS)
            if self._holder() != self.owner:  # a port that takes no lock was faster
                return False
            if verdict is not Verdict.OURS:
                self._remove_left_over_alive_files()
            return True

    def heartbeat(self, now: float | None = None) -> None:
        """Renew the lease; raises `LeaseLost` when it is another's or gone, `WriteFailed` when it cannot be written."""
        at = time.time() if now is None else now
        self._restore_folder()
        with self._lock:
            self.verify()
            with _as_write_failed(self.path):
                self._write(at)

    def verify(self) -> None:
        """Raise `LeaseLost` unless the lease is ours. Meant for a backend that holds the stream's lock.

        Raises `BackendUnavailable` while the queue's folder is gone: whose the lease is cannot be told then.
        """
        holder = self._holder()
        if holder == self.owner:
            return
        if holder is None and not os.path.isdir(self._directory):
            raise BackendUnavailable(f"{self._directory} is gone")
        raise LeaseLost(self.stream, holder)

    def holder(self) -> str | None:
        """The owner that the lease names, stale or not; None when there is no lease or it cannot be understood."""
        return self._holder()

    def is_held_by_other(self, now: float | None = None) -> bool:
        """Whether another one holds the lease and is not stale. Changes nothing on disk but the lock."""
        at = time.time() if now is None else now
        if self._read() is None:
            return False
        with self._lock:
            return self._judge(at) is Verdict.FRESH

    def release(self) -> None:
        """Give the lease up if it is ours, so that a successor starts at once."""
        with self._lock:
            if self._holder() == self.owner:
                with _as_write_failed(self.path), contextlib.suppress(FileNotFoundError):
                    os.unlink(self.path)
            self._alive.drop()
            self.fence = 0
        self._lock.close()

    def _restore_folder(self) -> None:
        """Make the folder of the locks again when somebody has removed it, but not the queue's own."""
        if os.path.isdir(self._leases):
            return
        if not os.path.isdir(self._directory):
            raise BackendUnavailable(f"{self._directory} is gone")
        try:
            make_folders(self._leases)
        except OSError as error:
            raise BackendUnavailable(f"cannot make {self._leases}: {error.strerror}") from error

    def _judge(self, now: float) -> Verdict:
        content = self._read()
        if content != self._seen[0]:
            self._seen = (content, self._monotonic())
        record = Record.decode(content) if content is not None else None
        return judge(
            content,
            owner=self.owner,
            now=now,
            ttl=self.ttl,
            life=self._life(record) if record and record.owner != self.owner else Life.UNKNOWN,
            unchanged=self._monotonic() - self._seen[1],
        )

    def _life(self, record: Record) -> Life:
        try:
            check_identifier(record.owner)
            return life_of(self._alive_path(record.owner))
        except (InvalidIdentifier, OSError):
            return Life.UNKNOWN

    def _alive_path(self, owner: str) -> str:
        return os.path.join(self._leases, f"{owner}.alive")

    def _holder(self) -> str | None:
        content = self._read()
        record = Record.decode(content) if content is not None else None
        return record.owner if record else None

    def _read(self) -> bytes | None:
        try:
            return _content(self.path)
        except OSError as error:
            raise BackendUnavailable(f"cannot read {self.path}: {error.strerror}") from error

    def _write(self, at: float, *, sync: bool = False) -> None:
        temporary = os.path.join(self._directory, f".{self._safe}{SUFFIX}.tmp.{self.owner}")
        _replace(temporary, self.path, Record(self.owner, at).encode(), sync=sync)

    def _count_take_over(self) -> int:
        """The next number of this stream's take-overs, durable before the lease is written."""
        path = os.path.join(self._leases, f"{self._safe}.fence")
        try:
            last = int(_content(path) or b"0")
        except ValueError:
            last = int(time.time())  # unreadable: go on above anything that was counted one by one
        _replace(f"{path}.tmp", path, str(last + 1).encode(), sync=True)
        _sync_folder(self._leases)
        return last + 1

    def _remove_left_over_alive_files(self) -> None:
        """Unlink what dead holders have left that no lease names any more."""
        try:
            names = os.listdir(self._directory)
            owners = {_owner_in(os.path.join(self._directory, name)) for name in names if _is_lease(name)}
            for name in os.listdir(self._leases):
                owner = name.removesuffix(".alive")
                if owner in {name, self.owner, *owners} or not remove_dead(os.path.join(self._leases, name)):
                    continue
                for left in (each for each in names if each.endswith(f"{SUFFIX}.tmp.{owner}")):
                    os.unlink(os.path.join(self._directory, left))
        except OSError as error:  # housekeeping only: the lease is won all the same
            _log.debug("could not tidy %s: %s", self._leases, error)


def leased_streams(folder: str) -> list[str]:
    """The streams with a lease file in this folder, held or not, in order. A name that no lease has is none's.

    Raises `BackendUnavailable` when it cannot be listed.
    """
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise BackendUnavailable(f"cannot list {folder}: {error.strerror}") from error
    streams = sorted(name.removesuffix(SUFFIX) for name in names if _is_lease(name))
    return [stream for stream in streams if safe_stream(stream) == stream]


def _is_lease(name: str) -> bool:
    return name.endswith(SUFFIX) and not name.startswith(".")


def _owner_in(path: str) -> str:
    """The first line of a lease file, whatever the rest is."""
    return (_content(path) or b"").decode(errors="replace").split("\n")[0]


def _content(path: str) -> bytes | None:
    """A small file's content; None when absent; a text that no port writes for what is not a small regular file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO}:
            return b"not a regular file"
        raise
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            return b"not a regular file"
        if facts.st_uid != os.geteuid():
            return b"of another user"  # planted in a folder that all may write to: it does not count, however fresh
        content = os.read(fd, _LARGEST + 1)
        return content if len(content) <= _LARGEST else f"too large {facts.st_size} {facts.st_mtime_ns}".encode()
    finally:
        os.close(fd)


def _replace(temporary: str, path: str, content: bytes, *, sync: bool = False) -> None:
    """Put a new file in place of the one at `path`; with `sync` a power cut leaves the one or the other, never half."""
    try:
        _write_file(temporary, content, sync=sync)
        _put_in_place(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _write_file(path: str, content: bytes, *, sync: bool) -> None:
    try:
        fd = os.open(path, _NEW, 0o600)
    except FileExistsError:  # left over, or planted: what it leads to is not ours to write
        os.unlink(path)
        fd = os.open(path, _NEW, 0o600)
    try:
        os.fchmod(fd, 0o600)
        if os.write(fd, content) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)


def _put_in_place(temporary: str, path: str) -> None:
    try:
        os.replace(temporary, path)
    except IsADirectoryError:
        os.rename(path, f"{temporary}.was-a-folder-{time.time_ns()}")  # somebody's folder is in the way: set it aside
        os.replace(temporary, path)


def _sync_folder(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _as_write_failed(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WriteFailed(path, error.strerror or str(error)) from error
