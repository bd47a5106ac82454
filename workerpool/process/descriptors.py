"""The descriptors of this process: which are open, and whether it could open another one."""

from __future__ import annotations

import array
import fcntl
import os
import resource
import stat
import termios

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


def standard_descriptors() -> list[int]:
    """Which of the first three (standard input, output and error) are open."""
    return [fd for fd in range(3) if _is_open(fd)]


def unread_bytes(fd: int) -> int:
    """How many bytes lie in the pipe that a descriptor writes to; 0 when it is no pipe."""
    count = array.array("i", [0])
    try:
        fcntl.ioctl(fd, termios.FIONREAD, count)
        return count[0] if count[0] and stat.S_ISFIFO(os.fstat(fd).st_mode) else 0
    except OSError:
        return 0


class KeptStandard:
    """Copies of the first three descriptors, to put them back where other code in this process has closed them.

    The next file that is opened would get their number, and be written into by whoever prints. Raises `OSError` when no
    descriptor is left to copy to. Programs do not inherit the copies.
    """

    def __init__(self) -> None:
        self._copies: dict[int, int] = {}
        try:
            for fd in standard_descriptors():
                self._copies[fd] = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
        except OSError:
            self.close()
            raise

    def put_back(self) -> list[int]:
        """Open again what is closed by now; returns which that are. Raises `OSError` when a copy is closed, too."""
        closed = sorted(self._copies.keys() - set(standard_descriptors()))
        for fd in closed:
            os.dup2(self._copies[fd], fd)
        return closed

    def close(self) -> None:
        """Close the copies; any number of times."""
        while self._copies:
            os.close(self._copies.popitem()[1])


def _is_open(fd: int) -> bool:
    """The descriptor that listed the folder is in the list, and closed by now."""
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
