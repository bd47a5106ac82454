"""All of it for one handler and some jobs: undisturbed runs to compare with, then a run for each point.

Two undisturbed runs come first. They have to leave the same, else nothing could be told by comparing (`Incomparable`),
and something at all. The first of them is followed line by line: its lines and its time are where points come from.

Whoever calls goes through `references` and `tries` and may stop between any two.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Generator, Mapping, Sequence

from queuekit.job import Job
from workerpool.errors import PoolError
from workerpool.torture.difference import Difference, Fault, compare
from workerpool.torture.points import Place, Point, PointKind, choose
from workerpool.torture.run import HOW_IT_ENDED, Ran, Runner

_FIRST_LIMIT = 60.0
_LEAST_LIMIT = 5.0
_TIMES_LONGER = 20


class Incomparable(PoolError):
    """Nothing can be told by comparing runs: undisturbed ones fail, leave nothing, or not the same.

    Attributes: `reason`; `lines`, what goes with it: an error, a diff.
    """

    def __init__(self, reason: str, lines: Sequence[str] = ()) -> None:
        self.reason, self.lines = reason, tuple(lines)
        super().__init__("\n".join([reason, *(f"  {line}" for line in self.lines)]))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What an undisturbed run of a job did. `number`: the job's, from 1; `seconds`: of the handler, followed line by
    line; `limit`: seconds that a delivery may take from now on."""

    number: int
    job: Job
    effects: Mapping[str, str]
    lines: Mapping[Place, int]
    seconds: float
    limit: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One point that was tried. `reached`: whether the run was killed there; `difference`: None = the effects are the
    same; `ran`: the run."""

    reference: Reference
    point: Point
    reached: bool
    difference: Difference | None
    ran: Ran

    @property
    def place(self) -> str:
        """The line that was to be executed next when the worker was killed, as a point's name; "" = none."""
        return self.ran.deliveries[0].place

    @property
    def ms(self) -> float:
        """How long the handler had run by then."""
        return self.ran.deliveries[0].ms


class Campaign:
    """Runs of one handler. `timeout`: seconds that a delivery may take, 0 = by the undisturbed ones."""

    def __init__(self, runner: Runner, timeout: float) -> None:
        self._runner = runner
        self._timeout = timeout

    def reference(self, number: int, job: Job) -> Reference:
        """Run a job undisturbed, twice. Raises `Incomparable`, `CannotSetUp`, `OSError`."""
        limit = self._timeout or _FIRST_LIMIT
        begun = time.monotonic()
        first = self._undisturbed(job, limit, count=True)
        longest = time.monotonic() - begun
        second = self._undisturbed(job, limit, count=False)
        difference = compare(first.effects, second.effects, "undisturbed, once more")
        if difference is not None:
            raise Incomparable(
                "two undisturbed runs do not leave the same, so nothing can be told from a killed one: "
                "--mask what differs, --skip the file, or compare less",
                difference.lines,
            )
        if absent := self._runner.absent(first):
            raise Incomparable(f"an undisturbed run leaves nothing at {absent[0]}, which was to be compared")
        if set(first.effects) == {HOW_IT_ENDED} and first.effects[HOW_IT_ENDED].count("\n") == 1:
            raise Incomparable(
                "an undisturbed run leaves nothing that could be compared: say what its effects are "
                "(--effects, --effects-command), and where it is to work (--env, --copy)"
            )
        return Reference(
            number=number,
            job=job,
            effects=first.effects,
            lines=first.counts,
            seconds=first.deliveries[0].seconds,
            limit=self._timeout or max(_LEAST_LIMIT, _TIMES_LONGER * longest),
        )

    def _undisturbed(self, job: Job, limit: float, *, count: bool) -> Ran:
        ran = self._runner.run(job, limit=limit, count=count)
        self._runner.forget(ran)
        if not ran.completed or len(ran.deliveries) > 1:
            reason = "the handler fails undisturbed, so it cannot be told what a kill does"
            raise Incomparable(reason, [*ran.story, *ran.error.splitlines()])
        return ran

    def tries(self, reference: Reference, points: Sequence[Point], *, fitted: bool) -> Generator[Try, None, None]:
        """A run for each point, one by one. A run with a difference leaves its folder, the others do not.

        `fitted`: times are shortened as runs turn out to be shorter than the undisturbed one, which may have been slow.
        Raises what `Runner.run` does.
        """
        shortest = reference.seconds
        for wanted in points:
            point = _shortened(wanted, shortest / reference.seconds) if fitted and reference.seconds else wanted
            ran = self._runner.run(reference.job, limit=reference.limit, point=point)
            reached = ran.deliveries[0].killed
            if not reached and ran.deliveries[0].result is not None:
                shortest = min(shortest, ran.deliveries[0].seconds)
            tried = Try(
                reference=reference,
                point=point,
                reached=reached,
                difference=_difference(reference, ran) if reached or not ran.completed else None,
                ran=ran,
            )
            if tried.difference is None:
                self._runner.forget(ran)
            yield tried


def points_for(reference: Reference, count: int, seed: int) -> list[Point]:
    """The points to try with a job, always the same for the same lines, time and seed."""
    return choose(reference.lines, reference.seconds, count, random.Random(f"{seed}/{reference.number}"))  # noqa: S311


def find_point(reference: Reference, point: Point) -> Point:
    """A point that somebody named, with its file as it is named here; `ValueError` for a line that does not run."""
    if point.kind is not PointKind.LINE:
        return point
    files = sorted({file for file, line in reference.lines if line == point.line and _means(point.file, file)})
    if not files:
        raise ValueError(f"line {point.line} of {point.file} is not executed in an undisturbed run of this job")
    if len(files) > 1 and point.file not in files:
        raise ValueError(f"{point.file} may be {' or '.join(files)}")
    return dataclasses.replace(point, file=point.file if point.file in files else files[0])


def _shortened(point: Point, factor: float) -> Point:
    return dataclasses.replace(point, ms=round(point.ms * factor, 3)) if point.kind is PointKind.TIME else point


def _means(named: str, file: str) -> bool:
    return file == named or file.endswith(f"/{named}") or named.endswith(f"/{file}")


def _difference(reference: Reference, ran: Ran) -> Difference | None:
    found = compare(reference.effects, ran.effects)
    if ran.completed:
        return found
    return Difference(Fault.STUCK, () if found is None else found.names, () if found is None else found.lines)
