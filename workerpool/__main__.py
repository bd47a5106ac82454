"""The entry of the command, also as `python -m workerpool`.

Loading the command takes a moment in which an interrupt would show a traceback of imports. Until it is loaded, an
interrupt just ends the process, as it ends one that was not written in Python.
"""

from __future__ import annotations

try:
    import os
    import signal
except KeyboardInterrupt:
    raise SystemExit(130) from None


def main() -> None:
    """Load the command and run it; ends the process with the exit code."""
    is_first = os.getpid() == 1
    if is_first and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _end)
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # it may also be ignored, as in the background of a script
        signal.signal(signal.SIGINT, _end if is_first else signal.SIG_DFL)
    from workerpool.cli.main import main as run_command

    signal.signal(signal.SIGINT, before)
    run_command()


def _end(number: int, _frame: object) -> None:
    """As if the signal had killed the process; the exit code is a shell's for that."""
    os._exit(128 + number)


if __name__ == "__main__":
    main()
