# ruff: noqa: S101  these are tests
"""Jobs that are not due yet: after a failed run, or by a person's word. Due times are given, not waited for."""

from __future__ import annotations

import time

import pytest

from queuekit.contract import QueueBackend
from queuekit.errors import JobNotFound
from queuekit.job import Delivery
from queuekit.lifecycle import State
from queuekit.testing.contract.base import Contract, counts
from queuekit.testing.jobs import EPOCH_MS, FAR_MS, ids_of, make_job, make_jobs, wait_until


class DeferringContract(Contract):
    """`defer`, `write(due_ms=…)`, promotion by a drain, `next_due`."""

    def test_a_scheduled_job_waits_and_nobody_waits_for_it(self, backend: QueueBackend) -> None:
        job = make_job("j")
        backend.write(job, due_ms=FAR_MS)
        assert backend.drain_available() == []
        assert counts(backend) == (0, 0, 0, 1)
        tally = backend.tally("encode")
        assert (tally.outstanding, tally.next_retry_ms) == (0, None)
        view = backend.look_up("j")
        assert view is not None
        assert (view.state, view.due_ms, view.retry, view.job) == (State.LATER, FAR_MS, False, job)

    def test_a_scheduled_job_that_is_due_is_drained(self, backend: QueueBackend) -> None:
        backend.drain_available()
        backend.write(make_job("j"), due_ms=EPOCH_MS)
        assert ids_of(backend.drain_available("encode")) == ["j"]
        assert counts(backend) == (0, 1, 0, 0)

    def test_a_drain_promotes_its_own_stream_only(self, backend: QueueBackend) -> None:
        for stream in ("a", "a-b"):
            backend.write(make_job("b-" + stream, stream), due_ms=EPOCH_MS)
        assert ids_of(backend.drain_available("a")) == ["b-a"]
        assert counts(backend, "a-b") == (0, 0, 0, 1)

    def test_what_one_schedules_another_drains(self, backend: QueueBackend, peer: QueueBackend) -> None:
        peer.write(make_job("j"), due_ms=EPOCH_MS)
        wait_until(lambda: ids_of(backend.drain_available()) == ["j"])

    def test_what_is_due_joins_the_others_in_order(self, backend: QueueBackend) -> None:
        old, middle, young = make_jobs(3)
        backend.write_batch([old, young])
        backend.write(middle, due_ms=EPOCH_MS)
        assert ids_of(backend.drain_available()) == ids_of([old, middle, young])

    def test_a_deferred_job_has_one_attempt_more(self, backend: QueueBackend) -> None:
        backend.write(make_job("j", extensions={"mine": [1]}))
        backend.drain_available()
        backend.defer("j", FAR_MS, error="no route to host")
        assert counts(backend) == (0, 0, 1, 0)
        tally = backend.tally()
        assert (tally.outstanding, tally.next_retry_ms) == (1, FAR_MS)
        view = backend.look_up("j")
        assert view is not None
        assert (view.state, view.due_ms, view.retry) == (State.LATER, FAR_MS, True)
        assert Delivery.of(view.job) == Delivery(attempt=1, errors=("no route to host",))
        assert view.job.extensions["mine"] == [1]
        assert backend.drain_available() == []

    def test_attempts_and_crashes_add_up(self, backend: QueueBackend) -> None:
        backend.write(make_job("j"))
        for number in range(7):
            assert ids_of(backend.drain_available()) == ["j"]
            backend.defer("j", EPOCH_MS, error=f"no {number}" if number != 3 else "", crashed=number % 2 == 0)
        record = Delivery.of(backend.drain_available()[0].job)
        assert (record.attempt, record.crashes) == (7, 4)
        assert record.errors == ("no 1", "no 2", "no 4", "no 5", "no 6")

    def test_only_a_job_in_flight_can_be_deferred(self, backend: QueueBackend) -> None:
        backend.write(make_job("j"))
        for job_id in ("j", "unknown"):
            with pytest.raises(JobNotFound):
                backend.defer(job_id, FAR_MS)
        assert counts(backend) == (1, 0, 0, 0)

    def test_the_earliest_retry_is_the_next(self, backend: QueueBackend) -> None:
        backend.write_batch([make_job("a", "x"), make_job("b", "x"), make_job("c", "y")])
        backend.drain_available()
        backend.defer("a", FAR_MS + 7)
        backend.defer("b", FAR_MS + 5)
        backend.defer("c", FAR_MS)
        backend.write(make_job("d", "x"), due_ms=FAR_MS - 1)
        assert backend.tally("x").next_retry_ms == FAR_MS + 5
        assert backend.tally().next_retry_ms == FAR_MS

    @pytest.mark.parametrize("retry", [True, False], ids=["after a failure", "by a person"])
    def test_a_deferred_job_can_run_now(self, backend: QueueBackend, retry: bool) -> None:
        if retry:
            backend.write(make_job("j"))
            backend.drain_available()
            backend.defer("j", FAR_MS, error="no")
        else:
            backend.write(make_job("j"), due_ms=FAR_MS)
        backend.release("j")
        assert counts(backend) == (1, 0, 0, 0)
        assert Delivery.of(backend.drain_available()[0].job).attempt == retry

    def test_next_due_tells_how_long_to_sleep(self, backend: QueueBackend) -> None:
        assert backend.next_due() is None
        backend.write(make_job("far", "a"), due_ms=FAR_MS)
        backend.write(make_job("due", "b"), due_ms=EPOCH_MS)
        wait = backend.next_due("a")
        assert wait is not None
        assert wait == pytest.approx(FAR_MS / 1000 - time.time(), abs=60)
        assert backend.next_due("b") == 0
        assert backend.next_due() == 0
        assert backend.next_due("c") is None
