"""Putting away files that cannot be read as jobs: kept in done/ with a `blocked` signal of their own name.

The signal comes first, the file after it. Whoever is killed between leaves the file where it was, and the next one that
claims it makes both under the same names: a name depends on nothing but the file.
"""

from __future__ import annotations

import logging

from queuekit.backends.maildir import layout
from queuekit.backends.maildir.mount import Mount, as_write_failed
from queuekit.completion import SignalFile
from queuekit.contract import Lease
from queuekit.ids import JobID
from queuekit.status import ObservationStatus
from queuekit.wire import encode_signal

_log = logging.getLogger("queuekit.maildir")


class Quarantine:
    """Where unreadable files go; counts what this instance has put there."""

    def __init__(self, mount: Mount) -> None:
        self._mount = mount
        self.count = 0

    def put_away(self, folder: int, name: str, stream: str, reason: str, lease: Lease | None) -> None:
        """Move the file to done/ with a signal that says `blocked`; its bytes stay as they are.

        Nothing happens when it is gone: somebody else was faster. Raises `WriteFailed`, and with a lease `LeaseLost`.
        """
        mount = self._mount
        shown = name.encode(errors="backslashreplace").decode(errors="backslashreplace")
        signal = SignalFile(
            job_id=JobID(shown), status=ObservationStatus.BLOCKED, completed_at=mount.clock.send(), artifacts=()
        )
        with as_write_failed(shown):
            staged = mount.stage_all([encode_signal(signal)])[0]
            try:
                with mount.acting(stream, lease):
                    kept = self._name_for(folder, name)
                    if kept is None:
                        mount.discard([staged])
                        return
                    mount.ops.move(mount.tmp, staged, mount.done, layout.quarantine_signal_filename(kept))
                    if kept == name:
                        mount.move_new(folder, name, mount.done, kept, stream)
                    else:
                        mount.move_over(folder, name, mount.done, kept)
            except BaseException:
                mount.discard([staged])
                raise
            mount.sync_folder(mount.done)
        self.count += 1
        _log.warning("put %r aside in done/: %s", shown, reason)

    def _name_for(self, folder: int, name: str) -> str | None:
        """The name to keep it by: its own, unless that is somebody's record. None when it is gone. Under the lock."""
        mount = self._mount
        try:
            facts = mount.ops.stat(folder, name)
        except FileNotFoundError:
            return None
        return layout.spare_name(name, f"{facts.st_ino:x}") if mount.exists(mount.done, name) else name
