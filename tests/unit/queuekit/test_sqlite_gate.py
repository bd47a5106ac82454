"""Which SQLite may use WAL, and which library is taken; the pauses of the SQL stores. No file, no sleep."""

from __future__ import annotations

import types

import pytest

from queuekit.backends.sql.database import Failed, Reach
from queuekit.backends.sql.sqlite import Library, Version, choose, is_fixed
from queuekit.backends.sql.watch import Settling
from queuekit.errors import BackendUnavailable


@pytest.mark.parametrize(
    "version",
    [(3, 44, 6), (3, 44, 9), (3, 50, 7), (3, 50, 8), (3, 51, 3), (3, 51, 10), (3, 52, 0), (3, 53, 4), (4, 0, 0)],
)
def test_fixed_libraries_may_use_wal(version: Version) -> None:
    assert is_fixed(version)


@pytest.mark.parametrize(
    "version",
    [
        (3, 7, 0),
        (3, 35, 0),
        (3, 40, 1),
        (3, 44, 5),
        (3, 45, 9),
        (3, 46, 1),
        (3, 49, 9),
        (3, 50, 6),
        (3, 51, 0),
        (3, 51, 2),
    ],
)
def test_libraries_with_the_fault_may_not(version: Version) -> None:
    assert not is_fixed(version)


def make_library(name: str, *version: int) -> Library:
    module = types.ModuleType(name)
    module.sqlite_version_info = version  # type: ignore[attr-defined]
    return Library(module)


def test_a_fixed_library_is_taken_before_a_newer_one_with_the_fault() -> None:
    own, bundled = make_library("sqlite3.dbapi2", 3, 51, 2), make_library("pysqlite3.dbapi2", 3, 50, 7)
    assert choose([bundled, own]) is bundled
    assert choose([own, bundled]) is bundled


def test_pysqlite3_comes_first_when_both_are_fixed() -> None:
    own, bundled = make_library("sqlite3.dbapi2", 3, 53, 0), make_library("pysqlite3.dbapi2", 3, 51, 3)
    assert choose([bundled, own]) is bundled


def test_the_newest_is_taken_when_none_is_fixed() -> None:
    own, bundled = make_library("sqlite3.dbapi2", 3, 40, 1), make_library("pysqlite3.dbapi2", 3, 39, 0)
    assert choose([bundled, own]) is own
    assert str(own) == "SQLite 3.40.1 of sqlite3"


def test_a_library_without_returning_is_refused() -> None:
    with pytest.raises(BackendUnavailable, match=r"SQLite 3\.34\.1 of sqlite3 is too old"):
        choose([make_library("sqlite3.dbapi2", 3, 34, 1)])


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_the_first_lost_connection_is_replaced_at_once(clock: Clock) -> None:
    reach = Reach(clock)
    reach.lost(opened=50.0)
    assert reach.may_try("db") == 100.0


def test_one_failure_met_by_many_threads_counts_once(clock: Clock) -> None:
    reach = Reach(clock)
    for opened in (50.0, 60.0, 70.0):
        reach.lost(opened)
    assert reach.may_try("db") == 100.0


def refusal(reach: Reach) -> str:
    """What keeps callers away just now; "" when nothing does."""
    try:
        reach.may_try("db")
    except Failed as failed:
        return failed.sentence
    return ""


def pauses_of(reach: Reach, clock: Clock, count: int) -> list[float]:
    """How long each of `count` refusals keeps callers away, to a tenth of a second."""
    pauses = []
    for _ in range(count):
        began = clock.now
        reach.refused(began, "it is down")
        while refusal(reach).startswith("it is down; trying again in "):
            clock.now += 0.05
        pauses.append(round(clock.now - began, 1))
    return pauses


def test_pauses_between_tries_grow_to_five_seconds(clock: Clock) -> None:
    assert pauses_of(Reach(clock), clock, 8) == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_a_success_makes_the_pauses_short_again(clock: Clock) -> None:
    reach = Reach(clock)
    pauses_of(reach, clock, 5)
    reach.succeeded()
    assert pauses_of(reach, clock, 2) == [0.1, 0.2]


def test_after_a_write_it_looks_some_times_more_and_then_sleeps(clock: Clock) -> None:
    settling = Settling(clock)
    assert settling.pause() is None
    settling.stirred()
    looks = []
    while (pause := settling.pause()) is not None:
        clock.now += pause
        looks.append(round(clock.now - 100, 3))
        settling.looked()
    assert looks == [0.005, 0.05, 0.5, 5.0]


def test_an_early_look_spares_none_of_the_later_ones(clock: Clock) -> None:
    settling = Settling(clock)
    settling.stirred()
    settling.looked()
    assert settling.pause() == pytest.approx(0.005)
    clock.now += 0.2
    settling.looked()
    assert settling.pause() == pytest.approx(0.3)
