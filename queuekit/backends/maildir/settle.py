"""Ending, giving back and putting off what is in flight, and bringing home what a dead consumer left there.

Each act looks before it moves, under the stream's lock and with the lease checked there: a job that is not in cur/ any
more, or that somebody else has claimed since, is not touched, and no signal is written for it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from queuekit.backends.maildir import layout
from queuekit.backends.maildir.claims import Claim, Claims
from queuekit.backends.maildir.deferred import Deferred
from queuekit.backends.maildir.mount import Mount, as_write_failed
from queuekit.backends.maildir.ownership import Ownership
from queuekit.completion import ArtifactRef, Completion, SignalFile
from queuekit.contract import Lease
from queuekit.errors import DecodingFailed, JobNotFound, LeaseLost, WriteFailed
from queuekit.ids import JobID, SessionID, check_identifier
from queuekit.job import Claimed, Delivery, Job
from queuekit.status import ObservationStatus, check_terminal
from queuekit.wire import encode_job, encode_signal

_log = logging.getLogger("queuekit.maildir")
_TICK_SECONDS = 0.011  # the coarsest clock that kernels stamp files with


@dataclasses.dataclass(slots=True)
class _Reply:
    """One completion on its way: the job it is for, the signal's bytes, and where they wait."""

    completion: Completion
    claim: Claim
    data: bytes = b""
    staged: str = ""


class Settler:
    """The replying side of one mount."""

    def __init__(self, mount: Mount, claims: Claims, ownership: Ownership, deferred: Deferred) -> None:
        self._mount = mount
        self._claims = claims
        self._ownership = ownership
        self._deferred = deferred

    # -- complete

    def complete(self, completion: Completion, lease: Lease | None) -> None:
        """End one job; raises `JobNotFound` when it is not in flight, or not ours any more."""
        if not self.complete_all([completion], lease):
            raise JobNotFound(completion.job_id, "it is not in flight")

    def complete_all(self, completions: Sequence[Completion], lease: Lease | None) -> int:
        """End many; what is not in flight is skipped. Everything is checked before anything is touched."""
        checked = [_checked(each) for each in completions]
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
        with as_write_failed(f"the signals of {len(replies)} jobs"):
            for reply in replies:
                if reply.completion.dossier is not None:
                    self.keep_dossier(reply.claim.job_id, reply.completion.dossier)
                reply.data = self._signal(reply)
            for reply, staged in zip(replies, mount.stage_all([r.data for r in replies]), strict=True):
                reply.staged = staged
            ended: list[_Reply] = []
            try:
                with self._acting(stream, lease):
                    for reply in replies:
                        if mount.healed(lambda reply=reply: self._finish(reply, lease)):  # type: ignore[misc]
                            ended.append(reply)
            finally:
                mount.discard([reply.staged for reply in replies if reply.staged])
            for reply in ended:
                reply.claim.reply = (reply.completion, reply.data)
            if ended:
                mount.sync_folder(mount.done)
        for reply in ended:
            self._claims.drop(reply.claim)
        return len(ended)

    def _finish(self, reply: _Reply, lease: Lease | None) -> bool:
        """Signal into done/, then the job: only when the job is in cur/ and still ours. Under the stream's lock."""
        mount, claim = self._mount, reply.claim
        signal = layout.signal_filename(claim.job_id)
        if not self._in_flight_still(claim):
            if self._is_repeated(reply, signal):
                self._place(reply, signal)
                return True
            if lease is not None and claim.job is not None and self._is_nowhere(claim.name):
                self._write_again(claim.job, claim.name)
                self._place(reply, signal)
                mount.ops.move(mount.cur, claim.name, mount.done, claim.name)
                return True
            self._claims.drop(claim)
            _log.warning("dropped the outcome of job %s: it is not in flight here any more", claim.job_id)
            return False
        self._place(reply, signal)
        self._move_replacing(mount.cur, claim.name, mount.done, claim.name)
        return True

    def _place(self, reply: _Reply, signal: str) -> None:
        mount = self._mount
        mount.ops.move(mount.tmp, reply.staged, mount.done, signal)
        reply.staged = ""

    def _in_flight_still(self, claim: Claim) -> bool:
        mount = self._mount
        try:
            facts = mount.ops.stat(mount.cur, claim.name)
        except FileNotFoundError:
            if mount.heal_if_gone(mount.cur, mount.done):
                return mount.exists(mount.cur, claim.name)
            return False
        return claim.receipt is None or facts.st_ctime_ns == claim.receipt

    def _is_repeated(self, reply: _Reply, signal: str) -> bool:
        """Whether this reply has been here before and only its last sync failed."""
        mount, claim = self._mount, reply.claim
        if claim.reply is None or not mount.exists(mount.done, claim.name):
            return False
        try:
            return mount.ops.read(mount.done, signal, len(reply.data))[0] == reply.data
        except FileNotFoundError:
            return False

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
        staged = mount.stage_all([encode_job(job)])[0]
        mount.ops.move(mount.tmp, staged, mount.cur, name)

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
            if claim is not None and lease is not None and claim.fence != lease.fence:
                self._claims.drop(claim)  # claimed before the lease was lost and won again
            elif claim is not None:
                replies.append(_Reply(completion, claim))
            else:
                unknown.append(completion)
        if unknown:
            found = self._search({each.job_id for each in unknown}, stream)
            replies += [_Reply(each, found[each.job_id]) for each in unknown if each.job_id in found]
        return replies

    def _search(self, ids: set[str], stream: str | None) -> dict[str, Claim]:
        """Jobs in cur/ that this instance did not claim, by the id inside; the oldest where two have the same."""
        mount = self._mount
        found: dict[str, Claim] = {}
        lengths = {len(job_id) for job_id in ids}
        for name in sorted(mount.names(mount.cur)):
            if not any(name[-length:] in ids for length in lengths):
                continue
            with contextlib.suppress(DecodingFailed, FileNotFoundError):
                job, _ = mount.read_job(mount.cur, name)
                if job.id in ids and job.id not in found and stream in {None, job.stream_id}:
                    found[job.id] = _foreign_claim(name, job)
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
        mount = self._mount
        with mount.acting(lease.stream, lease):
            claim = self._search({job_id}, lease.stream).get(job_id)
            if claim is None or claim.job is None or claim.name in self._claims:
                return None
            if self._drop_ended_copy(claim.name, claim.job):
                return None
            session = SessionID.mint()
            self._claims.add(dataclasses.replace(claim, session=session, fence=lease.fence))
            return Claimed(job=claim.job, session_id=session)

    # -- release, defer

    def release(self, job_id: str, lease: Lease | None) -> str:
        """Give a job in flight back to new/; returns its name."""
        claim = self.find(job_id, lease)
        mount = self._mount
        with as_write_failed(claim.name), self._acting(claim.stream, lease):
            self._require_in_flight(claim)
            self._move_replacing(mount.cur, claim.name, mount.new, claim.name)
        self._claims.drop(claim)
        return claim.name

    def defer(self, job_id: str, due_ms: int, error: str, crashed: bool, lease: Lease | None) -> None:
        """Put a job in flight off, with one attempt more in its record."""
        claim = self.find(job_id, lease)
        mount = self._mount
        later = layout.later_filename(claim.name, due_ms, retry=True)
        with as_write_failed(claim.name):
            job = claim.job or mount.read_job(mount.cur, claim.name)[0]
            changed = Delivery.of(job).failed(error, crashed=crashed).onto(job)
            staged = mount.stage_all([encode_job(changed)])[0]
            try:
                with self._acting(claim.stream, lease):
                    self._require_in_flight(claim)
                    mount.healed(lambda: mount.ops.move(mount.cur, claim.name, mount.later, later))
                    mount.ops.move(mount.tmp, staged, mount.later, later)
            except BaseException:
                mount.discard([staged])
                raise
            mount.sync_folder(mount.later)
        self._claims.drop(claim)
        self._deferred.note(later, due_ms)

    def _require_in_flight(self, claim: Claim) -> None:
        if not self._in_flight_still(claim):
            self._claims.drop(claim)
            raise JobNotFound(claim.job_id, "it is not in flight here any more")

    # -- reclaim

    def reclaim(self, stream: str, lease: Lease | None) -> list[str]:
        """Everything of the stream that is in flight goes back to new/; returns the names."""
        self._claims.drop_stream(stream)
        return self.rescue(stream, lease)

    def rescue(self, stream: str, lease: Lease | None) -> list[str]:
        """What is in flight and not claimed by this instance goes back to new/; returns the names."""
        mount = self._mount
        moved: list[str] = []
        found = [(mount.claim, file, name) for file, name in self._claim_files()]
        found += [(mount.cur, name, name) for name in mount.names(mount.cur) if name not in self._claims]
        mine = [each for each in sorted(found) if self._ownership.belongs(each[0], each[1], stream, job_name=each[2])]
        if mine and lease is None:
            time.sleep(_TICK_SECONDS)  # a receipt taken before must not fit a claim made afterwards
        with as_write_failed(f"jobs of stream {stream}"):
            for folder, file, name in mine:
                with mount.acting(stream, lease), contextlib.suppress(FileNotFoundError):
                    if name in self._claims or self._drop_ended(folder, file, name):
                        continue
                    self._move_replacing(folder, file, mount.new, name)
                    moved.append(name)
        return moved

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
            job, _ = mount.read_job(folder, file, name)
        except DecodingFailed:
            return False
        return self._drop_ended_copy(name, job, folder, file)

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

    def _move_replacing(self, source: int, name: str, target: int, new_name: str) -> None:
        """Rename over whatever is there; two names of one file (which a rename leaves alone) become one."""
        mount = self._mount
        mount.ops.move(source, name, target, new_name)
        if mount.exists(source, name):
            mount.ops.unlink(source, name)

    def keep_dossier(self, job_id: str, facts: Mapping[str, Any]) -> None:
        """Add facts to what is known of a job, durably."""
        mount = self._mount
        name = layout.dossier_filename(job_id)
        dossier = {**(self.dossier(job_id) or {}), **facts}
        data = json.dumps(dossier, sort_keys=True, ensure_ascii=False, default=str).encode(errors="backslashreplace")
        staged = mount.stage(data, sync=True)
        mount.ops.move(mount.tmp, staged, mount.dossiers, name)
        mount.sync_folder(mount.dossiers)

    def dossier(self, job_id: str) -> dict[str, Any] | None:
        """What has been kept about a job; None when nothing (readable) was."""
        try:
            data, _ = self._mount.ops.read(self._mount.dossiers, layout.dossier_filename(job_id), 2**20)
            dossier = json.loads(data)
        except (OSError, ValueError):
            return None
        return dossier if isinstance(dossier, dict) else None


def _checked(completion: Completion) -> Completion:
    check_identifier(completion.job_id)
    status = check_terminal(completion.status)
    for artifact in completion.artifacts:
        if not isinstance(artifact, ArtifactRef):
            raise WriteFailed(f"the signal of job {completion.job_id}", f"{artifact!r} is no ArtifactRef")
    return dataclasses.replace(completion, status=status)


def _foreign_claim(name: str, job: Job) -> Claim:
    return Claim(
        name=name,
        stream=job.stream_id,
        job_id=job.id,
        submitted_at=job.submitted_at,
        session=SessionID(""),
        receipt=None,
        fence=0,
        job=job,
    )
