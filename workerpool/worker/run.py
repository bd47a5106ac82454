"""One run of a handler, as a straight line: a claim in, a `Result` out.

    start_clock → call_handler → stop_clock → classify_outcome → let_go

The caller is a worker, or with `workers = 0` the stream process itself. Nothing a handler does raises from here: every
exception is a failed run, `SystemExit` and `KeyboardInterrupt` too. Only what kills the process is beyond it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Protocol

from queuekit.job import Job
from workerpool.handlers import SoftTimeout
from workerpool.outcome import Result, classify, classify_error
from workerpool.process.alarm import alarm
from workerpool.worker.context import JobContext, Surroundings


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkItem:
    """A claimed job on its way to a handler. `attempt`: 1 = the first run; `fence`: the holder's number."""

    job: Job
    session: str = ""
    attempt: int = 1
    fence: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds a run may take, 0 = any: `soft` raises `SoftTimeout` in the handler; at `hard` somebody else kills."""

    soft: float = 0.0
    hard: float = 0.0


NO_LIMITS = Limits()


class Callee(Protocol):
    """What is run: a `Handler`, or something in its place. `call` raises whatever the handler raises."""

    @property
    def is_async(self) -> bool:
        """Whether `call` enforces the soft limit itself."""

    def call(self, argument: object, ctx: object, soft_timeout: float = 0.0) -> object:
        """Run it on a job, or a list of jobs, and return what it returned."""


@dataclasses.dataclass(slots=True)
class _Run:
    """A run on its way down the line."""

    argument: object
    context: JobContext
    started: float
    soft: float
    returned: object = None
    error: BaseException | None = None
    seconds: float = 0.0


def run_job(handler: Callee, claim: WorkItem, surroundings: Surroundings, limits: Limits = NO_LIMITS) -> Result:
    """Run the handler on one job; main thread only when there is a soft limit."""
    run = _start_clock((claim,), claim.job, surroundings, limits)
    _call_handler(handler, run)
    _stop_clock(run)
    result = _classify_outcome(run, claim.job, run.returned)
    _let_go(run)
    return result


def run_batch(
    handler: Callee, claims: Sequence[WorkItem], surroundings: Surroundings, limits: Limits = NO_LIMITS
) -> list[Result]:
    """Run the handler on a list of jobs; one result per job, in their order.

    What it returns is one outcome for all, or a list with one per job, in which an exception instance (`Retry(…)`,
    `ValueError(…)`) is that job's failure. If it raises, each job has failed; who halves the batch is the caller.
    """
    jobs = [claim.job for claim in claims]
    run = _start_clock(claims, jobs, surroundings, limits)
    _call_handler(handler, run)
    _stop_clock(run)
    outcomes = _per_job(run.returned, len(claims))
    results = [_classify_outcome(run, claim.job, outcome) for claim, outcome in zip(claims, outcomes, strict=True)]
    _let_go(run)
    return results


def _start_clock(claims: Sequence[WorkItem], argument: object, surroundings: Surroundings, limits: Limits) -> _Run:
    now = time.monotonic()
    context = JobContext(
        tuple(claim.job for claim in claims),
        surroundings,
        attempt=max(claim.attempt for claim in claims),
        deadline=now + limits.hard if limits.hard else None,
        fence=claims[0].fence,
    )
    return _Run(argument, context, now, limits.soft)


def _call_handler(handler: Callee, run: _Run) -> None:
    interrupt, cancel = (0.0, run.soft) if handler.is_async else (run.soft, 0.0)
    try:
        with alarm(interrupt, SoftTimeout(interrupt)):
            run.returned = handler.call(run.argument, run.context, cancel)
    except BaseException as error:  # noqa: BLE001  whatever a handler raises is how its run ended
        run.error = error


def _stop_clock(run: _Run) -> None:
    run.seconds = time.monotonic() - run.started


def _classify_outcome(run: _Run, job: Job, outcome: object) -> Result:
    if run.error is not None:
        return classify_error(run.error, run_seconds=run.seconds)
    if isinstance(outcome, BaseException):
        return classify_error(outcome, run_seconds=run.seconds)
    handed = run.context.handed(job)
    return classify(outcome, artifacts=handed.artifacts, submitted=handed.submitted, run_seconds=run.seconds)


def _let_go(run: _Run) -> None:
    """What the handler's frames hold (open files, memory) is freed now, not when the garbage collector comes by.

    The error's traceback has the frame that holds the run that holds the error.
    """
    run.error = None


def _per_job(returned: object, count: int) -> Sequence[object]:
    if not isinstance(returned, list | tuple):
        return [returned] * count
    if len(returned) == count:
        return returned
    return [ValueError(f"the handler returned {len(returned)} outcomes for {count} jobs")] * count
