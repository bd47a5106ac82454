# ruff: noqa: S101  these are tests
"""A store's part in a move: what leaves is out of sight and can come back, what arrives is not in sight before all is.

The other side of each move here is the same store again, empty after `purge`; moves between two kinds of stores are
`queuekit.transfer`'s tests.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable

import pytest

from queuekit.backends.likeness import likeness
from queuekit.completion import ArtifactRef
from queuekit.contract import JobView, PutAside, QueueBackend, Transfer
from queuekit.errors import LeaseLost, WriteFailed
from queuekit.hlc import HLC
from queuekit.job import Delivery
from queuekit.lifecycle import State
from queuekit.status import ObservationStatus
from queuekit.testing.contract.base import Contract, counts
from queuekit.testing.contract.waking import woken
from queuekit.testing.jobs import EPOCH_MS, FAR_MS, ids_of, make_job, make_jobs

DONE, BLOCKED = ObservationStatus.DONE, ObservationStatus.BLOCKED


def everything(transfer: Transfer) -> list[JobView]:
    """All jobs in sight, in one order for all stores."""
    return in_order(transfer.whole())


def in_order(views: Iterable[JobView | PutAside]) -> list[JobView]:
    jobs = [view for view in views if isinstance(view, JobView)]
    return sorted(jobs, key=lambda view: (view.job.submitted_at, view.job.id))


def alike(ones: Iterable[JobView], others: Iterable[JobView]) -> bool:
    return [likeness(view) for view in ones] == [likeness(view) for view in others]


def fill(backend: QueueBackend) -> None:
    """One job of each kind: ended in every way, with each kind of record, put off, pending, retried."""
    names = ("well", "badly", "again", "twice", "failed")
    backend.write_batch([make_job(name, payload=b"\0\xff", extensions={"k": ["é", 1.5]}) for name in names])
    backend.drain_available()
    backend.complete("well", DONE, [ArtifactRef.file_path("/x"), ArtifactRef.commit_hash("c")])
    backend.complete("badly", BLOCKED, dossier={"error": "no\n", "runs": [{"attempt": 1}]})
    backend.complete("again", BLOCKED, dossier={"error": "no"})
    backend.retry("again")
    backend.complete("twice", DONE)
    backend.retry("twice")
    backend.drain_available(limit=2)
    backend.complete("twice", ObservationStatus.NEEDS_CONTEXT)
    backend.release("again")
    backend.defer("failed", FAR_MS, error="first", crashed=True)
    backend.write(make_job("scheduled", "other", priority=-(2**63)), due_ms=FAR_MS + 1)
    backend.write(make_job("pending", "other", extensions={"deep": {"a": [None, True, 2**63 - 1]}}))


def emptied(backend: QueueBackend) -> list[JobView]:
    """Take everything out of a store for good; what it was."""
    views = everything(backend.transfer())
    transfer = backend.transfer()
    assert transfer.hide(views, leases={}) == len(views)
    while transfer.purge(3):
        pass
    return views


class TransferringContract(Contract):
    """`transfer`."""

    def test_everything_is_seen_with_all_that_is_kept_of_it(self, backend: QueueBackend) -> None:
        fill(backend)
        views = {str(view.job.id): view for view in everything(backend.transfer())}
        assert {id: view.state for id, view in views.items()} == {
            "well": State.DONE,
            "badly": State.DONE,
            "again": State.NEW,
            "twice": State.DONE,
            "failed": State.LATER,
            "scheduled": State.LATER,
            "pending": State.NEW,
        }
        assert views["again"].dossier is not None
        assert views["twice"].dossier is not None
        assert len(views["twice"].dossier["earlier_ends"]) == 1
        assert views["well"].signal == backend.signal("well")
        assert (views["failed"].due_ms, views["failed"].retry) == (FAR_MS, True)
        assert Delivery.of(views["failed"].job) == Delivery(attempt=1, crashes=1, errors=("first",))

    def test_what_leaves_is_out_of_sight(self, backend: QueueBackend, peer: QueueBackend) -> None:
        fill(backend)
        views = everything(backend.transfer())
        assert backend.transfer().hide(views, leases={}) == len(views)
        for each in (backend, peer):
            assert counts(each) == (0, 0, 0, 0)
            assert (each.completed(), each.drain_available(), each.streams()) == ([], [], set())
            assert (each.look_up("well"), each.signal("well"), each.ids_beginning("w")) == (None, None, [])
            assert list(each.jobs(tuple(State))) == []
            assert everything(each.transfer()) == []
            assert each.transfer().is_leaving()
            assert alike(in_order(each.transfer().leaving()), views)
            assert each.prune(0.0) == 0

    def test_what_leaves_can_be_brought_back(self, backend: QueueBackend, peer: QueueBackend) -> None:
        fill(backend)
        views = everything(backend.transfer())
        backend.transfer().hide(views, leases={})
        assert peer.transfer().bring_back() == len(views)
        assert not backend.transfer().is_leaving()
        assert list(backend.transfer().leaving()) == []
        assert alike(everything(backend.transfer()), views)
        assert ids_of(backend.drain_available()) == ["again", "pending"]
        assert backend.transfer().bring_back() == 0

    def test_what_has_left_for_good_leaves_nothing(self, backend: QueueBackend) -> None:
        fill(backend)
        views = emptied(backend)
        transfer = backend.transfer()
        assert (everything(transfer), list(transfer.leaving()), transfer.purge(1), transfer.bring_back()) == (
            [],
            [],
            0,
            0,
        )
        backend.write_batch([view.job for view in views])
        assert len(backend.drain_available()) == len(views)
        assert all((view := backend.look_up(job.job.id)) is not None and not view.dossier for job in views)

    def test_only_what_is_still_so_leaves(self, backend: QueueBackend, peer: QueueBackend) -> None:
        backend.write_batch([make_job(id) for id in ("claimed", "cancelled", "same")])
        backend.write(make_job("due"), due_ms=FAR_MS)
        views = everything(backend.transfer())
        assert ids_of(peer.drain_available(limit=1)) == ["claimed"]
        backend.cancel("cancelled")
        backend.run_now("due")
        assert backend.transfer().hide(views, leases={}) == 1
        assert [view.job.id for view in backend.transfer().leaving()] == ["same"]
        assert {view.job.id for view in everything(backend.transfer())} == {"claimed", "cancelled", "due"}
        peer.complete("claimed", DONE)

    def test_nothing_leaves_under_a_lost_lease(self, backend: QueueBackend, peer: QueueBackend) -> None:
        backend.write_batch(make_jobs(2))
        views = everything(backend.transfer())
        lease = backend.lease("encode")
        assert lease.try_acquire()
        lease.release()
        successor = peer.lease("encode")
        assert successor.try_acquire()
        with pytest.raises(LeaseLost):
            backend.transfer().hide(views, leases={"encode": lease})
        assert counts(backend) == (2, 0, 0, 0)
        assert peer.transfer().hide(views, leases={"encode": successor}) == 2

    def test_what_arrives_is_not_in_sight_before_it_is_let_in(self, backend: QueueBackend, peer: QueueBackend) -> None:
        fill(backend)
        views = emptied(backend)
        assert backend.transfer().take_in(views) == len(views)
        for each in (backend, peer):
            assert counts(each) == (0, 0, 0, 0)
            assert (each.completed(), each.drain_available(), each.streams()) == ([], [], set())
            assert (each.look_up("well"), each.signal("well"), each.ids_beginning("w")) == (None, None, [])
            assert everything(each.transfer()) == []
            assert each.prune(0.0) == 0
            assert (each.transfer().waiting(), each.transfer().unlike(views)) == (len(views), [])

    def test_all_that_arrived_is_let_in_as_it_was(self, backend: QueueBackend, peer: QueueBackend) -> None:
        fill(backend)
        views = emptied(backend)
        transfer = backend.transfer()
        transfer.take_in(views)
        assert transfer.let_in_from() is None
        assert transfer.let_in("there") == len(views)
        assert peer.transfer().let_in_from() == "there"
        assert (transfer.waiting(), transfer.unlike(views), peer.transfer().unlike(views)) == (0, [], [])
        assert alike(everything(peer.transfer()), views)
        peer.look_again()
        assert ids_of(peer.drain_available()) == ["again", "pending"]
        transfer.forget()
        assert backend.transfer().let_in_from() is None
        assert transfer.waiting() == 0

    def test_letting_in_may_be_asked_for_again(self, backend: QueueBackend) -> None:
        views = self._arrived(backend)
        transfer = backend.transfer()
        assert transfer.let_in("there") == 2
        assert backend.transfer().let_in("there") == 0
        transfer.forget()
        backend.transfer().forget()
        assert alike(everything(backend.transfer()), views)

    def test_letting_in_nothing_leaves_its_mark_too(self, backend: QueueBackend) -> None:
        assert backend.transfer().let_in("there") == 0
        assert backend.transfer().let_in_from() == "there"
        backend.transfer().forget()
        assert backend.transfer().let_in_from() is None
        assert self._arrived(backend)
        assert backend.transfer().let_in("elsewhere") == 2

    def _arrived(self, backend: QueueBackend) -> list[JobView]:
        backend.write_batch([make_job("a"), make_job("b")])
        views = emptied(backend)
        backend.transfer().take_in(views)
        return views

    def test_a_waiter_is_woken_when_jobs_are_let_in(self, backend: QueueBackend, peer: QueueBackend) -> None:
        self._arrived(backend)
        with contextlib.closing(peer.watcher()) as watcher:
            watcher.read()
            backend.transfer().let_in("there")
            assert woken(watcher)
            peer.hint(watcher.read())
            assert ids_of(peer.drain_available()) == ["a", "b"]

    def test_arriving_again_changes_nothing(self, backend: QueueBackend) -> None:
        fill(backend)
        views = emptied(backend)
        assert backend.transfer().take_in(views[:4]) == 4
        assert backend.transfer().take_in(views) == len(views)
        transfer = backend.transfer()
        assert (transfer.take_in(views), transfer.take_in(views)) == (len(views), len(views))
        assert (transfer.waiting(), transfer.unlike(views)) == (len(views), [])

    def test_what_arrives_anew_replaces_what_waited(self, backend: QueueBackend) -> None:
        fill(backend)
        views = emptied(backend)
        backend.transfer().take_in(views)
        ended, job = views[0], views[0].job
        others = [
            dataclasses.replace(ended, signal=None, state=State.NEW),
            dataclasses.replace(ended, signal=None, state=State.LATER, due_ms=FAR_MS, retry=True),
            dataclasses.replace(ended, signal=None, state=State.LATER, due_ms=FAR_MS + 5, dossier={"a": 1}),
            dataclasses.replace(ended, job=Delivery(attempt=2).onto(job)),
            dataclasses.replace(ended, signal=None),
            ended,
        ]
        for other in others:
            transfer = backend.transfer()
            assert [view.job.id for view in transfer.unlike([other, *views[1:]])] == [job.id]
            assert transfer.take_in([other]) == 1
            assert (transfer.waiting(), transfer.unlike([other, *views[1:]])) == (len(views), [])
        backend.transfer().let_in("there")
        assert alike(everything(backend.transfer()), views)

    def test_every_difference_is_told(self, backend: QueueBackend) -> None:
        job = make_job("j", payload=b"x")
        view = JobView(job=job, state=State.LATER, due_ms=FAR_MS, dossier={"a": 1})
        backend.transfer().take_in([view])
        different = [
            dataclasses.replace(view, job=dataclasses.replace(job, payload=b"y")),
            dataclasses.replace(view, job=dataclasses.replace(job, priority=51)),
            dataclasses.replace(view, job=dataclasses.replace(job, extensions={"k": 1})),
            dataclasses.replace(view, due_ms=FAR_MS + 1),
            dataclasses.replace(view, retry=True),
            dataclasses.replace(view, dossier={"a": 2}),
            dataclasses.replace(view, state=State.NEW),
            JobView(job=make_job("unknown"), state=State.NEW),
        ]
        transfer = backend.transfer()
        assert transfer.unlike([view, *different]) == different

    def test_what_is_in_sight_exactly_so_is_left_there(self, backend: QueueBackend) -> None:
        fill(backend)
        views = everything(backend.transfer())
        transfer = backend.transfer()
        assert (transfer.take_in(views), transfer.waiting(), transfer.unlike(views)) == (0, 0, [])
        assert alike(everything(backend.transfer()), views)

    def test_what_is_in_sight_differently_is_refused_and_nothing_arrives(self, backend: QueueBackend) -> None:
        backend.write_batch([make_job("here"), make_job("too")])
        here, too = everything(backend.transfer())
        fresh = JobView(job=make_job("fresh"), state=State.NEW)
        backend.drain_available(limit=1)
        for wrong in (here, dataclasses.replace(too, job=Delivery(attempt=1).onto(too.job))):
            with pytest.raises(WriteFailed, match=wrong.job.id):
                backend.transfer().take_in([fresh, wrong])
        assert backend.transfer().waiting() == 0
        assert counts(backend) == (1, 1, 0, 0)

    def test_an_end_is_no_other_jobs(self, backend: QueueBackend) -> None:
        backend.write(make_job("j", at=HLC(EPOCH_MS, 0, 1)))
        backend.drain_available()
        backend.complete("j", DONE)
        (view,) = everything(backend.transfer())
        other = dataclasses.replace(view, job=make_job("j", "other"))
        with pytest.raises(WriteFailed, match="j"):
            backend.transfer().take_in([other])
        assert backend.transfer().waiting() == 0

    def test_a_job_in_flight_does_not_arrive(self, backend: QueueBackend) -> None:
        backend.write(make_job("j"))
        backend.drain_available()
        (running,) = everything(backend.transfer())
        assert running.state is State.CUR
        with pytest.raises(WriteFailed, match="j"):
            backend.transfer().take_in([running])

    def test_what_arrives_can_be_discarded(self, backend: QueueBackend) -> None:
        fill(backend)
        views = emptied(backend)
        backend.write(make_job("stays"))
        backend.transfer().take_in(views)
        assert backend.transfer().discard() == len(views)
        transfer = backend.transfer()
        assert (transfer.waiting(), transfer.discard(), len(transfer.unlike(views))) == (0, 0, len(views))
        assert ids_of(backend.drain_available()) == ["stays"]
        assert backend.signal("well") is None
