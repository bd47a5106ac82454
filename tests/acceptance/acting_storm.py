"""Handlers for a storm of kills (storm.py): short work of every kind, and each run says how it ended.

A payload is a JSON object: `seconds` of work, `fail` so many runs first, `retry` likewise but by `Retry`, `submit` a
follow-up job into that stream. History lines: `start`, then `end`, or `failed` when the handler raised.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from acting import note

from queuekit import Job
from workerpool import JobContext, Retry


def act(job: Job, ctx: JobContext) -> None:
    """One job."""
    with noted([job], ctx):
        perform(json.loads(job.payload), job, ctx)


async def act_async(job: Job, ctx: JobContext) -> None:
    """The same in a coroutine."""
    await asyncio.sleep(0)
    act(job, ctx)


def act_together(jobs: list[Job], ctx: JobContext) -> None:
    """A batch: all of it runs from the first one's start to the last one's end, and fails with one of them."""
    with noted(jobs, ctx):
        for job in jobs:
            perform(json.loads(job.payload), job, ctx)


@contextmanager
def noted(jobs: Sequence[Job], ctx: JobContext) -> Iterator[None]:
    """Note the start of these jobs' run, and how it ended."""
    for job in jobs:
        note("start", job.id, job.stream_id)
    try:
        yield
    except Exception:
        for job in jobs:
            note("failed", job.id, job.stream_id)
        raise
    for job in jobs:
        note("end", job.id, job.stream_id)


def perform(told: dict[str, Any], job: Job, ctx: JobContext) -> None:
    """What one payload says."""
    time.sleep(told.get("seconds", 0))
    if ctx.attempt <= told.get("fail", 0):
        raise ValueError("not yet")
    if ctx.attempt <= told.get("retry", 0):
        raise Retry(after=0.05)
    if "submit" in told:
        ctx.submit(told["submit"], b"{}", parent=job)
