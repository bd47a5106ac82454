"""The book of claims of a consumer of a database does not grow with what others have settled."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from queuekit import JobNotFound
from queuekit.backends import claims
from queuekit.backends.sql.backend import PersistenceKitBackend
from queuekit.testing.jobs import ids_of, make_job, make_jobs

STREAM = "encode"
KEPT = 5
Open = Callable[[], PersistenceKitBackend]


@pytest.fixture
def consumer(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Open the store once more, as another process would."""
    monkeypatch.setattr(claims, "KEPT", KEPT)
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(contextlib.closing(PersistenceKitBackend(url)))


def claim_for_another(front: PersistenceKitBackend, worker: PersistenceKitBackend) -> str:
    """One more job is claimed here and ended there; the session of the claim."""
    job = make_job(stream=STREAM)
    worker.write(job)
    (claimed,) = front.drain_available(STREAM)
    worker.complete(job.id, "done")
    return claimed.session_id


def test_the_book_of_claims_does_not_grow_with_what_others_reply_to(consumer: Open) -> None:
    """A front that only claims, and workers that reply from processes of their own; nobody has a lease."""
    front, worker = consumer(), consumer()
    in_work = make_jobs(3, STREAM)
    front.write_batch(in_work)
    front.drain_available(STREAM)
    for _ in range(20):
        session = claim_for_another(front, worker)
    assert len(front._store.claims) <= 2 * (KEPT + len(in_work)) + 1  # it is nowhere else to be seen
    for job in in_work:
        front.complete(job.id, "done")
    assert front.complete_session(session, "done") == 0


def test_a_claim_that_was_taken_away_lately_is_not_forgotten(consumer: Open) -> None:
    front, worker = consumer(), consumer()
    front.write(make_job("a", STREAM))
    front.drain_available(STREAM)
    for _ in range(KEPT - 1):
        claim_for_another(front, worker)
    assert worker.reclaim_in_flight(STREAM) == 1
    assert ids_of(worker.drain_available(STREAM)) == ["a"]
    with pytest.raises(JobNotFound):
        front.complete("a", "done")
    worker.complete("a", "done")


def test_what_another_thread_claims_during_the_review_is_kept(consumer: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at the rows and the choice of what to forget, all that is claimed is new: none of it is old."""
    monkeypatch.setattr(claims, "KEPT", 1)
    front, worker = consumer(), consumer()
    for _ in range(2):
        claim_for_another(front, worker)
    real, fresh = claims.Claims.long_gone, make_jobs(4, STREAM)
    front.write_batch(fresh)
    todo = [True]

    def long_gone(book: claims.Claims, in_flight: set[str]) -> list[claims.Claim]:
        if todo and todo.pop():
            assert len(front.drain_available(STREAM)) == len(fresh)
        return real(book, in_flight)

    monkeypatch.setattr(claims.Claims, "long_gone", long_gone)
    front.drain_available(STREAM)
    assert [job.id for job in fresh if job.id not in front._store.claims] == []
    for job in fresh:
        front.complete(job.id, "done")
