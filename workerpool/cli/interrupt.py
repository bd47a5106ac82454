"""An interrupt that waits for the end of what must not be done by halves."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def noting_interrupt() -> Iterator[Callable[[], bool]]:
    """Within it an interrupt is noted instead of raised, for who asks between two portions; a second one is raised.

    The value says whether there was one.
    """
    noted: list[int] = []
    before = signal.getsignal(signal.SIGINT)

    def note(number: int, _frame: object) -> None:
        if noted:
            raise KeyboardInterrupt
        noted.append(number)

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(noted)
    finally:
        signal.signal(signal.SIGINT, before)
