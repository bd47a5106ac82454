"""The entry of the command, also as `python -m workerpool`.

Loading the command takes a moment in which an interrupt would show a traceback of imports. Until it is loaded, an
interrupt just ends the process, as it ends one that was not written in Python.
"""

from __future__ import annotations

try:
    import os
    import signal

    from workerpool.cli.interrupt import end_at_an_interrupt, end_process
except KeyboardInterrupt:
    raise SystemExit(130) from None


def main() -> None:
    """Load the command and run it; ends the process with the exit code."""
    if os.getpid() == 1 and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end_process)
    before = signal.getsignal(signal.SIGINT)
    end_at_an_interrupt()
    from workerpool.cli.main import main as run_command

    signal.signal(signal.SIGINT, before)
    run_command()


if __name__ == "__main__":
    main()
