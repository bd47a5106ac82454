"""Pauses: streams that a person wants nothing claimed of, until further notice.

A pause is a file, `<directory>/pauses/<stream, made safe as in its lease>`, so it holds for every pool of the store,
running or not, and survives all of them. That the file is there is the pause; what is in it only tells since when, and
who asked: `{"pid": …, "since_ms": …, "stream": "…", "user": "…"}`. It is made exclusively and removed once, so of
several people who pause or resume at the same time one is told that it was theirs.

Stream processes look at their start, when they take over, at each slow look, and when they are told to.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pwd
import stat
import time
from typing import TypeGuard

from queuekit.ids import safe_stream
from queuekit.private import make_folders

FOLDER = "pauses"
_MOST_BYTES = 4096
_LAST_MS = 10**14  # a time that every calendar has
_LAST_PID = 2**31 - 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """One pause. `since_ms`: ms since the epoch; `pid`, `user`: who asked, None and "" where the file does not tell."""

    stream: str
    since_ms: int
    pid: int | None = None
    user: str = ""


def pause(directory: str, stream: str) -> tuple[Pause, bool]:
    """Pause a stream, durably; returns the pause, and whether it is a new one (else it was paused already).

    `directory`: what belongs to the store's pools, made when it is not there. Raises `OSError` when the file cannot be
    written; then nothing is paused.
    """
    made = Pause(stream=stream, since_ms=time.time_ns() // 1_000_000, pid=os.getpid(), user=_user())
    path = _path(directory, stream)
    make_folders(os.path.dirname(path))
    while True:
        try:
            _create(path, json.dumps(dataclasses.asdict(made), sort_keys=True).encode())
        except FileExistsError:
            there = find(directory, stream)
            if there is None:  # resumed between the two calls
                continue
            return there, False
        return made, True


def resume(directory: str, stream: str) -> Pause | None:
    """End a stream's pause; returns it, or None when there is none (any more). Raises `OSError`."""
    there = find(directory, stream)
    if there is None:
        return None
    path = _path(directory, stream)
    try:
        os.unlink(path)
    except FileNotFoundError:  # somebody else was faster
        return None
    _sync_folder(os.path.dirname(path))
    return there


def find(directory: str, stream: str) -> Pause | None:
    """A stream's pause; None when it is not paused. Raises `OSError` when that cannot be told."""
    path = _path(directory, stream)
    try:
        facts = os.lstat(path)
    except FileNotFoundError:
        return None
    said = _content(path) if stat.S_ISREG(facts.st_mode) else {}
    since, pid, user = said.get("since_ms"), said.get("pid"), said.get("user")
    return Pause(
        stream=stream,
        since_ms=since if _is_within(since, _LAST_MS) else facts.st_mtime_ns // 1_000_000,
        pid=pid if _is_within(pid, _LAST_PID) else None,
        user=user if isinstance(user, str) else "",
    )


def _is_within(number: object, most: int) -> TypeGuard[int]:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= most


def _path(directory: str, stream: str) -> str:
    return os.path.join(directory, FOLDER, safe_stream(stream))


def _create(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(fd, 0o600)
        os.write(fd, data)
        os.fsync(fd)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(fd)
    _sync_folder(os.path.dirname(path))


def _sync_folder(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _content(path: str) -> dict[str, object]:
    """What the file says; nothing when it was cut off or damaged."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return {}
    try:
        said = json.loads(os.read(fd, _MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    finally:
        os.close(fd)
    return said if isinstance(said, dict) else {}


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's uid without a name
        return str(os.getuid())
