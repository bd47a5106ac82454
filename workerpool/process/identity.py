"""Who a pid is: a pid alone is re-used, a pid with its start identity is not.

The identity is an opaque text: on Linux the start time in clock ticks since boot and the boot's id, elsewhere the
creation time. Two readings of one process are equal; a later process with the same pid reads differently. A process
that ended but was not yet waited for still has its identity. Raises `OSError` when no descriptor is left to look with
and the reserve (see `spare`) does not help: then nothing is known, which is not the same as nobody being there.
"""

from __future__ import annotations

import functools
import os
import sys

import psutil

from workerpool.process.spare import FULL, with_spare

NOT_THERE = (psutil.Error, FileNotFoundError)
"""What a look at a process raises that is gone. The second: its pid became another process's in the midst of the look,
which happens where few pids are free."""
_ON_LINUX = sys.platform == "linux"
_STATE, _START_TIME = 0, 19  # fields of /proc/<pid>/stat, counted from behind the command name


@with_spare
def start_identity(pid: int) -> str | None:
    """The start identity of `pid`, or None when there is no such process (or it may not be looked at)."""
    if _ON_LINUX:
        fields = _stat_fields(pid)
        return f"{int(fields[_START_TIME])}@{boot_id()}" if fields else None
    try:
        return f"{psutil.Process(pid).create_time():.6f}"
    except NOT_THERE:
        return None


@with_spare
def is_running(pid: int, start: str) -> bool:
    """Whether the process that had `pid` and identity `start` still runs; one that only waits to be reaped does not."""
    if pid <= 0 or start_identity(pid) != start:
        return False
    if _ON_LINUX:
        fields = _stat_fields(pid)
        return fields is not None and fields[_STATE] not in {b"Z", b"X"}
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except NOT_THERE:
        return False


def started_before(earlier: str, later: str) -> bool:
    """Whether the process of identity `earlier` started no later than that of `later`; False across a reboot."""
    (first, _, boot), (second, _, other_boot) = earlier.partition("@"), later.partition("@")
    try:
        return boot == other_boot and float(first) <= float(second)
    except ValueError:
        return False


@functools.cache
def boot_id() -> str:
    """A text that changes with each boot of the machine."""
    if _ON_LINUX:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    return f"{psutil.boot_time():.0f}"


def _stat_fields(pid: int) -> list[bytes] | None:
    """The fields of /proc/<pid>/stat from the state on; the command name before them may hold spaces and brackets."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in FULL:
            raise
        return None
    try:
        text = os.read(fd, 4096)
    except OSError:  # it ended between the two calls
        return None
    finally:
        os.close(fd)
    fields = text.rpartition(b")")[2].split()
    return fields if len(fields) > _START_TIME else None
