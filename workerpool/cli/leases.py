"""Who has the drain lease of a stream, read without taking any lock.

A holder that is not on any board (a program that uses the library, another port, another machine) is shown with the age
of its last heartbeat, where the lease is a file with a time in it. In a folder, a process that was stopped inside a
stream's lock blocks that stream: on Linux the kernel's list of locks tells, at no cost to the pool.
"""

from __future__ import annotations

import dataclasses
import os
import time

import psutil

from queuekit import QueueKit
from queuekit.ids import safe_stream
from queuekit.lease import FOLDER, Record


@dataclasses.dataclass(frozen=True, slots=True)
class Holder:
    """Who a lease names. `pid`: as far as the name tells; `age`: seconds since its last heartbeat, None: not known."""

    owner: str
    pid: int | None
    age: float | None


def holder_of(queue: QueueKit, root: str | None, stream: str) -> Holder | None:
    """The holder of a stream's lease, stale or not; None when there is none. `root`: of a store that is a folder."""
    if root is not None:
        return _holder_in_file(root, stream)
    owner = queue.lease(stream).holder()
    return None if owner is None else Holder(owner, _pid_in(owner), None)


def _holder_in_file(root: str, stream: str) -> Holder | None:
    try:
        fd = os.open(
            os.path.join(root, f"{safe_stream(stream)}.drain.lease"),
            os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC,
        )
    except OSError:
        return None
    try:
        content = os.read(fd, 4096)
    except OSError:
        return None
    finally:
        os.close(fd)
    record = Record.decode(content)
    return Holder(record.owner, _pid_in(record.owner), max(0.0, time.time() - record.at)) if record else None


def _pid_in(owner: str) -> int | None:
    word = owner.removeprefix("pid-").partition("-")[0]
    return int(word) if owner.startswith("pid-") and word.isascii() and word.isdigit() else None


def stopped_in_lock(root: str, stream: str) -> int | None:
    """The pid of a stopped process that holds the stream's lock; None when there is none, or no way to tell."""
    try:
        inode = os.stat(os.path.join(root, FOLDER, f"{safe_stream(stream)}.lock")).st_ino
        with open("/proc/locks", encoding="ascii") as file:
            entries = [line.split() for line in file]
    except OSError:
        return None
    for entry in entries:  # 1: FLOCK  ADVISORY  WRITE 4711 08:01:1234 0 EOF
        if len(entry) == 8 and entry[1] == "FLOCK" and entry[5].rpartition(":")[2] == str(inode):
            pid = int(entry[4])
            if _is_stopped(pid):
                return pid
    return None


def _is_stopped(pid: int) -> bool:
    try:
        return bool(pid > 0 and psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False
