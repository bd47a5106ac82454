"""A forked child of a test: it does one thing and ends, however that went."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def fork_child(act: Callable[[], object], *, dies_with_us: bool = False) -> int:
    """Run it in a forked child; its pid, to be waited for. `dies_with_us`: it is killed when this process ends."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            if dies_with_us and sys.platform == "linux":
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            act()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def in_child(act: Callable[[], object]) -> int:
    """The same, waited for; its exit code."""
    return os.waitstatus_to_exitcode(os.waitpid(fork_child(act), 0)[1])
