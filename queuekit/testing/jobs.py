"""Jobs and waiting for tests: values that say no more than the test means."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from queuekit.hlc import HLC
from queuekit.ids import JobID, StreamID
from queuekit.job import Claimed, Job

EPOCH_MS = 1_700_000_000_000
"""When the first job was sent: long ago, so that nothing here is from the future."""
FAR_MS = 4_000_000_000_000
"""A due time that no test lives to see."""
DEADLINE = 10.0
_count = itertools.count(1)
_guard = threading.Lock()


def make_job(id: str | None = None, stream: str = "encode", *, at: HLC | None = None, **values: Any) -> Job:
    """A job that was sent one millisecond after the last one made here, unless `at` says when."""
    with _guard:
        serial = next(_count)
    return Job(
        id=JobID(id) if id is not None else JobID.generate(),
        stream_id=StreamID(stream),
        submitted_at=at or HLC(EPOCH_MS + serial, 0, 1),
        **values,
    )


def make_jobs(count: int, stream: str = "encode") -> list[Job]:
    """Many jobs, in the order of their timestamps."""
    return [make_job(stream=stream) for _ in range(count)]


def ids_of(jobs: Iterable[Job | Claimed]) -> list[str]:
    """The ids, in order."""
    return [each.job.id if isinstance(each, Claimed) else each.id for each in jobs]


def wait_until(fact: Callable[[], object], deadline: float = DEADLINE) -> None:
    """Return as soon as `fact()` is true; raises `TimeoutError` when it is not within `deadline` seconds."""
    end = time.monotonic() + deadline
    while not fact():
        if time.monotonic() > end:
            raise TimeoutError("it did not become true")
        time.sleep(0.002)
