"""Who acts in the model, step by step: two drainers, a producer, a person, a pruner, and what goes wrong.

Not a test file. A step is one system call that others can see (or one look that what follows depends on), in the code's
order, and says which function of `queuekit` it stands for. What happens between taking the stream's lock and the first
look is one step, for nobody can come between. A process can die, or stop and go on much later, between any two steps.

`RULES` are the rules of the design that can be taken away, one by one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from model_world import BEGUN, CANCELLED, DEAD, IMPOSTOR, PERSON, PLACES, PRUNER, TOLD, UNSYNCED, Drainer, World

RULES = {
    "lock: acquire": "the lease is judged and taken under the stream's lock",
    "lock: heartbeat": "the lease is looked at and renewed under the lock",
    "lock: give up": "the lease is looked at and removed under the lock",
    "lock: complete": "a reply looks at lease and job and moves under the lock",
    "lock: defer": "a retry's putting off looks and moves under the lock",
    "lock: release": "giving back looks and moves under the lock",
    "lock: put back": "what was claimed and cannot be read goes back under the lock",
    "lock: rescue": "bringing home strays looks and moves under the lock",
    "lock: twin": "a second copy of what has ended is looked at and dropped under the lock",
    "lock: pending twin": "a second copy of what is in flight is looked at and dropped under the lock",
    "lock: intents": "a retry that was cut off is finished under the lock",
    "lock: retry": "a person's retry is done under the lock",
    "lock: cancel": "a person's cancel is done under the lock",
    "lock: prune": "an old record is looked at and removed under the lock",
    "lock: promote": "what is due is looked at and moved under the lock",
    "lease: promote": "what is due is moved under one's own lease only",
    "lease: heartbeat": "a heartbeat never takes a lease that is another's: only try_acquire does",
    "lease: give up": "only one's own lease is removed",
    "lease: complete": "a reply is made under one's own lease only",
    "lease: defer": "a job is put off under one's own lease only",
    "lease: release": "a job is given back under one's own lease only",
    "lease: rescue": "strays are brought home under one's own lease only",
    "lease: twin": "a second copy of what has ended is dropped under one's own lease only",
    "lease: intents": "retries are finished under one's own lease only",
    "lease: put back": "what was claimed and cannot be read goes back under one's own lease only",
    "alive": "a living holder's lease is stale only after its silence, not by a clock",
    "no replace: claim": "a claim's rename replaces nothing",
    "no replace: send": "a send's rename replaces nothing",
    "no replace: cancel": "a cancel's rename into cur/ replaces nothing",
    "one rename: claim": "a claim is one rename, not a copy and an unlink",
    "look again: twin": "a second copy of what has ended is dropped after a second look, under the lock",
    "look again: pending twin": "a second copy of what is in flight is dropped after a second look, under the lock",
    "twin at claim": "a claim looks whether the job has ended",
    "twin at cancel": "a cancel looks whether the job has ended or is in flight",
    "twin: both": "a job has ended when its signal and its file are in done/, not with a signal alone",
    "reply looks": "a reply looks whether the job is in cur/ before it writes",
    "signal first": "a reply moves the signal before the job",
    "sync: send": "send syncs new/ before it returns",
    "sync: complete": "a reply syncs done/ before it is acknowledged",
    "sync: cancel": "a cancel syncs done/ before it returns",
    "sync: retry": "a retry syncs new/ and done/ before it removes its intent",
    "sync: promote": "of two copies the deferred one goes when the pending one is there to stay",
    "sync: cancel copy": "a cancel drops its copy when the other one is there to stay",
    "sync: intents": "an intent goes when the folders that the job has moved in are synced",
    "data: send": "a job's content is synced before its rename",
    "data: signal": "a signal's content is synced before its rename",
    "data: defer": "the version with one attempt more is synced before its rename",
    "data: retry": "the version with a fresh record is synced before its rename",
    "rescue": "a full look brings home what is in flight and not claimed here",
    "drop claims": "who loses the lease forgets its claims",
    "one result": "a result of an earlier run is dropped when its job is claimed again",
    "repeated acts": "a reply or deferral that has moved the job moves no later claim of it",
    "fence": "a claim of an earlier tenure counts no more",
    "intents first": "a retry keeps the signal as its intent before anything else",
    "finish intents": "retries that were cut off are finished",
    "close intents": "the intent of a job that has ended again is removed, the job not moved",
    "keep intents": "a job whose retry was cut off is not pruned",
}
STANDS_FOR = {
    "acquire": "DrainLease.try_acquire",
    "beat": "DrainLease.heartbeat",
    "give up": "DrainLease.release",
    "claim": "Drainer._take",
    "look": "Drainer._accept",
    "twin": "Drainer._drop_own_twin",
    "pending twin": "Drainer._drop_pending_twin",
    "put back": "Drainer._give_back",
    "complete": "Settler._finish",
    "defer": "Settler.defer",
    "release": "Settler.release",
    "rescue": "Settler.rescue",
    "adopt": "Settler.adopt",
    "intents": "Keeper._finish_retry",
    "promote": "Deferred._promote",
    "retry": "Keeper.retry",
    "cancel": "Keeper.cancel",
    "prune": "Keeper._prune_one",
    "send": "Sender.send",
}
Act = Callable[[World], None]
Move = tuple[str, bool, Act]  # in words; whether it is part of the ordinary course; what it does


@dataclasses.dataclass(frozen=True)
class Actors:
    """All moves of all actors. `off`: the rules that are taken away; `adopts`: a crash is charged at a take-over."""

    off: frozenset[str] = frozenset()
    adopts: bool = False

    def moves(self, world: World) -> Iterator[Move]:
        for index in range(len(world.drainers)):
            yield from _DrainerSteps(self, world, index).moves()
        yield from self._producer(world)
        yield from self._person(world)
        yield from self._pruner(world)
        yield from self._power(world)

    def on(self, rule: str) -> bool:
        assert rule in RULES, rule
        return rule not in self.off

    # -- the stream's lock

    def free(self, world: World, rule: str) -> bool:
        """Whether an act can begin: the lock is free, or the rule that takes it is away."""
        return not world.lock or not self.on(rule)

    def take(self, world: World, rule: str, who: int) -> None:
        if self.on(rule):
            assert not world.lock
            world.lock = who

    def written(self, rule: str, value: int) -> int:
        return value if self.on(rule) else value + UNSYNCED

    # -- the producer

    def _producer(self, world: World) -> Iterator[Move]:
        if world.producer == "send":
            yield "the producer renames the job from tmp/ to new/ (Sender._publish)", True, self._publish
        if world.producer == "sync":
            yield "the producer syncs new/ and is told: accepted (Sender.send)", True, self._accepted
        if world.resends and world.producer in {"sync", "told", "unknown"}:
            yield "the producer sends the same job again", False, _resend
        if world.impostors and world.new > 0 and world.accepted:
            yield "another producer sends another job of the same name (Sender._publish)", False, self._imposture

    def _publish(self, world: World) -> None:
        if world.new == IMPOSTOR and self.on("no replace: send"):
            world.producer = "refused"
            return
        if not world.new or not self.on("no replace: send"):
            world.put("new", self.written("data: send", world.fresh()))
        world.producer = "sync"

    def _accepted(self, world: World) -> None:
        if self.on("sync: send"):
            world.sync("new")
        world.pruned = world.pruned and not (world.new or world.cur or world.later)
        world.accepted, world.producer = True, "told"

    def _imposture(self, world: World) -> None:
        world.impostors -= 1
        if not self.on("no replace: send"):
            world.put("new", IMPOSTOR)

    # -- a person

    def _person(self, world: World) -> Iterator[Move]:
        if not world.person:
            if world.retries and world.done and self.free(world, "lock: retry"):
                yield "the person begins a retry (Keeper.retry)", False, self._begin_retry
            if world.cancels and self.free(world, "lock: cancel"):
                for place in ("new", "later"):
                    if getattr(world, place):
                        yield (
                            f"the person begins to cancel the job in {place}/ (Keeper.cancel)",
                            False,
                            lambda w, place=place: self._begin_cancel(w, place),
                        )
            return
        label, act = self._person_acts()[world.person]
        yield label, True, act
        if world.kills:
            yield "the person's process is killed", False, _kill_person

    def _person_acts(self) -> dict[str, tuple[str, Act]]:
        return {
            "retry older": (
                "the person's retry removes an older intent (Keeper._close_intent)",
                self._close_older,
            ),
            "retry intent": ("the person's retry renames the signal to its intent (Keeper.retry)", self._make_intent),
            "retry replace": (
                "the person's retry replaces the job in done/ by a fresh one (Keeper._resume_retry)",
                lambda w: self._replace_done(w, "person", "retry move"),
            ),
            "retry move": (
                "the person's retry renames the job from done/ to new/ (Keeper._resume_retry)",
                lambda w: _move_retried(w, "person", "retry sync"),
            ),
            "retry sync": (
                "the person's retry syncs new/ and done/ (Keeper._resume_retry)",
                lambda w: self._sync_retry(w, "person", "retry close"),
            ),
            "retry close": ("the person's retry removes its intent and is done (Keeper._close_intent)", _end_retry),
            "cancel drop": ("the person's cancel drops a second copy (Keeper.cancel)", self._cancel_twin),
            "cancel claim": ("the person's cancel renames the job to cur/ (Keeper.cancel)", self._cancel_claim),
            "cancel signal": (
                "the person's cancel renames its signal to done/ (Keeper._end_claimed)",
                self._cancel_signal,
            ),
            "cancel job": ("the person's cancel renames the job from cur/ to done/ (Keeper._end_claimed)", _cancel_job),
            "cancel sync": ("the person's cancel syncs done/ and is done (Keeper.cancel)", self._cancel_sync),
        }

    def _begin_retry(self, world: World) -> None:
        world.retries -= 1
        if world.signal:
            self.take(world, "lock: retry", PERSON)
            world.person = "retry older" if world.intent else "retry intent"
        elif world.intent:
            self.take(world, "lock: retry", PERSON)
            world.person = "retry replace"

    def _close_older(self, world: World) -> None:
        self.remove_intent(world)
        world.person = "retry intent"

    def remove_intent(self, world: World) -> None:
        if world.intent:
            if self.on("sync: intents"):
                world.sync("new")
                world.sync("done")
            world.remove("intent")

    def _make_intent(self, world: World) -> None:
        if not world.signal:
            _leave_person(world)
            return
        if self.on("intents first"):
            world.move("signal", "intent", 1 if 0 < world.signal < UNSYNCED else world.signal)
        else:
            world.remove("signal")
        world.acknowledged, world.owed, world.cause = False, BEGUN, True
        _come_too_late(world)
        world.person = "retry replace"

    def _replace_done(self, world: World, who: str, then: str) -> None:
        if world.done:
            world.put("done", self.written("data: retry", world.fresh()))
            _set(world, who, then)
        else:
            _give_up_retry(world, who)

    def _sync_retry(self, world: World, who: str, then: str) -> None:
        if self.on("sync: retry"):
            world.sync("new")
            world.sync("done")
        _set(world, who, then)

    def _begin_cancel(self, world: World, place: str) -> None:
        world.cancels -= 1
        self.take(world, "lock: cancel", PERSON)
        world.target = place
        twin = self.on("twin at cancel") and (world.has_ended or bool(world.cur))
        world.person = "cancel drop" if twin else "cancel claim"

    def _cancel_twin(self, world: World) -> None:
        if getattr(world, world.target):
            if self.on("sync: cancel copy"):
                world.sync("cur" if world.cur else "done")
            world.remove(world.target)
        _leave_person(world)

    def _cancel_claim(self, world: World) -> None:
        if not getattr(world, world.target) or (world.cur and self.on("no replace: cancel")):
            _leave_person(world)
            return
        world.move(world.target, "cur")
        world.person = "cancel signal"

    def _cancel_signal(self, world: World) -> None:
        place_signal(world, self.written("data: signal", CANCELLED))
        world.person = "cancel job"

    def _cancel_sync(self, world: World) -> None:
        if self.on("sync: cancel"):
            world.sync("done")
        world.acknowledged = True
        _leave_person(world)

    # -- the pruner

    def _pruner(self, world: World) -> Iterator[Move]:
        if not world.pruner:
            if world.prunes and world.done and self.free(world, "lock: prune"):
                yield "the pruner looks at the record (Keeper._prune_one)", False, self._begin_prune
            return
        label, act = {
            "close": ("the pruner removes an older intent (Keeper._close_intent)", self._prune_intent),
            "signal": ("the pruner unlinks the signal (Keeper._prune_one)", _prune_signal),
            "job": ("the pruner unlinks the job (Keeper._prune_one)", _prune_job),
        }[world.pruner]
        yield label, True, act
        if world.kills:
            yield "the pruner is killed", False, _kill_pruner

    def _begin_prune(self, world: World) -> None:
        world.prunes -= 1
        if not world.signal and world.intent and self.on("keep intents"):
            return
        self.take(world, "lock: prune", PRUNER)
        world.pruner = "close" if world.intent else "signal" if world.signal else "job"

    def _prune_intent(self, world: World) -> None:
        self.remove_intent(world)
        world.pruner = "signal"

    # -- the power

    def _power(self, world: World) -> Iterator[Move]:
        if world.cuts:
            for disk in world.disks():
                yield (
                    f"the power is cut; {_told(disk)} left",
                    False,
                    lambda w, disk=disk: w.lose_power(disk),
                )


class _DrainerSteps:
    """The moves of one drainer in one state. It is a stream process: one thread, one act at a time."""

    def __init__(self, actors: Actors, world: World, index: int) -> None:
        self._actors = actors
        self._index = index
        self._who = index + 1
        self._world = world
        self._name = f"drainer {'AB'[index]}"

    def moves(self) -> Iterator[Move]:
        me = self._me(self._world)
        yield from getattr(self, "_at_" + me.at.replace(" ", "_").replace(":", ""))(self._world)
        if self._world.kills and me.at != "standby":
            yield f"{self._name} is killed and started again", False, self._killed

    # -- words and tools

    def _me(self, world: World) -> Drainer:
        return world.drainers[self._index]

    def _say(self, what: str, stands_for: str) -> str:
        return f"{self._name} {what} ({STANDS_FOR[stands_for]})"

    def _go(self, world: World, at: str) -> None:
        self._me(world).at = at

    def _unlock(self, world: World) -> None:
        if world.lock == self._who:
            world.lock = 0

    def _lost(self, world: World) -> None:
        """LeaseLost: its workers are killed, its claims forgotten (Settler._acting, StreamLoop._lose_lease)."""
        me = self._me(world)
        self._unlock(world)
        if self._actors.on("drop claims"):
            me.hold, me.old, me.replied = "", False, False
        me.at = "standby"

    def _acting(self, act: str) -> Callable[[World, Callable[[], str]], None]:
        """Take the lock, look at the lease, look at what `then` looks at: one step; `then` says where to go on."""

        def begin(world: World, then: Callable[[], str]) -> None:
            self._actors.take(world, f"lock: {act}", self._who)
            if self._actors.on(f"lease: {act}") and world.lease != self._who:
                self._lost(world)
                return
            at = then()
            if at in {"idle", "intents"}:
                self._unlock(world)
            self._go(world, at)

        return begin

    def _killed(self, world: World) -> None:
        world.kills -= 1
        self._unlock(world)
        if world.lease == self._who:
            world.lease = DEAD
        world.cause = True
        self._me(world).die()

    # -- the lease

    def _at_standby(self, world: World) -> Iterator[Move]:
        if not self._actors.free(world, "lock: acquire"):
            return
        judge = self._say("finds the lease free to take", "acquire")
        if world.lease in {0, DEAD, self._who}:
            yield judge, True, lambda w: self._judged(w, "")
            return
        if world.stales:
            yield f"the holder is stuck for a ttl; {judge}", False, lambda w: self._judged(w, "stales")
        if world.steps and not self._actors.on("alive"):
            yield f"the clock is set forward; {judge}", False, lambda w: self._judged(w, "steps")

    def _judged(self, world: World, why: str) -> None:
        self._actors.take(world, "lock: acquire", self._who)
        if why:
            setattr(world, why, getattr(world, why) - 1)
        self._go(world, "take stale" if why == "stales" else "take dead" if world.lease == DEAD else "take")

    def _at_take(self, world: World) -> Iterator[Move]:
        yield self._say("writes the lease", "acquire"), True, lambda w: self._taken(w, "rescue")

    def _at_take_stale(self, world: World) -> Iterator[Move]:
        yield self._say("writes the lease", "acquire"), True, self._taken_from_stuck

    def _taken_from_stuck(self, world: World) -> None:
        world.cause = True
        self._taken(world, "rescue")

    def _at_take_dead(self, world: World) -> Iterator[Move]:
        yield from self._at_take(world)
        if self._actors.adopts and world.cur:
            yield (
                self._say("writes the lease; the dead one was running the job", "acquire"),
                True,
                lambda w: self._taken(w, "adopt"),
            )

    def _taken(self, world: World, then: str) -> None:
        world.lease = self._who
        me = self._me(world)
        me.old = bool(me.hold) and self._actors.on("fence")
        if self._actors.on("drop claims"):  # reclaim begins with it
            me.hold, me.old = "", False
        self._unlock(world)
        me.at = then

    def _at_adopt(self, world: World) -> Iterator[Move]:
        if not self._actors.free(world, "lock: rescue"):
            return

        def look(w: World) -> str:
            if w.cur and w.has_ended:
                w.remove("cur")
            elif w.cur:
                self._me(w).hold = "failed"
            return "idle"

        begin = self._acting("rescue")
        yield self._say("charges the crash of the job in cur/", "adopt"), True, lambda w: begin(w, lambda: look(w))

    def _at_beat(self, world: World) -> Iterator[Move]:
        yield self._say("renews the lease", "beat"), True, self._beaten

    def _beaten(self, world: World) -> None:
        world.lease = self._who
        self._unlock(world)
        self._go(world, "idle")

    def _at_give_up(self, world: World) -> Iterator[Move]:
        yield self._say("removes the lease and stops", "give up"), True, self._given_up

    def _given_up(self, world: World) -> None:
        world.lease = 0
        self._unlock(world)
        self._me(world).die()

    # -- between acts

    def _at_idle(self, world: World) -> Iterator[Move]:
        me, actors = self._me(world), self._actors
        mine = world.lease == self._who
        if not mine and actors.on("lease: heartbeat") and actors.free(world, "lock: heartbeat"):
            yield self._say("finds at a heartbeat that its lease is lost", "beat"), True, self._lost
        if world.beats and actors.free(world, "lock: heartbeat") and (mine or not actors.on("lease: heartbeat")):
            begin = self._acting("heartbeat")
            yield (
                self._say("finds the lease its own, or does not look", "beat"),
                False,
                lambda w: _spend(w, "beats", lambda: begin(w, lambda: "beat")),
            )
        yield from self._handler(world, me)
        if world.new and mine:
            yield self._say("means to claim", "claim"), True, lambda w: self._go(w, "claim")
        if world.later and actors.free(world, "lock: promote"):
            promote = self._acting("promote")
            yield (
                self._say("looks at what is due", "promote"),
                True,
                lambda w: promote(w, lambda: "promote" if w.later else "idle"),
            )
        if world.cur and not me.hold and actors.on("rescue") and actors.free(world, "lock: rescue"):
            yield from self._at_rescue(world)
        if world.intent and actors.on("finish intents"):
            yield from self._at_intents(world)

    def _handler(self, world: World, me: Drainer) -> Iterator[Move]:
        if me.hold == "claimed":
            yield f"{self._name} starts the handler", True, self._started
            if world.stops and self._actors.free(world, "lock: release"):
                begin = self._acting("release")
                yield (
                    self._say("stops and looks at a job not started", "release"),
                    False,
                    lambda w: _spend(w, "stops", lambda: begin(w, lambda: "release" if w.cur else self._dropped(w))),
                )
        if me.hold == "running":
            yield f"the handler of {self._name} is done", True, lambda w: self._holds(w, "good")
            if world.fails:
                yield f"the handler of {self._name} fails", False, self._failed
        if me.hold == "good" and self._actors.free(world, "lock: complete"):
            yield self._say("looks before it replies", "complete"), True, self._begin_reply
        if me.hold == "failed" and self._actors.free(world, "lock: defer"):
            defer = self._acting("defer")
            yield (
                self._say("looks before it puts the job off", "defer"),
                True,
                lambda w: defer(w, lambda: self._where_to_defer(w)),
            )
        if not me.hold and world.stops and self._actors.free(world, "lock: give up"):
            yield self._say("stops and looks at the lease", "give up"), False, self._begin_giving_up

    def _holds(self, world: World, what: str) -> None:
        self._me(world).hold = what

    def _started(self, world: World) -> None:
        me = self._me(world)
        me.hold = "running"
        if world.lease != self._who:
            world.cause = True  # a holder that was stuck and does not know it: this run and the next are excused
        elif world.acknowledged:
            world.wrong = "the job runs again after its end was acknowledged"
        elif world.started and not world.cause:
            world.wrong = "the job runs again, and nothing had failed, died or been stuck"
        else:
            world.cause = False
        world.started, world.owed = True, 0

    def _failed(self, world: World) -> None:
        world.fails -= 1
        world.cause = world.cause or world.lease == self._who
        self._me(world).hold = "failed"

    def _dropped(self, world: World) -> str:
        """The job is not where it was claimed: the outcome is dropped."""
        me = self._me(world)
        me.hold, me.old, me.replied = "", False, False
        return "idle"

    def _begin_giving_up(self, world: World) -> None:
        world.stops -= 1
        self._actors.take(world, "lock: give up", self._who)
        if world.lease == self._who or not self._actors.on("lease: give up"):
            self._go(world, "give up")
        else:
            self._unlock(world)
            self._me(world).die()

    # -- claiming

    def _at_claim(self, world: World) -> Iterator[Move]:
        yield self._say("renames the job from new/ to cur/", "claim"), True, self._claim

    def _claim(self, world: World) -> None:
        actors = self._actors
        if not world.new:
            self._go(world, "idle")
        elif world.cur and actors.on("no replace: claim"):
            self._go(world, "pending twin")
        elif not actors.on("one rename: claim"):
            world.put("cur", world.fresh())
            self._go(world, "claim unlink")
        else:
            world.move("new", "cur")
            self._go(world, "look")

    def _at_claim_unlink(self, world: World) -> Iterator[Move]:
        yield self._say("unlinks the job in new/, which it has copied", "claim"), True, self._claim_unlink

    def _claim_unlink(self, world: World) -> None:
        if world.new:
            world.remove("new")
        self._go(world, "look")

    def _at_look(self, world: World) -> Iterator[Move]:
        yield self._say("reads what it has claimed, and looks into done/", "look"), True, self._look
        if world.errors and world.cur:
            yield self._say("cannot read what it has claimed", "look"), False, self._cannot_read

    def _look(self, world: World) -> None:
        if not world.cur:
            self._go(world, "idle")
        elif self._ended(world) and self._actors.on("twin at claim"):
            self._go(world, "twin")
        else:
            self._accept(world)

    def _ended(self, world: World) -> bool:
        return world.has_ended if self._actors.on("twin: both") else bool(world.signal)

    def _accept(self, world: World) -> None:
        me = self._me(world)
        if me.hold not in {"good", "failed"} or self._actors.on("one result"):
            me.hold = "claimed"
        me.old, me.replied, me.at = False, False, "idle"

    def _cannot_read(self, world: World) -> None:
        world.errors -= 1
        self._go(world, "put back")

    def _at_put_back(self, world: World) -> Iterator[Move]:
        if self._actors.free(world, "lock: put back"):
            begin = self._acting("put back")
            yield (
                self._say("looks before it puts it back", "put back"),
                True,
                lambda w: begin(w, lambda: "put back move" if w.cur else "idle"),
            )

    def _at_put_back_move(self, world: World) -> Iterator[Move]:
        yield self._say("renames the job from cur/ to new/", "put back"), True, self._put_back

    def _put_back(self, world: World) -> None:
        if world.cur:
            self._move_over(world, "cur", "new")
        self._unlock(world)
        self._go(world, "idle")

    def _at_twin(self, world: World) -> Iterator[Move]:
        if self._actors.free(world, "lock: twin"):
            begin = self._acting("twin")
            yield self._say("looks again", "twin"), True, lambda w: begin(w, lambda: self._look_again(w))

    def _look_again(self, world: World) -> str:
        if self._ended(world) or not self._actors.on("look again: twin"):
            return "twin drop"
        self._accept(world)
        return "idle"

    def _at_twin_drop(self, world: World) -> Iterator[Move]:
        yield self._say("drops its copy", "twin"), True, self._drop_twin

    def _drop_twin(self, world: World) -> None:
        if world.cur:
            world.remove("cur")
        self._unlock(world)
        self._go(world, "idle")

    def _at_pending_twin(self, world: World) -> Iterator[Move]:
        actors = self._actors
        if not actors.free(world, "lock: pending twin"):
            return
        if not actors.on("look again: pending twin"):
            yield self._say("drops the copy in new/ without a look", "pending twin"), True, self._drop_pending
        elif actors.on("lock: pending twin"):
            yield self._say("looks again, and drops the copy in new/", "pending twin"), True, self._look_at_pending
        else:
            yield (
                self._say("looks again, without the lock", "pending twin"),
                True,
                lambda w: self._go(w, "pending twin drop" if w.cur else "idle"),
            )

    def _at_pending_twin_drop(self, world: World) -> Iterator[Move]:
        yield self._say("drops the copy in new/", "pending twin"), True, self._drop_pending

    def _look_at_pending(self, world: World) -> None:
        if world.cur:
            self._drop_pending(world)
        self._go(world, "idle")

    def _drop_pending(self, world: World) -> None:
        if world.new:
            world.remove("new")
        self._go(world, "idle")

    # -- settling

    def _begin_reply(self, world: World) -> None:
        me = self._me(world)
        if me.old:
            self._dropped(world)
            return
        self._acting("complete")(world, lambda: self._where_to_reply(world))

    def _where_to_reply(self, world: World) -> str:
        me, first = self._me(world), "signal" if self._actors.on("signal first") else "job"
        if (world.cur and not self._has_moved(me)) or not self._actors.on("reply looks"):
            return f"reply {first}"
        if me.replied and world.done and world.signal % UNSYNCED == self._who:
            return "reply again"
        return self._dropped(world)

    def _has_moved(self, me: Drainer) -> bool:
        return me.replied and self._actors.on("repeated acts")

    def _at_reply_signal(self, world: World) -> Iterator[Move]:
        yield self._say("renames its signal into done/", "complete"), True, self._reply_signal

    def _reply_signal(self, world: World) -> None:
        place_signal(world, self._actors.written("data: signal", self._who))
        self._go(world, "reply job")
        if not self._actors.on("signal first"):
            self._replied(world)

    def _at_reply_job(self, world: World) -> Iterator[Move]:
        yield self._say("renames the job from cur/ to done/", "complete"), True, self._reply_job

    def _reply_job(self, world: World) -> None:
        if world.cur:
            self._move_over(world, "cur", "done")
        else:
            world.put("done", world.fresh())  # from memory: it was found nowhere
        if self._actors.on("signal first"):
            self._replied(world)
        else:
            self._go(world, "reply signal")

    def _replied(self, world: World) -> None:
        self._me(world).replied = True
        self._unlock(world)
        self._go(world, "reply sync")

    def _at_reply_again(self, world: World) -> Iterator[Move]:
        yield self._say("finds its own reply there already", "complete"), True, self._replied

    def _at_reply_sync(self, world: World) -> Iterator[Move]:
        yield self._say("syncs done/: the end is acknowledged", "complete"), True, lambda w: self._acknowledged(w, True)
        if world.errors:
            yield self._say("cannot sync done/", "complete"), False, self._cannot_sync

    def _at_reply_sync_late(self, world: World) -> Iterator[Move]:
        yield (
            self._say("syncs done/: an end is acknowledged that has been retried or pruned already", "complete"),
            True,
            lambda w: self._acknowledged(w, False),
        )

    def _acknowledged(self, world: World, stands: bool) -> None:
        if self._actors.on("sync: complete"):
            world.sync("done")
        if stands:
            world.acknowledged, world.pruned = True, False
        self._dropped(world)
        self._go(world, "idle")

    def _cannot_sync(self, world: World) -> None:
        world.errors -= 1
        self._go(world, "idle")

    def _where_to_defer(self, world: World) -> str:
        me = self._me(world)
        if me.replied and world.later:
            return "defer replace"
        return "defer" if world.cur and not self._has_moved(me) else self._dropped(world)

    def _at_defer(self, world: World) -> Iterator[Move]:
        yield self._say("renames the job from cur/ to later/", "defer"), True, self._defer

    def _defer(self, world: World) -> None:
        if not world.cur:
            self._dropped(world)
            self._unlock(world)
            self._go(world, "idle")
            return
        self._move_over(world, "cur", "later")
        self._go(world, "defer replace")

    def _at_defer_replace(self, world: World) -> Iterator[Move]:
        yield self._say("replaces it by the version with one attempt more", "defer"), True, self._defer_replace

    def _defer_replace(self, world: World) -> None:
        world.put("later", self._actors.written("data: defer", world.fresh()))
        self._me(world).replied = True
        self._unlock(world)
        self._go(world, "defer sync")

    def _at_defer_sync(self, world: World) -> Iterator[Move]:
        yield self._say("syncs later/", "defer"), True, self._deferred
        if world.errors:
            yield self._say("cannot sync later/", "defer"), False, self._cannot_sync

    def _deferred(self, world: World) -> None:
        world.sync("later")
        self._go(world, self._dropped(world))

    def _at_release(self, world: World) -> Iterator[Move]:
        yield self._say("renames the job from cur/ to new/", "release"), True, self._released

    def _released(self, world: World) -> None:
        if world.cur:
            self._move_over(world, "cur", "new")
        self._unlock(world)
        self._go(world, self._dropped(world))

    def _at_promote(self, world: World) -> Iterator[Move]:
        yield self._say("renames the job from later/ to new/", "promote"), True, self._promote

    def _promote(self, world: World) -> None:
        if world.later and world.new:
            if self._actors.on("sync: promote"):
                world.sync("new")
            world.remove("later")
        elif world.later:
            world.move("later", "new")
        self._unlock(world)
        self._go(world, "idle")

    # -- bringing home

    def _at_rescue(self, world: World) -> Iterator[Move]:
        if not self._actors.free(world, "lock: rescue"):
            return
        begin = self._acting("rescue")
        yield self._say("looks at what is in flight", "rescue"), True, lambda w: begin(w, lambda: self._stray(w))

    def _stray(self, world: World) -> str:
        if not world.cur or self._me(world).hold:
            return "intents" if world.intent and self._actors.on("finish intents") else "idle"
        return "rescue drop" if self._ended(world) else "rescue move"

    def _at_rescue_drop(self, world: World) -> Iterator[Move]:
        yield self._say("drops a copy of what has ended", "rescue"), True, lambda w: self._rescued(w, "drop")

    def _at_rescue_move(self, world: World) -> Iterator[Move]:
        yield self._say("renames the job from cur/ to new/", "rescue"), True, lambda w: self._rescued(w, "move")

    def _rescued(self, world: World, how: str) -> None:
        if world.cur and how == "drop":
            world.remove("cur")
        elif world.cur:
            self._move_over(world, "cur", "new")
        self._unlock(world)
        self._go(world, "intents" if world.intent and self._actors.on("finish intents") else "idle")

    def _at_intents(self, world: World) -> Iterator[Move]:
        if not self._actors.free(world, "lock: intents"):
            return
        begin = self._acting("intents")
        yield (
            self._say("looks at a retry that was cut off", "intents"),
            True,
            lambda w: begin(w, lambda: self._intent(w)),
        )

    def _intent(self, world: World) -> str:
        if not world.intent:
            return "idle"
        if world.done and (not world.signal or not self._actors.on("close intents")):
            return "resume replace"
        return "resume close"

    def _at_resume_replace(self, world: World) -> Iterator[Move]:
        yield (
            self._say("replaces the job in done/ by a fresh one", "intents"),
            True,
            lambda w: self._actors._replace_done(w, self._at_key, "resume move"),
        )

    def _at_resume_move(self, world: World) -> Iterator[Move]:
        yield (
            self._say("renames the job from done/ to new/", "intents"),
            True,
            lambda w: _move_retried(w, self._at_key, "resume sync"),
        )

    def _at_resume_sync(self, world: World) -> Iterator[Move]:
        yield (
            self._say("syncs new/ and done/", "intents"),
            True,
            lambda w: self._actors._sync_retry(w, self._at_key, "resume close"),
        )

    def _at_resume_close(self, world: World) -> Iterator[Move]:
        yield self._say("removes the intent", "intents"), True, self._close

    @property
    def _at_key(self) -> str:
        return str(self._index)

    def _close(self, world: World) -> None:
        self._actors.remove_intent(world)
        self._unlock(world)
        self._go(world, "idle")

    def _move_over(self, world: World, source: str, target: str) -> None:
        """Rename over what is there; two names of one file become one (Mount.move_over)."""
        if getattr(world, source) == getattr(world, target):
            world.remove(source)
        else:
            world.move(source, target)


def place_signal(world: World, value: int) -> None:
    """A signal appears in done/."""
    if world.acknowledged and not world.pruned and world.signal and world.signal % UNSYNCED != value % UNSYNCED:
        world.wrong = "an acknowledged end is replaced by another one"
    world.put("signal", value)


def _set(world: World, who: str, at: str) -> None:
    if who == "person":
        world.person = at
    else:
        world.drainers[int(who)].at = at


def _move_retried(world: World, who: str, then: str) -> None:
    if world.done:
        world.move("done", "new")
        _set(world, who, then)
    else:
        _give_up_retry(world, who)


def _give_up_retry(world: World, who: str) -> None:
    """The job is not in done/ any more: an error."""
    if who == "person":
        _leave_person(world)
        return
    world.drainers[int(who)].at = "idle"
    if world.lock == int(who) + 1:
        world.lock = 0


def _come_too_late(world: World) -> None:
    """Who has replied and not been told yet is told of an end that stands no more."""
    for each in world.drainers:
        if each.at == "reply sync":
            each.at = "reply sync late"


def _resend(world: World) -> None:
    world.resends -= 1
    world.producer = "send"


def _end_retry(world: World) -> None:
    world.owed = TOLD if world.owed else 0
    if world.intent:
        world.remove("intent")
    _leave_person(world)


def _cancel_job(world: World) -> None:
    if not world.cur:  # another one has moved it: the cancel fails
        _leave_person(world)
        return
    if world.cur == world.done:
        world.remove("cur")
    else:
        world.move("cur", "done")
    world.owed, world.person = 0, "cancel sync"


def _leave_person(world: World) -> None:
    world.person = world.target = ""
    if world.lock == PERSON:
        world.lock = 0


def _kill_person(world: World) -> None:
    world.kills -= 1
    _leave_person(world)


def _prune_signal(world: World) -> None:
    if not world.signal:  # somebody else was faster
        _leave_pruner(world)
        return
    world.remove("signal")
    world.pruned, world.acknowledged, world.owed, world.cause = True, False, 0, True
    _come_too_late(world)
    world.pruner = "job"


def _prune_job(world: World) -> None:
    if world.done:
        world.remove("done")
    _leave_pruner(world)


def _leave_pruner(world: World) -> None:
    world.pruner = ""
    if world.lock == PRUNER:
        world.lock = 0


def _kill_pruner(world: World) -> None:
    world.kills -= 1
    _leave_pruner(world)


def _spend(world: World, budget: str, act: Callable[[], None]) -> None:
    setattr(world, budget, getattr(world, budget) - 1)
    act()


def _told(disk: tuple[int, ...]) -> str:
    there = [place + (" (ruined)" if value < 0 else "") for place, value in zip(PLACES, disk, strict=True) if value]
    return ", ".join(there) or "nothing"
