"""T23: what four processes log at once is in the log whole, each line once, while it is rotated again and again."""

from __future__ import annotations

import collections
import itertools
import json
import random
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import talking
from lengths import short_and_long
from pool import Estate, Pool, until

TALKERS = 4
STREAMS = ("encode", "dreaming")
HERE = Path(__file__).parent
PATIENCE = 600.0
lengths = pytest.mark.parametrize("lines", short_and_long(2_000, 50_000, timeout=3600))
forms = pytest.mark.parametrize("form", ["text", "json"])


def talking_estate(make_estate: Callable[..., Estate], lines: int, **log: Any) -> tuple[Estate, list[str]]:
    """Four workers, two in each of two streams, each of which is to log so many lines."""
    streams = {name: {"handler": "talking:talk", "workers": TALKERS // 2} for name in STREAMS}
    estate = make_estate(streams, handlers={"path": [str(HERE)]}, log=log)
    return estate, [estate.send(STREAMS[talker % 2], talker=talker, lines=lines) for talker in range(TALKERS)]


def rotations(pool: Pool, file: Path, dice: random.Random, is_over: Callable[[], bool]) -> list[Path]:
    """Move the log away and have it opened anew, at random moments, until the talk is over; returns all its parts."""
    parts = []
    while not is_over():
        moment = time.monotonic() + dice.uniform(0, 0.2)
        until(lambda: time.monotonic() > moment, "the moment")  # noqa: B023
        if file.exists():
            parts.append(file.rename(file.with_name(f"{file.name}.{len(parts)}")))
            if dice.random() < 0.8:  # it is found to be gone without a word, too
                pool.tell(signal.SIGUSR1)
    return [*parts, file]


def messages(parts: Iterable[Path], form: str) -> Iterator[str]:
    """What each line of a log says; every byte of it belongs to a line."""
    for part in parts:
        whole = part.read_bytes()
        assert whole.endswith(b"\n")
        for line in whole.decode().splitlines():
            if form == "json":
                yield str(json.loads(line)["message"])
            else:
                yield line.partition(f" {talking_mark(line)} ")[2].partition(": ")[2] if talking_mark(line) else line


def talking_mark(line: str) -> str:
    """The words of a text line between time and message, when a worker's job said it; else ""."""
    day, clock, level, name, job, _ = (line.split(" ", 5) + [""] * 5)[:6]
    assert len(day) == 10
    assert len(clock) == 8
    return f"{level} {name} {job}" if job == "job" else ""


def check_all_said(found: Iterable[str], lines: int) -> None:
    """Every line that was said is there once, and what looks like one is one."""
    said: collections.Counter[tuple[int, int]] = collections.Counter()
    for message in found:
        if "said" in message:
            read = talking.read(message)
            assert read is not None, f"torn: {message[:300]!r}"
            said[read] += 1
    wanted = set(itertools.product(range(TALKERS), range(lines)))
    assert len(said.keys() & wanted) == len(wanted), f"lost: {sorted(wanted - said.keys())[:10]}"
    assert said.total() == len(wanted)


@forms
@lengths
def test_a_log_file_that_is_rotated_under_way_loses_no_line(
    make_estate: Callable[..., Estate], tmp_path: Path, dice: random.Random, lines: int, form: str
) -> None:
    """T23."""
    file = tmp_path / "logs" / "pool.log"
    file.parent.mkdir()
    estate, jobs = talking_estate(make_estate, lines, file=str(file), format=form)
    begun = time.monotonic()
    pool = estate.start()
    parts = rotations(pool, file, dice, estate.finished(*jobs))
    assert pool.stop() == 0
    check_all_said(messages(parts, form), lines)
    print(f"T23 {form}: {TALKERS * lines:,} lines, {len(parts) - 1} rotations in {time.monotonic() - begun:.1f} s")


@forms
@lengths
def test_what_goes_to_standard_error_is_whole_too(make_estate: Callable[..., Estate], lines: int, form: str) -> None:
    """T23 for the log as a service manager gets it: workers' lines come through a pipe, others' go there directly."""
    estate, jobs = talking_estate(make_estate, lines, format=form)
    begun = time.monotonic()
    pool = estate.start()
    until(estate.finished(*jobs), "the talk", PATIENCE)
    assert pool.stop() == 0
    check_all_said(messages([pool.output], form), lines)
    print(f"T23 {form}, standard error: {TALKERS * lines:,} lines in {time.monotonic() - begun:.1f} s")
