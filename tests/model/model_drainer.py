"""A stream process in the model: the lease, claiming, settling, bringing home.

Not a test file. A step is one system call that others can see (or one look that what follows depends on), in the code's
order, and says which function of `queuekit` it stands for. What happens between taking the stream's lock and the first
look is one step, for nobody can come between. A process can die, or stop and go on much later, between any two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from model_rules import STANDS_FOR, Move, Rules, move_retried, place_signal, spend
from model_world import DEAD, UNSYNCED, Drainer, World


class DrainerSteps:
    """The moves of one drainer in one state. It is a stream process: one thread, one act at a time."""

    def __init__(self, rules: Rules, world: World, index: int) -> None:
        self._rules = rules
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
        if self._rules.on("drop claims"):
            me.hold, me.old, me.replied = "", False, False
        me.at = "standby"

    def _acting(self, act: str) -> Callable[[World, Callable[[], str]], None]:
        """Take the lock, look at the lease, look at what `then` looks at: one step; `then` says where to go on."""

        def begin(world: World, then: Callable[[], str]) -> None:
            self._rules.take(world, f"lock: {act}", self._who)
            if self._rules.on(f"lease: {act}") and world.lease != self._who:
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
        if not self._rules.free(world, "lock: acquire"):
            return
        judge = self._say("finds the lease free to take", "acquire")
        if world.lease in {0, DEAD, self._who}:
            yield judge, True, lambda w: self._judged(w, "")
            return
        if world.stales:
            yield f"the holder is stuck for a ttl; {judge}", False, lambda w: self._judged(w, "stales")
        if world.steps and not self._rules.on("alive"):
            yield f"the clock is set forward; {judge}", False, lambda w: self._judged(w, "steps")

    def _judged(self, world: World, why: str) -> None:
        self._rules.take(world, "lock: acquire", self._who)
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
        if self._rules.adopts and world.cur:
            yield (
                self._say("writes the lease; the dead one was running the job", "acquire"),
                True,
                lambda w: self._taken(w, "adopt"),
            )

    def _taken(self, world: World, then: str) -> None:
        world.lease = self._who
        me = self._me(world)
        me.old = bool(me.hold) and self._rules.on("fence")
        if self._rules.on("drop claims"):  # reclaim begins with it
            me.hold, me.old = "", False
        self._unlock(world)
        me.at = then

    def _at_adopt(self, world: World) -> Iterator[Move]:
        if not self._rules.free(world, "lock: rescue"):
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
        me, rules = self._me(world), self._rules
        mine = world.lease == self._who
        if not mine and rules.on("lease: heartbeat") and rules.free(world, "lock: heartbeat"):
            yield self._say("finds at a heartbeat that its lease is lost", "beat"), True, self._lost
        if world.beats and rules.free(world, "lock: heartbeat") and (mine or not rules.on("lease: heartbeat")):
            begin = self._acting("heartbeat")
            yield (
                self._say("finds the lease its own, or does not look", "beat"),
                False,
                lambda w: spend(w, "beats", lambda: begin(w, lambda: "beat")),
            )
        yield from self._handler(world, me)
        if world.new and mine:
            yield self._say("means to claim", "claim"), True, lambda w: self._go(w, "claim")
        if world.later and rules.free(world, "lock: promote"):
            promote = self._acting("promote")
            yield (
                self._say("looks at what is due", "promote"),
                True,
                lambda w: promote(w, lambda: "promote" if w.later else "idle"),
            )
        if world.cur and not me.hold and rules.on("rescue") and rules.free(world, "lock: rescue"):
            yield from self._at_rescue(world)
        if world.intent and rules.on("finish intents"):
            yield from self._at_intents(world)

    def _handler(self, world: World, me: Drainer) -> Iterator[Move]:
        if me.hold == "claimed":
            yield f"{self._name} starts the handler", True, self._started
            if world.stops and self._rules.free(world, "lock: release"):
                begin = self._acting("release")
                yield (
                    self._say("stops and looks at a job not started", "release"),
                    False,
                    lambda w: spend(w, "stops", lambda: begin(w, lambda: "release" if w.cur else self._dropped(w))),
                )
        if me.hold == "running":
            yield f"the handler of {self._name} is done", True, lambda w: self._holds(w, "good")
            if world.fails:
                yield f"the handler of {self._name} fails", False, self._failed
        if me.hold == "good" and self._rules.free(world, "lock: complete"):
            yield self._say("looks before it replies", "complete"), True, self._begin_reply
        if me.hold == "failed" and self._rules.free(world, "lock: defer"):
            defer = self._acting("defer")
            yield (
                self._say("looks before it puts the job off", "defer"),
                True,
                lambda w: defer(w, lambda: self._where_to_defer(w)),
            )
        if not me.hold and world.stops and self._rules.free(world, "lock: give up"):
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
        self._rules.take(world, "lock: give up", self._who)
        if world.lease == self._who or not self._rules.on("lease: give up"):
            self._go(world, "give up")
        else:
            self._unlock(world)
            self._me(world).die()

    # -- claiming

    def _at_claim(self, world: World) -> Iterator[Move]:
        yield self._say("renames the job from new/ to cur/", "claim"), True, self._claim

    def _claim(self, world: World) -> None:
        rules = self._rules
        if not world.new:
            self._go(world, "idle")
        elif world.cur and rules.on("no replace: claim"):
            self._go(world, "pending twin")
        elif not rules.on("one rename: claim"):
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
        elif self._ended(world) and self._rules.on("twin at claim"):
            self._go(world, "twin")
        else:
            self._accept(world)

    def _ended(self, world: World) -> bool:
        return world.has_ended if self._rules.on("twin: both") else bool(world.signal)

    def _accept(self, world: World) -> None:
        me = self._me(world)
        if me.hold not in {"good", "failed"} or self._rules.on("one result"):
            me.hold = "claimed"
        me.old, me.replied, me.at = False, False, "idle"

    def _cannot_read(self, world: World) -> None:
        world.errors -= 1
        self._go(world, "put back")

    def _at_put_back(self, world: World) -> Iterator[Move]:
        if self._rules.free(world, "lock: put back"):
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
        if self._rules.free(world, "lock: twin"):
            begin = self._acting("twin")
            yield self._say("looks again", "twin"), True, lambda w: begin(w, lambda: self._look_again(w))

    def _look_again(self, world: World) -> str:
        if self._ended(world) or not self._rules.on("look again: twin"):
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
        rules = self._rules
        if not rules.free(world, "lock: pending twin"):
            return
        if not rules.on("look again: pending twin"):
            yield self._say("drops the copy in new/ without a look", "pending twin"), True, self._drop_pending
        elif rules.on("lock: pending twin"):
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
        me, first = self._me(world), "signal" if self._rules.on("signal first") else "job"
        if (world.cur and not self._has_moved(me)) or not self._rules.on("reply looks"):
            return f"reply {first}"
        if me.replied and world.done and world.signal % UNSYNCED == self._who:
            return "reply again"
        return self._dropped(world)

    def _has_moved(self, me: Drainer) -> bool:
        return me.replied and self._rules.on("repeated acts")

    def _at_reply_signal(self, world: World) -> Iterator[Move]:
        yield self._say("renames its signal into done/", "complete"), True, self._reply_signal

    def _reply_signal(self, world: World) -> None:
        place_signal(world, self._rules.written("data: signal", self._who))
        self._go(world, "reply job")
        if not self._rules.on("signal first"):
            self._replied(world)

    def _at_reply_job(self, world: World) -> Iterator[Move]:
        yield self._say("renames the job from cur/ to done/", "complete"), True, self._reply_job

    def _reply_job(self, world: World) -> None:
        if world.cur:
            self._move_over(world, "cur", "done")
        else:
            world.put("done", world.fresh())  # from memory: it was found nowhere
        if self._rules.on("signal first"):
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
        if self._rules.on("sync: complete"):
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
        world.put("later", self._rules.written("data: defer", world.fresh()))
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
            if self._rules.on("sync: promote"):
                world.sync("new")
            world.remove("later")
        elif world.later:
            world.move("later", "new")
        self._unlock(world)
        self._go(world, "idle")

    # -- bringing home

    def _at_rescue(self, world: World) -> Iterator[Move]:
        if not self._rules.free(world, "lock: rescue"):
            return
        begin = self._acting("rescue")
        yield self._say("looks at what is in flight", "rescue"), True, lambda w: begin(w, lambda: self._stray(w))

    def _stray(self, world: World) -> str:
        if not world.cur or self._me(world).hold:
            return "intents" if world.intent and self._rules.on("finish intents") else "idle"
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
        self._go(world, "intents" if world.intent and self._rules.on("finish intents") else "idle")

    def _at_intents(self, world: World) -> Iterator[Move]:
        if not self._rules.free(world, "lock: intents"):
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
        if world.done and (not world.signal or not self._rules.on("close intents")):
            return "resume replace"
        return "resume close"

    def _at_resume_replace(self, world: World) -> Iterator[Move]:
        yield (
            self._say("replaces the job in done/ by a fresh one", "intents"),
            True,
            lambda w: self._rules.replace_done(w, self._at_key, "resume move"),
        )

    def _at_resume_move(self, world: World) -> Iterator[Move]:
        yield (
            self._say("renames the job from done/ to new/", "intents"),
            True,
            lambda w: move_retried(w, self._at_key, "resume sync"),
        )

    def _at_resume_sync(self, world: World) -> Iterator[Move]:
        yield (
            self._say("syncs new/ and done/", "intents"),
            True,
            lambda w: self._rules.sync_retry(w, self._at_key, "resume close"),
        )

    def _at_resume_close(self, world: World) -> Iterator[Move]:
        yield self._say("removes the intent", "intents"), True, self._close

    @property
    def _at_key(self) -> str:
        return str(self._index)

    def _close(self, world: World) -> None:
        self._rules.remove_intent(world)
        self._unlock(world)
        self._go(world, "idle")

    def _move_over(self, world: World, source: str, target: str) -> None:
        """Rename over what is there; two names of one file become one (Mount.move_over)."""
        if getattr(world, source) == getattr(world, target):
            world.remove(source)
        else:
            world.move(source, target)
