"""What every part of the contract starts from: backends on one empty store, and a few readings of it."""

from __future__ import annotations

from typing import ClassVar, Protocol

import pytest

from queuekit.contract import QueueBackend, Tally
from queuekit.lifecycle import State


class Opener(Protocol):
    """Opens one more backend on the store of this test."""

    def __call__(self, *, max_job_bytes: int = ...) -> QueueBackend:
        """A backend with claims of its own."""


class Contract:
    """The base of the parts. `backend` is the consumer under test, `peer` another one of the same store.

    `shares_streams`: whether the store can let many consumers work one stream (`lease(…, exclusive=False)`).
    `ids_are_unique`: whether it has room for one job of an id only; else for one of each stream, id and time.
    """

    shares_streams: ClassVar[bool] = False
    ids_are_unique: ClassVar[bool] = False

    @pytest.fixture
    def open_backend(self) -> Opener:
        """To be replaced."""
        raise NotImplementedError("say how a backend is opened")

    @pytest.fixture
    def backend(self, open_backend: Opener) -> QueueBackend:
        """The consumer under test."""
        return open_backend()

    @pytest.fixture
    def peer(self, open_backend: Opener) -> QueueBackend:
        """Another consumer of the same store."""
        return open_backend()


def counts(backend: QueueBackend, stream: str | None = None) -> tuple[int, int, int, int]:
    """`(pending, in flight, retrying, scheduled)`, of one look."""
    tally: Tally = backend.tally(stream)
    return tally.pending, tally.in_flight, tally.retrying, tally.scheduled


def state_of(backend: QueueBackend, job_id: str) -> State | None:
    """Where a job is; None when it is not known."""
    view = backend.look_up(job_id)
    return view.state if view else None
