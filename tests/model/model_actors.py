"""Who acts in the model beside the stream processes (`model_drainer`): a producer, a person, a pruner; and the power.

Not a test file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from model_drainer import DrainerSteps
from model_rules import Act, Move, Rules, leave_person, move_retried, place_signal
from model_world import BEGUN, CANCELLED, IMPOSTOR, PERSON, PLACES, PRUNER, TOLD, UNSYNCED, World


@dataclasses.dataclass(frozen=True)
class Actors:
    """All moves of all actors."""

    rules: Rules

    def moves(self, world: World) -> Iterator[Move]:
        for index in range(len(world.drainers)):
            yield from DrainerSteps(self.rules, world, index).moves()
        yield from self._producer(world)
        yield from self._person(world)
        yield from self._pruner(world)
        yield from self._power(world)

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
        if world.new == IMPOSTOR and self.rules.on("no replace: send"):
            world.producer = "refused"
            return
        if not world.new or not self.rules.on("no replace: send"):
            world.put("new", self.rules.written("data: send", world.fresh()))
        world.producer = "sync"

    def _accepted(self, world: World) -> None:
        if self.rules.on("sync: send"):
            world.sync("new")
        world.pruned = world.pruned and not (world.new or world.cur or world.later)
        world.accepted, world.producer = True, "told"

    def _imposture(self, world: World) -> None:
        world.impostors -= 1
        if not self.rules.on("no replace: send"):
            world.put("new", IMPOSTOR)

    # -- a person

    def _person(self, world: World) -> Iterator[Move]:
        if not world.person:
            if world.retries and world.done and self.rules.free(world, "lock: retry"):
                yield "the person begins a retry (Keeper.retry)", False, self._begin_retry
            if world.cancels and self.rules.free(world, "lock: cancel"):
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
                lambda w: self.rules.replace_done(w, "person", "retry move"),
            ),
            "retry move": (
                "the person's retry renames the job from done/ to new/ (Keeper._resume_retry)",
                lambda w: move_retried(w, "person", "retry sync"),
            ),
            "retry sync": (
                "the person's retry syncs new/ and done/ (Keeper._resume_retry)",
                lambda w: self.rules.sync_retry(w, "person", "retry close"),
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
            self.rules.take(world, "lock: retry", PERSON)
            world.person = "retry older" if world.intent else "retry intent"
        elif world.intent:
            self.rules.take(world, "lock: retry", PERSON)
            world.person = "retry replace"

    def _close_older(self, world: World) -> None:
        self.rules.remove_intent(world)
        world.person = "retry intent"

    def _make_intent(self, world: World) -> None:
        if not world.signal:
            leave_person(world)
            return
        if self.rules.on("intents first"):
            world.move("signal", "intent", 1 if 0 < world.signal < UNSYNCED else world.signal)
        else:
            world.remove("signal")
        world.acknowledged, world.owed, world.cause = False, BEGUN, True
        _come_too_late(world)
        world.person = "retry replace"

    def _begin_cancel(self, world: World, place: str) -> None:
        world.cancels -= 1
        self.rules.take(world, "lock: cancel", PERSON)
        world.target = place
        twin = self.rules.on("twin at cancel") and (world.has_ended or bool(world.cur))
        world.person = "cancel drop" if twin else "cancel claim"

    def _cancel_twin(self, world: World) -> None:
        if getattr(world, world.target):
            if self.rules.on("sync: cancel copy"):
                world.sync("cur" if world.cur else "done")
            world.remove(world.target)
        leave_person(world)

    def _cancel_claim(self, world: World) -> None:
        if not getattr(world, world.target) or (world.cur and self.rules.on("no replace: cancel")):
            leave_person(world)
            return
        world.move(world.target, "cur")
        world.person = "cancel signal"

    def _cancel_signal(self, world: World) -> None:
        place_signal(world, self.rules.written("data: signal", CANCELLED))
        if world.done:
            world.owed = 0  # of a retry that was cut off: with this signal beside it, it is cancelled already
        world.person = "cancel job"

    def _cancel_sync(self, world: World) -> None:
        if self.rules.on("sync: cancel"):
            world.sync("done")
        world.acknowledged = True
        leave_person(world)

    # -- the pruner

    def _pruner(self, world: World) -> Iterator[Move]:
        if not world.pruner:
            if world.prunes and world.done and self.rules.free(world, "lock: prune"):
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
        if not world.signal and world.intent and self.rules.on("keep intents"):
            return
        self.rules.take(world, "lock: prune", PRUNER)
        world.pruner = "close" if world.intent else "signal" if world.signal else "job"

    def _prune_intent(self, world: World) -> None:
        self.rules.remove_intent(world)
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
    leave_person(world)


def _cancel_job(world: World) -> None:
    if not world.cur:  # another one has moved it: the cancel fails
        leave_person(world)
        return
    if world.cur == world.done:
        world.remove("cur")
    else:
        world.move("cur", "done")
    world.owed, world.person = 0, "cancel sync"


def _kill_person(world: World) -> None:
    world.kills -= 1
    leave_person(world)


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


def _told(disk: tuple[int, ...]) -> str:
    there = [place + (" (ruined)" if value < 0 else "") for place, value in zip(PLACES, disk, strict=True) if value]
    return ", ".join(there) or "nothing"
