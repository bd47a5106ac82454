"""An error that stays is said once, tried ever more slowly, and said to be over."""

from __future__ import annotations

import logging

import pytest

from queuekit.errors import BackendUnavailable
from workerpool.trouble import Trouble

FULL = BackendUnavailable("the disk is full")


@pytest.fixture
def trouble() -> Trouble:
    return Trouble("claiming jobs", logging.getLogger("test.trouble"))


def test_nothing_is_blocked_or_said_while_all_is_well(trouble, caplog):
    trouble.over(1.0)
    assert not trouble.blocks(1.0)
    assert caplog.records == []


def test_the_pauses_grow_to_a_limit_and_every_pause_ends(trouble):
    pauses = []
    for _ in range(12):
        trouble.met(FULL, 0.0)
        assert trouble.blocks(0.0)
        assert not trouble.blocks(trouble.until)
        pauses.append(trouble.until)
    assert pauses == sorted(pauses)
    assert pauses[0] == pytest.approx(0.1)
    assert pauses[-1] == 1.0


def test_the_same_error_is_said_once_and_another_one_again(trouble, caplog):
    for now in range(5):
        trouble.met(FULL, now)
    trouble.met(BackendUnavailable("no such folder"), 6.0)
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert "the disk is full" in caplog.text
    assert "no such folder" in caplog.text


def test_when_it_works_again_that_is_said_once_with_how_long_it_took(trouble, caplog):
    trouble.met(FULL, 10.0)
    trouble.met(FULL, 12.0)
    trouble.over(13.5)
    trouble.over(14.0)
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert "after 3.5 s" in caplog.records[1].message


def test_a_new_trouble_begins_with_a_short_pause(trouble):
    for now in range(9):
        trouble.met(FULL, float(now))
    trouble.over(20.0)
    trouble.met(FULL, 30.0)
    assert trouble.until == pytest.approx(30.1)


def test_the_same_fault_of_the_system_is_one_trouble_whatever_it_was_met_at(trouble, caplog):
    for number in range(5):
        error = BackendUnavailable(f"cannot write file {number}")
        error.__cause__ = OSError(28, "No space left on device")
        trouble.met(error, float(number))
    other = BackendUnavailable("cannot write file 5")
    other.__cause__ = OSError(5, "Input/output error")
    trouble.met(other, 6.0)
    assert [record.message.split(" (")[0] for record in caplog.records] == [
        "claiming jobs: the queue is not available: cannot write file 0",
        "claiming jobs: the queue is not available: cannot write file 5",
    ]


def test_two_faults_in_turn_are_said_once_each_until_it_works(trouble, caplog):
    for now in range(6):
        trouble.met(OSError(28, "full") if now % 2 else OSError(5, "bad"), float(now))
    assert len(caplog.records) == 2
    trouble.over(7.0)
    trouble.met(OSError(5, "bad"), 20.0)
    assert len(caplog.records) == 4


def test_what_fails_and_works_in_turn_is_said_once(trouble, caplog):
    for turn in range(50):
        trouble.met(FULL, turn / 10)
        trouble.over(turn / 10 + 0.05)
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]


def test_what_came_and_went_and_then_stays_is_said_again_with_its_end(trouble, caplog):
    trouble.met(FULL, 0.0)
    trouble.over(0.1)
    caplog.clear()
    trouble.met(FULL, 0.2)
    trouble.met(FULL, 0.7)
    assert not caplog.records
    trouble.met(FULL, 1.3)
    trouble.met(FULL, 2.0)
    trouble.over(3.0)
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert "after 2.8 s" in caplog.text


def test_another_fault_in_between_is_said_at_once(trouble, caplog):
    trouble.met(FULL, 0.0)
    trouble.over(0.1)
    trouble.met(OSError(5, "bad"), 0.2)
    trouble.over(0.3)
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING", "ERROR", "WARNING"]
