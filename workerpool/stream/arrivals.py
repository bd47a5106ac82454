"""When there may be something to claim: arrivals that the watcher saw, and every reason to look anyway.

`hungry` means that a drain may find something. It is set by whatever could be a missed event, and cleared by the drain
that found less than it asked for.
"""

from __future__ import annotations

import logging
import selectors
from collections.abc import Set

from queuekit.contract import Watcher
from workerpool.stream.desk import STORE_ERRORS, Desk

_log = logging.getLogger("workerpool.stream")


class Arrivals:
    """The watcher of one stream process, and what it has said."""

    def __init__(self, desk: Desk, selector: selectors.BaseSelector) -> None:
        self.hungry = False
        self._desk = desk
        self._selector = selector
        self._watcher: Watcher | None = None
        self._trouble = desk.troubles.new("watching for arrivals", _log)
        self._read_at = 0.0

    def open(self, now: float) -> None:
        """Watch from now on, and look at once; raises what the backend raises when nothing can be watched."""
        self.close()
        self._watcher = self._desk.backend.watcher(self._desk.stream)
        self._selector.register(self._watcher, selectors.EVENT_READ)
        self._read_at = now
        self.hungry = True

    def close(self) -> None:
        """Watch no more; any number of times."""
        if self._watcher is not None:
            self._selector.unregister(self._watcher)
            self._watcher.close()
            self._watcher = None

    def act(self, now: float, readable: Set[object]) -> None:
        """Take what has arrived."""
        watcher = self._watcher
        if watcher is None:
            return
        if watcher in readable or self._is_to_be_read(watcher, now):
            self._read_at = now
            self._note(watcher.read())

    def check(self, now: float) -> None:
        """See whether it is still the right place that is watched; to be called with each heartbeat."""
        if self._watcher is None:
            return
        try:
            same = self._watcher.check()
        except STORE_ERRORS as error:
            self._trouble.met(error, now)
            same = False
        else:
            self._trouble.over(now)
        if not same:
            self.look_again()

    def next(self, now: float) -> float | None:  # noqa: ARG002
        """When it wants to look although nothing was announced."""
        wait = None if self._watcher is None else self._watcher.timeout()
        return None if wait is None else self._read_at + wait

    def look_again(self) -> None:
        """Let the next drain look at everything."""
        self._desk.backend.look_again()
        self.hungry = True

    def _is_to_be_read(self, watcher: Watcher, now: float) -> bool:
        wait = watcher.timeout()
        return wait is not None and now >= self._read_at + wait

    def _note(self, names: tuple[str, ...]) -> None:
        if not names:
            self.look_again()  # events may be lost
            return
        self._desk.backend.hint(names)
        self.hungry = True
