"""A store in memory that is moved to another one, or the other way round: what `Transfer` means, without a disk."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from queuekit.backends.likeness import alike
from queuekit.backends.maildir import layout
from queuekit.contract import JobView, Lease, PutAside, Transfer
from queuekit.errors import WriteFailed
from queuekit.job import Job
from queuekit.lifecycle import State
from queuekit.wire import decode_job, encode_job

if TYPE_CHECKING:
    from queuekit.backends.memory import MemoryStore

_ORDER = (State.DONE, State.LATER, State.NEW)


class MemoryTransfer(Transfer):
    """One `MemoryStore`'s part in a move. `opened`: the store with its lock held, as the backend gives it."""

    def __init__(self, opened: Callable[[], AbstractContextManager[MemoryStore]]) -> None:
        self._open = opened

    # -- the store that is left

    def whole(self) -> Iterator[JobView | PutAside]:
        with self._open() as store:
            found = [_view(store, state, file) for state in State for file in sorted(_folder(store, state))]
        yield from found

    def leaving(self) -> Iterator[JobView]:
        with self._open() as store:
            found = list(store.leaving.values())
        yield from found

    def is_leaving(self) -> bool:
        with self._open() as store:
            return bool(store.leaving)

    def hide(self, views: Sequence[JobView], *, leases: Mapping[str, Lease]) -> int:
        taken = 0
        with self._open() as store:
            for view in views:
                lease = leases.get(view.job.stream_id)
                if lease is not None:
                    lease.verify()
                file = _file(view)
                if file in _folder(store, view.state) and alike(_view(store, view.state, file), view):
                    store.leaving[layout.job_filename(view.job)] = _own(view)
                    del _folder(store, view.state)[file]
                    store.signals.pop(view.job.id, None)
                    store.dossiers.pop(view.job.id, None)
                    taken += 1
        return taken

    def bring_back(self) -> int:
        with self._open() as store:
            back, store.leaving = store.leaving, {}
            _show(store, list(back.values()))
        return len(back)

    def purge(self, limit: int) -> int:
        with self._open() as store:
            gone = list(store.leaving)[:limit]
            for name in gone:
                del store.leaving[name]
        return len(gone)

    # -- the store that is moved to

    def take_in(self, views: Sequence[JobView]) -> int:
        with self._open() as store:
            coming = [view for view in views if not _is_in_sight(store, view)]
            for view in coming:
                store.arriving[layout.job_filename(view.job)] = _own(view)
        return len(coming)

    def unlike(self, views: Sequence[JobView]) -> list[JobView]:
        with self._open() as store:
            return [view for view in views if not _is_here(store, view)]

    def waiting(self) -> int:
        with self._open() as store:
            return len(store.arriving)

    def discard(self) -> int:
        with self._open() as store:
            count = len(store.arriving)
            store.arriving.clear()
        return count

    def let_in(self, origin: str) -> int:
        with self._open() as store:
            store.origin = origin
            coming, store.arriving = store.arriving, {}
            _show(store, list(coming.values()))
        return len(coming)

    def let_in_from(self) -> str | None:
        with self._open() as store:
            return store.origin

    def forget(self) -> None:
        with self._open() as store:
            store.origin = None


def _folder(store: MemoryStore, state: State) -> dict[str, Job]:
    return {State.NEW: store.new, State.LATER: store.later, State.CUR: store.cur, State.DONE: store.done}[state]


def _file(view: JobView) -> str:
    name = layout.job_filename(view.job)
    if view.state is not State.LATER:
        return name
    return layout.later_filename(name, view.due_ms or 0, retry=view.retry)


def _view(store: MemoryStore, state: State, file: str) -> JobView:
    """A job in sight, whole."""
    job = _folder(store, state)[file]
    due_ms, retry, _ = (layout.split_later(file) if state is State.LATER else None) or (None, False, "")
    signal = store.signals.get(job.id) if state is State.DONE else None
    view = JobView(job=job, state=state, due_ms=due_ms, retry=retry, signal=signal, dossier=store.dossiers.get(job.id))
    return _own(view)


def _own(view: JobView) -> JobView:
    """A view that shares nothing with its maker's values."""
    dossier = None if view.dossier is None else json.loads(json.dumps(dict(view.dossier), default=str))
    return dataclasses.replace(view, job=decode_job(encode_job(view.job)), dossier=dossier)


def _is_here(store: MemoryStore, view: JobView) -> bool:
    waiting = store.arriving.get(layout.job_filename(view.job))
    if waiting is not None:
        return alike(waiting, view)
    return _file(view) in _folder(store, view.state) and alike(_view(store, view.state, _file(view)), view)


def _is_in_sight(store: MemoryStore, view: JobView) -> bool:
    """Whether the job is in sight exactly so. Raises `WriteFailed` when it is differently, or may not arrive."""
    if view.state is State.CUR:
        raise WriteFailed(f"job {view.job.id}", "it is in flight")
    for state in State:
        for file, job in _folder(store, state).items():
            if job.id != view.job.id:
                continue
            if not alike(_view(store, state, file), view):
                raise WriteFailed(f"job {view.job.id}", "it is here already, and differently")
            return True
    return False


def _show(store: MemoryStore, views: Sequence[JobView]) -> None:
    for view in sorted(views, key=lambda view: (_ORDER.index(view.state), layout.job_filename(view.job))):
        if view.dossier is not None:
            store.dossiers[view.job.id] = dict(view.dossier)
        if view.signal is not None and view.state is State.DONE:
            store.signals[view.job.id] = view.signal
        if view.state is State.NEW:
            store.arrive(_file(view), view.job)
        else:
            _folder(store, view.state)[_file(view)] = view.job
