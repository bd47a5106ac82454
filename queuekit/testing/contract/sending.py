# ruff: noqa: S101  these are tests
"""What a backend accepts, what it refuses, and that refusing touches nothing."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from queuekit.contract import QueueBackend
from queuekit.errors import BackendUnavailable, InvalidIdentifier, WriteFailed
from queuekit.hlc import HLC
from queuekit.job import Delivery, Job
from queuekit.status import ObservationStatus
from queuekit.testing.contract.base import Contract, Opener, counts
from queuekit.testing.jobs import EPOCH_MS, FAR_MS, ids_of, make_job, make_jobs

BAD_IDENTIFIERS = ["", ".", "..", "a/b", "a\\b", "a\x00", "a\x1f", "a\x7f", "a.signal", "a\ud800"]
NAME_PREFIX_BYTES = 37  # the timestamp and its hyphen
MAX_NAME_BYTES = 222


def _id_that_makes_a_name_of(size: int, stream: str) -> str:
    return "é" + "i" * (size - NAME_PREFIX_BYTES - len(stream.encode()) - 1 - 2)


class SendingContract(Contract):
    """`write` and `write_batch`."""

    def test_a_sent_job_is_pending_and_comes_back_as_it_was(self, backend: QueueBackend) -> None:
        job = make_job(
            "job-1",
            at=HLC(EPOCH_MS, 3, -7),
            priority=-5,
            payload=bytes(range(256)),
            extensions={"k": {"nested": [1, 2.5, None, True, "ü"]}},
        )
        backend.write(job)
        assert counts(backend) == (1, 0, 0, 0)
        assert [each.job for each in backend.drain_available()] == [job]

    def test_what_the_caller_does_to_a_job_afterwards_changes_nothing(self, backend: QueueBackend) -> None:
        inner = {"list": [1]}
        backend.write(make_job("j", extensions={"k": inner}))
        inner["list"].append(2)
        drained = backend.drain_available()[0].job
        drained.extensions["k"]["list"].append(3)
        assert backend.in_flight()[0].extensions == {"k": {"list": [1]}}

    @pytest.mark.parametrize("identifier", BAD_IDENTIFIERS)
    def test_identifiers_that_fit_no_file_name_are_refused(self, backend: QueueBackend, identifier: str) -> None:
        for job in (make_job(identifier), make_job("fine", identifier)):
            with pytest.raises(InvalidIdentifier):
                backend.write(job)
            with pytest.raises(InvalidIdentifier):
                backend.write(job, due_ms=FAR_MS)
        assert counts(backend) == (0, 0, 0, 0)

    @pytest.mark.parametrize("identifier", ["...", "a b", "-", "ü", "a-b", "signal", " ", "\x85"])
    def test_other_identifiers_pass(self, backend: QueueBackend, identifier: str) -> None:
        backend.write(make_job(identifier, identifier))
        assert ids_of(backend.drain_available(identifier)) == [identifier]
        backend.complete(identifier, ObservationStatus.DONE)
        assert ids_of(backend.completed(identifier)) == [identifier]

    def test_a_file_name_of_222_bytes_is_the_longest(self, backend: QueueBackend) -> None:
        backend.write(make_job(_id_that_makes_a_name_of(MAX_NAME_BYTES, "encode")))
        with pytest.raises(InvalidIdentifier):
            backend.write(make_job(_id_that_makes_a_name_of(MAX_NAME_BYTES + 1, "encode")))
        assert backend.pending_count() == 1

    @pytest.mark.parametrize(
        "values",
        [
            {"extensions": {"k": float("nan")}},
            {"extensions": {"k": float("inf")}},
            {"extensions": {"k": 2**63}},
            {"extensions": {"k": {1, 2}}},
            {"extensions": {"k": "\ud800"}},
            {"extensions": {1: "k"}},
            {"extensions": [1]},
            {"priority": 2**63},
            {"priority": True},
            {"payload": "text"},
            {"at": HLC(0, 2**31, 0)},
            {"at": HLC(0, 0, 2**31)},
        ],
        ids=str,
    )
    def test_values_that_other_ports_cannot_read_are_refused(
        self, backend: QueueBackend, values: dict[str, Any]
    ) -> None:
        with pytest.raises(WriteFailed):
            backend.write(make_job("j", **values))
        assert counts(backend) == (0, 0, 0, 0)

    def test_the_largest_payload_is_the_limit(self, open_backend: Opener) -> None:
        backend = open_backend(max_job_bytes=10)
        backend.write(make_job("fits", payload=b"0123456789"))
        with pytest.raises(WriteFailed):
            backend.write(make_job("too-large", payload=b"0123456789a"))
        assert ids_of(backend.drain_available()) == ["fits"]

    def test_extensions_beside_the_payload_have_a_limit_too(self, backend: QueueBackend) -> None:
        with pytest.raises(WriteFailed):
            backend.write(make_job(extensions={"k": "x" * 2**20}))
        assert backend.pending_count() == 0

    def test_a_batch_is_accepted_whole(self, backend: QueueBackend) -> None:
        jobs = make_jobs(20)
        assert backend.write_batch(iter(jobs)) == 20
        assert [each.job for each in backend.drain_available()] == jobs

    def test_an_empty_batch_is_none(self, backend: QueueBackend) -> None:
        assert backend.write_batch([]) == 0

    @pytest.mark.parametrize("bad", [make_job("a/b"), make_job("x", extensions={"k": float("nan")})], ids=["id", "nan"])
    def test_a_batch_with_one_bad_job_is_refused_before_anything_is_touched(
        self, backend: QueueBackend, bad: Job
    ) -> None:
        with pytest.raises((InvalidIdentifier, WriteFailed)):
            backend.write_batch([*make_jobs(3), bad, *make_jobs(3)])
        assert backend.pending_count() == 0

    def test_a_job_sent_twice_is_one_job(self, backend: QueueBackend, peer: QueueBackend) -> None:
        job = make_job("j", payload=b"1")
        backend.write(job)
        peer.write(job)
        assert backend.write_batch([job, job]) == 2
        assert counts(backend) == (1, 0, 0, 0)
        assert ids_of(backend.drain_available()) == ["j"]

    def test_a_job_sent_again_may_have_an_older_delivery_record(self, backend: QueueBackend) -> None:
        fresh = make_job("j")
        backend.write(Delivery(attempt=2, errors=("no",)).onto(fresh))
        backend.write(fresh)
        assert Delivery.of(backend.drain_available()[0].job).attempt == 2

    def test_another_job_under_a_taken_name_is_refused(self, backend: QueueBackend) -> None:
        job = make_job("j", payload=b"first")
        other = dataclasses.replace(job, payload=b"second")
        backend.write(job)
        with pytest.raises(WriteFailed):
            backend.write(other)
        backend.write(job, due_ms=FAR_MS)
        with pytest.raises(WriteFailed):
            backend.write(other, due_ms=FAR_MS)
        assert [each.job.payload for each in backend.drain_available()] == [b"first"]

    def test_one_id_in_two_streams_is_two_jobs_or_refused(self, backend: QueueBackend) -> None:
        if not self.ids_are_unique:
            self._check_two_jobs_of_one_id(backend)
            return
        for batch in ([make_job("same", "a"), make_job("same", "b")], [make_job("j", "a"), make_job("j", "a")]):
            with pytest.raises(WriteFailed):
                backend.write_batch(batch)
        backend.write(make_job("same", "a"))
        with pytest.raises(WriteFailed):
            backend.write(make_job("same", "b"))
        assert [each.job.stream_id for each in backend.drain_available()] == ["a"]

    def _check_two_jobs_of_one_id(self, backend: QueueBackend) -> None:
        backend.write_batch([make_job("same", "a"), make_job("same", "b")])
        assert ids_of(backend.drain_available("a")) == ["same"]
        assert (backend.pending_count("a"), backend.pending_count("b")) == (0, 1)
        backend.complete("same", ObservationStatus.DONE)
        assert (ids_of(backend.completed("a")), backend.pending_count("b")) == (["same"], 1)
        assert [each.job.stream_id for each in backend.drain_available("b")] == ["b"]
        backend.complete("same", ObservationStatus.BLOCKED)
        assert ids_of(backend.completed("b")) == ["same"]

    def test_after_close_every_verb_says_so(self, backend: QueueBackend) -> None:
        backend.write(make_job("j"))
        backend.close()
        backend.close()
        for verb in (
            lambda: backend.write(make_job()),
            lambda: backend.write_batch([make_job()]),
            backend.drain_available,
            lambda: backend.complete("j", ObservationStatus.DONE),
            lambda: backend.release("j"),
            lambda: backend.cancel("j"),
            lambda: backend.retry("j"),
            lambda: backend.prune(0),
            backend.tally,
            backend.pending_count,
            backend.in_flight,
            backend.completed,
            lambda: backend.signal("j"),
            lambda: backend.look_up("j"),
            backend.streams,
        ):
            with pytest.raises(BackendUnavailable):
                verb()
