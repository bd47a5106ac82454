"""Moving everything from one store to another: ids, order, attempts, due times, ends and records stay as they are.

    move(Side(name="dir:/a", backend=one), Side(name="sqlite:/b", backend=other))

The steps, each of which may be cut off by a kill, and is gone on with when the same move is asked for again:

    hold       the lease of every stream is won in both stores, or the stream is paused and nothing of it runs
    bring home retries that were cut off are finished, what the dead had in flight becomes pending
    copy       every job arrives in the target, where nobody sees it yet
    hide       every job of the source goes out of sight there
    verify     every hidden job is read again and compared with the one that waits in the target; both are counted
    agree      the caller may still say no: then everything is as it was before
    let in     what waits in the target comes into sight, ended jobs first, then deferred ones, then pending ones
    remove     what is hidden in the source is removed for good, in portions

So at any moment at most one of the two stores lets anybody have a job, whoever is killed and whichever pool is started
too early: until a job is hidden it is the source's, and the copy in the target is nothing (it is replaced when the
source's has changed meanwhile, and dropped when the source has it no more); from then until `let in` begins it is
nobody's; and once that has begun, which is one rename or one transaction that also writes down where the jobs came
from, it is the target's, and all that is left to do is to finish. That is why the order of the copying does not matter,
and why nothing is removed before the target has everything in sight. `undo` goes back from any point before that.

With `keep` nothing is hidden and nothing removed: the source stays as it is and must not be used any more, for its jobs
are the target's, too.

What cannot be read as a job stays in the source, and is named. Checkpoints move with the jobs. Whoever sends must be
stopped: what comes meanwhile is moved, too, as long as it does not go on for ever.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable, Iterator

from queuekit.contract import JobView, Lease, PutAside, QueueBackend
from queuekit.errors import QueueError
from queuekit.lease import DEFAULT_TTL
from queuekit.lifecycle import State

_LEASE = "workerpool.migrate"
"""The stream whose lease says that a store is being moved."""
_ROUNDS = 3
_PORTION_JOBS, _PORTION_BYTES = 1000, 16 * 2**20
_BEAT_SECONDS = 2.0
_WATCH_SECONDS, _LOOK_SECONDS = DEFAULT_TTL + 1, 0.1

Tell = Callable[[str, int, int], None]
"""Told how far a step is: its name, how many jobs are done, how many there are (0: not known)."""


class MoveRefused(QueueError):
    """A move cannot begin or go on; both stores are safe as they are. Remove the reason and ask for it again."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two stores. `name`: what it is called, always the same and without a password; `paused`: whether a
    person has paused a stream of it, so that whoever holds its lease claims nothing."""

    name: str
    backend: QueueBackend
    paused: Callable[[str], bool] = lambda stream: False  # noqa: ARG005


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was moved, or (while the caller is asked) will be. `left`: what is no job and stays in the source.

    `resumed`: a move that was cut off was finished; `moved` counts what was let in by this call.
    """

    moved: int
    states: collections.Counter[State]
    streams: tuple[str, ...]
    checkpoints: int = 0
    left: tuple[PutAside, ...] = ()
    resumed: bool = False


def move(
    source: Side,
    target: Side,
    *,
    keep: bool = False,
    agreed: Callable[[Found], bool] = lambda found: True,  # noqa: ARG005
    tell: Tell = lambda step, done, total: None,  # noqa: ARG005
) -> Found | None:
    """Move everything, and return what it was; None when `agreed` said no, and then everything is as it was.

    `keep`: leave the source as it is; nobody is asked then. Durable when it returns. Raises `MoveRefused` with the
    reason in a sentence, `WriteFailed` naming a job that the target cannot take, `LeaseLost` and `BackendUnavailable`.
    """
    work = _Move(source, target, tell)
    with work.held():
        if work.finish_what_was_begun(keep=keep) and keep:
            return work.found()
        work.bring_home()
        if keep:
            work.bring_back()
            work.copy_as_it_stands()
        else:
            work.copy_and_hide()
            if not agreed(work.found()):
                work.undo()
                return None
        work.copy_checkpoints()
        work.let_in()
        work.remove(keep=keep)
    return work.found()


def undo(source: Side, target: Side, *, tell: Tell = lambda step, done, total: None) -> tuple[int, int]:  # noqa: ARG005
    """Go back from a move that was cut off before jobs were let in: `(jobs back in sight, copies dropped)`.

    Raises `MoveRefused` when the target has begun to let them in: then the move can only be finished.
    """
    work = _Move(source, target, tell)
    with work.held():
        if target.backend.transfer().let_in_from() == source.name:
            raise MoveRefused(f"the jobs of {source.name} are {target.name}'s already: the move can only be finished")
        return work.undo()


def unfinished(backend: QueueBackend) -> str | None:
    """Why jobs of this store are out of sight, and the way out, in a sentence; None when no move is half done.

    A look, also beside a move that is under way. Raises `BackendUnavailable` when the store cannot be read.
    """
    transfer = backend.transfer()
    origin = transfer.let_in_from()
    if origin is not None:
        return (
            f"a move of all jobs from {origin} to here is not finished: the same `workerpool migrate` again finishes it"
        )
    if transfer.is_leaving():
        where = "from here to another store"
    elif transfer.waiting():
        where = "from another store to here"
    else:
        return None
    return (
        f"jobs are out of sight, for a move of all jobs {where} is under way or was cut off: the same `workerpool "
        "migrate` again finishes it, with --undo it goes back"
    )


class _Move:
    """One move: the steps, and what they know of each other."""

    def __init__(self, source: Side, target: Side, tell: Tell) -> None:
        self._source, self._target = source, target
        self._leaving, self._arriving = source.backend.transfer(), target.backend.transfer()
        self._tell = tell
        self._leases: dict[str, dict[str, Lease]] = {source.name: {}, target.name: {}}
        self._beaten = time.monotonic()
        self._states: collections.Counter[State] = collections.Counter()
        self._streams: set[str] = set()
        self._quiet: set[str] = set()  # of the source, those that nobody else can be working
        self._left: list[PutAside] = []
        self._moved = self._total = self._checkpoints = 0
        self._resumed = False

    def found(self) -> Found:
        """What is known by now."""
        return Found(
            moved=self._moved,
            states=self._states,
            streams=tuple(sorted(self._streams)),
            checkpoints=self._checkpoints,
            left=tuple(self._left),
            resumed=self._resumed,
        )

    # -- hold

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Every stream of the source held in both stores, as far as nobody else has it who is quiet."""
        if self._source.name == self._target.name:
            raise MoveRefused(f"{self._source.name} is one store: there is nothing to move")
        try:
            for side in (self._source, self._target):
                self._win(side, _LEASE)
            for stream in sorted(self._survey()):
                self._hold(stream)
            yield
        finally:
            for leases in self._leases.values():
                for lease in leases.values():
                    with contextlib.suppress(QueueError):  # it runs out by itself
                        lease.release()

    def _survey(self) -> set[str]:
        """The streams of the source. Raises `MoveRefused` when an id has two jobs, which no database could hold."""
        streams, ids = set(self._source.backend.checkpoints.streams()), set[int]()
        for view in self._all("reading"):
            if hash(view.job.id) in ids:
                raise MoveRefused(
                    f"job {view.job.id!r} is in {self._source.name} twice: of two copies of the same job `workerpool "
                    "fsck --repair` removes one; of two jobs with one id, one has to end and be pruned first"
                )
            ids.add(hash(view.job.id))
            streams.add(view.job.stream_id)
        self._total = len(ids)
        return streams

    def _hold(self, stream: str) -> None:
        self._streams.add(stream)
        for side in (self._source, self._target):
            if stream not in self._leases[side.name]:
                self._win(side, stream)

    def _win(self, side: Side, stream: str) -> None:
        """Win a stream's lease, unless its holder is paused and idle. Raises `MoveRefused`."""
        lease, mine = side.backend.lease(stream), self._leases[side.name]
        holder = lease.owner if self._outlasts(side, lease) else lease.holder() or "several consumers"
        if holder == lease.owner:
            mine[stream] = lease
        if any(each.owner == holder for each in mine.values()):  # by this or by a stream whose lease has the same name
            if side is self._source and stream != _LEASE:
                self._quiet.add(stream)
            return
        if stream == _LEASE:
            raise MoveRefused(
                f"{side.name} is being moved by {holder} already; if that has died, its lease is free in 15 s"
            )
        if not side.paused(stream):
            raise MoveRefused(
                f"stream {stream!r} of {side.name} is held by {holder}: stop that pool, or pause the stream; if it has "
                "died, its lease is free in 15 s"
            )
        if side is self._source and side.backend.in_flight_count(stream):
            raise MoveRefused(f"stream {stream!r} of {side.name} is paused, but jobs of it still run: wait for them")

    def _outlasts(self, side: Side, lease: Lease) -> bool:
        """Whether the lease is won. One that names nobody, as a power cut may leave it, is free when it was watched."""
        end = time.monotonic() + _WATCH_SECONDS
        while not lease.try_acquire():
            if lease.holder() is not None or side.backend.sharers(lease.stream) or time.monotonic() > end:
                return False
            self._beat()
            time.sleep(_LOOK_SECONDS)
        return True

    def _beat(self) -> None:
        """Between two portions: keep what is held."""
        if time.monotonic() - self._beaten < _BEAT_SECONDS:
            return
        for lease in itertools.chain.from_iterable(leases.values() for leases in self._leases.values()):
            lease.heartbeat()
        self._beaten = time.monotonic()

    # -- what an earlier call has begun

    def finish_what_was_begun(self, *, keep: bool) -> bool:
        """Whether jobs of this source were being let in: then they are, and what is hidden there is removed."""
        origin = self._arriving.let_in_from()
        if origin is None:
            return False
        if origin != self._source.name:
            raise MoveRefused(
                f"a move from {origin} to {self._target.name} is not finished: `workerpool migrate {origin} "
                f"{self._target.name}` finishes it"
            )
        self._resumed = True
        self._moved = self._arriving.let_in(origin)
        self.remove(keep=keep)
        return True

    def bring_home(self) -> None:
        """Nothing is half done, nothing is in flight in what is held of the source, and the checkpoints fit."""
        origin = self._leaving.let_in_from()
        if origin is not None:
            raise MoveRefused(f"a move from {origin} to {self._source.name} is not finished: finish that one first")
        for stream in sorted(self._quiet):
            self._beat()
            lease = self._leases[self._source.name].get(stream)
            self._source.backend.finish_intents(stream, lease=lease)
            self._source.backend.reclaim_in_flight(stream, lease=lease)
        self._compare_checkpoints()

    # -- copy, hide, verify

    def copy_and_hide(self) -> None:
        """Every job is hidden in the source and waits in the target, alike."""
        for _ in range(_ROUNDS):
            self._copy()
            self._hide()
            if self._is_verified(self._portions("verifying", self._leaving.leaving())) and not self._is_any_in_sight():
                return
        raise MoveRefused(
            f"jobs come to {self._source.name} or change there while it is moved: stop whoever does that, then go on"
        )

    def copy_as_it_stands(self) -> None:
        """Every job of the source waits in the target (or is there already), alike."""
        for _ in range(_ROUNDS):
            self._copy()
            if self._is_verified(self._portions("verifying", self._all(""))):
                return
        raise MoveRefused(f"jobs of {self._source.name} change while they are copied: stop whoever does that")

    def _copy(self) -> None:
        if self._take_in() == self._arriving.waiting():
            return
        self._arriving.discard()  # an earlier try has left copies of what the source has no more
        if self._take_in() != self._arriving.waiting():
            raise MoveRefused(f"somebody else moves jobs to {self._target.name}: one at a time")

    def _take_in(self) -> int:
        self._states.clear()
        waiting = 0
        for portion in self._portions("copying", self._all("")):
            for view in portion:
                if view.state is State.CUR:
                    raise MoveRefused(f"job {view.job.id} of {self._source.name} is running: wait for its end")
                self._hold(view.job.stream_id)
            self._states.update(view.state for view in portion)
            waiting += self._arriving.take_in(portion)
        return waiting

    def _hide(self) -> None:
        leases = self._leases[self._source.name]
        for portion in self._portions("hiding", self._in_sight()):
            self._leaving.hide(portion, leases=leases)

    def _is_verified(self, portions: Iterable[list[JobView]]) -> bool:
        """Whether the target has each of these jobs just so, and as many as were copied."""
        count = 0
        for portion in portions:
            if self._arriving.unlike(portion):
                return False
            count += len(portion)
        return count == self._states.total()

    def _is_any_in_sight(self) -> bool:
        return next(iter(self._in_sight()), None) is not None

    # -- checkpoints

    def _compare_checkpoints(self) -> None:
        """Raise `MoveRefused` where the target has another checkpoint under the name of one of the source."""
        target = self._target.backend.checkpoints
        for stream, id, payload in self._found_checkpoints():
            if target.read(id, stream) not in {None, payload}:
                raise MoveRefused(f"checkpoint {id!r} of stream {stream!r} says something else in {self._target.name}")

    def copy_checkpoints(self) -> None:
        """The target has every checkpoint of the source."""
        self._compare_checkpoints()
        target = self._target.backend.checkpoints
        found = list(self._found_checkpoints())
        for stream, id, payload in found:
            target.compare_and_swap(id, stream, None, payload)
        self._checkpoints = len(found)

    def _remove_checkpoints(self) -> None:
        """The source has none that the target has: what that says by now is newer."""
        source, target = self._source.backend.checkpoints, self._target.backend.checkpoints
        for stream, id, _ in list(self._found_checkpoints()):
            if target.read(id, stream) is not None:
                source.delete(id, stream)

    def _found_checkpoints(self) -> Iterator[tuple[str, str, bytes]]:
        store = self._source.backend.checkpoints
        for stream in sorted(store.streams()):
            for id, payload in store.list(stream).items():
                yield stream, id, payload

    # -- let in, remove

    def let_in(self) -> None:
        """What waits in the target is in sight."""
        expected = self._arriving.waiting()
        self._tell("letting in", 0, expected)
        count = self._arriving.let_in(self._source.name)
        self._tell("letting in", count, expected)
        self._moved += count
        if count != expected:
            raise MoveRefused(
                f"{expected} jobs waited in {self._target.name}, and {count} were let in: look there first"
            )

    def remove(self, *, keep: bool) -> None:
        """What was let in is in the source no more; then where it came from may be forgotten. It needs no lease.

        `keep`: only what an earlier call without it has hidden goes.
        """
        removed = 0
        while count := self._leaving.purge(_PORTION_JOBS):
            removed += count
            self._tell("removing files or rows", removed, 0)
        if not keep:
            self._remove_checkpoints()
        self._arriving.forget()

    def bring_back(self) -> int:
        """Nothing is hidden in the source."""
        return self._leaving.bring_back()

    def undo(self) -> tuple[int, int]:
        """Both stores are as they were before a move that has let nothing in."""
        back = self.bring_back()
        return back, self._arriving.discard() if self._arriving.let_in_from() is None else 0

    # -- reading the source

    def _all(self, step: str) -> Iterator[JobView]:
        """Every job of the source, hidden or not; with a `step`, its progress is told."""
        views = itertools.chain(self._in_sight(), self._leaving.leaving())
        for count, view in enumerate(views, start=1):
            if step and count % _PORTION_JOBS == 0:
                self._beat()
                self._tell(step, count, 0)
            yield view

    def _in_sight(self) -> Iterator[JobView]:
        self._left = []
        for view in self._leaving.whole():
            if isinstance(view, PutAside):
                self._left.append(view)
            else:
                yield view

    def _portions(self, step: str, views: Iterable[JobView]) -> Iterator[list[JobView]]:
        """The views, some at a time, while the step's progress is told and what is held is kept."""
        done, total = 0, max(self._total, self._states.total() if step != "copying" else 0)
        for portion in portions(views):
            self._beat()
            yield portion
            done += len(portion)
            self._tell(step, done, max(total, done))


def portions(views: Iterable[JobView]) -> Iterator[list[JobView]]:
    """The views in lists that are neither long nor large."""
    portion, size = list[JobView](), 0
    for view in views:
        portion.append(view)
        size += len(view.job.payload)
        if len(portion) == _PORTION_JOBS or size >= _PORTION_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


__all__ = ["Found", "MoveRefused", "Side", "move", "portions", "undo", "unfinished"]
