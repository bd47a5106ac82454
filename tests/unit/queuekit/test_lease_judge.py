"""The rule of leases, without a file: what a content, its holder's life and our own patience make of it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuekit.lease import Record, Verdict, judge
from queuekit.locks import Life

NOW = 1_700_000_000.0
TTL = 15.0


def verdict(
    content: bytes | None, *, life: Life = Life.UNKNOWN, unchanged: float = 0.0, now: float = NOW, owner: str = "me"
) -> Verdict:
    return judge(content, owner=owner, now=now, ttl=TTL, life=life, unchanged=unchanged)


def written(at: object, owner: str = "other") -> bytes:
    return f"{owner}\n{at}".encode()


def test_an_absent_lease_is_free() -> None:
    assert verdict(None) is Verdict.FREE


@pytest.mark.parametrize("at", [NOW, NOW - 10 * TTL, NOW + 1e9, math.inf])
def test_ours_is_ours_however_old(at: float) -> None:
    assert verdict(written(at, "me")) is Verdict.OURS


@pytest.mark.parametrize(
    ("age", "expected"), [(0.0, Verdict.FRESH), (TTL, Verdict.FRESH), (TTL + 0.001, Verdict.STALE)]
)
def test_of_another_port_the_stamp_decides(age: float, expected: Verdict) -> None:
    assert verdict(written(NOW - age)) is expected


@pytest.mark.parametrize("at", [NOW, NOW - 10 * TTL, NOW + 1e9, math.inf, "nonsense"])
def test_a_dead_holder_is_not_waited_for(at: object) -> None:
    assert verdict(written(at), life=Life.DEAD) is Verdict.STALE


@pytest.mark.parametrize("at", [NOW, NOW - 1e9, NOW + 1e9, math.inf, -math.inf, math.nan])
def test_a_living_holder_loses_it_only_by_standing_still(at: float) -> None:
    assert verdict(written(at), life=Life.HELD, unchanged=TTL) is Verdict.FRESH
    assert verdict(written(at), life=Life.HELD, unchanged=TTL + 0.001) is Verdict.STALE


NONSENSE = [b"", b"{", b"{}", b"other", b"other\n", b"\n1.0", b"other\n1\n", b"other\r\n1", b"\xff\n1", b"a\nb"]
NO_TIME = [written(at) for at in ("inf", "-inf", "nan", NOW + TTL, 1e300)]


@pytest.mark.parametrize("content", [*NONSENSE, *NO_TIME])
def test_nonsense_is_neither_free_nor_for_ever(content: bytes) -> None:
    assert verdict(content) is Verdict.FRESH
    assert verdict(content, unchanged=TTL + 0.001) is Verdict.STALE


@pytest.mark.parametrize("at", ["1700000000", "1700000000.0", "1.7e9"])
def test_stamps_of_other_ports_are_read(at: str) -> None:
    assert Record.decode(written(at)) == Record("other", 1_700_000_000.0)


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1), st.floats(0, 1e12))
def test_a_record_reads_back(owner: str, at: float) -> None:
    record = Record(owner, at)
    assert Record.decode(record.encode()) == record
    assert not record.encode().endswith(b"\n")


@given(st.binary(max_size=60), st.sampled_from(Life), st.floats(0, 100), st.floats(0, 1e12))
def test_any_bytes_get_an_answer_that_is_never_free(content: bytes, life: Life, unchanged: float, now: float) -> None:
    assert verdict(content, life=life, unchanged=unchanged, now=now, owner="pid-1-x") is not Verdict.FREE
