"""later/: jobs that are not due yet, and bringing those that are into new/.

A name there begins with its due time, so the oldest names of one listing are all that is needed, kept for each stream
that asks: what waits for others costs it nothing. The listing is repeated when the folder has changed, not more often
than its cost allows (when that keeps it from being repeated, its time counts as a due time); what this process itself
puts off it knows at once.

A clock that is set back must not hold a job for longer than was meant: for what this process knows, a monotonic
deadline stands beside the wall clock (`Due`), and the earlier of the two counts. A retry that another process put off
waits here no longer than its whole delay, which is its due time less the time at which the kernel says that its file
was written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import threading
import time

from queuekit.backends.maildir import layout
from queuekit.backends.maildir.mount import Mount
from queuekit.backends.maildir.ownership import Ownership
from queuekit.clock import Due, now_ms
from queuekit.contract import Lease
from queuekit.errors import BackendUnavailable, LeaseLost, QueueError

_KEPT = 4096
_LISTING_SHARE = 20
_RETRY_SECONDS = 1.0  # what could not be promoted is tried again then
_NEVER = float("inf")


@dataclasses.dataclass(slots=True)
class _Known:
    """What one stream knows of later/: name -> (monotonic time, ms of the wall clock) at which it is due.

    `changed`: what the folder was when it was listed; `listed`: when that ended, and how long it took; `list_at`: when
    a folder that has changed since may be listed again (monotonic seconds).
    """

    due: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    first: tuple[float, float] = (_NEVER, _NEVER)
    changed: tuple[int, int] = (-1, -1)
    listed: tuple[float, float] = (-_NEVER, 0.0)
    list_at: float = _NEVER

    def note(self, name: str, due: tuple[float, float]) -> None:
        self.due[name] = due
        self.first = (min(self.first[0], due[0]), min(self.first[1], due[1]))

    def replace(self, due: dict[str, tuple[float, float]]) -> None:
        self.due = due
        self.first = (
            min((each[0] for each in due.values()), default=_NEVER),
            min((each[1] for each in due.values()), default=_NEVER),
        )

    def names_due(self, monotonic: float, wall: int) -> list[str]:
        if self.first[0] > monotonic and self.first[1] > wall:
            return []
        return sorted(name for name, due in self.due.items() if due[0] <= monotonic or due[1] <= wall)


class Deferred:
    """The deferred jobs of one mount. Safe to use from several threads."""

    def __init__(self, mount: Mount, ownership: Ownership) -> None:
        self._mount = mount
        self._ownership = ownership
        self._known: dict[str | None, _Known] = {}
        self._guard = threading.RLock()

    def note(self, later_name: str, due: Due) -> None:
        """A job that this process has put off."""
        with self._guard:
            for stream, known in self._known.items():
                if _suggests(later_name, stream):
                    known.note(later_name, (due.deadline, due.at_ms))

    def promote_due(self, stream: str | None, lease: Lease | None) -> tuple[list[str], QueueError | None]:
        """Bring what is due into new/: the job names, and what kept others from it."""
        with self._guard:
            try:
                known = self._look(stream)
            except BackendUnavailable as error:
                return [], error
            names, promoted, failure = known.names_due(time.monotonic(), now_ms()), [], None
            for later_name in names:
                try:
                    name = self._promote(later_name, stream, lease)
                except LeaseLost:
                    raise
                except QueueError as error:
                    failure = failure or error
                    known.due[later_name] = (time.monotonic() + _RETRY_SECONDS, _NEVER)
                    continue
                del known.due[later_name]
                if name is not None:
                    promoted.append(name)
            if names:
                known.replace(known.due)
        return promoted, failure

    def next_due(self, stream: str | None = None) -> float | None:
        """Seconds until the next known job of this stream is due, or a listing that is wanted; None when neither is.

        Lists later/ only when it has not been listed for this stream; raises `BackendUnavailable` when that fails.
        """
        with self._guard:
            first = (self._known.get(stream) or self._look(stream)).first
            list_at = self._known[stream].list_at
        wait = min(min(first[0], list_at) - time.monotonic(), (first[1] - now_ms()) / 1000)
        return None if wait == _NEVER else max(0.0, wait)

    def look_again(self) -> None:
        """List later/ again when it is looked at next, whatever is known."""
        with self._guard:
            for known in self._known.values():
                known.changed, known.listed = (-1, -1), (-_NEVER, 0.0)

    def _promote(self, later_name: str, stream: str | None, lease: Lease | None) -> str | None:
        """Make one job pending; None when it is gone, or another stream's."""
        mount = self._mount
        split = layout.split_later(later_name)
        if split is None:
            return None
        name = split[2]
        if stream is not None and not self._ownership.holds(mount.later, later_name, stream, job_name=name):
            return None
        owner = stream or self._ownership.stream_of(mount.later, later_name, job_name=name)
        try:
            with mount.acting(owner, lease):
                self._move(later_name, name, owner)
        except FileNotFoundError as error:
            if mount.heal_if_gone(mount.later, mount.new):
                raise BackendUnavailable("a folder of the queue was removed") from error
            return None
        except OSError as error:
            raise BackendUnavailable(f"cannot promote {name}: {error.strerror}") from error
        return name

    def _move(self, later_name: str, name: str, stream: str) -> None:
        mount = self._mount
        try:
            mount.move_new(mount.later, later_name, mount.new, name, stream)
        except FileExistsError:
            mount.drop_copy(mount.later, later_name, mount.new)  # the same job is pending: one copy is enough

    def _look(self, stream: str | None) -> _Known:
        """What is known, after listing later/ if it may have changed."""
        mount = self._mount
        known = self._known.setdefault(stream, _Known())
        try:
            mount.heal_if_gone(mount.later)
            facts = mount.ops.stat(mount.later, ".")
            changed = (facts.st_mtime_ns, facts.st_ino)
            settled = abs(now_ms() - facts.st_mtime_ns // 1_000_000) > 1000
            ended, took = known.listed
            begun = time.monotonic()
            if changed == known.changed and settled:
                known.list_at = _NEVER
                return known
            if begun - ended < _LISTING_SHARE * took:
                known.list_at = ended + _LISTING_SHARE * took
                return known
            names = self._oldest(stream)
        except OSError as error:
            raise BackendUnavailable(f"cannot list later/: {error.strerror}") from error
        ended = time.monotonic()
        known.replace({name: known.due.get(name) or self._deadlines(name) for name in names})
        known.changed, known.listed, known.list_at = changed, (ended, ended - begun), _NEVER
        return known

    def _deadlines(self, later_name: str) -> tuple[float, float]:
        """Of a job that was found."""
        split = layout.split_later(later_name)
        due_ms, is_retry = split[:2] if split else (0, False)
        deadline = Due.by(due_ms).deadline
        if is_retry:
            with contextlib.suppress(FileNotFoundError):
                written_ms = self._mount.ops.stat(self._mount.later, later_name).st_mtime_ns // 1_000_000
                deadline = min(deadline, time.monotonic() + max(0, due_ms - written_ms) / 1000)
        return deadline, due_ms

    def _oldest(self, stream: str | None) -> list[str]:
        entries = self._mount.ops.entries(self._mount.later)
        return heapq.nsmallest(
            _KEPT,
            (each.name for each in entries if _suggests(each.name, stream) and each.is_file(follow_symlinks=False)),
        )


def _suggests(later_name: str, stream: str | None) -> bool:
    split = layout.split_later(later_name)
    return split is not None and (stream is None or layout.suggests(split[2], stream))
