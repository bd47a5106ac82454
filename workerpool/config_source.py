"""Reads what a configuration is made from: file, TOML, the line of each key, and whether others could change it.

A config.toml and the folders that handlers come from are code: each must belong to this user or to root and be closed
to others for writing (a folder may have the sticky bit instead). What cannot be read at all raises `ConfigError`; what
is only unsafe is noted in the document, so that it is reported together with everything else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import stat
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from workerpool.config_lines import KeyPath, key_lines
from workerpool.errors import ConfigError, Problem
from workerpool.trust import why_unsafe, why_unusable

MAX_FILE_BYTES = 2**20

_HEADER = re.compile(r"[ \t]*\[[ \t]*([A-Za-z]+)[ \t]*\]")
_MENTION = re.compile(r"""(?m)^[ \t]*\[*[ \t]*["']?([A-Za-z]+)["']?[ \t]*[].=]""")
_TOML_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A source as it was read: `label` names it in messages; `folders`: those whose writers could replace it."""

    label: str
    path: str | None
    base: str
    values: dict[str, Any]
    lines: Mapping[KeyPath, int]
    folders: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


def read_document(source: str | os.PathLike[str] | Mapping[str, Any], base: str | os.PathLike[str] | None) -> Document:
    """The document in a file or a mapping; `base` as in `load_config`. Raises `ConfigError` when there is none."""
    if isinstance(source, Mapping):
        folder = os.path.abspath(os.curdir if base is None else base)
        return Document(label="config", path=None, base=folder, values=_plain(source), lines={})
    label = os.fspath(source)
    try:
        data, found = _read_file(label)
        text = data.decode("utf-8-sig")
        values = tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError([_unreadable(label, error)]) from error
    path = os.path.abspath(label)
    folders = tuple(dict.fromkeys((os.path.dirname(path), os.path.dirname(os.path.realpath(path)))))
    return Document(
        label=label,
        path=path,
        base=os.path.dirname(path) if base is None else os.path.abspath(base),
        values=values,
        lines=key_lines(text.replace("\r\n", "\n")),
        folders=folders,
        problems=tuple(_unsafe_places(label, found, folders)),
    )


def readable_tables(path: str, names: Collection[str]) -> dict[str, Any] | None:
    """These tables of a file that may have mistakes elsewhere; None when it cannot be told what they say.

    For who wants to look at a store, or to stop its pool, and cannot wait until the file is mended. A table that is not
    there has its defaults, as always.
    """
    try:
        data, found = _read_file(path)
        text = data.decode("utf-8-sig")
    except (OSError, ValueError):
        return None
    if why_unsafe(found) is not None:
        return None
    try:
        values: dict[str, Any] | None = tomllib.loads(text)
    except (ValueError, RecursionError):
        values = _tables_apart(text, names)
    tables = {name: values[name] for name in names if name in values} if values is not None else None
    return tables if tables is None or all(isinstance(table, dict) for table in tables.values()) else None


def _tables_apart(text: str, names: Collection[str]) -> dict[str, Any] | None:
    """The tables of a text that is no TOML as a whole, each read by itself, as they are usually written."""
    values: dict[str, Any] = {}
    for piece in re.split(r"(?m)^(?=[ \t]*\[)", text):
        name = _HEADER.match(piece)
        if name is None or name[1] not in names:
            if _MENTION.search(piece) and any(each in names for each in _MENTION.findall(piece)):
                return None  # written in another way
            continue
        try:
            values |= tomllib.loads(piece)
        except (ValueError, RecursionError):
            return None
    return values


def _plain(value: Any) -> Any:
    """A mapping's content as a TOML parser would give it."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _read_file(path: str) -> tuple[bytes, os.stat_result]:
    """The content of a regular file of bearable size, and what its descriptor says about it."""
    with contextlib.ExitStack() as stack:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        stack.callback(os.close, fd)
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("is a folder" if stat.S_ISDIR(found.st_mode) else "is not a regular file")
        data = b"".join(iter(lambda: os.read(fd, MAX_FILE_BYTES), b"")) if found.st_size <= MAX_FILE_BYTES else None
        if data is None or len(data) > MAX_FILE_BYTES:
            raise ValueError("is over 1 MiB large, which no configuration is")
        return data, found


def _unreadable(label: str, error: Exception) -> Problem:
    if isinstance(error, FileNotFoundError):
        return Problem(label, None, "", "there is no such file (`workerpool init DIR` writes one)")
    if isinstance(error, OSError):
        return Problem(label, None, "", f"cannot be read: {error.strerror}")
    if isinstance(error, UnicodeDecodeError):
        return Problem(label, error.object.count(b"\n", 0, error.start) + 1, "", "is not UTF-8 text")
    if isinstance(error, tomllib.TOMLDecodeError):
        return _syntax_problem(label, str(error))
    return Problem(label, None, "", "nests too deeply" if isinstance(error, RecursionError) else str(error))


def _syntax_problem(label: str, message: str) -> Problem:
    match = _TOML_PLACE.search(message)
    line = int(match[1]) if match and match[1] else None
    what = message[: match.start()] if match else message
    where = f" (column {match[2]})" if match and match[2] else " (at the end of the file)" if match else ""
    return Problem(label, line, "", f"is not valid TOML: {what[:1].lower()}{what[1:]}{where}")


def _unsafe_places(label: str, found: os.stat_result, folders: tuple[str, ...]) -> Iterator[Problem]:
    if reason := why_unsafe(found):
        yield Problem(label, None, "", reason)
    for folder in folders:
        if reason := why_unusable(folder):
            yield Problem(label, None, "", f"its folder {folder} {reason}")


def line_of(path: str | None, key: KeyPath, fits: Callable[[object], bool]) -> int | None:
    """The line of a file on which a key has a value that fits; None when its value came from elsewhere.

    For what is found wrong after the configuration was read, when its values do not know any more where they stood.
    """
    if path is None:
        return None
    try:
        text = _read_file(path)[0].decode().replace("\r\n", "\n")
        written: Any = tomllib.loads(text)
        for part in key:
            written = written[part]
    except (OSError, ValueError, RecursionError, KeyError, TypeError):  # no line to point at
        return None
    return key_lines(text).get(key) if fits(written) else None
