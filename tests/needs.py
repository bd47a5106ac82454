"""What of the machine a test needs, beyond Python: `@pytest.mark.needs("root", "strace")`.

Where it is missing the test is skipped and says what was missing; with REQUIRE_ALL=1 that is a failure.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

_CAP_SYS_TIME = 25

MISSING = {
    "linux": "this is not Linux",
    "root": "this is not root's",
    "strace": "there is no strace that may trace a process",
    "loop": "no loop device can be mounted here as ext4",
    "namespaces": "no namespaces can be made here",
    "clock": "the clock of this machine cannot be set",
}


def skip_without(names: Iterable[str]) -> None:
    """Skip the current test unless this machine has all of these.

    :raises KeyError: for a name that is not in `MISSING`
    """
    for name in names:
        if not _HAS[name]():
            pytest.skip(f"needs {name}: {MISSING[name]}")


@functools.cache
def _is_linux() -> bool:
    return sys.platform == "linux"


@functools.cache
def _is_root() -> bool:
    return os.geteuid() == 0


@functools.cache
def _can_trace() -> bool:
    return _is_linux() and shutil.which("strace") is not None and _works("strace", "-qq", "-o", os.devnull, "true")


@functools.cache
def _can_mount() -> bool:
    return _is_linux() and _is_root() and shutil.which("mkfs.ext4") is not None and _works("losetup", "-f")


@functools.cache
def _can_unshare() -> bool:
    return _is_linux() and _is_root() and _works("unshare", "--pid", "--fork", "--net", "true")


@functools.cache
def _can_set_clock() -> bool:
    if not _is_linux():
        return False
    (rights,) = (line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "CapEff" in line)
    return bool(int(rights, 16) >> _CAP_SYS_TIME & 1)


def _works(*command: str) -> bool:
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


_HAS: dict[str, Callable[[], bool]] = {
    "linux": _is_linux,
    "root": _is_root,
    "strace": _can_trace,
    "loop": _can_mount,
    "namespaces": _can_unshare,
    "clock": _can_set_clock,
}
