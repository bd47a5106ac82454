"""T10: TERM, INT and HUP at every instant of a start, while processes are forked and handlers installed."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable

import pytest
from lengths import short_and_long
from pool import Estate, until
from witness import quantile, seconds_of_a_start

STREAMS = ("encode", "dreaming")
HARD = 10.0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
@pytest.mark.parametrize("instants", short_and_long(40, 401, timeout=3600))
def test_a_signal_at_any_instant_of_the_start_is_obeyed(
    make_estate: Callable[..., Estate], dice: random.Random, instants: int, number: int
) -> None:
    """T10: spread over two seconds, each at a random place of its part (the long form's are 5 ms).

    On a machine so slow that a start takes longer than that, over a start and a half.
    """
    estate = make_estate({name: {"workers": 2} for name in STREAMS}, shutdown={"soft": "5s", "hard": f"{HARD:g}s"})
    span = max(2.0, 1.5 * seconds_of_a_start(estate, *STREAMS))
    step = span / (instants - 1)
    times = [signal_while_starting(estate, number, (place + dice.random()) * step) for place in range(instants)]
    print(
        f"T10: {instants} times {signal.Signals(number).name} within {span:.1f} s, {untouched(estate)} of them before "
        f"the pool was there; 0 orphans, exit after p50 {quantile(times, 0.5):.2f} s, "
        f"max {max(times):.2f} s (goal: {HARD + 2:g} s)"
    )


def untouched(estate: Estate) -> int:
    """How many pools the signal has ended before they were there to obey it."""
    return sum(pool.code != 0 for pool in estate.pools)


def signal_while_starting(estate: Estate, number: int, after: float) -> float:
    """Send it that long after the start; returns the seconds until the pool has ended, which leaves nothing.

    A HUP ends it only when it comes before its handler; a TERM follows, every other time once a stream works.
    """
    pool = estate.start()
    moment = time.monotonic() + after
    until(lambda: time.monotonic() > moment, "the moment")
    pool.tell(number)
    if number == signal.SIGHUP:
        if len(estate.pools) % 2:
            until(lambda: pool.code is not None or pool.is_working(*STREAMS)(), "work after the reload")
        pool.tell(signal.SIGTERM)
    begun = time.monotonic()
    before_the_pool = {1, 130, -number, -signal.SIGTERM}  # the answers of the interpreter and of the command
    assert pool.wait(HARD + 2) in {0, *before_the_pool}, pool.log
    took = time.monotonic() - begun
    until(lambda: estate.processes() == [], "the end of the tree", patience=2)
    return took
