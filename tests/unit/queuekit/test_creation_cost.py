"""Whether making a file has become slow, by a clock that the test moves while the file is made."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from queuekit.backends.maildir import creation
from queuekit.backends.maildir.creation import CreationCost


class Disk:
    """A clock by which making each file takes what the test says next, in microseconds; the last one for ever."""

    def __init__(self, *costs: float) -> None:
        self._costs = list(costs)
        self._now = 0.0
        self._ticks = self._run()

    def __call__(self) -> float:
        return next(self._ticks)

    def _run(self) -> Iterator[float]:
        while True:
            yield self._now
            self._now += self._costs[0] / 1e6
            if len(self._costs) > 1:
                del self._costs[0]
            yield self._now


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(creation, "has_no_journal", lambda _: False)
    (tmp_path / "tmp").mkdir()
    return str(tmp_path)


def looks(root: str, *costs: float) -> list[bool]:
    """What each look says when the files of each look cost this."""
    cost = CreationCost(root, clock=Disk(*(each for each in costs for _ in range(3))))
    return [cost.has_risen() for _ in costs]


def test_it_has_risen_when_it_is_far_above_the_least_and_has_not_when_it_is_back(root: str) -> None:
    assert looks(root, 50, 60, 400, 1000, 90) == [False, False, True, True, False]


def test_a_small_rise_does_not_count_however_fast_the_disk_is(root: str) -> None:
    assert looks(root, 10, 150, 205, 215) == [False, False, False, True]


def test_a_slow_disk_has_to_become_twice_as_slow(root: str) -> None:
    assert looks(root, 5000, 9000, 11000) == [False, False, True]


def test_the_least_is_that_of_all_looks(root: str) -> None:
    assert looks(root, 900, 50, 900) == [False, False, True]


def test_a_file_that_had_to_wait_for_somebody_is_no_sign(root: str) -> None:
    cost = CreationCost(root, clock=Disk(50, 50, 50, 9000, 60, 9000, 50))
    assert [cost.has_risen() for _ in range(2)] == [False, False]


@pytest.mark.parametrize(
    ("costs", "rises"), [((50, 400, 60, 400), False), ((50, 400, 400), True), ((50, 400, 400, 50), True)]
)
def test_a_disk_is_known_as_one_that_becomes_slow_when_two_looks_have_seen_it(
    root: str, costs: tuple[float, ...], rises: bool
) -> None:
    cost = CreationCost(root, clock=Disk(*(each for each in costs for _ in range(3))))
    for _ in costs:
        cost.has_risen()
    assert cost.rises is rises


def test_nothing_is_left_behind(root: str) -> None:
    assert not CreationCost(root).has_risen()
    assert os.listdir(os.path.join(root, "tmp")) == []


def test_where_no_file_can_be_made_nobody_is_held_up(tmp_path: Path) -> None:
    assert not CreationCost(str(tmp_path / "nowhere")).has_risen()


def test_where_there_is_no_journal_it_is_expected_to_rise(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creation, "has_no_journal", lambda _: True)
    assert CreationCost(root).rises


def test_nothing_is_expected_of_what_is_no_disk() -> None:
    assert not creation.has_no_journal("/proc")
    assert not creation.has_no_journal("/nowhere")
