"""A mounted maildir: its open folders, its stream locks, and the few things that every part of the backend does.

Mounting makes what is missing, refuses what is not safe (a folder that is a link, a root that others can write, another
user's root, folders on different filesystems) and sweeps what dead writers left in tmp/.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from queuekit import lease as leases
from queuekit.backends.maildir import layout
from queuekit.backends.maildir.fsops import FileOps
from queuekit.clock import ProcessClock, now_ms
from queuekit.contract import Lease
from queuekit.errors import BackendUnavailable, DecodingFailed, DirectoryCreationFailed, LeaseLost, WriteFailed
from queuekit.ids import safe_stream
from queuekit.job import Job
from queuekit.locks import StreamLock
from queuekit.wire import decode_job

T = TypeVar("T")
_log = logging.getLogger("queuekit.maildir")

_FOLDERS = (
    *layout.SHARED_FOLDERS,
    layout.LATER,
    layout.PRIVATE,
    leases.FOLDER,
    layout.INTENTS,
    layout.DOSSIERS,
)
EXTENSIONS_BYTES = 2**20  # what a job file may hold beside its payload when it is sent
_RECORD_BYTES = 2**18  # what a delivery record can add afterwards
_SYNC_EACH = 12  # so few files are synced one by one: cheaper than syncing the whole filesystem
_SLOW_BARRIER_SECONDS = 0.2
_SLOW_BARRIER_PAUSE = 30.0


class Durability(enum.StrEnum):
    """What a send or reply has on disk when it returns: all of it, only the folder's entries, nothing."""

    FULL = "full"
    BATCH = "batch"
    NONE = "none"


class Mount:
    """The folders of one root, opened. Attributes `tmp`, `new`, `cur`, `done`, `claim`, `later`, … are descriptors."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        ops: FileOps,
        clock: ProcessClock,
        durability: Durability,
        max_job_bytes: int,
        patience: float,
    ) -> None:
        self.root = os.path.realpath(os.fspath(root))
        self.ops = ops
        self.clock = clock
        self.durability = durability
        self.max_job_bytes = max_job_bytes
        self.max_file_bytes = max_job_bytes * 4 // 3 + EXTENSIONS_BYTES
        self._patience = patience
        self._fds: dict[str, int] = {}
        self._locks: dict[str, StreamLock] = {}
        self._guard = threading.RLock()
        self._slow_until = 0.0
        self._token = os.urandom(6).hex()
        self._serial = 0
        self.heal()
        self._sweep()

    tmp = property(lambda self: self._fds[layout.TMP])
    new = property(lambda self: self._fds[layout.NEW])
    cur = property(lambda self: self._fds[layout.CUR])
    done = property(lambda self: self._fds[layout.DONE])
    claim = property(lambda self: self._fds[layout.CLAIM])
    later = property(lambda self: self._fds[layout.LATER])
    intents = property(lambda self: self._fds[layout.INTENTS])
    dossiers = property(lambda self: self._fds[layout.DOSSIERS])

    # -- folders

    def heal(self) -> None:
        """Make missing folders and open those whose path leads elsewhere now.

        Raises `DirectoryCreationFailed` when a folder cannot be made, opened or trusted.
        """
        with self._guard:
            path = self.root
            try:
                if not os.path.isdir(path):
                    os.makedirs(path, mode=0o700, exist_ok=True)
                    os.chmod(path, 0o700)
                self._check_root(os.stat(path))
                for folder in _FOLDERS:
                    path = os.path.join(self.root, folder)
                    self._open(folder, path)
            except OSError as error:
                raise DirectoryCreationFailed(path, error.strerror or str(error)) from error

    def _check_root(self, facts: os.stat_result) -> None:
        if facts.st_mode & stat.S_IWOTH and not facts.st_mode & stat.S_ISVTX:
            raise DirectoryCreationFailed(self.root, "others can write it: chmod o-w it, or choose another folder")
        if facts.st_uid != os.geteuid():
            raise DirectoryCreationFailed(
                self.root, f"it belongs to uid {facts.st_uid} and this is uid {os.geteuid()}: one user a queue"
            )

    def _open(self, folder: str, path: str) -> None:
        known = self._fds.get(folder, -1)
        with contextlib.suppress(FileNotFoundError):
            if known >= 0 and os.path.samestat(os.fstat(known), os.stat(path, follow_symlinks=False)):
                return
        self.ops.make_folder(path)
        fd = self.ops.open_folder(path)
        if os.fstat(fd).st_dev != os.stat(self.root).st_dev:
            os.close(fd)
            raise DirectoryCreationFailed(path, "it is on another filesystem than the root")
        self._fds[folder] = fd
        if known >= 0:
            os.close(known)
        if folder == leases.FOLDER:
            for lock in self._locks.values():
                lock.close()

    def healed(self, act: Callable[[], T]) -> T:
        """Do `act`; when a folder went missing under it, make it again and do `act` once more (the ENOENT race)."""
        again = Retrying(
            stop=stop_after_attempt(2),
            retry=retry_if_exception_type(FileNotFoundError),
            before_sleep=lambda _: self.heal(),
            reraise=True,
        )
        return again(act)

    def heal_if_gone(self, *folders: int) -> bool:
        """Whether one of these open folders was removed; then they are made and opened again."""
        if all(os.fstat(folder).st_nlink for folder in folders):
            return False
        self.heal()
        return True

    def names(self, folder: int) -> list[str]:
        """The names of the regular files in a folder; raises `BackendUnavailable` when it cannot be read."""
        try:
            return [entry.name for entry in self.ops.entries(folder) if entry.is_file(follow_symlinks=False)]
        except OSError as error:
            raise BackendUnavailable(f"cannot list a folder of {self.root}: {error.strerror}") from error

    def exists(self, folder: int, name: str) -> bool:
        """Whether there is an entry of this name; raises `BackendUnavailable` when that cannot be told."""
        try:
            self.ops.stat(folder, name)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise BackendUnavailable(f"cannot look for {name}: {error.strerror}") from error
        return True

    def close(self) -> None:
        """Close every descriptor; any number of times."""
        with self._guard:
            for lock in self._locks.values():
                lock.close()
            for fd in self._fds.values():
                os.close(fd)
            self._fds.clear()

    # -- locks

    @contextlib.contextmanager
    def acting(self, stream: str, lease: Lease | None) -> Iterator[None]:
        """Hold the stream's lock; with a lease, it is the stream's and ours meanwhile, else `LeaseLost`."""
        with self.lock(stream):
            if lease is not None:
                if lease.stream != stream:
                    raise LeaseLost(stream, f"a lease of stream {lease.stream!r} was given")
                lease.verify()
            yield

    def lock(self, stream: str) -> StreamLock:
        """The stream's short lock."""
        safe = safe_stream(stream)
        lock = self._locks.get(safe)
        if lock is None:
            with self._guard:
                path = os.path.join(self.root, leases.FOLDER, f"{safe}.lock")
                lock = self._locks.setdefault(safe, StreamLock(path, self._patience))
        return lock

    # -- files

    def stage(self, data: bytes, *, sync: bool) -> str:
        """Write a new file into tmp/ under a name that nobody else uses; it is removed again when that fails."""
        name = self._temporary_name()
        try:
            try:
                self.ops.create(self.tmp, name, data, sync=sync)
            except FileNotFoundError:
                self.heal()
                self.ops.create(self.tmp, name, data, sync=sync)
        except BaseException:
            self.discard([name])
            raise
        return name

    def stage_all(self, contents: Sequence[bytes]) -> list[str]:
        """Write many files into tmp/, all synced when this returns (as far as the durability asks for it)."""
        full = self.durability is Durability.FULL
        whole = full and len(contents) > _SYNC_EACH and self._can_use_barrier()
        names: list[str] = []
        try:
            for data in contents:
                names.append(self.stage(data, sync=full and not whole))
            if whole:
                self._barrier()
        except BaseException:
            self.discard(names)
            raise
        return names

    def discard(self, names: Sequence[str]) -> None:
        """Remove files from tmp/ that will not be used; the next sweep gets what cannot be removed now."""
        for name in names:
            with contextlib.suppress(OSError):
                self.ops.unlink(self.tmp, name)

    def sync_folder(self, folder: int) -> None:
        """Make a folder's entries durable, unless the durability is `none`."""
        if self.durability is not Durability.NONE:
            self.ops.sync_folder(folder)

    def read_job(self, folder: int, name: str, job_name: str | None = None) -> tuple[Job, os.stat_result]:
        """The job in a file, and the file's facts while it was open.

        `job_name`: the job's file name where it is stored under another one (in later/ and claim/). Raises
        `DecodingFailed` when the file holds no job or not the one that its name says, and the system's errors.
        """
        limit = self.max_file_bytes + _RECORD_BYTES
        data, facts = self.ops.read(folder, name, limit)
        if not stat.S_ISREG(facts.st_mode):
            raise DecodingFailed("not a regular file")
        if len(data) > limit:
            raise DecodingFailed(f"larger than {limit} bytes")
        job = decode_job(data)
        if layout.job_filename(job) != (job_name or name):
            raise DecodingFailed("the file's name does not belong to the job inside", job.id)
        return job, facts

    def _temporary_name(self) -> str:
        with self._guard:
            self._serial += 1
            return f"{os.getpid()}-{self._token}-{self._serial}"

    def _can_use_barrier(self) -> bool:
        return self.ops.can_sync_filesystem and time.monotonic() >= self._slow_until

    def _barrier(self) -> None:
        begun = time.monotonic()
        self.ops.sync_filesystem(self.tmp)
        if time.monotonic() - begun > _SLOW_BARRIER_SECONDS:  # others write a lot: sync only our own for a while
            self._slow_until = time.monotonic() + _SLOW_BARRIER_PAUSE

    def _sweep(self) -> None:
        """Remove what was left in tmp/ by writers that are dead for sure."""
        horizon = now_ms() / 1000 - layout.STALE_TMP_SECONDS
        for name in self.names(self.tmp):
            try:
                if self.ops.stat(self.tmp, name).st_mtime < horizon:
                    self.ops.unlink(self.tmp, name)
                    _log.info("removed %s, left over in tmp/", name)
            except OSError as error:
                _log.debug("left %s in tmp/: %s", name, error)


class as_write_failed:  # noqa: N801  reads as a statement
    """Translate the system's errors into `WriteFailed` about `what`. A class, for it stands in the hot path."""

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise WriteFailed(self._what, error.strerror or str(error)) from error
