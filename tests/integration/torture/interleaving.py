"""Two who act at once, for every place at which the first can be held up: what the second does there, and what follows.

Not a test file. A `World` is a queue with jobs in every state, and actors with a store and a lease of their own, as if
each was a process. `Pause` holds up one of them before its Nth call, and lets another one act there, to its end. Where
that one has to wait for a lock, which it is told at once here, it acts when the first one is through.

What was done is noted, each note with the place where its act began; `World.check` compares the notes with each other
and with what is left when the one who holds the stream has worked off everything.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
import sqlalchemy as sa
from queue_stories import DONE, PAST_MS, STREAM, job

from queuekit import lease as lease_module
from queuekit import locks
from queuekit.backends.maildir import fsck
from queuekit.backends.maildir import mount as mount_module
from queuekit.backends.maildir.backend import FilesystemBackend
from queuekit.backends.sql import fsck as sql_fsck
from queuekit.backends.sql.backend import PersistenceKitBackend
from queuekit.completion import Completion
from queuekit.contract import JobView, Lease, QueueBackend
from queuekit.errors import BackendUnavailable, IllegalTransition, JobNotFound, LeaseLost, WriteFailed
from queuekit.ids import JobID
from queuekit.lease import DrainLease
from queuekit.lifecycle import State
from queuekit.status import ObservationStatus
from queuekit.testing.faults import FaultyOps
from queuekit.testing.jobs import FAR_MS

TTL = 600.0
PENDING, CLAIMED, ENDED = ("n1", "n2"), ("a1", "a2", "a3"), ("d1", "d2")
DUE, SCHEDULED, STRAY, RETRIED = "l1", "l2", "x1", "i1"
OLD_SECONDS = 600  # older than what a mount takes for left over
REFUSALS = (LeaseLost, JobNotFound, IllegalTransition)


class Pause:
    """Lets `other` act before the call of this number, once. `count`: the calls so far."""

    def __init__(self) -> None:
        self.count = 0
        self._at = 0
        self._other: Callable[[], None] | None = None

    def arm(self, at: int, other: Callable[[], None]) -> None:
        """Count from here."""
        self.count, self._at, self._other = 0, at, other

    def disarm(self) -> bool:
        """Count no more; whether the other one has acted."""
        acted, self._other = self._other is None, None
        return acted

    def before(self, *_: object) -> None:
        """A call is about to be made."""
        if self._other is not None:
            self.count += 1
            if self.count == self._at:
                other, self._other = self._other, None
                other()


class Watched:
    """A module some of whose functions are calls that can be held up."""

    fsync: Callable[..., Any]

    def __init__(self, module: Any, names: tuple[str, ...], pause: Pause) -> None:
        self._module = module
        for name in names:
            setattr(self, name, self._watched(getattr(module, name), pause))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    @staticmethod
    def _watched(real: Callable[..., Any], pause: Pause) -> Callable[..., Any]:
        def call(*args: Any, **keywords: Any) -> Any:
            pause.before()
            return real(*args, **keywords)

        return call


def watch_leases(monkeypatch: pytest.MonkeyPatch, pause: Pause) -> None:
    """The calls that leases and locks make can be held up, too."""
    import fcntl

    calls = ("open", "read", "write", "replace", "unlink", "close", "listdir")
    lease_calls = Watched(os, calls, pause)
    lease_calls.fsync = pause.before  # only a power cut could tell
    monkeypatch.setattr(lease_module, "os", lease_calls)
    monkeypatch.setattr(locks, "os", Watched(os, ("open", "unlink", "ftruncate", "pwrite"), pause))
    monkeypatch.setattr(locks, "fcntl", Watched(fcntl, ("flock",), pause))
    monkeypatch.setattr(locks, "_held_guard", contextlib.nullcontext())
    monkeypatch.setattr(mount_module, "_SYNC_EACH", 2)  # a batch of three is synced behind one barrier


class Store(Protocol):
    """Where the queue is."""

    def open(self) -> QueueBackend:
        """It, once more, as another process would."""

    def lease(self, backend: QueueBackend, clock: Callable[[], float]) -> Lease:
        """A lease of one who has this clock."""

    def check(self) -> None:
        """Fail when it is not in order, at rest."""


class Folder:
    """A maildir."""

    def __init__(self, path: Path, pause: Pause) -> None:
        self.root = path / "spool"
        self._pause = pause

    def open(self) -> FilesystemBackend:
        ops = FaultyOps(self._pause.before, syncing=False)
        backend = FilesystemBackend(self.root, ops=ops, patience=0)
        ops.arm()
        return backend

    def lease(self, backend: QueueBackend, clock: Callable[[], float]) -> DrainLease:
        assert isinstance(backend, FilesystemBackend)
        return DrainLease(backend.root, STREAM, os.urandom(8).hex(), TTL, monotonic=clock, patience=0)

    def check(self) -> None:
        found = fsck.examine(self.root)
        assert [each for each in found if each.severity is not fsck.Severity.NOTE] == []
        assert os.listdir(self.root / "tmp") == []


class SqliteFile:
    """A database in a file."""

    def __init__(self, path: Path, pause: Pause) -> None:
        self.url = f"sqlite:{path}/jobs.db"
        self._pause = pause

    def open(self) -> PersistenceKitBackend:
        backend = PersistenceKitBackend(self.url, patience=0, durability="none")
        backend.pending_count()
        engine = backend.database._engine
        assert engine is not None
        for name in ("before_cursor_execute", "commit"):
            sa.event.listen(engine, name, self._pause.before)
        return backend

    def lease(self, backend: QueueBackend, clock: Callable[[], float]) -> Lease:
        lease: Any = backend.lease(STREAM, TTL)
        lease._file._monotonic = clock
        return lease

    def check(self) -> None:
        found = sql_fsck.examine(self.url, deep=True)
        assert [each for each in found if each.severity is not fsck.Severity.NOTE] == []


@dataclasses.dataclass(frozen=True)
class Note:
    """What an actor has done to a job ("" = to the stream). `begun`: how many notes there were when its act began."""

    what: str
    job: str
    who: str
    begun: int
    status: str = ""


class Actor:
    """One of those who act, with a store and a lease of its own. `passed`: seconds that its clock is ahead."""

    def __init__(self, name: str, store: Store) -> None:
        self.name = name
        self.passed = 0.0
        self.at_home = False
        self.queue = store.open()
        self.lease = store.lease(self.queue, lambda: time.monotonic() + self.passed)

    @property
    def holds(self) -> bool:
        """Whether the stream is its."""
        try:
            self.lease.verify()
        except LeaseLost:
            return False
        return True


@dataclasses.dataclass(frozen=True)
class Act:
    """What one actor does. `again`: the job that it sends although it is there; `only`: the kind of store it is for."""

    name: str
    who: str
    do: Callable[[World, Actor], None]
    again: str = ""
    only: type[Store] | None = None

    def __str__(self) -> str:
        return f"{self.who} {self.name}"


class World:
    """A queue in which A holds the stream and has jobs in flight, B and C stand by, and P and Q are people."""

    def __init__(self, store: Store, acting: Collection[str]) -> None:
        """`acting`: who will act; A and P are always there."""
        self.store = store
        self.notes: list[Note] = []
        self.accepted: set[str] = set()
        self.drafts_went = False
        self._begun = 0
        self.actors = {name: Actor(name, store) for name in sorted({*"AP", *acting} - {*"BC"})}
        self._leave_a_stray()
        self._fill()
        for name in sorted({*"BC"} & {*acting}):
            self.actors[name] = Actor(name, store)
            assert not self.actors[name].lease.try_acquire()
            self.actors[name].passed = 2 * TTL

    def _leave_a_stray(self) -> None:
        """A job that a former holder had in flight."""
        ghost = Actor("ghost", self.store)
        self.accept(STRAY)
        assert ghost.lease.try_acquire()
        self.claim_all(ghost)
        ghost.lease.release()
        self.note("gave back", ghost, STRAY)
        ghost.queue.close()

    def _fill(self) -> None:
        a = self.actors["A"]
        assert a.lease.try_acquire()
        a.at_home = True
        retried = (RETRIED,) if isinstance(self.store, Folder) else ()
        for id in (*ENDED, *retried):
            self.accept(id)
        self.claim_all(a)
        self.complete(a, *ENDED, *retried)
        for id in retried:
            self._cut_off_a_retry(id)
        for id in CLAIMED:
            self.accept(id)
        self.claim_all(a)
        for id in PENDING:
            self.accept(id)
        self.accept(DUE, PAST_MS)
        self.accept(SCHEDULED, FAR_MS)

    def _cut_off_a_retry(self, id: str) -> None:
        assert isinstance(self.store, Folder)
        (name,) = (each for each in os.listdir(self.store.root / "done") if each.endswith(f"-{id}"))
        os.rename(self.store.root / "done" / f"{id}.signal", self.store.root / ".workerpool" / "retry" / name)
        self.note("retried", self.actors["P"], id)

    # -- what actors do, and note

    def note(self, what: str, who: Actor, job: str = "", status: str = "") -> None:
        """Remember that it was done."""
        self.notes.append(Note(what, job, who.name, self._begun, status))

    @contextlib.contextmanager
    def beginning(self, what: str, who: Actor, job: str) -> Iterator[None]:
        """Note what may have happened also when an error comes of it, unless it is refused or has to wait."""
        try:
            yield
        except (*REFUSALS, BackendUnavailable):
            raise
        except BaseException:
            self.note(what, who, job)
            raise
        self.note(what, who, job)

    def accept(self, id: str, due_ms: int | None = None) -> None:
        """A job is sent by P."""
        self.actors["P"].queue.write(job(id), due_ms=due_ms)
        self.accepted.add(id)

    def claim_all(self, who: Actor) -> None:
        """Claim what there is, to run it."""
        for claimed in who.queue.drain_available(STREAM, lease=who.lease):
            self.note("ran", who, claimed.job.id)

    def complete(self, who: Actor, *ids: str) -> None:
        """Reply to some jobs in one batch; noted when all of them count."""
        ended = who.queue.complete_batch([Completion(JobID(id), DONE) for id in ids], lease=who.lease)
        if ended == len(ids):
            for id in ids:
                self.note("ended", who, id, DONE)

    def play(self, act: Act) -> str:
        """`done`, `refused`, or `busy`: to be played again when nobody is held up."""
        before, self._begun = self._begun, len(self.notes)
        try:
            act.do(self, self.actors[act.who])
        except REFUSALS:
            return "refused"
        except BackendUnavailable:
            return "busy"
        except WriteFailed as error:
            if "is locked by somebody else" in str(error):
                return "busy"
            assert self.drafts_went, "nothing kept it from being written"
            return "refused"
        finally:
            self._begun = before
        return "done"

    # -- what follows

    def live_on(self) -> None:
        """Whoever holds the stream works off everything; nobody has to be restarted for it."""
        holders = [each for each in self.actors.values() if each.holds]
        assert len(holders) <= 1
        holder = holders[0] if holders else self._successor()
        person = self.actors["P"].queue
        for view in list(person.jobs({State.LATER})):
            assert isinstance(view, JobView)
            with contextlib.suppress(IllegalTransition):  # another copy of it is pending
                person.release(view.job.id)
        if not holder.at_home:
            holder.queue.reclaim_in_flight(STREAM, lease=holder.lease)
        for _ in range(2):
            holder.queue.look_again()
            holder.queue.rescue_strays(STREAM, lease=holder.lease)
            if isinstance(holder.queue, FilesystemBackend):
                holder.queue.finish_intents(STREAM, lease=holder.lease)
            self.claim_all(holder)
            mine = {each.job for each in self.notes if (each.what, each.who) == ("ran", holder.name)}
            for id in sorted(mine & {each.id for each in holder.queue.in_flight(STREAM)}):
                self.complete(holder, id)
        assert holder.queue.tally().outstanding == 0, "stuck for ever"

    def _successor(self) -> Actor:
        self.actors["D"] = successor = Actor("D", self.store)
        assert successor.lease.try_acquire(), "nobody holds the stream, and nobody can"
        self.note("took over", successor)
        return successor

    # -- the oracle

    def check(self, first: Act, second: Act) -> None:
        """Nothing is lost, ends twice or runs again without a cause, and the last word is what is kept."""
        resent = {each.again for each in (first, second) if each.again}
        pruned = any(each.what == "pruned" for each in self.notes)
        queue = self.actors["P"].queue
        for id in sorted(self.accepted):
            self._check_job(id, id in resent and pruned)
            view = queue.look_up(id)
            assert pruned or view is not None, f"{id} is lost"
            if view is not None:
                assert view.state is State.DONE, f"{id} is {view.state}"
                assert view.signal is not None, f"{id} has no record of its end"
                self._check_record(id, view.signal.status, view.dossier, pruned)
        self.store.check()

    def _check_job(self, id: str, lives_again: bool) -> None:
        mine = [(place, each) for place, each in enumerate(self.notes) if each.job == id]
        count = {what: sum(each.what == what for _, each in mine) for what in ("ran", "ended", "retried", "gave back")}
        lives = 1 + count["retried"] + lives_again
        assert count["ended"] <= lives, f"{id} was acknowledged twice"
        causes = count["gave back"] + sum(each.what == "took over" for each in self.notes)
        causes += sum(self._came_late(place, each) for place, each in mine)
        assert count["ran"] <= lives + causes, f"{id} ran again without a cause"
        for place, end in mine:
            again = [at for at, each in mine if each.what == "ran" and at > place and not self._came_late(at, each)]
            for at in again if end.what == "ended" else ():
                retried = any(each.what == "retried" and end.begun <= when < at for when, each in mine)
                assert retried or lives_again, f"{id} ran again after its end"

    def _came_late(self, place: int, note: Note) -> bool:
        """Whether somebody took the stream over during the claim that led to this run: it counts for nothing."""
        return note.what == "ran" and any(each.what == "took over" for each in self.notes[note.begun : place])

    def _check_record(self, id: str, status: ObservationStatus, dossier: Any, pruned: bool) -> None:
        ends = [each.status for each in self.notes if (each.what, each.job) == ("ended", id)]
        retries = sum((each.what, each.job) == ("retried", id) for each in self.notes)
        if len(ends) == 1 and not retries:
            assert status == ends[0], f"the end of {id} was replaced"
        if retries and not pruned and not self.drafts_went:
            assert len((dossier or {}).get("earlier_ends", ())) == retries, f"an earlier end of {id} is not kept"

    def close(self) -> None:
        """Let go of everything."""
        for each in self.actors.values():
            each.lease.release()
            each.queue.close()


# -- the acts of the holder


def _reply(w: World, me: Actor) -> None:
    me.queue.complete("a1", DONE, lease=me.lease)
    w.note("ended", me, "a1", DONE)


def _reply_to_batch(w: World, me: Actor) -> None:
    w.complete(me, *CLAIMED)


def _block(w: World, me: Actor) -> None:
    me.queue.complete("a1", "blocked", dossier={"error": "no"}, lease=me.lease)
    w.note("ended", me, "a1", "blocked")


def _defer(w: World, me: Actor) -> None:
    with w.beginning("gave back", me, "a1"):
        me.queue.defer("a1", PAST_MS, error="again", lease=me.lease)


def _release(w: World, me: Actor) -> None:
    me.queue.release("a1", lease=me.lease)
    w.note("gave back", me, "a1")


def _rescue(w: World, me: Actor) -> None:
    me.queue.rescue_strays(STREAM, lease=me.lease)


def _finish_intents(w: World, me: Actor) -> None:
    assert isinstance(me.queue, FilesystemBackend)
    me.queue.finish_intents(STREAM, lease=me.lease)


def _heartbeat(w: World, me: Actor) -> None:
    me.lease.heartbeat()


def _give_up(w: World, me: Actor) -> None:
    me.lease.release()


def _prune_own(w: World, me: Actor) -> None:
    me.queue.prune(-60.0, stream=STREAM, lease=me.lease)
    w.note("pruned", me)


# -- of those who stand by


def _take_over(w: World, me: Actor) -> None:
    fence = me.lease.fence
    if me.lease.try_acquire() and me.lease.fence != fence:
        w.note("took over", me)


def _bring_home(w: World, me: Actor) -> None:
    _take_over(w, me)
    if me.lease.fence:
        me.queue.reclaim_in_flight(STREAM, lease=me.lease)
        if isinstance(me.queue, FilesystemBackend):
            me.queue.finish_intents(STREAM, lease=me.lease)
        me.at_home = True


def _work_off(w: World, me: Actor) -> None:
    if not me.at_home:
        _bring_home(w, me)
    if me.at_home:
        w.claim_all(me)
        w.complete(me, *[each.job for each in w.notes if (each.what, each.who) == ("ran", me.name)])


# -- of people and producers


def _cancel(id: str) -> Callable[[World, Actor], None]:
    def act(w: World, me: Actor) -> None:
        me.queue.cancel(id)
        w.note("ended", me, id, "blocked")

    return act


def _run_now(w: World, me: Actor) -> None:
    me.queue.release(SCHEDULED)


def _retry(id: str) -> Callable[[World, Actor], None]:
    def act(w: World, me: Actor) -> None:
        with w.beginning("retried", me, id):
            me.queue.retry(id)

    return act


def _prune(w: World, me: Actor) -> None:
    me.queue.prune(-60.0)
    w.note("pruned", me)


def _send(id: str, due_ms: int | None = None) -> Callable[[World, Actor], None]:
    def act(w: World, me: Actor) -> None:
        me.queue.write(job(id), due_ms=due_ms)
        w.accepted.add(id)

    return act


def _send_batch(w: World, me: Actor) -> None:
    ids = ("z1", "z2", "z3")
    me.queue.write_batch([job(id) for id in ids])
    w.accepted.update(ids)


def _reply_from_elsewhere(w: World, me: Actor) -> None:
    me.queue.complete("a1", "needs_context")
    w.note("ended", me, "a1", "needs_context")


def _release_from_elsewhere(w: World, me: Actor) -> None:
    me.queue.release("a1")
    w.note("gave back", me, "a1")


def _sweep(w: World, me: Actor) -> None:
    """The drafts are old by now, and somebody mounts the queue."""
    assert isinstance(w.store, Folder)
    for draft in (w.store.root / "tmp").iterdir():
        os.utime(draft, (time.time() - OLD_SECONDS,) * 2)
        w.drafts_went = True
    w.store.open().close()


def _repair(w: World, me: Actor) -> None:
    assert isinstance(w.store, Folder)
    fsck.repair(w.store.root, fsck.examine(w.store.root, patience=0), patience=0)


ACTS = [
    *(
        Act(name, "A", do)
        for name, do in {
            "claims": lambda w, me: w.claim_all(me),
            "replies": _reply,
            "replies to a batch": _reply_to_batch,
            "blocks": _block,
            "defers": _defer,
            "releases": _release,
            "rescues strays": _rescue,
            "renews its lease": _heartbeat,
            "gives its lease up": _give_up,
            "prunes": _prune_own,
        }.items()
    ),
    Act("finishes retries", "A", _finish_intents, only=Folder),
    Act("takes over", "B", _take_over),
    Act("brings home", "B", _bring_home),
    Act("works everything off", "B", _work_off),
    Act("brings home", "C", _bring_home),
    *(
        Act(name, "P", do)
        for name, do in {
            "cancels a pending one": _cancel("n1"),
            "cancels a deferred one": _cancel(SCHEDULED),
            "runs a deferred one now": _run_now,
            "retries an ended one": _retry("d1"),
            "retries one that is just ending": _retry("a1"),
            "prunes": _prune,
            "sends": _send("z0"),
            "sends for later": _send("z0", PAST_MS),
            "sends a batch": _send_batch,
            "replies from elsewhere": _reply_from_elsewhere,
            "releases from elsewhere": _release_from_elsewhere,
        }.items()
    ),
    *(
        Act(f"sends {what} again", "P", _send(id), again=id)
        for what, id in {"a pending one": "n1", "one in flight": "a1", "an ended one": "d1"}.items()
    ),
    Act("cancels a pending one", "Q", _cancel("n1")),
    Act("cancels a deferred one", "Q", _cancel(SCHEDULED)),
    Act("runs a deferred one now", "Q", _run_now),
    Act("retries an ended one", "Q", _retry("d1")),
    Act("prunes", "Q", _prune),
    Act("sends a pending one again", "Q", _send("n1"), again="n1"),
    Act("sends an ended one again", "Q", _send("d1"), again="d1"),
    Act("mounts and sweeps", "Q", _sweep, only=Folder),
    Act("repairs", "Q", _repair, only=Folder),
]


def acts_in(kind: type[Store]) -> Iterator[Act]:
    """Those that there are in such a store."""
    return (each for each in ACTS if each.only in {None, kind})


def pairs(first: Act, kind: type[Store]) -> Iterator[Act]:
    """Who may act while the first one is held up: everybody else."""
    return (each for each in acts_in(kind) if each.who != first.who)


def interleave(store: Store, pause: Pause, first: Act, second: Act, at: int) -> bool:
    """Play one interleaving and judge it; whether there was a call of that number to be held up at."""
    world = World(store, (first.who, second.who))
    outcomes: list[str] = []
    pause.arm(at, lambda: outcomes.append(world.play(second)))
    outcome = world.play(first)
    held_up = pause.disarm()
    if outcomes != ["done"] and outcomes != ["refused"]:
        outcomes.append(world.play(second))
    assert outcome != "busy", "nobody was there any more to wait for"
    assert outcomes[-1] != "busy", "nobody was there any more to wait for"
    world.live_on()
    world.check(first, second)
    world.close()
    return held_up
