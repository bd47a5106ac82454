"""Accepting jobs: written and synced in tmp/, renamed to where they count, the folder synced, then acknowledged.

A name that exists already is the same job sent again: success, once it is known to be durable, when the bytes are the
same apart from the delivery record, else an error. Nothing is ever replaced.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable

from queuekit.backends.admission import prepare, same_job
from queuekit.backends.maildir import layout
from queuekit.backends.maildir.mount import Durability, Mount, as_write_failed
from queuekit.errors import DecodingFailed, RenameFailed, WriteFailed
from queuekit.job import Job

CHUNK = 2000


class Sender:
    """The producing side of one mount."""

    def __init__(self, mount: Mount) -> None:
        self._mount = mount

    def send(self, job: Job, due_ms: int | None = None) -> str:
        """Accept one job, into new/ or, with a due time, into later/. Returns its file name there."""
        name, data = prepare(job, self._mount.max_job_bytes)
        mount = self._mount
        with as_write_failed(name):
            staged = mount.stage(data, sync=mount.durability is Durability.FULL)
            try:
                if due_ms is None:
                    mount.healed(lambda: self._publish(staged, name, job, mount.new, name))
                else:
                    later = layout.later_filename(name, due_ms, retry=False)
                    mount.healed(lambda: self._publish(staged, name, job, mount.later, later))
            except BaseException:
                mount.discard([staged])
                raise
            mount.sync_folder(mount.new if due_ms is None else mount.later)
        return name

    def send_all(self, jobs: Iterable[Job]) -> list[str]:
        """Accept many: all are checked before the first is written. Returns their file names."""
        prepared = [(job, *prepare(job, self._mount.max_job_bytes)) for job in jobs]
        for start in range(0, len(prepared), CHUNK):
            self._send_chunk(prepared[start : start + CHUNK])
        if prepared and self._mount.durability is Durability.BATCH:
            with as_write_failed("a batch of jobs"):
                self._mount.sync_folder(self._mount.new)
        return [name for _, name, _ in prepared]

    def _send_chunk(self, chunk: list[tuple[Job, str, bytes]]) -> None:
        mount = self._mount
        with as_write_failed(f"a batch of {len(chunk)} jobs"):
            staged = mount.stage_all([data for _, _, data in chunk])
            waiting: list[tuple[str, tuple[Job, str, bytes]]] = list(zip(staged, chunk, strict=True))[::-1]
            try:
                mount.healed(lambda: self._publish_all(waiting))
                if mount.durability is Durability.FULL:
                    mount.sync_folder(mount.new)
            except BaseException:
                mount.discard([name for name, _ in waiting])
                raise

    def _publish_all(self, waiting: list[tuple[str, tuple[Job, str, bytes]]]) -> None:
        """Rename all that wait (the last one first); each is taken off the list when it is there."""
        while waiting:
            staged, (job, name, _) = waiting[-1]
            self._publish(staged, name, job, self._mount.new, name)
            waiting.pop()

    def _publish(self, staged: str, name: str, job: Job, folder: int, target: str) -> None:
        mount = self._mount
        try:
            mount.move_new(mount.tmp, staged, folder, target, job.stream_id)
        except FileExistsError:
            self._accept_again(staged, name, job, folder, target)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _move_error(error, staged, name) from error

    def _accept_again(self, staged: str, name: str, job: Job, folder: int, target: str) -> None:
        """The name is taken: fine when it is this job, which then must be durable before we say so."""
        mount = self._mount
        try:
            present = mount.look_into(folder, target, name)
        except DecodingFailed as error:
            raise WriteFailed(name, f"the name is taken by a file that is no job: {error.reason}") from None
        if present is not None and not same_job(present, job):
            raise WriteFailed(name, "another job with the same stream, id and time is pending")
        if present is not None and mount.durability is Durability.FULL:
            try:
                mount.ops.sync_file(folder, target)
            except FileNotFoundError:
                if mount.exists(folder, target):
                    raise  # else claimed meanwhile: the job has been accepted before
        mount.discard([staged])


def _move_error(error: OSError, staged: str, name: str) -> Exception:
    if error.errno == errno.EXDEV:
        return WriteFailed(name, "tmp/ and the folder for it are on different filesystems")
    return RenameFailed(f"tmp/{staged}", name, error.strerror or os.strerror(error.errno or 0))
