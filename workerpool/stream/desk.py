"""What the parts of a stream process share: the values that each of them reads, in one place.

The loop makes one `Desk` and hands it to its parts. A part acts when its turn comes (`act(now)`, monotonic seconds) and
says when it wants the next one (`next(now)`; None: only after an event). `LeaseLost` may leave any of them: the loop
catches it, and everything that is here is given up. Other errors of the store stay in the part that met them.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

from queuekit import QueueError, QueueKit
from queuekit.contract import Lease, QueueBackend
from workerpool.board import Row
from workerpool.config import PoolConfig, StreamConfig
from workerpool.process import Channel
from workerpool.stream.crew import Crew
from workerpool.stream.inline import Inline
from workerpool.stream.journey import Journey
from workerpool.stream.state import Roster
from workerpool.stream.tenure import Tenure
from workerpool.trouble import Troubles

STORE_ERRORS = (QueueError, OSError)
"""What a store may raise; an `OSError` is one that nobody has translated, and no reason to die."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Desk:
    """One stream at work.

    `quiet`: nothing is claimed, as the master was told; `paused`: the same, as a person has said for this stream, None
    until that is known; `full`: the same, for the disk has no room; `stopping`: nothing is claimed or started any more.
    """

    config: StreamConfig
    pool: PoolConfig
    queue: QueueKit
    row: Row
    master: Channel
    crew: Crew | Inline
    roster: Roster
    journey: Journey
    tenure: Tenure
    troubles: Troubles = dataclasses.field(default_factory=Troubles)
    quiet: bool = False
    paused: bool | None = None
    full: bool = False
    stopping: bool = False
    taken_over: bool = False

    @property
    def stream(self) -> str:
        """The stream's name."""
        return self.config.name

    @property
    def backend(self) -> QueueBackend:
        """The store."""
        return self.queue.backend

    @property
    def lease(self) -> Lease:
        """The stream's lease."""
        return self.tenure.lease

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Around what settles jobs: the board counts what became of them, also when it is cut short by an error."""
        before = dataclasses.replace(self.journey.counts)
        try:
            yield
        finally:
            after = self.journey.counts
            self.row.add(
                jobs_done=after.done - before.done,
                jobs_retried=after.retried - before.retried,
                jobs_blocked=after.blocked - before.blocked,
            )

    @property
    def may_claim(self) -> bool:
        """Whether jobs may be claimed now."""
        held_back = self.stopping or self.quiet or self.full or self.paused is not False
        return self.tenure.may_claim and self.taken_over and not held_back
