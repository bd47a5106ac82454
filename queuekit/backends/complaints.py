"""What goes wrong again and again is said once a minute, not at every try. No I/O but the log's."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from queuekit.errors import system_error

_AGAIN_SECONDS = 60.0
_MOST = 1_000


class Complaints:
    """What one part of a backend has said lately."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: monotonic seconds."""
        self._log = logger
        self._clock = clock
        self._said: dict[object, float] = {}

    def say(self, subject: object, message: str, *facts: object) -> None:
        """Warn, unless the same was said of this subject within the last minute.

        :param subject: what makes two complaints one: hashable
        :param message: and `facts`: as for `logging`
        """
        now = self._clock()
        if now - self._said.get(subject, float("-inf")) < _AGAIN_SECONDS:
            return
        if len(self._said) >= _MOST:
            self._said = {each: at for each, at in self._said.items() if now - at < _AGAIN_SECONDS}
        if len(self._said) < _MOST:
            self._said[subject] = now
            self._log.warning(message, *facts)


def kind(error: BaseException) -> str:
    """What makes two errors one complaint: the system's reason, at whatever file it was met; else the type."""
    cause = system_error(error)
    return type(error).__name__ if cause is None else f"errno {cause.errno}"
