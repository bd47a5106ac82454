"""Setting right what is surely right to be set right, each thing under its stream's lock and looked at again there.

No job's bytes are ever deleted: a later copy of a job goes only when the one that stays holds the same, and what is no
job goes to done/. A repair that finds the fault gone does nothing and says nothing.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
from collections.abc import Callable, Iterable, Iterator

from queuekit import lease as leases
from queuekit.backends.admission import DEFAULT_MAX_JOB_BYTES
from queuekit.backends.claims import Claims
from queuekit.backends.maildir import layout
from queuekit.backends.maildir.deferred import Deferred
from queuekit.backends.maildir.fsck import holders, jobs, records
from queuekit.backends.maildir.fsck.examine import PATIENCE_SECONDS
from queuekit.backends.maildir.fsck.finding import Finding, Repaired
from queuekit.backends.maildir.fsck.inventory import is_stale, number
from queuekit.backends.maildir.fsck.look import (
    FOLDERS,
    Look,
    Progress,
    content,
    facts_of,
    fd_of,
    guarded,
    plain,
    present,
    streams_of,
)
from queuekit.backends.maildir.fsops import FileOps
from queuekit.backends.maildir.keep import Keeper
from queuekit.backends.maildir.mount import Durability, Mount
from queuekit.backends.maildir.ownership import Ownership
from queuekit.backends.maildir.quarantine import Quarantine
from queuekit.backends.maildir.settle import Settler
from queuekit.clock import ProcessClock, now_ms
from queuekit.completion import SignalFile
from queuekit.errors import QueueError
from queuekit.ids import JobID
from queuekit.lease import DEFAULT_TTL
from queuekit.locks import remove_dead
from queuekit.status import ObservationStatus
from queuekit.wire import encode_signal

_ATTRIBUTES = {folder: attribute for attribute, folder in FOLDERS.items()}
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
Did = str | None
"""What was done, in words; None when the fault was gone."""


def repair(
    root: str | os.PathLike[str],
    findings: Iterable[Finding],
    *,
    max_job_bytes: int = DEFAULT_MAX_JOB_BYTES,
    ttl: float = DEFAULT_TTL,
    patience: float = PATIENCE_SECONDS,
    progress: Progress | None = None,
) -> list[Repaired]:
    """Set right those of the findings that `examine` called repairable, and tell of each what was done.

    One that cannot be set right is told too, with the reason, and keeps no other from it. Raises
    `DirectoryCreationFailed` when the root cannot be used even after what can be done for it.
    """
    wanted = [each for each in findings if each.repairable]
    path = os.path.realpath(os.fspath(root))
    rest = [each for each in wanted if each.kind not in _BEFORE_MOUNT]
    done: list[Repaired] = []
    for each in wanted:
        if each.kind in _BEFORE_MOUNT:
            done += _attempt(each, functools.partial(_BEFORE_MOUNT[each.kind], path, each))
    if not rest:
        return done
    tools = _Tools(path, max_job_bytes, ttl, patience)
    try:
        for count, each in enumerate(rest):
            if progress is not None:
                progress("repairing", count, len(rest))
            done += _attempt(each, functools.partial(_MOUNTED[each.kind], tools, each))
    finally:
        tools.mount.close()
    return done


def _attempt(found: Finding, act: Callable[[], Did]) -> Iterator[Repaired]:
    try:
        did = act()
    except (QueueError, OSError) as error:
        yield Repaired(kind=found.kind, path=found.path, did=f"could not be repaired: {error}", done=False)
    else:
        if did is not None:
            yield Repaired(kind=found.kind, path=found.path, did=did)


# -- the root, its folders, tmp/: before it is mounted, which refuses some of this and sweeps the rest


def _close_root(root: str, found: Finding) -> Did:  # noqa: ARG001  all repairs are called alike
    mode = stat.S_IMODE(os.stat(root).st_mode)
    os.chmod(root, mode & ~stat.S_IWOTH)
    return f"others may not write the root any more (mode {mode & ~stat.S_IWOTH:04o})"


def _sweep(root: str, found: Finding) -> Did:
    look = Look(root, max_job_bytes=0, patience=0)
    try:
        swept = 0
        for name in look.names(look.tmp):
            facts = facts_of(look, layout.TMP, name)
            if facts is not None and is_stale(facts):
                with contextlib.suppress(FileNotFoundError):
                    look.ops.unlink(look.tmp, name)
                    swept += 1
        return f"removed {number(swept, 'file')} from {found.path}/" if swept else None
    finally:
        look.close()


_BEFORE_MOUNT: dict[str, Callable[[str, Finding], Did]] = {"root-open": _close_root, "tmp-stale": _sweep}


# -- the rest


class _Tools:
    """A mounted root and the parts of the backend that repairs use."""

    def __init__(self, root: str, max_job_bytes: int, ttl: float, patience: float) -> None:
        self.root = root
        self.ttl = ttl
        self.mount = Mount(
            root,
            ops=FileOps(),
            clock=ProcessClock(),
            durability=Durability.FULL,
            max_job_bytes=max_job_bytes,
            patience=patience,
        )
        ownership, claims = Ownership(self.mount), Claims()
        self.quarantine = Quarantine(self.mount)
        self.settler = Settler(self.mount, claims, ownership, Deferred(self.mount, ownership))
        self.keeper = Keeper(self.mount, ownership, self.settler)

    def make_folder(self, found: Finding) -> Did:
        """Mounting has made it."""
        return f"made {found.path}/" if os.path.isdir(os.path.join(self.root, found.path)) else None

    def narrow(self, found: Finding) -> Did:
        """Take the rights of group and others away from the files in a folder."""
        folder = fd_of(self.mount, _ATTRIBUTES[found.path])
        narrowed = sum(_narrow(name, folder) for name in self.mount.names(folder))
        return f"{number(narrowed, 'file')} in {found.path}/ can be read by the owner alone" if narrowed else None

    def narrow_folder(self, found: Finding) -> Did:
        """Take the rights of group and others away from a folder."""
        return f"{found.path}/ is its owner's alone" if _narrow(os.path.join(self.root, found.path), None) else None

    # -- jobs

    def put_aside(self, found: Finding) -> Did:
        """Move what is no job to done/. From later/ and claim/ it goes through new/, which gives it its plain name."""
        mount, (attribute, file) = self.mount, _place(found)
        with guarded(mount, attribute, file):
            kind, reason = jobs.judge(mount, (attribute, file))
            if kind not in {"not-a-job", "misnamed"} or not present(mount, attribute, file):
                return None
            if not jobs.is_free(mount, (attribute, file), self.ttl):
                return None
            name = plain(attribute, file) or file
            _narrow(file, fd_of(mount, attribute))
            stream = next(iter(streams_of(mount, attribute, file)), "")
            if attribute in {layout.LATER, layout.CLAIM}:
                mount.move_new(fd_of(mount, attribute), file, mount.new, name, stream)
                attribute = layout.NEW
            self.quarantine.put_away(fd_of(mount, attribute), name, stream, reason, None)
        return f"moved to done/ as {name!r}, with a `blocked` record"

    def bring_home(self, found: Finding) -> Did:
        """Make a job pending that is in claim/ under no claim's name."""
        mount, (attribute, file) = self.mount, _place(found)
        job = content(mount, attribute, file)
        if job is None:
            return None
        with mount.lock(job.stream_id):
            if not jobs.is_alone(mount, job):
                return None
            name = layout.check_job_name(job)
            _narrow(file, fd_of(mount, attribute))
            mount.move_new(fd_of(mount, attribute), file, mount.new, name, job.stream_id)
            mount.sync_folder(mount.new)
        return f"made {jobs.shown(job)} pending"

    def drop_twin(self, found: Finding) -> Did:
        """Unlink the later copies of a job, which hold the same as the one that stays."""
        mount, (attribute, file) = self.mount, _place(found)
        with guarded(mount, attribute, file):
            twins = jobs.twins_of(mount, plain(attribute, file) or file)
            if twins is None or not jobs.may_drop(mount, twins, self.ttl):
                return None
            for folder, name in twins.drop:
                with contextlib.suppress(FileNotFoundError):
                    mount.drop_copy(fd_of(mount, folder), name, fd_of(mount, twins.keep[0]))
        return f"dropped {number(len(twins.drop), 'later copy').replace('copys', 'copies')} of {jobs.shown(twins.job)}"

    # -- records

    def give_record(self, found: Finding) -> Did:
        """Write a `blocked` signal for a file in done/ that has none; its dossier says why."""
        mount, (_, name) = self.mount, _place(found)
        with guarded(mount, layout.DONE, name):
            job = records.job_in_done(mount, name)
            if not records.lacks_record(mount, name) or jobs.copies_of(mount, name):
                return None
            if job is not None:
                self._explain(job.id, "its record was missing")
            self._write_signal(name, records.record_name(job, name), job.id if job else _shown(name))
        return "has a `blocked` record now; `workerpool retry` runs it again"

    def replace_signal(self, found: Finding) -> Did:
        """Keep the bytes of a signal that cannot be read in the dossier, then write a `blocked` one in its place."""
        mount, (_, file) = self.mount, _place(found)
        job_id = file.removesuffix(layout.SIGNAL)
        located = self.keeper.locate(job_id)
        if located is None or located[1] != mount.done:
            return None
        name = located[2]
        with guarded(mount, layout.DONE, name):
            fault = records.signal_fault(mount, job_id)
            if fault is None or fault[0] != "signal-unreadable" or not present(mount, layout.DONE, name):
                return None
            data = mount.ops.read(mount.done, file, records.SIGNAL_BYTES)[0]
            self._explain(job_id, "its record could not be read", data.decode(errors="backslashreplace"))
            self._write_signal(name, file, job_id)
        return "kept in the dossier, and replaced by a `blocked` record; `workerpool retry` runs the job again"

    def _explain(self, job_id: str, why: str, record: str = "") -> None:
        earlier = (self.settler.dossier(job_id) or {}).get("earlier_ends", [])
        facts = {"ended": "unknown", "error": f"fsck: {why}, so nobody knows how it ended", "at_ms": now_ms()}
        kept = {"earlier_ends": [*earlier, record]} if record and isinstance(earlier, list) else {}
        self.settler.keep_dossier(job_id, {**facts, **kept})

    def _write_signal(self, name: str, signal_name: str, job_id: str) -> None:
        mount = self.mount
        job = records.job_in_done(mount, name)
        ended = mount.clock.receive(job.submitted_at) if job else mount.clock.send()
        signal = SignalFile(job_id=JobID(job_id), status=ObservationStatus.BLOCKED, completed_at=ended)
        mount.replace(mount.done, signal_name, encode_signal(signal))
        mount.sync_folder(mount.done)

    def finish_intent(self, found: Finding) -> Did:
        """Go on with a retry that was cut off."""
        mount, (_, name) = self.mount, _place(found)
        if not present(mount, "intents", name):
            return None
        pending: list[str] = []
        for stream in streams_of(mount, layout.DONE if present(mount, layout.DONE, name) else "intents", name):
            pending += self.keeper.finish_intents(stream, None)
        if present(mount, "intents", name):
            raise OSError(errno.EBUSY, "it is still there")
        return "the job is pending" if name in pending else "the old record is kept"

    # -- leases

    def remove_alive(self, found: Finding) -> Did:
        """Remove the proof of life of somebody dead."""
        owner = os.path.basename(found.path).removesuffix(".alive")
        path = os.path.join(self.root, leases.FOLDER, f"{owner}.alive")
        return "removed" if holders.is_dead(self.root, owner) and remove_dead(path) else None

    def remove_left_over(self, found: Finding) -> Did:
        """Remove a lease or counter that was never finished."""
        if not holders.left_over(self.root, found.path):
            return None
        os.unlink(os.path.join(self.root, found.path))
        return "removed"


_MOUNTED: dict[str, Callable[[_Tools, Finding], Did]] = {
    "folder-missing": _Tools.make_folder,
    "folder-wide": _Tools.narrow_folder,
    "mode-wide": _Tools.narrow,
    "not-a-job": _Tools.put_aside,
    "misnamed": _Tools.put_aside,
    "malformed-claim": _Tools.bring_home,
    "twin": _Tools.drop_twin,
    "no-record": _Tools.give_record,
    "signal-unreadable": _Tools.replace_signal,
    "intent-open": _Tools.finish_intent,
    "intent-unreadable": _Tools.finish_intent,
    "alive-dead": _Tools.remove_alive,
    "lease-left": _Tools.remove_left_over,
}


def _place(found: Finding) -> tuple[str, str]:
    folder, _, file = found.path.rpartition("/")
    return _ATTRIBUTES[folder], file


def _narrow(path: str, folder: int | None) -> bool:
    """Take all rights of group and others from our own file or folder; whether there were any."""
    fd = os.open(path, _READ, dir_fd=folder)
    try:
        facts = os.fstat(fd)
        if not facts.st_mode & 0o077 or facts.st_uid != os.geteuid():
            return False
        os.fchmod(fd, stat.S_IMODE(facts.st_mode) & 0o700)
        return True
    finally:
        os.close(fd)


def _shown(name: str) -> str:
    return name.encode(errors="backslashreplace").decode()
