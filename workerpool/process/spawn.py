"""Fork: the child starts clean, ends by `os._exit`, and never returns into its parent's code.

    parent                                child
    ------                                -----
    flush stdio, block every signal
    fork ───────────────────────────────▶ handlers to default, no wakeup fd
    own group (also set here)             own group; standard input from /dev/null then
                                          title; death signal; is the parent still there?
    unblock                               every inherited descriptor but `keep` parked; unblock
    read the start identity               run target, flush, os._exit(its code)

A signal that arrives in the window waits until the child is set up, and then has its default action there: a child that
is told to end before it began just ends. Descriptors are *parked* (replaced by /dev/null), not closed: objects of the
parent's that still name them can be closed by the child without hitting a descriptor that it opened later. So no lock
(flock) that the parent holds outlives it in a child.

Fork only from a single-threaded process: a lock held by another thread stays locked in the child for ever.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import signal
import sys
import traceback
from collections.abc import Callable, Collection
from typing import NoReturn

from workerpool.process.descriptors import open_descriptors
from workerpool.process.identity import start_identity
from workerpool.process.parent import set_parent_death_signal
from workerpool.process.spare import keep_spare, with_spare
from workerpool.process.title import set_title

EXIT_ORPHANED = 114
"""Exit code of a child whose parent ended before the child was set up."""
_FAILED, _INTERRUPTED = 1, 130


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A process that we started. `start` is its start identity; `group`, `session`: its process group and session."""

    pid: int
    start: str
    name: str
    group: int
    session: int


def spawn(
    target: Callable[[], int],
    *,
    name: str,
    own_group: bool,
    ignore_int: bool = False,
    death_signal: int = signal.SIGTERM,
    keep: Collection[int] = (),
) -> Child:
    """Fork a child that runs `target` and exits with the code that it returns.

    `name`: what people see it as (`workerpool: <name>`). `own_group`: the child leads a process group of its own (and
    reads nothing from the terminal). `ignore_int`: SIGINT is ignored there. `death_signal`: what the child gets when
    this process ends (Linux): SIGTERM for stream processes, SIGKILL for workers. `keep`: descriptors that stay open
    beside 0, 1 and 2.

    An exception that leaves `target` is printed to standard error and ends the child with 1; SystemExit with its code.
    Raises `OSError` when the system cannot fork; nothing has changed then.
    """
    plan = _Plan(name, os.getpid(), own_group, ignore_int, death_signal, keep)
    keep_spare()
    _flush_stdio()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _be_the_child(target, plan)
        if own_group:
            _set_group(pid)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    group = pid if own_group else os.getpgrp()
    return Child(pid=pid, start=start_identity(pid) or "", name=name, group=group, session=os.getsid(0))


@dataclasses.dataclass(frozen=True, slots=True)
class _Plan:
    """What the child has to know to set itself up; see `spawn`."""

    name: str
    parent: int
    own_group: bool
    ignore_int: bool
    death_signal: int
    keep: Collection[int]


def _be_the_child(target: Callable[[], int], plan: _Plan) -> NoReturn:
    code = _FAILED
    try:
        _reset_signals(plan.ignore_int)
        if plan.own_group:
            _set_group(0)
        set_title(plan.name)
        if not set_parent_death_signal(plan.death_signal, plan.parent):
            os._exit(EXIT_ORPHANED)
        _park_descriptors(plan.keep, and_stdin=plan.own_group)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        code = target()
    except SystemExit as exit:
        code = _exit_code(exit)
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except BaseException:  # noqa: BLE001  the last frame of this process: whatever it is, say it and end
        _write_error(traceback.format_exc())
    finally:
        _flush_stdio()
        os._exit(code & 0xFF)


def _reset_signals(ignore_int: bool) -> None:
    """Default actions again; what is ignored stays ignored (SIGPIPE by the interpreter, SIGHUP under nohup)."""
    signal.set_wakeup_fd(-1)
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN if ignore_int else signal.SIG_DFL)


def _set_group(pid: int) -> None:
    """Done on both sides of the fork, so that neither can see it undone; the second one may come too late."""
    try:
        os.setpgid(pid, pid)
    except (PermissionError, ProcessLookupError):
        return


@with_spare
def _park_descriptors(keep: Collection[int], and_stdin: bool) -> None:
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        for fd in open_descriptors():
            if fd > 2 and fd != nothing and fd not in keep:
                _park(fd, nothing)
        if and_stdin:
            os.dup2(nothing, 0)
    finally:
        os.close(nothing)


def _park(fd: int, nothing: int) -> None:
    try:
        os.dup2(nothing, fd, inheritable=False)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        os.close(fd)  # above a limit that was lowered since: nothing can be put there, now or by mistake


def _exit_code(exit: SystemExit) -> int:
    if exit.code is None:
        return 0
    if isinstance(exit.code, int):
        return exit.code
    _write_error(f"{exit.code}\n")
    return _FAILED


def _flush_stdio() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):  # a closed terminal or pipe must not stop a pool
            continue


def _write_error(text: str) -> None:
    try:
        os.write(2, text.encode(errors="backslashreplace"))
    except OSError:  # nobody is left to read it
        return
