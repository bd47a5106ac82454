"""Reading what nobody should have written: every failure is `DecodingFailed`, and nothing bad passes as a job."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuekit.completion import SignalFile
from queuekit.errors import DecodingFailed
from queuekit.job import Job
from queuekit.testing.strategies import jobs, json_values, signals
from queuekit.wire import decode_job, decode_signal, encode_job, encode_signal

JOB = (
    b'{"extensions":{"k":"v"},"id":"j1","payload":"AAH_","priority":50,"stream_id":"s",'
    b'"submitted_at":{"logical_count":0,"node_id":1,"physical_time":5}}'
)
SIGNAL = (
    b'{"artifacts":[{"type":"file_path","value":"/x"}],'
    b'"completed_at":{"logical_count":0,"node_id":1,"physical_time":5},"job_id":"j1","status":"done"}'
)


def changed(old: str, new: str, whole: bytes = JOB) -> bytes:
    assert whole.count(old.encode()) == 1, f"{old} must be there once, or the test would change nothing"
    return whole.replace(old.encode(), new.encode())


def test_the_unchanged_ones_are_good() -> None:
    """Else every test below would pass for the wrong reason."""
    assert encode_job(decode_job(JOB)) == JOB
    assert encode_signal(decode_signal(SIGNAL)) == SIGNAL


NOT_AN_OBJECT = {
    "nothing": b"",
    "zeros": bytes(200),
    "white space": b" \n",
    "a list": b"[]",
    "null": b"null",
    "a number": b"5",
    "a string": b'"x"',
    "an empty object": b"{}",
    "byte order mark": b"\xef\xbb\xbf" + JOB,
    "utf-16": JOB.decode().encode("utf-16"),
    "utf-16 without mark": JOB.decode().encode("utf-16-le"),
    "utf-32": JOB.decode().encode("utf-32"),
    "latin-1": changed('"v"', '"é"').decode().encode("latin-1"),
    "overlong utf-8": JOB.replace(b'"v"', b'"\xc0\xaf"'),
    "raw surrogate": JOB.replace(b'"v"', b'"\xed\xa0\x80"'),
    "two objects": JOB + JOB,
    "a tail": JOB + b"x",
    "a zero at the end": JOB + b"\0",
    "single quotes": JOB.replace(b'"', b"'"),
    "a comma too many": changed('"v"}', '"v",}'),
    "a raw newline in a string": changed('"v"', '"\n"'),
    "a raw zero in a string": changed('"v"', '"\0"'),
    "a bad escape": changed('"v"', r'"\x41"'),
    "a short escape": changed('"v"', r'"\u12"'),
}

BAD_VALUES = {
    "NaN": ("extensions", '{"k":NaN}'),
    "Infinity": ("extensions", '{"k":[Infinity]}'),
    "-Infinity": ("extensions", '{"k":-Infinity}'),
    "1e309": ("extensions", '{"k":1e309}'),
    "-1e309": ("extensions", '{"k":-1e309}'),
    "a leading zero": ("extensions", '{"k":01}'),
    "a hex number": ("extensions", '{"k":0x1}'),
    "a high surrogate": ("extensions", r'{"k":"\ud83d"}'),
    "a low surrogate": ("extensions", r'{"k":"\uDC00x"}'),
    "surrogates the wrong way round": ("extensions", r'{"k":"\udc00\ud83d"}'),
    "a surrogate in a key": ("extensions", r'{"a":{"\ud800":1}}'),
    "4,301 digits": ("extensions", '{"k":' + "9" * 4301 + "}"),
    "4,301 digits below zero": ("extensions", '{"k":-' + "9" * 4301 + "}"),
    "a million digits": ("extensions", '{"k":' + "1" * 1_000_000 + "}"),
    "a key twice": ("extensions", '{"a":1,"a":1}'),
    "a key twice, deep": ("extensions", '{"a":[{"b":1,"c":2,"b":3}]}'),
    "a key twice, one escaped": ("extensions", r'{"a":1,"\u0061":2}'),
    "extensions null": ("extensions", "null"),
    "extensions a list": ("extensions", "[]"),
    "extensions a string": ("extensions", '"{}"'),
    "id null": ("id", "null"),
    "id a number": ("id", "7"),
    "id with a surrogate": ("id", r'"\ud800"'),
    "stream a list": ("stream_id", '["s"]'),
    "payload null": ("payload", "null"),
    "payload a list": ("payload", "[0,1]"),
    "payload not base64": ("payload", '"!!!!"'),
    "payload of one character": ("payload", '"A"'),
    "payload of five characters": ("payload", '"AAAAA"'),
    "payload with plain base64's plus": ("payload", '"AA+A"'),
    "payload with plain base64's slash": ("payload", '"AA/A"'),
    "payload with padding inside": ("payload", '"AB=C"'),
    "payload with padding in front": ("payload", '"=AAA"'),
    "payload with half of its padding": ("payload", '"AA="'),
    "payload with padding too many": ("payload", '"AAA=="'),
    "payload of four with padding": ("payload", '"AAAA="'),
    "payload of padding": ("payload", '"===="'),
    "payload with a newline": ("payload", r'"AAAA\n"'),
    "payload with a space": ("payload", '"AA AA"'),
    "payload beyond ASCII": ("payload", '"ÀAAA"'),
    "payload of wide digits": ("payload", '"４４４４"'),
    "priority a bool": ("priority", "true"),
    "priority a float": ("priority", "50.0"),
    "priority with an exponent": ("priority", "5e1"),
    "priority a string": ("priority", '"50"'),
    "priority null": ("priority", "null"),
    "priority over int64": ("priority", str(2**63)),
    "priority under int64": ("priority", str(-(2**63) - 1)),
    "priority of 5,000 digits": ("priority", "5" * 5000),
    "timestamp null": ("submitted_at", "null"),
    "timestamp a list": ("submitted_at", "[0,1,5]"),
    "timestamp empty": ("submitted_at", "{}"),
}

BAD_STAMPS = {
    "physical over": ("physical_time", str(2**63)),
    "physical under": ("physical_time", str(-(2**63) - 1)),
    "physical a float": ("physical_time", "5.0"),
    "physical a bool": ("physical_time", "false"),
    "logical over": ("logical_count", str(2**31)),
    "logical under": ("logical_count", str(-(2**31) - 1)),
    "logical null": ("logical_count", "null"),
    "node over": ("node_id", str(2**32)),
    "node signed": ("node_id", "-1"),
    "node a string": ("node_id", '"1"'),
}

JOB_FIELDS = {
    "extensions": '{"k":"v"}',
    "id": '"j1"',
    "payload": '"AAH_"',
    "priority": "50",
    "stream_id": '"s"',
    "submitted_at": '{"logical_count":0,"node_id":1,"physical_time":5}',
}
STAMP_FIELDS = {"logical_count": "0", "node_id": "1", "physical_time": "5"}


class TestJobs:
    @pytest.mark.parametrize("data", NOT_AN_OBJECT.values(), ids=NOT_AN_OBJECT)
    def test_what_is_not_a_json_object(self, data: bytes) -> None:
        with pytest.raises(DecodingFailed):
            decode_job(data)

    @pytest.mark.parametrize(("key", "value"), BAD_VALUES.values(), ids=BAD_VALUES)
    def test_a_bad_value(self, key: str, value: str) -> None:
        with pytest.raises(DecodingFailed) as caught:
            decode_job(changed(f'"{key}":{JOB_FIELDS[key]}', f'"{key}":{value}'))
        assert 0 < len(str(caught.value)) < 400

    @pytest.mark.parametrize(("key", "value"), BAD_STAMPS.values(), ids=BAD_STAMPS)
    def test_a_bad_timestamp(self, key: str, value: str) -> None:
        change = (f'"{key}":{STAMP_FIELDS[key]}', f'"{key}":{value}')
        with pytest.raises(DecodingFailed, match=key):
            decode_job(changed(*change))
        with pytest.raises(DecodingFailed, match=key):
            decode_signal(changed(*change, whole=SIGNAL))

    @pytest.mark.parametrize("key", [key for key in JOB_FIELDS if key != "extensions"])
    def test_a_missing_key(self, key: str) -> None:
        body = json.loads(JOB)
        del body[key]
        with pytest.raises(DecodingFailed, match=f"{key} is missing"):
            decode_job(json.dumps(body).encode())

    @pytest.mark.parametrize("key", JOB_FIELDS)
    def test_a_key_twice(self, key: str) -> None:
        """With the same value, too: which of two counts is not ours to say."""
        with pytest.raises(DecodingFailed, match="twice"):
            decode_job(JOB[:-1] + f',"{key}":{JOB_FIELDS[key]}}}'.encode())

    def test_a_byte_order_mark_is_called_by_its_name(self) -> None:
        with pytest.raises(DecodingFailed, match="byte order mark"):
            decode_job(b"\xef\xbb\xbf" + JOB)

    def test_every_truncation(self) -> None:
        for size in range(len(JOB)):
            with pytest.raises(DecodingFailed):
                decode_job(JOB[:size])

    @pytest.mark.parametrize("not_bytes", [None, 5, JOB.decode(), [JOB], object()])
    def test_what_is_not_bytes(self, not_bytes: Any) -> None:
        with pytest.raises(DecodingFailed):
            decode_job(not_bytes)
        with pytest.raises(DecodingFailed):
            decode_signal(not_bytes)

    def test_a_paired_surrogate_is_a_character(self) -> None:
        assert decode_job(changed('"v"', r'"\ud83d\ude00 \\ud800"')).extensions == {"k": "\U0001f600 \\ud800"}


class TestSignals:
    @pytest.mark.parametrize("data", NOT_AN_OBJECT.values(), ids=NOT_AN_OBJECT)
    def test_what_is_not_a_json_object(self, data: bytes) -> None:
        with pytest.raises(DecodingFailed):
            decode_signal(data)

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ('"done"', '"finished"'),
            ('"done"', '"DONE"'),
            ('"done"', '""'),
            ('"done"', "null"),
            ('"done"', '["done"]'),
            ('"j1"', "1"),
            ('"file_path"', '"path"'),
            ('"file_path"', "null"),
            ('"/x"', "7"),
            ('"/x"', r'"\udead"'),
            (',"value":"/x"', ""),
            ('"type":"file_path",', ""),
            ('[{"type":"file_path","value":"/x"}]', "null"),
            ('[{"type":"file_path","value":"/x"}]', "{}"),
            ('[{"type":"file_path","value":"/x"}]', '"file_path"'),
            ('[{"type":"file_path","value":"/x"}]', "[[]]"),
            ('"artifacts":[{"type":"file_path","value":"/x"}],', ""),
            (',"status":"done"', ""),
            ('"status":"done"', '"status":"done","status":"blocked"'),
        ],
    )
    def test_a_bad_value(self, old: str, new: str) -> None:
        with pytest.raises(DecodingFailed):
            decode_signal(changed(old, new, whole=SIGNAL))

    def test_every_truncation(self) -> None:
        for size in range(len(SIGNAL)):
            with pytest.raises(DecodingFailed):
                decode_signal(SIGNAL[:size])

    def test_unknown_keys_are_ignored(self) -> None:
        data = changed('{"type"', '{"size":1,"type"', whole=SIGNAL)[:-1] + b',"zone":{"a":[]}}'
        assert decode_signal(data) == decode_signal(SIGNAL)


def with_extensions(text: str) -> bytes:
    return changed('{"k":"v"}', text)


class TestDepth:
    @pytest.mark.parametrize(
        "data",
        [
            b"[" * 100_000,
            b'{"a":' * 100_000,
            b"[" * 100_000 + b"]" * 100_000,
            b"[{" * 50_000,
            with_extensions('{"k":' + "[" * 100_000 + "]" * 100_000 + "}"),
            with_extensions('{"k":' + '{"":' * 100_000 + "1" + "}" * 100_000 + "}"),
            with_extensions('{"k":' + "[" * 511 + "]" * 511 + "}"),
            with_extensions(r'{"q":"\\\"","k":' + "[" * 511 + "]" * 511 + "}"),
        ],
        ids=["lists", "objects", "closed", "mixed", "in a job", "objects in a job", "one too many", "behind quotes"],
    )
    def test_too_deep(self, data: bytes) -> None:
        with pytest.raises(DecodingFailed, match="nested deeper than 512 levels"):
            decode_job(data)

    def test_512_levels_are_read(self) -> None:
        value = decode_job(with_extensions('{"k":' + "[" * 510 + "]" * 510 + "}")).extensions["k"]
        levels = 0
        while isinstance(value, list):
            levels, value = levels + 1, value[0] if value else None
        assert levels == 510

    @pytest.mark.parametrize(
        "text",
        [
            '{"k":"' + "[{" * 1000 + '"}',
            '{"k":"' + r"\"[\\" * 1000 + '"}',
            '{"' + "[" * 1000 + '":["' + "[" * 1000 + '","a"]}',
            '{"k":[' + ",".join(["[]"] * 1000) + "]}",
        ],
        ids=["in a string", "behind escaped quotes", "in a key", "beside each other"],
    )
    def test_brackets_that_do_not_nest_are_read(self, text: str) -> None:
        assert decode_job(with_extensions(text)).extensions == json.loads(text)

    @pytest.mark.parametrize("end", [b"", b"\\"], ids=["open", "within an escape"])
    def test_brackets_in_an_endless_string_take_no_endless_time(self, end: bytes) -> None:
        """Searched from each of its quotes anew, this would take minutes; the suite's time limit would end it."""
        with pytest.raises(DecodingFailed):
            decode_job(b'{"a":"' + rb"\"[" * 400_000 + end)

    def test_the_recursion_limit_decides_nothing(self) -> None:
        """With a huge limit the parser would overflow the C stack and kill the process."""
        script = f"""
            import sys
            sys.setrecursionlimit(10_000_000)
            from queuekit.errors import DecodingFailed
            from queuekit.wire import decode_job
            inside = {JOB!r}.replace(b'"v"', b"[" * 900_000 + b"]" * 900_000)
            for data in (b"[" * 5_000_000, b'{{"a":' * 5_000_000, inside):
                try:
                    decode_job(data)
                except DecodingFailed as error:
                    print(error.reason)
        """
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines() == ["it is nested deeper than 512 levels"] * 3

    def test_4300_digits_are_read_whatever_the_interpreter_allows(self) -> None:
        data = with_extensions('{"k":-' + "9" * 4300 + "}")
        assert decode_job(data).extensions["k"] == 1 - 10**4300
        limit = sys.get_int_max_str_digits()
        sys.set_int_max_str_digits(0)
        try:
            with pytest.raises(DecodingFailed, match="more than 4300 digits"):
                decode_job(with_extensions('{"k":' + "9" * 4301 + "}"))
        finally:
            sys.set_int_max_str_digits(limit)


def only_decoding_failed(decode: Callable[[bytes], object], data: bytes) -> object:
    """The value, or None; anything but `DecodingFailed` is the test's failure."""
    try:
        return decode(data)
    except DecodingFailed:
        return None


@st.composite
def mutations(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    """Valid bytes with a few cut out, changed, doubled or put in."""
    data = bytearray(draw(whole))
    pieces = st.one_of(st.binary(max_size=4), st.sampled_from([b'"', b"\\", b"{", b"[", b"NaN", b"1e999", b"\\ud800"]))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 6)))
        data[start:end] = draw(pieces) + (data[start:end] if draw(st.booleans()) else b"")
    return bytes(data)


class TestAnything:
    """What is read can be written, and is then read as the same: nothing half-good gets through."""

    @given(st.binary(max_size=300))
    def test_bytes(self, data: bytes) -> None:
        assert only_decoding_failed(decode_job, data) is None
        assert only_decoding_failed(decode_signal, data) is None

    @given(json_values())
    def test_json(self, value: object) -> None:
        data = json.dumps(value).encode()
        assert only_decoding_failed(decode_job, data) is None
        assert only_decoding_failed(decode_signal, data) is None

    @given(mutations(jobs().map(encode_job)))
    def test_damaged_jobs(self, data: bytes) -> None:
        job = only_decoding_failed(decode_job, data)
        if job is not None:
            assert isinstance(job, Job)
            assert decode_job(encode_job(job)) == job

    @given(mutations(signals().map(encode_signal)))
    def test_damaged_signals(self, data: bytes) -> None:
        signal = only_decoding_failed(decode_signal, data)
        if signal is not None:
            assert isinstance(signal, SignalFile)
            assert decode_signal(encode_signal(signal)) == signal

    @given(
        st.fixed_dictionaries(
            {key: st.one_of(st.just(json.loads(value)), json_values()) for key, value in JOB_FIELDS.items()}
        )
    )
    def test_jobs_with_fields_of_any_kind(self, body: dict[str, Any]) -> None:
        job = only_decoding_failed(decode_job, json.dumps(body).encode())
        if job is not None:
            assert isinstance(job, Job)
            assert (job.id, job.priority, job.extensions) == (body["id"], body["priority"], body["extensions"])
