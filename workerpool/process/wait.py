"""Waiting for one descriptor, whatever its number: select(2) takes none above 1023."""

from __future__ import annotations

import select
from typing import Protocol


class HasFileno(Protocol):
    """A thing with a descriptor."""

    def fileno(self) -> int:
        """The descriptor."""


def wait_readable(source: int | HasFileno, seconds: float) -> bool:
    """Whether there is something to read (or the other end is gone) within `seconds`."""
    return _wait(source, select.POLLIN, seconds)


def wait_writable(target: int | HasFileno, seconds: float) -> bool:
    """Whether a write would not block (it may fail) within `seconds`."""
    return _wait(target, select.POLLOUT, seconds)


def _wait(descriptor: int | HasFileno, events: int, seconds: float) -> bool:
    poller = select.poll()
    poller.register(descriptor, events)
    return bool(poller.poll(max(0.0, seconds) * 1000))
