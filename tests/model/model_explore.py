"""Exploring the model: all states that can be reached, breadth first, so that the first fault has the shortest way.

Not a test file. Two kinds of fault are looked for: a state that is wrong by itself (`World.verdict`), and a state from
which no ordinary course of things leads to one where the job is settled. Ordinary is what goes on without a further
fault and without a further wish of a person; from a state like that a fair course must end, since one of its ways does.
"""

from __future__ import annotations

import dataclasses
import hashlib
import marshal
import time
from array import array
from collections.abc import Mapping

from model_actors import Actors
from model_rules import Rules
from model_world import Drainer, World

Level = list[tuple[int, World]]


@dataclasses.dataclass(frozen=True)
class Configuration:
    """What may happen in one exploration, and how often. `sends`: it begins before the job is sent."""

    name: str
    budgets: Mapping[str, int]
    sends: bool = False
    adopts: bool = False
    drainers: int = 2

    def start(self) -> World:
        world = World(drainers=[Drainer() for _ in range(self.drainers)])
        for name, count in self.budgets.items():
            setattr(world, name, count)
        if not self.sends:
            world.new, world.producer, world.accepted = 1, "told", True
        if world.cuts:
            world.base = (world.new, 0, 0, 0, 0, 0)
        return world

    def __str__(self) -> str:
        parts = [f"{count} {name}" for name, count in self.budgets.items() if count]
        parts += ["the send"] if self.sends else []
        return f"{self.name}: {self.drainers} drainers, {', '.join(parts) or 'nothing goes wrong'}"


@dataclasses.dataclass(frozen=True)
class Result:
    """What an exploration has found. `fault`: what is wrong, empty when nothing is; `trace`: the steps to it."""

    states: int
    moves: int
    seconds: float
    fault: str
    trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        figures = f"{self.states:,} states, {self.moves:,} moves, {self.seconds:.1f} s"
        if not self.fault:
            return f"{figures}: no fault"
        steps = [f"  {number:2} {step}" for number, step in enumerate(self.trace, 1)]
        return "\n".join([f"{figures}: {self.fault}", *steps])


def explore(configuration: Configuration, off: str = "", *, most: int = 10_000_000) -> Result:
    """Visit every state. `off`: a rule that does not hold; `most`: more states than this are a mistake."""
    began = time.perf_counter()
    atlas = _Atlas(Actors(Rules(frozenset([off] if off else []), configuration.adopts)), configuration.start())
    fault = ""
    trace: tuple[str, ...] = ()
    level = [(0, atlas.start)]
    while level and not fault:
        level, fault, trace = atlas.go_on(level, most)
    stuck = None if fault else atlas.first_stuck()
    if stuck is not None:
        fault, trace = "the job is stuck for ever", atlas.way_to(stuck)
    return Result(len(atlas.came_from), atlas.moves, time.perf_counter() - began, fault, trace)


class _Atlas:
    """The states that were seen, by number, and how they hang together; of the states themselves only a digest."""

    def __init__(self, actors: Actors, start: World) -> None:
        self._actors = actors
        self.start = start
        self._numbers = {_digest(start): 0}
        self._settled = bytearray([start.has_settled])
        self._ordinary = array("q")  # pairs: from here an ordinary move leads there
        self.came_from = array("q", [-1])
        self.moves = 0

    def go_on(self, level: Level, most: int) -> tuple[Level, str, tuple[str, ...]]:
        """The states that are one move further; the first fault among them, if any, and the way to it."""
        further: Level = []
        for number, world in level:
            for label, ordinary, act in self._actors.moves(world):
                after = world.copy()
                act(after)
                self.moves += 1
                there, fresh = self._note(after, number)
                if fresh:
                    assert there < most, f"more than {most} states"
                    further.append((there, after))
                if ordinary and there != number:
                    self._ordinary.extend((number, there))
                fault = after.verdict() if fresh else after.wrong
                if fault:
                    return [], fault, (*self.way_to(number), label)
        return further, "", ()

    def _note(self, world: World, came_from: int) -> tuple[int, bool]:
        """The number of a state, and whether it is a new one."""
        fresh = len(self.came_from)
        number = self._numbers.setdefault(_digest(world), fresh)
        if number == fresh:
            self.came_from.append(came_from)
            self._settled.append(world.has_settled)
        return number, number == fresh

    def first_stuck(self) -> int | None:
        """The first state from which no ordinary way leads to a settled one."""
        before: list[list[int]] = [[] for _ in self.came_from]
        for source, target in zip(self._ordinary[::2], self._ordinary[1::2], strict=True):
            before[target].append(source)
        good = bytearray(self._settled)
        waiting = [number for number, settled in enumerate(good) if settled]
        while waiting:
            for number in before[waiting.pop()]:
                if not good[number]:
                    good[number] = True
                    waiting.append(number)
        stuck = good.find(0)
        return None if stuck < 0 else stuck

    def way_to(self, number: int) -> tuple[str, ...]:
        """The moves from the start to a state, found by going there again."""
        path = []
        while number:
            path.append(number)
            number = self.came_from[number]
        world, words = self.start, []
        for wanted in reversed(path):
            world, label = self._move_to(world, wanted)
            words.append(label)
        return tuple(words)

    def _move_to(self, world: World, wanted: int) -> tuple[World, str]:
        for label, _, act in self._actors.moves(world):
            after = world.copy()
            act(after)
            if self._numbers.get(_digest(after)) == wanted:
                return after, label
        raise AssertionError("no move leads there")


def _digest(world: World) -> bytes:
    return hashlib.blake2b(marshal.dumps(world.key(), 0), digest_size=12).digest()
