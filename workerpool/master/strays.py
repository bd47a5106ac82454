"""What jobs have left outside of their workers' groups, when nobody between it and the master is left to kill it.

A worker kills what its job leaves, and a stream process what its worker leaves, as the subreaper of either. When both
are killed at once, the master is the next one that it falls to. It adopts only in a process that is the pool's own:
not as the first one of a container, which inherits everybody's orphans, nor in a program that has children of its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection

from workerpool.process import become_subreaper, has_children, kill_strays, reap

_PATIENCE_SECONDS = 2.0
_LOOK_SECONDS = 0.005


class Strays:
    """`known`: the pids of the master's own children that live."""

    def __init__(self, known: Callable[[], Collection[int]]) -> None:
        self._known = known
        self._adopts = False

    def adopt(self) -> None:
        """Be the last one that orphans fall to, from now until `let_go`."""
        self._adopts = os.getpid() != 1 and not has_children() and become_subreaper()

    def kill(self) -> None:
        """Kill what has fallen to the master."""
        if self._adopts:
            kill_strays(self._known())

    def kill_all(self) -> None:
        """Kill and bury every child that there is, for two seconds at most; only at the end."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while self._adopts and has_children() and time.monotonic() < deadline:
            kill_strays(())
            if not reap():
                time.sleep(_LOOK_SECONDS)

    def let_go(self) -> None:
        """Adopt no more: the process may go on without a pool."""
        if self._adopts:
            become_subreaper(False)
