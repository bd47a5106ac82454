"""What `torture` has tried and found, told to a person or as JSON."""

from __future__ import annotations

import linecache
import os
import shlex
import time
from collections.abc import Iterator, Sequence
from typing import Any

from workerpool.cli import words
from workerpool.torture.campaign import Reference, Try
from workerpool.torture.difference import Difference, help_against
from workerpool.torture.points import Point, PointKind

_BESIDE = 2
_PRINTED_LINES = 8


class Report:
    """What was tried and found so far."""

    def __init__(self, handler: str, seed: int, again: str, keep: bool) -> None:
        self.handler, self.seed, self.again, self.keep = handler, seed, again, keep
        self.references: list[Reference] = []
        self.planned = self.tried = self.not_reached = 0
        self.findings: list[tuple[Try, Difference]] = []
        self.interrupted = False
        self._begun = time.monotonic()

    def begin(self, reference: Reference, points: Sequence[Point]) -> None:
        """A job's points are tried now."""
        self.references.append(reference)
        self.planned += len(points)

    def add(self, tried: Try) -> None:
        """Count one."""
        self.tried += 1
        if tried.difference is not None:
            self.findings.append((tried, tried.difference))
        elif not tried.reached:
            self.not_reached += 1

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "handler": self.handler,
            "seed": self.seed,
            "jobs": len(self.references),
            "points": self.planned,
            "tried": self.tried,
            "not_reached": self.not_reached,
            "interrupted": self.interrupted,
            "seconds": round(time.monotonic() - self._begun, 3),
            "findings": [self._finding(tried, difference) for tried, difference in self.findings],
        }

    def _finding(self, tried: Try, difference: Difference) -> dict[str, Any]:
        return {
            "fault": difference.fault.name.lower(),
            "job": tried.reference.number,
            "point": str(tried.point),
            "place": tried.place or None,
            "ms": round(tried.ms, 3),
            "story": list(tried.ran.story),
            "names": list(difference.names),
            "diff": list(difference.lines),
            "printed": tried.ran.printed,
            "again": self._command(tried),
            "folder": tried.ran.folder if self.keep else None,
        }

    def _command(self, tried: Try) -> str:
        job = f" --job {tried.reference.number}" if tried.reference.number > 1 or len(self.references) > 1 else ""
        return f"{self.again}{job} --point {shlex.quote(str(tried.point))}"

    def lines(self, folders: Sequence[str]) -> Iterator[str]:
        """For a person; `folders`: where sources are."""
        for tried, difference in self.findings[:1]:
            yield from self._told(tried, difference, folders)
            yield ""
        for tried, difference in self.findings[1:]:
            yield f"also {difference.fault.value}: {self._command(tried)}"
        yield self._summary()

    def _summary(self) -> str:
        found = words.number(len(self.findings), "finding") if self.findings else "no finding"
        jobs = f" of {len(self.references)} jobs" if len(self.references) > 1 else ""
        missed = f", {self.not_reached:,} not reached" if self.not_reached else ""
        took = words.duration(time.monotonic() - self._begun)
        stopped = "interrupted: " if self.interrupted else ""
        return (
            f"{stopped}{found}; {self.tried:,} of {words.number(self.planned, 'point')}{jobs} tried{missed}, "
            f"in {took}; seed {self.seed}"
        )

    def _told(self, tried: Try, difference: Difference, folders: Sequence[str]) -> Iterator[str]:
        payload = words.printable(tried.reference.job.payload[:60].decode(errors="backslashreplace"))
        yield f"FINDING: {difference.fault.value}"
        yield f"  job        {tried.reference.number}, payload {payload!r}"
        yield f"  killed     {_where(tried)}"
        if tried.point.kind in (PointKind.LINE, PointKind.TIME):
            yield from _source(tried.place, folders)
        for number, said in enumerate(tried.ran.story, start=1):
            yield f"  run {number:<6} {words.printable(said)}"
        yield "  differs"
        yield from (f"    {words.printable(line)}" for line in difference.lines)
        printed = tried.ran.printed.splitlines()[-_PRINTED_LINES:]
        if printed:
            yield "  printed"
            yield from (f"    {words.printable(line)}" for line in printed)
        yield f"  again      {self._command(tried)}"
        for label, said in zip(("helps", ""), help_against(difference.fault), strict=True):
            yield f"  {label:<10} {said}"
        if self.keep:
            yield f"  folder     {tried.ran.folder}"


def _where(tried: Try) -> str:
    after = f"{tried.ms:.1f} ms in"
    match tried.point.kind:
        case PointKind.REPLY:
            return "after it had succeeded, before that was recorded"
        case PointKind.END:
            return f"after it had returned, before its worker could say so, {after}"
        case PointKind.LINE:
            return f"before {_line(tried.place)}, {after}"
        case PointKind.TIME:
            return f"{after}, in or before {_line(tried.place)}" if tried.place else f"{after}, before its first line"


def _line(place: str) -> str:
    line, _, hit = place.partition("#")
    return line if hit in ("", "1") else f"{line} (its execution number {hit})"


def _source(place: str, folders: Sequence[str]) -> Iterator[str]:
    """The lines around a place, as far as they can be read."""
    name, _, number = place.partition("#")[0].rpartition(":")
    path = next((path for folder in folders if os.path.isfile(path := os.path.join(folder, name))), None)
    if path is None:
        return
    line = int(number)
    for each in range(max(1, line - _BESIDE), line + _BESIDE + 1):
        text = linecache.getline(path, each)
        if text:
            yield f"    {'>' if each == line else ' '} {each:>5}  {words.printable(text.rstrip())}"
