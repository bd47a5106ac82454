"""What every watcher of a maildir shares: the place it looks at, its life, and the loop that waits for it.

A watch follows a folder, not a path: when somebody moves the queue away and makes a new one there, an attached watch
stays with the old folder and is silent for ever. So each watcher remembers which folders (device and inode) it was
attached to, and `check()` compares them with what is at the paths now.

The order that loses nothing: identify, attach, then look. What arrives before the attachment is found by the look that
follows, what arrives after it is an event, and a folder replaced in between differs from what was identified.

Two states: *attached*, when `timeout()` is None, since events come; and *not attached* (the folder is missing or the
watch limit is reached), when `timeout()` is the poll interval and every `read()` tries again. So a watcher whose folder
vanishes never raises and never goes deaf: it polls until it heals.
"""

from __future__ import annotations

import abc
import logging
import os
import selectors
import threading
import time
from collections.abc import Callable

from queuekit.contract import Watcher

log = logging.getLogger("queuekit.watch")

CHECK_INTERVAL = 5.0
STOP_INTERVAL = 0.25
ARRIVED_UNNAMED: tuple[str, ...] = ()

Identity = tuple[tuple[int, int], ...]


class Place:
    """A queue's root, its new/ folder, and others in which an arrival is to be noticed, as paths."""

    def __init__(self, root: str, new: str, *others: str) -> None:
        self.root = root
        self.new = new
        self.watched = (new, *others)

    def identity(self) -> Identity | None:
        """Device and inode of all of them as they are now; None when one of them cannot be reached."""
        try:
            facts = [os.stat(self.root), *map(os.lstat, self.watched)]
        except OSError:
            return None
        return tuple((each.st_dev, each.st_ino) for each in facts)


class FolderWatcher(abc.ABC):
    """The life of a watcher that follows a folder; what attaching means is the subclass's.

    `poll_interval`: seconds between tries while it is not attached.
    """

    kind: str

    def __init__(self, place: Place, poll_interval: float) -> None:
        self.place = place
        self.poll_interval = poll_interval
        self._seen: Identity | None = None
        self._complained = False

    @abc.abstractmethod
    def _attach(self) -> None:
        """Watch what is at the path now; raises `OSError` when that cannot be. Nothing is watched when it is called."""

    @abc.abstractmethod
    def _detach(self) -> None:
        """Stop watching whatever is watched; nothing may be. What it still had to say is forgotten: a look follows."""

    def timeout(self) -> float | None:
        """None while events come, else the poll interval (seconds)."""
        return self.poll_interval if self._seen is None else None

    def check(self) -> bool:
        """Whether the folders are still those it was attached to; if not, it attaches anew and answers False."""
        if self._seen is not None and self.place.identity() == self._seen:
            return True
        self.attach()
        return False

    def attach(self) -> None:
        """Attach to what is there now. When that fails it stays not attached; a refusal is logged once."""
        try:
            self.attach_or_raise()
        except OSError as error:
            self._complain(error)

    def attach_or_raise(self) -> None:
        """The same, but raises `OSError` when the system refuses. A missing folder is no refusal: it may come."""
        self._seen = None
        self._detach()
        identity = self.place.identity()
        if identity is None:
            return
        try:
            self._attach()
        except OSError as error:
            self._detach()
            if isinstance(error, FileNotFoundError):
                return
            raise
        self._seen, self._complained = identity, False

    def _complain(self, error: OSError) -> None:
        if not self._complained:
            log.warning(
                "%s cannot watch %s, polling every %s s until it can: %s",
                self.kind,
                self.place.new,
                self.poll_interval,
                error,
            )
            self._complained = True


class _Rounds:
    """When a waiting loop has to read, check and scan although nothing is readable; seconds on a monotonic clock."""

    def __init__(
        self, watcher: Watcher, now: float, check: float, scan: float, next_due: Callable[[], float | None]
    ) -> None:
        self.watcher = watcher
        self.check, self.scan, self.next_due = check, scan, next_due
        self.looked = self.read_last = self.checked = now

    def pause(self, now: float) -> float:
        """How long nothing is due."""
        due = min(self._look_due(now), self.checked + self.check, self._read_due())
        return max(0.0, due - now)

    def work(self, readable: bool, now: float) -> tuple[str, ...] | None:
        """Do what is due: the names to look for, `()` for "look at everything", None when nothing calls for a look."""
        names = self._read(readable, now)
        if now >= self.checked + self.check:
            self.checked = now
            if not self.watcher.check():
                names = ARRIVED_UNNAMED
        if now >= self._look_due(now):
            names = ARRIVED_UNNAMED
        if names == ARRIVED_UNNAMED:
            self.looked = now
        return names

    def _read(self, readable: bool, now: float) -> tuple[str, ...] | None:
        if not readable and now < self._read_due():
            return None
        self.read_last = now
        return self.watcher.read()

    def _look_due(self, now: float) -> float:
        """The regular look, or the time of a deferred job: but that may be another consumer's, so not in a hurry."""
        wait = self.next_due()
        if wait is None:
            return self.looked + self.scan
        return min(self.looked + self.scan, max(self.looked + STOP_INTERVAL, now + wait))

    def _read_due(self) -> float:
        timeout = self.watcher.timeout()
        return float("inf") if timeout is None else self.read_last + timeout


def wait_loop(
    watcher: Watcher,
    on_wake: Callable[[tuple[str, ...]], None],
    stop: threading.Event | None,
    *,
    scan: float = 30.0,
    check: float = CHECK_INTERVAL,
    next_due: Callable[[], float | None] = lambda: None,
) -> None:
    """Call `on_wake(names)` once, and again whenever something may have arrived, until `stop` is set.

    `watcher` must be attached already; it stays open. `names` are hints, `()` means "look at everything": at the start,
    after anything that could have lost an event, at least every `scan` seconds, and when `next_due` has passed (seconds
    until a deferred job is due, None: there is none). The watched place is checked every `check` seconds. `stop` is
    noticed within 0.25 s; without it only these periods wake an idle loop. What `on_wake` raises ends the loop and is
    raised here.
    """
    if stop is not None and stop.is_set():
        return
    rounds = _Rounds(watcher, time.monotonic(), check, scan, next_due)
    on_wake(ARRIVED_UNNAMED)
    with selectors.DefaultSelector() as selector:
        selector.register(watcher, selectors.EVENT_READ)
        while stop is None or not stop.is_set():
            pause = rounds.pause(time.monotonic())
            readable = selector.select(pause if stop is None else min(pause, STOP_INTERVAL))
            if stop is not None and stop.is_set():
                return
            names = rounds.work(bool(readable), time.monotonic())
            if names is not None:
                on_wake(names)
