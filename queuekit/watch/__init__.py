"""Waking: how a consumer notices that something arrived in a maildir.

`open_watcher` picks the means: inotify on Linux, kqueue on macOS and the BSDs, and looking every `poll_interval` where
neither can be set up, or where the filesystem takes a watch and then stays silent: network mounts and FUSE (others
change them behind the kernel's back) and overlay mounts (changes made to a layer below are not seen). A process that
forks calls `warm_up` once before, and opens its watchers after.

`wait_loop` is the whole of a blocking watch. The logger `queuekit.watch` says which means is used, and why not events.
"""

from __future__ import annotations

import logging
import os
import select
import sys

from queuekit.contract import Watcher
from queuekit.errors import WatcherFailed
from queuekit.watch.base import Place, wait_loop
from queuekit.watch.poll import PollWatcher

log = logging.getLogger("queuekit.watch")

_SILENT = """
    9p afpfs afs aufs beegfs ceph cifs davfs drvfs fuse fuseblk gfs2 glusterfs gpfs lustre macfuse ncpfs nfs nfs4 ocfs2
    osxfuse overlay overlayfs prl_fs smb2 smb3 smbfs unionfs vboxsf virtiofs vmhgfs webdav
"""
SILENT_FILESYSTEMS = frozenset(_SILENT.split())


def warm_up() -> None:
    """Load what watchers need, once, in a process that will fork ones that watch. It never fails."""
    if sys.platform == "linux":
        from queuekit.watch import inotify

        inotify.warm_up()


def open_watcher(root: str, new: str, *others: str, poll_interval: float = 0.2, force: str | None = None) -> Watcher:
    """A watcher of the folder `new` of the queue at `root`, attached when this returns.

    `others`: more of its folders in which an arrival is to be noticed. `poll_interval`: seconds between looks where
    there are no events. `force`: `inotify`, `kqueue` or `poll`, to have that one and nothing else; `WatcherFailed` is
    raised when it cannot be had (and `ValueError` for another word).
    Without it a refusal of the system is logged as one warning, and polling takes over; `WatcherFailed` then means that
    not even polling is possible.
    """
    place = Place(root, new, *others)
    if force is not None:
        return _forced(place, poll_interval, force)
    filesystem = filesystem_type(new)
    if is_silent(filesystem):
        log.info("%s is on %s, where changes cannot be watched: polling every %s s", new, filesystem, poll_interval)
        return PollWatcher(place, poll_interval)
    try:
        return _evented(place, poll_interval, _system_means())
    except (OSError, WatcherFailed) as error:
        log.warning("%s; polling %s every %s s instead", _reason(error), new, poll_interval)
        return PollWatcher(place, poll_interval)


def is_silent(filesystem: str) -> bool:
    """Whether a filesystem of this type cannot be trusted to report every change; an unknown one (`""`) can."""
    return filesystem.lower().partition(".")[0] in SILENT_FILESYSTEMS


def filesystem_type(path: str) -> str:
    """The type of the filesystem that `path` is on, as the system names it; `""` when that cannot be told."""
    import psutil

    real = os.path.realpath(path)
    try:
        mounts = psutil.disk_partitions(all=True)
    except OSError:
        return ""
    holding = [
        (len(mount.mountpoint), order, mount.fstype)
        for order, mount in enumerate(mounts)
        if _is_under(real, mount.mountpoint)
    ]
    return max(holding)[2] if holding else ""


def _is_under(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _forced(place: Place, poll_interval: float, kind: str) -> Watcher:
    if kind == "poll":
        return PollWatcher(place, poll_interval)
    if kind not in ("inotify", "kqueue"):
        raise ValueError(f"a watcher is 'inotify', 'kqueue' or 'poll', not {kind!r}")
    try:
        return _evented(place, poll_interval, kind)
    except OSError as error:
        raise WatcherFailed(_reason(error)) from error


def _system_means() -> str:
    return "inotify" if sys.platform == "linux" else "kqueue"


def _evented(place: Place, poll_interval: float, kind: str) -> Watcher:
    """Raises `OSError` when the system refuses, `WatcherFailed` when it does not know this means."""
    if kind == "inotify" and sys.platform == "linux":
        from queuekit.watch.inotify import InotifyWatcher

        return InotifyWatcher(place, poll_interval)
    if kind == "kqueue" and hasattr(select, "kqueue"):
        from queuekit.watch.kqueue import KqueueWatcher

        return KqueueWatcher(place, poll_interval)
    raise WatcherFailed(f"this system has no {kind}")


def _reason(error: Exception) -> str:
    if sys.platform == "linux" and isinstance(error, OSError):
        from queuekit.watch import inotify

        return inotify.refusal(error)
    return str(error)


__all__ = ["Watcher", "filesystem_type", "is_silent", "open_watcher", "wait_loop", "warm_up"]
