"""Watching an SQLite database with inotify, or by looking again and again.

A commit of ours is followed by a touch of the file (`SqliteDatabase.notify`), which is an event that comes when there
is something to see. A commit by somebody else's transaction is seen by the writes to the file or its -wal: those come
*before* the commit can be seen, and the commit itself is no event. So after the last write it asks to be read a few
times more, ever later; a commit takes as long as the disk needs to sync.

What a reader does is no event, so an idle consumer sleeps. Nothing here opens the files: see `sqlite`.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable

from queuekit.contract import Watcher
from queuekit.watch import filesystem_type, is_silent
from queuekit.watch.base import Place
from queuekit.watch.poll import PollWatcher

log = logging.getLogger("queuekit.watch")


def watch_sqlite(path: str, poll: float, *, wal: bool) -> Watcher:
    """A watcher of the database at `path`, attached. `poll`: seconds between looks where there are no events; `wal`:
    whether it may be in WAL mode.

    Raises `WatcherFailed` when the process has no descriptors left.
    """
    place = Place(os.path.dirname(path), path)
    filesystem = filesystem_type(path)
    if sys.platform != "linux" or is_silent(filesystem):
        return PollWatcher(place, poll)
    from queuekit.backends.sql.watch_inotify import SqliteInotifyWatcher
    from queuekit.watch.inotify import refusal

    try:
        return SqliteInotifyWatcher(place, poll, wal=wal)
    except OSError as error:
        log.warning("%s; polling %s every %s s instead", refusal(error), path, poll)
        return PollWatcher(place, poll)


class Settling:
    """When to look again after writes whose commit may not be visible yet. Seconds on a monotonic clock."""

    AFTER = (0.005, 0.05, 0.5, 5.0)

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due: list[float] = []

    def stirred(self) -> None:
        """Something was written just now."""
        now = self._clock()
        self._due = [now + pause for pause in self.AFTER]

    def looked(self) -> None:
        """Somebody looks now."""
        now = self._clock()
        self._due = [due for due in self._due if due > now]

    def pause(self) -> float | None:
        """Seconds until the next look; None when there need not be one."""
        return max(0.0, self._due[0] - self._clock()) if self._due else None
