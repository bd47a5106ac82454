"""Leases, proofs of life, counters of take-overs, and what was left over of each."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator

from queuekit import lease as leases
from queuekit.backends.maildir import layout
from queuekit.backends.maildir.fsck.finding import Finding, finding
from queuekit.backends.maildir.fsck.jobs import lock_held
from queuekit.backends.maildir.fsck.look import Look, life_of_owner, locked, read_small
from queuekit.errors import BackendUnavailable
from queuekit.lease import SUFFIX, Record
from queuekit.locks import Life

_TMP_MARK = f"{SUFFIX}.tmp."
_SECOND_LOOK_SECONDS = 0.02  # longer than it takes to lock a file that was just made


def check(look: Look) -> Iterator[Finding]:
    """Everything that is wrong with leases and what belongs to them."""
    root = look.root
    names = sorted(os.listdir(root))
    for name in names:
        if name.endswith(SUFFIX) and not name.startswith("."):
            yield from _under_lock(look, name.removesuffix(SUFFIX), name, _lease)
    folder = os.path.join(root, leases.FOLDER)
    private = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    for name in private:
        if name.endswith(".fence"):
            yield from _under_lock(look, name.removesuffix(".fence"), f"{leases.FOLDER}/{name}", _fence)
    yield from _left_over(root, names, private)
    yield from _dead(root, [name.removesuffix(".alive") for name in private if name.endswith(".alive")])


_Check = Callable[[str, str], Iterator[Finding]]


def _under_lock(look: Look, stream: str, path: str, check: _Check) -> Iterator[Finding]:
    try:
        with locked(look, stream):
            yield from check(look.root, path)
    except BackendUnavailable as error:
        yield lock_held(path, error)


def _lease(root: str, path: str) -> Iterator[Finding]:
    content = read_small(os.path.join(root, path))
    if content is None:
        return
    record = Record.decode(content)
    if record is None:
        yield finding("lease-unreadable", path, "it does not hold an owner and a time")
    elif not math.isfinite(record.at):
        yield finding("lease-unreadable", path, f"its time is {record.at}")
    elif life_of_owner(root, record.owner) is Life.DEAD:
        yield finding("lease-dead", path, f"its holder, {record.owner!r}, is dead")


def _fence(root: str, path: str) -> Iterator[Finding]:
    content = read_small(os.path.join(root, path))
    if content is None:
        return
    try:
        int(content)
    except ValueError:
        yield finding("fence-unreadable", path, "it does not hold a number")


# -- left over


def left_over(root: str, path: str) -> bool:
    """Whether a temporary file of a lease is old, and its writer is not alive."""
    try:
        facts = os.stat(os.path.join(root, path), follow_symlinks=False)
    except FileNotFoundError:
        return False
    owner = path.partition(_TMP_MARK)[2]
    alive = bool(owner) and life_of_owner(root, owner) is Life.HELD
    return not alive and facts.st_mtime < time.time() - layout.STALE_TMP_SECONDS


def _left_over(root: str, names: list[str], private: list[str]) -> Iterator[Finding]:
    paths = [name for name in names if name.startswith(".") and _TMP_MARK in name]
    paths += [f"{leases.FOLDER}/{name}" for name in private if name.endswith(".fence.tmp")]
    for path in paths:
        if left_over(root, path) and os.path.isfile(os.path.join(root, path)):
            yield finding("lease-left", path, "a lease or counter that was never finished", repairable=True)


def _dead(root: str, owners: list[str]) -> Iterator[Finding]:
    dead = [owner for owner in owners if is_dead(root, owner)]
    if not dead:
        return
    time.sleep(_SECOND_LOOK_SECONDS)
    for owner in dead:
        if is_dead(root, owner):
            path = f"{leases.FOLDER}/{owner}.alive"
            yield finding("alive-dead", path, f"{owner!r} is dead, and no lease names it", repairable=True)


def is_dead(root: str, owner: str) -> bool:
    """Whether an owner's proof of life is there, nobody holds it, and no lease names the owner."""
    path = os.path.join(root, leases.FOLDER, f"{owner}.alive")
    if not os.path.isfile(path) or life_of_owner(root, owner) is Life.HELD:
        return False
    return owner not in named(root) and os.path.isfile(path)


def named(root: str) -> set[str]:
    """The owners that leases name."""
    names = [name for name in os.listdir(root) if name.endswith(SUFFIX) and not name.startswith(".")]
    return {(read_small(os.path.join(root, name)) or b"").decode(errors="replace").split("\n")[0] for name in names}
