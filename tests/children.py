"""A forked child of a test: it does one thing and ends, however that went."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable


def in_child(act: Callable[[], None]) -> int:
    """Run it in a forked child; its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            act()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
