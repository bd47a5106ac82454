"""Putting away files that cannot be read as jobs: kept in done/ with a `blocked` signal of their own name."""

from __future__ import annotations

import logging
import os

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
        """Move the file to done/ with a signal that says `blocked`; its bytes stay as they are."""
        mount = self._mount
        shown = name.encode(errors="backslashreplace").decode(errors="backslashreplace")
        signal = SignalFile(
            job_id=JobID(shown), status=ObservationStatus.BLOCKED, completed_at=mount.clock.send(), artifacts=()
        )
        with as_write_failed(shown):
            staged = mount.stage_all([encode_signal(signal)])[0]
            try:
                with mount.acting(stream, lease):
                    kept = self._free_name(name)
                    mount.ops.move(mount.tmp, staged, mount.done, layout.quarantine_signal_filename(kept))
                    mount.ops.move(folder, name, mount.done, kept)
            except BaseException:
                mount.discard([staged])
                raise
            mount.sync_folder(mount.done)
        self.count += 1
        _log.warning("put %r aside in done/: %s", shown, reason)

    def _free_name(self, name: str) -> str:
        """The name to keep it by: its own, unless that is somebody's record. Under the stream's lock."""
        if not self._mount.exists(self._mount.done, name):
            return name
        return layout.spare_name(name, os.urandom(4).hex())
