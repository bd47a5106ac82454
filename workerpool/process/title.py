"""What `ps` shows of a process: what it is for. For people only: nothing looks for a process by it.

On Linux only: elsewhere (macOS) a forked child may die of it.
"""

from __future__ import annotations

import os
import sys

if sys.platform == "linux":
    from setproctitle import setproctitle

_KEEP_ENVIRONMENT = "SPT_NOENV"
"""Has the library leave /proc/<pid>/environ as it is, so a title has as much room as the command line had."""


def set_title(what: str) -> None:
    """Have this process shown as `workerpool: <what>`; cut where there is no room."""
    show_as(f"workerpool: {what}")


def show_as(command_line: str) -> None:
    """Have this process shown with another command line than it was started with."""
    if sys.platform == "linux":
        before = os.environ.get(_KEEP_ENVIRONMENT)
        os.environ[_KEEP_ENVIRONMENT] = "1"  # read at the first call
        setproctitle(command_line)
        if before is None:
            del os.environ[_KEEP_ENVIRONMENT]
        else:
            os.environ[_KEEP_ENVIRONMENT] = before
