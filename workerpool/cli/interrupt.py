"""Interrupts that are not raised where they arrive: one that waits for the end of what must not be done by halves, one
that ends the process."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator


def end_at_an_interrupt() -> None:
    """From now on an interrupt ends the process, as TERM does, unless it is ignored, as in the background of a script.

    One that is raised may come in the middle of code that passes over every exception, and then nothing has come of it.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    # The first process of a container is not ended by a signal that it leaves to the system.
    signal.signal(signal.SIGINT, end_process if os.getpid() == 1 else signal.SIG_DFL)


def end_process(number: int, _frame: object) -> None:
    """A signal's handler: as if the signal had killed the process; the exit code is a shell's for that."""
    os._exit(128 + number)


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
