"""The job as a value, and the delivery record that travels inside it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuekit.hlc import HLC
from queuekit.ids import JobID, StreamID
from queuekit.job import MAX_ERROR_BYTES, MAX_ERRORS, Delivery, Job, clip
from queuekit.testing.strategies import jobs
from queuekit.wire import check_sendable, decode_job, encode_job


def job(**changes: Any) -> Job:
    return Job(**{"id": "j1", "stream_id": "encode", "submitted_at": HLC(5, 0, 1), **changes})


class TestJob:
    def test_defaults(self) -> None:
        assert (job().priority, job().payload, job().extensions) == (50, b"", {})
        assert job().extensions is not job().extensions

    def test_plain_text_becomes_ids_and_anything_else_stays_for_send_to_refuse(self) -> None:
        assert (type(job().id), type(job().stream_id)) == (JobID, StreamID)
        odd: Any = None
        assert (job(id=odd).id, job(stream_id=odd).stream_id) == (None, None)

    def test_it_is_frozen(self) -> None:
        with pytest.raises(dataclasses.FrozenInstanceError):
            job().priority = 1  # type: ignore[misc]


class TestReading:
    def test_a_fresh_job_has_an_empty_record(self) -> None:
        assert Delivery.of(job()) == Delivery(attempt=0, crashes=0, errors=())

    def test_a_record_is_read(self) -> None:
        record = {"attempt": 2, "crashes": 1, "errors": ["a", "b"], "zone": "ignored"}
        assert Delivery.of(job(extensions={"delivery": record})) == Delivery(attempt=2, crashes=1, errors=("a", "b"))

    def test_only_the_last_errors_are_kept(self) -> None:
        record = {"attempt": 9, "errors": list("abcdefg")}
        assert Delivery.of(job(extensions={"delivery": record})).errors == ("c", "d", "e", "f", "g")

    @pytest.mark.parametrize(
        "record",
        [
            None,
            "text",
            [1, 2],
            {"attempt": True},
            {"attempt": 1.0},
            {"attempt": "1"},
            {"attempt": -1},
            {"attempt": 2**31},
            {"attempt": None},
            {"attempt": 1, "crashes": -1},
            {"attempt": 1, "errors": "text"},
            {"attempt": 1, "errors": ["a", 1]},
        ],
    )
    def test_a_malformed_record_counts_as_absent(self, record: object) -> None:
        assert Delivery.of(job(extensions={"delivery": record})) == Delivery()


class TestWriting:
    def test_a_failed_run_is_counted_and_its_error_kept_last(self) -> None:
        once = Delivery().failed("first")
        assert once == Delivery(attempt=1, crashes=0, errors=("first",))
        assert once.failed("second", crashed=True) == Delivery(attempt=2, crashes=1, errors=("first", "second"))

    def test_without_an_error_the_list_stays(self) -> None:
        assert Delivery(attempt=1, errors=("first",)).failed("") == Delivery(attempt=2, errors=("first",))

    def test_five_errors_are_kept(self) -> None:
        record = Delivery()
        for number in range(8):
            record = record.failed(f"error {number}")
        assert record.attempt == 8
        assert record.errors == ("error 3", "error 4", "error 5", "error 6", "error 7")

    def test_an_empty_record_leaves_no_key(self) -> None:
        failed = Delivery().failed("x").onto(job(extensions={"trace": 1}))
        assert Delivery().onto(failed).extensions == {"trace": 1}

    @given(jobs(), st.lists(st.tuples(st.text(max_size=50), st.booleans()), min_size=1, max_size=7))
    def test_the_record_travels_and_the_rest_is_untouched(self, fresh: Job, runs: list[tuple[str, bool]]) -> None:
        record = Delivery()
        for error, crashed in runs:
            record = record.failed(error, crashed=crashed)
        carried = record.onto(fresh)
        check_sendable(carried)
        again = decode_job(encode_job(carried))
        assert Delivery.of(again) == record
        assert Delivery().onto(again) == fresh

    def test_the_job_given_is_not_changed(self) -> None:
        given = job(extensions={"trace": 1})
        Delivery(attempt=1).onto(given)
        assert given.extensions == {"trace": 1}


class TestClip:
    def test_what_is_short_and_clean_stays(self) -> None:
        assert clip("Fehler: naïve\n\tat line 1") == "Fehler: naïve\n\tat line 1"

    def test_controls_and_surrogates_are_escaped(self) -> None:
        assert clip("a\x1b[31m\0\ud800\x7f") == r"a\x1b[31m\x00\ud800\x7f"

    @given(st.text(st.characters(), max_size=100), st.integers(0, 60))
    def test_the_result_is_valid_and_fits(self, text: str, limit: int) -> None:
        assert len(clip(text, limit).encode()) <= limit

    def test_a_huge_error_is_cut_between_characters(self) -> None:
        assert clip("é" * 10**6) == "é" * (MAX_ERROR_BYTES // 2)
        assert clip("日" * 10, limit=8) == "日日"

    def test_the_limits_are_the_designs(self) -> None:
        assert (MAX_ERRORS, MAX_ERROR_BYTES) == (5, 4 * 1024)
