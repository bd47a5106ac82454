"""What a run has left behind, read as text by name, so that two runs can be compared and their difference be shown.

    a file              its text; of binary and of large ones size and digest
    an SQLite database  its schema and its rows, in an order of their own: not its pages, its journal, its row numbers
    a link              where it points;  an empty folder: that it is there
    a command           what it prints; when it fails, how, and what it says

A command (`sh -c`) runs in the run's folder, with the environment of the handler.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import hashlib
import os
import re
import sqlite3
import stat
import subprocess
from collections.abc import Iterator, Mapping

_SQLITE = b"SQLite format 3\0"
_SQLITE_SIDES = ("-wal", "-shm", "-journal")
_MOST_TEXT = 2**20
_COMMAND_SECONDS = 60.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What the effects of a handler are. `paths`: files and folders, relative to the run's folder or absolute;
    `commands`: whose output is compared; `skip`: patterns of files that are not (of a path or of a name); `mask`: what
    is replaced by `…` in all text, because it differs from run to run."""

    paths: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    mask: tuple[re.Pattern[str], ...] = ()

    def read(self, folder: str, environ: Mapping[str, str]) -> dict[str, str]:
        """The effects of the run that worked in `folder`; databases in there are opened, which may repair them.

        Raises `OSError` when something cannot be read.
        """
        found = {name: self._masked(text) for path in self.paths for name, text in self._files(folder, path)}
        for command in self.commands:
            found[f"$ {command}"] = self._masked(output_of(command, folder, environ))
        return found

    def absent(self, effects: Mapping[str, str]) -> list[str]:
        """The paths of which `effects` has nothing."""
        names = [os.path.normpath(path) for path in self.paths]
        return [
            path
            for path in names
            if path != os.curdir and not any(name == path or name.startswith(path + os.sep) for name in effects)
        ]

    def _masked(self, text: str) -> str:
        for pattern in self.mask:
            text = pattern.sub("…", text)
        return text

    def _files(self, folder: str, path: str) -> Iterator[tuple[str, str]]:
        top = os.path.join(folder, path)
        names = sorted(_walk(top))
        databases = {name for name in names if _is_database(name)}
        texts = {name: _database_text(name) for name in sorted(databases)}  # first: what is beside them may go by it
        for name in names:
            shown = os.path.relpath(name, folder) if not os.path.isabs(path) else name
            beside = any(name.removesuffix(side) in databases for side in _SQLITE_SIDES if name.endswith(side))
            if shown != os.curdir and not beside and not self._is_skipped(shown):
                yield shown, texts[name] if name in databases else _text(name)

    def _is_skipped(self, shown: str) -> bool:
        return any(
            fnmatch.fnmatch(shown, pattern) or fnmatch.fnmatch(os.path.basename(shown), pattern)
            for pattern in self.skip
        )


def output_of(command: str, folder: str, environ: Mapping[str, str]) -> str:
    """What a shell command prints; when it fails or takes over a minute, that, and what it said, instead."""
    try:
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=folder,
            env={**os.environ, **environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_COMMAND_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"(it had not ended after {_COMMAND_SECONDS:g} s)\n"
    printed = done.stdout.decode(errors="backslashreplace")
    if done.returncode == 0:
        return printed
    return f"{printed}(it failed with exit code {done.returncode})\n{done.stderr.decode(errors='backslashreplace')}"


def _walk(path: str) -> Iterator[str]:
    """Everything below that is no folder, and folders that are empty; the path itself where it is no folder."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(mode):
        yield path
        return
    names = os.listdir(path)
    for name in names:
        yield from _walk(os.path.join(path, name))
    if not names:
        yield path


def _text(path: str) -> str:
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        return f"(a link to {os.readlink(path)})\n"
    if stat.S_ISDIR(mode):
        return "(an empty folder)\n"
    if not stat.S_ISREG(mode):
        return "(no regular file)\n"
    with open(path, "rb") as file:
        start = file.read(_MOST_TEXT + 1)
        with contextlib.suppress(UnicodeDecodeError):
            if len(start) <= _MOST_TEXT and b"\0" not in start:
                return start.decode()
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return f"({file.tell()} bytes, SHA-256 {digest})\n"


# -- databases


def _is_database(path: str) -> bool:
    if not stat.S_ISREG(os.lstat(path).st_mode):
        return False
    with open(path, "rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


def _database_text(path: str) -> str:
    """Its statements: the schema as it is, then the rows, sorted."""
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=5.0)) as database:
            statements = list(database.iterdump())
    except (sqlite3.Error, UnicodeDecodeError) as error:
        return f"(an SQLite database that cannot be read: {error})\n"
    rows = sorted(each for each in statements if each.startswith("INSERT INTO"))
    schema = [each for each in statements if not each.startswith("INSERT INTO") and each not in _AROUND]
    return "".join(f"{each}\n" for each in [*schema, *rows])


_AROUND = ("BEGIN TRANSACTION;", "COMMIT;")
