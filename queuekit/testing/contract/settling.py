# ruff: noqa: S101  these are tests
"""How a job in flight ends or goes back, and who may say so."""

from __future__ import annotations

from typing import Any

import pytest

from queuekit.completion import ArtifactRef, Completion
from queuekit.contract import QueueBackend
from queuekit.errors import IllegalTransition, InvalidIdentifier, InvalidTerminalStatus, JobNotFound, WriteFailed
from queuekit.hlc import HLC
from queuekit.ids import JobID, SessionID
from queuekit.lifecycle import State
from queuekit.status import ObservationStatus
from queuekit.testing.contract.base import Contract, counts, state_of
from queuekit.testing.jobs import EPOCH_MS, FAR_MS, ids_of, make_job, make_jobs

DONE = ObservationStatus.DONE


def _completions(*ids: str) -> list[Completion]:
    return [Completion(JobID(each), DONE) for each in ids]


class SettlingContract(Contract):
    """`complete`, `complete_batch`, `complete_session`, `release`, `reclaim_in_flight`."""

    @pytest.mark.parametrize("status", [status for status in ObservationStatus if status.is_terminal])
    def test_an_ended_job_keeps_how_it_ended(self, backend: QueueBackend, status: ObservationStatus) -> None:
        job = make_job("j")
        backend.write(job)
        backend.drain_available()
        artifacts = [ArtifactRef.file_path("/x"), ArtifactRef.commit_hash("abc")]
        backend.complete("j", status, artifacts)
        signal = backend.signal("j")
        assert signal is not None
        assert (signal.job_id, signal.status, signal.artifacts) == ("j", status, tuple(artifacts))
        assert signal.completed_at > job.submitted_at
        assert counts(backend) == (0, 0, 0, 0)
        assert backend.completed() == [job]
        view = backend.look_up("j")
        assert view is not None
        assert (view.state, view.job, view.signal) == (State.DONE, job, signal)

    def test_a_job_from_the_future_ends_after_it_was_sent(self, backend: QueueBackend) -> None:
        job = make_job("j", at=HLC(FAR_MS, 5, 3))
        backend.write(job)
        backend.drain_available()
        backend.complete("j", DONE)
        signal = backend.signal("j")
        assert signal is not None
        assert signal.completed_at > job.submitted_at

    def test_only_a_job_in_flight_can_end(self, backend: QueueBackend) -> None:
        backend.write(make_job("pending"))
        for job_id in ("pending", "unknown"):
            with pytest.raises(JobNotFound):
                backend.complete(job_id, DONE)
            assert backend.signal(job_id) is None
        assert counts(backend) == (1, 0, 0, 0)

    def test_a_job_ends_once(self, backend: QueueBackend) -> None:
        backend.write(make_job("j"))
        backend.drain_available()
        backend.complete("j", DONE)
        first = backend.signal("j")
        with pytest.raises(JobNotFound):
            backend.complete("j", ObservationStatus.BLOCKED)
        assert backend.complete_batch(_completions("j")) == 0
        assert backend.signal("j") == first

    def test_an_identifier_that_fits_no_file_name_is_refused(self, backend: QueueBackend) -> None:
        with pytest.raises(InvalidIdentifier):
            backend.complete("../x", DONE)
        with pytest.raises(InvalidIdentifier):
            backend.signal("../x")
        with pytest.raises(InvalidIdentifier):
            backend.look_up("../x")

    @pytest.mark.parametrize("status", ["running", "finished", ""])
    def test_a_status_that_is_no_end_changes_nothing(self, backend: QueueBackend, status: Any) -> None:
        backend.write_batch([make_job("i"), make_job("j")])
        session = backend.drain_available()[0].session_id
        for act in (
            lambda: backend.complete("j", status),
            lambda: backend.complete_session(session, status),
            lambda: backend.complete_batch([*_completions("i"), Completion(JobID("j"), status)]),
        ):
            with pytest.raises(InvalidTerminalStatus):
                act()
        assert counts(backend) == (0, 2, 0, 0)
        assert backend.signal("i") is None

    def test_a_batch_with_a_bad_artifact_changes_nothing(self, backend: QueueBackend) -> None:
        backend.write_batch([make_job("i"), make_job("j")])
        backend.drain_available()
        not_an_artifact: Any = "/x"
        with pytest.raises(WriteFailed):
            backend.complete_batch([*_completions("i"), Completion(JobID("j"), DONE, [not_an_artifact])])
        assert counts(backend) == (0, 2, 0, 0)

    def test_ids_that_end_alike_are_different_jobs(self, backend: QueueBackend) -> None:
        backend.write_batch([make_job("a-b"), make_job("job-0001")])
        backend.drain_available()
        for part in ("b", "0001"):
            with pytest.raises(JobNotFound):
                backend.complete(part, DONE)
            assert backend.complete_batch(_completions(part)) == 0
            assert backend.signal(part) is None
            assert backend.look_up(part) is None
        assert backend.complete_batch(_completions("a-b", "job-0001")) == 2
        assert ids_of(backend.completed()) == ["a-b", "job-0001"]

    def test_a_batch_skips_what_is_not_in_flight(self, backend: QueueBackend) -> None:
        backend.write_batch([make_job("a"), make_job("b"), make_job("c", "other")])
        backend.drain_available()
        backend.complete("b", ObservationStatus.BLOCKED)
        assert backend.complete_batch(_completions("a", "b", "unknown", "c", "a")) == 2
        blocked = backend.signal("b")
        assert blocked is not None
        assert blocked.status is ObservationStatus.BLOCKED
        assert backend.complete_batch([]) == 0

    def test_a_session_ends_what_is_left_of_it(self, backend: QueueBackend) -> None:
        backend.write_batch(make_jobs(5))
        first, second = backend.drain_available(limit=3), backend.drain_available()
        session = first[0].session_id
        backend.complete(first[0].job.id, DONE)
        assert backend.complete_session(SessionID.mint(), DONE) == 0
        assert backend.complete_session(session, ObservationStatus.NEEDS_CONTEXT) == 2
        assert backend.complete_session(session, DONE) == 0
        assert ids_of(backend.in_flight()) == ids_of(second)
        signal = backend.signal(first[1].job.id)
        assert signal is not None
        assert signal.status is ObservationStatus.NEEDS_CONTEXT

    def test_a_dossier_is_kept_beside_the_end(self, backend: QueueBackend) -> None:
        backend.write(make_job("j"))
        backend.drain_available()
        backend.complete("j", ObservationStatus.BLOCKED, dossier={"error": "no such page", "attempts": 3})
        view = backend.look_up("j")
        assert view is not None
        assert view.dossier == {"error": "no such page", "attempts": 3}

    def test_a_reply_by_one_who_did_not_claim_is_trusted(self, backend: QueueBackend, peer: QueueBackend) -> None:
        backend.write(make_job("j"))
        backend.drain_available()
        peer.complete("j", DONE)
        with pytest.raises(JobNotFound):
            backend.complete("j", DONE)

    def test_a_released_job_is_pending_as_it_was(self, backend: QueueBackend) -> None:
        job = make_job("j")
        backend.write(job)
        session = backend.drain_available()[0].session_id
        backend.release("j")
        assert counts(backend) == (1, 0, 0, 0)
        assert backend.complete_session(session, DONE) == 0
        assert [each.job for each in backend.drain_available()] == [job]

    def test_only_what_is_in_flight_or_deferred_can_be_released(self, backend: QueueBackend) -> None:
        backend.write_batch([make_job("pending", "p"), make_job("ended", "e")])
        backend.drain_available("e")
        backend.complete("ended", DONE)
        for job_id in ("pending", "ended"):
            with pytest.raises(IllegalTransition):
                backend.release(job_id)
        with pytest.raises(JobNotFound):
            backend.release("unknown")
        assert (state_of(backend, "pending"), state_of(backend, "ended")) == (State.NEW, State.DONE)

    def test_a_reclaim_brings_home_one_stream(self, backend: QueueBackend, peer: QueueBackend) -> None:
        jobs = [make_job("a1", "a"), make_job("a2", "a"), make_job("b1", "a-b")]
        backend.write_batch(jobs)
        backend.drain_available()
        assert peer.reclaim_in_flight("a") == 2
        assert (counts(peer, "a"), counts(peer, "a-b")) == ((2, 0, 0, 0), (0, 1, 0, 0))
        assert [each.job for each in peer.drain_available("a")] == jobs[:2]
        assert peer.reclaim_in_flight("nothing-here") == 0

    def test_an_outcome_from_before_a_reclaim_is_dropped(self, backend: QueueBackend, peer: QueueBackend) -> None:
        backend.write(make_job("j"))
        backend.drain_available()
        peer.reclaim_in_flight("encode")
        peer.drain_available()
        with pytest.raises(JobNotFound):
            backend.complete("j", ObservationStatus.BLOCKED)
        assert backend.signal("j") is None
        peer.complete("j", DONE)
        signal = backend.signal("j")
        assert signal is not None
        assert signal.status is DONE

    def test_a_job_that_came_back_can_be_settled(self, backend: QueueBackend, peer: QueueBackend) -> None:
        backend.write(make_job("j"))
        backend.drain_available()
        peer.reclaim_in_flight("encode")
        assert ids_of(backend.drain_available()) == ["j"]
        backend.complete("j", DONE)
        assert counts(backend) == (0, 0, 0, 0)

    def test_a_reclaim_forgets_our_own_claims(self, backend: QueueBackend) -> None:
        backend.write(make_job("j", at=HLC(EPOCH_MS, 0, 0)))
        session = backend.drain_available()[0].session_id
        assert backend.reclaim_in_flight("encode") == 1
        assert backend.complete_session(session, DONE) == 0
        with pytest.raises(JobNotFound):
            backend.complete("j", DONE)
