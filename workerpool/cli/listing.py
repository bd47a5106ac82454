"""Every job of a maildir that a person asks for, in every state, read without touching or locking anything.

Jobs move while they are read: one that has just moved may be missing or come twice. What cannot be read as a job is
left out, as `status` counts it and `show` tells of it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Generator, Iterator

from queuekit import BackendUnavailable, DecodingFailed, QueueKit
from queuekit.backends.maildir import layout
from queuekit.backends.maildir.fsops import FileOps
from queuekit.contract import JobView
from queuekit.job import Job
from queuekit.lifecycle import State
from queuekit.wire import decode_job
from workerpool.cli import words

_FOLDERS = {  # in the order of a job's life
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


def jobs_in(
    queue: QueueKit, root: str, max_job_bytes: int, wanted: Collection[str], stream: str | None
) -> Iterator[JobView]:
    """The jobs in one of the states `wanted` (words), of one stream or of all; read as they are asked for.

    Those that have not ended come first, oldest first; then those that have, newest first. Raises `BackendUnavailable`
    when a folder cannot be listed.
    """
    ops = FileOps()
    for folder, state in _FOLDERS.items():
        if not _WORDS[state] & set(wanted):
            continue
        with contextlib.closing(_read(ops, root, folder, max_job_bytes, stream)) as found:
            for file, job in found:
                view = _view(queue, state, file, job)
                if words.state_word(view) in wanted:
                    yield view


def _read(
    ops: FileOps, root: str, folder: str, max_job_bytes: int, stream: str | None
) -> Generator[tuple[str, Job], None, None]:
    """`(file name, job)` of the readable jobs in a folder."""
    path = os.path.join(root, folder)
    try:
        fd = ops.open_folder(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise BackendUnavailable(f"cannot read {path}: {error.strerror}") from error
    try:
        for file, name in _named(ops, fd, folder, stream):
            with contextlib.suppress(DecodingFailed, OSError):  # moved on, or no job: nothing to list
                job = decode_job(ops.read(fd, file, 2 * max_job_bytes)[0])
                if layout.job_filename(job) == name and stream in {None, job.stream_id}:
                    yield file, job
    finally:
        os.close(fd)


def _named(ops: FileOps, fd: int, folder: str, stream: str | None) -> list[tuple[str, str]]:
    """`(file name, job file name)` of what may be the stream's, in order."""
    try:
        files = [entry.name for entry in ops.entries(fd) if entry.is_file(follow_symlinks=False)]
    except OSError as error:
        raise BackendUnavailable(f"cannot list {folder}/: {error.strerror}") from error
    found = [(file, name) for file in files if (name := _plain(folder, file)) is not None]
    found = [each for each in found if stream is None or layout.suggests(each[1], stream)]
    return sorted(found, reverse=folder == layout.DONE)


def _plain(folder: str, file: str) -> str | None:
    """The job file name of a file; None when it cannot be a job's."""
    name: str | None = file
    if folder == layout.LATER:
        split = layout.split_later(file)
        name = split[2] if split else None
    elif folder == layout.CLAIM:
        name = layout.split_claim(file)
    return name if name is not None and layout.tail(name) is not None else None


def _view(queue: QueueKit, state: State, file: str, job: Job) -> JobView:
    split = layout.split_later(file) if state is State.LATER else None
    return JobView(
        job=job,
        state=state,
        due_ms=split[0] if split else None,
        retry=bool(split and split[1]),
        signal=queue.signal(job.id) if state is State.DONE else None,
    )
