"""Two witnesses beside running pools: who takes a stream over and with what right, and how often each job ends.

Both are asked again and again by the test's own loop (`look`): no thread, no process. What they see is compared with
the rules, not with what the pools say of themselves.
"""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path

import psutil
from inotify_simple import INotify, flags
from pool import is_dead

from queuekit import QueueKit
from queuekit.backends.maildir import layout
from queuekit.backends.maildir.backend import FilesystemBackend
from queuekit.lease import Record


@dataclasses.dataclass
class _Reign:
    """One owner of a lease. Times: monotonic seconds; `changed_after`: the last look that found another content."""

    owner: str
    content: bytes
    master: int
    changed_after: float

    @property
    def pid(self) -> int:
        return pid_of(self.owner)


@dataclasses.dataclass(frozen=True)
class TakeOver:
    """A stream got another owner. `silent`: for how many seconds the old one had not renewed its lease, at most."""

    stream: str
    at: float
    old: str
    new: str
    silent: float
    of_the_dead: bool

    def is_just(self, ttl: float) -> bool:
        """Whether the old owner had died (or gave the stream up with its dead master), or was silent for a ttl."""
        return self.of_the_dead or self.silent > ttl


class LeaseWitness:
    """Watches the lease files of some streams. `ttl`: theirs, seconds. `take_overs`: what it has seen, in order."""

    def __init__(self, root: Path, streams: tuple[str, ...]) -> None:
        self.take_overs: list[TakeOver] = []
        self._root = root
        self._streams = streams
        self._reigns: dict[str, _Reign] = {}
        self._looked = time.monotonic()

    def look(self) -> None:
        """See what has changed since the last look."""
        before, self._looked = self._looked, time.monotonic()
        for stream in self._streams:
            try:
                content = (self._root / f"{stream}.drain.lease").read_bytes()
            except FileNotFoundError:
                continue
            known = self._reigns.get(stream)
            if known is None or content != known.content:
                self._note(stream, content, before)

    def _note(self, stream: str, content: bytes, before: float) -> None:
        record = Record.decode(content)
        assert record is not None, content
        known = self._reigns.get(stream)
        if known is not None and known.owner == record.owner:
            known.content, known.changed_after = content, before
            return
        if known is not None:
            now = time.monotonic()
            dead = is_dead(known.pid) or is_dead(known.master)
            silent = now - known.changed_after
            self.take_overs.append(TakeOver(stream, now, known.owner, record.owner, silent, dead))
        self._reigns[stream] = _Reign(record.owner, content, _master_of(pid_of(record.owner)), before)

    def holder(self, stream: str) -> str | None:
        """The owner at the last look."""
        return self._reigns[stream].owner if stream in self._reigns else None

    def content(self, stream: str) -> bytes | None:
        """The lease at the last look."""
        return self._reigns[stream].content if stream in self._reigns else None

    def unjust(self, ttl: float) -> list[TakeOver]:
        """Take-overs that nothing but a step of the clock, or a fault, can have caused."""
        return [each for each in self.take_overs if not each.is_just(ttl)]


def pid_of(owner: str) -> int:
    """The process that a lease's owner names."""
    return int(owner.split("-")[1])


def _master_of(pid: int) -> int:
    """The parent of a stream process; 0 when it has gone already, and so is dead to `is_dead`."""
    try:
        return psutil.Process(pid).ppid()
    except psutil.NoSuchProcess:
        return 0


class EndWitness:
    """Watches what is moved into done/. `ended`: the ids of jobs whose file came there; `doubled`: which ended twice.

    The kernel tells of each rename in its order. A signal that comes twice before its job is that of a process that
    died between the two. When the job itself comes twice, or its signal changes afterwards, an end was acknowledged
    twice. The same signal once more (`repeated`) is that of a reply that was tried again after an error.
    """

    def __init__(self, queue: QueueKit) -> None:
        """`queue`: in a folder; it is made by whoever opens it."""
        assert isinstance(queue.backend, FilesystemBackend)
        self.ended: set[str] = set()
        self.repeated = 0
        self.doubled: list[str] = []
        self._signals: dict[str, bytes] = {}
        self._done = os.path.join(queue.backend.root, "done")
        self._events = INotify(nonblocking=True)
        self._events.add_watch(self._done, flags.MOVED_TO)

    def look(self) -> None:
        """See what has come since the last look."""
        for event in self._events.read(timeout=0):
            assert not event.mask & flags.Q_OVERFLOW, "the witness was away for too long"
            job_id = event.name.removesuffix(layout.SIGNAL).rpartition("-")[2]
            if not event.name.endswith(layout.SIGNAL):
                self._has_ended(job_id)
            elif job_id in self.ended:
                self.repeated += 1
                if self._signal(job_id) != self._signals[job_id]:
                    self.doubled.append(job_id)

    def _has_ended(self, job_id: str) -> None:
        if job_id in self.ended:
            self.doubled.append(job_id)
        self.ended.add(job_id)
        self._signals[job_id] = self._signal(job_id)

    def _signal(self, job_id: str) -> bytes:
        return Path(self._done, layout.signal_filename(job_id)).read_bytes()

    def close(self) -> None:
        """Watch no more."""
        self._events.close()
