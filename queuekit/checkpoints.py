"""Checkpoints: what long work keeps in the store, to go on after it was cut off. The contract and the shape; no I/O.

    store = queue.checkpoints
    seen = store.read("import-2026", "encode")                      # None at first
    for batch in batches_after(seen):
        queue.send_batch(batch)
        if not store.compare_and_swap("import-2026", "encode", seen, batch.place):
            break                                                   # somebody else does the same work
        seen = batch.place
    store.delete("import-2026", "encode")

A checkpoint is a few bytes under an id in a stream. It is no job: it is never claimed, counted, listed or pruned, and
it stays until it is deleted. Nobody locks it. Who writes says what it has read before, and loses when somebody else was
there meanwhile; so of several that do the same work only one advances the checkpoint at a time.

In a database it is a row among the jobs, so **its id must be one that no job has**, and no checkpoint of another
stream: there such a write is refused. A folder and the memory have room for all of them, so that only shows when the
work moves to a database. Everywhere it has the shape of a job, and what can be in a job can be in it.
"""

from __future__ import annotations

import abc

from queuekit.hlc import HLC
from queuekit.ids import JobID, StreamID
from queuekit.job import Job

PRIORITY = 50
EXTENSIONS = {"retainedCheckpoint": True}
"""How other ports mark the rows that are checkpoints."""


class Checkpoints(abc.ABC):
    """The checkpoints of one store. Safe to use from several threads and processes; errors are `QueueError`s.

    Every method raises `InvalidIdentifier` for an id or stream that no store could hold, and `BackendUnavailable` when
    the store cannot be used now, or when what it holds there is no checkpoint.
    """

    @abc.abstractmethod
    def read(self, id: str, stream: str) -> bytes | None:
        """The payload as it was written last; None when there is no such checkpoint."""

    @abc.abstractmethod
    def compare_and_swap(self, id: str, stream: str, expected: bytes | None, payload: bytes) -> bool:
        """Write `payload` if the checkpoint is just `expected`, or if it is absent and that is None; whether it was.

        Durable when it returns True, as far as the store's durability says; nothing was changed when it returns False.
        Raises `WriteFailed` for a payload larger than the store's `max_job_bytes`, for an id that something else has,
        and when it could not be made durable. What is there after an error, `read` tells.
        """

    @abc.abstractmethod
    def delete(self, id: str, stream: str) -> bool:
        """Remove it, whatever it says; whether it was there. Gone for good when this returns. Raises `WriteFailed`."""

    @abc.abstractmethod
    def list(self, stream: str) -> dict[str, bytes]:
        """The payloads of all checkpoints of a stream, by id."""

    @abc.abstractmethod
    def streams(self) -> set[str]:
        """The streams that have checkpoints."""


def checkpoint_job(id: str, stream: str, payload: bytes, at: HLC) -> Job:
    """A checkpoint in the shape in which it is stored. `at`: when it was first written; that stays."""
    return Job(
        id=JobID(id),
        stream_id=StreamID(stream),
        submitted_at=at,
        priority=PRIORITY,
        payload=payload,
        extensions=EXTENSIONS,
    )


__all__ = ["Checkpoints", "checkpoint_job"]
