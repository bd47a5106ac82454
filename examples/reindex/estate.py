"""What belongs to an estate, and what each of its files is called in the queue.

An estate is a directory. Its documents are the regular files below it with one of `SUFFIXES`; hidden folders, caches
and installed packages are not part of it. Nothing here reads a file's content: a version is told from size and time of
change, as `make` does.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator
from typing import Any

SUFFIXES = (".py", ".pyi", ".md", ".rst", ".txt")
SKIPPED_FOLDERS = frozenset({"__pycache__", "site-packages", "dist-packages", "node_modules"})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """One file in one version: its absolute path, its size in bytes, its time of change in ns since the epoch.

    `size` is None for a file that is no longer there: indexing it means forgetting it.
    """

    path: str
    size: int | None
    mtime_ns: int

    @property
    def version(self) -> str:
        """A short text that differs when the file was changed."""
        return f"{'gone' if self.size is None else self.size}-{self.mtime_ns}"

    def payload(self) -> bytes:
        """The payload of the job that indexes this file (JSON)."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True).encode()

    @classmethod
    def of_payload(cls, payload: bytes) -> SourceFile:
        """The inverse of `payload`; raises `ValueError`, `KeyError` or `TypeError` when it is something else."""
        body: dict[str, Any] = json.loads(payload)
        return cls(path=body["path"], size=body["size"], mtime_ns=body["mtime_ns"])


def files_of(estate: str, after: str | None = None) -> Iterator[SourceFile]:
    """Every document of the directory `estate`, in a fixed order; raises `OSError` when a folder cannot be listed.

    `after`: only what comes behind this path, which need not be there any more; what comes before is not looked at. A
    file that vanishes during the walk, and one whose name is not valid Unicode, is left out.
    """
    root = os.path.realpath(estate)
    start = place_of(root, after) if after else ()
    for folder, folders, names in os.walk(root, onerror=_raise):
        here = () if folder == root else tuple((True, name) for name in os.path.relpath(folder, root).split(os.sep))
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in SKIPPED_FOLDERS)
        folders[:] = [name for name in folders if (*here, (True, name)) >= start[: len(here) + 1]]
        for name in sorted(names):
            if not name.endswith(SUFFIXES) or (*here, (False, name)) <= start:
                continue
            if found := look_at(os.path.join(folder, name)):
                yield found


def place_of(root: str, path: str) -> tuple[tuple[bool, str], ...]:
    """Where the walk comes by a path below `root`: of two paths, the one with the lesser place comes first.

    In each folder its files come first, then its folders.
    """
    *folders, name = os.path.relpath(path, root).split(os.sep)
    return (*((True, folder) for folder in folders), (False, name))


def look_at(path: str) -> SourceFile | None:
    """The file at `path` as it is now; None when it is no regular file or its path is not valid Unicode."""
    if not os.path.isfile(path) or os.path.islink(path) or not _is_unicode(path):
        return None
    try:
        facts = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return SourceFile(path=path, size=facts.st_size, mtime_ns=facts.st_mtime_ns)


def job_id(generation: str, file: SourceFile) -> str:
    """32 hex digits, always the same for one version of one file on its way into one index (`generation`)."""
    return hashlib.blake2b("\0".join((generation, file.path, file.version)).encode(), digest_size=16).hexdigest()


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _raise(error: OSError) -> None:
    raise error
