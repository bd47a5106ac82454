"""Where `workerpool torture` kills: how points are written, and which are chosen."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workerpool.torture.points import END, REPLY, Point, PointKind, choose

LINE_POINTS = st.builds(
    Point,
    kind=st.just(PointKind.LINE),
    file=st.from_regex(r"[a-z]{1,8}(/[a-z]{1,8})?\.py", fullmatch=True),
    line=st.integers(1, 10_000),
    hit=st.integers(1, 1_000_000),
)
COUNTS = st.dictionaries(
    st.tuples(st.sampled_from(["a.py", "b.py"]), st.integers(1, 30)), st.integers(1, 200), min_size=1, max_size=40
)


def dice() -> random.Random:
    return random.Random(7)


@given(LINE_POINTS | st.sampled_from([END, REPLY]))
def test_a_point_is_read_back_from_its_name(point: Point) -> None:
    assert Point.parse(str(point)) == point


def test_names_that_people_write() -> None:
    assert Point.parse("handlers.py:31") == Point(PointKind.LINE, "handlers.py", 31, 1)
    assert Point.parse("pkg/handlers.py:31#2") == Point(PointKind.LINE, "pkg/handlers.py", 31, 2)
    assert Point.parse("13.4ms") == Point.parse("13.4 ms") == Point(PointKind.TIME, ms=13.4)
    assert str(Point.parse("13.40ms")) == "13.4ms"


@pytest.mark.parametrize(
    "text", ["", "31", "handlers.py", "handlers.py:0", "handlers.py:3#0", "handlers.py:x", "-1ms", "2s"]
)
def test_what_is_no_point_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r"write handlers\.py:31"):
        Point.parse(text)


def test_every_line_comes_first_in_the_order_of_the_run_then_the_end() -> None:
    lines = {("h.py", 9): 1, ("h.py", 3): 50, ("g.py", 1): 2}
    chosen = choose(lines, 1.0, 30, dice())
    assert [str(point) for point in chosen[:5]] == ["h.py:9#1", "h.py:3#1", "g.py:1#1", "end", "reply"]
    later = [point for point in chosen[5:] if point.kind is PointKind.LINE]
    assert {"h.py:3#2", "h.py:3#50", "g.py:1#2"} <= set(map(str, later))
    times = [point.ms for point in chosen if point.kind is PointKind.TIME]
    assert len(times) == 8
    assert times == sorted(times)
    assert [int(ms // 125) for ms in times] == list(range(8)), "one in each eighth of the second"


@given(lines=COUNTS, count=st.integers(1, 300), seed=st.integers(0, 5))
def test_as_many_as_asked_for_none_twice_each_of_them_in_the_run(
    lines: dict[tuple[str, int], int], count: int, seed: int
) -> None:
    chosen = choose(lines, 0.5, count, random.Random(seed))
    assert len(chosen) == count
    by_line = [point for point in chosen if point.kind is PointKind.LINE]
    assert max(Counter(by_line).values(), default=1) == 1
    assert all(1 <= point.hit <= lines[point.file, point.line] for point in by_line)
    assert all(0 <= point.ms <= 500 for point in chosen if point.kind is PointKind.TIME)


def test_the_same_seed_chooses_the_same_and_another_one_does_not() -> None:
    lines = {("h.py", line): 100 for line in range(1, 10)}
    assert choose(lines, 1.0, 60, random.Random(1)) == choose(lines, 1.0, 60, random.Random(1))
    assert choose(lines, 1.0, 60, random.Random(1)) != choose(lines, 1.0, 60, random.Random(2))


def test_a_run_without_lines_of_the_users_has_its_end_and_times() -> None:
    kinds = Counter(point.kind for point in choose({}, 0.1, 10, dice()))
    assert kinds == {PointKind.TIME: 8, PointKind.END: 1, PointKind.REPLY: 1}
