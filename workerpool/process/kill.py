"""Sending signals, never to a stranger.

Each function names its target by pid *and* start identity (see `identity`), looks first, and does nothing when the pid
belongs to somebody else by now. While a process group has members the kernel does not hand its number out again, so a
group whose leader is still there (also as a zombie) is surely the one that is meant. A look that meets a process which
goes meanwhile is repeated, or goes past it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterator, Sequence

import psutil

from workerpool.process.identity import NOT_THERE, start_identity, started_before
from workerpool.process.spare import with_spare

_MOST_ROUNDS = 10
_DYING_SECONDS = 0.05
_THREADS = "/proc/self/task"


def kill_process(pid: int, start: str, signal_number: int) -> bool:
    """Send a signal to one process; False when it is gone, or its pid is another's now, or it may not be signalled."""
    if pid <= 0 or start_identity(pid) != start:
        return False
    try:
        os.kill(pid, signal_number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


@with_spare
def kill_group(pid: int, start: str, signal_number: int, *, session: int | None = None) -> bool:
    """Send a signal to the process group that `pid` leads; returns whether anybody was signalled.

    With the leader gone its number proves nothing any more. Then only members are signalled that started after it, in
    the session `session` (None: this process's), under our uid.
    """
    if pid <= 1 or pid == os.getpgrp():
        return False
    found = start_identity(pid)
    if found == start:
        return _killpg(pid, signal_number)
    if found is not None:
        return False
    wanted = os.getsid(0) if session is None else session
    members = [member for member in _members(pid, wanted) if started_before(start, member[1])]
    return sum(kill_process(member, member_start, signal_number) for member, member_start in members) > 0


@with_spare
def kill_strays(known: Collection[int], signal_number: int = signal.SIGKILL) -> list[int]:
    """Kill this process's children that are not in `known`, with all their descendants; returns the pids.

    Strays are what a dead worker's handler left outside its process group: a subreaper inherits them. Pass the pids of
    every child that shall live; descendants of those are not touched. Those that are to be killed are stopped first:
    what goes on would start others while it is looked at.
    """
    killed: list[int] = []
    for _ in range(_MOST_ROUNDS):  # killing a parent hands its children to us: look again
        pids = child_pids().difference(known)
        if signal_number == signal.SIGKILL:
            _stop(pids)
        strays = _living(pids)
        if not strays:
            break
        for stray in strays:
            killed += [process.pid for process in [*_descendants(stray), stray] if _send(process, signal_number)]
        if signal_number != signal.SIGKILL:
            break
        _await_end(strays)
    return list(dict.fromkeys(killed))


@with_spare
def end_left_overs(known: Collection[int] = ()) -> list[int]:
    """Kill and reap every child of this process that is not in `known`, with its descendants; returns the pids.

    For a subreaper between two jobs: what a job left running, in whatever group or session, is its child by then. While
    there are no children at all it costs one system call.
    """
    ended: list[int] = []
    for _ in range(_MOST_ROUNDS):
        strays = child_pids().difference(known) if has_children() else ()
        if not strays:
            break
        kill_strays(known)
        for pid in strays:
            _wait_for(pid)
        ended += strays
    return ended


@with_spare
def child_pids() -> frozenset[int]:
    """The pids of this process's children, dead ones that nobody has waited for included."""
    try:
        threads = os.listdir(_THREADS)
        return frozenset(int(pid) for thread in threads for pid in _read(f"{_THREADS}/{thread}/children").split())
    except FileNotFoundError:  # no such list here
        return frozenset(child.pid for child in _children(psutil.Process()))


def has_children() -> bool:
    """Whether this process has any child, be it a dead one that nobody has waited for; one system call."""
    if not hasattr(os, "waitid"):
        return True
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _wait_for(pid: int) -> None:
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:  # somebody else has waited for it, or it was no child of ours
        return


def _killpg(group: int, signal_number: int) -> bool:
    try:
        os.killpg(group, signal_number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _members(group: int, session: int) -> Iterator[tuple[int, str]]:
    """The processes of `group` in `session` that run under our uid, with their start identities."""
    for pid in psutil.pids():
        try:
            ours = os.getpgid(pid) == group and os.getsid(pid) == session
            if ours and psutil.Process(pid).uids().real == os.getuid():
                start = start_identity(pid)
                if start is not None:
                    yield pid, start
        except (*NOT_THERE, ProcessLookupError, PermissionError):
            continue


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return _children(process, recursive=True)
    except NOT_THERE:
        return []


def _children(process: psutil.Process, *, recursive: bool = False) -> list[psutil.Process]:
    for _ in range(_MOST_ROUNDS):
        try:
            return process.children(recursive=recursive)
        except FileNotFoundError:
            continue
    return process.children(recursive=recursive)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _stop(children: Collection[int]) -> None:
    """Stop our own children: nobody else can have such a pid before we have waited for it."""
    for pid in children:
        try:
            os.kill(pid, signal.SIGSTOP)
        except (ProcessLookupError, PermissionError):
            continue


def _await_end(strays: Sequence[psutil.Process]) -> None:
    """A moment, for those that were killed to be dead: only then are their children ours."""
    deadline = time.monotonic() + _DYING_SECONDS
    while _living([stray.pid for stray in strays]) and time.monotonic() < deadline:
        time.sleep(0.001)


def _living(pids: Collection[int]) -> list[psutil.Process]:
    living = []
    for pid in pids:
        try:
            process = psutil.Process(pid)
            if process.status() != psutil.STATUS_ZOMBIE:
                living.append(process)
        except NOT_THERE:
            continue
    return living


def _send(process: psutil.Process, signal_number: int) -> bool:
    try:
        process.send_signal(signal_number)
    except NOT_THERE:
        return False
    return True
