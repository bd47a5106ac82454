"""What a pool says of its processes, and what handlers log: under their worker's name, with the job on each line."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

import psutil
from pool import Estate, until


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def test_a_handlers_lines_carry_job_stream_and_worker(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate({"encode": {"handler": "acting_cases:act", "workers": 2}}, log={"format": "json"})
    jobs = [estate.send(do="log") for _ in range(4)]
    pool = estate.run("--burst")
    assert pool.code == 0
    said = [line for line in lines(pool.log) if line["message"] == "half of it"]
    assert sorted(line["job_id"] for line in said) == sorted(jobs)
    for line in said:
        assert (line["stream"], line["attempt"], line["part"], line["level"]) == ("encode", 1, 1, "info")
        assert line["process"] in {"encode-1", "encode-2"}
    assert {line["pid"] for line in said} <= {run.pid for runs in estate.runs().values() for run in runs}
    own = [line for line in lines(pool.log) if line["message"] == "a line of the handler's own"]
    assert len(own) == 4
    assert {line["process"] for line in own} <= {"encode-1", "encode-2"}


def test_a_log_file_gets_the_workers_lines_too_and_the_level_holds_there(make_estate: Callable[..., Estate]) -> None:
    log = {"format": "text", "level": "warning"}
    estate = make_estate({"encode": {"handler": "acting_cases:act"}}, log=log)
    file = estate.folder / "pool.log"
    estate.configure({"encode": {"handler": "acting_cases:act"}}, log={**log, "file": str(file)})
    job = estate.send(do="log")
    pool = estate.start()
    until(estate.finished(job), "the job")
    assert pool.stop() == 0
    assert [line.split(" ", 2)[2] for line in file.read_text().splitlines() if "encode-1" in line] == [
        "warning encode-1 a line of the handler's own"
    ]


def test_who_is_stopped_is_told_at_once_and_when_it_goes_on(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate({"encode": {}})
    pool = estate.start()
    until(pool.is_working(), "the stream")
    for pid, name in ((pool.stream_pid(), "stream encode"), (pool.worker_pid(), "encode-1")):
        process = psutil.Process(pid)
        process.send_signal(signal.SIGSTOP)
        until(lambda: f"`kill -CONT {pid}`" in pool.log, "the word that it was stopped")  # noqa: B023
        process.send_signal(signal.SIGCONT)
        until(lambda: f"{name} goes on" in pool.log, "the word that it goes on")  # noqa: B023
    assert pool.stop() == 0


def test_a_pool_says_that_it_starts_and_what_it_works(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate({"encode": {}, "other": {}})
    pool = estate.run("--burst")
    said = [line["message"] for line in lines(pool.log)]
    assert said[0] == f"pool {pool.pid} starts a burst: encode, other"
    assert {f"stream {name} is worked here from now on" for name in ("encode", "other")} <= set(said)
