"""Identifiers: strings with a meaning, and the one rule for which of them may become part of a file name.

They are plain `str` subclasses: they compare, hash, sort and encode like the text they hold, and a type checker tells
them apart. Nothing is validated at construction (other ports accept any text); `check_identifier` is called by a
backend before it touches the disk.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Collection

from queuekit.errors import InvalidIdentifier, UnknownTool


class JobID(str):
    """A job's identity."""

    __slots__ = ()

    @classmethod
    def generate(cls) -> JobID:
        """A fresh random id: 32 lowercase hex digits without hyphens (RFC 9562 version 4)."""
        return cls(uuid.UUID(bytes=os.urandom(16), version=4).hex)


class StreamID(str):
    """The name of a workload: the jobs of one stream are worked by one consumer at a time."""

    __slots__ = ()


class SessionID(str):
    """The name of one drain call: every job that it claimed carries it."""

    __slots__ = ()

    @classmethod
    def mint(cls) -> SessionID:
        """A fresh one: lowercase hyphenated UUID, 36 characters."""
        return cls(uuid.uuid4())


class ToolName(str):
    """The name of a tool that a job may use."""

    __slots__ = ()

    def validate(self, allowed: Collection[str]) -> ToolName:
        """Return itself when it is on the allow-list; raises `UnknownTool` otherwise."""
        if self not in allowed:
            raise UnknownTool(self)
        return self


def check_identifier(id: str) -> None:
    """Raise `InvalidIdentifier` unless `id` may stand in a file name of the queue.

    Refused: the empty text, `.` and `..`, `/` and `\\`, the control characters U+0000 to U+001F and U+007F, and text
    that is not valid Unicode (lone surrogates). Everything else passes, spaces and non-ASCII included.
    """
    if not id:
        raise InvalidIdentifier(id, "empty")
    if id in {".", ".."}:
        raise InvalidIdentifier(id, "dot component")
    if "/" in id or "\\" in id:
        raise InvalidIdentifier(id, "path separator")
    if id.isascii():
        if not id.isprintable():
            raise InvalidIdentifier(id, "control character")
        return
    if any(c <= "\x1f" or c == "\x7f" for c in id):
        raise InvalidIdentifier(id, "control character")
    if any("\ud800" <= c <= "\udfff" for c in id):
        raise InvalidIdentifier(id, "not valid Unicode")


def safe_stream(stream: str) -> str:
    """The stream as lease and lock files are named: ASCII letters, digits, `_` and `-`, everything else `_`."""
    return _UNSAFE.sub("_", stream)


_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
