"""The entry of the command, also as `python -m workerpool`.

Loading the command takes a moment in which an interrupt would show a traceback of imports. Until it is loaded, an
interrupt just ends the process, as it ends one that was not written in Python.
"""

from __future__ import annotations

try:
    import signal
except KeyboardInterrupt:
    raise SystemExit(130) from None


def main() -> None:
    """Load the command and run it; ends the process with the exit code."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # it may also be ignored, as in the background of a script
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from workerpool.cli.main import main as run_command

    signal.signal(signal.SIGINT, before)
    run_command()


if __name__ == "__main__":
    main()
