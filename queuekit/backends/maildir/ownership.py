"""Whose file is it: by its name where that is clear, else by the job inside, which is looked up once and remembered."""

from __future__ import annotations

import enum

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
        return layout.suggests(job_name, stream) and self._known.get(job_name, stream) in {stream, Owner.NOBODY}

    def owner(self, folder: int, name: str, stream: str | None = None, *, job_name: str | None = None) -> str | Owner:
        """The stream of a file, or why there is none. `stream`: the one that asks, for it may be clear to it alone."""
        plain = job_name or name
        if plain not in self._known:
            if stream is not None and layout.is_clear(plain, stream):
                return stream
            clear = layout.clear_stream(plain)
            if clear is not None and stream is None:
                return clear
            found = self._look(folder, name, plain)
            if found is Owner.GONE:
                return found
            self.learn(plain, found)
        return self._known[plain]

    def belongs(self, folder: int, name: str, stream: str | None, *, job_name: str | None = None) -> bool:
        """Whether the file is this stream's (or suggests it and holds no job); with no stream: any that has the shape."""
        plain = job_name or name
        if stream is None:
            return layout.tail(plain) is not None
        if not layout.suggests(plain, stream):
            return False
        return self.owner(folder, name, stream, job_name=plain) in {stream, Owner.NOBODY}

    def stream_of(self, folder: int, name: str, *, job_name: str | None = None) -> str:
        """The stream whose lock guards the file; the empty text when it has none."""
        owner = self.owner(folder, name, job_name=job_name)
        return owner if isinstance(owner, str) else ""

    def _look(self, folder: int, name: str, job_name: str) -> str | Owner:
        try:
            job = self._mount.look_into(folder, name, job_name)
        except DecodingFailed:
            return Owner.NOBODY
        return Owner.GONE if job is None else job.stream_id
