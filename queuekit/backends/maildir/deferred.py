"""later/: jobs that are not due yet, and bringing those that are into new/.

A name there begins with its due time, so the oldest names of one listing are all that is needed. The listing is
repeated when the folder has changed, not more often than its cost allows; what this process itself puts off it knows at
once.

A clock that is set back must not hold a job for longer than was meant: for what this process knows, a monotonic
deadline stands beside the wall clock, and the earlier of the two counts.
"""

from __future__ import annotations

import heapq
import time

from queuekit.backends.maildir import layout
from queuekit.backends.maildir.mount import Mount
from queuekit.backends.maildir.ownership import Ownership
from queuekit.clock import now_ms
from queuekit.contract import Lease
from queuekit.errors import BackendUnavailable, LeaseLost

_KEPT = 4096
_LISTING_SHARE = 20


class Deferred:
    """The deferred jobs of one mount."""

    def __init__(self, mount: Mount, ownership: Ownership) -> None:
        self._mount = mount
        self._ownership = ownership
        self._deadlines: dict[str, float] = {}  # later/ name -> monotonic time at which it is due
        self._changed = (-1, -1)
        self._listed = (float("-inf"), 0.0)

    def note(self, later_name: str, due_ms: int) -> None:
        """A job that this process has just put off."""
        self._deadlines[later_name] = time.monotonic() + max(0, due_ms - now_ms()) / 1000

    def promote_due(self, stream: str | None, lease: Lease | None) -> list[str]:
        """Bring what is due into new/; returns the job names."""
        self._look()
        if not self._deadlines:
            return []
        wall, monotonic = now_ms(), time.monotonic()
        due = [name for name, at in self._deadlines.items() if at <= monotonic or _due_ms(name) <= wall]
        promoted = [self._promote(name, stream, lease) for name in sorted(due)]
        return [name for name in promoted if name]

    def next_due(self, stream: str | None = None) -> float | None:
        """Seconds until the next known job of this stream is due; None when none is known."""
        wall, monotonic = now_ms(), time.monotonic()
        waits = [
            min(at - monotonic, (_due_ms(name) - wall) / 1000)
            for name, at in self._deadlines.items()
            if self._suggests(name, stream)
        ]
        return max(0.0, min(waits)) if waits else None

    def _promote(self, later_name: str, stream: str | None, lease: Lease | None) -> str | None:
        mount = self._mount
        split = layout.split_later(later_name)
        if split is None or not self._suggests(later_name, stream):
            return None
        name = split[2]
        if not self._ownership.belongs(mount.later, later_name, stream, job_name=name):
            return None
        owner = stream or self._ownership.stream_of(mount.later, later_name, job_name=name)
        try:
            with mount.acting(owner, lease):
                try:
                    mount.ops.move_new(mount.later, later_name, mount.new, name)
                except NotImplementedError:
                    if mount.exists(mount.new, name):
                        raise FileExistsError from None
                    mount.ops.move(mount.later, later_name, mount.new, name)
                except FileExistsError:
                    mount.ops.unlink(mount.later, later_name)  # the same job is pending: one copy is enough
        except FileNotFoundError:
            name = ""
        except LeaseLost:
            raise
        except OSError as error:
            raise BackendUnavailable(f"cannot promote {name}: {error.strerror}") from error
        self._deadlines.pop(later_name, None)
        return name or None

    def _suggests(self, later_name: str, stream: str | None) -> bool:
        split = layout.split_later(later_name)
        return split is not None and (stream is None or layout.suggests(split[2], stream))

    def _look(self) -> None:
        """List later/ if it may have changed."""
        mount = self._mount
        try:
            facts = mount.ops.stat(mount.later, ".")
            changed = (facts.st_mtime_ns, facts.st_ino)
            ended, took = self._listed
            settled = now_ms() - facts.st_mtime_ns // 1_000_000 > 1000
            if (changed == self._changed and settled) or time.monotonic() - ended < _LISTING_SHARE * took:
                return
            begun = time.monotonic()
            names = heapq.nsmallest(
                _KEPT,
                (
                    entry.name
                    for entry in mount.ops.entries(mount.later)
                    if layout.split_later(entry.name) and entry.is_file(follow_symlinks=False)
                ),
            )
        except OSError as error:
            raise BackendUnavailable(f"cannot list later/: {error.strerror}") from error
        wall, ended = now_ms(), time.monotonic()
        known = self._deadlines
        self._deadlines = {name: known.get(name, ended + max(0, _due_ms(name) - wall) / 1000) for name in names}
        self._changed, self._listed = changed, (ended, ended - begun)


def _due_ms(later_name: str) -> int:
    split = layout.split_later(later_name)
    return split[0] if split else 0
