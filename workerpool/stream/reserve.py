"""A little room on the store's disk that is kept for the day when it is full.

`.workerpool/reserve` takes up `BYTES`. When the disk is full and something has to be written that cannot wait (a
heartbeat, how a job has ended, the end of a retry that was cut off), the file is removed, and that can be written:

    kept ──the disk is full──▶ given up, and nothing is claimed ──there is room for two of it──▶ made again

One file serves every stream process of every pool on the store. Whoever needs it removes it, and whoever finds room
makes it, any number of them at a time: removing it twice does nothing, and making it twice is making it once. What
cannot be made is missing, and nothing else: a disk that has no room for it is worked as if there were no such file.
"""

from __future__ import annotations

import errno
import logging
import os
import stat

from queuekit.backends.maildir import layout
from workerpool.stream.arrivals import Arrivals
from workerpool.stream.desk import Desk

BYTES = 2**20
NAME = os.path.basename(layout.RESERVE)
_LEAST_ROOM = 2 * BYTES
_LEAST_FILES = 16
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_CANNOT_ALLOCATE = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS})
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_CHUNK = 2**16
_log = logging.getLogger("workerpool.stream")


class Reserve:
    """The file. `directory`: what belongs to the store's pools; it must be there."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._path = os.path.join(directory, NAME)

    def make(self) -> None:
        """Make it unless it is there. It is allocated when this returns, and need not survive a power cut.

        Raises `OSError` when it cannot be made: with ENOSPC also when it would take more than half of what is free.
        """
        if self._is_there():
            return
        self.check_room()
        fd = os.open(self._path, _FLAGS, 0o600)
        try:
            self._fill(fd)
        finally:
            os.close(fd)

    def _fill(self, fd: int) -> None:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EEXIST, "it is no regular file", self._path)
        try:
            _allocate(fd)
        except OSError:
            self.give_up()
            raise

    def give_up(self) -> bool:
        """Remove it; whether there was something to remove. Raises `OSError` when it cannot be removed."""
        try:
            os.unlink(self._path)
        except FileNotFoundError:
            return False
        return True

    def _is_there(self) -> bool:
        try:
            facts = os.lstat(self._path)
        except FileNotFoundError:
            return False
        return stat.S_ISREG(facts.st_mode) and facts.st_size >= BYTES

    def check_room(self) -> None:
        """Raise `OSError` with ENOSPC when there is no room for two of it."""
        facts = os.statvfs(self._directory)
        few_files = facts.f_files and facts.f_favail < _LEAST_FILES  # some filesystems have no such limit, and say 0
        if facts.f_bavail * facts.f_frsize < _LEAST_ROOM or few_files:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._directory)


def _allocate(fd: int) -> None:
    """Take up the room, whatever part of it is taken already."""
    try:
        os.posix_fallocate(fd, 0, BYTES)
    except AttributeError:  # a system without it
        _write(fd)
    except OSError as error:
        if error.errno not in _CANNOT_ALLOCATE:
            raise
        _write(fd)


def _write(fd: int) -> None:
    """Take it up by writing what no filesystem can store in less."""
    at = 0
    while at < BYTES:
        at += os.pwrite(fd, os.urandom(min(_CHUNK, BYTES - at)), at)
    os.fsync(fd)


class FullDisk:
    """A stream process's part: keeps `Desk.full`. `directory`: as for `Reserve`.

    Only a store that is a folder has a reserve; of another one, the disk that this process writes heartbeats and boards
    to counts as full until there is as much room on it.
    """

    def __init__(self, desk: Desk, arrivals: Arrivals, directory: str) -> None:
        self._desk = desk
        self._arrivals = arrivals
        self._reserve = Reserve(directory)

    def met(self, error: Exception) -> bool:
        """Something that cannot wait was refused. Whether room was made for it: then it is to be tried again at once.

        Nothing happens unless the reason is that the disk is full, or one's share of it.
        """
        if not means_full(error):
            return False
        news, self._desk.full = not self._desk.full, True
        if news:
            _log.error("the disk is full: nothing is claimed until there is room; what has ended is kept")
        try:
            given = self._reserve.give_up()
        except OSError as failure:
            if news:
                _log.error("the reserve cannot be given up: %s", failure)
            return False
        if given:
            _log.warning("the reserve was given up, so that what has ended can be written")
        return given

    def check(self) -> None:
        """See whether there is room again, and make the reserve; to be called with each heartbeat.

        What has ended comes first: room that it does not fit into is not enough. When something else than a full disk
        keeps the reserve from being made, the disk counts as full no more.
        """
        if self._desk.full and self._desk.journey.waiting:
            return
        try:
            self._take_room()
        except OSError as error:
            _log.debug("there is no reserve: %s", error)
            if means_full(error):
                return
        if self._desk.full:
            self._desk.full = False
            _log.warning("there is room on the disk again: claiming goes on")
            self._arrivals.look_again()

    def _take_room(self) -> None:
        if self._desk.pool.store.scheme == "dir":
            self._reserve.make()
        elif self._desk.full:
            self._reserve.check_room()


def means_full(error: BaseException) -> bool:
    """Whether an error, or what has caused it, is that there is no room on the disk."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _FULL:
            return True
        cause = cause.__cause__
    return False
