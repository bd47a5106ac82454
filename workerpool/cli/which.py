"""Which job somebody means: a whole id, or as much of its beginning as tells it from every other, as git has it.

Names are listed once for a command. A whole id goes before a beginning, and whatever is not found here is handed on as
it was typed, so that the act itself says that there is no such job.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable

from queuekit import BackendUnavailable, DecodingFailed
from queuekit.backends.maildir import layout
from queuekit.backends.maildir.fsops import FileOps
from queuekit.wire import decode_job
from workerpool.cli import words
from workerpool.cli.listing import FOLDERS, plain_name
from workerpool.cli.main import USAGE, Refusal
from workerpool.cli.store import store_folder
from workerpool.config import PoolConfig

SHORTEST = 4
_SHOWN = 4
_WHOLE = re.compile(r"[0-9a-f]{32}")


class Which:
    """Completes the ids that a person types, in the store of one configuration."""

    def __init__(self, config: PoolConfig) -> None:
        self._root = store_folder(config)
        self._limit = 2 * config.store.max_job_bytes
        self._names: list[tuple[str, str, str]] | None = None

    def id_of(self, typed: str) -> str:
        """The id that begins with `typed`; `typed` itself where none does, or where it is one.

        Raises `Refusal` when several do, `BackendUnavailable` when the store cannot be listed.
        """
        if self._root is None or len(typed) < SHORTEST or _WHOLE.fullmatch(typed) or "/" in typed:
            return typed
        likely = [each for each in self._listed(self._root) if f"-{typed}" in each[2]]
        if any(name.endswith(f"-{typed}") for _, _, name in likely):
            return typed
        found = sorted({id for id in self._ids(likely) if id.startswith(typed)})
        if len(found) > 1:
            raise Refusal(_ambiguous(typed, found), USAGE)
        return found[0] if found else typed

    def _listed(self, root: str) -> list[tuple[str, str, str]]:
        """`(folder, file, job file name)` of everything that may be a job."""
        if self._names is None:
            self._names = [
                (folder, file, name)
                for folder in FOLDERS
                for file in _files(os.path.join(root, folder))
                if (name := plain_name(folder, file)) is not None
            ]
        return self._names

    def _ids(self, named: Iterable[tuple[str, str, str]]) -> Iterable[str]:
        """The ids of these: at their names' word where that is clear, else as the file says."""
        for folder, file, name in named:
            if layout.clear_stream(name) is not None:
                yield name[-32:]
            else:
                with contextlib.suppress(DecodingFailed, OSError):  # moved on, or no job
                    yield self._read(folder, file)

    def _read(self, folder: str, file: str) -> str:
        ops = FileOps()
        fd = ops.open_folder(os.path.join(self._root or "", folder))
        try:
            return decode_job(ops.read(fd, file, self._limit)[0]).id
        finally:
            os.close(fd)


def _files(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BackendUnavailable(f"cannot list {path}: {error.strerror}") from error


def _ambiguous(typed: str, found: list[str]) -> str:
    shown = ", ".join(words.printable(id) for id in found[:_SHOWN])
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"{words.printable(typed)!r} begins the ids of {len(found)} jobs, type more of it: {shown}{more}"
