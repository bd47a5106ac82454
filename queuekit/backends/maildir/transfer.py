"""A maildir that is moved to another store, or the other way round.

    .workerpool/leaving/     jobs that were taken out of sight, until they are removed for good
    .workerpool/arriving/    jobs that are not in sight yet
    .workerpool/arrived/     the same folder under another name: from that one rename on its jobs are on their way into
                             the queue, whoever is killed meanwhile; `origin` in it tells where they came from

Each is a shelf (`shelf.py`). No port looks there, so nothing on a shelf can be claimed, counted or pruned.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence

from queuekit.backends.admission import same_job
from queuekit.backends.likeness import alike
from queuekit.backends.maildir import layout
from queuekit.backends.maildir.mount import Mount, as_write_failed
from queuekit.backends.maildir.shelf import Place, Shelf, Shelves, place_of
from queuekit.contract import JobView, Lease, PutAside, Transfer
from queuekit.errors import BackendUnavailable, DecodingFailed, WriteFailed
from queuekit.lifecycle import State
from queuekit.wire import encode_job, encode_signal

_log = logging.getLogger("queuekit.maildir")
_LEAVING, _ARRIVING, _ARRIVED, _ORIGIN = "leaving", "arriving", "arrived", "origin"
_ORIGIN_BYTES = 2**16
_WHAT = "jobs that are moved"
_PORTION = 1000


class MaildirTransfer(Transfer):
    """One maildir's part in a move. Names are listed once: use one object a move, while nobody else moves jobs."""

    def __init__(self, mount: Mount) -> None:
        self._mount = mount
        self._shelves = Shelves(mount)
        self._in_sight: set[str] | None = None
        self._arriving_later: dict[str, str] | None = None
        self._gathered = False

    # -- the store that is left

    def whole(self) -> Iterator[JobView | PutAside]:
        mount, own = self._mount, Shelf.of(self._mount)
        for state, folder in (
            (State.LATER, mount.later),
            (State.NEW, mount.new),
            (State.CUR, mount.claim),
            (State.CUR, mount.cur),
            (State.DONE, mount.done),
        ):
            for file in sorted(mount.names(folder)):
                place = place_of(state, (layout.split_claim(file) or "") if folder == mount.claim else file)
                if place is None:
                    continue
                try:
                    yield self._in_flight(folder, file, place) if state is State.CUR else self._shelves.view(own, place)
                except FileNotFoundError:
                    continue
                except DecodingFailed:
                    yield self._aside(folder, file)

    def _in_flight(self, folder: int, file: str, place: Place) -> JobView:
        job = self._mount.look_into(folder, file, place.name)
        if job is None:
            raise FileNotFoundError(file)
        return JobView(job=job, state=State.CUR)

    def _aside(self, folder: int, file: str) -> PutAside:
        try:
            facts = self._mount.ops.stat(folder, file)
        except OSError as error:
            raise BackendUnavailable(f"cannot look at {file}: {error.strerror}") from error
        stream = layout.clear_stream(file) or ""
        return PutAside(name=file, stream=stream, ended_ms=facts.st_mtime_ns // 1_000_000, size=facts.st_size)

    def leaving(self) -> Iterator[JobView]:
        with self._shelf(_LEAVING) as shelf:
            if shelf is None:
                self._gathered = True  # what is hidden from now on, this object hides as a whole
                return
            self._gather(shelf)
            for place in self._shelves.places(shelf):
                yield self._shelves.view(shelf, place)

    def is_leaving(self) -> bool:
        with self._shelf(_LEAVING) as shelf:
            return shelf is not None and next(iter(self._shelves.places(shelf)), None) is not None

    def hide(self, views: Sequence[JobView], *, leases: Mapping[str, Lease]) -> int:
        own, taken = Shelf.of(self._mount), 0
        with as_write_failed(_WHAT), self._made_shelf(_LEAVING) as shelf:
            for view in views:
                place, stream = Place.of(view), view.job.stream_id
                with self._mount.acting(stream, leases.get(stream)):
                    found = self._shelves.find(own, place)
                    if found is not None and alike(found, view):
                        self._shelves.put_out_of_sight(shelf, place, view.job.id)
                        taken += 1
            self._shelves.sync(shelf, own)
        return taken

    def bring_back(self) -> int:
        with as_write_failed(_WHAT), self._shelf(_LEAVING) as shelf:
            if shelf is None:
                return 0
            self._gather(shelf)
            count = self._into_sight(shelf)
            self._shelves.remove(shelf)
        return count

    def purge(self, limit: int) -> int:
        with as_write_failed(_WHAT), self._shelf(_LEAVING) as shelf:
            if shelf is None:
                return 0
            removed = self._shelves.clear(shelf, limit)
            if not removed:
                self._shelves.remove(shelf)
        return removed

    def _gather(self, shelf: Shelf) -> None:
        if not self._gathered:
            with as_write_failed(_WHAT):
                self._shelves.gather(shelf)
            self._gathered = True

    # -- the store that is moved to

    def take_in(self, views: Sequence[JobView]) -> int:
        waiting, coming = 0, list[JobView]()
        with as_write_failed(_WHAT):
            with self._shelf(_ARRIVING) as shelf:
                for view in views:
                    place = _checked_place(view)
                    found = self._shelves.find(shelf, place) if shelf is not None else None
                    if found is not None and alike(found, view):
                        waiting += 1
                    elif not self._is_in_sight(view, place):
                        coming.append(view)
            if coming:
                with self._made_shelf(_ARRIVING) as shelf:
                    self._put(shelf, coming)
        return waiting + len(coming)

    def _put(self, shelf: Shelf, views: Sequence[JobView]) -> None:
        """Write jobs with their records onto a shelf, in place of what it holds of them, behind one barrier."""
        mount = self._mount
        parts = [part for view in views for part in _parts(shelf, view)]
        staged = mount.stage_all([data for _, _, data in parts])
        waiting = list(zip(staged, parts, strict=True))[::-1]
        try:
            for view in views:
                self._drop(shelf, view)
            while waiting:
                name, (folder, file, _) = waiting[-1]
                mount.ops.move(mount.tmp, name, folder, file)
                waiting.pop()
        except BaseException:
            mount.discard([name for name, _ in waiting])
            raise
        later = self._deferred(shelf)
        later.update((place.name, place.file) for place in map(Place.of, views) if place.state is State.LATER)
        self._shelves.sync(shelf)

    def _drop(self, shelf: Shelf, view: JobView) -> None:
        """Unlink what a shelf holds of a job, wherever it is there."""
        name = layout.job_filename(view.job)
        for folder, file in (
            (shelf.new, name),
            (shelf.done, name),
            (shelf.later, self._deferred(shelf).pop(name, name)),
            (shelf.done, layout.signal_filename(view.job.id)),
            (shelf.jobs, layout.dossier_filename(view.job.id)),
        ):
            with contextlib.suppress(FileNotFoundError):
                self._mount.ops.unlink(folder, file)

    def _deferred(self, shelf: Shelf) -> dict[str, str]:
        """The files of what arrives deferred, by job file name: their due times are not known otherwise."""
        if self._arriving_later is None:
            places = self._shelves.places(shelf)
            self._arriving_later = {place.name: place.file for place in places if place.state is State.LATER}
        return self._arriving_later

    def _is_in_sight(self, view: JobView, place: Place) -> bool:
        """Whether the job is in the queue exactly so. Raises `WriteFailed` when it is there in another way."""
        own, names = Shelf.of(self._mount), self._names()
        if place.name in names:
            found = self._shelves.find(own, place)
            if found is None or not alike(found, view):
                raise WriteFailed(f"job {view.job.id}", "it is here already, and differently")
            return True
        if self._has_record(view.job.id) and any(name.endswith(f"-{view.job.id}") for name in names):
            raise WriteFailed(f"job {view.job.id}", "its id is taken here by another job")
        return False

    def _names(self) -> set[str]:
        """The file names of all jobs in the queue."""
        if self._in_sight is None:
            mount = self._mount
            names = {*mount.names(mount.new), *mount.names(mount.cur), *mount.names(mount.done)}
            names.update(name for file in mount.names(mount.claim) if (name := layout.split_claim(file)))
            names.update(split[2] for file in mount.names(mount.later) if (split := layout.split_later(file)))
            self._in_sight = {name for name in names if layout.tail(name) is not None}
        return self._in_sight

    def _has_record(self, job_id: str) -> bool:
        mount = self._mount
        return mount.exists(mount.done, layout.signal_filename(job_id)) or mount.exists(
            mount.dossiers, layout.dossier_filename(job_id)
        )

    def unlike(self, views: Sequence[JobView]) -> list[JobView]:
        own = Shelf.of(self._mount)
        with self._shelf(_ARRIVED, _ARRIVING) as shelf:
            return [view for view in views if not self._is_here(shelf, own, view)]

    def _is_here(self, shelf: Shelf | None, own: Shelf, view: JobView) -> bool:
        place = Place.of(view)
        found = self._shelves.find(shelf, place) if shelf is not None else None
        found = found or self._shelves.find(own, place)
        return found is not None and alike(found, view)

    def waiting(self) -> int:
        with self._shelf(_ARRIVED, _ARRIVING) as shelf:
            return 0 if shelf is None else sum(1 for _ in self._shelves.places(shelf))

    def discard(self) -> int:
        if self.let_in_from() is not None:
            raise WriteFailed(_WHAT, "they are being let in already")
        count = self.waiting()
        with as_write_failed(_WHAT), self._shelf(_ARRIVING) as shelf:
            if shelf is not None:
                while self._shelves.clear(shelf, _PORTION):
                    pass
                with self._folder(_ARRIVING) as arriving, contextlib.suppress(FileNotFoundError):
                    self._mount.ops.unlink(arriving, _ORIGIN)  # of letting in that was cut off before it began
                self._shelves.remove(shelf)
        self._arriving_later = None
        return count

    def let_in(self, origin: str) -> int:
        with as_write_failed(_WHAT):
            if self.let_in_from() is None:
                self._begin_letting_in(origin)
            with self._shelf(_ARRIVED) as shelf:
                count = 0 if shelf is None else self._into_sight(shelf)
        self._arriving_later = self._in_sight = None
        return count

    def _begin_letting_in(self, origin: str) -> None:
        """One rename, and what arrives is on its way into the queue."""
        mount, ops = self._mount, self._mount.ops
        with self._made_shelf(_ARRIVING):
            pass
        with self._folder(_ARRIVING) as arriving:
            staged = mount.stage(origin.encode(errors="surrogateescape"), sync=True)
            ops.move(mount.tmp, staged, arriving, _ORIGIN)
            mount.sync_folder(arriving)
        with self._folder("") as private:
            ops.move(private, _ARRIVING, private, _ARRIVED)
            mount.sync_folder(private)

    def let_in_from(self) -> str | None:
        try:
            with self._folder(_ARRIVED) as arrived:
                data, _ = self._mount.ops.read(arrived, _ORIGIN, _ORIGIN_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BackendUnavailable(f"cannot read where jobs come from: {error.strerror}") from error
        return data.decode(errors="surrogateescape")

    def forget(self) -> None:
        path = self._path(_ARRIVED)
        if not os.path.isdir(path):
            return
        with as_write_failed(_WHAT):
            with self._shelf(_ARRIVED) as shelf:
                if shelf is not None:
                    self._shelves.remove_folders(shelf)
            with self._folder(_ARRIVED) as arrived, contextlib.suppress(FileNotFoundError):
                self._mount.ops.unlink(arrived, _ORIGIN)  # last: it is the mark
            os.rmdir(path)
            self._sync_private()

    # -- shared

    def _into_sight(self, shelf: Shelf) -> int:
        """Everything on a shelf becomes the queue's, records before their jobs; returns how many jobs."""
        mount, own = self._mount, Shelf.of(self._mount)
        for folder, target, name in self._shelves.records(shelf):
            mount.ops.move(folder, name, target, name)
        count = 0
        for place in self._shelves.places(shelf):
            folder, target = shelf.folder(place.state), own.folder(place.state)
            try:
                mount.move_new(folder, place.file, target, place.file, "")
            except FileExistsError:
                self._drop_twin(folder, target, place)
            count += 1
        self._shelves.sync(own, shelf)
        return count

    def _drop_twin(self, folder: int, target: int, place: Place) -> None:
        """A job of this name was sent meanwhile: the same one, and then one copy is enough, or nothing may go on."""
        mount = self._mount
        mine, other = mount.look_into(folder, place.file, place.name), mount.look_into(target, place.file, place.name)
        if mine is None or other is None or not same_job(mine, other):
            raise WriteFailed(place.name, "another job of this name was sent here meanwhile")
        mount.drop_copy(folder, place.file, target)
        _log.warning("job %s was sent here while it was moved here; one copy is kept", mine.id)

    def _path(self, folder: str) -> str:
        return os.path.join(self._mount.root, layout.PRIVATE, folder)

    @contextlib.contextmanager
    def _folder(self, folder: str) -> Iterator[int]:
        """A folder below .workerpool/ (or that one itself), opened."""
        fd = self._mount.ops.open_folder(self._path(folder))
        try:
            yield fd
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _shelf(self, *names: str) -> Iterator[Shelf | None]:
        """The first of these shelves that is there, opened; None: none is."""
        shelves = (Shelf.open(self._mount, self._path(name), make=False) for name in names)
        shelf = next((each for each in shelves if each is not None), None)
        try:
            yield shelf
        finally:
            if shelf is not None:
                shelf.close()

    @contextlib.contextmanager
    def _made_shelf(self, name: str) -> Iterator[Shelf]:
        """This shelf, opened, and made before when it is not there."""
        with self._shelf(name) as shelf:
            if shelf is not None:
                yield shelf
                return
        made = Shelf.open(self._mount, self._path(name), make=True)
        assert made is not None  # noqa: S101  for the type checker
        try:
            self._sync_private()
            yield made
        finally:
            made.close()

    def _sync_private(self) -> None:
        with self._folder("") as private:
            self._mount.sync_folder(private)


def _checked_place(view: JobView) -> Place:
    """Where an arriving job goes. Raises `WriteFailed` when it may not."""
    if view.state is State.CUR:
        raise WriteFailed(f"job {view.job.id}", "it is in flight")
    place = Place.of(view)
    if len(os.fsencode(place.file)) > layout.MAX_FILE_NAME:
        raise WriteFailed(f"job {view.job.id}", f"its file name would take more than {layout.MAX_FILE_NAME} bytes")
    return place


def _parts(shelf: Shelf, view: JobView) -> Iterator[tuple[int, str, bytes]]:
    """`(folder, file name, content)` of a job's records and then of the job itself."""
    if view.dossier:
        dossier = json.dumps(dict(view.dossier), sort_keys=True, default=str).encode()
        yield shelf.jobs, layout.dossier_filename(view.job.id), dossier
    if view.signal is not None and view.state is State.DONE:
        yield shelf.done, layout.signal_filename(view.job.id), encode_signal(view.signal)
    yield shelf.folder(view.state), Place.of(view).file, encode_job(view.job)
