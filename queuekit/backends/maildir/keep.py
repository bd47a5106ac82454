"""What a person does to jobs that nobody works: cancel, retry, run now, prune; and finishing a retry that was cut off.

All of it happens under the stream's lock, also beside a running pool. A retry is several moves; its intent, the old
signal kept in `.workerpool/retry/<job file name>`, is made first and removed last, so that whoever finds it can go on.
One that cannot be read holds nothing up: the job in done/ tells what is to be done, and the intent is kept aside.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from collections.abc import Collection, Iterator
from typing import NoReturn

from queuekit.backends.complaints import Complaints
from queuekit.backends.maildir import layout
from queuekit.backends.maildir.mount import Mount, as_write_failed
from queuekit.backends.maildir.ownership import Ownership
from queuekit.backends.maildir.settle import Settler
from queuekit.clock import now_ms
from queuekit.completion import SignalFile
from queuekit.contract import Lease
from queuekit.errors import (
    BackendUnavailable,
    DecodingFailed,
    IllegalTransition,
    JobNotFound,
    LeaseLost,
    QueueError,
)
from queuekit.ids import check_identifier
from queuekit.job import Delivery, Job
from queuekit.lifecycle import State, Verb, target
from queuekit.status import ObservationStatus
from queuekit.wire import decode_signal, encode_job, encode_signal

_log = logging.getLogger("queuekit.maildir")
_SIGNAL_BYTES = 2**20
_MOVED_ON = "it has just moved on: look again"
_MOST_FAILURES = 8  # so many jobs in one prune that cannot be removed are passed over


class Keeper:
    """The verbs of people and housekeeping on one mount."""

    def __init__(self, mount: Mount, ownership: Ownership, settler: Settler) -> None:
        self._mount = mount
        self._ownership = ownership
        self._settler = settler
        self._complaints = Complaints(_log)

    # -- finding a job

    def locate(self, job_id: str) -> tuple[State, int, str, str] | None:
        """`(state, folder, file name there, job file name)` of a job, wherever it is; looked for twice: it may move."""
        check_identifier(job_id)
        return self._look_for(job_id) or self._look_for(job_id)

    def _look_for(self, job_id: str) -> tuple[State, int, str, str] | None:
        mount = self._mount
        for state, folder in (
            (State.NEW, mount.new),
            (State.LATER, mount.later),
            (State.CUR, mount.claim),
            (State.CUR, mount.cur),
            (State.DONE, mount.done),
        ):
            for file in sorted(name for name in mount.names(folder) if name.endswith(f"-{job_id}")):
                name = self._plain(folder, file)
                if name is None:
                    continue
                with contextlib.suppress(DecodingFailed):
                    job = mount.look_into(folder, file, name)
                    if job is not None and job.id == job_id:
                        return state, folder, file, name
        return None

    def _plain(self, folder: int, file: str) -> str | None:
        if folder == self._mount.later:
            split = layout.split_later(file)
            return split[2] if split else None
        return layout.split_claim(file) if folder == self._mount.claim else file

    def _require(self, job_id: str, verb: Verb) -> tuple[State, int, str, str]:
        found = self.locate(job_id)
        if found is None:
            raise JobNotFound(job_id)
        target(found[0], verb, job_id)
        return found

    # -- release of a deferred job

    def run_now(self, job_id: str) -> str:
        """Make a deferred job pending; returns its name."""
        _, folder, file, name = self._require(job_id, Verb.RELEASE)
        mount = self._mount
        if folder != mount.later:
            raise IllegalTransition(Verb.RELEASE, State.CUR, job_id)
        with self._holding(job_id, folder, file, name), as_write_failed(name):
            try:
                mount.move_new(folder, file, mount.new, name, "")
            except FileExistsError:
                mount.drop_copy(folder, file, mount.new)  # the same job is pending: one copy is enough
            mount.sync_folder(mount.new)
        return name

    # -- cancel

    def cancel(self, job_id: str) -> None:
        """End a pending or deferred job as `blocked`."""
        state, folder, file, name = self._require(job_id, Verb.CANCEL)
        mount = self._mount
        with self._holding(job_id, folder, file, name), as_write_failed(name):
            job = mount.look_into(folder, file, name)
            if job is None:
                raise JobNotFound(job_id, _MOVED_ON)
            if self._is_twin(name, job):
                self._drop_twin(folder, file, name, job_id)
            signal = SignalFile(
                job_id=job.id,
                status=ObservationStatus.BLOCKED,
                completed_at=mount.clock.receive(job.submitted_at),
            )
            staged = mount.stage_all([encode_signal(signal)])[0]
            try:
                try:
                    mount.move_new(folder, file, mount.cur, name, job.stream_id)
                except FileNotFoundError:  # claimed just now: that takes no lock
                    raise JobNotFound(job_id, _MOVED_ON) from None
                except FileExistsError:  # and so was another copy of it
                    self._drop_twin(folder, file, name, job_id)
                self._end_claimed(staged, job_id, name, state)
            except BaseException:
                mount.discard([staged])
                raise
            mount.sync_folder(mount.done)

    def _drop_twin(self, folder: int, file: str, name: str, job_id: str) -> NoReturn:
        """There is nothing to cancel: another copy of the job is in flight or has ended."""
        mount = self._mount
        try:
            mount.drop_copy(folder, file, mount.cur if mount.exists(mount.cur, name) else mount.done)
        except FileNotFoundError:  # it is no other copy: this one was claimed just now
            raise JobNotFound(job_id, _MOVED_ON) from None
        raise IllegalTransition(Verb.CANCEL, State.DONE, job_id)

    def _end_claimed(self, staged: str, job_id: str, name: str, was: State) -> None:
        """A cancelled job from cur/ into done/, its dossier first; when that fails it is pending again."""
        mount = self._mount
        try:
            self._settler.keep_dossier(job_id, {"ended": "cancelled", "was": str(was), "at_ms": now_ms()})
            mount.ops.move(mount.tmp, staged, mount.done, layout.signal_filename(job_id))
            mount.ops.move(mount.cur, name, mount.done, name)
        except (OSError, QueueError):
            with contextlib.suppress(OSError):
                mount.ops.move(mount.cur, name, mount.new, name)
            raise

    def _is_twin(self, name: str, job: Job) -> bool:
        mount = self._mount
        ended = mount.exists(mount.done, name) and mount.exists(mount.done, layout.signal_filename(job.id))
        return ended or mount.exists(mount.cur, name)

    # -- retry

    def retry(self, job_id: str) -> str:
        """Make a finished job pending again with a fresh record; returns its name."""
        _, folder, file, name = self._require(job_id, Verb.RETRY)
        mount = self._mount
        signal = layout.signal_filename(job_id)
        with self._holding(job_id, folder, file, name), as_write_failed(name):
            if mount.exists(mount.done, signal):
                self._close_intent(name, job_id)
                mount.ops.move(mount.done, signal, mount.intents, name)
            elif not mount.exists(mount.intents, name):
                raise IllegalTransition(Verb.RETRY, "without a record of its end", job_id)
            self._resume_retry(name, job_id)
        return name

    def _resume_retry(self, name: str, job_id: str) -> None:
        """From the intent to the pending job: every step may find itself done already."""
        mount = self._mount
        job, _ = mount.read_job(mount.done, name)
        mount.replace(mount.done, name, encode_job(Delivery().onto(job)))
        mount.ops.move(mount.done, name, mount.new, name)
        self._close_intent(name, job_id)

    def _close_intent(self, name: str, job_id: str | None) -> None:
        """Keep the old end in the job's dossier, then remove the intent; nothing happens when there is none.

        Where the job has gone meanwhile is on disk before. What cannot be read, or is of nobody knows which job (None),
        is put aside as it is.
        """
        mount = self._mount
        if not mount.exists(mount.intents, name):
            return
        mount.ops.sync_folder(mount.new)
        mount.ops.sync_folder(mount.done)
        try:
            record = self._read_record(mount.intents, name)
        except FileNotFoundError:
            return
        except DecodingFailed as error:
            self._put_intent_aside(name, error.reason)
            return
        if job_id is None:
            self._put_intent_aside(name, "it is no record of an end")
            return
        if _job_of(record) is None:
            _log.error("the record that a retry of job %s set aside cannot be read: its dossier has it now", job_id)
        text = record.decode(errors="backslashreplace")
        ends = list((self._settler.dossier(job_id) or {}).get("earlier_ends", []))
        if text not in ends:
            self._settler.keep_dossier(job_id, {"earlier_ends": [*ends, text]})
        mount.ops.unlink(mount.intents, name)

    def _put_intent_aside(self, name: str, reason: str) -> None:
        aside = layout.aside_name(name, os.urandom(4).hex())
        self._mount.ops.move(self._mount.intents, name, self._mount.intents, aside)
        _log.error("the intent of a retry, %r, cannot be read: %s; it is kept as %r", name, reason, aside)

    def _read_record(self, folder: int, name: str) -> bytes:
        """The bytes of a record; raises `FileNotFoundError`, `BackendUnavailable` when they cannot be read now, and
        `DecodingFailed` when they never can."""
        mount = self._mount
        try:
            record, facts = mount.ops.read(folder, name, _SIGNAL_BYTES)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise mount.unreadable(folder, name, error) from error
        if not stat.S_ISREG(facts.st_mode):
            raise DecodingFailed("not a regular file")
        if len(record) > _SIGNAL_BYTES:
            raise DecodingFailed(f"larger than {_SIGNAL_BYTES} bytes")
        return record

    def finish_intents(self, stream: str, lease: Lease | None) -> list[str]:
        """Go on with retries of this stream that were cut off; returns the names that became pending.

        One that cannot be finished now is said, and keeps no other from it: the next call tries again.
        """
        mount = self._mount
        pending: list[str] = []
        for name in self._intents(stream):
            with mount.acting(stream, lease):
                try:
                    with as_write_failed(name):
                        if self._finish_retry(name, stream):
                            pending.append(name)
                except QueueError as error:
                    message = "the retry that was cut off with the intent %r cannot go on now: %s"
                    self._complaints.say(name, message, name, error)
        return pending

    def _intents(self, stream: str) -> list[str]:
        mount = self._mount
        try:
            return sorted(each.name for each in mount.ops.entries(mount.intents) if layout.suggests(each.name, stream))
        except OSError as error:
            raise BackendUnavailable(f"cannot list {layout.INTENTS}/: {error.strerror}") from error

    def _finish_retry(self, name: str, stream: str) -> bool:
        """Go on with one retry, unless it is of another stream; whether its job became pending. Under the lock."""
        mount, fault = self._mount, ""
        try:
            job_id = self._intended(name)
            job = mount.look_into(mount.done, name)
        except FileNotFoundError:
            return False
        except DecodingFailed as error:
            job, fault = None, error.reason
        if job is not None:
            if job.stream_id == stream and not mount.exists(mount.done, layout.signal_filename(job.id)):
                self._resume_retry(name, job.id)
                return True
            if job.stream_id == stream:
                self._close_intent(name, job.id)
        elif not fault and mount.exists(mount.done, name):
            return False  # a second look finds the job: it has not gone on, and would be lost without the intent
        elif job_id is None or name.endswith(f"-{stream}-{job_id}"):
            if fault and job_id is not None and self._undo_retry(name):
                _log.error("the retry of job %s is undone, the job cannot be read any more: %s", job_id, fault)
            else:
                self._close_intent(name, job_id)
        return False

    def _intended(self, name: str) -> str | None:
        """The job that the record in an intent speaks of; None when it can never be read."""
        try:
            return _job_of(self._read_record(self._mount.intents, name))
        except DecodingFailed:
            return None

    def _undo_retry(self, name: str) -> bool:
        """The old end becomes that of a file which cannot be read; False when that has one."""
        mount, signal = self._mount, layout.quarantine_signal_filename(name)
        if mount.exists(mount.done, signal):
            return False
        mount.ops.move(mount.intents, name, mount.done, signal)
        mount.sync_folder(mount.done)
        return True

    # -- prune

    def prune(
        self,
        older_than: float,
        limit: int | None,
        stream: str | None,
        lease: Lease | None,
        statuses: Collection[ObservationStatus] | None = None,
    ) -> int:
        """Remove the records of jobs that ended more than `older_than` seconds ago, at most `limit`.

        A few that cannot be removed now keep no others from it; the first error is raised in the end.
        """
        mount = self._mount
        horizon = now_ms() - int(older_than * 1000)
        pruned, gone, failures = 0, list[str](), list[QueueError]()
        for name in self._old_names(horizon, stream):
            if (limit is not None and pruned >= limit) or len(failures) == _MOST_FAILURES:
                break
            try:
                pruned += self._prune_one(name, horizon, stream, lease, statuses)
            except FileNotFoundError:
                gone.append(name)  # somebody else was faster
            except LeaseLost:
                raise
            except QueueError as error:
                failures.append(error)
        if pruned:
            with as_write_failed("done/"):
                mount.sync_folder(mount.done)
        if failures:
            raise failures[0]
        if gone and not set(gone).isdisjoint(mount.names(mount.done)):
            raise BackendUnavailable("a folder of the queue was removed while it was pruned")
        return pruned

    def _old_names(self, horizon: int, stream: str | None) -> Iterator[str]:
        """Names in done/ of jobs sent before the horizon, oldest first: none can have ended before it was sent."""
        mount = self._mount
        for name in sorted(mount.names(mount.done)):
            if name.endswith(layout.SIGNAL) or layout.tail(name) is None:
                continue
            if layout.physical_time(name) <= horizon and self._ownership.belongs(mount.done, name, stream):
                yield name

    def _prune_one(
        self,
        name: str,
        horizon: int,
        stream: str | None,
        lease: Lease | None,
        statuses: Collection[ObservationStatus] | None,
    ) -> bool:
        mount = self._mount
        stream = stream or self._ownership.stream_of(mount.done, name)
        with mount.acting(stream, lease):
            signal, ended_ms, job_id, status = self._end_of(name)
            if (ended_ms is not None and ended_ms > horizon) or (statuses is not None and status not in statuses):
                return False
            if ended_ms is None and mount.exists(mount.intents, name):
                return False  # a retry was cut off: it will run again
            with as_write_failed(name):
                if job_id is not None:
                    self._close_intent(name, job_id)
                if ended_ms is not None:
                    mount.ops.unlink(mount.done, signal)
                mount.ops.unlink(mount.done, name)
                if job_id is not None:
                    with contextlib.suppress(FileNotFoundError):
                        mount.ops.unlink(mount.dossiers, layout.dossier_filename(job_id))
        return True

    def _end_of(self, name: str) -> tuple[str, int | None, str | None, ObservationStatus]:
        """The signal of a file in done/, when it ended (None: no signal), the job's id (None: quarantined), and how.

        Raises `FileNotFoundError` when the file is gone.
        """
        mount = self._mount
        try:
            job = mount.look_into(mount.done, name)
            if job is None:
                raise FileNotFoundError(name)
            job_id: str | None = job.id
            signal = layout.signal_filename(job.id)
        except DecodingFailed:
            job_id, signal = None, layout.quarantine_signal_filename(name)
        try:
            end = decode_signal(self._read_record(mount.done, signal))
            return signal, end.completed_at.physical_time, job_id, end.status
        except FileNotFoundError:
            return signal, None, job_id, ObservationStatus.BLOCKED
        except DecodingFailed:
            return signal, layout.physical_time(name), job_id, ObservationStatus.BLOCKED

    # -- shared

    @contextlib.contextmanager
    def _holding(self, job_id: str, folder: int, file: str, name: str) -> Iterator[None]:
        """The lock of the job's stream, with the job still where it was found."""
        mount = self._mount
        with mount.lock(self._ownership.stream_of(folder, file, job_name=name)):
            if not mount.exists(folder, file):
                raise JobNotFound(job_id, _MOVED_ON)
            yield


def _job_of(record: bytes) -> str | None:
    """The id of the job whose end this is; None when it is the record of none."""
    try:
        return decode_signal(record).job_id
    except DecodingFailed:
        return None
