"""The second half of a job's journey: from a worker's result to the store, for all results of a turn together.

    results ─▶ decide (policy.settle) ─▶ submit follow-ups ─▶ reply ─▶ defer

Follow-up jobs are durable before the parent's reply. What the store cannot take now (a full disk, a lock) is kept and
tried again: the handler is never run again for that. Nothing here decides: `workerpool.policy` does.
"""

from __future__ import annotations

import dataclasses
import logging
import random
from collections.abc import Callable

from queuekit import Claimed, Completion, Job, JobNotFound, QueueKit, WriteFailed, decode_job
from queuekit.clock import now_ms
from queuekit.contract import Lease
from queuekit.job import Delivery
from queuekit.status import ObservationStatus
from workerpool.config import StreamConfig
from workerpool.outcome import Result
from workerpool.policy import Block, Decision, Reply, RetryAt, settle, settle_crash

_log = logging.getLogger("workerpool.stream")


@dataclasses.dataclass(slots=True)
class Counts:
    """What became of this process's jobs."""

    done: int = 0
    retried: int = 0
    blocked: int = 0
    crashes: int = 0


@dataclasses.dataclass(slots=True)
class _Settlement:
    """One job with its decision; `submitted`: follow-ups that are not durable yet."""

    claimed: Claimed
    decision: Decision
    submitted: list[Job]


class Journey:
    """Settles jobs of one stream under one lease."""

    def __init__(self, queue: QueueKit, config: StreamConfig, rand: Callable[[], float] = random.random) -> None:
        self.config = config
        self.counts = Counts()
        self._queue = queue
        self._rand = rand
        self._open: list[_Settlement] = []

    @property
    def waiting(self) -> int:
        """How many jobs have a result that the store has not taken yet."""
        return len(self._open)

    def job_ids(self) -> set[str]:
        """The jobs that have a result that the store has not taken yet."""
        return {each.claimed.job.id for each in self._open}

    def ended(self, claimed: Claimed, result: Result) -> None:
        """Note how a run ended; `carry_out` brings it to the store."""
        decision = settle(result, Delivery.of(claimed.job), self.config, now_ms(), self._rand())
        self._open.append(_Settlement(claimed, decision, [decode_job(data) for data in result.submitted]))

    def crashed(self, claimed: Claimed, error: str) -> None:
        """Note that the job's worker died while it ran."""
        self.counts.crashes += 1
        decision = settle_crash(Delivery.of(claimed.job), error, self.config, now_ms(), self._rand())
        self._open.append(_Settlement(claimed, decision, []))

    def forget(self) -> None:
        """The lease is lost: every claim is somebody else's, and so is what becomes of it."""
        if self._open:
            _log.warning("dropped the results of %d jobs: the lease is lost", len(self._open))
        self._open.clear()

    def carry_out(self, lease: Lease) -> None:
        """Bring everything to the store. Raises `LeaseLost`, or a `QueueError` after which what is left stays open."""
        if not self._open:
            return
        self._submit()
        self._reply(lease)
        self._defer(lease)

    # -- follow-ups

    def _submit(self) -> None:
        jobs = [job for each in self._open for job in each.submitted]
        if not jobs:
            return
        try:
            self._queue.send_batch(jobs)
        except WriteFailed as error:
            if error.__cause__ is not None:
                raise
            self._submit_one_by_one()
        for each in self._open:
            each.submitted = []

    def _submit_one_by_one(self) -> None:
        """A follow-up that can never be sent fails its parent's run, and only that."""
        for position, each in enumerate(self._open):
            try:
                self._queue.send_batch(each.submitted)
            except WriteFailed as error:
                if error.__cause__ is not None:
                    raise
                failed = Result.failed(f"a follow-up job could not be sent: {error}")
                decision = settle(failed, Delivery.of(each.claimed.job), self.config, now_ms(), self._rand())
                self._open[position] = _Settlement(each.claimed, decision, [])

    # -- ends

    def _reply(self, lease: Lease) -> None:
        ending = [each for each in self._open if not isinstance(each.decision, RetryAt)]
        if not ending:
            return
        self._queue.reply_batch([_completion(each) for each in ending], lease=lease)
        for each in ending:
            if isinstance(each.decision, Block):
                self.counts.blocked += 1
                block = each.decision
                _log.error("job %s is blocked (%s): %s", each.claimed.job.id, block.cause, _line(block.error))
            elif isinstance(each.decision, Reply) and each.decision.status is ObservationStatus.BLOCKED:
                self.counts.blocked += 1
            else:
                self.counts.done += 1
        self._open = [each for each in self._open if isinstance(each.decision, RetryAt)]

    # -- retries

    def _defer(self, lease: Lease) -> None:
        while self._open:
            each = self._open[-1]
            if not isinstance(each.decision, RetryAt):
                return
            decision, job = each.decision, each.claimed.job
            try:
                self._queue.backend.defer(
                    job.id, decision.due_ms, error=decision.error, crashed=decision.crashed, lease=lease
                )
            except JobNotFound:
                _log.warning("dropped the result of job %s: it is not in flight here any more", job.id)
            else:
                self.counts.retried += 1
                wait = max(0, decision.due_ms - now_ms()) / 1000
                _log.warning("job %s failed, again in %.1f s: %s", job.id, wait, _line(decision.error))
            self._open.pop()


def _completion(settlement: _Settlement) -> Completion:
    job, decision = settlement.claimed.job, settlement.decision
    if isinstance(decision, Block):
        return Completion(job.id, ObservationStatus.BLOCKED, (), decision.dossier())
    if isinstance(decision, Reply):
        return Completion(job.id, decision.status, decision.artifacts)
    raise AssertionError(decision)


def _line(error: str) -> str:
    """The last line that says something: of a traceback, the error itself."""
    return next((line.strip() for line in reversed(error.splitlines()) if line.strip()), "")
