"""The events of an SQLite database (Linux): writes to the file and its -wal, touches of the file, and its replacement.

The -wal comes and goes with the connections, so the folder is watched for its creation too; other names in the folder
wake for nothing. An inotify instance must not be used on both sides of a fork.
"""

from __future__ import annotations

import contextlib

from inotify_simple import Event, INotify, flags

from queuekit.backends.sql.watch import Settling
from queuekit.watch.base import ARRIVED_UNNAMED, FolderWatcher, Place

_WRITTEN = flags.MODIFY
_GONE = flags.DELETE_SELF | flags.MOVE_SELF | flags.UNMOUNT | flags.IGNORED
_OF_FILE = flags.MODIFY | flags.ATTRIB | flags.DELETE_SELF | flags.MOVE_SELF | flags.DONT_FOLLOW
_OF_WAL = flags.MODIFY | flags.DONT_FOLLOW
_OF_FOLDER = flags.CREATE | flags.MOVED_TO | flags.DELETE_SELF | flags.MOVE_SELF | flags.ONLYDIR


class SqliteInotifyWatcher(FolderWatcher):
    """Watches the database `place.new`, from the moment it is made.

    `poll_interval`: seconds between tries while the file is missing. Raises `OSError` when the kernel refuses.
    """

    kind = "inotify"

    def __init__(self, place: Place, poll_interval: float) -> None:
        super().__init__(place, poll_interval)
        self._settling = Settling()
        self._watches: dict[str, int] = {}  # path -> watch
        self._inotify = INotify(nonblocking=True)
        try:
            self.attach_or_raise()
        except OSError:
            self.close()
            raise

    def fileno(self) -> int:
        """The inotify instance; readable when something happened."""
        return self._inotify.fileno()

    def timeout(self) -> float | None:
        """None when nothing is going on."""
        waits = [wait for wait in (super().timeout(), self._settling.pause()) if wait is not None]
        return min(waits, default=None)

    def read(self) -> tuple[str, ...]:
        """Take the events, without blocking; always `()`. Attaches anew when the file was replaced."""
        events = self._take()
        if self._seen is None or any(self._is_lost(event) for event in events):
            self.attach()
        elif any(event.mask & (flags.CREATE | flags.MOVED_TO) for event in events):
            self._watch_wal()
        if any(event.mask & ~flags.ATTRIB for event in events):
            self._settling.stirred()
        else:
            self._settling.looked()
        return ARRIVED_UNNAMED

    def close(self) -> None:
        """Give the instance back; any number of times."""
        self._inotify.close()

    def _take(self) -> list[Event]:
        try:
            return self._inotify.read(timeout=0)
        except BlockingIOError:
            return []

    def _attach(self) -> None:
        self._watches[self.place.root] = self._inotify.add_watch(self.place.root, _OF_FOLDER)
        self._watches[self.place.new] = self._inotify.add_watch(self.place.new, _OF_FILE)
        self._watch_wal()

    def _watch_wal(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._inotify.add_watch(f"{self.place.new}-wal", _OF_WAL)

    def _detach(self) -> None:
        watches, self._watches = self._watches, {}
        for watch in watches.values():
            with contextlib.suppress(OSError):  # the kernel has dropped it already
                self._inotify.rm_watch(watch)

    def _is_lost(self, event: Event) -> bool:
        return event.wd in self._watches.values() and bool(event.mask & _GONE)
