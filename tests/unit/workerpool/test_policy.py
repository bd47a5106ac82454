import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from stream_config import make_config

from queuekit.completion import ArtifactRef
from queuekit.job import Delivery
from queuekit.status import ObservationStatus
from workerpool.outcome import Discard, Outcome, Result, Retry, classify, classify_error
from workerpool.policy import Block, BlockCause, Reply, RetryAt, respawn_delay, retry_delay, settle, settle_crash

NOW = 1_700_000_000_000
CONFIG = make_config()
FAILED = Result.failed("boom")
fractions = st.floats(0, 1, exclude_max=True)


@pytest.mark.parametrize("status", [status for status in ObservationStatus if status.is_terminal])
def test_a_terminal_status_is_replied_with_its_artifacts_whatever_came_before(status):
    ref = ArtifactRef.file_path("/x")
    decision = settle(classify(Outcome(status, [ref])), Delivery(attempt=9, crashes=9), CONFIG, NOW, 0.5)
    assert decision == Reply(status=status, artifacts=(ref,))


def test_a_failed_run_is_deferred_by_the_backoff():
    assert settle(FAILED, Delivery(), CONFIG, NOW, 0.0) == RetryAt(due_ms=NOW + 500, error="boom")
    assert settle(FAILED, Delivery(attempt=1), CONFIG, NOW, 0.0) == RetryAt(due_ms=NOW + 1000, error="boom")
    assert settle(FAILED, Delivery(attempt=2), CONFIG, NOW, 0.0) == RetryAt(due_ms=NOW + 2000, error="boom")


def test_the_last_allowed_failure_blocks_with_the_whole_record():
    before = Delivery(attempt=3, crashes=1, errors=("a", "b"))
    assert settle(FAILED, before, CONFIG, NOW, 0.5) == Block(
        cause=BlockCause.EXHAUSTED, error="boom", attempts=4, crashes=1, errors=("a", "b", "boom"), at_ms=NOW
    )


@given(st.integers(0, 20), fractions)
def test_a_job_that_always_fails_runs_one_time_more_than_its_retries(retries, rand):
    delivery, runs = Delivery(), 0
    while True:
        runs += 1
        decision = settle(FAILED, delivery, make_config(retries=retries), NOW, rand)
        if isinstance(decision, Block):
            break
        assert decision.due_ms >= NOW
        delivery = delivery.failed(decision.error, crashed=decision.crashed)
    assert (runs, decision.attempts) == (retries + 1, retries + 1)


@pytest.mark.parametrize(("after", "wait_ms"), [(0, 0), (2.5, 2500), (3600, 3_600_000), (0.0001, 1)])
def test_a_retry_is_due_when_it_asked_to_be(after, wait_ms):
    decision = settle(classify_error(Retry(after, "busy")), Delivery(), CONFIG, NOW, 0.5)
    assert decision == RetryAt(due_ms=NOW + wait_ms, error="busy")


def test_a_retry_without_a_time_uses_the_backoff():
    assert settle(classify_error(Retry(reason="x")), Delivery(), CONFIG, NOW, 0.0).due_ms == NOW + 500


def test_a_job_that_always_asks_for_a_retry_ends_blocked():
    decision = settle(classify_error(Retry(0)), Delivery(attempt=3), CONFIG, NOW, 0.5)
    assert decision.cause is BlockCause.EXHAUSTED


def test_a_discard_blocks_at_once():
    decision = settle(classify_error(Discard("no such user")), Delivery(), CONFIG, NOW, 0.5)
    assert (decision.cause, decision.error, decision.attempts) == (BlockCause.DISCARDED, "no such user", 1)


def test_a_crash_is_charged_and_tried_again_until_the_limit():
    assert settle_crash(Delivery(), "killed by signal 9", CONFIG, NOW, 0.0) == RetryAt(
        due_ms=NOW + 500, error="killed by signal 9", crashed=True
    )
    decision = settle_crash(Delivery(attempt=1, crashes=1), "killed by signal 9", CONFIG, NOW, 0.0)
    assert (decision.cause, decision.attempts, decision.crashes) == (BlockCause.CRASHED, 2, 2)


def test_failures_between_crashes_do_not_excuse_them():
    decision = settle_crash(Delivery(attempt=2, crashes=1), "died", CONFIG, NOW, 0.0)
    assert decision.cause is BlockCause.CRASHED


def test_a_crash_is_a_run_too():
    decision = settle_crash(Delivery(attempt=3), "died", CONFIG, NOW, 0.0)
    assert decision.cause is BlockCause.EXHAUSTED


def test_a_dossier_is_json_with_every_fact():
    block = settle(FAILED, Delivery(attempt=3, crashes=1, errors=("a",)), CONFIG, NOW, 0.5)
    assert json.loads(json.dumps(block.dossier())) == {
        "cause": "retries exhausted",
        "error": "boom",
        "attempts": 4,
        "crashes": 1,
        "errors": ["a", "boom"],
        "blocked_at_ms": NOW,
    }


# -- backoff


@given(st.integers(1, 2**31), fractions, st.floats(0, 1e6), st.floats(0, 1e8))
def test_the_wait_never_exceeds_the_longest_nor_falls_under_half_of_the_first(runs, rand, backoff, longest):
    assume(backoff <= longest)
    delay = retry_delay(runs, make_config(backoff=backoff, max_backoff=longest), rand)
    assert backoff / 2 <= delay <= longest


@given(st.integers(1, 100), fractions)
def test_with_the_same_luck_the_wait_never_shrinks(runs, rand):
    assert retry_delay(runs, CONFIG, rand) <= retry_delay(runs + 1, CONFIG, rand)


def test_the_wait_doubles_and_then_stays():
    waits = [retry_delay(runs, make_config(max_backoff=5.0), 0.999_999_999) for runs in range(1, 6)]
    assert waits == pytest.approx([1, 2, 4, 5, 5])


def test_jobs_that_failed_together_come_back_apart():
    assert len({retry_delay(1, CONFIG, tenth / 10) for tenth in range(10)}) == 10


def test_no_backoff_is_no_wait():
    assert retry_delay(5, make_config(backoff=0.0), 0.9) == 0


# -- respawning


def test_what_had_been_ready_comes_back_at_once_then_ever_later_up_to_two_seconds():
    delays = [respawn_delay(failures, True) for failures in range(1, 12)]
    assert delays[0] == 0
    assert delays == sorted(delays)
    assert delays[1] > 0
    assert delays[-1] == 2


def test_what_never_gets_ready_waits_up_to_thirty_seconds():
    delays = [respawn_delay(failures, False) for failures in range(1, 12)]
    assert delays[0] > 0
    assert delays == sorted(delays)
    assert delays[-1] == 30


def test_a_broken_stream_is_started_at_most_ten_times_a_minute():
    clock, starts = 0.0, 0
    while clock < 60:
        starts += 1
        clock += respawn_delay(starts, False)
    assert 3 <= starts <= 10


def test_no_number_of_failures_is_too_large():
    assert respawn_delay(10**9, True) == 2
    assert respawn_delay(10**9, False) == 30
    assert respawn_delay(0, False) == 0
