"""Watching by looking again and again: where no events can be had. Every wake means "look at everything".

It compares nothing: whether there is something to do is a cheap question to the queue, and a comparison of snapshots
would miss a job that is taken and given back between two of them.
"""

from __future__ import annotations

import os

from queuekit.errors import WatcherFailed
from queuekit.watch.base import ARRIVED_UNNAMED, Identity, Place


class PollWatcher:
    """Says "look" every `interval` seconds. Its descriptor is valid to select on and never readable.

    Raises `WatcherFailed` when the process has no descriptors left.
    """

    kind = "poll"

    def __init__(self, place: Place, interval: float = 0.2) -> None:
        self.place = place
        self.interval = interval
        self._seen: Identity | None = place.identity()
        try:
            self._silent, self._kept_open = os.pipe()
        except OSError as error:
            raise WatcherFailed(f"no descriptor is left to poll with: {error}") from error

    def fileno(self) -> int:
        """A pipe that nobody writes to."""
        return self._silent

    def timeout(self) -> float | None:
        """The interval (seconds)."""
        return self.interval

    def read(self) -> tuple[str, ...]:
        """Always `()`: look at everything."""
        return ARRIVED_UNNAMED

    def check(self) -> bool:
        """Whether the folders are still those that were there at the last check; False also while one is missing."""
        before, self._seen = self._seen, self.place.identity()
        return before is not None and before == self._seen

    def close(self) -> None:
        """Give the descriptors back; any number of times."""
        held = (self._silent, self._kept_open)
        self._silent = self._kept_open = -1
        for descriptor in held:
            if descriptor >= 0:
                os.close(descriptor)
