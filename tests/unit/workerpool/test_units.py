import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workerpool.units import MAX_SECONDS, format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("0s", 0), ("250ms", 0.25), ("1m30s", 90), ("1.5h", 5400), ("7d", 604_800), ("2w", 1_209_600)],
)
def test_durations_are_read_as_people_write_them(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("5", '"5s"'),
        ("-1s", "negative"),
        ("5mm", "not a duration"),
        ("1s and 2s", "not a duration"),
        ("1s\n", "not a duration"),
        ("5S", "not a duration"),
        ("١s", "not a duration"),
        ("nan", "not a duration"),
        ("", "not a duration"),
        ("3651d", "too long"),
        ("9" * 400 + "s", "too long"),
    ],
)
def test_what_is_no_duration_is_refused_with_a_hint(text, hint):
    with pytest.raises(ValueError, match=hint):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("100B", 100), ("64MiB", 67_108_864), ("64 MiB", 67_108_864), ("1.5kB", 1500), ("2GB", 2_000_000_000)],
)
def test_sizes_are_read_as_people_write_them(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("5", '"5MiB"'),
        ("-1MiB", "negative"),
        ("64M", "not a size"),
        ("64mib", "not a size"),
        ("9999999TiB", "too large"),
    ],
)
def test_what_is_no_size_is_refused_with_a_hint(text, hint):
    with pytest.raises(ValueError, match=hint):
        parse_size(text)


@given(st.integers(min_value=0, max_value=int(MAX_SECONDS)), st.integers(min_value=0, max_value=999))
def test_a_written_duration_reads_back(seconds, milliseconds):
    written = format_duration(min(seconds + milliseconds / 1000, MAX_SECONDS))
    assert parse_duration(written) == pytest.approx(min(seconds + milliseconds / 1000, MAX_SECONDS), abs=1e-6)


@pytest.mark.parametrize(("seconds", "text"), [(0, "0"), (0.2, "200ms"), (90, "1m30s"), (604_800, "7d")])
def test_a_duration_is_written_as_people_write_it(seconds, text):
    assert format_duration(seconds) == text


@given(st.integers(min_value=0, max_value=2**50))
def test_a_written_size_reads_back(size):
    assert parse_size(format_size(size)) == size


@given(st.text())
def test_any_text_is_read_or_refused_with_a_value_error(text):
    for parse in (parse_duration, parse_size):
        with contextlib.suppress(ValueError):
            assert parse(text) >= 0
