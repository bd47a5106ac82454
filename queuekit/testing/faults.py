"""System calls of the maildir that die, fail or count at a chosen call: `FilesystemBackend(root, ops=FaultyOps())`.

Nothing happens until `arm`; then the calls are counted from 1 and each is shown to the fault before it is made. A
method that makes other calls through the same object (`create` writes, syncs and closes) has each of them counted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from queuekit.backends.maildir.fsops import FileOps

Fault = Callable[[str, int], None]


class FaultyOps(FileOps):
    """The system calls, each one preceded by the fault. `calls`: the names of those made while armed.

    `syncing=False` leaves the syncs out, which only a power cut could tell; they are counted and can fail all the same.
    """

    def __init__(self, fault: Fault | None = None, *, syncing: bool = True) -> None:
        self.fault = fault
        self.syncing = syncing
        self.calls: list[str] = []
        self._armed = False

    def arm(self, fault: Fault | None = None) -> None:
        """Count from here; with `fault` in place of the one before."""
        self.fault = fault or self.fault
        self.calls.clear()
        self._armed = True

    def disarm(self) -> None:
        """Only make the calls again."""
        self._armed = False

    def _before(self, call: str) -> None:
        if self._armed:
            self.calls.append(call)
            if self.fault is not None:
                self.fault(call, len(self.calls))

    def open_folder(self, path: str) -> int:
        self._before("open_folder")
        return super().open_folder(path)

    def make_folder(self, path: str) -> None:
        self._before("make_folder")
        super().make_folder(path)

    def create(self, folder: int, name: str, data: bytes, *, sync: bool) -> None:
        self._before("create")
        super().create(folder, name, data, sync=sync)

    def write(self, fd: int, data: bytes) -> None:
        self._before("write")
        super().write(fd, data)

    def close(self, fd: int) -> None:
        try:
            self._before("close")
        except OSError:
            os.close(fd)  # as the kernel does: what close reports, it reports after closing
            raise
        super().close(fd)

    def sync_data(self, fd: int) -> None:
        self._before("sync_data")
        if self.syncing:
            super().sync_data(fd)

    def sync_file(self, folder: int, name: str) -> None:
        self._before("sync_file")
        super().sync_file(folder, name)

    def sync_folder(self, folder: int) -> None:
        self._before("sync_folder")
        if self.syncing:
            super().sync_folder(folder)

    def sync_filesystem(self, folder: int) -> None:
        self._before("sync_filesystem")
        if self.syncing:
            super().sync_filesystem(folder)

    def move(self, source: int, name: str, target: int, new_name: str) -> None:
        self._before("move")
        super().move(source, name, target, new_name)

    def move_new(self, source: int, name: str, target: int, new_name: str) -> None:
        self._before("move_new")
        super().move_new(source, name, target, new_name)

    def unlink(self, folder: int, name: str) -> None:
        self._before("unlink")
        super().unlink(folder, name)

    def stat(self, folder: int, name: str) -> os.stat_result:
        self._before("stat")
        return super().stat(folder, name)

    def read(self, folder: int, name: str, limit: int) -> tuple[bytes, os.stat_result]:
        self._before("read")
        return super().read(folder, name, limit)

    def entries(self, folder: int) -> Iterator[os.DirEntry[str]]:
        self._before("entries")
        return super().entries(folder)


def die_at(number: int) -> Fault:
    """The process ends without any clean-up just before this call."""

    def fault(call: str, count: int) -> None:  # noqa: ARG001  a fault is told which call
        if count == number:
            os._exit(DIED)

    return fault


def fail_at(number: int, errno: int, *, lasting: bool = False) -> Fault:
    """This call fails with the error, and with `lasting` every later one too."""

    def fault(call: str, count: int) -> None:
        if count == number or (lasting and count > number):
            raise OSError(errno, os.strerror(errno), call)

    return fault


DIED = 77
"""The exit code of a process that `die_at` ended."""
