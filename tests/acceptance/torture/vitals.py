"""What a process holds: memory, descriptors, threads, inotify watches; for tests that look for leaks. Linux only."""

from __future__ import annotations

import collections
import os
import re
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
Holdings = collections.Counter[str]
"""How many of what, by name; two of them can be subtracted. Their totals are of descriptors, threads and watches."""


def holdings(pid: int) -> Holdings:
    """What a process holds now, of that which can be counted exactly."""
    process = Path("/proc", str(pid))
    found = Holdings()
    for name in os.listdir(process / "fd"):
        found[f"descriptor of {_kind(process / 'fd' / name)}"] += 1
        info = _text(process / "fdinfo" / name)
        found["inotify watch"] += sum(line.startswith("inotify wd:") for line in info.splitlines())
    found["thread"] = len(os.listdir(process / "task"))
    return found


def told(held: Holdings) -> str:
    """In a few words."""
    descriptors = sum(count for name, count in held.items() if name.startswith("descriptor"))
    return f"{descriptors} fds, {held['thread']} threads, {held['inotify watch']} watches"


def resident_mib(pid: int) -> float:
    """Its resident memory, in MiB."""
    return int(Path("/proc", str(pid), "statm").read_text().split()[1]) * PAGE_BYTES / 2**20


def _kind(path: Path) -> str:
    """Which file a descriptor is of; of pipes and their like only that it is one."""
    try:
        return re.sub(r":\[\d+\]", "", os.readlink(path))
    except FileNotFoundError:
        return "what is closed by now"


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
