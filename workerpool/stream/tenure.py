"""Holding a stream's lease: winning it, renewing it, and noticing that it is lost or cannot be renewed.

STANDBY ──won──▶ HOLDING ──LeaseLost──▶ STANDBY
                    │ no heartbeat could be written for a ttl
                    ▼
                 FENCED (claims nothing; a heartbeat that succeeds makes it HOLDING again)
"""

from __future__ import annotations

import enum
import logging

from queuekit import LeaseLost, QueueError
from queuekit.contract import Lease

_log = logging.getLogger("workerpool.stream")
STANDBY_SECONDS = 1.0


class Phase(enum.StrEnum):
    """Where this process stands with its stream's lease; the words appear in `status`."""

    STANDBY = "standby"
    HOLDING = "held"
    FENCED = "fenced"


class Tenure:
    """The lease of one stream over time. Times are monotonic seconds.

    `holder`: the owner that the lease named before the last try to win it; `predecessor`: that one, once it was won;
    `error`: why the last heartbeat could not be written, None when it was.
    """

    def __init__(self, lease: Lease, ttl: float, beat_every: float) -> None:
        self.lease = lease
        self.phase = Phase.STANDBY
        self.holder: str | None = None
        self.predecessor: str | None = None
        self.error: Exception | None = None
        self._ttl = ttl
        self._beat_every = beat_every
        self._next = 0.0
        self._renewed = 0.0

    @property
    def may_claim(self) -> bool:
        """Whether new jobs may be claimed."""
        return self.phase is Phase.HOLDING

    @property
    def is_standby(self) -> bool:
        """Whether somebody else has the lease, or nobody."""
        return self.phase is Phase.STANDBY

    def next_act(self) -> float:
        """When `act` wants to be called again."""
        return self._next

    def act(self, now: float) -> bool:
        """Try to win the lease, or renew it, when it is time; True when it was just won.

        Raises `LeaseLost` when it was lost; then it is standby again. Another `QueueError` comes from a try that could
        not be made; the next one is due a moment later.
        """
        if now < self._next:
            return False
        return self._try(now) if self.phase is Phase.STANDBY else self._renew(now)

    def _try(self, now: float) -> bool:
        self._next = now + STANDBY_SECONDS
        self.holder = self.lease.holder()
        if not self.lease.try_acquire():
            return False
        self.phase, self.predecessor, self.error = Phase.HOLDING, self.holder, None
        self._renewed, self._next = now, now + self._beat_every
        return True

    def _renew(self, now: float) -> bool:
        self._next = now + self._beat_every
        try:
            self.lease.heartbeat()
        except LeaseLost:
            self.lost(now)
            raise
        except (QueueError, OSError) as error:
            self.error = error
            self._next = now + min(self._beat_every, STANDBY_SECONDS)
            if self.phase is Phase.HOLDING and now - self._renewed > self._ttl:
                self.phase = Phase.FENCED
                _log.error("no heartbeat could be written for %.0f s: claiming stops. %s", self._ttl, error)
            return False
        if self.phase is Phase.FENCED:
            _log.warning("heartbeats can be written again: claiming goes on")
        self.phase, self._renewed, self.error = Phase.HOLDING, now, None
        return False

    def is_due_soon(self, now: float) -> bool:
        """Whether a heartbeat had better be written before something that takes long."""
        return self.phase is not Phase.STANDBY and now - self._renewed > self._beat_every / 2

    def hurry(self) -> None:
        """Let the next `act` renew at once."""
        self._next = 0.0

    def lost(self, now: float) -> None:
        """Somebody else has it."""
        self.phase = Phase.STANDBY
        self._next = now + STANDBY_SECONDS

    def release(self) -> None:
        """Give it up: the last act of a process that ends in order."""
        if self.phase is not Phase.STANDBY:
            self.lease.release()
            self.phase = Phase.STANDBY
