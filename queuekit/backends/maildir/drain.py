"""Claiming: which pending names there are, and taking them by rename.

A claim is one rename from new/ to cur/ that replaces nothing; whose rename succeeds has the job. ENOENT means that
somebody else was faster. What is found afterwards is judged: a job that has ended already, or is already in flight, was
sent twice and its later copy is dropped without running; another stream's job goes back; what is no job is quarantined.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import stat
import threading
import time
from collections.abc import Iterator, Sequence

from queuekit.backends.claims import Claim, Claims
from queuekit.backends.complaints import Complaints, kind
from queuekit.backends.maildir import layout
from queuekit.backends.maildir.deferred import Deferred
from queuekit.backends.maildir.lookahead import Lookahead
from queuekit.backends.maildir.mount import Mount
from queuekit.backends.maildir.ownership import Owner, Ownership
from queuekit.backends.maildir.quarantine import Quarantine
from queuekit.contract import Lease
from queuekit.errors import BackendUnavailable, DecodingFailed, LeaseLost, QueueError, RenameFailed
from queuekit.ids import SessionID
from queuekit.job import Claimed, Job
from queuekit.lease import DrainLease, leased_streams

_log = logging.getLogger("queuekit.maildir")
_REMEMBERED = 100_000
_LISTING_SHARE = 4  # a listing that took t seconds is not repeated before 4 t have passed
_CHEAP_LISTING_SECONDS = 0.02
_MOST_FAILURES = 8  # so many files in one drain that cannot be claimed are passed over


@dataclasses.dataclass(frozen=True, slots=True)
class _Call:
    """One call of drain: for which stream (None: all), as which session, under which lease."""

    stream: str | None
    session: SessionID
    lease: Lease | None


class Drainer:
    """The claiming side of one mount."""

    def __init__(
        self, mount: Mount, claims: Claims, ownership: Ownership, deferred: Deferred, quarantine: Quarantine
    ) -> None:
        self._mount = mount
        self._ownership = ownership
        self._claims = claims
        self._deferred = deferred
        self._quarantine = quarantine
        self._ahead: dict[str | None, Lookahead] = {}
        self._listed: dict[str | None, tuple[float, float]] = {}
        self._looks: dict[str, DrainLease] = {}
        self._odd: set[str] = set()
        self._complaints = Complaints(_log)
        self._folders_doubted = False
        self._guard = threading.RLock()

    def drain(self, stream: str | None, limit: int | None, lease: Lease | None) -> list[Claimed]:
        """Claim up to `limit` jobs, of one stream or of all, in HLC order."""
        if lease is None:
            self._refuse_leased(stream)
        elif stream is None or lease.stream != stream:
            raise LeaseLost(stream or "(all)", f"a lease of stream {lease.stream!r} was given")
        else:
            self._refuse_lost(lease)
        with self._guard:
            if lease is None and self._claims.has_grown:
                self._review_claims()
            try:
                promoted, failure = self._deferred.promote_due(stream, lease)
                self.hint(promoted)
                claimed, error = self._claim_up_to(limit, stream, lease)
            except LeaseLost as lost:
                self._claims.drop_stream(lost.stream)
                raise
        failure = error or failure
        if failure and not claimed:
            raise failure
        if failure:
            self._complaints.say(kind(failure), "a drain was not complete: %s", failure)
        claimed.sort(key=lambda each: each.job.submitted_at)
        return claimed

    def hint(self, names: Sequence[str]) -> None:
        """Names that have just arrived in new/."""
        with self._guard:
            for stream, ahead in self._ahead.items():
                for name in names:
                    if self._ownership.may_be(name, stream):
                        ahead.add(name)

    def look_again(self) -> None:
        """Let the next drain list new/, whatever is known, in the folders that are at their paths by then."""
        with self._guard:
            self._listed.clear()
            self.doubt_folders()
            for ahead in self._ahead.values():
                ahead.doubt()

    def doubt_folders(self) -> None:
        """Let the next listing be of the folders that are at their paths by then."""
        self._folders_doubted = True

    # -- names

    def _refuse_leased(self, stream: str | None) -> None:
        mount = self._mount
        for each in leased_streams(mount.root) if stream is None else [stream]:
            lease = self._looks.get(each)
            if lease is None:  # kept: whether a lease is stale can take several looks to tell
                lease = self._looks.setdefault(each, DrainLease(mount.root, each, "look"))
            if lease.is_held_by_other():
                raise LeaseLost(each, lease.holder())

    def _refuse_lost(self, lease: Lease) -> None:
        """A look without the lock: a claim may still land just after a take-over, but not long after."""
        try:
            lease.verify()
        except LeaseLost:
            self._claims.drop_stream(lease.stream)
            raise

    def _claim_up_to(
        self, limit: int | None, stream: str | None, lease: Lease | None
    ) -> tuple[list[Claimed], QueueError | None]:
        """Claim until there are so many. A file that cannot be claimed now is passed over: it may block no other."""
        call, wanted = _Call(stream, SessionID.mint(), lease), float("inf") if limit is None else limit
        claimed: list[Claimed] = []
        failed: list[tuple[str, QueueError]] = []
        if wanted <= 0:
            return [], None
        try:
            for name in self._names(stream):
                try:
                    job = self._claim(name, call)
                except LeaseLost:
                    raise
                except (QueueError, OSError) as error:
                    failed.append((name, _as_queue_error(name, error)))
                    job = None
                if job is not None:
                    claimed.append(Claimed(job=job, session_id=call.session))
                if len(claimed) >= wanted or len(failed) == _MOST_FAILURES:
                    break
        except LeaseLost:
            raise
        except QueueError as error:
            failed.append(("", error))
        for name, _ in failed:
            if name:
                self._ahead[stream].put_back(name)
        return claimed, failed[0][1] if failed else None

    def _names(self, stream: str | None) -> Iterator[str]:
        """Pending names, oldest first; new/ is listed when nothing more is known and there may be more."""
        ahead = self._ahead.setdefault(stream, Lookahead())
        listed = False
        while True:
            yield from ahead.take()
            if not ahead.more and (listed or not self._may_list(stream)):
                return
            self._list(stream, ahead)
            listed = True
            if not len(ahead):
                return

    def _may_list(self, stream: str | None) -> bool:
        """Whether a look for what nobody has told of is cheap enough; what must be there is always looked for."""
        ended, took = self._listed.get(stream, (float("-inf"), 0.0))
        return took < _CHEAP_LISTING_SECONDS or time.monotonic() - ended >= _LISTING_SHARE * took

    def _list(self, stream: str | None, ahead: Lookahead) -> None:
        begun = time.monotonic()
        mount = self._mount
        try:
            if self._folders_doubted:
                mount.heal()
                self._folders_doubted = False
            else:
                mount.heal_if_gone(mount.new, mount.cur)
            ahead.refill(self._claimable(stream, ahead))
        except OSError as error:
            raise BackendUnavailable(f"cannot list new/: {error.strerror}") from error
        ended = time.monotonic()
        self._listed[stream] = (ended, ended - begun)

    def _claimable(self, stream: str | None, ahead: Lookahead) -> Iterator[str]:
        """The names in new/ that a claim is worth trying on; what is no job by its looks is mentioned once.

        Of a long backlog most names are too young to be kept, and are not looked at: a listing takes half the time.
        """
        for entry in self._mount.ops.entries(self._mount.new):
            name = entry.name
            if name > ahead.horizon:
                continue
            if self._ownership.may_be(name, stream):
                if entry.is_file(follow_symlinks=False):
                    yield name
                else:
                    self._ignore(name, "it is not a regular file")
            elif layout.tail(name) is None:
                self._ignore(name, "its name is not a job's")

    def _ignore(self, name: str, reason: str) -> None:
        if name not in self._odd and len(self._odd) < _REMEMBERED:
            self._odd.add(name)
            _log.warning("ignored %r in new/: %s", name, reason)

    def _review_claims(self) -> None:
        """Forget claims that somebody else has settled long ago."""
        mount = self._mount
        for claim in self._claims.long_gone(set(mount.names(mount.cur))):
            if not mount.exists(mount.cur, claim.name):
                self._claims.drop(claim)
        self._claims.reviewed()

    # -- taking one

    def _claim(self, name: str, call: _Call) -> Job | None:
        """Take the job under this name in new/; None when it is gone, another stream's, a twin, or no job."""
        stream = call.stream
        owner = self._ownership.owner(self._mount.new, name, stream)
        if owner is Owner.GONE or (stream is not None and owner not in {stream, Owner.NOBODY}):
            return None
        owner = owner if isinstance(owner, str) else stream or ""
        if call.lease is None:  # a claim's receipt must be taken before anybody can move the job on
            with self._mount.lock(owner):
                return self._claim_of(name, owner, call)
        return self._claim_of(name, owner, call)

    def _claim_of(self, name: str, stream: str, call: _Call) -> Job | None:
        self._claims.taking = name
        try:
            if not self._take(name, stream):
                return None
            return self._look_at_taken(name, stream, call)
        finally:
            self._claims.taking = ""

    def _take(self, name: str, stream: str) -> bool:
        mount = self._mount
        try:
            mount.move_new(mount.new, name, mount.cur, name, stream)
        except FileNotFoundError:
            mount.heal_if_gone(mount.new, mount.cur)
            return False
        except FileExistsError:
            self._drop_pending_twin(name, stream)
            return False
        except OSError as error:
            raise RenameFailed(f"new/{name}", f"cur/{name}", error.strerror or str(error)) from error
        return True

    def _look_at_taken(self, name: str, stream: str, call: _Call) -> Job | None:
        """Judge what was just moved into cur/; it goes back when that cannot be told now."""
        mount = self._mount
        try:
            try:
                job, facts = mount.read_job(mount.cur, name)
            except FileNotFoundError:
                return None
            except OSError as error:
                raise mount.unreadable(mount.cur, name, error) from error
            return self._accept(name, stream, call, job, facts)
        except DecodingFailed as error:
            self._refuse(name, stream, error.reason, call.lease)
        except (QueueError, OSError):
            self._give_back(name, stream, call.lease)
            raise
        return None

    def _accept(self, name: str, stream: str, call: _Call, job: Job, facts: os.stat_result) -> Job | None:
        if job.stream_id != stream:
            self._ownership.learn(name, job.stream_id)
            self._give_back(name, job.stream_id, call.lease)
            if None in self._ahead:
                self._ahead[None].put_back(name)
            return None
        if self._has_ended(name, job) and self._drop_own_twin(name, job, call.lease):
            return None
        lease = call.lease
        self._claims.add(
            Claim(
                name=name,
                stream=stream,
                job_id=job.id,
                submitted_at=job.submitted_at,
                session=call.session,
                receipt=None if lease else facts.st_ctime_ns,
                fence=lease.fence if lease else 0,
                job=job if lease else None,
            )
        )
        return job

    def _refuse(self, name: str, stream: str, reason: str, lease: Lease | None) -> None:
        """What is no job: a file is put aside, anything else goes back to where it was."""
        mount = self._mount
        try:
            if stat.S_ISREG(mount.ops.stat(mount.cur, name).st_mode):
                self._quarantine.put_away(mount.cur, name, stream, reason, lease)
                return
        except FileNotFoundError:
            return
        except (QueueError, OSError):
            self._give_back(name, stream, lease)
            raise
        self._give_back(name, stream, lease)
        self._ignore(name, "it is not a regular file")

    def _give_back(self, name: str, stream: str, lease: Lease | None) -> None:
        """Undo a claim; `LeaseLost` when the file may be the next holder's claim by now. `stream`: the job's own."""
        mount = self._mount
        with mount.acting(stream, lease if lease is not None and lease.stream == stream else None):
            try:
                mount.move_over(mount.cur, name, mount.new, name)
            except FileNotFoundError:
                return  # brought home by somebody else
            except OSError as error:
                raise RenameFailed(f"cur/{name}", f"new/{name}", error.strerror or str(error)) from error

    # -- jobs that were sent twice

    def _has_ended(self, name: str, job: Job) -> bool:
        mount = self._mount
        return mount.exists(mount.done, name) and mount.exists(mount.done, layout.signal_filename(job.id))

    def _drop_own_twin(self, name: str, job: Job, lease: Lease | None) -> bool:
        mount = self._mount
        with mount.acting(job.stream_id, lease):
            if not self._has_ended(name, job):
                return False
            mount.ops.unlink(mount.cur, name)
        _log.info("dropped a second copy of job %s, which has ended", job.id)
        return True

    def _drop_pending_twin(self, name: str, stream: str) -> None:
        mount = self._mount
        with mount.lock(stream), contextlib.suppress(FileNotFoundError):
            if mount.exists(mount.cur, name):
                mount.ops.unlink(mount.new, name)
                _log.info("dropped a second copy of %r, which is in flight", name)


def _as_queue_error(name: str, error: QueueError | OSError) -> QueueError:
    if isinstance(error, QueueError):
        return error
    failure = BackendUnavailable(f"cannot claim {name}: {error.strerror}")
    failure.__cause__ = error
    return failure
