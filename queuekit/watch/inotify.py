"""Watching new/ (and later/) with inotify (Linux): the kernel reports each arrival by name, in some 150 µs.

One inotify instance for the life of the watcher, so that its descriptor never changes in the caller's selector; when
the folder was replaced, the old watch is dropped and the new folder added. Events of a dropped watch carry its number
and are ignored. The instance is close-on-exec and non-blocking. It must not be used on both sides of a fork: open a
watcher in the process that uses it.

What makes it answer "look at everything" (`()`) instead of names: an overflow of the kernel's queue, and the folder
deleted, moved away or unmounted, after which it also attaches anew.
"""

from __future__ import annotations

import abc
import errno

from inotify_simple import Event, INotify, flags

from queuekit.watch.base import ARRIVED_UNNAMED, FolderWatcher, Place

_ARRIVED = flags.CREATE | flags.MOVED_TO
_GONE = flags.DELETE_SELF | flags.MOVE_SELF | flags.UNMOUNT | flags.IGNORED
_WATCHED = _ARRIVED | flags.DELETE_SELF | flags.MOVE_SELF | flags.ONLYDIR | flags.DONT_FOLLOW

_LIMITS = {
    errno.ENOSPC: "fs.inotify.max_user_watches",
    errno.EMFILE: "fs.inotify.max_user_instances, or the process's limit of open files",
}


def warm_up() -> None:
    """Load what the first instance needs (it runs a helper program to find libc), once, before forking."""
    try:
        INotify().close()
    except OSError:
        return  # libc is loaded all the same; whoever opens a watcher is told of the limit


def refusal(error: OSError) -> str:
    """Why inotify cannot be used, in words, with the limit to raise where there is one."""
    limit = _LIMITS.get(error.errno or 0)
    return f"inotify: {error.strerror or error}" + (f" (the limit is {limit})" if limit else "")


class InotifyInstance(FolderWatcher):
    """A watcher with an inotify instance of its own, attached when it is made.

    Raises `OSError` when the kernel refuses an instance (EMFILE) or the watch (ENOSPC); a missing place is no error.
    """

    kind = "inotify"

    def __init__(self, place: Place, poll_interval: float) -> None:
        super().__init__(place, poll_interval)
        self._inotify = INotify(nonblocking=True)
        try:
            self.attach_or_raise()
        except OSError:
            self.close()
            raise

    def fileno(self) -> int:
        """The inotify instance; readable when something happened."""
        return self._inotify.fileno()

    def close(self) -> None:
        """Give the instance back; any number of times."""
        self._inotify.close()

    def _detach(self) -> None:
        self._drop_watches()
        self._take()  # a watch that is dropped is an event, too: while none can be set up again, it would wake for ever

    @abc.abstractmethod
    def _drop_watches(self) -> None:
        """Remove every watch that there is."""

    def _take(self) -> list[Event]:
        try:
            return self._inotify.read(timeout=0)
        except BlockingIOError:
            return []  # another thread took them between the question and the read

    def _remove(self, watch: int) -> None:
        try:
            self._inotify.rm_watch(watch)
        except OSError as error:
            if error.errno != errno.EINVAL:  # EINVAL: the kernel has dropped it already
                raise


class InotifyWatcher(InotifyInstance):
    """Watches `place.watched`, from the moment it is made. Raises as `InotifyInstance` does."""

    def __init__(self, place: Place, poll_interval: float = 0.2) -> None:
        self._watches: list[int] = []
        super().__init__(place, poll_interval)

    def read(self) -> tuple[str, ...]:
        """Names that arrived, without blocking; `()` when that is not known. Attaches anew when that is needed."""
        events = self._take()
        if self._seen is None or any(self._is_lost(event) for event in events):
            self.attach()
            return ARRIVED_UNNAMED
        if any(event.mask & flags.Q_OVERFLOW for event in events):
            return ARRIVED_UNNAMED
        return tuple(dict.fromkeys(event.name for event in events if self._is_arrival(event)))

    def _attach(self) -> None:
        for folder in self.place.watched:
            self._watches.append(self._inotify.add_watch(folder, _WATCHED))

    def _drop_watches(self) -> None:
        while self._watches:
            self._remove(self._watches.pop())

    def _is_lost(self, event: Event) -> bool:
        return event.wd in self._watches and bool(event.mask & _GONE)

    def _is_arrival(self, event: Event) -> bool:
        return event.wd in self._watches and bool(event.mask & _ARRIVED) and not event.mask & flags.ISDIR
