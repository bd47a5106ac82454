"""Descriptors kept in reserve, for what must go on when a process may open no more (EMFILE, ENFILE).

Who a pid is and who belongs to a process group is read from files. A process that has no descriptor left could neither
kill a worker nor tell that one is gone; it would have to take an overdue handler for dead. So `spawn` keeps a few
descriptors of /dev/null open, which every child inherits, and a function marked `with_spare` is called once more with
these given up when it has met the limit.

For processes with one thread: another one could take what was given up for an instant.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
FULL = frozenset({errno.EMFILE, errno.ENFILE})
_WANTED = 3
_spare: list[int] = []


def keep_spare() -> None:
    """Have the reserve complete, as far as the limit allows."""
    while len(_spare) < _WANTED:
        try:
            _spare.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:  # this is no moment to insist: the next call may be
            return


def with_spare(act: Callable[P, T]) -> Callable[P, T]:
    """Call `act` again with the reserve given up when it has raised that no descriptor is left."""

    @functools.wraps(act)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return act(*args, **kwargs)
        except OSError as error:
            if error.errno not in FULL:
                raise
        with _given_up():
            return act(*args, **kwargs)

    return call


@contextlib.contextmanager
def _given_up() -> Iterator[None]:
    while _spare:
        _close(_spare.pop())
    try:
        yield
    finally:
        keep_spare()


def _close(fd: int) -> None:
    """Close it, unless a handler has closed it already and the number is something else's by now."""
    with contextlib.suppress(OSError):
        if os.fstat(fd).st_rdev == os.stat(os.devnull).st_rdev:
            os.close(fd)
