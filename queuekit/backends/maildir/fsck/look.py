"""A root opened only to look: nothing is made, swept or refused, and what cannot be opened is absent.

Look        a mount that changes nothing
guarded     the lock of the stream that a file belongs to, by its content, else by what its name suggests
leased      whether somebody holds a stream's lease
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator

from queuekit import lease as leases
from queuekit.backends.maildir import layout
from queuekit.backends.maildir.fsops import FileOps
from queuekit.backends.maildir.mount import Durability, Mount
from queuekit.clock import ProcessClock
from queuekit.errors import BackendUnavailable, DecodingFailed, InvalidIdentifier
from queuekit.ids import check_identifier, safe_stream
from queuekit.job import Job
from queuekit.lease import SUFFIX, Record, Verdict, judge
from queuekit.locks import Life, life_of
from queuekit.wire import decode_job

Progress = Callable[[str, int, int], None]
"""Told what is looked at, how many of how many are done."""

OPEN = (layout.NEW, layout.LATER, layout.CLAIM, layout.CUR)  # folders of jobs that have not ended
FOLDERS = {  # attribute of a mount -> folder below the root
    **{name: name for name in (layout.TMP, *OPEN, layout.DONE)},
    "intents": layout.INTENTS,
    "dossiers": layout.DOSSIERS,
    "checkpoints": layout.CHECKPOINTS,
}
_LARGEST_LEASE = 4096
_NO_FOLDER = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}  # missing, a file, a link: `foundation` says so


class Look(Mount):
    """The folders of a root that are there, opened for looking. `closed`: those we may not open, and why.

    Raises `BackendUnavailable` when there is no root, or the system cannot open a folder now.
    """

    def __init__(self, root: str | os.PathLike[str], *, max_job_bytes: int, patience: float) -> None:
        path = os.path.realpath(os.fspath(root))
        if not os.path.isdir(path):
            raise BackendUnavailable(f"there is no queue at {path}")
        self.stuck: dict[str, BackendUnavailable] = {}
        self.closed: dict[str, str] = {}
        super().__init__(
            path,
            ops=FileOps(),
            clock=ProcessClock(),
            durability=Durability.FULL,
            max_job_bytes=max_job_bytes,
            patience=patience,
        )

    def heal(self) -> None:
        """Open what is there and is a folder; make nothing."""
        for attribute, folder in FOLDERS.items():
            if attribute not in self.__dict__:
                try:
                    setattr(self, attribute, self.ops.open_folder(os.path.join(self.root, folder)))
                except PermissionError as error:
                    self.closed[folder] = error.strerror or str(error)
                except OSError as error:
                    if error.errno not in _NO_FOLDER:
                        raise BackendUnavailable(f"cannot open {folder}/: {error.strerror}") from error

    def _sweep(self) -> None:
        """Leave tmp/ as it is."""

    def has(self, attribute: str) -> bool:
        """Whether this folder is there."""
        return attribute in self.__dict__


def fd_of(mount: Mount, attribute: str) -> int:
    """The descriptor of a folder, by its name here."""
    fd: int = getattr(mount, attribute)
    return fd


def listed(mount: Mount, attribute: str) -> list[str]:
    """Every name in a folder, also of what is no regular file; none when the folder is absent."""
    if attribute not in mount.__dict__:
        return []
    try:
        return [entry.name for entry in mount.ops.entries(fd_of(mount, attribute))]
    except OSError as error:
        raise BackendUnavailable(f"cannot list {attribute}/: {error.strerror}") from error


def present(mount: Mount, attribute: str, name: str) -> bool:
    """Whether a folder is there and has an entry of this name."""
    return attribute in mount.__dict__ and mount.exists(fd_of(mount, attribute), name)


def facts_of(mount: Mount, attribute: str, name: str) -> os.stat_result | None:
    """The facts of a name; None when it is gone."""
    try:
        return mount.ops.stat(fd_of(mount, attribute), name)
    except FileNotFoundError:
        return None


def plain(attribute: str, file: str) -> str | None:
    """The job's name that a file's name in this folder holds; None when it has not the folder's shape."""
    if attribute == layout.LATER:
        split = layout.split_later(file)
        return split[2] if split else None
    return layout.split_claim(file) if attribute == layout.CLAIM else file


def path_of(attribute: str, file: str) -> str:
    """Where a file is, below the root."""
    return f"{FOLDERS[attribute]}/{file}"


def suffixes(name: str) -> Iterator[str]:
    """Everything that may be the id in a job's file name: all that stands behind a hyphen after the stream's start."""
    rest = layout.tail(name)
    at = rest.find("-") if rest else -1
    while rest and at >= 0:
        yield rest[at + 1 :]
        at = rest.find("-", at + 1)


def in_portions(items: Iterable[str], total: int, what: str, progress: Progress | None) -> Iterator[str]:
    """The items, with the progress told now and then."""
    for number, item in enumerate(items):
        if progress is not None and number % 500 == 0:
            progress(what, number, total)
        yield item
    if progress is not None:
        progress(what, total, total)


# -- locks and leases


@contextlib.contextmanager
def locked(mount: Mount, *streams: str) -> Iterator[None]:
    """Hold the locks of these streams, in one order; a root without a place for locks has nobody to wait for."""
    folder = os.path.join(mount.root, leases.FOLDER)
    with contextlib.ExitStack() as stack:
        if os.path.isdir(folder) and os.access(folder, os.W_OK):
            for stream in sorted({safe_stream(stream) for stream in streams}):
                _lock(mount, stream, stack)
        yield


def _lock(mount: Mount, stream: str, stack: contextlib.ExitStack) -> None:
    """Take one lock; one that was not to be had is not waited for again in the same look."""
    stuck = mount.stuck if isinstance(mount, Look) else {}
    if stream in stuck:
        raise stuck[stream]
    try:
        stack.enter_context(mount.lock(stream))
    except BackendUnavailable as error:
        stuck[stream] = error
        raise


@contextlib.contextmanager
def guarded(mount: Mount, attribute: str, file: str) -> Iterator[None]:
    """Hold the lock of the stream that a file is of; of each that it may be of, when its content cannot tell."""
    with locked(mount, *streams_of(mount, attribute, file)):
        yield


def streams_of(mount: Mount, attribute: str, file: str) -> list[str]:
    """The stream that the file's content names; else, or when the name is another's, those that the name suggests."""
    name = plain(attribute, file) or file
    job = content(mount, attribute, file)
    if job is not None and layout.job_filename(job) == name:
        return [job.stream_id]
    may_be = suggested(name)
    worked = [stream for stream in may_be if os.path.exists(_lock_path(mount, stream))]
    return [*([job.stream_id] if job else []), *(worked or may_be[:1])]


def suggested(name: str) -> list[str]:
    """The streams that a job's file name may be of."""
    rest = layout.tail(name) or ""
    return [rest[:at] for at, letter in enumerate(rest) if letter == "-" and at]


def content(mount: Mount, attribute: str, file: str) -> Job | None:
    """The job in a file, whatever the file is called; None when there is none."""
    try:
        return decode_job(mount.ops.read(fd_of(mount, attribute), file, mount.max_file_bytes * 2)[0])
    except (OSError, DecodingFailed):
        return None


def _lock_path(mount: Mount, stream: str) -> str:
    return os.path.join(mount.root, leases.FOLDER, f"{safe_stream(stream)}.lock")


def leased(mount: Mount, stream: str, ttl: float) -> bool:
    """Whether somebody holds the stream's lease and is not stale. Under the stream's lock."""
    content = read_small(os.path.join(mount.root, f"{safe_stream(stream)}{SUFFIX}"))
    record = Record.decode(content) if content is not None else None
    life = life_of_owner(mount.root, record.owner) if record else Life.UNKNOWN
    return judge(content, owner="", now=time.time(), ttl=ttl, life=life, unchanged=0) is Verdict.FRESH


def life_of_owner(root: str, owner: str) -> Life:
    """What the alive file of a lease's owner tells."""
    try:
        check_identifier(owner)
        return life_of(os.path.join(root, leases.FOLDER, f"{owner}.alive"))
    except (InvalidIdentifier, OSError):
        return Life.UNKNOWN


def read_small(path: str) -> bytes | None:
    """The content of a small regular file; None when it is gone, empty for what is no such file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError:
        return b""
    try:
        return os.read(fd, _LARGEST_LEASE) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    finally:
        os.close(fd)
