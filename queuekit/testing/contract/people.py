# ruff: noqa: S101  these are tests
"""A person's verbs: cancel, retry, prune. An illegal one raises and changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from queuekit.contract import QueueBackend
from queuekit.errors import IllegalTransition, JobNotFound
from queuekit.job import Delivery
from queuekit.lifecycle import State
from queuekit.status import ObservationStatus
from queuekit.testing.contract.base import Contract, counts, state_of
from queuekit.testing.jobs import EPOCH_MS, FAR_MS, ids_of, make_job, make_jobs
from queuekit.wire import decode_signal

DONE, BLOCKED = ObservationStatus.DONE, ObservationStatus.BLOCKED


def _end(backend: QueueBackend, job_id: str, status: ObservationStatus = DONE) -> None:
    backend.write(make_job(job_id))
    while job_id not in ids_of(backend.in_flight()):
        backend.drain_available()
    backend.complete(job_id, status)


class PeopleContract(Contract):
    """`cancel`, `retry`, `prune`."""

    @pytest.mark.parametrize("due_ms", [None, FAR_MS, EPOCH_MS], ids=["pending", "scheduled", "due"])
    def test_a_cancelled_job_is_blocked_and_never_runs(self, backend: QueueBackend, due_ms: int | None) -> None:
        job = make_job("j")
        backend.write(job, due_ms=due_ms)
        backend.cancel("j")
        signal = backend.signal("j")
        assert signal is not None
        assert (signal.status, signal.artifacts) == (BLOCKED, ())
        assert signal.completed_at > job.submitted_at
        assert counts(backend) == (0, 0, 0, 0)
        assert backend.drain_available() == []
        assert backend.completed() == [job]

    def test_a_cancel_is_told_in_the_dossier(self, backend: QueueBackend) -> None:
        backend.write(make_job("j"))
        backend.cancel("j")
        view = backend.look_up("j")
        assert view is not None
        assert view.dossier is not None
        assert (view.dossier["ended"], view.dossier["was"]) == ("cancelled", "pending")

    @pytest.mark.parametrize("verb", ["cancel", "retry"])
    def test_a_job_in_flight_cannot_be_taken_away(self, backend: QueueBackend, verb: str) -> None:
        backend.write(make_job("j"))
        backend.drain_available()
        with pytest.raises(IllegalTransition):
            getattr(backend, verb)("j")
        backend.complete("j", DONE)

    def test_verbs_in_the_wrong_state_change_nothing(self, backend: QueueBackend) -> None:
        _end(backend, "ended")
        backend.write(make_job("later"), due_ms=FAR_MS)
        backend.write(make_job("pending"))
        illegal: list[tuple[Callable[[str], None], str]] = [
            (backend.cancel, "ended"),
            (backend.retry, "pending"),
            (backend.retry, "later"),
            (backend.release, "ended"),
        ]
        for verb, job_id in illegal:
            with pytest.raises(IllegalTransition):
                verb(job_id)
        states = [state_of(backend, job_id) for job_id in ("ended", "later", "pending")]
        assert states == [State.DONE, State.LATER, State.NEW]

    def test_an_unknown_job_is_not_found(self, backend: QueueBackend) -> None:
        for verb in (backend.cancel, backend.retry):
            with pytest.raises(JobNotFound):
                verb("unknown")
        assert backend.look_up("unknown") is None

    def test_a_cancel_leaves_the_copy_that_runs(self, backend: QueueBackend) -> None:
        job = make_job("j")
        backend.write(job)
        backend.drain_available()
        backend.write(job)
        with pytest.raises(IllegalTransition):
            backend.cancel("j")
        assert counts(backend) == (0, 1, 0, 0)
        backend.complete("j", DONE)

    def test_a_retried_job_starts_afresh_and_remembers(self, backend: QueueBackend) -> None:
        job = make_job("j", extensions={"mine": 1})
        backend.write(job)
        backend.drain_available()
        backend.defer("j", EPOCH_MS, error="no")
        assert Delivery.of(backend.drain_available()[0].job).attempt == 1
        backend.complete("j", BLOCKED, dossier={"error": "no"})
        ended = backend.signal("j")
        backend.retry("j")
        assert backend.signal("j") is None
        assert backend.completed() == []
        assert [each.job for each in backend.drain_available()] == [job]
        view = backend.look_up("j")
        assert view is not None
        assert view.dossier is not None
        assert view.dossier["error"] == "no"
        assert [decode_signal(each.encode()) for each in view.dossier["earlier_ends"]] == [ended]
        backend.complete("j", DONE)

    def test_each_retry_keeps_one_more_end(self, backend: QueueBackend) -> None:
        _end(backend, "j", BLOCKED)
        for status in (ObservationStatus.NEEDS_CONTEXT, DONE):
            backend.retry("j")
            backend.drain_available()
            backend.complete("j", status)
        view = backend.look_up("j")
        assert view is not None
        assert view.dossier is not None
        ends = [decode_signal(each.encode()).status for each in view.dossier["earlier_ends"]]
        assert ends == [BLOCKED, ObservationStatus.NEEDS_CONTEXT]

    def test_prune_removes_the_records_of_old_ends(self, backend: QueueBackend) -> None:
        _end(backend, "ended", BLOCKED)
        backend.write(make_job("pending"))
        backend.write(make_job("later"), due_ms=FAR_MS)
        assert backend.prune(3600) == 0
        assert state_of(backend, "ended") is State.DONE
        assert backend.prune(0) == 1
        assert (backend.look_up("ended"), backend.signal("ended"), backend.completed()) == (None, None, [])
        assert counts(backend) == (1, 0, 0, 1)
        assert backend.prune(0) == 0

    def test_prune_leaves_what_is_in_flight(self, backend: QueueBackend) -> None:
        backend.write(make_job("j"))
        backend.drain_available()
        assert backend.prune(0) == 0
        backend.complete("j", DONE)

    def test_prune_takes_a_portion_oldest_first(self, backend: QueueBackend) -> None:
        jobs = make_jobs(5)
        backend.write_batch(jobs)
        backend.drain_available()
        for job in jobs:
            backend.complete(job.id, DONE)
        assert backend.prune(0, limit=2) == 2
        assert ids_of(backend.completed()) == ids_of(jobs[2:])
        assert backend.prune(0, limit=99) == 3

    def test_prune_can_keep_to_one_stream(self, backend: QueueBackend) -> None:
        backend.write_batch([make_job("x", "a"), make_job("y", "a-b")])
        backend.drain_available()
        backend.complete("x", DONE)
        backend.complete("y", DONE)
        assert backend.prune(0, stream="a") == 1
        assert ids_of(backend.completed()) == ["y"]

    def test_prune_can_keep_to_how_jobs_ended(self, backend: QueueBackend) -> None:
        backend.write_batch([make_job("good"), make_job("bad")])
        backend.drain_available()
        backend.complete("good", DONE)
        backend.complete("bad", ObservationStatus.BLOCKED)
        assert backend.prune(0, statuses=[ObservationStatus.BLOCKED]) == 1
        assert ids_of(backend.completed()) == ["good"]
        assert backend.prune(0, statuses=[ObservationStatus.BLOCKED]) == 0
        assert backend.prune(0, statuses=[DONE]) == 1

    def test_a_pruned_job_can_be_sent_again(self, backend: QueueBackend) -> None:
        job = make_job("j")
        backend.write(job)
        backend.drain_available()
        backend.complete("j", DONE)
        backend.prune(0)
        backend.write(job)
        assert ids_of(backend.drain_available()) == ["j"]
