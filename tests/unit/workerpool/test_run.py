"""One run: whatever a handler does, a result comes out, and what it handed over goes with its success only."""

from __future__ import annotations

import asyncio
import gc
import signal
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from queuekit.completion import ArtifactRef
from queuekit.hlc import HLC
from queuekit.ids import JobID, StreamID
from queuekit.job import Job
from queuekit.status import ObservationStatus
from queuekit.wire import decode_job
from workerpool.handlers import Handler, SoftTimeout
from workerpool.outcome import Discard, Outcome, ResultKind, Retry
from workerpool.worker.context import JobContext, Surroundings
from workerpool.worker.run import Limits, WorkItem, run_batch, run_job

QUIET = Surroundings(stop=lambda: False, progress=lambda done, total: None)


def job(id: str = "parent") -> Job:
    return Job(id=JobID(id), stream_id=StreamID("encode"), submitted_at=HLC(1000, 0, 7), payload=b"x")


def claim(id: str = "parent", attempt: int = 1) -> WorkItem:
    return WorkItem(job=job(id), session="s", attempt=attempt, fence=9)


def handler(function: Callable[..., Any]) -> Handler:
    return Handler("tests:function", function)


def raising(error: BaseException) -> Callable[[Job], None]:
    def handle(job: Job) -> None:
        raise error

    return handle


@pytest.mark.parametrize(
    ("returned", "status"),
    [
        (None, ObservationStatus.DONE),
        (ObservationStatus.NEEDS_CONTEXT, ObservationStatus.NEEDS_CONTEXT),
        (Outcome("done_with_concerns"), ObservationStatus.DONE_WITH_CONCERNS),
    ],
)
def test_a_return_is_a_success_with_its_status(returned: object, status: ObservationStatus) -> None:
    result = run_job(handler(lambda job: returned), claim(), QUIET)
    assert (result.kind, result.status) == (ResultKind.SUCCESS, status)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("no"), ResultKind.FAILED),
        (SystemExit(0), ResultKind.FAILED),
        (KeyboardInterrupt(), ResultKind.FAILED),
        (GeneratorExit(), ResultKind.FAILED),
        (type("Bare", (BaseException,), {})(), ResultKind.FAILED),
        (Retry(after=3, reason="later"), ResultKind.RETRY),
        (Discard("never"), ResultKind.DISCARD),
    ],
)
def test_an_exception_is_a_result_too(error: BaseException, kind: ResultKind) -> None:
    result = run_job(handler(raising(error)), claim(), QUIET)
    assert result.kind is kind
    assert result.error


def test_an_exception_that_calls_itself_false_is_still_one() -> None:
    class Empty(Exception):
        def __len__(self) -> int:
            return 0

    assert run_job(handler(raising(Empty())), claim(), QUIET).kind is ResultKind.FAILED


def test_a_hostile_exception_is_told_by_its_type() -> None:
    class Hostile(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    result = run_job(handler(raising(Hostile())), claim(), QUIET)
    assert result.kind is ResultKind.FAILED
    assert "Hostile" in result.error


def test_what_is_not_an_outcome_is_a_failure() -> None:
    assert run_job(handler(lambda job: "fine"), claim(), QUIET).kind is ResultKind.FAILED


def test_the_context_says_what_this_run_is() -> None:
    seen: list[JobContext] = []
    before = time.monotonic()
    run_job(handler(lambda job, ctx: seen.append(ctx)), claim(attempt=3), QUIET, Limits(hard=60.0))
    (ctx,) = seen
    assert (ctx.attempt, ctx.fence, ctx.should_stop) == (3, 9, False)
    assert ctx.deadline is not None
    assert before + 60.0 <= ctx.deadline <= time.monotonic() + 60.0


def test_without_a_limit_there_is_no_deadline() -> None:
    seen: list[float | None] = []
    run_job(handler(lambda job, ctx: seen.append(ctx.deadline)), claim(), QUIET)
    assert seen == [None]


def test_artifacts_and_follow_ups_go_with_a_success() -> None:
    def handle(job: Job, ctx: JobContext) -> Outcome:
        ctx.artifact(ArtifactRef.file_path("/a"))
        ctx.submit("dreaming", b"next")
        return Outcome("done", [ArtifactRef.commit_hash("b")])

    result = run_job(handler(handle), claim(), QUIET)
    assert result.artifacts == (ArtifactRef.file_path("/a"), ArtifactRef.commit_hash("b"))
    assert [decode_job(data).payload for data in result.submitted] == [b"next"]


def test_nothing_of_a_failed_run_remains() -> None:
    def handle(job: Job, ctx: JobContext) -> None:
        ctx.artifact(ArtifactRef.file_path("/a"))
        ctx.submit("dreaming", b"next")
        raise ValueError

    result = run_job(handler(handle), claim(), QUIET)
    assert (result.artifacts, result.submitted) == ((), ())


def test_async_handlers_are_runs_like_any_other() -> None:
    async def handle(job: Job, ctx: JobContext) -> ObservationStatus:
        await asyncio.sleep(0)
        return ObservationStatus.BLOCKED

    running = handler(handle)
    assert run_job(running, claim(), QUIET).status is ObservationStatus.BLOCKED
    running.close()


def test_the_soft_limit_is_raised_inside_the_handler() -> None:
    caught: list[SoftTimeout] = []

    def hang(job: Job) -> None:
        try:
            while True:  # only the alarm ends it
                pass
        except SoftTimeout as error:
            caught.append(error)
            raise

    result = run_job(handler(hang), claim(), QUIET, Limits(soft=0.02))
    assert [error.seconds for error in caught] == [0.02]
    assert result.kind is ResultKind.FAILED
    assert "soft timeout of 0.02 s" in result.error
    assert result.run_seconds >= 0.02


def test_a_handler_may_end_well_after_its_soft_limit() -> None:
    def careful(job: Job) -> ObservationStatus:
        try:
            while True:
                pass
        except SoftTimeout:
            return ObservationStatus.DONE_WITH_CONCERNS

    result = run_job(handler(careful), claim(), QUIET, Limits(soft=0.02))
    assert result.status is ObservationStatus.DONE_WITH_CONCERNS


def test_the_soft_limit_of_an_async_handler() -> None:
    async def hang(job: Job) -> None:
        await asyncio.Event().wait()

    running = handler(hang)
    result = run_job(running, claim(), QUIET, Limits(soft=0.02))
    running.close()
    assert result.kind is ResultKind.FAILED
    assert "soft timeout" in result.error


def test_the_alarm_is_as_it_was_after_a_run() -> None:
    before = signal.getsignal(signal.SIGALRM)
    run_job(handler(lambda job: None), claim(), QUIET, Limits(soft=1000.0))
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    assert signal.getsignal(signal.SIGALRM) == before


BATCH = [claim("a"), claim("b", attempt=4), claim("c")]


def test_one_outcome_counts_for_the_whole_batch() -> None:
    results = run_batch(handler(lambda jobs: ObservationStatus.NEEDS_CONTEXT), BATCH, QUIET)
    assert [result.status for result in results] == [ObservationStatus.NEEDS_CONTEXT] * 3


def test_one_outcome_per_job_also_as_exceptions() -> None:
    results = run_batch(handler(lambda jobs: [None, Retry(after=2), ValueError("bad")]), BATCH, QUIET)
    assert [result.kind for result in results] == [ResultKind.SUCCESS, ResultKind.RETRY, ResultKind.FAILED]
    assert results[1].retry_after == 2


def test_a_wrong_number_of_outcomes_fails_them_all() -> None:
    results = run_batch(handler(lambda jobs: [None, None]), BATCH, QUIET)
    assert [result.kind for result in results] == [ResultKind.FAILED] * 3
    assert "2 outcomes for 3 jobs" in results[0].error


def test_a_batch_that_raises_fails_each_job() -> None:
    results = run_batch(handler(raising(ValueError("no"))), BATCH, QUIET)
    assert [result.kind for result in results] == [ResultKind.FAILED] * 3


def test_in_a_batch_each_job_has_its_own_follow_ups_and_the_highest_attempt_is_told() -> None:
    attempts = []

    def handle(jobs: list[Job], ctx: JobContext) -> None:
        attempts.append(ctx.attempt)
        ctx.submit("dreaming", b"of b", parent=jobs[1])
        ctx.artifact(ArtifactRef.file_path("/c"), job=jobs[2])

    results = run_batch(handler(handle), BATCH, QUIET)
    assert attempts == [4]
    assert [len(result.submitted) for result in results] == [0, 1, 0]
    assert [len(result.artifacts) for result in results] == [0, 0, 1]


class Held:
    """Something that a handler has while it runs."""


def test_what_a_failed_handler_held_is_free_when_its_run_is_over() -> None:
    held: weakref.WeakSet[Held] = weakref.WeakSet()

    def hold(job: object) -> None:
        mine = Held()
        held.add(mine)
        raise ValueError("no luck")

    gc.disable()
    try:
        run_job(handler(hold), claim(), QUIET)
        assert not held
        run_batch(handler(hold), [claim()], QUIET)
        assert not held
    finally:
        gc.enable()


def test_an_alarm_of_the_handlers_own_is_not_taken_for_the_soft_timeout() -> None:
    def set_alarm(job: Job) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        signal.pause()

    result = run_job(handler(set_alarm), claim(), QUIET, Limits(soft=30.0))
    assert result.kind is ResultKind.FAILED
    assert "soft timeout of" not in result.error
    assert "SIGALRM" in result.error


def test_after_an_alarm_of_its_own_a_handler_is_still_limited() -> None:
    def go_on(job: Job) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        try:
            signal.pause()
        except RuntimeError:
            signal.pause()

    result = run_job(handler(go_on), claim(), QUIET, Limits(soft=0.2))
    assert "SoftTimeout: still running after the soft timeout of 0.2 s" in result.error
