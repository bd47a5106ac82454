"""The descriptors of this process: which are open, and whether it could open another one."""

from __future__ import annotations

import os
import resource

from workerpool.process.spare import FULL, with_spare


@with_spare
def open_descriptors() -> list[int]:
    """The numbers of all that are open, without the one that is needed to look."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        try:
            return [fd for fd in map(int, os.listdir(folder)) if _is_open(fd)]
        except FileNotFoundError:
            continue
    return [fd for fd in range(os.sysconf("SC_OPEN_MAX")) if _is_open(fd)]


def descriptor_limit() -> int:
    """How many this process may have open now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return os.sysconf("SC_OPEN_MAX") if soft == resource.RLIM_INFINITY else soft


def can_open() -> bool:
    """Whether a file could be opened now, for all that descriptors matter."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno not in FULL
    return True


def _is_open(fd: int) -> bool:
    """The descriptor that listed the folder is in the list, and closed by now."""
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
