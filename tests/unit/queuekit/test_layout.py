"""The names of the maildir and what they tell."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from queuekit.backends.maildir import layout
from queuekit.errors import InvalidIdentifier
from queuekit.hlc import HLC
from queuekit.ids import JobID, StreamID
from queuekit.job import Job
from queuekit.testing.strategies import hlcs, identifiers, job_ids, streams

HEX = "0123456789abcdef" * 2
STAMP = "0001700000000000-00000000-0000000001"


AT = HLC(1_700_000_000_000, 0, 1)


def job(stream: str, id: str, at: HLC = AT) -> Job:
    return Job(id=JobID(id), stream_id=StreamID(stream), submitted_at=at)


jobs = st.builds(job, streams(), job_ids(), hlcs())


@given(jobs)
def test_a_name_suggests_its_stream_and_tells_its_time(each: Job) -> None:
    name = layout.job_filename(each)
    assert layout.tail(name) == f"{each.stream_id}-{each.id}"
    assert layout.suggests(name, each.stream_id)
    assert layout.physical_time(name) == each.submitted_at.physical_time


@given(jobs, streams())
def test_a_name_suggests_no_stream_that_it_does_not_begin_with(each: Job, other: str) -> None:
    assume(not f"{each.stream_id}-{each.id}".startswith(f"{other}-"))
    assert not layout.suggests(layout.job_filename(each), other)


@given(streams(), hlcs())
def test_a_name_with_a_hex_id_is_clear_about_its_stream(stream: str, at: HLC) -> None:
    name = layout.job_filename(job(stream, HEX, at))
    assert layout.clear_stream(name) == stream
    assert layout.is_clear(name, stream)


@given(jobs, identifiers())
def test_the_two_ways_to_ask_for_a_clear_stream_agree(each: Job, other: str) -> None:
    name = layout.job_filename(each)
    for stream in (each.stream_id, other, f"{each.stream_id}-{each.id[:-33]}"):
        assert layout.is_clear(name, stream) == (layout.clear_stream(name) == stream)


@pytest.mark.parametrize(
    ("rest", "clear"),
    [
        (f"a-{HEX}", "a"),
        (f"a-b-{HEX}", "a-b"),  # or stream a with the id b-…: only the content can tell
        (f"a--{HEX}", "a-"),
        (f"a-{HEX[:-1]}", None),
        (f"a-{HEX}0", None),
        (f"a-{HEX.upper()}", None),
        (f"a{HEX}", None),
        (f"-{HEX}", None),
        (f"a-{HEX}.signal", None),
        ("a-b", None),
    ],
)
def test_when_a_name_is_clear(rest: str, clear: str | None) -> None:
    assert layout.clear_stream(f"{STAMP}-{rest}") == clear


@pytest.mark.parametrize(
    ("rest", "suggested", "others"),
    [
        ("a-b-c", ["a", "a-b"], ["b", "c", "a-b-c", ""]),
        ("encode-1", ["encode"], ["code", "encod", "ENCODE"]),
        ("a.b-c", ["a.b"], ["axb", "a"]),
        ("a b-ü", ["a b"], ["a"]),
    ],
)
def test_which_streams_a_name_suggests(rest: str, suggested: list[str], others: list[str]) -> None:
    name = f"{STAMP}-{rest}"
    assert [stream for stream in suggested + others if layout.suggests(name, stream)] == suggested


@pytest.mark.parametrize(
    "name",
    ["", "a", ".swp", "encode", f"{STAMP}", f"{STAMP}-", "x-0-0-encode-1", "1-2-encode-1", "١-٢-٣-encode-1"],
)
def test_names_without_the_shape_of_a_jobs_tell_nothing(name: str) -> None:
    assert layout.tail(name) is None
    assert layout.physical_time(name) == 0
    assert layout.clear_stream(name) is None
    assert not layout.suggests(name, "encode")


def test_negative_times_and_counts_keep_the_shape() -> None:
    name = layout.job_filename(job("s", "x", HLC(-5, -7, -1)))
    assert name == "-000000000000005--0000007-4294967295-s-x"
    assert layout.tail(name) == "s-x"
    assert layout.physical_time(name) == -5


def test_a_signals_name_is_no_jobs() -> None:
    name = f"{STAMP}-s-{layout.signal_filename('x')}"
    assert layout.tail(name) is None
    assert not layout.suggests(name, "s")


# -- what may be sent


@pytest.mark.parametrize(("unit", "size"), [("x", 1), ("ü", 2), ("😀", 4)])
def test_a_name_takes_222_bytes_at_most(unit: str, size: int) -> None:
    room = 222 - len(f"{STAMP}-s-")
    fits = unit * (room // size) + "x" * (room % size)
    assert len(layout.check_job_name(job("s", fits)).encode()) == 222
    with pytest.raises(InvalidIdentifier):
        layout.check_job_name(job("s", fits + "x"))


@pytest.mark.parametrize(
    ("stream", "id"), [("s", "x.signal"), ("s", ""), ("", "x"), ("s", "a/b"), ("..", "x"), ("s", "\n")]
)
def test_what_no_file_can_be_named_by_is_refused(stream: str, id: str) -> None:
    with pytest.raises(InvalidIdentifier):
        layout.check_job_name(job(stream, id))


@given(jobs)
def test_what_may_be_sent_fits_under_every_name_that_it_gets(each: Job) -> None:
    try:
        name = layout.check_job_name(each)
    except InvalidIdentifier:
        assume(False)
    names = [
        layout.later_filename(name, 2**53, retry=True),
        f"{'0' * 32}-{name}",
        layout.signal_filename(each.id),
        layout.quarantine_signal_filename(name),
        layout.dossier_filename(each.id),
    ]
    assert max(len(each.encode()) for each in names) <= 255


# -- the other folders


@given(jobs, st.integers(0, 2**60), st.booleans())
def test_a_name_in_later_reads_back(each: Job, due_ms: int, retry: bool) -> None:
    name = layout.job_filename(each)
    later = layout.later_filename(name, due_ms, retry=retry)
    assert layout.split_later(later) == (due_ms, retry, name)
    assert layout.tail(later) is None or layout.tail(later) != layout.tail(name)


@given(st.lists(st.integers(0, 10**16 - 1), min_size=2))
def test_names_in_later_sort_by_their_time(dues: list[int]) -> None:
    names = sorted(layout.later_filename(f"{STAMP}-s-x", due, retry=True) for due in dues)
    assert [int(name[:16]) for name in names] == sorted(dues)


def test_a_time_before_the_epoch_is_due_at_once() -> None:
    assert layout.later_filename("n", -5, retry=False) == "0000000000000000-s-n"


@pytest.mark.parametrize("name", ["", f"{STAMP}-s-x", "0000000000000001-x-n", "1-r-n", "0000000000000001-r-"])
def test_what_is_no_name_of_later(name: str) -> None:
    assert layout.split_later(name) is None


@pytest.mark.parametrize(
    ("name", "inside"),
    [(f"{HEX}-{STAMP}-s-x", f"{STAMP}-s-x"), (f"{HEX}-", None), (HEX, None), (f"{STAMP}-s-x", None), ("", None)],
)
def test_the_name_inside_a_claim(name: str, inside: str | None) -> None:
    assert layout.split_claim(name) == inside


# -- what is put aside


@given(st.binary(min_size=1, max_size=255).filter(lambda each: b"/" not in each and b"\0" not in each))
def test_the_signal_of_a_file_put_aside_fits_and_is_its_own(raw: bytes) -> None:
    name = raw.decode(errors="surrogateescape")
    signal = layout.quarantine_signal_filename(name)
    assert len(signal.encode(errors="surrogateescape")) <= 255
    assert signal.endswith(".signal")
    assert layout.quarantine_signal_filename(name + "x") != signal


def test_a_long_name_is_cut_after_150_bytes_and_told_apart_by_its_hash() -> None:
    import hashlib

    name = "n" * 249
    assert layout.quarantine_signal_filename(name[:248]) == f"{'n' * 248}.signal"
    digest = hashlib.sha256(name.encode()).hexdigest()
    assert layout.quarantine_signal_filename(name) == f"{'n' * 150}-{digest}.signal"


@given(st.binary(min_size=1, max_size=255).filter(lambda each: b"/" not in each and b"\0" not in each))
def test_a_spare_name_leaves_room_for_its_signal(raw: bytes) -> None:
    spare = layout.spare_name(raw.decode(errors="surrogateescape"), "0f0f0f0f")
    assert spare.endswith(".0f0f0f0f")
    assert layout.quarantine_signal_filename(spare) == f"{spare}.signal"
