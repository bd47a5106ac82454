"""Many jobs from many producers through one pool: each is handled exactly once, and the root tells so."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
from pool import Estate

STREAMS = ("encode", "dreaming", "import", "replay")
PRODUCER = """
import sys
from queuekit import QueueKit
queue, count, mine = QueueKit(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
from queuekit.testing.jobs import make_job
jobs = [make_job(stream=stream, payload=b"x" * 100) for _ in range(count // 4) for stream in sys.argv[4:]]
queue.send_batch(jobs)
sys.stdout.write("\\n".join(job.id for job in jobs))
"""


def produce(estate: Estate, count: int, producers: int) -> list[str]:
    """Let several processes send at the same time, each over every stream; returns what they have sent."""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", PRODUCER, str(estate.root), str(count // producers), str(number), *STREAMS],
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(producers)
    ]
    sent = [line for producer in running for line in producer.communicate()[0].split()]
    assert [producer.returncode for producer in running] == [0] * producers
    return sent


def burst(estate: Estate, count: int, patience: float) -> None:
    """Four producers, four streams, one pool; every id ran once and every job has its signal."""
    sent = produce(estate, count, producers=4)
    assert len(set(sent)) == count
    pool = estate.run("--burst", patience=patience)
    assert pool.code == 0, pool.log
    assert f"{count:,} jobs" in pool.log
    ran = [facts[2] for facts in estate.notes("start")]
    assert sorted(ran) == sorted(sent)
    estate.check_settled(sent)
    assert estate.count("done") == 2 * count
    assert estate.processes() == []


def streams() -> dict[str, dict[str, object]]:
    return {name: {"handler": "acting:act_fast", "workers": 1} for name in STREAMS}


def test_every_job_of_four_producers_over_four_streams_is_handled_exactly_once(
    make_estate: Callable[..., Estate],
) -> None:
    burst(make_estate(streams()), 4_000, patience=60)


@pytest.mark.torture
@pytest.mark.timeout(900)
def test_a_hundred_thousand_jobs_are_handled_exactly_once(make_estate: Callable[..., Estate]) -> None:
    burst(make_estate(streams()), 100_000, patience=600)


def test_a_burst_takes_in_what_is_sent_while_it_runs(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate()
    gate = estate.folder / "gate"
    first = estate.send(do="wait", file=str(gate))
    pool = estate.start("--burst")
    from pool import until

    until(estate.started(first), "the first run")
    second = estate.send()
    gate.touch()
    assert pool.wait() == 0
    estate.check_settled([first, second])


def test_a_burst_waits_for_retries_and_tells_by_its_code_that_a_job_is_blocked(
    make_estate: Callable[..., Estate],
) -> None:
    estate = make_estate(defaults={"retries": 1})
    good, late = estate.send(), estate.send(**{"do": "raise", "until": 1})
    bad = estate.send(**{"do": "raise"})
    assert estate.run("--burst").code == 6
    assert [estate.status_of(each) for each in (good, late, bad)] == ["done", "done", "blocked"]
    estate.check_settled([good, late, bad])


def test_a_second_burst_over_a_finished_root_ends_at_once_with_nothing_done(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate()
    sent = [estate.send()]
    assert estate.run("--burst").code == 0
    again = estate.run("--burst")
    assert again.code == 0
    assert "0 jobs" in again.log
    assert len(estate.notes("start")) == 1
    estate.check_settled(sent)


def test_jobs_of_a_stream_that_nobody_works_are_mentioned_and_not_waited_for(
    make_estate: Callable[..., Estate],
) -> None:
    estate = make_estate()
    sent, stray = estate.send(), estate.send("encodee")
    pool = estate.run("--burst")
    assert pool.code == 0
    assert estate.status_of(sent) == "done"
    assert estate.status_of(stray) is None
    assert pool.log.count("'encodee' has jobs and is not configured") == 2
