"""Watching new/ (and later/) with kqueue (macOS, the BSDs): the kernel says that a folder changed, not how.

The folders are held open, for events only where the system can do that (so that they can still be unmounted). Every
wake means "look at everything" (`()`). Deleted, renamed or revoked, they are opened anew. A kqueue is not inherited by
a fork.
"""

from __future__ import annotations

import os
import select
from typing import Any

from queuekit.watch.base import ARRIVED_UNNAMED, FolderWatcher, Place

_OPEN = getattr(os, "O_EVTONLY", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_AT_ONCE = 16


class KqueueWatcher(FolderWatcher):
    """Watches `place.watched`, from the moment it is made. Raises `OSError` when the kernel refuses.

    `kernel`: what has the calls and constants of the standard library's `select` module.
    """

    kind = "kqueue"

    def __init__(self, place: Place, poll_interval: float = 0.2, *, kernel: Any = select) -> None:
        super().__init__(place, poll_interval)
        self._kernel = kernel
        self._gone = kernel.KQ_NOTE_DELETE | kernel.KQ_NOTE_RENAME | kernel.KQ_NOTE_REVOKE
        self._folders: list[int] = []
        self._queue = kernel.kqueue()
        try:
            self.attach_or_raise()
        except OSError:
            self.close()
            raise

    def fileno(self) -> int:
        """The kqueue; readable when something happened."""
        return int(self._queue.fileno())

    def read(self) -> tuple[str, ...]:
        """Take the events, without blocking; always `()`. Attaches anew when the folder went away."""
        events = self._queue.control(None, _AT_ONCE, 0)
        if self._seen is None or any(event.fflags & self._gone for event in events):
            self.attach()
        return ARRIVED_UNNAMED

    def close(self) -> None:
        """Give the descriptors back; any number of times."""
        self._detach()
        self._queue.close()

    def _attach(self) -> None:
        kernel = self._kernel
        for path in self.place.watched:
            folder = os.open(path, _OPEN)
            self._folders.append(folder)
            change = kernel.kevent(
                folder,
                filter=kernel.KQ_FILTER_VNODE,
                flags=kernel.KQ_EV_ADD | kernel.KQ_EV_CLEAR,
                fflags=kernel.KQ_NOTE_WRITE | kernel.KQ_NOTE_EXTEND | self._gone,
            )
            self._queue.control([change], 0, 0)

    def _detach(self) -> None:
        while self._folders:
            os.close(self._folders.pop())  # which also removes its event
