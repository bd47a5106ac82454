"""The oldest known names: in order, each once, and none older is ever missing."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from queuekit.backends.maildir.lookahead import Lookahead


def taken(ahead: Lookahead, count: int | None = None) -> list[str]:
    names = []
    for name in ahead.take():
        if count is not None and len(names) == count:
            ahead.put_back(name)
            break
        names.append(name)
    return names


def test_a_listing_keeps_the_oldest_and_says_whether_there_are_more() -> None:
    ahead = Lookahead(3)
    ahead.refill(["d", "b", "a", "c"])
    assert ahead.more
    assert taken(ahead) == ["a", "b", "c"]
    ahead.refill(["b", "a", "c"])
    assert not ahead.more
    assert taken(ahead) == ["a", "b", "c"]


def test_a_long_listing_tells_early_which_names_it_can_leave_out() -> None:
    ahead = Lookahead(2)
    offered = []

    def listing() -> Iterator[str]:
        for name in ["e", "d", "c", "b", "f", "a", "g"]:
            if name <= ahead.horizon:
                offered.append(name)
                yield name

    ahead.refill(listing())
    assert offered == ["e", "d", "c", "b", "f", "a"]
    assert ahead.more
    assert taken(ahead) == ["a", "b"]


def test_before_the_first_listing_there_may_be_anything() -> None:
    assert Lookahead().more


def test_a_hint_behind_what_was_left_out_is_forgotten() -> None:
    ahead = Lookahead(2)
    ahead.refill(["a", "b", "d"])
    ahead.add("e")
    ahead.add("aa")
    assert taken(ahead) == ["a", "aa", "b"]
    ahead.add("c")  # d, which was left out, is not known: only a listing tells what comes next
    assert taken(ahead) == []


def test_an_older_name_goes_first_although_there_may_be_more_than_is_known() -> None:
    ahead = Lookahead(4)
    ahead.refill([])
    for name in "cd":
        ahead.add(name)
    ahead.doubt()
    for name in "abe":
        ahead.add(name)
    assert taken(ahead) == ["a", "b", "c", "d"]
    assert ahead.more


def test_a_hint_is_noted_once() -> None:
    ahead = Lookahead(4)
    ahead.refill([])
    for _ in range(2):
        ahead.add("a")
    assert taken(ahead) == ["a"]
    ahead.add("a")
    assert taken(ahead) == ["a"]


def test_hints_without_end_do_not_fill_the_memory() -> None:
    ahead = Lookahead(10)
    ahead.refill([])
    for number in range(1000):
        ahead.add(f"{number:04d}")
    assert len(ahead) <= 20
    assert ahead.more
    assert taken(ahead)[:3] == ["0000", "0001", "0002"]


class Folder(RuleBasedStateMachine):
    """A folder, one who looks ahead, and hints of which some are lost."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead = Lookahead(3)
        self.files: set[str] = set()
        self.unseen: set[str] = set()  # arrived without a hint since the last listing

    names = st.text("abc", min_size=1, max_size=3)

    @rule(name=names, hinted=st.booleans())
    def arrive(self, name: str, hinted: bool) -> None:
        if name in self.files:
            return
        self.files.add(name)
        if hinted:
            self.ahead.add(name)
        else:
            self.unseen.add(name)

    @rule(name=names)
    def vanish(self, name: str) -> None:
        self.files.discard(name)
        self.unseen.discard(name)

    @rule()
    def list(self) -> None:
        self.ahead.refill(self.files)
        self.unseen.clear()

    @rule()
    def doubt(self) -> None:
        self.ahead.doubt()

    @rule(count=st.integers(1, 4))
    def claim(self, count: int) -> None:
        got = [name for name in taken(self.ahead, count) if name in self.files]
        assert got == sorted(got)
        hinted = self.files - self.unseen
        for name in got:
            older = {each for each in hinted - set(got) if each < name}
            assert not older or self.ahead.more, f"{older} were passed over"
        self.files -= set(got)
        self.unseen -= set(got)

    @invariant()
    def nothing_seen_is_lost(self) -> None:
        known = set(self.ahead._heap)
        assert self.ahead.more or self.files - self.unseen <= known


TestFolder = Folder.TestCase
