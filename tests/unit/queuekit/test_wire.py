"""Writing and reading: round trips, the canonical form, and everything that a new job may not hold."""

from __future__ import annotations

import base64
import enum
import json
import types
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuekit.completion import ArtifactRef, SignalFile
from queuekit.errors import DecodingFailed, InvalidIdentifier, WriteFailed
from queuekit.hlc import HLC
from queuekit.ids import JobID
from queuekit.job import Job
from queuekit.status import ObservationStatus
from queuekit.testing.strategies import jobs, json_values, signals
from queuekit.wire import check_identifiers, check_sendable, decode_job, decode_signal, encode_job, encode_signal

STAMP = HLC(1764500000000, 0, 1)


def job(**changes: Any) -> Job:
    return Job(**{"id": "j1", "stream_id": "encode", "submitted_at": STAMP, **changes})


def nested(levels: int, innermost: object = None) -> Any:
    """A list in a list in a list …, `levels` of them."""
    value: Any = [] if innermost is None else [innermost]
    for _ in range(levels - 1):
        value = [value]
    return value


class TestRoundTrips:
    @given(jobs())
    def test_a_job_comes_back_as_it_was(self, original: Job) -> None:
        check_sendable(original)
        assert decode_job(encode_job(original)) == original

    @given(signals())
    def test_a_signal_comes_back_as_it_was(self, original: SignalFile) -> None:
        assert decode_signal(encode_signal(original)) == original

    @given(jobs())
    def test_the_bytes_are_canonical_json_of_the_values(self, original: Job) -> None:
        data = encode_job(original)
        body = json.loads(data)
        assert list(body) == ["extensions", "id", "payload", "priority", "stream_id", "submitted_at"]
        assert body["extensions"] == original.extensions
        assert base64.urlsafe_b64decode(body["payload"] + "==") == original.payload
        assert "=" not in body["payload"]
        assert (body["id"], body["stream_id"], body["priority"]) == (
            original.id,
            original.stream_id,
            original.priority,
        )
        assert body["submitted_at"]["node_id"] == int.from_bytes(
            original.submitted_at.node_id.to_bytes(4, "big", signed=True), "big"
        )
        assert json.dumps(body, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode() == data

    @given(signals())
    def test_a_signals_bytes_are_canonical_json(self, original: SignalFile) -> None:
        data = encode_signal(original)
        body = json.loads(data)
        assert list(body) == ["artifacts", "completed_at", "job_id", "status"]
        assert json.dumps(body, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode() == data

    @given(json_values())
    def test_the_kind_of_a_value_survives(self, value: object) -> None:
        """`==` does not tell True from 1 nor 0.0 from -0.0; the text does."""
        again = decode_job(encode_job(job(extensions={"k": value}))).extensions["k"]
        assert json.dumps(again, sort_keys=True) == json.dumps(value, sort_keys=True)

    def test_ids_come_back_as_ids(self) -> None:
        again = decode_job(encode_job(job()))
        assert (type(again.id).__name__, type(again.stream_id).__name__) == ("JobID", "StreamID")
        assert type(decode_signal(encode_signal(signal())).job_id) is JobID

    def test_delete_and_line_separators_are_written_raw(self) -> None:
        data = encode_job(job(extensions={"k": "\x7f\u2028\x1f/"}))
        assert b'{"k":"\x7f\xe2\x80\xa8\\u001f/"}' in data

    def test_what_json_has_one_form_for_may_be_given_in_another(self) -> None:
        """A tuple is a list, an enum's member its value, any mapping an object."""

        class Colour(enum.StrEnum):
            RED = "red"

        class Size(enum.IntEnum):
            BIG = 3

        given = job(extensions=types.MappingProxyType({"t": (1, 2), "c": Colour.RED, "s": Size.BIG}))
        check_sendable(given)
        assert decode_job(encode_job(given)).extensions == {"c": "red", "s": 3, "t": [1, 2]}


def signal(**changes: Any) -> SignalFile:
    return SignalFile(
        **{"job_id": JobID("j1"), "status": ObservationStatus.DONE, "completed_at": STAMP, **changes},
    )


NOT_AN_ENVELOPE = [
    ({"priority": True}, "priority must be an integer, not bool"),
    ({"priority": 50.0}, "priority must be an integer, not float"),
    ({"priority": "50"}, "priority must be an integer, not str"),
    ({"priority": None}, "priority must be an integer, not NoneType"),
    ({"priority": 2**63}, "priority is out of range"),
    ({"priority": -(2**63) - 1}, "priority is out of range"),
    ({"submitted_at": None}, "submitted_at must be a timestamp"),
    ({"submitted_at": (1, 2, 3)}, "submitted_at must be a timestamp"),
    ({"submitted_at": HLC(2**63, 0, 0)}, "physical_time is out of range"),
    ({"submitted_at": HLC(1.5, 0, 0)}, "physical_time must be an integer"),  # type: ignore[arg-type]
    ({"submitted_at": HLC(0, 2**31, 0)}, "logical_count is out of range"),
    ({"submitted_at": HLC(0, -(2**31) - 1, 0)}, "logical_count is out of range"),
    ({"submitted_at": HLC(0, 0, 2**31)}, "node_id is out of range"),
    ({"submitted_at": HLC(0, False, 0)}, "logical_count must be an integer"),
    ({"payload": "text"}, "payload must be bytes, not str"),
    ({"payload": bytearray(b"x")}, "payload must be bytes, not bytearray"),
    ({"payload": None}, "payload must be bytes, not NoneType"),
    ({"extensions": None}, "extensions must be a mapping, not NoneType"),
    ({"extensions": [("a", 1)]}, "extensions must be a mapping, not list"),
]

NOT_JSON = [
    ({"a": float("nan")}, "extensions.a is a float that is not finite"),
    ({"a": [0, {"b": float("-inf")}]}, "extensions.a[1].b is a float that is not finite"),
    ({"a": "\ud800"}, "extensions.a is text that is not valid Unicode"),
    ({"a": {"\udfff": 1}}, r"extensions.a has the key '\udfff', which is not valid text"),
    ({1: "a"}, "extensions has the key 1, which is not valid text"),
    ({"a": {None: 1}}, "extensions.a has the key None"),
    ({"a": {("x", "y"): 1}}, "extensions.a has the key ('x', 'y')"),
    ({"a": b"bytes"}, "extensions.a is of type bytes"),
    ({"a": {1, 2}}, "extensions.a is of type set"),
    ({"a": [object()]}, "extensions.a[0] is of type object"),
    ({"a": types.MappingProxyType({})}, "extensions.a is of type mappingproxy"),
]

NOT_FOR_EVERY_PORT = [
    ({"a": 2**63}, "extensions.a is an integer beyond 64 bits"),
    ({"a": {"b": [-(2**63) - 1]}}, "extensions.a.b[0] is an integer beyond 64 bits"),
    ({"a": nested(100)}, "nested deeper than 100 levels"),
    ({"a": nested(5000)}, "nested deeper than 100 levels"),
]


class TestStrictOut:
    @pytest.mark.parametrize(("changes", "reason"), NOT_AN_ENVELOPE)
    def test_a_wrong_field_is_named(self, changes: dict[str, Any], reason: str) -> None:
        for refuses in (check_sendable, encode_job):
            with pytest.raises(WriteFailed) as caught:
                refuses(job(**changes))
            assert (caught.value.what, caught.value.reason[: len(reason)]) == ("job j1", reason)

    @pytest.mark.parametrize(("extensions", "reason"), NOT_JSON)
    def test_the_path_to_what_is_not_json_is_named(self, extensions: dict[str, Any], reason: str) -> None:
        for refuses in (check_sendable, encode_job):
            with pytest.raises(WriteFailed) as caught:
                refuses(job(extensions=extensions))
            assert caught.value.reason.startswith(reason)

    @pytest.mark.parametrize(("extensions", "reason"), NOT_FOR_EVERY_PORT)
    def test_what_some_port_could_not_read_is_refused(self, extensions: dict[str, Any], reason: str) -> None:
        with pytest.raises(WriteFailed, match="job j1") as caught:
            check_sendable(job(extensions=extensions))
        assert reason in caught.value.reason

    def test_a_cycle_is_refused(self) -> None:
        loop: dict[str, Any] = {}
        loop["again"] = [loop]
        for refuses in (check_sendable, encode_job):
            with pytest.raises(WriteFailed, match="nested deeper"):
                refuses(job(extensions=loop))

    def test_the_limits_themselves_may_be_sent(self) -> None:
        check_sendable(job(extensions={"low": -(2**63), "high": 2**63 - 1, "deep": nested(99, 1)}))

    def test_a_message_stays_short_and_printable(self) -> None:
        with pytest.raises(WriteFailed) as caught:
            check_sendable(job(extensions={"k\n" * 100_000: {"end": float("nan")}}))
        assert len(str(caught.value)) < 400
        assert str(caught.value).isprintable()
        assert ".end is a float" in caught.value.reason

    @pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a\0", "a\x1f", "a\x7f", "\ud800", "a.signal"])
    @pytest.mark.parametrize("field", ["id", "stream_id"])
    def test_an_unusable_identifier_is_refused(self, field: str, name: str) -> None:
        for refuses in (check_sendable, check_identifiers):
            with pytest.raises(InvalidIdentifier) as caught:
                refuses(job(**{field: name}))
            assert caught.value.id == name

    @pytest.mark.parametrize("name", [None, 7, b"bytes"])
    @pytest.mark.parametrize("field", ["id", "stream_id"])
    def test_an_identifier_that_is_not_text_is_refused(self, field: str, name: object) -> None:
        with pytest.raises(InvalidIdentifier, match="not text"):
            check_sendable(job(**{field: name}))
        with pytest.raises(WriteFailed, match=f"{field} must be text"):
            encode_job(job(**{field: name}))

    def test_an_identifier_with_a_lone_surrogate_is_never_written(self) -> None:
        with pytest.raises(WriteFailed, match=r"job \\ud800"):
            encode_job(job(id="\ud800"))

    @pytest.mark.parametrize(
        "changes",
        [
            {"job_id": None},
            {"job_id": "\ud800"},
            {"status": "finished"},
            {"completed_at": None},
            {"completed_at": HLC(0, 0, 2**31)},
            {"artifacts": (ArtifactRef("elsewhere", "x"),)},  # type: ignore[arg-type]
            {"artifacts": (ArtifactRef.file_path(None),)},  # type: ignore[arg-type]
            {"artifacts": (ArtifactRef.file_path("\udc00"),)},
            {"artifacts": None},
        ],
    )
    def test_a_wrong_signal_is_refused(self, changes: dict[str, Any]) -> None:
        with pytest.raises(WriteFailed, match="the signal of job"):
            encode_signal(signal(**changes))

    def test_a_status_may_be_given_as_its_word(self) -> None:
        assert decode_signal(encode_signal(signal(status="blocked"))).status is ObservationStatus.BLOCKED


class TestLenientIn:
    """What other ports wrote is written back unchanged by a retry, though nobody could send it here."""

    @pytest.mark.parametrize("value", [2**63, -(10**4299), nested(510)])
    def test_what_may_not_be_sent_survives_all_the_same(self, value: object) -> None:
        data = encode_job(job(extensions={"k": value}))
        assert encode_job(decode_job(data)) == data
        with pytest.raises(WriteFailed):
            check_sendable(decode_job(data))

    def test_nothing_is_written_that_could_not_be_read(self) -> None:
        with pytest.raises(WriteFailed, match="nested deeper than 511 levels"):
            encode_job(job(extensions={"k": nested(511)}))
        with pytest.raises(WriteFailed):
            encode_job(job(extensions={"k": 10**4300}))

    @given(st.binary(max_size=100), st.booleans())
    def test_padding_may_be_there(self, payload: bytes, padded: bool) -> None:
        text = base64.urlsafe_b64encode(payload)
        data = encode_job(job(payload=payload)).replace(
            b'"payload":"' + text.rstrip(b"="), b'"payload":"' + (text if padded else text.rstrip(b"="))
        )
        assert decode_job(data).payload == payload

    def test_spare_bits_of_base64_are_ignored(self) -> None:
        data = encode_job(job(payload=b"\xff")).replace(b'"_w"', b'"_x"')
        assert decode_job(data).payload == b"\xff"

    @pytest.mark.parametrize("more", [-1, 0, 1, 2, 3])
    @pytest.mark.parametrize("portions", [1, 2])
    def test_a_payload_that_is_decoded_in_portions_comes_back_whole(self, portions: int, more: int) -> None:
        payload = (bytes(range(256)) * (portions * 3 * 2**10 + 1))[: portions * 3 * 2**18 + more]
        assert decode_job(encode_job(job(payload=payload))).payload == payload

    @pytest.mark.parametrize("foreign", [b"+", b"=", b"!", "é".encode()])
    def test_a_foreign_character_is_found_in_every_portion(self, foreign: bytes) -> None:
        data = encode_job(job(payload=bytes(3 * 2**18 + 3)))
        place = data.rindex(b"AAA")
        with pytest.raises(DecodingFailed, match="foreign character"):
            decode_job(data[: place - 1] + foreign + data[place:])

    def test_any_buffer_can_be_decoded(self) -> None:
        data = encode_job(job(extensions={"k": [[]] * 600}))
        assert decode_job(memoryview(data)) == decode_job(bytearray(data)) == decode_job(data)  # type: ignore[arg-type]

    def test_an_error_names_the_job_where_it_can(self) -> None:
        with pytest.raises(DecodingFailed, match="job 'j1': priority is missing") as caught:
            decode_job(encode_job(job()).replace(b'"priority":50,', b""))
        assert (caught.value.job_id, caught.value.reason) == ("j1", "priority is missing")
