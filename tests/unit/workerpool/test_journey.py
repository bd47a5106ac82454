"""From a result to the store, over a queue that writes down what it is asked and fails when it is told to."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, cast

import pytest
from stream_config import make_config

from queuekit import Claimed, Completion, Job, JobNotFound, LeaseLost, QueueKit, WriteFailed
from queuekit.completion import ArtifactRef
from queuekit.contract import JobView, Lease
from queuekit.errors import BackendUnavailable, InvalidIdentifier
from queuekit.ids import SessionID
from queuekit.job import Delivery
from queuekit.lifecycle import State
from queuekit.status import ObservationStatus
from queuekit.testing.jobs import make_job
from queuekit.wire import decode_job, encode_job
from workerpool.outcome import Discard, Outcome, Result, classify, classify_error
from workerpool.stream.journey import TURN_SECONDS, Journey

CONFIG = make_config()
LEASE = cast("Lease", object())
OK = classify(None)
FULL_DISK = OSError(28, "No space left on device")


def on_disk(error: Exception, cause: Exception = FULL_DISK) -> Exception:
    """The error as a backend raises it when the disk is to blame."""
    error.__cause__ = cause
    return error


class FakeQueue:
    """Facade and backend in one. `said`: what was asked, in order; `faults`: what the next calls of a verb raise;
    `refused`, `stuck`: jobs that can never be sent or end as `done`, and those that cannot be deferred; `gone`: those
    that are not in flight any more."""

    def __init__(self) -> None:
        self.backend = self
        self.said: list[tuple[str, Any]] = []
        self.faults: dict[str, list[Exception]] = {}
        self.refused: dict[str, Exception] = {}
        self.stuck: dict[str, Exception] = {}
        self.gone: set[str] = set()
        self.sent: dict[str, Job] = {}
        self.known: dict[str, JobView] = {}
        self.dossiers: dict[str, Any] = {}
        self.seconds_per_call = 0.0
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def _call(self, verb: str, what: Any) -> None:
        self.now += self.seconds_per_call
        if self.faults.get(verb):
            raise self.faults[verb].pop(0)
        self.said.append((verb, what))

    def send_batch(self, jobs: Iterable[Job]) -> int:
        jobs = list(jobs)
        for job in jobs:
            if job.id in self.refused:
                raise self.refused[job.id]
        self._call("send", [job.id for job in jobs])
        self.sent.update((job.id, job) for job in jobs)
        return len(jobs)

    def reply_batch(self, completions: Sequence[Completion], *, lease: Lease) -> int:
        assert lease is LEASE
        for each in completions:
            if each.status is ObservationStatus.DONE and each.job_id in self.refused:
                raise self.refused[each.job_id]
        self._call("reply", [(each.job_id, each.status.value) for each in completions])
        taken = [each for each in completions if each.job_id not in self.gone]
        self.dossiers.update((each.job_id, each.dossier) for each in taken)
        return len(taken)

    def defer(self, job_id: str, due_ms: int, *, error: str, crashed: bool, lease: Lease) -> None:
        assert lease is LEASE
        assert due_ms > 0
        if job_id in self.stuck:
            raise self.stuck[job_id]
        self._call("defer", (job_id, error, crashed))

    def look_up(self, job_id: str) -> JobView | None:
        return self.known.get(job_id)


@pytest.fixture
def queue() -> FakeQueue:
    return FakeQueue()


@pytest.fixture
def journey(queue: FakeQueue) -> Journey:
    return Journey(cast("QueueKit", queue), CONFIG, lambda: 0.0, queue.clock)


def claim(job_id: str, **delivery: Any) -> Claimed:
    return Claimed(job=Delivery(**delivery).onto(make_job(job_id)), session_id=SessionID("s"))


def success(*follow_ups: str) -> Result:
    return classify(None, submitted=[encode_job(make_job(each, "dreaming")) for each in follow_ups])


def failed(error: str = "boom") -> Result:
    return Result.failed(error)


# -- the straight way


def test_all_successes_of_a_turn_are_one_reply(queue, journey):
    journey.ended(claim("a"), OK)
    journey.ended(claim("b"), classify(Outcome("needs_context")))
    journey.carry_out(LEASE)
    assert queue.said == [("reply", [("a", "done"), ("b", "needs_context")])]
    assert (journey.counts.done, journey.waiting) == (2, 0)


def test_with_nothing_to_do_nothing_is_asked(queue, journey):
    journey.carry_out(LEASE)
    assert queue.said == []


def test_follow_ups_are_durable_before_their_parents_reply(queue, journey):
    journey.ended(claim("a"), success("x", "y"))
    journey.ended(claim("b"), success("z"))
    journey.carry_out(LEASE)
    assert queue.said == [("send", ["x", "y", "z"]), ("reply", [("a", "done"), ("b", "done")])]


def test_a_failed_run_is_deferred_and_the_last_one_ends_blocked(queue, journey):
    journey.ended(claim("a"), failed("first"))
    journey.ended(claim("b", attempt=3), failed("last"))
    journey.carry_out(LEASE)
    assert queue.said == [("reply", [("b", "blocked")]), ("defer", ("a", "first", False))]
    assert dataclasses.asdict(journey.counts) == {"done": 0, "retried": 1, "blocked": 1, "dropped": 0, "crashes": 0}
    assert journey.counts.handled == 2


def test_a_crash_is_charged_as_one(queue, journey):
    journey.crashed(claim("a"), "killed by SIGSEGV")
    journey.crashed(claim("b", attempt=1, crashes=1), "killed by SIGSEGV")
    journey.carry_out(LEASE)
    assert queue.said == [("reply", [("b", "blocked")]), ("defer", ("a", "killed by SIGSEGV", True))]
    assert journey.counts.crashes == 2


def test_blocked_by_the_handler_itself_counts_as_blocked(queue, journey):
    journey.ended(claim("a"), classify(Outcome("blocked")))
    journey.ended(claim("b"), classify_error(Discard("no such user")))
    journey.carry_out(LEASE)
    assert queue.said == [("reply", [("a", "blocked"), ("b", "blocked")])]
    assert (journey.counts.blocked, journey.counts.done) == (2, 0)


def test_two_jobs_of_one_id_are_replied_to_one_after_the_other(queue, journey):
    journey.ended(claim("a"), OK)
    journey.ended(claim("a"), classify(Outcome("needs_context")))
    journey.carry_out(LEASE)
    assert queue.said == [("reply", [("a", "done")]), ("reply", [("a", "needs_context")])]


# -- the environment fails


def test_an_error_of_the_disk_keeps_every_outcome_for_the_next_try(queue, journey):
    queue.faults["reply"] = [on_disk(WriteFailed("signals", "no space"))]
    journey.ended(claim("a"), OK)
    journey.ended(claim("b"), failed())
    with pytest.raises(WriteFailed):
        journey.carry_out(LEASE)
    assert (queue.said, journey.waiting, journey.counts.handled) == ([], 2, 0)
    journey.carry_out(LEASE)
    assert queue.said == [("reply", [("a", "done")]), ("defer", ("b", "boom", False))]
    assert (journey.waiting, journey.counts.done, journey.counts.retried) == (0, 1, 1)


@pytest.mark.parametrize("cause", [FULL_DISK, sqlite3.OperationalError("database is locked")])
def test_follow_ups_that_the_store_does_not_take_hold_the_reply_back(queue, journey, cause):
    queue.faults["send"] = [on_disk(WriteFailed("a batch", "no space"), cause)]
    journey.ended(claim("a"), success("x"))
    with pytest.raises(WriteFailed):
        journey.carry_out(LEASE)
    assert journey.waiting == 1
    journey.carry_out(LEASE)
    assert queue.said == [("send", ["x"]), ("reply", [("a", "done")])]


def test_a_lock_that_is_not_free_is_waited_out(queue, journey):
    queue.faults["reply"] = [BackendUnavailable("the lock is held")]
    journey.ended(claim("a"), OK)
    with pytest.raises(BackendUnavailable):
        journey.carry_out(LEASE)
    journey.carry_out(LEASE)
    assert queue.said == [("reply", [("a", "done")])]


def test_a_retry_that_cannot_be_written_now_keeps_no_other_waiting_for_ever(queue, journey):
    queue.stuck["a"] = on_disk(WriteFailed("a", "I/O error"))
    for job_id in ("a", "b", "c"):
        journey.ended(claim(job_id), failed())
    with pytest.raises(WriteFailed):
        journey.carry_out(LEASE)
    with pytest.raises(WriteFailed):
        journey.carry_out(LEASE)
    assert [what[0] for _, what in queue.said] == ["b", "c"]
    assert journey.waiting == 1
    queue.stuck.clear()
    journey.carry_out(LEASE)
    assert (journey.waiting, journey.counts.retried) == (0, 3)


# -- the lease is lost


@pytest.mark.parametrize("verb", ["reply", "defer"])
def test_a_lost_lease_is_passed_on_and_forgotten_with_all_outcomes(queue, journey, verb):
    queue.faults[verb] = [LeaseLost("encode", "pid-1-x")]
    journey.ended(claim("a"), OK if verb == "reply" else failed())
    with pytest.raises(LeaseLost):
        journey.carry_out(LEASE)
    journey.forget()
    journey.carry_out(LEASE)
    assert (queue.said, journey.waiting, journey.counts.handled) == ([], 0, 0)


def test_a_retry_of_what_is_not_in_flight_any_more_is_dropped(queue, journey):
    queue.faults["defer"] = [JobNotFound("a")]
    journey.ended(claim("a"), failed())
    journey.ended(claim("b"), failed())
    journey.carry_out(LEASE)
    assert queue.said == [("defer", ("b", "boom", False))]
    assert (journey.waiting, journey.counts.retried, journey.counts.dropped) == (0, 1, 1)
    assert journey.counts.handled == 2


def test_ends_of_what_is_not_in_flight_any_more_are_not_counted_as_ends(queue, journey):
    """Handled they are: their follow-up jobs have been sent, and a burst must look for those."""
    queue.gone = {"a", "c", "d"}
    for job_id in ("a", "b"):
        journey.ended(claim(job_id), OK)
    for job_id in ("c", "d", "e"):
        journey.ended(claim(job_id, attempt=3), failed())
    journey.carry_out(LEASE)
    assert (journey.counts.done, journey.counts.blocked, journey.counts.dropped) == (1, 1, 3)
    assert (journey.counts.handled, journey.waiting) == (5, 0)


def test_a_job_that_ended_elsewhere_is_not_said_to_be_blocked(queue, journey, caplog):
    queue.gone = {"a"}
    journey.ended(claim("a", attempt=3), failed("no such file"))
    journey.carry_out(LEASE)
    assert "is blocked" not in caplog.text
    assert "no such file" in caplog.text


# -- what can never be written


@pytest.mark.parametrize("refusal", [WriteFailed("x", "too large"), InvalidIdentifier("x", "odd")])
def test_a_follow_up_that_can_never_be_sent_fails_only_its_parent(queue, journey, refusal):
    queue.refused["x"] = refusal
    journey.ended(claim("a"), success("w", "x"))
    journey.ended(claim("b"), success("y"))
    journey.carry_out(LEASE)
    assert set(queue.sent) == {"w", "y"}
    assert ("reply", [("b", "done")]) in queue.said
    ((job_id, error, crashed),) = [what for verb, what in queue.said if verb == "defer"]
    assert (job_id, crashed) == ("a", False)
    assert error.startswith("a follow-up job could not be sent")


def test_the_first_copy_of_a_follow_up_stays_when_a_second_run_makes_another(queue, journey):
    result = success("x")
    job = make_job("x", "dreaming", at=decode_job(result.submitted[0]).submitted_at, payload=b"of the first run")
    queue.refused["x"] = WriteFailed("x", "another job with the same stream, id and time is pending")
    queue.known["x"] = JobView(job=job, state=State.NEW)
    journey.ended(claim("a"), result)
    journey.carry_out(LEASE)
    assert queue.said == [("reply", [("a", "done")])]


def test_a_job_of_that_id_elsewhere_is_not_the_first_copy(queue, journey):
    queue.refused["x"] = WriteFailed("x", "no")
    queue.known["x"] = JobView(job=make_job("x", "another"), state=State.NEW)
    journey.ended(claim("a"), success("x"))
    journey.carry_out(LEASE)
    assert [verb for verb, _ in queue.said] == ["defer"]


def test_a_follow_up_that_is_no_job_fails_its_parent(queue, journey):
    journey.ended(claim("a"), dataclasses.replace(OK, submitted=(b"{nonsense",)))
    journey.carry_out(LEASE)
    ((verb, what),) = queue.said
    assert (verb, what[0]) == ("defer", "a")
    assert "cannot be read" in what[1]


def test_an_outcome_that_can_never_be_written_fails_only_its_job(queue, journey):
    queue.refused["a"] = WriteFailed("the signal of job a", "not valid")
    journey.ended(claim("a"), classify(Outcome("done", [ArtifactRef.file_path("/x")])))
    journey.ended(claim("b"), OK)
    journey.carry_out(LEASE)
    assert ("reply", [("b", "done")]) in queue.said
    ((job_id, error, _),) = [what for verb, what in queue.said if verb == "defer"]
    assert job_id == "a"
    assert error.startswith("its outcome could not be written")
    assert journey.counts.done == 1


def test_a_retry_that_can_never_be_written_ends_its_job_blocked(queue, journey):
    queue.stuck["a"] = WriteFailed("a", "its name is too long to be put off")
    journey.ended(claim("a", attempt=1, crashes=1, errors=("first",)), failed("second"))
    journey.ended(claim("b"), failed())
    for _ in range(2):
        journey.carry_out(LEASE)
    assert sorted(queue.said) == [("defer", ("b", "boom", False)), ("reply", [("a", "blocked")])]
    assert (journey.waiting, journey.counts.blocked, journey.counts.retried) == (0, 1, 1)
    dossier = queue.dossiers["a"]
    assert dossier["cause"] == "cannot be put off"
    assert "its name is too long" in dossier["error"]
    assert (dossier["attempts"], dossier["crashes"], dossier["errors"]) == (2, 1, ["first", "second"])
    assert [each["run"] for each in dossier["runs"]] == [2]


# -- time


def test_retries_are_written_in_portions_so_that_a_heartbeat_can_come_between(queue, journey):
    queue.seconds_per_call = TURN_SECONDS / 2
    for number in range(5):
        journey.ended(claim(f"j{number}"), failed())
    journey.carry_out(LEASE)
    assert journey.waiting == 3
    journey.carry_out(LEASE)
    journey.carry_out(LEASE)
    assert journey.waiting == 0
    assert sorted(what[0] for _, what in queue.said) == [f"j{number}" for number in range(5)]


def test_very_many_follow_ups_are_sent_in_portions_and_the_reply_waits_for_the_last(queue, journey):
    queue.seconds_per_call = TURN_SECONDS * 2
    ids = [f"f{number}" for number in range(4001)]
    journey.ended(claim("a"), success(*ids))
    journey.ended(claim("b"), OK)
    journey.carry_out(LEASE)
    assert [verb for verb, _ in queue.said] == ["send", "reply"]
    assert queue.said[1] == ("reply", [("b", "done")])
    journey.carry_out(LEASE)
    assert journey.waiting == 1
    journey.carry_out(LEASE)
    assert journey.waiting == 0
    assert queue.said[-1] == ("reply", [("a", "done")])
    assert [job_id for verb, what in queue.said if verb == "send" for job_id in what] == ids


# -- what is kept of failed runs


def told(queue: FakeQueue, job_id: str) -> list[dict[str, Any]]:
    """The runs in a job's dossier, without their times."""
    return [{key: each[key] for key in each if key != "ended_ms"} for each in queue.dossiers[job_id]["runs"]]


def test_the_dossier_of_a_blocked_job_tells_of_the_failed_runs_that_this_process_saw(queue, journey):
    for attempt, seconds in enumerate((0.25, 1.5)):
        journey.ended(claim("a", attempt=attempt), Result.failed("boom", run_seconds=seconds), halved_from=8)
    journey.crashed(claim("a", attempt=2), "killed")
    journey.ended(claim("a", attempt=3, crashes=1), failed("last"))
    journey.carry_out(LEASE)
    assert told(queue, "a") == [
        {"run": 1, "seconds": 0.25, "halved_from": 8},
        {"run": 2, "seconds": 1.5, "halved_from": 8},
        {"run": 3},
        {"run": 4, "seconds": 0.0},
    ]
    assert all(each["ended_ms"] > 0 for each in queue.dossiers["a"]["runs"])


@pytest.mark.parametrize("what", ["outcome", "follow-up"])
def test_a_run_whose_success_cannot_be_written_is_told_as_a_failed_one(queue, journey, what):
    queue.refused["a" if what == "outcome" else "x"] = WriteFailed("x", "too large")
    result = OK if what == "outcome" else success("x")
    journey.ended(claim("a", attempt=2), failed())
    journey.ended(claim("a", attempt=3), dataclasses.replace(result, run_seconds=1.25), halved_from=4)
    journey.carry_out(LEASE)
    journey.carry_out(LEASE)
    assert told(queue, "a") == [{"run": 3, "seconds": 0.0}, {"run": 4, "seconds": 1.25, "halved_from": 4}]


def test_a_refused_success_is_remembered_for_the_end_that_follows_it(queue, journey):
    queue.refused["a"] = WriteFailed("x", "too large")
    journey.ended(claim("a"), dataclasses.replace(OK, run_seconds=1.25))
    journey.carry_out(LEASE)
    journey.ended(claim("a", attempt=1), classify_error(Discard("no")))
    journey.carry_out(LEASE)
    assert told(queue, "a") == [{"run": 1, "seconds": 1.25}, {"run": 2, "seconds": 0.0}]


def test_runs_of_an_earlier_life_of_the_job_are_not_told(queue, journey):
    for attempt in range(3):
        journey.ended(claim("a", attempt=attempt), failed())
    journey.ended(claim("a"), classify_error(Discard("no")))  # a person has had it retried meanwhile
    journey.carry_out(LEASE)
    assert [each["run"] for each in told(queue, "a")] == [1]


def test_a_success_forgets_the_runs_before_it(queue, journey):
    journey.ended(claim("a"), failed())
    journey.ended(claim("a", attempt=1), OK)
    journey.ended(claim("a", attempt=3), failed())
    journey.carry_out(LEASE)
    assert [each["run"] for each in told(queue, "a")] == [4]
