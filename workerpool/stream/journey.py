"""The second half of a job's journey: from a worker's result to the store, for all results of a turn together.

    results ─▶ decide (policy.settle) ─▶ submit follow-ups ─▶ reply ─▶ defer

Follow-up jobs are durable before the parent's reply. What the store cannot take now (a full disk, a lock) is kept and
tried again: the handler is never run again for that. Only what the store can never take becomes a failed run of the job
that it came from, and a job that can never be put off ends blocked instead. A call takes about `TURN_SECONDS` at most
and leaves the rest for the next one, so that the caller comes to its heartbeat. Nothing here decides:
`workerpool.policy` does.
"""

from __future__ import annotations

import dataclasses
import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from queuekit import Claimed, Completion, DecodingFailed, Job, JobNotFound, LeaseLost, QueueError, QueueKit, decode_job
from queuekit.clock import now_ms
from queuekit.contract import Lease
from queuekit.errors import InvalidIdentifier, InvalidTerminalStatus, WriteFailed
from queuekit.job import Delivery
from queuekit.status import ObservationStatus
from workerpool.config import StreamConfig
from workerpool.outcome import Result
from workerpool.policy import Block, Decision, Reply, RetryAt, cannot_wait, settle, settle_crash

_log = logging.getLogger("workerpool.stream")
_FOLLOW_UPS_AT_ONCE = 2000
_RUNS_KEPT = 5
_JOBS_KEPT = 10_000
TURN_SECONDS = 0.5


@dataclasses.dataclass(slots=True)
class Counts:
    """What became of this process's jobs. `dropped`: results of jobs that were not in flight here any more."""

    done: int = 0
    retried: int = 0
    blocked: int = 0
    dropped: int = 0
    crashes: int = 0

    @property
    def handled(self) -> int:
        """How many runs of jobs are dealt with; the follow-ups of a dropped one have been sent, too."""
        return self.done + self.retried + self.blocked + self.dropped


@dataclasses.dataclass(slots=True, eq=False)
class _Settlement:
    """One job with its decision.

    `submitted`: follow-ups that are not durable yet; `run`: what is known of the run that this is the result of;
    `runs`: the failed ones that this process has seen, for people.
    """

    claimed: Claimed
    decision: Decision
    submitted: list[Job]
    run: dict[str, Any]
    runs: list[dict[str, Any]]


class Journey:
    """Settles jobs of one stream under one lease.

    `rand`: a random number in [0, 1), for the jitter; `clock`: monotonic seconds.
    """

    def __init__(
        self,
        queue: QueueKit,
        config: StreamConfig,
        rand: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.counts = Counts()
        self._queue = queue
        self._rand = rand
        self._clock = clock
        self._open: list[_Settlement] = []
        self._failed_runs: dict[str, list[dict[str, Any]]] = {}

    @property
    def waiting(self) -> int:
        """How many jobs have a result that the store has not taken yet."""
        return len(self._open)

    def ended(self, claimed: Claimed, result: Result, halved_from: int = 0) -> None:
        """Note how a run ended; `carry_out` brings it to the store.

        `halved_from`: how many jobs the batch had that failed as a whole and was halved down to this run.
        """
        try:
            submitted = [decode_job(data) for data in result.submitted]
        except DecodingFailed as error:
            result, submitted = Result.failed(f"a follow-up job cannot be read: {error}"), []
        self._note(claimed, self._decide(claimed, result), submitted, result.run_seconds, halved_from)

    def crashed(self, claimed: Claimed, error: str, halved_from: int = 0) -> None:
        """Note that the job's worker died while it ran; `halved_from` as in `ended`."""
        self.counts.crashes += 1
        decision = settle_crash(Delivery.of(claimed.job), error, self.config, now_ms(), self._rand())
        self._note(claimed, decision, [], None, halved_from)

    def _note(
        self, claimed: Claimed, decision: Decision, submitted: list[Job], seconds: float | None, halved_from: int
    ) -> None:
        """Open the job's settlement, with what is known of its runs."""
        before = Delivery.of(claimed.job).attempt
        runs = [run for run in self._failed_runs.pop(claimed.job.id, []) if run["run"] <= before]
        run: dict[str, Any] = {"run": before + 1, "ended_ms": now_ms()}
        run |= {} if seconds is None else {"seconds": round(seconds, 3)}
        run |= {"halved_from": halved_from} if halved_from else {}
        each = _Settlement(claimed, decision, submitted, run, runs)
        if not isinstance(decision, Reply):
            self._tell_failed(each)
        self._open.append(each)

    def _tell_failed(self, each: _Settlement) -> None:
        """Its run is one of the failed ones, which are told at the job's end; a retry's are kept for that."""
        each.runs = [*each.runs, each.run][-_RUNS_KEPT:]
        if isinstance(each.decision, RetryAt):
            self._failed_runs[each.claimed.job.id] = each.runs
            if len(self._failed_runs) > _JOBS_KEPT:
                del self._failed_runs[next(iter(self._failed_runs))]

    def claimed(self, again: Sequence[Claimed]) -> None:
        """Note that these were claimed just now: a result of an earlier run that is still open is none of theirs.

        Such a job has moved on although the store did not say so: its end was retried, or its retry was due already.
        """
        fresh = {(each.job.id, each.job.submitted_at) for each in again}
        late = [each for each in self._open if (each.claimed.job.id, each.claimed.job.submitted_at) in fresh]
        for each in late:
            _log.warning("dropped the result of an earlier run of job %s: it runs again", each.claimed.job.id)
        self.counts.dropped += len(late)
        self._take_off(late)

    def forget(self) -> None:
        """The lease is lost: every claim is somebody else's, and so is what becomes of it."""
        if self._open:
            _log.warning("dropped the results of %d jobs: the lease is lost", len(self._open))
        self._open.clear()

    def carry_out(self, lease: Lease) -> None:
        """Bring to the store what there is time for; look at `waiting` for the rest.

        Raises `LeaseLost`, or a `QueueError` after which what is left stays open.
        """
        until = self._clock() + TURN_SECONDS
        self._submit(until)
        self._reply(lease)
        self._defer(lease, until)

    def _decide(self, claimed: Claimed, result: Result) -> Decision:
        return settle(result, Delivery.of(claimed.job), self.config, now_ms(), self._rand())

    def _refuse(self, each: _Settlement, what: str, error: QueueError) -> None:
        """Its success cannot be written down, now or ever: that makes it a failed run."""
        each.decision = self._decide(each.claimed, Result.failed(f"{what}: {error}"))
        each.submitted = []
        self._tell_failed(each)

    # -- follow-ups

    def _submit(self, until: float) -> None:
        while portion := self._next_portion():
            try:
                self._queue.send_batch([job for each, count in portion for job in each.submitted[:count]])
            except (WriteFailed, InvalidIdentifier) as error:
                if not _is_final(error):
                    raise
                for each, count in portion:
                    self._submit_one_by_one(each, count)
            else:
                for each, count in portion:
                    del each.submitted[:count]
            if self._clock() >= until:
                return

    def _next_portion(self) -> list[tuple[_Settlement, int]]:
        """The next follow-ups to send: whose, and how many of them."""
        portion, room = [], _FOLLOW_UPS_AT_ONCE
        for each in self._open:
            count = min(room, len(each.submitted))
            if count:
                portion.append((each, count))
                room -= count
        return portion

    def _submit_one_by_one(self, each: _Settlement, count: int) -> None:
        """A follow-up that can never be sent fails its parent's run, and only that."""
        for _ in range(count):
            try:
                self._queue.send_batch(each.submitted[:1])
            except (WriteFailed, InvalidIdentifier) as error:
                if not _is_final(error):
                    raise
                if not self._was_sent(each.submitted[0]):
                    self._refuse(each, "a follow-up job could not be sent", error)
                    return
            del each.submitted[0]

    def _was_sent(self, job: Job) -> bool:
        """Whether an earlier run has sent it, with other content: the first copy stays."""
        there = self._queue.look_up(job.id)
        return there is not None and (there.job.stream_id, there.job.submitted_at) == (job.stream_id, job.submitted_at)

    # -- ends

    def _reply(self, lease: Lease) -> None:
        while ending := self._next_ends():
            try:
                taken = self._queue.reply_batch([_completion(each) for each in ending], lease=lease)
            except (WriteFailed, InvalidIdentifier, InvalidTerminalStatus) as error:
                if not _is_final(error):
                    raise
                self._reply_one_by_one(ending, lease)
            else:
                self._ended(ending, taken)

    def _next_ends(self) -> list[_Settlement]:
        """What can be replied to now, no id twice: the store knows a job by its id.

        Either such as count as done or such as count as blocked: the store says only how many of them it took.
        """
        ending: dict[str, _Settlement] = {}
        for each in self._open:
            if not isinstance(each.decision, RetryAt) and not each.submitted:
                ending.setdefault(each.claimed.job.id, each)
        done = [each for each in ending.values() if not _is_blocked(each)]
        return done or list(ending.values())

    def _reply_one_by_one(self, ending: Sequence[_Settlement], lease: Lease) -> None:
        for each in ending:
            try:
                taken = self._queue.reply_batch([_completion(each)], lease=lease)
            except (WriteFailed, InvalidIdentifier, InvalidTerminalStatus) as error:
                if not _is_final(error) or not isinstance(each.decision, Reply):
                    raise
                self._refuse(each, "its outcome could not be written", error)
            else:
                self._ended([each], taken)

    def _ended(self, ended: Sequence[_Settlement], taken: int) -> None:
        """They are settled, `taken` of them by this reply; the others were not in flight here any more."""
        dropped = len(ended) - taken
        self.counts.dropped += dropped
        if _is_blocked(ended[0]):
            self.counts.blocked += taken
        else:
            self.counts.done += taken
        what = "has failed for good, unless it was dropped" if dropped else "is blocked"
        for each in ended:
            if isinstance(each.decision, Block):
                decision = each.decision
                _log.error("job %s %s (%s): %s", each.claimed.job.id, what, decision.cause, _line(decision.error))
        self._take_off(ended)

    def _take_off(self, settled: Sequence[_Settlement]) -> None:
        gone = set(map(id, settled))
        self._open = [each for each in self._open if id(each) not in gone]

    # -- retries

    def _defer(self, lease: Lease, until: float) -> None:
        for each in [each for each in self._open if isinstance(each.decision, RetryAt)]:
            try:
                self._defer_one(each, lease)
            except LeaseLost:
                raise
            except QueueError as error:
                if isinstance(error, WriteFailed) and _is_final(error):
                    self._give_up(each, error)
                    continue
                self._open.remove(each)
                self._open.append(each)  # the others come first next time
                raise
            self._take_off([each])
            if self._clock() >= until:
                return

    def _give_up(self, each: _Settlement, error: WriteFailed) -> None:
        """It can never be put off: no further run, and its end is replied to next."""
        if not isinstance(each.decision, RetryAt):
            raise AssertionError(each.decision)
        each.decision = cannot_wait(each.decision, Delivery.of(each.claimed.job), str(error), now_ms())
        self._failed_runs.pop(each.claimed.job.id, None)

    def _defer_one(self, each: _Settlement, lease: Lease) -> None:
        decision, job = each.decision, each.claimed.job
        if not isinstance(decision, RetryAt):
            raise AssertionError(decision)
        try:
            self._queue.backend.defer(
                job.id, decision.due_ms, error=decision.error, crashed=decision.crashed, lease=lease
            )
        except JobNotFound:
            _log.warning("dropped the result of job %s: it is not in flight here any more", job.id)
            self.counts.dropped += 1
            return
        self.counts.retried += 1
        wait = max(0, decision.due_ms - now_ms()) / 1000
        _log.warning("job %s failed, again in %.1f s: %s", job.id, wait, _line(decision.error))


def _is_blocked(settlement: _Settlement) -> bool:
    """Whether its end counts as blocked."""
    decision = settlement.decision
    return not isinstance(decision, Reply) or decision.status is ObservationStatus.BLOCKED


def _is_final(error: QueueError) -> bool:
    """Whether trying again cannot help: it is the values, not the disk and not the database."""
    return not isinstance(error, WriteFailed) or error.__cause__ is None


def _completion(settlement: _Settlement) -> Completion:
    job, decision = settlement.claimed.job, settlement.decision
    if isinstance(decision, Block):
        return Completion(job.id, ObservationStatus.BLOCKED, (), decision.dossier() | {"runs": settlement.runs})
    if isinstance(decision, Reply):
        return Completion(job.id, decision.status, decision.artifacts)
    raise AssertionError(decision)


def _line(error: str) -> str:
    """The first line that says something: the error itself, before its traceback."""
    return next((line.strip() for line in error.splitlines() if line.strip()), "")
