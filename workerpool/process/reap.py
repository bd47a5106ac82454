"""Who ended, and how; who was stopped."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from collections.abc import Callable

RSS_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes in one unit of `ru_maxrss`."""
_CAN_PEEK = hasattr(os, "waitid")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """The end of one child. Exactly one of `code` (exit code) and `signal` (the number that killed it) is set.

    `max_rss`: the most memory it had resident, in bytes.
    """

    pid: int
    code: int | None
    signal: int | None
    max_rss: int

    @property
    def how(self) -> str:
        """The end of a sentence whose subject it is: `was killed by SIGSEGV`, `exited with code 1`."""
        return f"exited with code {self.code}" if self.signal is None else f"was killed by {_name(self.signal)}"


def reap(before: Callable[[int], object] | None = None) -> list[Exit]:
    """Collect every child that has ended, without waiting; strangers (adopted orphans) included.

    `before(pid)` is called for each while it is still there as a zombie: its pid and process group cannot have been
    re-used yet, so that is the moment to kill what it left in its group. (Where the system cannot look without
    reaping, macOS before Python 3.13, it is called directly afterwards.)
    """
    ended = []
    while (pid := _next_ended(before)) is not None:
        try:
            reaped, status, usage = os.wait4(pid, os.WNOHANG)
        except ChildProcessError:
            break
        if not reaped:
            break
        if before and not _CAN_PEEK:
            before(reaped)
        ended.append(_as_exit(reaped, status, usage.ru_maxrss * RSS_UNIT))
    return ended


def halts() -> list[tuple[int, bool]]:
    """`(pid, whether it is stopped)` of children that were stopped or continued since the last call, oldest first.

    A stop and its end make a SIGCHLD, too. (Where the system cannot tell without reaping, none is told.)
    """
    found: list[tuple[int, bool]] = []
    while _CAN_PEEK:
        try:
            news = os.waitid(os.P_ALL, 0, os.WSTOPPED | os.WCONTINUED | os.WNOHANG)
        except ChildProcessError:
            break
        if news is None or not news.si_pid:
            break
        found.append((news.si_pid, news.si_code == os.CLD_STOPPED))
    return found


def _next_ended(before: Callable[[int], object] | None) -> int | None:
    """The pid to wait for: -1 for any, after `before` that very child, None when none has ended."""
    if before is None or not _CAN_PEEK:
        return -1
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    if found is None or not found.si_pid:
        return None
    before(found.si_pid)
    return found.si_pid


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _as_exit(pid: int, status: int, max_rss: int) -> Exit:
    code = os.waitstatus_to_exitcode(status)
    return Exit(pid=pid, code=code if code >= 0 else None, signal=-code if code < 0 else None, max_rss=max_rss)
