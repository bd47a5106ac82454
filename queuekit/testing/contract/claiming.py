# ruff: noqa: S101  these are tests
"""Who gets which job, in which order, and that nobody else gets it."""

from __future__ import annotations

import itertools
import threading

import pytest

from queuekit.contract import QueueBackend
from queuekit.errors import InvalidIdentifier
from queuekit.hlc import HLC
from queuekit.status import ObservationStatus
from queuekit.testing.contract.base import Contract, Opener, counts
from queuekit.testing.jobs import EPOCH_MS, ids_of, make_job, make_jobs


class ClaimingContract(Contract):
    """`drain_available` and what can be seen of it."""

    def test_an_empty_store_gives_nothing(self, backend: QueueBackend) -> None:
        assert backend.drain_available() == []
        assert backend.drain_available("encode", 5) == []

    def test_jobs_come_in_the_order_of_their_timestamps(self, backend: QueueBackend) -> None:
        stamps = [
            HLC(EPOCH_MS, 0, -3),
            HLC(EPOCH_MS, 0, 2),
            HLC(EPOCH_MS, 1, -9),
            HLC(EPOCH_MS + 1, 0, 0),
        ]
        for position in (2, 0, 3, 1):
            backend.write(make_job(f"j{position}", at=stamps[position]))
        assert ids_of(backend.drain_available()) == ["j0", "j1", "j2", "j3"]
        assert ids_of(backend.in_flight()) == ["j0", "j1", "j2", "j3"]
        for position in (3, 1, 0, 2):
            backend.complete(f"j{position}", ObservationStatus.DONE)
        assert ids_of(backend.completed()) == ["j0", "j1", "j2", "j3"]

    def test_a_limit_takes_the_oldest_and_leaves_the_rest(self, backend: QueueBackend) -> None:
        jobs = make_jobs(5)
        backend.write_batch(reversed(jobs))
        assert backend.drain_available("encode", 0) == []
        assert ids_of(backend.drain_available("encode", 2)) == ids_of(jobs[:2])
        assert counts(backend) == (3, 2, 0, 0)
        assert ids_of(backend.drain_available("encode", 99)) == ids_of(jobs[2:])

    def test_an_older_job_that_arrives_later_comes_first(self, backend: QueueBackend, peer: QueueBackend) -> None:
        old, *rest = make_jobs(4)
        backend.write_batch(rest)
        assert ids_of(backend.drain_available("encode", 1)) == ids_of(rest[:1])
        backend.write(old)
        assert ids_of(backend.drain_available("encode", 1)) == [old.id]
        assert ids_of(peer.drain_available("encode", 1)) == ids_of(rest[1:2])

    def test_every_job_of_one_call_has_its_session(self, backend: QueueBackend) -> None:
        backend.write_batch(make_jobs(4))
        first, second = backend.drain_available(limit=2), backend.drain_available()
        assert len({each.session_id for each in first}) == len({each.session_id for each in second}) == 1
        assert first[0].session_id != second[0].session_id

    def test_a_stream_is_drained_alone(self, backend: QueueBackend) -> None:
        streams = ["a", "a-b", "b", "a-b-c"]
        jobs = {stream: make_job(f"b-{stream}", stream) for stream in streams}
        backend.write_batch(jobs.values())
        for stream in streams:
            assert counts(backend, stream) == (1, 0, 0, 0)
        assert [each.job for each in backend.drain_available("a-b")] == [jobs["a-b"]]
        assert counts(backend, "a-b") == (0, 1, 0, 0)
        assert [backend.pending_count(stream) for stream in streams] == [1, 0, 1, 1]
        assert backend.in_flight("a-b") == [jobs["a-b"]]
        assert backend.in_flight("a") == []

    def test_without_a_stream_all_are_drained(self, backend: QueueBackend) -> None:
        jobs = [make_job(stream=stream) for stream in ("b", "a", "c")]
        backend.write_batch(jobs)
        assert [each.job for each in backend.drain_available()] == jobs

    def test_streams_names_those_with_work(self, backend: QueueBackend) -> None:
        backend.write(make_job(stream="pending"))
        backend.write(make_job(stream="put-off"), due_ms=EPOCH_MS)
        assert backend.streams() == {"pending", "put-off"}

    def test_a_stream_that_fits_no_file_name_cannot_be_drained(self, backend: QueueBackend) -> None:
        with pytest.raises(InvalidIdentifier):
            backend.drain_available("a/b")

    def test_a_job_in_flight_is_nobody_elses(self, backend: QueueBackend, peer: QueueBackend) -> None:
        backend.write_batch(make_jobs(2))
        backend.drain_available(limit=1)
        assert len(peer.drain_available()) == 1
        assert backend.drain_available() == []
        assert peer.in_flight_count() == 2

    def test_a_second_copy_of_a_job_in_flight_is_dropped(self, backend: QueueBackend) -> None:
        job = make_job("j")
        backend.write(job)
        backend.drain_available()
        backend.write(job)
        assert backend.drain_available() == []
        assert counts(backend) == (0, 1, 0, 0)
        backend.complete("j", ObservationStatus.DONE)

    def test_a_second_copy_of_a_job_that_has_ended_is_dropped(self, backend: QueueBackend) -> None:
        job = make_job("j")
        backend.write(job)
        backend.drain_available()
        backend.complete("j", ObservationStatus.DONE)
        backend.write(job)
        assert backend.drain_available() == []
        assert counts(backend) == (0, 0, 0, 0)
        assert ids_of(backend.completed()) == ["j"]

    def test_ten_drainers_get_each_job_once(self, open_backend: Opener) -> None:
        backends = [open_backend() for _ in range(5)]
        jobs = make_jobs(100)
        backends[0].write_batch(jobs)
        got: list[list[str]] = [[] for _ in range(10)]
        start = threading.Barrier(len(got))

        def work(mine: list[str], backend: QueueBackend) -> None:
            start.wait()
            while batch := backend.drain_available("encode", 3):
                for each in batch:
                    backend.complete(each.job.id, ObservationStatus.DONE)
                    mine.append(each.job.id)

        threads = [threading.Thread(target=work, args=(mine, backends[number % 5])) for number, mine in enumerate(got)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        backends[0].look_again()
        assert backends[0].drain_available() == []
        assert sorted(itertools.chain.from_iterable(got)) == sorted(ids_of(jobs))
        assert ids_of(backends[0].completed()) == ids_of(jobs)
