"""The book of claims: found by id, by session and by name, and forgotten everywhere at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuekit.backends import claims as book
from queuekit.backends.claims import Claim, Claims
from queuekit.hlc import HLC
from queuekit.ids import SessionID


def claim(name: str, *, id: str = "a", stream: str = "s", session: str = "1", receipt: int | None = None) -> Claim:
    return Claim(
        name=name,
        stream=stream,
        job_id=id,
        session=SessionID(session),
        receipt=receipt,
        fence=1,
        job=None,
        submitted_at=HLC(0, 0, 0),
    )


def test_a_claim_is_found_in_every_way() -> None:
    claims, mine = Claims(), claim("n")
    claims.add(mine)
    assert claims.find("a", None) is claims.find("a", "s") is mine
    assert claims.find("a", "other") is None
    assert claims.of_session(SessionID("1")) == [mine]
    assert "n" in claims


def test_a_dropped_claim_is_found_in_no_way() -> None:
    claims, mine = Claims(), claim("n")
    claims.add(mine)
    for _ in range(2):
        claims.drop(mine)
    assert claims.find("a", None) is None
    assert claims.of_session(SessionID("1")) == []
    assert "n" not in claims


def test_a_new_claim_of_the_same_file_takes_the_place_of_the_old_one() -> None:
    claims, old, new = Claims(), claim("n"), claim("n", session="2")
    claims.add(old)
    claims.add(new)
    assert claims.find("a", None) is new
    claims.drop(old)
    assert claims.find("a", None) is new
    assert claims.of_session(SessionID("1")) == []


def test_of_two_jobs_with_one_id_the_older_claim_is_found_first() -> None:
    claims, first, second = Claims(), claim("n1"), claim("n2", stream="t")
    claims.add(first)
    claims.add(second)
    assert claims.find("a", None) is first
    assert claims.find("a", "t") is second
    claims.drop(first)
    assert claims.find("a", None) is second


def test_what_is_being_taken_counts_as_ours() -> None:
    claims = Claims()
    claims.taking = "n"
    assert "n" in claims
    claims.taking = ""
    assert "n" not in claims


@given(st.lists(st.tuples(st.sampled_from("nm"), st.sampled_from("st"), st.sampled_from("12")), max_size=12))
def test_dropping_a_stream_leaves_the_others(entries: list[tuple[str, str, str]]) -> None:
    claims = Claims()
    made = {f"{n}{s}": claim(f"{n}{s}", id=n, stream=s, session=session) for n, s, session in entries}
    for each in made.values():
        claims.add(each)
    claims.drop_stream("s")
    left = [each for session in "12" for each in claims.of_session(SessionID(session))]
    assert sorted(each.name for each in left) == sorted(name for name in made if name.endswith("t"))
    assert all(claims.find(each.job_id, "s") is None for each in made.values())


def test_of_what_others_have_settled_the_newest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those in flight and those under a lease are never among what may be forgotten."""
    monkeypatch.setattr(book, "KEPT", 2)
    claims = Claims()
    claims.add(claim("leased"))
    claims.add(claim("foreign", session=""))
    for number in range(4):
        claims.add(claim(f"n{number}", receipt=number))
    assert [each.name for each in claims.long_gone({"n1"})] == ["foreign", "n0"]
    claims.drop_all(claims.long_gone({"n1"}))
    assert claims.long_gone({"n1"}) == []


def test_a_review_is_due_when_the_book_has_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book, "KEPT", 2)
    claims = Claims()
    due = []
    for number in range(12):
        claims.add(claim(f"n{number}", receipt=number))
        if claims.has_grown:
            due.append(len(claims))
            claims.reviewed()
    assert due == [4, 8]
