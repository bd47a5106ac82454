# ruff: noqa: S101, ARG001  these are tests
"""The same through `QueueKit`: what its users rely on, over any backend."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from queuekit import telemetry
from queuekit.contract import QueueBackend
from queuekit.errors import DrainTimeout, InvalidTerminalStatus, JobNotFound
from queuekit.facade import QueueKit
from queuekit.ids import SessionID
from queuekit.job import Job
from queuekit.lifecycle import State
from queuekit.status import ObservationStatus
from queuekit.telemetry import Metric
from queuekit.testing.contract.base import Contract, counts, state_of
from queuekit.testing.jobs import DEADLINE, FAR_MS, ids_of, make_job, make_jobs, wait_until

DONE = ObservationStatus.DONE


class FacadeContract(Contract):
    """`QueueKit` over the backend."""

    @pytest.fixture
    def queue(self, backend: QueueBackend) -> QueueKit:
        """The backend as its users see it."""
        return QueueKit(backend=backend, estate="notes", report_interval=0.0)

    def test_a_job_goes_all_the_way(self, queue: QueueKit) -> None:
        job_id = queue.submit("encode", b"payload", priority=7, extensions={"k": "v"})
        claimed = queue.drain("encode")[0]
        assert claimed.job.id == job_id
        assert (claimed.job.payload, claimed.job.priority, claimed.job.extensions) == (b"payload", 7, {"k": "v"})
        queue.reply(job_id, DONE)
        assert ids_of(queue.completed("encode")) == [job_id]

    def test_jobs_come_in_the_order_they_were_submitted(self, queue: QueueKit) -> None:
        ids = [queue.submit("encode") for _ in range(20)]
        assert ids_of(queue.drain("encode")) == ids

    def test_a_reply_that_is_no_end_touches_nothing(self, queue: QueueKit) -> None:
        queue.submit("encode")
        claimed = queue.drain()[0]
        for act in (
            lambda: queue.reply(claimed.job.id, "running"),
            lambda: queue.reply_session(claimed.session_id, "running"),
        ):
            with pytest.raises(InvalidTerminalStatus):
                act()
        assert queue.in_flight_count() == 1
        assert queue.reply_session(claimed.session_id, DONE) == 1
        with pytest.raises(JobNotFound):
            queue.reply(claimed.job.id, DONE)

    def test_a_delayed_job_waits(self, queue: QueueKit) -> None:
        job_id = queue.submit("encode", delay=3600)
        assert queue.drain() == []
        queue.release(job_id)
        assert ids_of(queue.drain()) == [job_id]
        queue.defer(job_id, 3600)
        assert queue.tally().retrying == 1

    # -- await_drain: its timeout is time without progress

    def test_waiting_for_an_empty_queue_returns_at_once(self, queue: QueueKit) -> None:
        queue.backend.write(make_job(), due_ms=FAR_MS)
        queue.await_drain(poll_interval=60.0)

    def test_progress_extends_the_wait(self, queue: QueueKit) -> None:
        queue.send_batch(make_jobs(4))
        claimed = queue.drain()

        def work() -> None:
            for each in claimed:
                time.sleep(0.2)
                queue.reply(each.job.id, DONE)

        worker = threading.Thread(target=work)
        worker.start()
        queue.await_drain("encode", timeout=0.4)
        worker.join()
        assert queue.in_flight_count() == 0

    def test_a_stall_is_told_with_what_is_left(self, queue: QueueKit) -> None:
        queue.send_batch(make_jobs(3))
        queue.reply(queue.drain()[0].job.id, DONE)
        with pytest.raises(DrainTimeout) as raised:
            queue.await_drain(timeout=0.15)
        assert (raised.value.pending, raised.value.in_flight) == (0, 2)

    def test_waiting_for_one_stream_ignores_the_others(self, queue: QueueKit) -> None:
        queue.submit("other")
        queue.await_drain("encode", poll_interval=60.0)
        with pytest.raises(DrainTimeout) as raised:
            queue.await_drain(timeout=0.05)
        assert (raised.value.pending, raised.value.in_flight) == (1, 0)

    # -- watch

    def test_a_watch_delivers_what_is_there_and_what_comes(self, queue: QueueKit) -> None:
        stop, seen = threading.Event(), list[str]()

        def handler(job: Job, session: SessionID) -> None:
            queue.reply(job.id, DONE)
            seen.append(job.id)

        first = queue.submit("encode")
        thread = threading.Thread(target=queue.watch, args=(handler, stop), kwargs={"stream": "encode"})
        thread.start()
        wait_until(lambda: seen == [first])
        queue.submit("other")
        second = queue.submit("encode")
        wait_until(lambda: seen == [first, second])
        stop.set()
        thread.join(DEADLINE)
        assert not thread.is_alive()
        assert counts(queue.backend) == (1, 0, 0, 0)

    def test_a_failing_handler_keeps_its_job_and_gives_the_rest_back(self, queue: QueueKit) -> None:
        jobs = make_jobs(4)
        queue.send_batch(jobs)

        def handler(job: Job, session: SessionID) -> None:
            if job.id == jobs[1].id:
                raise ZeroDivisionError
            queue.reply(job.id, DONE)

        with pytest.raises(ZeroDivisionError):
            queue.watch(handler, threading.Event())
        states = [state_of(queue.backend, job.id) for job in jobs]
        assert states == [State.DONE, State.CUR, State.NEW, State.NEW]

    def test_a_stop_gives_back_what_was_not_started(self, queue: QueueKit) -> None:
        jobs = make_jobs(3)
        queue.send_batch(jobs)
        stop = threading.Event()

        def handler(job: Job, session: SessionID) -> None:
            queue.reply(job.id, DONE)
            stop.set()

        queue.watch(handler, stop)
        assert [state_of(queue.backend, job.id) for job in jobs] == [State.DONE, State.NEW, State.NEW]

    # -- telemetry

    @pytest.fixture
    def metrics(self) -> Iterator[list[Metric]]:
        """What hooks are told, with telemetry on."""
        seen: list[Metric] = []
        telemetry.install(seen.append)
        telemetry.set_enabled(True)
        yield seen
        telemetry.set_enabled(False)
        telemetry.install(None)

    def test_a_drain_is_reported_with_its_stream(self, queue: QueueKit, metrics: list[Metric]) -> None:
        queue.send_batch([*make_jobs(3, "a"), *make_jobs(5, "b")])
        queue.drain("a", 2)
        told = {metric.name: metric for metric in metrics}
        assert (told["queue.depth"].value, told["queue.drain_count"].value) == (1, 2)
        assert all(
            (metric.tags["estate"], metric.tags["kit"], metric.tags["stream"]) == ("notes", "QueueKit", "a")
            for metric in metrics
        )

    def test_what_was_drained_between_two_reports_is_summed(self, backend: QueueBackend, metrics: list[Metric]) -> None:
        queue = QueueKit(backend=backend, report_interval=3600.0)
        queue.send_batch(make_jobs(9))
        queue.drain("encode", 1)
        metrics.clear()
        for limit in (2, 3):
            queue.drain("encode", limit)
        assert metrics == []
        eager = QueueKit(backend=backend, latency=queue.latency, report_interval=0.0)
        eager.drain("encode", 3)
        assert [metric.value for metric in metrics if metric.name == "queue.drain_count"] == [8]

    def test_nothing_is_reported_while_telemetry_is_off(self, queue: QueueKit, metrics: list[Metric]) -> None:
        telemetry.set_enabled(False)
        queue.submit("encode")
        queue.drain()
        assert metrics == []
