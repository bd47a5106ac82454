"""Gathers the facts about a store that is a folder.

Nothing is mounted, so nothing is made or swept. The filesystem is tried with files of our own in tmp/, which is where
half-written files are and nobody looks for jobs; they are removed at the end, and swept by any mount if that failed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import itertools
import logging
import os
import select
import stat
import sys
import time
from collections.abc import Iterator

from queuekit.backends.maildir import layout
from queuekit.backends.maildir.creation import has_no_journal
from queuekit.backends.maildir.fsops import FileOps
from queuekit.errors import WatcherFailed
from queuekit.watch import filesystem_type, is_silent, open_watcher
from workerpool.cli.diagnosis.folder import Folder, Inotify, Probe
from workerpool.cli.diagnosis.tenants import Jobs
from workerpool.config import PoolConfig
from workerpool.stream.reserve import BYTES as RESERVE_BYTES

COUNTED = 200_000
"""So many names of each folder are counted."""
_FOLDERS = (layout.TMP, layout.NEW, layout.CUR, layout.DONE)
_OURS = (*layout.SHARED_FOLDERS, layout.LATER, layout.PRIVATE)
_SYNCS = 5
_SYNCED = b"\0" * 4096
_EVENT_SECONDS = 1.0


def look_at_folder(config: PoolConfig, root: str, *, pool_runs: bool) -> Folder:
    """What is there. `root`: exists, links resolved."""
    base = Folder(
        root=root,
        filesystem=filesystem_type(root),
        pool_runs=pool_runs,
        streams=len(config.streams),
        inotify=_inotify(),
    )
    trouble = tuple(_trouble(root))
    if trouble:
        return dataclasses.replace(base, trouble=trouble)
    try:
        names = os.listdir(root)
    except OSError as error:
        return dataclasses.replace(base, trouble=(f"cannot list {root}: {error.strerror}",))
    missing = tuple(name for name in _FOLDERS if name not in names)
    probe, refusal = (None, ()) if layout.TMP in missing else _try(root)
    return dataclasses.replace(
        base,
        missing=missing,
        others=tuple(sorted(names)) if not set(names) & set(_FOLDERS) else (),
        trouble=refusal,
        loose=tuple(_loose(root)),
        no_journal=has_no_journal(root),
        reserve=_has_reserve(root),
        probe=probe,
    )


def _trouble(root: str) -> Iterator[str]:
    """Why a mount would refuse it."""
    facts = os.stat(root)
    if not stat.S_ISDIR(facts.st_mode):
        yield f"{root} is not a folder"
        return
    if facts.st_mode & stat.S_IWOTH and not facts.st_mode & stat.S_ISVTX:
        yield f"{root} can be written by others: chmod o-w it"
    if facts.st_uid != os.geteuid():
        yield f"{root} belongs to uid {facts.st_uid}, and this is uid {os.geteuid()}: run as that user"
    for name in _OURS:
        path = os.path.join(root, name)
        with contextlib.suppress(FileNotFoundError):
            found = os.lstat(path)
            if not stat.S_ISDIR(found.st_mode):
                yield f"{path} is {'a link' if stat.S_ISLNK(found.st_mode) else 'no folder'}"
            elif found.st_dev != facts.st_dev:
                yield f"{path} is on another filesystem than the root: a rename cannot cross"


def _loose(root: str) -> Iterator[tuple[str, int]]:
    for path in (root, *(os.path.join(root, name) for name in _OURS)):
        with contextlib.suppress(FileNotFoundError):
            mode = stat.S_IMODE(os.lstat(path).st_mode)
            if mode & 0o077:
                yield path, mode


def _has_reserve(root: str) -> bool:
    try:
        return os.lstat(os.path.join(root, layout.RESERVE)).st_size >= RESERVE_BYTES
    except OSError:
        return False


# -- counting


def count_jobs(root: str, configured: tuple[str, ...]) -> Jobs:
    """By names, and no further than `COUNTED` of them in each folder."""
    streams: set[str] = set()
    counts, at_least = {}, False
    for folder in (layout.NEW, layout.CUR, layout.CLAIM, layout.LATER, layout.DONE):
        names = [name for name in _names(os.path.join(root, folder)) if not name.endswith(layout.SIGNAL)]
        at_least |= len(names) >= COUNTED
        jobs = [job for name in names if (job := _job_name(folder, name)) is not None]
        counts[folder] = len(jobs)
        if folder != layout.DONE:
            streams.update(stream for job in jobs if (stream := layout.clear_stream(job)) is not None)
    return Jobs(
        streams=tuple(sorted(streams)),
        configured=configured,
        pending=counts[layout.NEW],
        claimed=counts[layout.CUR] + counts[layout.CLAIM],
        later=counts[layout.LATER],
        ended=counts[layout.DONE],
        at_least=at_least,
    )


def _job_name(folder: str, name: str) -> str | None:
    if folder == layout.LATER:
        split = layout.split_later(name)
        return split[2] if split else None
    inner = layout.split_claim(name) if folder == layout.CLAIM else name
    return inner if inner and layout.tail(inner) is not None else None


def _names(folder: str) -> list[str]:
    """Names in a folder, a job and its signal for one; nothing of one that is not there."""
    try:
        with os.scandir(folder) as listing:
            wanted = (entry.name for entry in itertools.islice(listing, 2 * COUNTED))
            return list(itertools.islice(wanted, 2 * COUNTED))
    except FileNotFoundError:
        return []


# -- trying


def _try(root: str) -> tuple[Probe | None, tuple[str, ...]]:
    """What files in tmp/ show; or why none can be made there."""
    tmp = os.path.join(root, layout.TMP)
    ops = FileOps()
    try:
        folder = ops.open_folder(tmp)
    except OSError as error:
        return None, (f"cannot open {tmp}: {error.strerror}",)
    names = [f"doctor-{os.getpid()}-{os.urandom(6).hex()}" for _ in range(3)]
    try:
        ops.create(folder, names[0], _SYNCED, sync=False)
        ops.create(folder, names[1], b"", sync=False)
        exclusive, locks = _is_exclusive(ops, folder, *names[:2]), _keeps_locks(folder, names[0])
        sync_ms = tuple(_syncs(folder, names[0]))
        means, event_ms, refusal = _hear_of(root, tmp, names[2])
    except OSError as error:
        return None, (f"cannot write in {tmp}: {error.strerror}",)
    finally:
        for name in names:
            with contextlib.suppress(OSError):  # most were never made; what stays is swept by a later mount
                ops.unlink(folder, name)
        os.close(folder)
    return (
        Probe(exclusive=exclusive, locks=locks, sync_ms=sync_ms, means=means, event_ms=event_ms, refusal=refusal),
        (),
    )


def _is_exclusive(ops: FileOps, folder: int, one: str, other: str) -> bool:
    try:
        ops.move_new(folder, one, folder, other)
    except FileExistsError:
        return True
    except NotImplementedError:
        return False
    ops.create(folder, one, _SYNCED, sync=False)  # it replaced, although it was told not to
    return False


def _keeps_locks(folder: int, name: str) -> bool:
    first, second = (os.open(name, os.O_RDWR | os.O_CLOEXEC, dir_fd=folder) for _ in range(2))
    try:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # it has no locks at all
        return False
    finally:
        os.close(first)
        os.close(second)
    return False


def _syncs(folder: int, name: str) -> Iterator[float]:
    """Milliseconds of each sync of a file whose content was written anew."""
    fd = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=folder)
    ops = FileOps()
    try:
        for _ in range(_SYNCS):
            os.pwrite(fd, _SYNCED, 0)
            begun = time.perf_counter()
            ops.sync_data(fd)
            yield (time.perf_counter() - begun) * 1000
    finally:
        os.close(fd)


def _hear_of(root: str, tmp: str, name: str) -> tuple[str, float | None, str]:
    """Watch tmp/ and make a file there: `(means, milliseconds until it was announced, why there are no events)`."""
    means = "inotify" if sys.platform == "linux" else "kqueue"
    filesystem = filesystem_type(tmp)
    if is_silent(filesystem):
        return "poll", None, f"{filesystem} does not announce every change"
    with _quiet("queuekit.watch"):
        try:
            watcher = open_watcher(root, tmp, force=means)
        except WatcherFailed as error:
            return "poll", None, str(error)
    try:
        begun = time.perf_counter()
        os.close(os.open(os.path.join(tmp, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        while (left := begun + _EVENT_SECONDS - time.perf_counter()) > 0:
            readable, _, _ = select.select([watcher.fileno()], [], [], left)
            if readable:
                names = watcher.read()
                if name in names or not names:
                    return means, (time.perf_counter() - begun) * 1000, ""
        return means, None, ""
    finally:
        watcher.close()


@contextlib.contextmanager
def _quiet(logger: str) -> Iterator[None]:
    log = logging.getLogger(logger)
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


# -- inotify's limits


def _inotify() -> Inotify | None:
    """None where there is none."""
    limits = [_limit(name) for name in ("max_user_instances", "max_user_watches")]
    if limits[0] is None or limits[1] is None:
        return None
    instances = watches = 0
    for path in _inotify_descriptors():
        instances += 1
        with contextlib.suppress(OSError), open(path, encoding="ascii", errors="replace") as file:
            watches += sum(line.startswith("inotify wd:") for line in file)
    return Inotify(instances=instances, max_instances=limits[0], watches=watches, max_watches=limits[1])


def _limit(name: str) -> int | None:
    try:
        with open(f"/proc/sys/fs/inotify/{name}", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def _inotify_descriptors() -> Iterator[str]:
    """The fdinfo of each instance of this user's processes, as far as these may be looked at."""
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{pid}").st_uid != os.geteuid():
                continue
            fds = os.listdir(f"/proc/{pid}/fd")
        except OSError:  # ended, or not ours to look at
            continue
        for fd in fds:
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{fd}") == "anon_inode:inotify":
                    yield f"/proc/{pid}/fdinfo/{fd}"
