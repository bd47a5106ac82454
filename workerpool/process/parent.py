"""The tie between a process and its parent.

Linux tells a child of its parent's death by a signal, and lets a process adopt what its descendants leave behind. Where
neither exists (macOS), the functions say so by returning False, and callers rely on `parent_is_alive` at each turn.
"""

from __future__ import annotations

import ctypes
import os
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def set_parent_death_signal(signal_number: int, expected_parent: int) -> bool:
    """Have the kernel send this process `signal_number` when its parent ends; returns whether the parent still lives.

    The order matters: a death signal that is set after the parent ended never comes, so the parent is looked at
    afterwards. The tie is to the thread that forked: fork from the main thread only.
    """
    _prctl(_PR_SET_PDEATHSIG, int(signal_number))
    return parent_is_alive(expected_parent)


def parent_is_alive(expected: int) -> bool:
    """Whether this process is still a child of `expected`, the parent's pid taken before the fork."""
    return os.getppid() == expected


def become_subreaper(on: bool = True) -> bool:
    """Adopt orphaned descendants from now on (they become this process's children); False where that does not exist.

    `on`: False = no longer.
    """
    return _prctl(_PR_SET_CHILD_SUBREAPER, int(on))


def _prctl(option: int, value: int) -> bool:
    if _libc is None:
        return False
    none = ctypes.c_ulong(0)
    return bool(_libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), none, none, none) == 0)


# Loaded at import, because a child should not load libraries between fork and set-up.
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
