"""Errors of the environment: each is said once, and once when all is well again; tried again ever more slowly. No I/O.

`Troubles` are those of one process, for whoever wants to know whether anything is wrong now.

What fails and works in turn, many times a second, is one trouble: it is said again only when it has lasted for a second
or all was well for some seconds before.

A full disk, a lock that is not free, a folder that is gone: such an error burns no attempt of any job, and a loop that
meets it must neither spin nor fill the log.
"""

from __future__ import annotations

import logging

from queuekit.errors import system_error

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 1.0  # work goes on soon after a lock is released, or room made
_QUIET_SECONDS = 5.0
_LASTING_SECONDS = 1.0


class Trouble:
    """One kind of act and how it is going. Times are monotonic seconds.

    `text`: the act and why it fails, while it does; `until`: when it is to be tried again.
    """

    def __init__(self, what: str, logger: logging.Logger) -> None:
        self._what = what
        self._log = logger
        self._since: float | None = None
        self._pause = 0.0
        self._said: set[str] = set()
        self._untold = False
        self._worked_at = float("-inf")
        self.until = 0.0
        self.text = ""

    @property
    def since(self) -> float:
        """When it began; infinity while all is well."""
        return float("inf") if self._since is None else self._since

    @property
    def lasts(self) -> bool:
        """Whether the act has failed since it last succeeded."""
        return self._since is not None

    def blocks(self, now: float) -> bool:
        """Whether the act should not be tried yet."""
        return now < self.until

    def met(self, error: Exception, now: float) -> None:
        """The act has failed."""
        if self._since is None:
            self._begin(_kind(error), now)
        kind = _kind(error)
        if kind not in self._said or (self._untold and now - self.since >= _LASTING_SECONDS):
            self._log.error("%s: %s (trying again until it works)", self._what, error)
            self._said.add(kind)
            self._untold = False
        self.text = f"{self._what}: {_reason(error)}"
        self._since = now if self._since is None else self._since
        self._pause = min(_LONGEST_PAUSE, max(_FIRST_PAUSE, self._pause * 2))
        self.until = now + self._pause

    def _begin(self, kind: str, now: float) -> None:
        """It is new, or the one that has just been told comes and goes."""
        if now - self._worked_at > _QUIET_SECONDS:
            self._said.clear()
        self._untold = kind in self._said

    def over(self, now: float) -> None:
        """The act has succeeded."""
        if self._since is None:
            return
        if not self._untold:
            self._log.warning("%s: works again after %.1f s", self._what, now - self._since)
        self._end()
        self._worked_at = now

    def forget(self) -> None:
        """There is nothing left to act on."""
        self._end()
        self._said.clear()

    def _end(self) -> None:
        self._since, self._pause, self.until, self.text = None, 0.0, 0.0, ""


class Troubles:
    """Those of one process."""

    def __init__(self) -> None:
        self._all: list[Trouble] = []

    def new(self, what: str, logger: logging.Logger) -> Trouble:
        """One more kind of act, of which all is well so far."""
        made = Trouble(what, logger)
        self._all.append(made)
        return made

    def worst(self) -> Trouble | None:
        """The one that has lasted longest; None when all is well."""
        return min((each for each in self._all if each.lasts), key=lambda each: each.since, default=None)

    def forget(self) -> None:
        """Whatever was tried is somebody else's now."""
        for each in self._all:
            each.forget()


def _kind(error: Exception) -> str:
    """What makes two errors the same trouble: the system's reason, whatever file it was met at; else the text."""
    cause = system_error(error)
    return str(error) if cause is None else f"errno {cause.errno}"


def _reason(error: Exception) -> str:
    """The same for people."""
    cause = system_error(error)
    return str(error) if cause is None else cause.strerror or str(cause)
