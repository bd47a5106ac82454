"""Who has the drain lease of a stream, read without taking any lock.

A holder that is not on any board (a program that uses the library, another port, another machine) is shown with the age
of its last heartbeat, where the lease is a file with a time in it. In a folder, a process that was stopped inside a
stream's lock blocks that stream: on Linux the kernel's list of locks tells, at no cost to the pool.
"""

from __future__ import annotations

import dataclasses
import os
import time

from queuekit import InvalidIdentifier, QueueKit
from queuekit.ids import safe_stream
from queuekit.lease import FOLDER, SUFFIX, Record
from workerpool.cli.pools import is_stopped


@dataclasses.dataclass(frozen=True, slots=True)
class Holder:
    """Who a lease names. `pid`: as far as the name tells; `age`: seconds since its last heartbeat, None: not known.

    `is_valid`: the lease is in force; else its holder is dead, or was silent for too long, and anybody may take it.
    """

    owner: str
    pid: int | None
    age: float | None
    is_valid: bool


def holder_of(queue: QueueKit, root: str | None, stream: str) -> Holder | None:
    """The holder of a stream's lease, stale or not; None when there is none. `root`: of a store that is a folder.

    There is none for a stream whose name no lease can have: another program has put its jobs into a database.
    """
    try:
        lease = queue.lease(stream)
    except InvalidIdentifier:
        return None
    record = Record(lease.holder() or "", 0.0) if root is None else _record(root, stream)
    if record is None or not record.owner:
        return None
    age = None if root is None else max(0.0, time.time() - record.at)
    return Holder(record.owner, _pid_in(record.owner), age, lease.is_held_by_other())


def _record(root: str, stream: str) -> Record | None:
    try:
        fd = os.open(
            os.path.join(root, f"{safe_stream(stream)}{SUFFIX}"),
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
    return Record.decode(content)


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
            if is_stopped(pid):
                return pid
    return None
