"""The events of an SQLite database (Linux): writes to the file and its -wal, touches of the file, and its replacement.

The -wal comes and goes with the connections: while there is none, its folder is watched for it, and only then, since
whatever else is made there would wake for nothing. An inotify instance must not be used on both sides of a fork.
"""

from __future__ import annotations

import os

from inotify_simple import Event, flags

from queuekit.backends.sql.watch import Settling
from queuekit.watch.base import ARRIVED_UNNAMED, Place
from queuekit.watch.inotify import InotifyInstance

_GONE = flags.DELETE_SELF | flags.MOVE_SELF | flags.UNMOUNT | flags.IGNORED
_OF_FILE = flags.MODIFY | flags.ATTRIB | flags.DELETE_SELF | flags.MOVE_SELF | flags.DONT_FOLLOW
_OF_FOLDER = flags.CREATE | flags.MOVED_TO | flags.ONLYDIR


class SqliteInotifyWatcher(InotifyInstance):
    """Watches the database `place.new`, from the moment it is made.

    `poll_interval`: seconds between tries while the file is missing; `wal`: whether it may be in WAL mode. Raises
    `OSError` when the kernel refuses.
    """

    def __init__(self, place: Place, poll_interval: float, *, wal: bool) -> None:
        self._wal = f"{place.new}-wal" if wal else ""
        self._settling = Settling()
        self._watches: dict[str, int] = {}  # path -> watch
        super().__init__(place, poll_interval)

    def timeout(self) -> float | None:
        """None when nothing is going on."""
        waits = [wait for wait in (super().timeout(), self._settling.pause()) if wait is not None]
        return min(waits, default=None)

    def read(self) -> tuple[str, ...]:
        """Take the events, without blocking; always `()`. Attaches anew when the file was replaced."""
        events = self._take()
        if self._seen is None or self._has_lost(self.place.new, events):
            self.attach()
        elif self._wal and (self._wal not in self._watches or self._has_lost(self._wal, events)):
            self._watch_wal_or_poll()
        self._settling.looked()
        if any(self._is_write(event) for event in events):
            self._settling.stirred()
        return ARRIVED_UNNAMED

    def _attach(self) -> None:
        self._watches[self.place.new] = self._inotify.add_watch(self.place.new, _OF_FILE)
        if self._wal:
            self._watch_wal()

    def _watch_wal_or_poll(self) -> None:
        try:
            self._watch_wal()
        except OSError:
            self.attach()  # which says why it cannot

    def _watch_wal(self) -> None:
        """Watch the -wal when it is there, else the folder. In between it is both: nothing is missed."""
        self._unwatch(self._wal)
        if not self._watch_existing_wal():
            self._watches[self.place.root] = self._inotify.add_watch(self.place.root, _OF_FOLDER)
            self._watch_existing_wal()
        if self._wal in self._watches:
            self._unwatch(self.place.root)

    def _watch_existing_wal(self) -> bool:
        try:
            self._watches[self._wal] = self._inotify.add_watch(self._wal, _OF_FILE)
        except FileNotFoundError:
            return False
        return True

    def _drop_watches(self) -> None:
        for path in list(self._watches):
            self._unwatch(path)

    def _unwatch(self, path: str) -> None:
        watch = self._watches.pop(path, None)
        if watch is not None:
            self._remove(watch)

    def _has_lost(self, path: str, events: list[Event]) -> bool:
        watch = self._watches.get(path)
        return any(event.wd == watch and event.mask & _GONE for event in events)

    def _is_write(self, event: Event) -> bool:
        """Whether somebody may be committing: everything but a touch, and what concerns other files."""
        if event.mask & flags.Q_OVERFLOW:
            return True
        if event.mask & (flags.CREATE | flags.MOVED_TO):
            return event.name == os.path.basename(self._wal)
        return bool(event.mask & flags.MODIFY)
