"""How long others have been silent, as far as a looker's own clock bears out what the database's says."""

from __future__ import annotations

import pytest

from queuekit.backends.sql.sightings import Sightings, Stamp


class Clock:
    """A monotonic clock that is set by hand."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sightings(clock: Clock) -> Sightings:
    return Sightings(7.5, clock)


def look(sightings: Sightings, beat: int, age: float) -> float:
    return sightings.silences([Stamp("other", beat, age)])["other"].told


def test_at_the_first_look_an_age_is_believed(sightings: Sightings) -> None:
    assert look(sightings, 1, 60.0) == 60.0


def test_a_stamp_from_the_future_was_made_now(sightings: Sightings, clock: Clock) -> None:
    assert look(sightings, 1, -3600.0) == 0.0
    clock.now += 5
    assert look(sightings, 1, -3595.0) == 5.0


def test_silence_grows_with_the_lookers_clock(sightings: Sightings, clock: Clock) -> None:
    look(sightings, 1, 2.0)
    clock.now += 5
    assert look(sightings, 1, 7.0) == 7.0


def test_a_clock_that_is_set_forward_makes_nobody_silent(sightings: Sightings, clock: Clock) -> None:
    look(sightings, 1, 2.0)
    clock.now += 5
    assert look(sightings, 1, 3607.0) == 7.0
    clock.now += 5
    assert look(sightings, 2, 3600.0) == 5.0


def test_a_renewal_ends_the_silence(sightings: Sightings, clock: Clock) -> None:
    look(sightings, 1, 6.0)
    clock.now += 5
    assert look(sightings, 2, 1.0) == 1.0


def test_whoever_could_not_look_blames_nobody(sightings: Sightings, clock: Clock) -> None:
    look(sightings, 1, 2.0)
    clock.now += 60
    assert look(sightings, 1, 62.0) == 0.0
    clock.now += 5
    assert look(sightings, 1, 67.0) == 5.0


def test_one_that_came_since_the_last_look_has_not_been_silent_for_longer(sightings: Sightings, clock: Clock) -> None:
    assert sightings.silences([]) == {}
    clock.now += 5
    assert look(sightings, 1, 3600.0) == 5.0


def test_what_was_watched_is_what_was_seen_by_the_looker_alone(sightings: Sightings, clock: Clock) -> None:
    def watched(beat: int) -> float:
        return sightings.silences([Stamp("other", beat, 60.0)])["other"].watched

    assert watched(1) == 0.0
    clock.now += 5
    assert watched(1) == 5.0
    clock.now += 5
    assert watched(2) == 0.0
    clock.now += 60
    assert watched(2) == 0.0


def test_who_is_gone_is_forgotten(sightings: Sightings, clock: Clock) -> None:
    look(sightings, 1, 2.0)
    assert sightings.silences([]) == {}
    clock.now += 5
    assert look(sightings, 1, 4.0) == 4.0
