"""This machine, the configuration, and the disk behind a store: facts and what they mean. No I/O."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from workerpool.cli import words
from workerpool.cli.diagnosis.finding import Finding, Part, error, note, ok, warning

SPARE_DESCRIPTORS = 64
"""What handlers and libraries may need on top before it is worth a word."""
_EARLIEST, _LATEST = 1_704_067_200, 4_102_444_800  # 2024 and 2100
_COARSE_NS = 10_000_000
_LEAST_BYTES, _LITTLE_BYTES, _LITTLE_SHARE = 2 * 2**20, 200 * 2**20, 0.01
_LEAST_FILES, _FEW_FILES, _FEW_SHARE = 16, 2_000, 0.01


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """`versions`: of what is installed, by package; `descriptors`: how many a process may open, and `…_needed` what the
    pool's largest needs; `processes`: how many more may be started, None = no limit known; `pool_runs`: one runs here,
    so it has what it needs; `wall`: the clock, epoch seconds; `monotonic_ns`: resolution of the monotonic clock;
    `boot_id`: "" when the system has none.
    """

    system: str
    python: str
    versions: Mapping[str, str]
    descriptors: int
    descriptors_needed: int
    processes: int | None
    processes_needed: int
    pool_runs: bool
    wall: float
    monotonic_ns: float
    boot_id: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """`path`: None without a file; `problems`: its mistakes, one line each; `unsafe`: paths that others could change,
    with the reason of each."""

    path: str | None
    streams: int
    problems: tuple[str, ...] = ()
    unsafe: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A filesystem by one of its folders. Bytes, and files (inodes); `files_total` 0: it has no such limit."""

    folder: str
    filesystem: str
    bytes_free: int
    bytes_total: int
    files_free: int
    files_total: int
    read_only: bool


def judge(machine: Machine) -> Iterator[Finding]:
    """What the machine's facts mean."""
    installed = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    yield ok("versions", f"Python {machine.python} on {machine.system}; {installed}")
    yield from _judge_clock(machine)
    yield _judge_descriptors(machine)
    yield _judge_processes(machine)


def _judge_clock(machine: Machine) -> Iterator[Finding]:
    if not _EARLIEST <= machine.wall <= _LATEST:
        yield error(
            "clock",
            f"this machine's clock says {words.moment(round(machine.wall * 1000))}",
            "jobs are stamped with it, and run in the order of their stamps",
            "set it, and have it kept by NTP (timedatectl set-ntp true)",
        )
    if machine.monotonic_ns > _COARSE_NS:
        yield warning(
            "clock",
            f"the monotonic clock steps by {machine.monotonic_ns / 1e6:g} ms",
            "timeouts and heartbeats are no finer",
        )
    if machine.boot_id:
        yield ok("clock", f"{words.moment(round(machine.wall * 1000))}; monotonic clock and boot id are there")
    else:
        yield warning(
            "clock",
            "this system tells no boot id",
            "a lease left by a crash before a reboot is waited out (the ttl) instead of taken at once",
        )


def _judge_descriptors(machine: Machine) -> Finding:
    limit, needed = machine.descriptors, machine.descriptors_needed
    found = f"a process may open {limit:,} descriptors, and this pool's largest needs {needed:,}"
    if limit < needed:
        return error("limits", found, "the pool does not start", f"ulimit -n {2 * needed}, or LimitNOFILE= in its unit")
    if limit < needed + SPARE_DESCRIPTORS:
        return warning("limits", found, "little is left for what handlers open", f"ulimit -n {needed + 1024}")
    return ok("limits", found)


def _judge_processes(machine: Machine) -> Finding:
    needed = f"{machine.processes_needed:,} process{'es' if machine.processes_needed > 1 else ''}"
    if machine.processes is None:
        return ok("limits", f"no limit of processes is in the way; this pool is {needed}")
    found = f"{machine.processes:,} more processes may be started, and this pool is {needed}"
    if machine.processes < machine.processes_needed and not machine.pool_runs:
        return error("limits", found, "not all of its workers can start", "raise ulimit -u, or the cgroup's pids.max")
    return ok("limits", found)


def judge_config(config: Config) -> Iterator[Finding]:
    """What is wrong with the configuration."""
    for problem in config.problems:
        yield error(
            "config", problem, "no pool starts with it", "correct it; `workerpool check` tells more", Part.CONFIG
        )
    for path, reason in config.unsafe:
        yield error("config", f"{path} {reason}", "whoever can change it can run code as you", "", Part.CONFIG)
    if config.problems or config.unsafe:
        return
    if config.path is None:
        yield note("config", "no configuration: the store is looked at alone, with the defaults' limits")
    else:
        yield ok("config", f"{config.path}: {words.number(config.streams, 'stream')}, nobody else can change it")


def judge_disk(disk: Disk) -> Iterator[Finding]:
    """Whether there is room."""
    where = f"{disk.filesystem or 'the filesystem'} of {disk.folder}"
    found = f"{words.size(disk.bytes_free)} of {words.size(disk.bytes_total)} are free on the {where}"
    if disk.read_only:
        yield error("disk", f"the {where} is mounted read-only", "nothing can be sent or settled", "", Part.STORE)
    elif disk.bytes_free < _LEAST_BYTES:
        yield error("disk", found, "pools claim nothing and senders get errors", f"make room: du -xh {disk.folder}")
    elif disk.bytes_free < _LITTLE_BYTES or disk.bytes_free < _LITTLE_SHARE * disk.bytes_total:
        yield warning("disk", found, "when it is full, claiming pauses and sends fail", "make room; `workerpool prune`")
    else:
        yield ok("disk", found)
    yield from _judge_files(disk)


def _judge_files(disk: Disk) -> Iterator[Finding]:
    if not disk.files_total:
        return
    found = f"{disk.files_free:,} of {disk.files_total:,} inodes are free there"
    if disk.files_free < _LEAST_FILES:
        yield error("disk", found, "no file can be made although there may be room", "`workerpool prune`")
    elif disk.files_free < _FEW_FILES or disk.files_free < _FEW_SHARE * disk.files_total:
        yield warning(
            "disk", found, "a job and its record are two files; without inodes sends fail", "`workerpool prune`"
        )
    else:
        yield ok("disk", found)
