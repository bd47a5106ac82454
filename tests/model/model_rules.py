"""The rules of the design that the model can take away, one by one, and the steps that several actors have in common.

Not a test file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from model_world import PERSON, UNSYNCED, World

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
class Rules:
    """What holds. `off`: the rules that do not; `adopts`: a crash is charged at a take-over."""

    off: frozenset[str] = frozenset()
    adopts: bool = False

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

    def remove_intent(self, world: World) -> None:
        if world.intent:
            if self.on("sync: intents"):
                world.sync("new")
                world.sync("done")
            world.remove("intent")

    def replace_done(self, world: World, who: str, then: str) -> None:
        if world.done:
            world.put("done", self.written("data: retry", world.fresh()))
            set_at(world, who, then)
        else:
            give_up_retry(world, who)

    def sync_retry(self, world: World, who: str, then: str) -> None:
        if self.on("sync: retry"):
            world.sync("new")
            world.sync("done")
        set_at(world, who, then)


def place_signal(world: World, value: int) -> None:
    """A signal appears in done/."""
    if world.acknowledged and not world.pruned and world.signal and world.signal % UNSYNCED != value % UNSYNCED:
        world.wrong = "an acknowledged end is replaced by another one"
    world.put("signal", value)


def set_at(world: World, who: str, at: str) -> None:
    if who == "person":
        world.person = at
    else:
        world.drainers[int(who)].at = at


def move_retried(world: World, who: str, then: str) -> None:
    if world.done:
        world.move("done", "new")
        set_at(world, who, then)
    else:
        give_up_retry(world, who)


def give_up_retry(world: World, who: str) -> None:
    """The job is not in done/ any more: an error."""
    if who == "person":
        leave_person(world)
        return
    world.drainers[int(who)].at = "idle"
    if world.lock == int(who) + 1:
        world.lock = 0


def leave_person(world: World) -> None:
    world.person = world.target = ""
    if world.lock == PERSON:
        world.lock = 0


def spend(world: World, budget: str, act: Callable[[], None]) -> None:
    setattr(world, budget, getattr(world, budget) - 1)
    act()
