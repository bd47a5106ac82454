"""The machine's own clock, set for a moment: what the kernel stamps files with goes along, unlike a shifted clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from pool import Estate, until
from watching import LeaseWitness

STREAM = "encode"
HOUR_NS = 3_600_000_000_000
TTL, RETRY_SECONDS = 1.0, 1.5
SET_SECONDS = 2.5  # longer than a lease that nobody renews, and than the retry has to wait


@contextmanager
def clock_set(by_ns: int) -> Iterator[None]:
    """The clock of the machine is ahead by so many ns meanwhile. One that cannot be set tells the way back."""
    ahead = time.clock_gettime_ns(time.CLOCK_REALTIME) - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    try:
        time.clock_settime_ns(time.CLOCK_REALTIME, time.clock_gettime_ns(time.CLOCK_MONOTONIC) + ahead + by_ns)
        yield
    finally:
        time.clock_settime_ns(time.CLOCK_REALTIME, time.clock_gettime_ns(time.CLOCK_MONOTONIC) + ahead)


@pytest.mark.alone
@pytest.mark.needs("linux", "clock")
@pytest.mark.torture  # in the long programme only: what else runs on the machine sees its clock, too
@pytest.mark.timeout(300)
def test_a_step_of_the_machines_clock_takes_no_stream_from_its_holder(make_estate: Callable[..., Estate]) -> None:
    """T2, C32: an hour forth, an hour back, with a second pool that waits and a job that waits for its retry."""
    estate = make_estate({STREAM: {"retries": 5}}, lease={"ttl": f"{TTL:g}s"})
    leases = LeaseWitness(estate.root, (STREAM,))
    holder, other = estate.start(), estate.start()
    until(lambda: holder.is_working(STREAM)() or other.is_working(STREAM)(), "the holder")
    until(lambda: any((row := each.row(STREAM)) and row.lease == "standby" for each in (holder, other)), "the other")
    leases.look()
    sent = []
    for step in (HOUR_NS, -HOUR_NS) * 2:
        retried = estate.send(do="retry", after=RETRY_SECONDS, until=1)
        until(lambda: estate.files("later"), "the retry's waiting")
        with clock_set(step):
            end = time.monotonic() + SET_SECONDS
            sent.append(estate.send())
            until(lambda end=end: leases.look() or time.monotonic() >= end, "the moment")
        until(lambda retried=retried: len(estate.runs()[retried]) >= 2, "the retry", patience=5)
        first, second = estate.runs()[retried][:2]
        if step < 0:
            assert RETRY_SECONDS - 0.1 <= second.start - first.start <= RETRY_SECONDS + 5
        sent.append(retried)
    until(estate.finished(*sent), "all jobs")
    assert leases.take_overs == []
    assert (holder.stop(), other.stop()) == (0, 0)
    estate.check_settled(sent)
    print("T2, on the machine's clock: 4 steps, 0 take-overs, the retries on time")
