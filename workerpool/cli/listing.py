"""Every job of a maildir that a person asks for, in every state, read without touching or locking anything.

Jobs move while they are read: one that has just moved may be missing or come twice. What cannot be read as a job is
left out, unless a pool has put it aside in done/ for that (`PutAside`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Collection, Generator, Iterator
from typing import Any

from queuekit import BackendUnavailable, DecodingFailed, QueueKit
from queuekit.backends.maildir import layout
from queuekit.backends.maildir.fsops import FileOps
from queuekit.contract import JobView
from queuekit.job import Job
from queuekit.lifecycle import State
from queuekit.status import ObservationStatus
from queuekit.wire import decode_job, decode_signal
from workerpool.cli import words

FOLDERS = {  # in the order of a job's life
    layout.LATER: State.LATER,
    layout.NEW: State.NEW,
    layout.CLAIM: State.CUR,
    layout.CUR: State.CUR,
    layout.DONE: State.DONE,
}
_WORDS = {
    State.LATER: {"scheduled", "retrying"},
    State.NEW: {"pending"},
    State.CUR: {"running"},
    State.DONE: {*words.END_STATES, words.NO_RECORD},
}
_BLOCKED = ObservationStatus.BLOCKED
_RECORD_BYTES = 2**20


@dataclasses.dataclass(frozen=True, slots=True)
class PutAside:
    """A file in done/ that could not be read as a job. `stream`: as its name states it, "" when it does not clearly;
    `ended_ms`: when it was put aside; `size`: bytes."""

    name: str
    stream: str
    ended_ms: int
    size: int


def jobs_in(
    queue: QueueKit, root: str, max_job_bytes: int, wanted: Collection[str], stream: str | None
) -> Iterator[JobView | PutAside]:
    """The jobs in one of the states `wanted` (words), of one stream or of all; read as they are asked for.

    Those that have not ended come first, oldest first; then those that have, newest first, and with the blocked ones
    what was put aside. A blocked job has its dossier. Raises `BackendUnavailable` when a folder cannot be listed.
    """
    for folder, state in FOLDERS.items():
        if not _WORDS[state] & set(wanted):
            continue
        with contextlib.closing(_read(root, folder, max_job_bytes, stream)) as found:
            for file, job in found:
                view = _view(queue, root, state, file, job) if isinstance(job, Job) else job
                if _word(view) in wanted:
                    yield view


def put_aside(root: str, typed: str) -> PutAside | None:
    """What was put aside under this name, or with this id at the end of its name; None when nothing was."""
    path = os.path.join(root, layout.DONE)
    with _folder(path) as fd:
        if fd is None:
            return None
        names = [each for each in _listed(FileOps(), fd, layout.DONE) if each == typed or each.endswith(f"-{typed}")]
        return next((each for name in names if (each := _put_aside(FileOps(), fd, name)) is not None), None)


def plain_name(folder: str, file: str) -> str | None:
    """The job file name of a file in a folder; None when it cannot be a job's."""
    name: str | None = file
    if folder == layout.LATER:
        split = layout.split_later(file)
        name = split[2] if split else None
    elif folder == layout.CLAIM:
        name = layout.split_claim(file)
    return name if name is not None and layout.tail(name) is not None else None


# -- reading a folder


@contextlib.contextmanager
def _folder(path: str) -> Iterator[int | None]:
    """A descriptor of a folder; None when it is not there."""
    try:
        fd = FileOps().open_folder(path)
    except FileNotFoundError:
        yield None
        return
    except OSError as error:
        raise BackendUnavailable(f"cannot read {path}: {error.strerror}") from error
    try:
        yield fd
    finally:
        os.close(fd)


def _read(
    root: str, folder: str, max_job_bytes: int, stream: str | None
) -> Generator[tuple[str, Job | PutAside], None, None]:
    """`(file name, job)` of the readable jobs in a folder, and of what was put aside there."""
    ops = FileOps()
    with _folder(os.path.join(root, folder)) as fd:
        if fd is None:
            return
        for file, name in _named(ops, fd, folder, stream):
            job = _job(ops, fd, file, name, max_job_bytes)
            if job is not None and stream in {None, job.stream_id}:
                yield file, job
            elif job is None and folder == layout.DONE and (aside := _put_aside(ops, fd, file)) is not None:
                yield file, aside


def _job(ops: FileOps, fd: int, file: str, name: str, max_job_bytes: int) -> Job | None:
    """The job in a file; None when it has moved on, or is no job."""
    try:
        job = decode_job(ops.read(fd, file, 2 * max_job_bytes)[0])
    except (DecodingFailed, OSError):
        return None
    return job if layout.job_filename(job) == name else None


def _put_aside(ops: FileOps, fd: int, file: str) -> PutAside | None:
    """What the quarantine's signal says of a file; None when there is none: somebody else left it."""
    try:
        signal = decode_signal(ops.read(fd, layout.quarantine_signal_filename(file), _RECORD_BYTES)[0])
        size = os.stat(file, dir_fd=fd, follow_symlinks=False).st_size
    except (DecodingFailed, OSError):
        return None
    return PutAside(file, layout.clear_stream(file) or "", signal.completed_at.physical_time, size)


def _named(ops: FileOps, fd: int, folder: str, stream: str | None) -> list[tuple[str, str]]:
    """`(file name, job file name)` of what may be the stream's, in order."""
    files = _listed(ops, fd, folder)
    found = [(file, name) for file in files if (name := plain_name(folder, file)) is not None]
    found = [each for each in found if stream is None or layout.suggests(each[1], stream)]
    return sorted(found, reverse=folder == layout.DONE)


def _listed(ops: FileOps, fd: int, folder: str) -> list[str]:
    try:
        return [entry.name for entry in ops.entries(fd) if entry.is_file(follow_symlinks=False)]
    except OSError as error:
        raise BackendUnavailable(f"cannot list {folder}/: {error.strerror}") from error


# -- one job


def _view(queue: QueueKit, root: str, state: State, file: str, job: Job) -> JobView:
    split = layout.split_later(file) if state is State.LATER else None
    signal = queue.signal(job.id) if state is State.DONE else None
    return JobView(
        job=job,
        state=state,
        due_ms=split[0] if split else None,
        retry=bool(split and split[1]),
        signal=signal,
        dossier=_dossier(root, job.id) if signal is not None and signal.status is _BLOCKED else None,
    )


def _dossier(root: str, job_id: str) -> dict[str, Any] | None:
    """What is kept of a blocked job; None when nothing that can be read is."""
    with _folder(os.path.join(root, layout.DOSSIERS)) as fd:
        if fd is None:
            return None
        try:
            dossier = json.loads(FileOps().read(fd, layout.dossier_filename(job_id), _RECORD_BYTES)[0])
        except (OSError, ValueError, RecursionError):
            return None
    return dossier if isinstance(dossier, dict) else None


def _word(view: JobView | PutAside) -> str:
    return _BLOCKED.value if isinstance(view, PutAside) else words.state_word(view)
