"""Ending, giving back and putting off what is in flight, and bringing home what a dead consumer left there.

Each act looks before it moves, under the stream's lock and with the lease checked there: a job that is not in cur/ any
more, or that somebody else has claimed since, is not touched, and no signal is written for it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from queuekit.backends.admission import checked_completion
from queuekit.backends.claims import Claim, Claims
from queuekit.backends.complaints import Complaints
from queuekit.backends.maildir import layout
from queuekit.backends.maildir.deferred import Deferred
from queuekit.backends.maildir.mount import Mount, as_write_failed
from queuekit.backends.maildir.ownership import Ownership
from queuekit.clock import Due
from queuekit.completion import Completion, SignalFile
from queuekit.contract import Lease
from queuekit.errors import BackendUnavailable, DecodingFailed, JobNotFound, LeaseLost, WriteFailed, system_error
from queuekit.ids import JobID, SessionID, check_identifier
from queuekit.job import Claimed, Delivery, Job
from queuekit.status import ObservationStatus, check_terminal
from queuekit.wire import encode_job, encode_signal

_log = logging.getLogger("queuekit.maildir")
_DOSSIER_BYTES = 2**24
_TICK_SECONDS = 0.011  # the coarsest clock that kernels stamp files with


@dataclasses.dataclass(slots=True)
class _Reply:
    """One completion on its way: the job it is for, its signal's bytes, and where signal and dossier wait in tmp/."""

    completion: Completion
    claim: Claim
    data: bytes = b""
    staged: str = ""
    dossier: str = ""


class Settler:
    """The replying side of one mount."""

    def __init__(self, mount: Mount, claims: Claims, ownership: Ownership, deferred: Deferred) -> None:
        self._mount = mount
        self._claims = claims
        self._ownership = ownership
        self._deferred = deferred
        self._complaints = Complaints(_log)

    # -- complete

    def complete(self, completion: Completion, lease: Lease | None) -> None:
        """End one job; raises `JobNotFound` when it is not in flight, or not ours any more."""
        if not self.complete_all([completion], lease):
            raise JobNotFound(completion.job_id, "it is not in flight")

    def complete_all(self, completions: Sequence[Completion], lease: Lease | None) -> int:
        """End many; what is not in flight is skipped. Everything is checked before anything is touched."""
        checked = [checked_completion(each) for each in completions]
        replies = self._locate(checked, lease)
        by_stream: dict[str, list[_Reply]] = {}
        for reply in replies:
            by_stream.setdefault(reply.claim.stream, []).append(reply)
        return sum(self._reply(stream, group, lease) for stream, group in by_stream.items())

    def complete_session(self, session: SessionID, status: ObservationStatus | str, lease: Lease | None) -> int:
        """End every job of one of this instance's drain calls that is not settled yet."""
        checked = check_terminal(status)
        claims = [claim for claim in self._claims.of_session(session) if lease is None or claim.stream == lease.stream]
        return self.complete_all([Completion(JobID(claim.job_id), checked) for claim in claims], lease)

    def _reply(self, stream: str, replies: list[_Reply], lease: Lease | None) -> int:
        mount = self._mount
        ended: list[_Reply] = []
        with as_write_failed(f"the signals of {len(replies)} jobs"):
            self._stage(replies)
            waiting = replies[::-1]
            try:
                with self._acting(stream, lease):
                    mount.healed(lambda: self._finish_all(waiting, ended, lease))
                if any(reply.completion.dossier is not None for reply in ended):
                    mount.sync_folder(mount.dossiers)
                if ended:
                    mount.sync_folder(mount.done)
            except BaseException:
                self._remember_foreign(ended)
                raise
            finally:
                mount.discard([staged for reply in replies for staged in (reply.staged, reply.dossier) if staged])
        self._claims.drop_all(reply.claim for reply in ended)
        return len(ended)

    def _stage(self, replies: list[_Reply]) -> None:
        """Write all signals and dossiers into tmp/, synced behind one barrier."""
        for reply in replies:
            reply.data = self._signal(reply)
        told = [reply for reply in replies if reply.completion.dossier is not None]
        contents = [reply.data for reply in replies]
        contents += [self._dossier_with(reply.claim.job_id, reply.completion.dossier or {}) for reply in told]
        staged = iter(self._mount.stage_all(contents))
        for reply in replies:
            reply.staged = next(staged)
        for reply in told:
            reply.dossier = next(staged)

    def _finish_all(self, waiting: list[_Reply], ended: list[_Reply], lease: Lease | None) -> None:
        """Finish all that wait, the last one first; each is taken off the list when that is settled."""
        while waiting:
            if self._finish(waiting[-1], lease):
                ended.append(waiting[-1])
            waiting.pop()

    def _finish(self, reply: _Reply, lease: Lease | None) -> bool:
        """Signal into done/, then the job: only when the job is in cur/ and still ours. Under the stream's lock."""
        mount, claim = self._mount, reply.claim
        facts = self._in_flight_still(claim)
        if facts is None:
            return self._finish_elsewhere(reply, lease)
        claim.reply = (reply.completion, reply.data)
        self._place(reply)
        mount.ops.move(mount.cur, claim.name, mount.done, claim.name)
        claim.moved = True
        if facts.st_nlink > 1 and mount.exists(mount.cur, claim.name):
            mount.ops.unlink(mount.cur, claim.name)  # both names were one file, and a rename leaves such alone
        return True

    def _finish_elsewhere(self, reply: _Reply, lease: Lease | None) -> bool:
        """The job is not in cur/ as we had it: it has ended by this very reply, has vanished, or is not ours."""
        claim = reply.claim
        if self._is_repeated(reply):
            self._place(reply)
            return True
        if lease is not None and claim.job is not None and not claim.moved and self._is_nowhere(claim.name):
            self._write_again(claim.job, claim.name)
            return self._finish(reply, lease)
        self._claims.lose(claim)
        _log.warning("dropped the outcome of job %s: it is not in flight here any more", claim.job_id)
        return False

    def _place(self, reply: _Reply) -> None:
        """Dossier and signal to where they belong; a step that is done already is not done twice."""
        mount, job_id = self._mount, reply.claim.job_id
        if reply.dossier:
            mount.ops.move(mount.tmp, reply.dossier, mount.dossiers, layout.dossier_filename(job_id))
            reply.dossier = ""
        if reply.staged:
            mount.ops.move(mount.tmp, reply.staged, mount.done, layout.signal_filename(job_id))
            reply.staged = ""

    def _remember_foreign(self, ended: list[_Reply]) -> None:
        """A reply to what another instance had claimed was not acknowledged: know it again when it is repeated."""
        for reply in ended:
            if reply.claim.name not in self._claims:
                self._claims.add(reply.claim)

    def _in_flight_still(self, claim: Claim) -> os.stat_result | None:
        """The facts of its file in cur/ while the claim holds; None when it does not."""
        if claim.moved:
            return None
        mount = self._mount
        try:
            facts = mount.ops.stat(mount.cur, claim.name)
        except FileNotFoundError:
            mount.heal_if_gone(mount.cur, mount.done)
            if not mount.exists(mount.cur, claim.name):  # the second look
                return None
            facts = mount.ops.stat(mount.cur, claim.name)
        return facts if claim.receipt is None or facts.st_ctime_ns == claim.receipt else None

    def _is_repeated(self, reply: _Reply) -> bool:
        """Whether this reply has been here before and was not acknowledged, as when its last sync failed."""
        mount, claim = self._mount, reply.claim
        if claim.reply is None or not mount.exists(mount.done, claim.name):
            return False
        try:
            signal = mount.ops.read(mount.done, layout.signal_filename(claim.job_id), len(reply.data))[0]
        except FileNotFoundError:
            return False
        return signal == reply.data

    def _is_nowhere(self, name: str) -> bool:
        """Whether two looks find the job in no folder at all."""
        mount = self._mount
        for _ in range(2):
            if any(mount.exists(folder, name) for folder in (mount.new, mount.cur, mount.done)):
                return False
            if any(each.endswith(f"-{name}") for folder in (mount.later, mount.claim) for each in mount.names(folder)):
                return False
        return True

    def _write_again(self, job: Job, name: str) -> None:
        mount = self._mount
        _log.error("job %s vanished from the queue while it was in flight: it is written again from memory", job.id)
        mount.replace(mount.cur, name, encode_job(job))

    def _signal(self, reply: _Reply) -> bytes:
        claim, completion = reply.claim, reply.completion
        if claim.reply is not None and claim.reply[0] == completion:
            return claim.reply[1]
        return encode_signal(
            SignalFile(
                job_id=JobID(claim.job_id),
                status=ObservationStatus(completion.status),
                completed_at=self._mount.clock.receive(claim.submitted_at),
                artifacts=tuple(completion.artifacts),
            )
        )

    # -- finding what is in flight

    def _locate(self, completions: Sequence[Completion], lease: Lease | None) -> list[_Reply]:
        """The claims that the replies are for: from the book, else by one look through cur/."""
        stream = lease.stream if lease else None
        replies, unknown = [], []
        for completion in completions:
            claim = self._claims.find(completion.job_id, stream)
            if claim is None:
                unknown.append(completion)
            elif lease is not None and claim.fence != lease.fence:
                self._claims.drop(claim)  # claimed before the lease was lost and won again
            elif lease is None or not claim.lost:  # without a lease the receipt is asked again
                replies.append(_Reply(completion, claim))
        if unknown:
            found = self._search({each.job_id for each in unknown}, lease)
            replies += [_Reply(each, found[each.job_id]) for each in unknown if each.job_id in found]
        return replies

    def _search(self, ids: set[str], lease: Lease | None) -> dict[str, Claim]:
        """Jobs in cur/ that this instance did not claim, by the id inside; the oldest where two have the same."""
        mount = self._mount
        found: dict[str, Claim] = {}
        lengths = {len(job_id) for job_id in ids}
        for name in sorted(mount.names(mount.cur)):
            if self._claims.had(name) or not any(name[-length:] in ids for length in lengths):
                continue
            with contextlib.suppress(DecodingFailed):
                job = mount.look_into(mount.cur, name)
                if job and job.id in ids and job.id not in found and (lease is None or job.stream_id == lease.stream):
                    found[job.id] = _foreign_claim(name, job, lease)
        return found

    def find(self, job_id: str, lease: Lease | None) -> Claim:
        """The claim of one job in flight; raises `JobNotFound`."""
        check_identifier(job_id)
        located = self._locate([Completion(JobID(job_id), ObservationStatus.DONE)], lease)
        if not located:
            raise JobNotFound(job_id, "it is not in flight")
        return located[0].claim

    def adopt(self, job_id: str, lease: Lease) -> Claimed | None:
        """Take over a job of the lease's stream that a dead consumer left in cur/; None when it is not there."""
        with self._acting(lease.stream, lease):
            claim = self._search({job_id}, lease).get(job_id)
            if claim is None or claim.job is None:
                return None
            if self._drop_ended_copy(claim.name, claim.job):
                return None
            session = SessionID.mint()
            self._claims.add(dataclasses.replace(claim, session=session))
            return Claimed(job=claim.job, session_id=session)

    # -- release, defer

    def release(self, job_id: str, lease: Lease | None) -> str:
        """Give a job in flight back to new/; returns its name."""
        claim = self.find(job_id, lease)
        mount = self._mount
        with as_write_failed(claim.name), self._acting(claim.stream, lease):
            self._require_in_flight(claim)
            mount.move_over(mount.cur, claim.name, mount.new, claim.name)
        self._claims.drop(claim)
        return claim.name

    def defer(self, job_id: str, due_ms: int, error: str, crashed: bool, lease: Lease | None) -> None:
        """Put a job in flight off, with one attempt more in its record.

        Raises `WriteFailed` without a cause when that can never be, for its name or its content; it stays in flight.
        """
        claim = self.find(job_id, lease)
        if claim.due is None or claim.due.at_ms != due_ms:  # else it is tried again, and the delay has begun before
            claim.due = Due.by(due_ms)
        mount, due = self._mount, claim.due
        with as_write_failed(claim.name):
            later, data = claim.deferral or self._deferral(claim, due_ms, error, crashed, lease)
            staged = mount.stage_all([data])[0]
            try:
                with self._acting(claim.stream, lease):
                    if claim.deferral is None or not mount.exists(mount.later, later):
                        self._require_in_flight(claim)
                        mount.move_over(mount.cur, claim.name, mount.later, later)
                    claim.deferral, claim.moved = (later, data), True
                    mount.ops.move(mount.tmp, staged, mount.later, later)
            except BaseException:
                mount.discard([staged])
                raise
            mount.sync_folder(mount.later)
        self._claims.drop(claim)
        self._deferred.note(later, due)

    def _deferral(self, claim: Claim, due_ms: int, error: str, crashed: bool, lease: Lease | None) -> tuple[str, bytes]:
        """The job's name in later/ and its bytes there."""
        job = claim.job or self._mount.look_into(self._mount.cur, claim.name)
        if job is None:
            with self._acting(claim.stream, lease):  # that the lease is lost is the first thing to say
                raise JobNotFound(claim.job_id, "it is not in flight here any more")
        later = layout.later_filename(claim.name, due_ms, retry=True)
        if len(os.fsencode(later)) > layout.MAX_FILE_NAME:  # another port made it: ours are shorter
            raise WriteFailed(claim.name, "the name is too long to be put off: it may take 236 bytes")
        changed = Delivery.of(job).failed(error, crashed=crashed).onto(job)
        return later, encode_job(changed)

    def _require_in_flight(self, claim: Claim) -> None:
        if self._in_flight_still(claim) is None:
            self._claims.lose(claim)
            raise JobNotFound(claim.job_id, "it is not in flight here any more")

    # -- reclaim

    def reclaim(self, stream: str, lease: Lease | None) -> list[str]:
        """Everything of the stream that is in flight goes back to new/; returns the names."""
        self._claims.drop_stream(stream)
        return self.rescue(stream, lease)

    def rescue(self, stream: str, lease: Lease | None) -> list[str]:
        """What is in flight and not claimed by this instance goes back to new/; returns the names.

        A file that the disk does not give is said, and keeps no other from it: the next call tries again.
        """
        mount = self._mount
        moved: list[str] = []
        found = [(mount.claim, file, name) for file, name in self._claim_files()]
        found += [(mount.cur, name, name) for name in mount.names(mount.cur) if name not in self._claims]
        mine = [each for each in sorted(found) if self._is_to_rescue(*each, stream)]
        if mine and lease is None:
            time.sleep(_TICK_SECONDS)  # a receipt taken before must not fit a claim made afterwards
        with as_write_failed(f"jobs of stream {stream}"):
            for folder, file, name in mine:
                with self._acting(stream, lease), contextlib.suppress(FileNotFoundError):
                    if name in self._claims or self._drop_ended(folder, file, name):
                        continue
                    mount.move_over(folder, file, mount.new, name)
                    moved.append(name)
        return moved

    def _is_to_rescue(self, folder: int, file: str, name: str, stream: str) -> bool:
        try:
            return self._ownership.holds(folder, file, stream, job_name=name)
        except BackendUnavailable as error:
            cause = system_error(error)
            if cause is None or cause.errno != errno.EIO:
                raise
            message = "a job in flight stays where it is, the disk does not give it: %s"
            self._complaints.say(file, message, error)
            return False

    def _claim_files(self) -> Iterator[tuple[str, str]]:
        for file in self._mount.names(self._mount.claim):
            name = layout.split_claim(file)
            if name is not None:
                yield file, name

    def _drop_ended(self, folder: int, file: str, name: str) -> bool:
        mount = self._mount
        if not mount.exists(mount.done, name):
            return False
        try:
            job = mount.look_into(folder, file, name)
        except DecodingFailed:
            return False
        return job is not None and self._drop_ended_copy(name, job, folder, file)

    def _drop_ended_copy(self, name: str, job: Job, folder: int | None = None, file: str | None = None) -> bool:
        """Unlink a copy of a job that has ended: it was sent twice. Under the stream's lock."""
        mount = self._mount
        if not (mount.exists(mount.done, name) and mount.exists(mount.done, layout.signal_filename(job.id))):
            return False
        mount.ops.unlink(mount.cur if folder is None else folder, file or name)
        _log.info("dropped a second copy of job %s, which has ended", job.id)
        return True

    # -- shared

    @contextlib.contextmanager
    def _acting(self, stream: str, lease: Lease | None) -> Iterator[None]:
        try:
            with self._mount.acting(stream, lease):
                yield
        except LeaseLost:
            self._claims.drop_stream(stream)
            raise

    def keep_dossier(self, job_id: str, facts: Mapping[str, Any]) -> None:
        """Add facts to what is known of a job, durably."""
        mount = self._mount
        mount.replace(mount.dossiers, layout.dossier_filename(job_id), self._dossier_with(job_id, facts))
        mount.sync_folder(mount.dossiers)

    def _dossier_with(self, job_id: str, facts: Mapping[str, Any]) -> bytes:
        dossier = {**(self._read_dossier(job_id) or {}), **facts}
        return json.dumps(dossier, sort_keys=True, ensure_ascii=False, default=str).encode(errors="backslashreplace")

    def dossier(self, job_id: str) -> dict[str, Any] | None:
        """What has been kept about a job; None when nothing (readable) was."""
        try:
            return self._read_dossier(job_id)
        except OSError:
            return None

    def _read_dossier(self, job_id: str) -> dict[str, Any] | None:
        """The same, but an error of the disk is one: nothing may be written over what cannot be read now."""
        mount = self._mount
        try:
            dossier = json.loads(mount.ops.read(mount.dossiers, layout.dossier_filename(job_id), _DOSSIER_BYTES)[0])
        except (FileNotFoundError, ValueError, RecursionError):
            return None
        return dossier if isinstance(dossier, dict) else None


def _foreign_claim(name: str, job: Job, lease: Lease | None) -> Claim:
    return Claim(
        name=name,
        stream=job.stream_id,
        job_id=job.id,
        submitted_at=job.submitted_at,
        session=SessionID(""),
        receipt=None,
        fence=lease.fence if lease else 0,
        job=job,
    )
