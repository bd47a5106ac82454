"""Where a worker can be killed: how such a point is written, and which ones are tried. No I/O, no clock, no dice.

    handlers.py:31#2    before line 31 of that file is executed for the second time; `handlers.py:31` is the first
    13.4ms              so long after the handler was called
    end                 the handler has returned, and its worker dies before it could say so
    reply               its end was said and its follow-up jobs were sent, but the end was never recorded

The first kind, `end` and `reply` are the same in every run. A time is not, and reaches what lies inside of one line: a
call into a library that has several effects.
"""

from __future__ import annotations

import dataclasses
import enum
import random
import re
from collections.abc import Iterator, Mapping

_LINE = re.compile(r"(?P<file>.+):(?P<line>[0-9]+)(?:#(?P<hit>[0-9]+))?")
_TIME = re.compile(r"(?P<ms>[0-9]+(?:\.[0-9]+)?) ?ms")
Place = tuple[str, int]
"""A line of a file of the user's: its name as it is shown, and its number."""


class PointKind(enum.StrEnum):
    """What a point goes by."""

    LINE = "line"
    TIME = "time"
    END = "end"
    REPLY = "reply"


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    """One point. `file`, `line`, `hit` (from 1) are of a LINE, `ms` of a TIME."""

    kind: PointKind
    file: str = ""
    line: int = 0
    hit: int = 0
    ms: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Point:
        """The point of that name. Raises `ValueError`, whose text is for a person."""
        if text in (PointKind.END.value, PointKind.REPLY.value):
            return cls(PointKind(text))
        if found := _TIME.fullmatch(text):
            return cls(PointKind.TIME, ms=float(found["ms"]))
        found = _LINE.fullmatch(text)
        if found is None or not int(found["line"]) or found["hit"] == "0":
            raise ValueError(f"{text!r} is no point: write handlers.py:31, handlers.py:31#2, 13.4ms, end or reply")
        return cls(PointKind.LINE, found["file"], int(found["line"]), int(found["hit"] or 1))

    def __str__(self) -> str:
        match self.kind:
            case PointKind.LINE:
                return f"{self.file}:{self.line}#{self.hit}"
            case PointKind.TIME:
                return f"{self.ms:g}ms"
            case _:
                return self.kind.value


END, REPLY = Point(PointKind.END), Point(PointKind.REPLY)


def choose(lines: Mapping[Place, int], seconds: float, count: int, rand: random.Random) -> list[Point]:
    """At most `count` points of a run that took `seconds` and executed each line so many times, in trying order.

    First every line before its first execution, in the order of the run; then `end` and `reply`; then lines before
    later executions, spread over loops, up to two thirds of `count` for all lines; the rest are times, one drawn at
    random from each of equal parts of the run. `lines`: in the order of their first executions.
    """
    first = [Point(PointKind.LINE, file, line, 1) for file, line in lines][: max(1, count - 2)]
    chosen = [*first, END, REPLY][:count]
    by_line = max(0, min(2 * count // 3, count - 2) - len(first))
    chosen += _later_hits(lines, by_line, rand)
    return chosen + _times(seconds, count - len(chosen), rand)


def _later_hits(lines: Mapping[Place, int], count: int, rand: random.Random) -> list[Point]:
    """Executions after the first: of each line the second and the last, then any."""
    edges = [(place, hit) for place, hits in lines.items() for hit in sorted({2, hits}) if 1 < hit <= hits]
    if len(edges) > count:
        edges = sorted(rand.sample(edges, count), key=edges.index)
    known = set(edges)
    room = min(count - len(edges), sum(hits - 1 for hits in lines.values()) - len(edges))
    drawn = list(_draw(lines, known, room, rand))
    return [Point(PointKind.LINE, *place, hit) for place, hit in [*edges, *drawn]]


def _draw(
    lines: Mapping[Place, int], known: set[tuple[Place, int]], room: int, rand: random.Random
) -> Iterator[tuple[Place, int]]:
    """`room` executions that are not known yet; each line that is executed again is as likely as any other."""
    open_lines = {place: hits for place, hits in lines.items() if hits > 3}
    left = dict.fromkeys(open_lines, 0)
    for place, hits in open_lines.items():
        left[place] = hits - 1 - sum((place, hit) in known for hit in {2, hits})
    while room > 0 and (candidates := [place for place, count in left.items() if count]):
        place = rand.choice(candidates)
        hit = rand.randint(2, lines[place])
        if (place, hit) in known:
            continue
        known.add((place, hit))
        left[place] -= 1
        room -= 1
        yield place, hit


def _times(seconds: float, count: int, rand: random.Random) -> list[Point]:
    parts = [(part + rand.random()) / count * seconds * 1000 for part in range(count)]
    return [Point(PointKind.TIME, ms=round(ms, 3)) for ms in parts]
