"""What a machine can do to a pool, for a while: calls that fail, limits, a small disk. Each is undone at its end.

Every context here touches only what it has made itself (a cgroup, a loop image) or the processes it is given, and skips
its test where it cannot be had.
"""

from __future__ import annotations

import itertools
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NoReturn

import pytest
from pool import Estate, Pool, cpu_ticks, until

from queuekit.job import Delivery

FORKS = "?fork,?vfork,clone,?clone3"
SYNCS = "fsync,fdatasync,syncfs"
RENAMES = "?rename,?renameat,renameat2"
MOST_CPU = 0.05
RECOVERY_SECONDS = 10.0

needs_linux = pytest.mark.needs("linux")


def endure(pool: Pool, seconds: float) -> float:
    """Let so many seconds pass; returns how much of one CPU the pool used meanwhile."""
    pids = pool.tree()
    before, begun = sum(map(_ticks, pids)), time.monotonic()
    until(lambda: time.monotonic() > begun + seconds, "the window", patience=seconds + 5)
    used = (sum(map(_ticks, pids)) - before) / os.sysconf("SC_CLK_TCK")
    print(f"CPU during the trouble: {100 * used / seconds:.1f} %")
    return used / seconds


def _ticks(pid: int) -> int:
    try:
        return cpu_ticks(pid)
    except (FileNotFoundError, ProcessLookupError):
        return 0


def check_untouched(estate: Estate, jobs: Collection[str]) -> None:
    """Every job ran once, and none carries a failed run."""
    assert {job: len(runs) for job, runs in estate.runs().items()} == dict.fromkeys(jobs, 1)
    assert {Delivery.of(job).attempt for job in estate.queue.completed()} == {0}
    estate.check_settled(list(jobs))


def failing(pid: int, calls: str, error: str) -> AbstractContextManager[None]:
    """These system calls of one process fail with this error meanwhile."""
    return _injected(pid, calls, f"error={error}")


def slowed(pid: int, calls: str, seconds: float, *options: str) -> AbstractContextManager[None]:
    """These calls of a process take so much longer meanwhile. `options`: more of strace's, which narrow it down."""
    return _injected(pid, calls, f"delay_enter={int(seconds * 1e6)}", *options)


@contextmanager
def _injected(pid: int, calls: str, what: str, *options: str) -> Iterator[None]:
    command = ["strace", "-q", "-p", str(pid), *options, "-e", f"trace={calls}", "-e", f"inject={calls}:{what}"]
    tracer = subprocess.Popen([*command, "-o", os.devnull], stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: _is_traced(pid) or tracer.poll() is not None, "the tracer")
        assert tracer.poll() is None, tracer.communicate()[1]
        yield
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.communicate(timeout=60)


def _is_traced(pid: int) -> bool:
    return "TracerPid:\t0" not in Path(f"/proc/{pid}/status").read_text()


@contextmanager
def no_more_descriptors(pid: int, left: int = 0) -> Iterator[None]:
    """The process can open no more than `left` files at a time meanwhile; what it has open it keeps."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    taken = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    free = (number for number in itertools.count() if number not in taken)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (next(itertools.islice(free, left, None)), hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def no_more_processes(pids: Iterable[int]) -> Iterator[None]:
    """These processes and what they have started can fork nothing meanwhile, as in a pids cgroup that is full."""
    for base in (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")):
        if (base / "cgroup.procs").exists():
            break
    else:
        pytest.skip("no cgroups here")
    group = base / f"workerpool-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no pids cgroup can be made here: {error}")
    try:
        try:
            for pid in pids:
                (group / "cgroup.procs").write_text(str(pid))
            (group / "pids.max").write_text("0")
        except OSError as error:
            pytest.skip(f"the pids cgroup has no limit to set: {error}")
        yield
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            _move(int(pid), base)
        until(lambda: _is_removed(group), "the end of the cgroup")


def _move(pid: int, group: Path) -> None:
    try:
        (group / "cgroup.procs").write_text(str(pid))
    except ProcessLookupError:
        return


def _is_removed(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:
        for pid in (group / "cgroup.procs").read_text().split():
            _move(int(pid), group.parent)
        return False
    return True


@contextmanager
def memory_cgroup(name: str, limit: int) -> Iterator[Path]:
    """A group of processes with a limit on their memory; skips where none can be made. Gone afterwards, when empty."""
    old = Path("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists()
    folder = Path("/sys/fs/cgroup/memory" if old else "/sys/fs/cgroup", name)
    try:
        folder.mkdir()
        (folder / ("memory.limit_in_bytes" if old else "memory.max")).write_text(str(limit))
    except OSError as error:
        if folder.exists():
            folder.rmdir()
        pytest.skip(f"no memory cgroup can be made here: {error}")
    try:
        yield folder
    finally:
        until(lambda: not (folder / "cgroup.procs").read_text(), "the end of the group's processes")
        folder.rmdir()


def move_into(folder: Path, pool: Pool) -> None:
    """Put the whole tree into the group; what it forks from now on is born there."""
    for pid in pool.tree():
        (folder / "cgroup.procs").write_text(str(pid))


@contextmanager
def small_disk(folder: Path, *options: str) -> Iterator[None]:
    """A filesystem of its own at this folder: 16 MB of ext4, made with these options."""
    folder.mkdir()
    image = folder.with_name(f"{folder.name}.img")
    with image.open("wb") as file:
        file.truncate(16 * 2**20)
    subprocess.run(["mkfs.ext4", "-qF", "-m", "0", *options, str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(folder)], check=True)
    try:
        folder.chmod(0o700)
        yield
    finally:
        until(lambda: subprocess.run(["umount", str(folder)], check=False).returncode == 0, "the unmounting")
        image.unlink()


@contextmanager
def used_up(make_one: Callable[[Path], None], folder: Path) -> Iterator[None]:
    """Make one thing after the other in this new folder until there is no room; it is removed again at the end."""
    folder.mkdir()
    try:
        with pytest.raises(OSError, match="No space left"):
            _make_all(make_one, folder)
        yield
    finally:
        shutil.rmtree(folder)


def _make_all(make_one: Callable[[Path], None], folder: Path) -> NoReturn:
    for number in itertools.count():
        make_one(folder / str(number))
    raise AssertionError
