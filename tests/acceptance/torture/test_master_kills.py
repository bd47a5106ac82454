"""T11: kill -9 of the master at random moments: what it leaves ends by itself, and the next one runs nothing twice."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Collection

import pytest
from lengths import short_and_long
from pool import Estate, Pool, is_dead, suppressed_end, until
from witness import quantile, seconds_of_a_start

STREAMS = {
    "encode": {"workers": 2},
    "dreaming": {"workers": 0},
    "import": {"handler": "acting:act_async"},
    "replay": {},
}
LONGEST = 0.4
"""How long a handler takes, at most, in seconds."""


@pytest.mark.parametrize("kills", short_and_long(25, 500, timeout=3600))
def test_nothing_outlives_a_killed_master_and_the_next_one_repeats_nothing(
    make_estate: Callable[..., Estate], dice: random.Random, kills: int
) -> None:
    """T11, C09: killed while it starts, idle or busy; every other time the next one is started at once."""
    estate = make_estate(STREAMS)
    start = seconds_of_a_start(estate, *STREAMS)
    sent: list[str] = []
    lives: list[float] = []
    while len(lives) < kills:
        if dice.random() < 0.7:  # else it is idle, unless jobs are left
            sent += estate.send_many(12, list(STREAMS), do="sleep", seconds=round(dice.uniform(0, LONGEST), 3))
        pool = estate.start()
        pause(dice.uniform(0, 2 * start + LONGEST))
        tree = kill_master(pool)
        next_pool = estate.start() if dice.random() < 0.5 else None
        lives.append(life_of(tree))
        if next_pool is not None:
            pause(dice.uniform(0, start))
            lives.append(life_of(kill_master(next_pool)))
        until(lambda: estate.processes() == [], "the end of what is left", patience=2 + LONGEST)
    assert estate.run("--burst", patience=600).code == 0
    estate.check_settled(sent)
    assert {len(runs) for runs in estate.runs().values()} == {1}
    assert len(estate.runs()) == len(sent)
    print(
        f"T11: {len(lives)} kills of the master, {len(sent)} jobs, 0 lost, 0 run twice, 0 orphans; the last of a tree "
        f"lived on for p50 {quantile(lives, 0.5):.2f} s, max {max(lives):.2f} s"
    )


def pause(seconds: float) -> None:
    moment = time.monotonic() + seconds
    until(lambda: time.monotonic() > moment, "the moment")


def kill_master(pool: Pool) -> Collection[int]:
    """Returns the pids of what it has left."""
    tree = pool.tree()
    with suppressed_end():
        os.kill(pool.pid, signal.SIGKILL)
    pool.wait()
    return tree


def life_of(pids: Collection[int]) -> float:
    """Wait for their deaths, which have 2 s and a handler's time; returns how long that took, in seconds."""
    begun = time.monotonic()
    until(lambda: all(map(is_dead, pids)), "the end of the tree", patience=2 + LONGEST)
    return time.monotonic() - begun
