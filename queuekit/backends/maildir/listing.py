"""Every job of a maildir that a person asks for, in every state, read without touching or locking anything.

Jobs move while they are read: one that has just moved may be missing or come twice. What cannot be read as a job is
left out, unless a drain has put it aside in done/ for that (`PutAside`).
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Collection, Iterable, Iterator

from queuekit.backends.maildir import layout
from queuekit.backends.maildir.census import Census
from queuekit.backends.maildir.mount import Mount
from queuekit.backends.maildir.settle import Settler
from queuekit.completion import SignalFile
from queuekit.contract import JobView, PutAside
from queuekit.errors import BackendUnavailable, DecodingFailed
from queuekit.job import Job
from queuekit.lifecycle import State
from queuekit.status import ObservationStatus
from queuekit.wire import decode_signal

_FOLDERS = {  # in the order of a job's life
    layout.LATER: State.LATER,
    layout.NEW: State.NEW,
    layout.CLAIM: State.CUR,
    layout.CUR: State.CUR,
    layout.DONE: State.DONE,
}
_SIGNAL_BYTES = 2**20
_NAMES_SHARE, _OTHERS_SHARE = 10, 50


class Listing:
    """What a person sees of one mount. Its folders are asked for anew at each step: a closed mount ends a listing."""

    def __init__(self, mount: Mount, census: Census, settler: Settler) -> None:
        self._mount = mount
        self._census = census
        self._settler = settler

    def jobs(self, states: Collection[State], stream: str | None) -> Iterator[JobView | PutAside]:
        """The jobs in these states, in the order of the contract; each file is read when it is asked for."""
        for folder, state in _FOLDERS.items():
            if state not in states:
                continue
            for file, name in self._named(folder, stream):
                job = self._read(folder, file, name)
                if job is not None and stream in {None, job.stream_id}:
                    yield self._view(state, file, job)
                elif job is None and state is State.DONE and (aside := self._put_aside(file)) is not None:
                    yield aside

    def blocked_counts(self, at_most: int) -> dict[str, int]:
        """How many jobs of each stream ended `blocked`, as far as a bounded look tells.

        Whoever blocks a job leaves a dossier with it: those are looked for among ten times `at_most` names, and read;
        of the other ends a few are read, so that all are in a small store.
        """
        dossiers = set(itertools.islice(self._names_in(self._mount.dossiers), at_most))
        counts = collections.Counter[str]()
        told, others = list[str](), list[str]()
        for name in itertools.islice(self._names_in(self._mount.done), _NAMES_SHARE * at_most):
            if name.endswith(layout.SIGNAL):
                aside = name.removesuffix(layout.SIGNAL)
                if layout.tail(aside) is not None:
                    counts[layout.clear_stream(aside) or ""] += 1
            elif _has_one(name, dossiers):
                told.append(name)
            elif len(others) < at_most // _OTHERS_SHARE:
                others.append(name)
        for name in itertools.islice(itertools.chain(told, others), at_most):
            stream, job_id = self._stated(name)
            if job_id and _is_blocked(self._census.signal(job_id)):
                counts[stream] += 1
        return dict(counts)

    def ids_beginning(self, typed: str) -> list[str]:
        """The ids that begin so: at their names' word where that is clear, else as the file says."""
        found = {id for folder in _FOLDERS for id in self._ids(folder, typed) if id.startswith(typed)}
        return sorted(found)

    def put_aside(self, typed: str) -> PutAside | None:
        """What was put aside under this name, or with this id at the end of its name."""
        names = self._mount.names(self._mount.done)
        meant = [each for each in names if each == typed or each.endswith(f"-{typed}")]
        return next((each for name in meant if (each := self._put_aside(name)) is not None), None)

    # -- one folder

    def _fd(self, folder: str) -> int:
        return int(getattr(self._mount, folder))

    def _named(self, folder: str, stream: str | None) -> list[tuple[str, str]]:
        """`(file name, job file name)` of what may be the stream's, in order."""
        files = self._mount.names(self._fd(folder))
        found = [(file, name) for file in files if (name := _plain_name(folder, file)) is not None]
        found = [each for each in found if stream is None or layout.suggests(each[1], stream)]
        return sorted(found, reverse=folder == layout.DONE)

    def _names_in(self, folder: int) -> Iterator[str]:
        """The names in a folder, in no order, as they are read."""
        try:
            for entry in self._mount.ops.entries(folder):
                yield entry.name
        except OSError as error:
            raise BackendUnavailable(f"cannot list the jobs that have ended: {error.strerror}") from error

    def _stated(self, name: str) -> tuple[str, str]:
        """The stream and the id of a job in done/: at its name's word where that is clear; "" twice when it is gone."""
        stream = layout.clear_stream(name)
        if stream is not None:
            return stream, name[-32:]
        job = self._read(layout.DONE, name, name)
        return (job.stream_id, job.id) if job is not None else ("", "")

    def _ids(self, folder: str, typed: str) -> Iterable[str]:
        for file in self._mount.names(self._fd(folder)):
            name = _plain_name(folder, file) if f"-{typed}" in file else None
            if name is None:
                continue
            if layout.clear_stream(name) is not None:
                yield name[-32:]
            elif (job := self._read(folder, file, name)) is not None:
                yield job.id

    # -- one file

    def _read(self, folder: str, file: str, name: str) -> Job | None:
        """The job in a file; None when it has moved on, or is no job."""
        try:
            return self._mount.read_job(self._fd(folder), file, name)[0]
        except (DecodingFailed, OSError):
            return None

    def _view(self, state: State, file: str, job: Job) -> JobView:
        split = layout.split_later(file) if state is State.LATER else None
        signal = self._census.signal(job.id) if state is State.DONE else None
        blocked = signal is not None and signal.status is ObservationStatus.BLOCKED
        return JobView(
            job=job,
            state=state,
            due_ms=split[0] if split else None,
            retry=bool(split and split[1]),
            signal=signal,
            dossier=self._settler.dossier(job.id) if blocked else None,
        )

    def _put_aside(self, file: str) -> PutAside | None:
        """What the quarantine's signal says of a file; None when there is none: somebody else left it."""
        mount = self._mount
        try:
            data, _ = mount.ops.read(mount.done, layout.quarantine_signal_filename(file), _SIGNAL_BYTES)
            ended_ms = decode_signal(data).completed_at.physical_time
            size = mount.ops.stat(mount.done, file).st_size
        except (DecodingFailed, OSError):
            return None
        return PutAside(name=file, stream=layout.clear_stream(file) or "", ended_ms=ended_ms, size=size)


def _plain_name(folder: str, file: str) -> str | None:
    """The job file name of a file in a folder; None when it cannot be a job's."""
    name: str | None = file
    if folder == layout.LATER:
        split = layout.split_later(file)
        name = split[2] if split else None
    elif folder == layout.CLAIM:
        name = layout.split_claim(file)
    return name if name is not None and layout.tail(name) is not None else None


def _has_one(name: str, dossiers: Collection[str]) -> bool:
    """Whether one of these may be the dossier of the job with this file name."""
    if not dossiers:
        return False
    if layout.dossier_filename(name[-32:]) in dossiers:
        return True
    if layout.clear_stream(name) is not None:
        return False
    rest = layout.tail(name) or ""
    ids = (rest[place + 1 :] for place, letter in enumerate(rest) if letter == "-")
    return any(layout.dossier_filename(job_id) in dossiers for job_id in ids)


def _is_blocked(signal: SignalFile | None) -> bool:
    return signal is not None and signal.status is ObservationStatus.BLOCKED
