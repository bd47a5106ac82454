"""What a handler may do through its context."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from queuekit.completion import ArtifactRef
from queuekit.errors import InvalidIdentifier, WriteFailed
from queuekit.hlc import HLC
from queuekit.ids import JobID, StreamID
from queuekit.job import Job
from queuekit.wire import decode_job
from workerpool.worker.context import JobContext, Surroundings, follow_up


def job(id: str = "parent", logical: int = 5) -> Job:
    return Job(id=JobID(id), stream_id=StreamID("encode"), submitted_at=HLC(1000, logical, -3))


def context(*jobs: Job, max_job_bytes: int = 1000, **changes: Any) -> JobContext:
    values = {"stop": lambda: False, "progress": lambda done, total: None, **changes}
    surroundings = Surroundings(max_job_bytes=max_job_bytes, **values)
    return JobContext(jobs or (job(),), surroundings, attempt=2, deadline=None, fence=1)


def submitted(ctx: JobContext, parent: Job | None = None) -> list[Job]:
    return [decode_job(data) for data in ctx.handed(parent or job()).submitted]


def test_a_follow_up_has_the_id_and_time_that_its_place_gives_it() -> None:
    ctx = context()
    first, second = ctx.submit("dreaming", b"1"), ctx.submit("dreaming", b"2", priority=-7, extensions={"k": ["v"]})
    # printf %s parent/dreaming/0 | sha256sum
    assert first == "670c92875e760e155754fd05f0a47ed8"
    assert second == "ea598df1bb8d33f6201a169946065ad1"
    one, two = submitted(ctx)
    assert (one.id, one.stream_id, one.payload, one.priority) == (first, "dreaming", b"1", 50)
    assert (one.submitted_at, two.submitted_at) == (HLC(1000, 6, -3), HLC(1000, 7, -3))
    assert (two.priority, two.extensions) == (-7, {"k": ["v"]})


def test_a_second_run_makes_the_same_jobs() -> None:
    runs = [context(), context()]
    for ctx in runs:
        for stream in ("a", "b", "a"):
            ctx.submit(stream, b"x")
    assert submitted(runs[0]) == submitted(runs[1])
    assert len({made.id for made in submitted(runs[0])}) == 3


def test_the_logical_count_stays_an_int32() -> None:
    assert follow_up(job(logical=2**31 - 2), 0, "s").submitted_at.logical_count == 2**31 - 1
    assert follow_up(job(logical=2**31 - 2), 500, "s").submitted_at.logical_count == 2**31 - 1


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"stream": "a/b", "payload": b""}, InvalidIdentifier),
        ({"stream": "s", "payload": "text"}, WriteFailed),
        ({"stream": "s", "payload": bytes(1001)}, WriteFailed),
        ({"stream": "s", "payload": b"", "priority": 2**63}, WriteFailed),
        ({"stream": "s", "payload": b"", "extensions": {"x": float("nan")}}, WriteFailed),
        ({"stream": "s", "payload": b"", "extensions": {"delivery": {}}}, ValueError),
    ],
)
def test_what_could_not_be_sent_raises_at_once_and_takes_no_place(
    arguments: dict[str, Any], error: type[Exception]
) -> None:
    ctx = context()
    with pytest.raises(error):
        ctx.submit(**arguments)
    assert submitted(ctx) == []
    assert ctx.submit("dreaming", b"") == "670c92875e760e155754fd05f0a47ed8"


def test_something_else_than_an_artifact_is_refused() -> None:
    with pytest.raises(TypeError):
        context().artifact("/a/path")  # type: ignore[arg-type]


def test_in_a_batch_the_job_must_be_named() -> None:
    ctx = context(job("a"), job("b"))
    with pytest.raises(ValueError, match="several jobs"):
        ctx.submit("s", b"")
    with pytest.raises(ValueError, match="several jobs"):
        ctx.artifact(ArtifactRef.file_path("/x"))
    with pytest.raises(ValueError, match="not one of this run's"):
        ctx.submit("s", b"", parent=job("c"))
    ctx.submit("s", b"1", parent=job("b"))
    assert [len(submitted(ctx, job(id))) for id in ("a", "b")] == [0, 1]


def test_progress_and_the_wish_to_stop_pass_through() -> None:
    calls: list[tuple[int, int]] = []
    wishes = iter([False, True])
    ctx = context(stop=lambda: next(wishes), progress=lambda done, total: calls.append((done, total)))
    ctx.progress(1, 2)
    assert calls == [(1, 2)]
    assert [ctx.should_stop, ctx.should_stop] == [False, True]


def test_log_records_carry_the_job(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        context().logger.info("half way")
    (record,) = caplog.records
    assert record.name == "workerpool.handler.encode"
    assert (vars(record)["job_id"], vars(record)["stream"], vars(record)["attempt"]) == ("parent", "encode", 2)
