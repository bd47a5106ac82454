"""The system calls of the maildir, one method each: what is created, synced, moved, read.

Names are relative to an open folder, never followed through a link, and files come out with mode 0600 whatever the
umask. Errors are the operating system's; who calls translates them. A test hands in a subclass that dies or fails at a
chosen call (`FilesystemBackend(root, ops=…)`).

Durability rests on: a file's data is synced before its name appears where it counts, the folder is synced after it; a
failed sync is reported and never repeated on the same file, for the kernel may have dropped what it could not write
(PostgreSQL's fsync findings of 2018).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import os
import platform
import stat
import sys
from collections.abc import Iterator
from typing import Any

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_RENAME_NOREPLACE = 1  # linux/fs.h
_RENAME_EXCL = 4  # sys/stdio.h of macOS


class FileOps:
    """One method a system call. `folder` is always the descriptor of an open directory."""

    def open_folder(self, path: str) -> int:
        """Open a directory that is not a link; closed on exec."""
        return os.open(path, _FOLDER)

    def make_folder(self, path: str) -> None:
        """Make a directory with mode 0700; no error when it is there."""
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            return
        os.chmod(path, 0o700)

    def create(self, folder: int, name: str, data: bytes, *, sync: bool) -> None:
        """Create a file that must not exist with this content; with `sync` its data is on disk when this returns."""
        fd = os.open(name, _CREATE, 0o600, dir_fd=folder)
        try:
            os.fchmod(fd, 0o600)
            self.write(fd, data)
            if sync:
                self.sync_data(fd)
        except BaseException:
            os.close(fd)
            raise
        self.close(fd)

    def write(self, fd: int, data: bytes) -> None:
        """Write all of it; a short write goes on where it stopped."""
        written = os.write(fd, data)
        if written < len(data):
            rest = memoryview(data)[written:]
            while rest:
                rest = rest[os.write(fd, rest) :]

    def close(self, fd: int) -> None:
        """Close a written file; some filesystems report a failed write only here."""
        os.close(fd)

    def sync_data(self, fd: int) -> None:
        """Bring a file's data to the disk itself."""
        if sys.platform == "darwin":
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        else:
            os.fdatasync(fd)

    def sync_file(self, folder: int, name: str) -> None:
        """Bring the data of an existing file to the disk."""
        fd = os.open(name, _READ, dir_fd=folder)
        try:
            self.sync_data(fd)
        finally:
            os.close(fd)

    def sync_folder(self, folder: int) -> None:
        """Bring a directory's entries to the disk."""
        os.fsync(folder)

    def sync_filesystem(self, folder: int) -> None:
        """Bring everything written on this filesystem to the disk. Only where `can_sync_filesystem` is True."""
        if _libc().syncfs(folder) != 0:
            raise _os_error(ctypes.get_errno())

    @property
    def can_sync_filesystem(self) -> bool:
        """Whether one call syncs all and reports its errors: syncfs(2) on Linux 5.8 and later."""
        return _syncfs_reports_errors()

    def move(self, source: int, name: str, target: int, new_name: str) -> None:
        """Rename; what is at the target is replaced."""
        os.rename(name, new_name, src_dir_fd=source, dst_dir_fd=target)

    def move_new(self, source: int, name: str, target: int, new_name: str) -> None:
        """Rename without replacing: `FileExistsError` when the target is there.

        `NotImplementedError` where kernel or filesystem cannot: then look and rename under the stream's lock.
        """
        rename = _exclusive_rename()
        if rename is None:
            raise NotImplementedError
        encoded = os.fsencode(name)
        if rename(source, encoded, target, encoded if new_name == name else os.fsencode(new_name)) != 0:
            number = ctypes.get_errno()
            if number in {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP}:
                raise NotImplementedError
            raise _os_error(number, name)

    def unlink(self, folder: int, name: str) -> None:
        """Remove a file."""
        os.unlink(name, dir_fd=folder)

    def stat(self, folder: int, name: str) -> os.stat_result:
        """The facts about a name, without following a link."""
        return os.stat(name, dir_fd=folder, follow_symlinks=False)

    def read(self, folder: int, name: str, limit: int) -> tuple[bytes, os.stat_result]:
        """A file's content, at most `limit` + 1 bytes of it, and its facts; nothing of what is no regular file."""
        fd = os.open(name, _READ, dir_fd=folder)
        try:
            facts = os.fstat(fd)
            if not stat.S_ISREG(facts.st_mode):
                return b"", facts
            wanted = min(facts.st_size, limit) + 1
            data = os.read(fd, wanted)
            if 0 < len(data) < facts.st_size and len(data) < wanted:
                data = self._read_on(fd, data, wanted)
            return data, facts
        finally:
            os.close(fd)

    def entries(self, folder: int) -> Iterator[os.DirEntry[str]]:
        """What is in a directory, in no order. A listing is a hint: names may be gone, moved names may be missing."""
        own = os.open(".", _FOLDER, dir_fd=folder)  # listing moves the descriptor's offset: do not share it
        try:
            with os.scandir(own) as listing:
                yield from listing
        finally:
            os.close(own)

    @staticmethod
    def _read_on(fd: int, data: bytes, wanted: int) -> bytes:
        parts, got = [data], len(data)
        while got < wanted:
            part = os.read(fd, wanted - got)
            if not part:
                break
            parts.append(part)
            got += len(part)
        return b"".join(parts)


def _os_error(number: int, name: str = "") -> OSError:
    return OSError(number, os.strerror(number), name) if name else OSError(number, os.strerror(number))


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


@functools.cache
def _exclusive_rename() -> Any | None:
    """renameat2 with RENAME_NOREPLACE (Linux), renameatx_np with RENAME_EXCL (macOS), or None."""
    symbol, flag = ("renameatx_np", _RENAME_EXCL) if sys.platform == "darwin" else ("renameat2", _RENAME_NOREPLACE)
    function = getattr(_libc(), symbol, None)
    if function is None:
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    return lambda source, name, target, new_name: function(source, name, target, new_name, flag)


@functools.cache
def _syncfs_reports_errors() -> bool:
    if not sys.platform.startswith("linux") or getattr(_libc(), "syncfs", None) is None:
        return False
    parts = platform.release().split(".")
    try:
        return (int(parts[0]), int(parts[1].split("-")[0])) >= (5, 8)
    except (IndexError, ValueError):
        return False
