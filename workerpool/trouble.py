"""Errors of the environment: each is said once, and once when all is well again; tried again ever more slowly. No I/O.

A full disk, a lock that is not free, a folder that is gone: such an error burns no attempt of any job, and a loop that
meets it must neither spin nor fill the log.
"""

from __future__ import annotations

import logging

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0


class Trouble:
    """One kind of act and how it is going. Times are monotonic seconds."""

    def __init__(self, what: str, logger: logging.Logger) -> None:
        self._what = what
        self._log = logger
        self._since: float | None = None
        self._pause = 0.0
        self._said: set[str] = set()
        self.until = 0.0

    @property
    def lasts(self) -> bool:
        """Whether the act has failed since it last succeeded."""
        return self._since is not None

    def blocks(self, now: float) -> bool:
        """Whether the act should not be tried yet."""
        return now < self.until

    def met(self, error: Exception, now: float) -> None:
        """The act has failed."""
        kind = _kind(error)
        if kind not in self._said:
            self._log.error("%s: %s (trying again until it works)", self._what, error)
            self._said.add(kind)
        self._since = now if self._since is None else self._since
        self._pause = min(_LONGEST_PAUSE, max(_FIRST_PAUSE, self._pause * 2))
        self.until = now + self._pause

    def over(self, now: float) -> None:
        """The act has succeeded."""
        if self._since is not None:
            self._log.warning("%s: works again after %.1f s", self._what, now - self._since)
        self._since, self._pause, self.until = None, 0.0, 0.0
        self._said.clear()


def _kind(error: Exception) -> str:
    """What makes two errors the same trouble: the system's reason, whatever file it was met at; else the text."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return f"errno {cause.errno}" if isinstance(cause, OSError) else str(error)
