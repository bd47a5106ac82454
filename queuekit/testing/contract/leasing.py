# ruff: noqa: S101  these are tests
"""One consumer a stream: what a lease allows, what losing it forbids, and what it does not touch."""

from __future__ import annotations

import pytest

from queuekit.completion import Completion
from queuekit.contract import Lease, QueueBackend
from queuekit.errors import IllegalTransition, JobNotFound, LeaseLost
from queuekit.ids import JobID
from queuekit.status import ObservationStatus
from queuekit.testing.contract.base import Contract, counts
from queuekit.testing.jobs import EPOCH_MS, FAR_MS, ids_of, make_job, make_jobs, wait_until

DONE = ObservationStatus.DONE
STREAM = "encode"


def won(backend: QueueBackend, stream: str = STREAM) -> Lease:
    """The stream's lease, just won."""
    lease = backend.lease(stream)
    assert lease.try_acquire()
    return lease


def taken_over(backend: QueueBackend, stream: str = STREAM) -> Lease:
    """The stream's lease, taken from a holder that lives but does not renew it: our patience is 0 seconds."""
    lease = backend.lease(stream, 0.0)
    wait_until(lease.try_acquire)
    return lease


class LeasingContract(Contract):
    """`lease`, and `lease=` of every verb that takes one."""

    def test_one_of_two_gets_it(self, backend: QueueBackend, peer: QueueBackend) -> None:
        mine, theirs = backend.lease(STREAM), peer.lease(STREAM)
        assert mine.try_acquire()
        assert not theirs.try_acquire()
        assert theirs.is_held_by_other()
        assert not mine.is_held_by_other()
        assert mine.try_acquire()
        mine.release()
        assert not theirs.is_held_by_other()
        assert theirs.try_acquire()

    def test_streams_are_leased_apart(self, backend: QueueBackend, peer: QueueBackend) -> None:
        won(backend, "a")
        won(peer, "b")

    def test_many_work_a_stream_where_the_store_can_do_that(self, backend: QueueBackend, peer: QueueBackend) -> None:
        if not self.shares_streams:
            with pytest.raises(ValueError, match="exclusive"):
                backend.lease(STREAM, exclusive=False)
            return
        mine, theirs = (each.lease(STREAM, exclusive=False) for each in (backend, peer))
        assert mine.try_acquire()
        assert theirs.try_acquire()
        assert not mine.is_held_by_other()
        mine.verify()

    @pytest.mark.parametrize("verb", ["complete", "release", "defer"])
    def test_that_the_lease_is_lost_is_said_before_that_the_job_is_gone(
        self, backend: QueueBackend, peer: QueueBackend, verb: str
    ) -> None:
        backend.write(make_job("j", STREAM))
        backend.drain_available()
        peer.complete("j", DONE)
        arguments = {"complete": (DONE,), "defer": (EPOCH_MS,)}.get(verb, ())
        with pytest.raises(LeaseLost):
            getattr(backend, verb)("j", *arguments, lease=backend.lease(STREAM))

    def test_the_fence_counts_take_overs(self, backend: QueueBackend, peer: QueueBackend) -> None:
        mine = backend.lease(STREAM)
        assert mine.fence == 0
        assert mine.try_acquire()
        first = mine.fence
        mine.heartbeat()
        assert mine.try_acquire()
        assert mine.fence == first > 0
        assert taken_over(peer).fence == first + 1

    def test_a_living_holder_does_not_lose_it_to_a_clock(self, backend: QueueBackend, peer: QueueBackend) -> None:
        won(backend)
        assert not peer.lease(STREAM).try_acquire(now=FAR_MS / 1000)

    def test_a_lost_lease_cannot_be_renewed(self, backend: QueueBackend, peer: QueueBackend) -> None:
        mine = won(backend)
        theirs = taken_over(peer)
        with pytest.raises(LeaseLost) as raised:
            mine.heartbeat()
        assert (raised.value.stream, raised.value.holder) == (STREAM, theirs.owner)
        mine.release()
        theirs.heartbeat()
        theirs.release()
        with pytest.raises(LeaseLost) as raised:
            mine.heartbeat()
        assert raised.value.holder is None

    def test_a_leased_stream_is_not_drained_without_the_lease(self, backend: QueueBackend, peer: QueueBackend) -> None:
        backend.write_batch([make_job("a"), make_job("b", "other")])
        lease = won(peer)
        for stream in (STREAM, None):
            with pytest.raises(LeaseLost):
                backend.drain_available(stream)
        assert counts(backend) == (2, 0, 0, 0)
        assert ids_of(backend.drain_available("other")) == ["b"]
        assert ids_of(peer.drain_available(STREAM, lease=lease)) == ["a"]
        lease.release()
        assert backend.drain_available() == []

    def test_a_lease_is_good_for_its_stream_only(self, backend: QueueBackend) -> None:
        backend.write_batch([make_job("a", "a"), make_job("b", "b")])
        lease = won(backend, "a")
        for stream in ("b", None):
            with pytest.raises(LeaseLost):
                backend.drain_available(stream, lease=lease)
        backend.drain_available("b")
        with pytest.raises(JobNotFound):
            backend.complete("b", DONE, lease=lease)
        assert counts(backend, "b") == (0, 1, 0, 0)

    def test_verbs_under_a_held_lease_act(self, backend: QueueBackend) -> None:
        jobs = make_jobs(5)
        backend.write_batch(jobs)
        lease = won(backend)
        ids = ids_of(backend.drain_available(STREAM, 4, lease=lease))
        backend.complete(ids[0], DONE, lease=lease)
        assert backend.complete_batch([Completion(JobID(ids[1]), DONE)], lease=lease) == 1
        backend.release(ids[2], lease=lease)
        backend.defer(ids[3], FAR_MS, lease=lease)
        assert counts(backend) == (2, 0, 1, 0)
        session = backend.drain_available(STREAM, lease=lease)[0].session_id
        assert backend.complete_session(session, DONE, lease=lease) == 2
        assert backend.prune(0, stream=STREAM, lease=lease) == 4

    def test_a_verb_under_a_lost_lease_changes_nothing(self, backend: QueueBackend, peer: QueueBackend) -> None:
        mine = won(backend)
        backend.write_batch([make_job("j"), make_job("k")])
        for act in (
            lambda: backend.complete("j", DONE, lease=mine),
            lambda: backend.complete_batch([Completion(JobID("k"), DONE), Completion(JobID("j"), DONE)], lease=mine),
            lambda: backend.defer("j", FAR_MS, lease=mine),
            lambda: backend.release("j", lease=mine),
            lambda: backend.reclaim_in_flight(STREAM, lease=mine),
            lambda: backend.drain_available(STREAM, lease=mine),
        ):
            wait_until(mine.try_acquire)
            backend.reclaim_in_flight(STREAM, lease=mine)
            assert ids_of(backend.drain_available(STREAM, lease=mine)) == ["j", "k"]
            theirs = taken_over(peer)
            with pytest.raises(LeaseLost):
                act()
            assert counts(backend) == (0, 2, 0, 0)
            assert backend.signal("j") is None
            theirs.release()

    def test_a_successor_brings_home_and_settles(self, backend: QueueBackend, peer: QueueBackend) -> None:
        backend.write(make_job("j"))
        mine = won(backend)
        backend.drain_available(STREAM, lease=mine)
        theirs = taken_over(peer)
        assert peer.reclaim_in_flight(STREAM, lease=theirs) == 1
        assert ids_of(peer.drain_available(STREAM, lease=theirs)) == ["j"]
        with pytest.raises(LeaseLost):
            backend.complete("j", ObservationStatus.BLOCKED, lease=mine)
        peer.complete("j", DONE, lease=theirs)
        signal = peer.signal("j")
        assert signal is not None
        assert signal.status is DONE

    def test_claims_do_not_outlive_the_lease(self, backend: QueueBackend, peer: QueueBackend) -> None:
        backend.write(make_job("j"))
        mine = won(backend)
        backend.drain_available(STREAM, lease=mine)
        taken_over(peer).release()
        assert mine.try_acquire()
        with pytest.raises(JobNotFound):
            backend.complete("j", DONE, lease=mine)
        assert counts(backend) == (0, 1, 0, 0)
        assert backend.reclaim_in_flight(STREAM, lease=mine) == 1

    def test_dropped_claims_are_brought_home_with_the_strays(self, backend: QueueBackend, peer: QueueBackend) -> None:
        backend.write_batch([make_job("mine"), make_job("stray")])
        mine = won(backend)
        assert ids_of(backend.drain_available(STREAM, 1, lease=mine)) == ["mine"]
        mine.release()
        assert ids_of(peer.drain_available(STREAM)) == ["stray"]
        mine = won(backend)
        assert backend.rescue_strays(STREAM, lease=mine) == 1
        assert ids_of(backend.in_flight()) == ["mine"]
        backend.drop_claims(STREAM)
        assert backend.rescue_strays(STREAM, lease=mine) == 1
        assert counts(backend) == (2, 0, 0, 0)

    def test_one_job_of_a_dead_consumer_can_be_adopted(self, backend: QueueBackend, peer: QueueBackend) -> None:
        job = make_job("j")
        backend.write_batch([job, make_job("k")])
        peer.drain_available(STREAM)
        lease = won(backend)
        adopted = backend.adopt("j", lease=lease)
        assert adopted is not None
        assert adopted.job == job
        assert backend.adopt("j", lease=lease) is None
        assert backend.adopt("unknown", lease=lease) is None
        assert backend.rescue_strays(STREAM, lease=lease) == 1
        backend.defer("j", EPOCH_MS, error="its worker died", crashed=True, lease=lease)
        assert backend.complete_session(adopted.session_id, DONE, lease=lease) == 0
        assert ids_of(backend.drain_available(STREAM, lease=lease)) == ["j", "k"]

    def test_a_person_acts_beside_the_holder(self, backend: QueueBackend, peer: QueueBackend) -> None:
        lease = won(backend)
        peer.write_batch([make_job("a"), make_job("b")])
        peer.cancel("a")
        assert ids_of(backend.drain_available(STREAM, lease=lease)) == ["b"]
        with pytest.raises(IllegalTransition):
            peer.cancel("b")
        backend.complete("b", DONE, lease=lease)
        peer.retry("b")
        assert ids_of(backend.drain_available(STREAM, lease=lease)) == ["b"]
