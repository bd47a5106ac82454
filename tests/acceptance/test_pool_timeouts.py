"""A run that takes too long: killed wherever it hangs, and its record tells where that was."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from pool import Estate, is_dead, until

from queuekit.job import Delivery


@pytest.mark.parametrize(
    ("act", "function"),
    [
        ("hang in Python", "hang_in_python"),
        ("hang in C", "hang_in_c"),
        ("hang for a child", "hang_for_a_child"),
    ],
)
def test_a_timeout_tells_where_the_job_hung(make_estate: Callable[..., Estate], act: str, function: str) -> None:
    estate = make_estate({"encode": {"handler": "acting_cases:act", "timeout": "600ms", "retries": 1}})
    hanging = estate.send(do=act)
    pool = estate.start()
    until(estate.finished(hanging), "the end of the hanging job")
    good = estate.send()
    until(estate.finished(good), "a job after it")
    assert pool.stop() == 0
    assert [estate.status_of(job) for job in (hanging, good)] == ["blocked", "done"]
    assert len(estate.runs()[hanging]) == 2
    dossier = estate.dossier(hanging)
    assert (dossier["cause"], dossier["attempts"], dossier["crashes"]) == ("retries exhausted", 2, 0)
    for error in dossier["errors"]:
        first, *stack = error.splitlines()
        assert first == "killed after 0.6 s (timeout)"
        frames = [line for line in stack if line.startswith("  File ")]
        assert any(function in frame for frame in frames), error
        assert "acting_cases.py" in frames[-1], error
        assert " in act" in frames[-1], error
    assert all(is_dead(int(facts[2])) for facts in estate.notes("child"))
    estate.check_settled([hanging, good])


def test_a_hang_of_a_batch_is_found_by_halving_and_the_others_complete(make_estate: Callable[..., Estate]) -> None:
    stream = {"handler": "acting_cases:act_together", "batch_size": 4, "batch_wait": "200ms"}
    estate = make_estate({"encode": {**stream, "timeout": "600ms", "retries": 0}})
    good = estate.send_many(2)
    hanging = estate.send(do="hang in C")
    good += estate.send_many(1)
    assert estate.run("--burst").code == 6
    assert {estate.status_of(job) for job in good} == {"done"}
    dossier = estate.dossier(hanging)
    assert "hang_in_c" in dossier["error"]
    assert [run["halved_from"] for run in dossier["runs"]] == [4]
    attempts = {job.id: Delivery.of(job).attempt for job in estate.queue.completed("encode")}
    assert {attempts[job] for job in good} == {0}
    estate.check_settled([hanging, *good])


def test_a_stream_goes_on_within_a_second_after_a_timeout(make_estate: Callable[..., Estate]) -> None:
    """One worker: the job behind the hanging one starts when the kill is done, not when a child's sleep is."""
    estate = make_estate({"encode": {"handler": "acting_cases:act", "timeout": "600ms", "retries": 0}})
    pool = estate.start()
    until(pool.is_working(), "the pool")
    hanging, good = estate.send(do="hang for a child"), estate.send()
    until(estate.finished(hanging, good), "both")
    begun, next_run = estate.runs()[hanging][0].start, estate.runs()[good][0].start
    assert 0.6 <= next_run - begun < 1.6
    end = time.time() * 1000
    (run,) = estate.dossier(hanging)["runs"]
    assert (run["run"], run["seconds"]) == (1, 0.6)
    assert end - 60_000 < run["ended_ms"] <= end
    assert pool.stop() == 0


def test_who_says_nothing_gets_no_words_of_the_job_before_and_the_record_says_so(
    make_estate: Callable[..., Estate],
) -> None:
    estate = make_estate({"encode": {"handler": "acting_cases:act", "workers": 1, "timeout": "600ms", "retries": 0}})
    talking = estate.send(do="say", words="not mine\n", times=20_000)
    deaf = estate.send(do="hang deaf")
    dying = estate.send(do="say", words="my own\n", times=3, die=True)
    assert estate.run("--burst").code == 6
    assert estate.status_of(talking) == "done"
    first, *rest = estate.dossier(deaf)["error"].splitlines()
    assert first == "killed after 0.6 s (timeout)"
    assert len(rest) == 1
    assert "it did not say where it was" in rest[0]
    assert estate.dossier(dying)["error"].endswith("its last words:\nmy own\nmy own\nmy own")
