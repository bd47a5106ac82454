"""A night's work: poison among good jobs, reloads under load, a thousand jobs due at once.

The small forms run always and look at facts only; the full ones are marked torture, measure, and print their figures.
"""

from __future__ import annotations

import itertools
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pool import Estate, Pool, until

from queuekit.backends.maildir.layout import split_later
from queuekit.clock import now_ms
from queuekit.testing.jobs import make_job

POISON = {"crash": "crashed too often", "hang": "retries exhausted"}
_TIMEOUT, _RUNS = 1.0, 2
STREAM = {"handler": "acting_cases:act", "workers": 4, "timeout": f"{_TIMEOUT:g}s", "retries": _RUNS - 1}
_MOST_AHEAD = 64  # units that a worker may have with it


# -- poison


def send_night(estate: Estate, count: int, of_each: int) -> tuple[list[str], dict[str, list[str]]]:
    """`count` jobs in all, the poison ones spread evenly; returns the good ones, and the poison ones by their act."""
    poison: dict[str, list[str]] = {act: [] for act in POISON}
    good: list[str] = []
    acts = list(POISON) * of_each
    every = count // len(acts) if acts else count
    while len(good) + sum(map(len, poison.values())) < count:
        good += estate.send_many(every - 1 if acts else count, do="sleep briefly", seconds=0.01)
        if acts:
            act = acts.pop()
            poison[act].append(estate.send(do=act))
        every = min(every, count - len(good) - sum(map(len, poison.values())) + 1)
    return good, poison


def check_night(estate: Estate, good: list[str], poison: dict[str, list[str]]) -> None:
    """Every good job ran once and is done; every poison one is blocked, and its dossier says why and where."""
    assert {estate.status_of(job) for job in good} == {"done"}
    runs = estate.runs()
    assert {len(runs[job]) for job in good} == {1}
    for act, jobs in poison.items():
        for job in jobs:
            assert (estate.status_of(job), len(runs[job])) == ("blocked", _RUNS)
            dossier = estate.dossier(job)
            assert dossier["cause"] == POISON[act]
            assert 'acting.py", line' in dossier["error"]
            assert ("SIGSEGV" if act == "crash" else "timeout") in dossier["error"]
    estate.check_settled([*good, *itertools.chain.from_iterable(poison.values())])


def test_poison_among_good_jobs_is_found_and_costs_nobody_else_a_run(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate({"encode": STREAM})
    good, poison = send_night(estate, 100, of_each=1)
    assert (len(good), [len(jobs) for jobs in poison.values()]) == (98, [1, 1])
    assert estate.run("--burst").code == 6
    check_night(estate, good, poison)


@pytest.mark.torture
@pytest.mark.timeout(600)
def test_a_night_of_a_thousand_jobs_with_ten_poison_ones(make_estate: Callable[..., Estate], tmp_path: Path) -> None:
    """990 done, 10 blocked, in 1.5 × the time of the same run without poison, plus the timeouts."""
    plain_folder = tmp_path / "plain"
    plain_folder.mkdir()
    with Estate(plain_folder, {"encode": STREAM}) as plain:
        send_night(plain, 1000, of_each=0)
        plain_seconds = burst_seconds(plain, 0)
    estate = make_estate({"encode": STREAM})
    good, poison = send_night(estate, 1000, of_each=5)
    assert (len(good), [len(jobs) for jobs in poison.values()]) == (990, [5, 5])
    seconds = burst_seconds(estate, 6)
    timeouts = _TIMEOUT * _RUNS * len(poison["hang"])
    print(f"FIGURES without poison {plain_seconds:.2f} s, with it {seconds:.2f} s, timeouts {timeouts:.2f} s")
    check_night(estate, good, poison)
    assert seconds <= 1.5 * plain_seconds + timeouts


def burst_seconds(estate: Estate, code: int) -> float:
    begun = time.monotonic()
    assert estate.run("--burst", patience=300).code == code
    return time.monotonic() - begun


# -- reloads


def reload_under_load(estate: Estate, stream: dict[str, Any], *, jobs: int, reloads: int) -> list[str]:
    """Reload again and again, each time when the last one was taken and every worker is of it, until all is done."""
    sent = estate.send_many(jobs, do="sleep briefly", seconds=0.05)
    pool = estate.start()
    until(pool.is_working(), "the pool")
    for number in range(1, reloads + 1):
        estate.configure({"encode": {**stream, "retries": number}})
        before = workers(pool)
        pool.tell(signal.SIGHUP)
        until(lambda number=number: pool.log.count("workers are replaced one by one") == number, "the reload")
        until(lambda before=before: before.isdisjoint(workers(pool)), "new workers")
    ended_meanwhile = sum(estate.finished(job)() for job in sent)
    print(f"FIGURES {ended_meanwhile} of {jobs} jobs had ended after the last reload")
    until(estate.finished(*sent), "all jobs", patience=120)
    assert pool.stop() == 0
    assert "Traceback" not in pool.log
    return sent


def workers(pool: Pool) -> set[int]:
    """The pids of the living workers."""
    return {row.pid for row in pool.rows() if row.stream == "encode" and "-" in row.name and row.kind.name == "WORKER"}


def longest_gap(estate: Estate) -> float:
    ends = sorted(float(facts[1]) for facts in estate.notes("end"))
    return max(later - end for end, later in itertools.pairwise(ends))


@pytest.mark.parametrize(
    ("jobs", "reloads", "most_seconds"),
    [(100, 3, None), pytest.param(500, 20, 1.0, marks=[pytest.mark.torture, pytest.mark.timeout(600)])],
)
def test_reloads_under_load_lose_nothing_and_run_nothing_twice(
    make_estate: Callable[..., Estate], jobs: int, reloads: int, most_seconds: float | None
) -> None:
    stream = {"handler": "acting_cases:act", "workers": 4}
    estate = make_estate({"encode": stream})
    sent = reload_under_load(estate, stream, jobs=jobs, reloads=reloads)
    gap = longest_gap(estate)
    print(f"FIGURES longest gap between two ends {gap:.3f} s")
    assert Counter(len(runs) for runs in estate.runs().values()) == {1: jobs}
    estate.check_settled(sent)
    assert most_seconds is None or gap <= most_seconds


# -- stampedes


def test_a_thousand_jobs_due_at_the_same_moment_are_claimed_a_few_at_a_time(
    make_estate: Callable[..., Estate],
) -> None:
    estate = make_estate({"encode": {"handler": "acting_cases:act", "workers": 2}})
    due = now_ms() + 3000
    jobs = [make_job(stream="encode", payload=b'{"do": "sleep briefly", "seconds": 0.001}') for _ in range(1000)]
    for job in jobs:
        estate.queue.backend.write(job, due_ms=due)
    sent = [str(job.id) for job in jobs]
    pool = estate.start()
    most = 0
    while not estate.finished(*sent[-1:], *sent[::50])():
        most = max(most, estate.count("cur"))
    until(estate.finished(*sent), "all jobs")
    print(f"FIGURES at most {most} in flight")
    assert 0 < most <= 2 * _MOST_AHEAD
    assert pool.stop() == 0
    assert Counter(len(runs) for runs in estate.runs().values()) == {1: 1000}
    estate.check_settled(sent)


def test_jobs_that_failed_together_do_not_come_back_together(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate({"encode": {"workers": 2, "retries": 1}}, defaults={"backoff": "1m", "max_backoff": "10m"})
    sent = estate.send_many(100, **{"do": "raise"})
    pool = estate.start()
    until(lambda: len(estate.folder_if_there("later")) == 100, "the failure of all")
    assert pool.stop() == 0
    splits = [split_later(name) for name in estate.folder_if_there("later")]
    dues = sorted(split[0] for split in splits if split is not None)
    assert len(dues) == 100
    assert 15_000 < dues[-1] - dues[0] < 60_000
    assert max(Counter(due // 1000 for due in dues).values()) < 25
    assert estate.check(sent) == {"later": 100}
