"""Winning, renewing and losing a lease, by a lease that does what the test says and a clock that is a number."""

from __future__ import annotations

import pytest

from queuekit import LeaseLost, WriteFailed
from queuekit.errors import BackendUnavailable
from workerpool.stream.tenure import STANDBY_SECONDS, Phase, Tenure

TTL, BEAT = 15.0, 5.0


class FakeLease:
    """`won`: what a try comes to; `error`: what the next tries and heartbeats raise."""

    stream, owner, fence = "encode", "pid-1-us", 1

    def __init__(self) -> None:
        self.won = True
        self.named: str | None = None
        self.error: Exception | None = None
        self.unreadable: Exception | None = None
        self.beats = self.tries = self.releases = 0

    def try_acquire(self, now: float | None = None) -> bool:
        self.tries += 1
        if self.error is not None:
            raise self.error
        return self.won

    def heartbeat(self, now: float | None = None) -> None:
        self.beats += 1
        if self.error is not None:
            raise self.error

    def holder(self) -> str | None:
        if self.unreadable is not None:
            raise self.unreadable
        return self.named

    def verify(self) -> None: ...

    def is_held_by_other(self, now: float | None = None) -> bool:
        return not self.won

    def release(self) -> None:
        self.releases += 1


@pytest.fixture
def lease() -> FakeLease:
    return FakeLease()


@pytest.fixture
def tenure(lease: FakeLease) -> Tenure:
    return Tenure(lease, TTL, BEAT)


def test_a_free_lease_is_won_at_once(tenure):
    assert (tenure.next_act(), tenure.may_claim) == (0.0, False)
    assert tenure.act(100.0)
    assert (tenure.phase, tenure.may_claim, tenure.predecessor) == (Phase.HOLDING, True, None)


def test_whoever_the_lease_named_is_the_predecessor(tenure, lease):
    lease.named = "pid-7-dead"
    tenure.act(100.0)
    assert tenure.predecessor == "pid-7-dead"


def test_a_lease_that_is_held_is_tried_for_again_and_again(tenure, lease):
    lease.won, lease.named = False, "pid-7-alive"
    assert not tenure.act(100.0)
    assert (tenure.is_standby, tenure.holder, tenure.predecessor) == (True, "pid-7-alive", None)
    assert not tenure.act(100.0 + STANDBY_SECONDS / 2)
    assert lease.tries == 1
    lease.won = True
    assert tenure.act(tenure.next_act())


def test_a_lease_that_cannot_be_looked_at_is_not_looked_at_without_a_pause(tenure, lease):
    lease.unreadable = BackendUnavailable("I/O error")
    with pytest.raises(BackendUnavailable):
        tenure.act(100.0)
    assert tenure.next_act() == 100.0 + STANDBY_SECONDS


def test_heartbeats_are_written_in_time_and_no_more_often(tenure, lease):
    tenure.act(100.0)
    for tenth in range(300):
        tenure.act(100.0 + tenth / 10)
    assert lease.beats == 5


def test_a_lease_that_is_lost_is_passed_on_and_tried_for_later(tenure, lease):
    tenure.act(100.0)
    lease.error = LeaseLost("encode", "pid-9-other")
    with pytest.raises(LeaseLost):
        tenure.act(105.0)
    assert (tenure.phase, tenure.may_claim) == (Phase.STANDBY, False)
    lease.error = None
    assert not tenure.act(105.5)
    assert tenure.act(106.0)


@pytest.mark.parametrize("error", [WriteFailed("lease", "no space"), OSError(5, "I/O error")])
def test_without_a_heartbeat_for_a_ttl_claiming_stops_and_goes_on_when_one_succeeds(tenure, lease, error):
    tenure.act(100.0)
    lease.error = error
    now = 100.0
    while now <= 100.0 + TTL:
        assert tenure.may_claim
        now = tenure.next_act()
        tenure.act(now)
    assert (tenure.phase, tenure.may_claim) == (Phase.FENCED, False)
    lease.error = None
    tenure.act(tenure.next_act())
    assert (tenure.phase, tenure.may_claim) == (Phase.HOLDING, True)


def test_a_failed_heartbeat_is_tried_again_sooner(tenure, lease):
    tenure.act(100.0)
    lease.error = WriteFailed("lease", "no space")
    tenure.act(105.0)
    assert tenure.next_act() == 106.0


def test_before_something_long_the_heartbeat_is_hurried(tenure, lease):
    assert not tenure.is_due_soon(100.0)
    tenure.act(100.0)
    assert not tenure.is_due_soon(102.0)
    assert tenure.is_due_soon(103.0)
    tenure.hurry()
    tenure.act(103.0)
    assert lease.beats == 1
    assert not tenure.is_due_soon(104.0)


def test_only_what_is_held_is_released(tenure, lease):
    tenure.release()
    assert lease.releases == 0
    tenure.act(100.0)
    tenure.release()
    tenure.release()
    assert (lease.releases, tenure.phase) == (1, Phase.STANDBY)
