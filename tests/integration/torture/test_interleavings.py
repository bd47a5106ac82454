"""Every pair of acts, the first one held up before each of its calls in turn: the promise holds."""

from __future__ import annotations

import collections
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from interleaving import Act, Folder, Pause, SqliteFile, acts_in, interleave, pairs, watch_leases
from lengths import short_and_long

Kind = type[Folder] | type[SqliteFile]


def numbers(step: int, dice: random.Random) -> Iterator[int]:
    """1, 2, 3, … for a step of 1; else about one number in `step`."""
    number = dice.randint(1, step)
    while True:
        yield number
        number += dice.randint(1, 2 * step - 1)


def play(path: Path, kind: Kind, first: Act, second: Act, at: int, pause: Pause) -> bool:
    """One interleaving, in a world of its own; whether the first one got so far as to be held up."""
    place = path / "world"
    place.mkdir()
    try:
        held_up = interleave(kind(place, pause), pause, first, second, at)
    except BaseException:
        print(f"when {first} and, before its call {at}, {second}")
        raise
    shutil.rmtree(place)
    return held_up


def play_all(
    path: Path, kind: Kind, share: float, step: int, dice: random.Random, pause: Pause
) -> collections.Counter[str]:
    """This share of all pairs, the first one held up at every call, or at one in `step`."""
    count: collections.Counter[str] = collections.Counter()
    for first in acts_in(kind):
        for second in pairs(first, kind):
            if dice.random() >= share:
                continue
            count["pairs"] += 1
            for at in numbers(step, dice):
                count["interleavings"] += 1
                if not play(path, kind, first, second, at, pause):
                    break
    return count


@pytest.mark.parametrize(("share", "step"), short_and_long((0.25, 20), (1.0, 1), timeout=7200))
def test_whatever_is_done_between_two_calls_in_a_folder_the_promise_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dice: random.Random, share: float, step: int
) -> None:
    """T5: claim, reply, take-over, release, defer, promote, reclaim, retry, cancel, prune, send, sweep, repair."""
    pause = Pause()
    watch_leases(monkeypatch, pause)
    print(f"T5, maildir: {dict(play_all(tmp_path, Folder, share, step, dice, pause))}, 0 violations")


@pytest.mark.parametrize(("share", "step"), short_and_long((0.05, 10), (0.3, 1), timeout=10_800))
def test_whatever_is_done_between_two_statements_in_sqlite_the_promise_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dice: random.Random, share: float, step: int
) -> None:
    """T5, on a database: the first one stands still before a statement, a commit, or a call on the lease file."""
    pause = Pause()
    watch_leases(monkeypatch, pause)
    monkeypatch.setattr("queuekit.backends.sql.sqlite._BUSY_SECONDS", 0.0)
    print(f"T5, SQLite: {dict(play_all(tmp_path, SqliteFile, share, step, dice, pause))}, 0 violations")
