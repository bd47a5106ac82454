"""A disk whose power can be cut: an ext4 in a loop image, shut down by ioctl, then mounted again.

    with power_disk(folder) as disk:
        ...                     # what is in disk.folder is on it
        disk.cut()              # from now on every system call on it fails; what was not synced is lost
        kill everything that uses it
        disk.restore()          # mounted again, as after the reboot: its journal is replayed, and nothing else

A cut is EXT4_IOC_SHUTDOWN without a flush of the log. What it cannot show is a disk that lies about syncing, or that
reorders what is in its own cache. Needs root, Linux and a loop device.

The disk is mounted in a mount namespace of this test: a namespace that somebody else makes meanwhile would copy the
mount, and then it could not be ended here.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import queuekit.locks
import workerpool.process.identity

SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN
NO_LOG_FLUSH = struct.pack("I", 2)
NEW_MOUNTS = 0x20000  # CLONE_NEWNS
BOOT_ID = "/proc/sys/kernel/random/boot_id"
IN_MEMORY = Path("/dev/shm")
PATIENCE = 30.0
_libc = ctypes.CDLL(None, use_errno=True)


class PowerDisk:
    """The disk. `folder`: where it is mounted; `cuts`: how many there were."""

    def __init__(self, folder: Path, image: Path, boot_id: Path) -> None:
        self.folder = folder
        self.cuts = 0
        self._image = image
        self._boot_id = boot_id

    def mount(self) -> None:
        """On a loop device of its own: one that was open before would remember what the disk has never got."""
        subprocess.run(["mount", "-t", "ext4", "-o", "loop", str(self._image), str(self.folder)], check=True)
        errors = (self._known / "errors_count").read_text()
        assert int(errors) == 0, "the disk itself is damaged, which no power cut does to an ext4"

    @property
    def _known(self) -> Path:
        """What the kernel shows of the mounted filesystem, by the name of its device."""
        number = self.folder.stat().st_dev
        device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
        return Path("/sys/fs/ext4", device.name)

    def cut(self) -> None:
        """The power is gone."""
        self.cuts += 1
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, SHUTDOWN, NO_LOG_FLUSH)
        finally:
            os.close(descriptor)

    def sync(self) -> None:
        """As somebody else on this disk may do at any time: all is written down as it is just now."""
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            _check(_libc.syncfs(descriptor))
        finally:
            os.close(descriptor)

    def restore(self, *, reboot: bool = True) -> None:
        """The power is back. Nobody may use the disk any more when this is called. `reboot`: with a new boot id."""
        self.unmount()
        self.mount()
        if reboot:
            self.boot()

    def boot(self) -> None:
        """What this test starts from now on takes it for the first boot of a machine."""
        self._boot_id.write_text(f"{uuid.uuid4()}\n")
        queuekit.locks.boot_id.cache_clear()
        workerpool.process.identity.boot_id.cache_clear()

    def unmount(self) -> None:
        """Returns when the kernel has let go of it, so that the next mount reads everything anew."""
        known = self._known
        end = time.monotonic() + PATIENCE
        while subprocess.run(["umount", str(self.folder)], check=False, capture_output=True).returncode:
            assert time.monotonic() < end, f"somebody still uses {self.folder}"
            time.sleep(0.005)
        while known.exists():
            assert time.monotonic() < end, f"somebody still has {self.folder} mounted"
            time.sleep(0.001)


@contextmanager
def power_disk(folder: Path, *, megabytes: int = 64) -> Iterator[PowerDisk]:
    """Make one and mount it at this folder, which must not exist; nothing of it is left at the end."""
    boot_id = folder.with_name(f"{folder.name}.boot")
    folder.mkdir()
    with _own_mounts(), _image(megabytes) as image:
        disk = PowerDisk(folder, image, boot_id)
        disk.boot()
        subprocess.run(["mount", "--bind", str(boot_id), BOOT_ID], check=True)
        disk.mount()
        try:
            folder.chmod(0o700)
            shutil.rmtree(folder / "lost+found")
            yield disk
        finally:
            disk.unmount()
            subprocess.run(["umount", BOOT_ID], check=True)
            disk.boot()
        subprocess.run(["e2fsck", "-fn", str(image)], check=True, capture_output=True)


@contextmanager
def _image(megabytes: int) -> Iterator[Path]:
    """In memory where that can be had: then thousands of syncs take no time from others."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as folder:
        image = Path(folder, "disk.img")
        with image.open("wb") as file:
            file.truncate(megabytes * 2**20)
        subprocess.run(["mkfs.ext4", "-qF", "-m", "0", "-E", "lazy_itable_init=0", str(image)], check=True)
        yield image


@contextmanager
def _own_mounts() -> Iterator[None]:
    """What this process and its children mount meanwhile is theirs alone."""
    everybodys = os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    place = Path.cwd()
    try:
        _check(_libc.unshare(NEW_MOUNTS))
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        yield
    finally:
        _check(_libc.setns(everybodys, NEW_MOUNTS))
        os.chdir(place)
        os.close(everybodys)


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
