"""A mounted maildir: its open folders, its stream locks, and the few things that every part of the backend does.

Mounting makes what is missing, refuses what is not safe (a folder that is a link, a root that others can write, another
user's root, folders on different filesystems) and sweeps what dead writers left in tmp/.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from queuekit import lease as leases
from queuekit.backends.admission import EXTENSIONS_BYTES
from queuekit.backends.maildir import layout
from queuekit.backends.maildir.fsops import FileOps
from queuekit.clock import ProcessClock, now_ms
from queuekit.contract import Lease
from queuekit.errors import (
    BackendUnavailable,
    DecodingFailed,
    DirectoryCreationFailed,
    InvalidIdentifier,
    LeaseLost,
    QueueError,
    WriteFailed,
)
from queuekit.ids import safe_stream
from queuekit.job import Job
from queuekit.locks import StreamLock
from queuekit.private import make_folders, why_shared
from queuekit.wire import check_identifiers, decode_job

T = TypeVar("T")
_log = logging.getLogger("queuekit.maildir")

_FOLDERS = {  # attribute of a mount -> folder below the root; parents first
    **{folder: folder for folder in (*layout.SHARED_FOLDERS, layout.LATER)},
    "_private": layout.PRIVATE,
    "_leases": leases.FOLDER,
    "intents": layout.INTENTS,
    "dossiers": layout.DOSSIERS,
    "checkpoints": layout.CHECKPOINTS,
}
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
    """The folders of one root, opened. `tmp`, `new`, `cur`, `done`, `claim`, `later`, … are their descriptors.

    A descriptor keeps its number when its folder is replaced, so that another thread never acts on the wrong one.
    """

    tmp: int
    new: int
    cur: int
    done: int
    claim: int
    later: int
    intents: int
    dossiers: int
    checkpoints: int

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
        self._closed = False
        self._locks: dict[str, StreamLock] = {}
        self._guard = threading.RLock()
        self._slow_until = 0.0
        self._token = os.urandom(6).hex()
        self._serial = 0
        self.heal()
        self._sweep()

    # -- folders

    def __getattr__(self, name: str) -> int:
        if name in _FOLDERS:
            raise BackendUnavailable("it is closed")
        raise AttributeError(name)

    def heal(self) -> None:
        """Make missing folders and open those whose path leads elsewhere now.

        Raises `DirectoryCreationFailed` when a folder cannot be made, opened or trusted.
        """
        with self._guard:
            if self._closed:
                raise BackendUnavailable("it is closed")
            path = self.root
            try:
                make_folders(path)
                self._check_root(os.stat(path))
                for attribute, folder in _FOLDERS.items():
                    path = os.path.join(self.root, folder)
                    self._open(attribute, path)
            except OSError as error:
                raise DirectoryCreationFailed(path, error.strerror or str(error)) from error

    def _check_root(self, facts: os.stat_result) -> None:
        if facts.st_mode & stat.S_IWOTH and not facts.st_mode & stat.S_ISVTX:
            raise DirectoryCreationFailed(self.root, "others can write it: chmod o-w it, or choose another folder")
        if facts.st_uid != os.geteuid():
            raise DirectoryCreationFailed(
                self.root, f"it belongs to uid {facts.st_uid} and this is uid {os.geteuid()}: one user a queue"
            )

    def _open(self, attribute: str, path: str) -> None:
        known: int = self.__dict__.get(attribute, -1)
        with contextlib.suppress(FileNotFoundError):
            if known >= 0 and os.path.samestat(os.fstat(known), os.stat(path, follow_symlinks=False)):
                return
        self.ops.make_folder(path)
        fd = self.ops.open_folder(path)
        try:
            if os.fstat(fd).st_dev != os.stat(self.root).st_dev:
                raise DirectoryCreationFailed(path, "it is on another filesystem than the root")
            if reason := why_shared(os.fstat(fd)):
                raise DirectoryCreationFailed(path, reason)
            if known >= 0:
                os.dup2(fd, known, inheritable=False)
        except BaseException:
            os.close(fd)
            raise
        if known < 0:
            setattr(self, attribute, fd)
            return
        os.close(fd)
        if attribute == "_leases":
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
        try:
            if all(os.fstat(folder).st_nlink for folder in folders):
                return False
        except OSError as error:
            raise BackendUnavailable(f"a folder of {self.root} is not open: {error.strerror}") from error
        self.heal()
        return True

    def names(self, folder: int) -> list[str]:
        """The names of the regular files in a folder; raises `BackendUnavailable` when it cannot be read."""
        return list(self.each_name(folder))

    def each_name(self, folder: int) -> Iterator[str]:
        """The same, as they are read: a million of them take 100 MB."""
        try:
            for entry in self.ops.entries(folder):
                if entry.is_file(follow_symlinks=False):
                    yield entry.name
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
            self._closed = True
            for lock in self._locks.values():
                lock.close()
            for attribute in _FOLDERS:
                fd = self.__dict__.pop(attribute, -1)
                if fd >= 0:
                    os.close(fd)

    def __del__(self) -> None:
        if "_guard" in self.__dict__:  # else it was never made
            self.close()

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
        _check_ids(job)
        if layout.job_filename(job) != (job_name or name):
            raise DecodingFailed("the file's name does not belong to the job inside", job.id)
        return job, facts

    def look_into(self, folder: int, name: str, job_name: str | None = None) -> Job | None:
        """The job in a file; None when the file is gone.

        Raises `DecodingFailed` when it holds none or may not be opened, `BackendUnavailable` when it cannot be read.
        """
        try:
            return self.read_job(folder, name, job_name)[0]
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self.unreadable(folder, name, error) from error

    def unreadable(self, folder: int, name: str, error: OSError) -> QueueError:
        """What it means that a file cannot be read: a fault of its own, or a trouble of the whole store."""
        trouble = BackendUnavailable(f"cannot read {name}: {error.strerror}")
        if error.errno in {errno.ELOOP, errno.ENXIO, errno.EISDIR}:
            return DecodingFailed("not a regular file")
        if error.errno not in {errno.EACCES, errno.EPERM}:
            return trouble
        try:
            facts = self.ops.stat(folder, name)
        except OSError:
            return trouble
        ours = facts.st_uid == os.geteuid() and facts.st_mode & stat.S_IRUSR
        return trouble if ours else DecodingFailed("its mode or owner keeps us from reading it")

    def replace(self, folder: int, name: str, data: bytes) -> None:
        """Put a file with this content, already on disk, in place of the one of that name."""
        staged = self.stage(data, sync=True)
        try:
            self.ops.move(self.tmp, staged, folder, name)
        except BaseException:
            self.discard([staged])
            raise

    def move_new(self, source: int, name: str, target: int, new_name: str, stream: str) -> None:
        """Rename without replacing; raises `FileExistsError`, also where only looking first can tell."""
        try:
            self.ops.move_new(source, name, target, new_name)
        except NotImplementedError:
            with self.lock(stream):
                if self.exists(target, new_name):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new_name) from None
                self.ops.move(source, name, target, new_name)

    def move_over(self, source: int, name: str, target: int, new_name: str) -> None:
        """Rename over whatever is there. Two names of one file, which a rename leaves alone, become one."""
        links = self.ops.stat(source, name).st_nlink
        self.healed(lambda: self.ops.move(source, name, target, new_name))
        if links > 1 and self.exists(source, name):
            self.ops.unlink(source, name)

    def drop_copy(self, folder: int, name: str, kept: int) -> None:
        """Remove one of two files of a job, when the other one in folder `kept` is there to stay: a power cut must not
        take both.

        Not needed for a copy that came the way that the other one has gone on from: the folders' order keeps them.
        """
        self.sync_folder(kept)
        self.ops.unlink(folder, name)

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
                    _log.info("removed %r, left over in tmp/", name)
            except OSError as error:
                _log.debug("left %r in tmp/: %s", name, error)


def _check_ids(job: Job) -> None:
    """An id that no file name may hold could be claimed, but never be settled."""
    try:
        check_identifiers(job)
    except InvalidIdentifier as error:
        raise DecodingFailed(str(error)) from None


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
