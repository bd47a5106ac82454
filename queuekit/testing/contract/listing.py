# ruff: noqa: S101  these are tests
"""Looking: lists of jobs, ids cut short. Nothing that is only looked at changes."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from queuekit.contract import JobView, PutAside, QueueBackend
from queuekit.errors import BackendUnavailable
from queuekit.hlc import HLC
from queuekit.lifecycle import State
from queuekit.status import ObservationStatus
from queuekit.testing.contract.base import Contract, counts
from queuekit.testing.jobs import EPOCH_MS, FAR_MS, ids_of, make_job, make_jobs

DONE, BLOCKED = ObservationStatus.DONE, ObservationStatus.BLOCKED
OPEN = (State.NEW, State.LATER, State.CUR)


def _views(backend: QueueBackend, states: Collection[State], stream: str | None = None) -> list[JobView]:
    return [_job_of(each) for each in backend.jobs(states, stream)]


def _job_of(view: JobView | PutAside) -> JobView:
    assert isinstance(view, JobView)
    return view


def _listed(backend: QueueBackend, states: Collection[State], stream: str | None = None) -> list[str]:
    return [view.job.id for view in _views(backend, states, stream)]


class ListingContract(Contract):
    """`jobs`, `ids_beginning`, `put_aside`."""

    def test_a_list_goes_the_way_of_a_jobs_life(self, backend: QueueBackend) -> None:
        running, ended, pending = make_jobs(2), make_jobs(3), make_jobs(2)
        backend.write_batch(running)
        backend.drain_available()
        backend.write_batch(reversed(ended))
        backend.drain_available()
        for job in ended:
            backend.complete(job.id, DONE)
        backend.write_batch(reversed(pending))
        backend.write(make_job("late"), due_ms=FAR_MS + 1)
        backend.write(make_job("soon"), due_ms=FAR_MS)
        open_ones = ["soon", "late", *ids_of(pending), *ids_of(running)]
        assert _listed(backend, tuple(State)) == [*open_ones, *ids_of(reversed(ended))]

    def test_a_list_holds_the_states_asked_for(self, backend: QueueBackend) -> None:
        backend.write_batch([make_job("ended"), make_job("running")])
        backend.drain_available()
        backend.complete("ended", DONE)
        backend.write(make_job("pending"))
        backend.write(make_job("later"), due_ms=FAR_MS)
        assert [_listed(backend, [state]) for state in State] == [["pending"], ["later"], ["running"], ["ended"]]
        assert _listed(backend, {State.NEW, State.DONE}) == ["pending", "ended"]
        assert _listed(backend, []) == []

    def test_a_list_can_keep_to_one_stream(self, backend: QueueBackend) -> None:
        streams = ("a", "a-b", "b")
        backend.write_batch([make_job(f"ended-{stream}", stream) for stream in streams])
        for each in backend.drain_available():
            backend.complete(each.job.id, DONE)
        backend.write_batch([make_job(f"open-{stream}", stream) for stream in streams])
        for stream in streams:
            assert _listed(backend, tuple(State), stream) == [f"open-{stream}", f"ended-{stream}"]
        assert _listed(backend, tuple(State), "c") == []

    def test_each_job_is_shown_as_it_is(self, backend: QueueBackend) -> None:
        job = make_job("scheduled", priority=7, payload=b"\0x", extensions={"mine": [1]})
        backend.write(job, due_ms=FAR_MS)
        assert _views(backend, OPEN) == [JobView(job=job, state=State.LATER, due_ms=FAR_MS)]
        backend.write(make_job("retried"))
        backend.drain_available()
        backend.defer("retried", FAR_MS + 1, error="no")
        view = _views(backend, OPEN)[1]
        assert (view.job.id, view.state, view.due_ms, view.retry) == ("retried", State.LATER, FAR_MS + 1, True)
        assert (view.signal, view.dossier) == (None, None)

    def test_an_ended_job_has_its_signal_and_a_blocked_one_its_dossier(self, backend: QueueBackend) -> None:
        backend.write_batch([make_job("well"), make_job("badly")])
        backend.drain_available()
        backend.complete("well", DONE)
        backend.complete("badly", BLOCKED, dossier={"error": "no"})
        badly, well = _views(backend, [State.DONE])
        assert (well.signal, well.dossier) == (backend.signal("well"), None)
        assert (badly.signal, badly.dossier) == (backend.signal("badly"), {"error": "no"})

    def test_looking_changes_nothing_and_locks_nothing(self, backend: QueueBackend, peer: QueueBackend) -> None:
        jobs = make_jobs(3)
        backend.write_batch(jobs)
        looking = backend.jobs(OPEN)
        assert _job_of(next(looking)).job == jobs[0]
        claimed = peer.drain_available()
        assert ids_of(claimed) == ids_of(jobs)
        seen = [_job_of(view).job.id for view in looking]  # what has moved meanwhile may be missing or come twice
        assert set(seen) <= set(ids_of(jobs))
        assert counts(backend) == (0, 3, 0, 0)
        peer.complete(jobs[0].id, DONE)

    def test_one_job_of_many_is_read_without_the_others(self, backend: QueueBackend) -> None:
        jobs = make_jobs(5)
        backend.write_batch(jobs)
        looking = backend.jobs([State.NEW])
        assert _job_of(next(looking)).job == jobs[0]
        assert len(list(looking)) == 4

    def test_a_closed_store_shows_nothing(self, backend: QueueBackend) -> None:
        backend.close()
        with pytest.raises(BackendUnavailable):
            list(backend.jobs(OPEN))
        with pytest.raises(BackendUnavailable):
            backend.ids_beginning("a")

    def test_blocked_jobs_are_counted_for_each_stream(self, backend: QueueBackend) -> None:
        """With and without a dossier, cancelled ones too; nothing that goes on or ended otherwise."""
        backend.write_batch(
            [make_job(f"{end}-{stream}", stream) for end in ("told", "bare", "well") for stream in "ab"]
        )
        for each in backend.drain_available():
            end = DONE if each.job.id.startswith("well") else BLOCKED
            backend.complete(each.job.id, end, dossier={"error": "no"} if each.job.id.startswith("told") else None)
        long = make_job(stream="a-b")
        backend.write_batch([make_job("cancelled", "b"), make_job("pending", "c"), long])
        backend.cancel("cancelled")
        backend.cancel(long.id)
        assert backend.blocked_counts(at_most=1000) == {"a": 2, "b": 3, "a-b": 1}
        backend.retry("told-a")
        assert backend.blocked_counts(at_most=1000) == {"a": 1, "b": 3, "a-b": 1}

    def test_a_count_of_blocked_jobs_may_be_too_low_never_too_high(self, backend: QueueBackend) -> None:
        jobs = make_jobs(30)
        backend.write_batch(jobs)
        for each in backend.drain_available():
            backend.complete(each.job.id, BLOCKED)
        assert sum(backend.blocked_counts(at_most=10).values()) <= 10

    def test_ids_are_found_by_their_beginning_in_every_state(self, backend: QueueBackend) -> None:
        ids = [f"{digit}{'0' * 30}{last}" for digit in "ab" for last in "321"]
        ended, running, pending, later = ids[:4]
        for job_id in (ended, running):
            backend.write(make_job(job_id))
        backend.drain_available()
        backend.complete(ended, DONE)
        backend.write(make_job(pending))
        backend.write(make_job(later), due_ms=FAR_MS)
        assert backend.ids_beginning("a000") == [pending, running, ended]
        assert backend.ids_beginning("b") == [later]
        assert backend.ids_beginning(later) == [later]
        assert backend.ids_beginning("c") == []
        assert backend.ids_beginning("0") == []

    def test_only_what_begins_so_is_found(self, backend: QueueBackend) -> None:
        backend.write_batch([make_job("file-17"), make_job("file-18"), make_job("17", "file"), make_job("a-file-19")])
        assert backend.ids_beginning("file-1") == ["file-17", "file-18"]
        assert backend.ids_beginning("1") == ["17"]
        for literally in ("file%", "file_1", "FILE", "file*"):
            assert backend.ids_beginning(literally) == []

    def test_an_id_that_two_jobs_have_is_found_once(self, backend: QueueBackend) -> None:
        streams = ("a",) if self.ids_are_unique else ("a", "b")
        backend.write_batch([make_job("twice", stream, at=HLC(EPOCH_MS, 0, 1)) for stream in streams])
        assert backend.ids_beginning("twi") == ["twice"]

    def test_a_job_is_not_put_aside(self, backend: QueueBackend) -> None:
        backend.write(make_job("j"))
        backend.drain_available()
        backend.complete("j", BLOCKED)
        assert backend.put_aside("j") is None
        assert backend.put_aside("unknown") is None
