"""Whether somebody else could change the code that a pool runs: its config.toml, and the folders of its handlers.

A file or folder is safe when it belongs to this user or to root and is closed to others for writing. In a folder with
the sticky bit others can only add files. That does no harm to a configuration, but adds modules to a folder that is
imported from: `tasks/` is found before `tasks.py`, and a `json.py` before Python's own. Whoever can write a folder
further up, without a sticky bit, can put another one in place of what is below it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator


def why_unsafe(found: os.stat_result) -> str | None:
    """Why another user could change what is run; None when none could."""
    if found.st_uid not in {os.geteuid(), 0}:
        return f"belongs to another user (uid {found.st_uid}), who could run code here: chown it, or copy it"
    if _is_open(found) and not _is_sticky(found):
        return f"can be written by every user (mode {stat.S_IMODE(found.st_mode):04o}): chmod o-w it"
    return None


def why_unusable(folder: str) -> str | None:
    """Why a configuration may not be taken from a folder; None when it may."""
    try:
        found = os.stat(folder)
    except OSError as error:
        return f"cannot be used: {error.strerror}"
    if not stat.S_ISDIR(found.st_mode):
        return "is not a folder"
    return why_unsafe(found) or _why_replaceable(folder)


def why_unimportable(folder: str) -> str | None:
    """Why code may not be imported from a folder; None when it may."""
    if reason := why_unusable(folder):
        return reason
    found = os.stat(folder)
    if _is_open(found):
        mode = f"{stat.S_IMODE(found.st_mode):04o}"
        return f"can be written by every user (mode {mode}), so anybody's modules would run here: use another folder"
    return None


def _why_replaceable(folder: str) -> str | None:
    for above in dict.fromkeys((*_above(os.path.abspath(folder)), *_above(os.path.realpath(folder)))):
        try:
            found = os.stat(above)
        except OSError:  # what is below it could be reached: it was replaced just now, and is looked at when it is used
            continue
        if _is_open(found) and not _is_sticky(found):
            mode = f"{stat.S_IMODE(found.st_mode):04o}"
            return f"can be replaced by every user: {above} has the mode {mode}, chmod o-w it"
    return None


def _above(path: str) -> Iterator[str]:
    while (parent := os.path.dirname(path)) != path:
        yield parent
        path = parent


def _is_open(found: os.stat_result) -> bool:
    return bool(found.st_mode & stat.S_IWOTH)


def _is_sticky(found: os.stat_result) -> bool:
    return stat.S_ISDIR(found.st_mode) and bool(found.st_mode & stat.S_ISVTX)
