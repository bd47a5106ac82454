"""Claiming: which pending names there are, and taking them by rename.

A claim is one rename from new/ to cur/ that replaces nothing; whose rename succeeds has the job. ENOENT means that
somebody else was faster. What is found afterwards is judged: a job that has ended already, or is already in flight, was
sent twice and its later copy is dropped without running; another stream's job goes back; what is no job is quarantined.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import stat
import threading
import time
from collections.abc import Iterator, Sequence

from queuekit.backends.maildir import layout
from queuekit.backends.maildir.claims import Claim, Claims
from queuekit.backends.maildir.deferred import Deferred
from queuekit.backends.maildir.lookahead import Lookahead
from queuekit.backends.maildir.mount import Mount
from queuekit.backends.maildir.ownership import Owner, Ownership
from queuekit.backends.maildir.quarantine import Quarantine
from queuekit.contract import Lease
from queuekit.errors import BackendUnavailable, DecodingFailed, LeaseLost, QueueError, RenameFailed
from queuekit.ids import SessionID
from queuekit.job import Claimed, Job
from queuekit.lease import DrainLease

_log = logging.getLogger("queuekit.maildir")
_REMEMBERED = 100_000
_LISTING_SHARE = 4  # a listing that took t seconds is not repeated before 4 t have passed
_CHEAP_LISTING_SECONDS = 0.02


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
        self._odd: set[str] = set()
        self._guard = threading.RLock()

    def drain(self, stream: str | None, limit: int | None, lease: Lease | None) -> list[Claimed]:
        """Claim up to `limit` jobs, of one stream or of all, in HLC order."""
        if lease is None:
            self._refuse_leased(stream)
        elif stream is None or lease.stream != stream:
            raise LeaseLost(stream or "(all)", f"a lease of stream {lease.stream!r} was given")
        with self._guard:
            for name in self._deferred.promote_due(stream, lease):
                self.hint([name])
            session = SessionID.mint()
            claimed: list[Claimed] = []
            try:
                for job in self._claim_names(stream, limit, session, lease):
                    claimed.append(Claimed(job=job, session_id=session))
            except QueueError as error:
                if not claimed:
                    raise
                _log.warning("a drain stopped early: %s", error)
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
        """Let the next drain list new/, whatever is known."""
        with self._guard:
            self._listed.clear()
            for ahead in self._ahead.values():
                ahead.more = True

    # -- names

    def _refuse_leased(self, stream: str | None) -> None:
        mount = self._mount
        leased = [stream] if stream is not None else sorted(self._leased_streams())
        for each in leased:
            lease = DrainLease(mount.root, each, "look")
            if lease.is_held_by_other():
                raise LeaseLost(each, lease.holder())

    def _leased_streams(self) -> set[str]:
        suffix = ".drain.lease"
        root = self._mount.ops.open_folder(self._mount.root)
        try:
            names = [entry.name for entry in self._mount.ops.entries(root)]
        finally:
            self._mount.ops.close(root)
        return {name.removesuffix(suffix) for name in names if name.endswith(suffix) and not name.startswith(".")}

    def _claim_names(
        self, stream: str | None, limit: int | None, session: SessionID, lease: Lease | None
    ) -> Iterator[Job]:
        wanted = limit if limit is not None else float("inf")
        taken = 0
        for name in self._names(stream):
            if taken >= wanted:
                self._ahead[stream].put_back(name)
                return
            job = self._claim(name, stream, session, lease)
            if job is not None:
                taken += 1
                yield job

    def _names(self, stream: str | None) -> Iterator[str]:
        """Pending names, oldest first; new/ is listed when nothing more is known and there may be more."""
        ahead = self._ahead.setdefault(stream, Lookahead())
        listed = False
        while True:
            yield from ahead.take()
            if (listed and not ahead.more) or not self._may_list(stream):
                return
            self._list(stream, ahead)
            listed = True
            if not len(ahead):
                return

    def _may_list(self, stream: str | None) -> bool:
        ended, took = self._listed.get(stream, (float("-inf"), 0.0))
        return took < _CHEAP_LISTING_SECONDS or time.monotonic() - ended >= _LISTING_SHARE * took

    def _list(self, stream: str | None, ahead: Lookahead) -> None:
        begun = time.monotonic()
        mount = self._mount
        try:
            mount.heal_if_gone(mount.new, mount.cur)
            ahead.refill(
                entry.name
                for entry in mount.ops.entries(mount.new)
                if self._ownership.may_be(entry.name, stream)
                and self._is_file(entry.name, entry.is_file(follow_symlinks=False))
            )
        except OSError as error:
            raise BackendUnavailable(f"cannot list new/: {error.strerror}") from error
        ended = time.monotonic()
        self._listed[stream] = (ended, ended - begun)

    def _is_file(self, name: str, regular: bool) -> bool:
        if not regular and name not in self._odd:
            self._remember(self._odd, name)
            _log.warning("ignored %r in new/: it is not a regular file", name)
        return regular

    # -- taking one

    def _claim(self, name: str, stream: str | None, session: SessionID, lease: Lease | None) -> Job | None:
        """Take the job under this name in new/; None when it is gone, another stream's, a twin, or no job."""
        owner = self._ownership.owner(self._mount.new, name, stream)
        if owner is Owner.GONE or (stream is not None and owner not in {stream, Owner.NOBODY}):
            return None
        owner = (stream or "") if owner is Owner.NOBODY else owner
        with self._own_lock(owner, lease):
            if not self._take(name, owner):
                return None
            return self._judge(name, stream, session, lease)

    def _own_lock(self, stream: str, lease: Lease | None) -> contextlib.AbstractContextManager[None]:
        """Without a lease a claim's receipt must be taken before anybody can move the job on."""
        return self._mount.lock(stream) if lease is None else contextlib.nullcontext()

    def _take(self, name: str, stream: str) -> bool:
        mount = self._mount
        try:
            try:
                mount.ops.move_new(mount.new, name, mount.cur, name)
            except NotImplementedError:
                with mount.lock(stream):
                    if mount.exists(mount.cur, name):
                        raise FileExistsError from None
                    mount.ops.move(mount.new, name, mount.cur, name)
        except FileNotFoundError:
            mount.heal_if_gone(mount.new, mount.cur)
            return False
        except FileExistsError:
            self._drop_pending_twin(name, stream)
            return False
        except OSError as error:
            self.hint([name])
            raise RenameFailed(f"new/{name}", f"cur/{name}", error.strerror or str(error)) from error
        return True

    def _judge(self, name: str, stream: str | None, session: SessionID, lease: Lease | None) -> Job | None:
        """What a file is that was just moved into cur/."""
        mount = self._mount
        try:
            job, facts = mount.read_job(mount.cur, name)
        except DecodingFailed as error:
            self._refuse(name, stream, error.reason, lease)
            return None
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in {errno.EACCES, errno.ELOOP, errno.ENXIO}:
                self._refuse(name, stream, error.strerror or "unreadable", lease)
                return None
            self._give_back(name, stream or "")
            raise BackendUnavailable(f"cannot read {name}: {error.strerror}") from error
        if stream is not None and job.stream_id != stream:
            self._ownership.learn(name, job.stream_id)
            self._give_back(name, job.stream_id)
            return None
        if self._has_ended(name, job) and self._drop_own_twin(name, job):
            return None
        self._claims.add(
            Claim(
                name=name,
                stream=job.stream_id,
                job_id=job.id,
                submitted_at=job.submitted_at,
                session=session,
                receipt=facts.st_ctime_ns if lease is None else None,
                fence=lease.fence if lease else 0,
                job=job if lease else None,
            )
        )
        return job

    def _refuse(self, name: str, stream: str | None, reason: str, lease: Lease | None) -> None:
        mount = self._mount
        owner = stream or layout.clear_stream(name) or ""
        if not stat.S_ISREG(mount.ops.stat(mount.cur, name).st_mode):
            self._give_back(name, owner)
            self._is_file(name, False)
            return
        self._quarantine.put_away(mount.cur, name, owner, reason, lease)

    def _give_back(self, name: str, stream: str) -> None:
        mount = self._mount
        with mount.lock(stream):
            try:
                mount.ops.move(mount.cur, name, mount.new, name)
            except OSError as error:
                raise RenameFailed(f"cur/{name}", f"new/{name}", error.strerror or str(error)) from error

    # -- jobs that were sent twice

    def _has_ended(self, name: str, job: Job) -> bool:
        mount = self._mount
        return mount.exists(mount.done, name) and mount.exists(mount.done, layout.signal_filename(job.id))

    def _drop_own_twin(self, name: str, job: Job) -> bool:
        mount = self._mount
        with mount.lock(job.stream_id):
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
                _log.info("dropped a second copy of %s, which is in flight", name)

    def _remember(self, names: set[str], name: str) -> None:
        if len(names) < _REMEMBERED:
            names.add(name)
