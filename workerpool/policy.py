"""What happens to a job after a run, and when a dead process is started again: decisions only, no clock, no dice.

`settle` answers one of three things, and the stream process does it:

* `Reply`: the job has ended; write its signal;
* `RetryAt`: the run failed and another is allowed; defer the job until then;
* `Block`: no further run; end the job as `blocked`, its dossier written first.

A job runs at most `retries + 1` times, whatever ended its runs. Between two runs lies the backoff: it doubles with
each failed run up to `max_backoff`, and of that a random part between a half and the whole is waited, so that jobs
which failed together do not come back together. `Retry(after=…)` replaces the backoff, never the count.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import Any

from queuekit.completion import ArtifactRef
from queuekit.job import Delivery
from queuekit.status import ObservationStatus
from workerpool.config import StreamConfig
from workerpool.outcome import Result, ResultKind

MAX_RESPAWN_DELAY_ONCE_READY = 2.0
MAX_RESPAWN_DELAY_NEVER_READY = 30.0
_FIRST_DELAY_ONCE_READY = 0.1
_FIRST_DELAY_NEVER_READY = 0.5
_MAX_DOUBLINGS = 60


class BlockCause(enum.StrEnum):
    """Why a job will not run again."""

    EXHAUSTED = "retries exhausted"
    CRASHED = "crashed too often"
    DISCARDED = "discarded by its handler"
    UNDEFERRABLE = "cannot be put off"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """End the job with this status and these artifacts."""

    status: ObservationStatus
    artifacts: tuple[ArtifactRef, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RetryAt:
    """Defer the job until `due_ms` (ms since the epoch) with one failed run more, a crash if `crashed`."""

    due_ms: int
    error: str
    crashed: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """End the job as `blocked`. `attempts`, `crashes`, `errors`: its delivery record with this run counted in."""

    cause: BlockCause
    error: str
    attempts: int
    crashes: int
    errors: tuple[str, ...]
    at_ms: int

    def dossier(self) -> dict[str, Any]:
        """The facts as JSON values, for the job's dossier."""
        return {
            "cause": self.cause.value,
            "error": self.error,
            "attempts": self.attempts,
            "crashes": self.crashes,
            "errors": list(self.errors),
            "blocked_at_ms": self.at_ms,
        }


Decision = Reply | RetryAt | Block


def settle(result: Result, delivery: Delivery, config: StreamConfig, now_ms: int, rand: float) -> Decision:
    """What to do with a job after a run that reported `result`.

    `delivery`: its record before this run; `now_ms`: ms since the epoch; `rand`: a random number in [0, 1).
    """
    if result.status is not None:
        return Reply(status=result.status, artifacts=result.artifacts)
    after = delivery.failed(result.error)
    if result.kind is ResultKind.DISCARD:
        return _block(BlockCause.DISCARDED, result.error, after, now_ms)
    if after.attempt > config.retries:
        return _block(BlockCause.EXHAUSTED, result.error, after, now_ms)
    delay = retry_delay(after.attempt, config, rand) if result.retry_after is None else result.retry_after
    return RetryAt(due_ms=now_ms + math.ceil(delay * 1000), error=result.error)


def settle_crash(delivery: Delivery, error: str, config: StreamConfig, now_ms: int, rand: float) -> RetryAt | Block:
    """What to do with the job that was running when its worker or stream process died; arguments as in `settle`.

    Not for a worker that the pool killed to stop or to give up its lease: that charges nobody.
    """
    after = delivery.failed(error, crashed=True)
    if after.crashes >= config.max_crashes:
        return _block(BlockCause.CRASHED, error, after, now_ms)
    if after.attempt > config.retries:
        return _block(BlockCause.EXHAUSTED, error, after, now_ms)
    delay = retry_delay(after.attempt, config, rand)
    return RetryAt(due_ms=now_ms + math.ceil(delay * 1000), error=error, crashed=True)


def cannot_wait(retry: RetryAt, delivery: Delivery, why: str, now_ms: int) -> Block:
    """What to do instead of a retry that the store can never put off, `why` says for what reason: no further run.

    `delivery`: the job's record before the run that failed; `now_ms`: ms since the epoch.
    """
    after = delivery.failed(retry.error, crashed=retry.crashed)
    return _block(BlockCause.UNDEFERRABLE, f"{why}; its run had failed: {retry.error}", after, now_ms)


def retry_delay(failed_runs: int, config: StreamConfig, rand: float) -> float:
    """Seconds to wait after the `failed_runs`-th failed run (from 1): jitter included, never over `max_backoff`."""
    longest = min(config.max_backoff, _doubled(config.backoff, failed_runs - 1))
    return longest * (0.5 + rand / 2)


def respawn_delay(failures: int, ever_ready: bool) -> float:
    """Seconds to wait before a process is started again.

    `failures`: its deaths in a row, this one included; `ever_ready`: whether it became ready in that row. One that had
    been ready starts at once the first time, then ever later, at most 2 s; one that never was, at most 30 s.
    """
    if failures <= 0:
        return 0.0
    if not ever_ready:
        return min(MAX_RESPAWN_DELAY_NEVER_READY, _doubled(_FIRST_DELAY_NEVER_READY, failures - 1))
    if failures == 1:
        return 0.0
    return min(MAX_RESPAWN_DELAY_ONCE_READY, _doubled(_FIRST_DELAY_ONCE_READY, failures - 2))


def _doubled(seconds: float, times: int) -> float:
    return float(seconds * 2.0 ** min(max(times, 0), _MAX_DOUBLINGS))


def _block(cause: BlockCause, error: str, after: Delivery, now_ms: int) -> Block:
    return Block(
        cause=cause, error=error, attempts=after.attempt, crashes=after.crashes, errors=after.errors, at_ms=now_ms
    )
