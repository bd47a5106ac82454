"""Shelves: sets of folders that hold jobs as the queue's own do, out of everybody's sight.

A shelf is `new/`, `later/`, `done/` (jobs and signals) and `jobs/` (dossiers) below one folder; the queue itself is
one, too. A job goes from one to another by renames. Where it goes out of sight its file goes first, where it comes into
sight last, so a record is never seen that could be another's, and the file alone tells where the job is; what was cut
off is finished by `gather`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import stat
from collections.abc import Iterator

from queuekit.backends.maildir import layout
from queuekit.backends.maildir.mount import Mount
from queuekit.completion import SignalFile
from queuekit.contract import JobView
from queuekit.errors import BackendUnavailable, DecodingFailed
from queuekit.lifecycle import State
from queuekit.wire import decode_signal

_SIGNAL_BYTES, _DOSSIER_BYTES = 2**20, 2**24
_FOLDERS = ("new", "later", "done", "jobs")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a shelf keeps a job. `name`: the job's file name; `file`: what its file is called there."""

    state: State
    file: str
    name: str

    @classmethod
    def of(cls, view: JobView) -> Place:
        """The place for a job that is not in flight."""
        name = layout.job_filename(view.job)
        if view.state is not State.LATER:
            return cls(state=view.state, file=name, name=name)
        return cls(state=view.state, file=layout.later_filename(name, view.due_ms or 0, retry=view.retry), name=name)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shelf:
    """The open folders of one shelf. `path`: the folder that they are in; None: they are the queue's own."""

    new: int
    later: int
    done: int
    jobs: int
    path: str | None = None

    @classmethod
    def of(cls, mount: Mount) -> Shelf:
        """The queue itself."""
        return cls(new=mount.new, later=mount.later, done=mount.done, jobs=mount.dossiers)

    @classmethod
    def open(cls, mount: Mount, path: str, *, make: bool) -> Shelf | None:
        """The shelf in a folder; None when it is not there (as a whole) and not to be made."""
        opened: dict[str, int] = {}
        try:
            for folder in ("", *_FOLDERS):
                if make:
                    mount.ops.make_folder(os.path.join(path, folder) if folder else path)
                if folder:
                    opened[folder] = mount.ops.open_folder(os.path.join(path, folder))
        except OSError as error:
            for fd in opened.values():
                os.close(fd)
            if isinstance(error, FileNotFoundError) and not make:
                return None
            raise BackendUnavailable(f"cannot use {path}: {error.strerror}") from error
        return cls(**opened, path=path)

    def folder(self, state: State) -> int:
        """The folder for the jobs in one state."""
        return {State.NEW: self.new, State.LATER: self.later, State.DONE: self.done}[state]

    @property
    def folders(self) -> tuple[int, ...]:
        """All of them."""
        return self.jobs, self.done, self.later, self.new

    def close(self) -> None:
        """Close the folders; not for the queue's own."""
        for fd in self.folders:
            os.close(fd)


class Shelves:
    """Reading from shelves of one mount, and moving jobs between them."""

    def __init__(self, mount: Mount) -> None:
        self._mount = mount

    # -- reading

    def places(self, shelf: Shelf) -> Iterator[Place]:
        """Where its jobs are: ends first, then deferred ones, then pending ones, oldest first."""
        for state in (State.DONE, State.LATER, State.NEW):
            for file in sorted(self._mount.names(shelf.folder(state))):
                place = place_of(state, file)
                if place is not None:
                    yield place

    def view(self, shelf: Shelf, place: Place) -> JobView:
        """A job as it stands there. Raises `FileNotFoundError`, `DecodingFailed` or `BackendUnavailable`."""
        folder = shelf.folder(place.state)
        try:
            job, _ = self._mount.read_job(folder, place.file, place.name)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._mount.unreadable(folder, place.file, error) from error
        split = layout.split_later(place.file) if place.state is State.LATER else None
        return JobView(
            job=job,
            state=place.state,
            due_ms=split[0] if split else None,
            retry=bool(split and split[1]),
            signal=self._signal(shelf, job.id) if place.state is State.DONE else None,
            dossier=self._dossier(shelf, job.id),
        )

    def find(self, shelf: Shelf, place: Place) -> JobView | None:
        """The same; None when there is no such file, or nothing in it that can be read as a job."""
        try:
            return self.view(shelf, place)
        except (FileNotFoundError, DecodingFailed):
            return None

    def _signal(self, shelf: Shelf, job_id: str) -> SignalFile | None:
        data = self._record(shelf.done, layout.signal_filename(job_id), _SIGNAL_BYTES)
        return None if data is None else decode_signal(data)

    def _dossier(self, shelf: Shelf, job_id: str) -> dict[str, object] | None:
        data = self._record(shelf.jobs, layout.dossier_filename(job_id), _DOSSIER_BYTES)
        try:
            dossier = None if data is None else json.loads(data)
        except (ValueError, RecursionError):
            raise DecodingFailed("its dossier is damaged", job_id) from None
        return dossier if isinstance(dossier, dict) else None

    def _record(self, folder: int, name: str, limit: int) -> bytes | None:
        """What is kept beside a job; None when nothing is."""
        try:
            data, facts = self._mount.ops.read(folder, name, limit)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._mount.unreadable(folder, name, error) from error
        if not stat.S_ISREG(facts.st_mode) or len(data) > limit:
            raise DecodingFailed(f"its record {name} is none")
        return data

    # -- moving

    def put_out_of_sight(self, shelf: Shelf, place: Place, job_id: str) -> None:
        """A job of the queue's own goes to a shelf, with its records. Under the stream's lock."""
        own = Shelf.of(self._mount)
        self._mount.ops.move(own.folder(place.state), place.file, shelf.folder(place.state), place.file)
        self._move_records(own, shelf, job_id)

    def gather(self, shelf: Shelf) -> None:
        """Bring after their jobs the records of those whose way to the shelf was cut off."""
        own = Shelf.of(self._mount)
        for place in self.places(shelf):
            job, _ = self._mount.read_job(shelf.folder(place.state), place.file, place.name)
            if not any(self._mount.exists(folder, place.name) for folder in (own.done, own.new, self._mount.cur)):
                self._move_records(own, shelf, job.id)

    def _move_records(self, source: Shelf, target: Shelf, job_id: str) -> None:
        for here, there, name in (
            (source.done, target.done, layout.signal_filename(job_id)),
            (source.jobs, target.jobs, layout.dossier_filename(job_id)),
        ):
            with contextlib.suppress(FileNotFoundError):
                self._mount.ops.move(here, name, there, name)

    def records(self, shelf: Shelf) -> Iterator[tuple[int, int, str]]:
        """`(folder, the queue's own folder for it, file name)` of every record on a shelf."""
        own = Shelf.of(self._mount)
        for name in self._mount.names(shelf.jobs):
            yield shelf.jobs, own.jobs, name
        for name in self._mount.names(shelf.done):
            if name.endswith(layout.SIGNAL):
                yield shelf.done, own.done, name

    def sync(self, *shelves: Shelf) -> None:
        """Make the entries of their folders durable, one shelf after the other."""
        for shelf in shelves:
            for folder in shelf.folders:
                self._mount.sync_folder(folder)

    # -- emptying

    def clear(self, shelf: Shelf, limit: int) -> int:
        """Unlink at most `limit` files, jobs before records; returns how many, 0 when nothing is left."""
        for folder in (shelf.new, shelf.later, shelf.done, shelf.jobs):
            some = [each.name for each in itertools.islice(self._mount.ops.entries(folder), limit)]
            for name in some:
                self._mount.ops.unlink(folder, name)
            if some:
                return len(some)
        return 0

    def remove_folders(self, shelf: Shelf) -> None:
        """Remove the folders of an empty shelf, but not the one that they are in."""
        for folder in _FOLDERS if shelf.path is not None else ():
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(os.path.join(shelf.path or "", folder))

    def remove(self, shelf: Shelf) -> None:
        """Remove an empty shelf."""
        self.remove_folders(shelf)
        if shelf.path is not None:
            os.rmdir(shelf.path)


def place_of(state: State, file: str) -> Place | None:
    """The place that a file's name speaks of; None when it is no job's."""
    name: str | None = file
    if state is State.LATER:
        split = layout.split_later(file)
        name = split[2] if split else None
    if name is None or layout.tail(name) is None:
        return None
    return Place(state=state, file=file, name=name)
