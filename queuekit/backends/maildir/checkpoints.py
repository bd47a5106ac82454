"""Checkpoints of a maildir: `.workerpool/checkpoints/<length of stream>-<stream>-<id>`, one file each, ours alone.

A file holds what a job file would (`checkpoint_job`), so its content tells what it is called. It is written and synced
in tmp/ first; then, under the lock of its stream, comes a look at what is there and one rename over it; then the folder
is synced. So a reader, who needs no lock, sees the old payload or the new one, and of two writers that expect the same
one wins. Killed at any point there is the old one or the new one.
"""

from __future__ import annotations

import dataclasses
import os
import stat

from queuekit.backends.admission import check_checkpoint, prepare
from queuekit.backends.maildir import layout
from queuekit.backends.maildir.mount import Durability, Mount, as_write_failed
from queuekit.checkpoints import Checkpoints, checkpoint_job
from queuekit.errors import BackendUnavailable, DecodingFailed
from queuekit.ids import check_identifier
from queuekit.job import Job
from queuekit.wire import decode_job, encode_job


class MaildirCheckpoints(Checkpoints):
    """The checkpoints of one mount."""

    def __init__(self, mount: Mount) -> None:
        self._mount = mount

    def read(self, id: str, stream: str) -> bytes | None:
        """The payload; None when there is none."""
        check_checkpoint(id, stream)
        self._find()
        kept = self._kept(layout.checkpoint_filename(stream, id))
        return None if kept is None else kept.payload

    def compare_and_swap(self, id: str, stream: str, expected: bytes | None, payload: bytes) -> bool:
        """Replace what is there if it is `expected`; see the contract."""
        mount = self._mount
        fresh = checkpoint_job(id, stream, payload, mount.clock.send())
        prepare(fresh, mount.max_job_bytes)
        self._find()
        name = layout.checkpoint_filename(stream, id)
        before = self._kept(name)
        if not _says(before, expected):
            return False
        wanted = fresh if before is None else dataclasses.replace(fresh, submitted_at=before.submitted_at)
        with as_write_failed(f"checkpoint {id}"):
            staged = mount.stage(encode_job(wanted), sync=mount.durability is not Durability.NONE)
            if not self._put(staged, name, stream, expected):
                return False
            mount.sync_folder(mount.checkpoints)
        return True

    def _put(self, staged: str, name: str, stream: str, expected: bytes | None) -> bool:
        """Rename a file from tmp/ to the checkpoint if that still is `expected`; else the file is removed."""
        mount, put = self._mount, False
        try:
            with mount.lock(stream):
                if _says(self._kept(name), expected):
                    mount.ops.move(mount.tmp, staged, mount.checkpoints, name)
                    put = True
        finally:
            if not put:
                mount.discard([staged])
        return put

    def delete(self, id: str, stream: str) -> bool:
        """Remove its file, readable or not. One that is gone already is made sure of, too."""
        check_checkpoint(id, stream)
        mount = self._mount
        self._find()
        name = layout.checkpoint_filename(stream, id)
        with as_write_failed(f"the end of checkpoint {id}"):
            with mount.lock(stream):
                found = mount.exists(mount.checkpoints, name)
                if found:
                    mount.ops.unlink(mount.checkpoints, name)
            mount.sync_folder(mount.checkpoints)
        return found

    def list(self, stream: str) -> dict[str, bytes]:
        """The payloads by id; those of other streams are not read."""
        check_identifier(stream)
        kept = {id: self._kept(layout.checkpoint_filename(of, id)) for of, id in self._names() if of == stream}
        return {id: job.payload for id, job in kept.items() if job is not None}

    def streams(self) -> set[str]:
        """The streams, by names only."""
        return {stream for stream, _ in self._names()}

    def _find(self) -> None:
        """Be in the folder that is at the path now. A root that is away is not made anew: what it keeps is not gone."""
        if not os.path.isdir(self._mount.root):
            raise BackendUnavailable(f"{self._mount.root} is not there")
        self._mount.heal()

    def _names(self) -> set[tuple[str, str]]:
        self._find()
        split = map(layout.split_checkpoint, self._mount.names(self._mount.checkpoints))
        return {each for each in split if each is not None}

    def _kept(self, name: str) -> Job | None:
        try:
            return checkpoint_in(self._mount, name)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BackendUnavailable(f"cannot read {layout.CHECKPOINTS}/{name}: {error.strerror}") from error
        except DecodingFailed as error:
            raise BackendUnavailable(f"{layout.CHECKPOINTS}/{name} is no checkpoint: {error.reason}") from error


def checkpoint_in(mount: Mount, name: str) -> Job:
    """The checkpoint in a file, as a job. Raises `DecodingFailed` when it holds none, and the system's errors."""
    data, facts = mount.ops.read(mount.checkpoints, name, mount.max_file_bytes)
    if not stat.S_ISREG(facts.st_mode):
        raise DecodingFailed("not a regular file")
    if len(data) > mount.max_file_bytes:
        raise DecodingFailed(f"larger than {mount.max_file_bytes} bytes")
    job = decode_job(data)
    if layout.checkpoint_filename(job.stream_id, job.id) != name:
        raise DecodingFailed("the file's name does not belong to the checkpoint inside", job.id)
    return job


def _says(kept: Job | None, expected: bytes | None) -> bool:
    return expected == (None if kept is None else kept.payload)
