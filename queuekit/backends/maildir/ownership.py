"""Whose file is it: by its name where that is clear and little hangs on it, else by the job inside."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from queuekit.backends.maildir import layout
from queuekit.backends.maildir.mount import Mount
from queuekit.errors import DecodingFailed

_REMEMBERED = 100_000


class Owner(enum.Enum):
    """Answers that are no stream."""

    NOBODY = "nobody"  # the file holds no job
    GONE = "gone"  # the file is not there any more


class Ownership:
    """Which stream a job file belongs to. `job_name`: its plain name, where it is stored under another one."""

    def __init__(self, mount: Mount) -> None:
        self._mount = mount
        self._known: dict[str, str | Owner] = {}

    def learn(self, job_name: str, stream: str | Owner) -> None:
        """Remember what a look inside has shown."""
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[job_name] = stream

    def may_be(self, job_name: str, stream: str | None) -> bool:
        """Whether a look is worth it: the name suggests the stream and is not known to be another's."""
        if stream is None:
            return layout.tail(job_name) is not None
        if not layout.suggests(job_name, stream):
            return False
        known = self._known.get(job_name)
        return known is None or known == stream or known is Owner.NOBODY

    def owner(self, folder: int, name: str, stream: str | None = None, *, job_name: str | None = None) -> str | Owner:
        """The stream of a file, or why there is none; a clear name is believed. `stream`: the one that asks."""
        plain = job_name or name
        known = self._known.get(plain)
        if known is not None:
            return known
        if stream is not None and layout.is_clear(plain, stream):
            return stream
        clear = layout.clear_stream(plain)
        if clear is not None and stream is None:
            return clear
        found = self.look(folder, name, plain)
        if found is not Owner.GONE:
            self.learn(plain, found)
        return found

    def belongs(self, folder: int, name: str, stream: str | None, *, job_name: str | None = None) -> bool:
        """Whether the file counts as this stream's, or suggests it and holds no job; no stream: whatever has the shape.

        For counting: a clear name is believed.
        """
        plain = job_name or name
        if stream is None:
            return layout.tail(plain) is not None
        return layout.suggests(plain, stream) and self.owner(folder, name, stream, job_name=plain) in {
            stream,
            Owner.NOBODY,
        }

    def count(self, folder: int, names: Iterable[str], stream: str | None) -> int:
        """How many of these files belong to the stream. Most names are clear, and a queue may have a million."""
        if stream is None:
            return sum(layout.tail(name) is not None for name in names)
        is_clear, known = layout.clear_names_of(stream).fullmatch, self._known
        return sum(
            (is_clear(name) is not None and name not in known) or self.belongs(folder, name, stream) for name in names
        )

    def holds(self, folder: int, name: str, stream: str, *, job_name: str) -> bool:
        """Whether the file is this stream's by its content, or suggests it and holds no job. For who moves it on."""
        return layout.suggests(job_name, stream) and self.look(folder, name, job_name) in {stream, Owner.NOBODY}

    def stream_of(self, folder: int, name: str, *, job_name: str | None = None) -> str:
        """The stream whose lock guards the file, by its content; the empty text when it has none."""
        owner = self.look(folder, name, job_name or name)
        return owner if isinstance(owner, str) else ""

    def look(self, folder: int, name: str, job_name: str) -> str | Owner:
        """What the file says; `BackendUnavailable` when it cannot be read now."""
        try:
            job = self._mount.look_into(folder, name, job_name)
        except DecodingFailed:
            return Owner.NOBODY
        return Owner.GONE if job is None else job.stream_id
