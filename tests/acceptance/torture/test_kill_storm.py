"""T1: kill -9 of anything, again and again, while four streams work (C07, C09, C10, C59); see storm.py."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from lengths import short_and_long
from pool import Estate
from storm import Storm, streams

TTL, POLL = 5.0, 1.0
PART = 1_000


@pytest.mark.needs("linux")
@pytest.mark.parametrize("kills", short_and_long(500, 10_000))
def test_no_job_is_lost_ended_twice_or_repeated_without_need_in_a_storm_of_kills(
    make_estate: Callable[..., Estate], dice: random.Random, kills: int
) -> None:
    """T1; judged after every thousand kills, so that a long run that is cut short has told something."""
    estate = make_estate(streams(), lease={"ttl": f"{TTL:g}s"}, watch={"poll": f"{POLL:g}s", "scan": "5s"})
    with Storm(estate, dice) as storm:
        for part in range(0, kills, PART):
            storm.rage(min(PART, kills - part))
            storm.calm_down()
            print(f"T1: {storm.judge()}", flush=True)
        assert storm.recovery_p99() <= TTL + POLL + 1
