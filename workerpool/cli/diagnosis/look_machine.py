"""Gathers the facts about this machine, the configuration, and a disk."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import time
from collections.abc import Iterator

import psutil

from queuekit.locks import boot_id
from queuekit.watch import filesystem_type
from workerpool.assemble import descriptors_needed
from workerpool.cli.diagnosis.machine import Config, Disk, Machine
from workerpool.config import PoolConfig
from workerpool.process import NOT_THERE, descriptor_limit
from workerpool.trust import why_unimportable, why_unsafe, why_unusable

_PACKAGES = (
    "workerpool",
    "click",
    "inotify-simple",
    "psutil",
    "psycopg",
    "pydantic",
    "pysqlite3",
    "rich",
    "SQLAlchemy",
    "tenacity",
)


def look_at_machine(config: PoolConfig, *, pool_runs: bool) -> Machine:
    """What a pool of this configuration finds here. `pool_runs`: one does."""
    return Machine(
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        versions={name: version for name in _PACKAGES if (version := _version(name))},
        descriptors=descriptor_limit(),
        descriptors_needed=descriptors_needed(config.streams),
        processes=_processes_left(),
        processes_needed=1 + sum(1 + stream.workers for stream in config.streams),
        pool_runs=pool_runs,
        wall=time.time(),
        monotonic_ns=time.get_clock_info("monotonic").resolution * 1e9,
        boot_id=boot_id(),
    )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _processes_left() -> int | None:
    """By the user's limit, which root has not, and by the control group's."""
    found = []
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if os.geteuid() and soft != resource.RLIM_INFINITY:
        found.append(soft - sum(map(_is_mine, psutil.pids())))
    group = _group_folder()
    limit, now = _number(f"{group}/pids.max"), _number(f"{group}/pids.current")
    if limit is not None and now is not None:
        found.append(limit - now)
    return max(0, min(found)) if found else None


def _is_mine(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).uids().real == os.getuid())
    except NOT_THERE:
        return False


def _group_folder() -> str:
    """This process's control group, by the second version of these."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            own = next((line.strip()[3:] for line in file if line.startswith("0::")), "/")
    except OSError:
        own = "/"
    return f"/sys/fs/cgroup{own}".rstrip("/")


def _number(path: str) -> int | None:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):  # not there, or `max`
        return None


def look_at_config(config: PoolConfig, problems: tuple[str, ...]) -> Config:
    """`problems`: what was wrong with the file when it was read."""
    unsafe = [(path, reason) for path, reason in _judged(config) if reason]
    return Config(path=config.path, streams=len(config.streams), problems=problems, unsafe=tuple(unsafe))


def _judged(config: PoolConfig) -> Iterator[tuple[str, str | None]]:
    """What a pool reads code from, each with why it should not."""
    if config.path is None:
        return
    try:
        yield config.path, why_unsafe(os.stat(config.path))
    except OSError as error:
        yield config.path, f"cannot be looked at: {error.strerror}"
    yield config.base, why_unusable(config.base)
    for folder in config.handlers.path:
        yield folder, why_unimportable(folder)


def look_at_disk(folder: str) -> Disk:
    """The filesystem behind a folder that is there. Raises `OSError`."""
    facts = os.statvfs(folder)
    return Disk(
        folder=folder,
        filesystem=filesystem_type(folder),
        bytes_free=facts.f_bavail * facts.f_frsize,
        bytes_total=facts.f_blocks * facts.f_frsize,
        files_free=facts.f_favail,
        files_total=facts.f_files,
        read_only=bool(facts.f_flag & os.ST_RDONLY),
    )
