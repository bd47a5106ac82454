"""What `show` tells of jobs in every condition, from values alone: no store, no pool."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

import pytest

from queuekit.completion import SignalFile
from queuekit.contract import JobView
from queuekit.hlc import HLC
from queuekit.job import Delivery
from queuekit.lifecycle import State
from queuekit.status import ObservationStatus
from queuekit.testing.jobs import make_job
from workerpool.board import Board, BoardHeader, Kind, RowView
from workerpool.cli.pools import Pool, StreamRows
from workerpool.cli.record import Record
from workerpool.cli.show import details, next_steps
from workerpool.cli.story import Scene, tell, why_waiting
from workerpool.config_file import load_config
from workerpool.pauses import Pause

CONFIG = load_config({"store": {"url": "dir:/x"}, "streams": {"encode": {"handler": "h:f", "retries": 3}}})
NOW = 1_800_000_000_000


def view(state: State = State.NEW, *, errors: tuple[str, ...] = (), attempt: int = 0, **values: Any) -> JobView:
    job = Delivery(attempt=attempt or len(errors), errors=errors).onto(make_job("j", "encode"))
    return JobView(job=job, state=state, **values)


def ended(status: str = "blocked", at_ms: int = NOW, **dossier: Any) -> JobView:
    signal = SignalFile(job_id=make_job("j").id, status=ObservationStatus(status), completed_at=HLC(at_ms, 0, 1))
    return view(State.DONE, signal=signal, dossier=dossier or None)


def record_of(at_ms: int, status: str = "blocked") -> str:
    return json.dumps({"status": status, "completed_at": {"physical_time": at_ms, "logical_count": 0, "node_id": 1}})


def scene(pools: list[Pool] | None = None, pause: Pause | None = None) -> Scene:
    return Scene(pools=pools or [], pause=pause, config=CONFIG, now_ms=NOW)


def said(view: JobView, scene: Scene) -> str:
    return "\n".join(f"{label} {text}" for label, text in tell(view, scene))


@pytest.fixture
def rows(tmp_path: Any) -> Any:
    """Rows of a board, by what their owners (all of them this process) say."""
    board = Board.create(str(tmp_path), 8)
    taken = iter(range(8))

    def make(kind: Kind, name: str, *, job: str = "", **texts: str) -> RowView:
        row = board.row(next(taken))
        row.take(kind=kind, stream="encode", name=name)
        row.say(**texts)
        if job:
            row.start_job(job)
        return row.view()

    yield make
    board.close()


def pool(stream: RowView, *workers: RowView, alive: bool = True) -> Pool:
    header = BoardHeader(
        **{field.name: None for field in dataclasses.fields(BoardHeader)} | {"pid": os.getpid(), "created_ms": NOW}  # type: ignore[arg-type]
    )
    streams = (StreamRows(row=stream, workers=workers, alive=alive),)
    return Pool(header=header, alive=alive, same_boot=True, master=None, streams=streams)


# -- failed runs


def test_each_failed_run_is_told_with_its_time_and_its_error():
    runs = [{"run": 1, "ended_ms": NOW - 60_000, "seconds": 1.5}, {"run": 2, "ended_ms": NOW}]
    story = said(ended(cause="retries exhausted", errors=["E: a", "F: b"], attempts=2, crashes=0, runs=runs), scene())
    assert "failed 2 runs" in story
    assert "after 1.5s: E: a" in story
    assert "F: b" in story
    assert "because retries exhausted: every run failed, and no more are allowed (retries = 3)" in story


def test_an_error_that_came_again_is_not_told_twice():
    story = said(view(State.LATER, errors=("E: a\n  where", "E: a\n  where", "F"), retry=True, due_ms=NOW + 1), scene())
    assert story.count("  where") == 1
    assert "run 2 as run 1: E: a" in story
    assert "run 3 F" in story


def test_runs_whose_errors_are_not_kept_are_counted():
    story = said(view(State.LATER, errors=("E",) * 5, attempt=7, retry=True, due_ms=NOW + 1), scene())
    assert "failed 7 runs; of the first 2 no more is kept" in story
    assert "run 3 E" in story


def test_a_job_that_was_found_in_a_batch_says_so():
    facts = {"errors": ["E"], "attempts": 1, "crashes": 0, "runs": [{"run": 1, "ended_ms": NOW, "halved_from": 8}]}
    assert "a batch of 8 jobs failed and was halved" in said(ended(cause="retries exhausted", **facts), scene())


@pytest.mark.parametrize(
    ("dossier", "sentence"),
    [
        ({"cause": "crashed too often"}, "crashed too often: its runs killed their workers, and it is not let near"),
        ({"cause": "discarded by its handler"}, "no run can succeed"),
        ({"ended": "cancelled", "was": "pending"}, "cancelled by a person before it ran; it was pending"),
        ({"ended": "unknown", "error": "fsck: half a record"}, "fsck: half a record"),
        ({"cause": "a\x1b[2Jword"}, "a\\x1b[2Jword"),
        ({}, "that is what its handler returned, or whoever replied for it"),
    ],
)
def test_why_a_job_is_blocked_is_said_in_a_sentence(dossier: dict[str, Any], sentence: str):
    assert sentence in said(ended(**dossier), scene())


@pytest.mark.parametrize("status", ["needs_context", "done_with_concerns"])
def test_an_end_that_a_handler_chose_is_told_as_its_choice(status: str):
    assert "its handler returned; it is never tried again by itself" in said(ended(status), scene())


def test_a_plain_success_has_no_reason_and_nothing_to_type():
    assert "because" not in said(ended("done"), scene())
    assert next_steps(ended("done"), scene()) == []


# -- retried by a person

BLOCKED_BEFORE = {
    "cause": "retries exhausted",
    "error": "E: then",
    "errors": ["E: then"],
    "attempts": 4,
    "crashes": 0,
    "blocked_at_ms": NOW - 9000,
    "earlier_ends": [record_of(NOW - 8999)],
}


def test_what_a_job_had_ended_with_before_it_was_retried_is_not_told_as_its_end_now():
    story = said(ended("done", **BLOCKED_BEFORE), scene())
    assert "earlier it ended blocked" in story
    assert "E: then" in story
    assert "because" not in story
    assert "failed 4 runs" not in story
    told = details(ended("done", **BLOCKED_BEFORE), scene())
    assert (told["failed_runs"], told["errors"], told["cause"]) == (0, [], None)
    assert [end["status"] for end in told["earlier_ends"]] == ["blocked"]


def test_a_job_that_was_retried_and_is_blocked_again_tells_its_second_end():
    again = BLOCKED_BEFORE | {"error": "F: now", "errors": ["F: now"], "attempts": 1, "blocked_at_ms": NOW}
    record = Record.of(ended(**again))
    assert (record.attempts, record.errors, dict(record.before)) == (1, ["F: now"], {})
    story = said(ended(**again), scene())
    assert "earlier it ended blocked" in story
    assert "F: now" in story


def test_a_pending_job_that_was_retried_counts_from_0():
    record = Record.of(view(dossier=BLOCKED_BEFORE))
    assert (record.attempts, record.crashes, record.runs) == (0, 0, ())


def test_records_that_are_damaged_are_shown_as_they_are():
    hurt: dict[str, Any] = {"earlier_ends": ["{\x1b"], "runs": [1, {}, {"run": "x"}], "errors": "?", "attempts": "many"}
    story = said(ended(**hurt), scene())
    assert "a record that cannot be read: {\\x1b" in story
    assert "failed" not in story


# -- waiting


def test_why_a_job_waits(rows: Any):
    job = view().job
    assert why_waiting(job, scene()) == "no pool works its stream now"
    other = dataclasses.replace(rows(Kind.STREAM, "o", state="running"), stream="other")
    assert "does not work this stream" in why_waiting(job, scene([pool(other)]))
    stream = rows(Kind.STREAM, "s", state="running", lease="held")
    busy, idle = rows(Kind.WORKER, "encode-1", state="ready", job="older"), rows(Kind.WORKER, "e", state="ready")
    assert "1 of 2 workers busy" in why_waiting(job, scene([pool(stream, busy, idle)]))
    assert why_waiting(job, scene([pool(stream, idle)])) == "about to be claimed"
    failing = rows(Kind.STREAM, "s", state="failing", error="no module nosuch")
    assert "failing: no module nosuch" in why_waiting(job, scene([pool(failing)]))
    stopping = rows(Kind.STREAM, "s", state="stopping")
    assert "process is stopping" in why_waiting(job, scene([pool(stopping)]))
    paused = scene([pool(stream, idle)], Pause(stream="encode", since_ms=NOW - 60_000, user="ann"))
    assert "paused by ann since" in why_waiting(job, paused)
    assert "(1m ago)" in why_waiting(job, paused)
    assert "workerpool resume encode" in next_steps(view(), paused)[0]


def test_a_retry_that_is_due_says_which_run_it_will_be_and_that_nobody_would_run_it(rows: Any):
    waiting = view(State.LATER, errors=("E",), retry=True, due_ms=NOW + 60_000)
    story = said(waiting, scene())
    assert "waits for run 2 of at most 4; due" in story
    assert "(in 1m)" in story
    assert "it will not be run then as things are: no pool works its stream now" in story
    worked = said(waiting, scene([pool(rows(Kind.STREAM, "s", state="running", lease="held"))]))
    assert "as things are" not in worked


# -- running


def test_a_running_job_tells_where_it_runs_and_which_run_it_is(rows: Any):
    stream = rows(Kind.STREAM, "s", state="running", lease="held")
    story = said(view(State.CUR, errors=("E",)), scene([pool(stream, rows(Kind.WORKER, "encode-1", job="j"))]))
    assert f"running in encode-1 (pid {os.getpid()}) for" in story
    assert "run 2 of at most 4" in story


def test_a_worker_that_has_outlived_its_master_still_runs_its_job(rows: Any):
    stream, worker = rows(Kind.STREAM, "s", state="running"), rows(Kind.WORKER, "encode-1", job="j")
    left = said(view(State.CUR), scene([pool(stream, worker, alive=False)]))
    assert "still running in encode-1" in left
    assert "again" not in left
    gone = dataclasses.replace(worker, pid=2**22 + 1)
    assert "the next pool runs it again" in said(view(State.CUR), scene([pool(stream, gone, alive=False)]))


def test_a_claimed_job_tells_who_has_it(rows: Any):
    stream = rows(Kind.STREAM, "s", state="running", lease="held")
    assert f"claimed by its stream's process (pid {os.getpid()})" in said(view(State.CUR), scene([pool(stream)]))
    assert "the next pool runs it again" in said(view(State.CUR), scene())
