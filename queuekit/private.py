"""Folders that are one user's alone: made so whatever the umask, and not used when somebody else could write them.

What is in such a folder needs no second look: nobody else can plant a file, a link or a lease there.
"""

from __future__ import annotations

import contextlib
import os
import stat


def make_folders(path: str) -> None:
    """Make a folder and those above it that are missing, each with mode 0700. Raises `OSError`."""
    with contextlib.suppress(FileNotFoundError):
        os.stat(path)
        return
    above = os.path.dirname(path)
    if above not in {"", path}:
        make_folders(above)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
        os.chmod(path, 0o700)


def why_shared(facts: os.stat_result) -> str:
    """Why another user could change what is in a folder; "" when none could (but root, and members of its group)."""
    if facts.st_uid != os.geteuid():
        return f"it belongs to uid {facts.st_uid}, and this is uid {os.geteuid()}"
    if facts.st_mode & stat.S_IWOTH:
        return f"others can write it (mode {stat.S_IMODE(facts.st_mode):04o}): chmod o-w it"
    return ""
