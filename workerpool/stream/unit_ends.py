"""What a unit comes to: when its last job has a result, and when its worker dies before that.

A batch that fails as a whole, or takes its worker with it, is halved before anybody is blamed. Only what ran is charged
for a death, and nobody for one that was meant for another job.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from queuekit import Claimed
from workerpool.outcome import Result, ResultKind
from workerpool.process import Exit
from workerpool.stream.crew import Death
from workerpool.stream.journey import Journey
from workerpool.stream.state import Roster, Slot, Unit

_STACK = "(most recent call first)"
_log = logging.getLogger("workerpool.stream")


class UnitEnds:
    """From the workers back to the roster, or on to the journey's end."""

    def __init__(self, roster: Roster, journey: Journey) -> None:
        self._roster = roster
        self._journey = journey

    def run_ended(self, slot: Slot, job_id: str, result: Result, now: float) -> None:
        """A worker says how one job's run ended."""
        unit = slot.unit_of(job_id)
        if unit is None or unit.overdue:
            _log.info("dropped the result of job %s: it was given up here before its worker ended it", job_id)
            return
        unit.results[job_id] = result
        if len(unit.results) == len(unit.claims):
            slot.ended(unit, result.run_seconds, now)
            self._all_ended(unit)

    def _all_ended(self, unit: Unit) -> None:
        if len(unit.claims) > 1 and _has_only_failed(unit):
            self._roster.first(unit.halves())
        else:
            self._hand_on(unit)

    def _hand_on(self, unit: Unit) -> None:
        for claimed in unit.claims:
            if claimed.job.id in unit.results:
                self._journey.ended(claimed, unit.results[claimed.job.id], unit.halved_from)

    def worker_died(self, unit: Unit, *, ran: bool, how: str) -> None:
        """Its worker is gone. `ran`: whether it was in this unit's run; `how`: what to say of it."""
        self._lost(unit, ran, lambda claimed: self._journey.crashed(claimed, how, unit.halved_from))

    def timed_out(self, unit: Unit, *, limit: float, last_lines: str) -> None:
        """Its worker was killed because a run took longer than `limit` seconds; whose that was is `unit.overdue`.

        `last_lines`: the end of its standard error, with the stack that it was asked for.
        """
        reason = f"killed after {limit:g} s (timeout)"
        error = "\n".join([reason, *_words_at_timeout(last_lines)])
        failed = Result.failed(error, run_seconds=limit)
        self._lost(unit, unit.overdue, lambda claimed: self._journey.ended(claimed, failed, unit.halved_from))

    def _lost(self, unit: Unit, guilty: bool, charge: Callable[[Claimed], None]) -> None:
        if _has_only_failed(unit):
            unit.results.clear()  # a batch that fails as a whole, cut short
        self._hand_on(unit)
        left = [claimed for claimed in unit.claims if claimed.job.id not in unit.results]
        if not left:
            return
        if not guilty:
            self._roster.first([Unit(left, closed=True, halved_from=unit.halved_from)])
        elif len(left) > 1:
            self._roster.first(Unit(left, halved_from=unit.halved_from).halves())
        else:
            charge(left[0])


def _words_at_timeout(last_lines: str) -> list[str]:
    """What a worker that was asked where it is had to say, and that it did not answer, if it did not."""
    if _STACK in last_lines:
        return ["where it was, and its last words:", last_lines]
    silent = "it did not say where it was when it was asked: it blocks signals, hangs in the system, or was stopped"
    return [silent, "its last words:", last_lines] if last_lines else [silent]


def describe(end: Exit, seconds: float | None, death: Death, earlier: int) -> str:
    """How a worker died, for the record of the job that it was running.

    `seconds`: for how long it had been, None: the run was over, and only its outcome had not been told; `earlier`: how
    many jobs the worker had run before.
    """
    how = f"was of no use any more and was ended, because {death.cause}," if death.cause else end.how
    when = "after the run, before its outcome was told" if seconds is None else f"after {seconds:.1f} s of this job"
    memory = f"its memory was at most {end.max_rss / 2**20:.0f} MiB"
    whose = f", with the {earlier} jobs before this one" if earlier > 1 else ", with the job before" if earlier else ""
    facts = f"its worker {how} {when}; {memory}{whose}"
    return f"{facts}\nits last words:\n{death.last_lines}" if death.last_lines else facts


def _has_only_failed(unit: Unit) -> bool:
    return all(result.kind is ResultKind.FAILED for result in unit.results.values())
