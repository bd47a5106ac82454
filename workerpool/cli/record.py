"""What is known of a job's runs and ends, put together from the job itself and from its dossier. No I/O.

A job carries its failed runs with it (`Delivery`) until it is retried by a person; its dossier keeps what it had ended
with, also after that. So a dossier may tell of an earlier life of the job: whatever was written before the latest of
its earlier ends does, and everything does when the job has not ended blocked now.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from queuekit.contract import JobView
from queuekit.job import Delivery
from queuekit.lifecycle import State
from queuekit.status import ObservationStatus

_MOST = 2**53
_WORDS = ("cause", "ended", "error")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FailedRun:
    """One failed run. `number`: from 1; `ended_ms`, `seconds`: None when not known; `halved_from`: how many jobs the
    batch had that failed as a whole and was halved down to this run, 0 = none."""

    number: int
    error: str
    ended_ms: int | None = None
    seconds: float | None = None
    halved_from: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EarlierEnd:
    """An end that a person's retry has undone. `text`: the record itself, when it cannot be read."""

    status: str = ""
    ended_ms: int = 0
    text: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A job's runs and ends. `attempts`, `crashes`: failed runs in this life; `runs`: those whose errors are kept.

    `ending`: the dossier's facts about its present end; `before`: those about an earlier one.
    """

    attempts: int
    crashes: int
    runs: tuple[FailedRun, ...]
    ending: Mapping[str, Any]
    before: Mapping[str, Any]
    earlier_ends: tuple[EarlierEnd, ...]

    @classmethod
    def of(cls, view: JobView) -> Record:
        """The record of a job as the store has it."""
        dossier = _credible(view.dossier or {})
        ends = tuple(_earlier_ends(dossier.pop("earlier_ends", None)))
        ending, before = (dossier, {}) if _is_of_now(view, dossier, ends) else ({}, dossier)
        delivery = Delivery.of(view.job)
        counted = _counted(ending, delivery)
        return cls(
            attempts=counted.attempt,
            crashes=counted.crashes,
            runs=tuple(_runs(counted, ending.get("runs"))),
            ending=ending,
            before=before,
            earlier_ends=ends,
        )

    @property
    def errors(self) -> list[str]:
        """The errors that are kept, oldest first."""
        return [run.error for run in self.runs]

    @property
    def cancelled(self) -> bool:
        """Whether a person has ended it before it ran."""
        return self.ending.get("ended") == "cancelled"

    @property
    def last_error(self) -> str:
        """The newest error that is kept; "" when there is none."""
        said = self.ending.get("error")
        return said if isinstance(said, str) else self.errors[-1] if self.runs else ""


def _credible(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Without numbers that no time and no count can be, and without reasons that are no words."""
    return {key: value for key, value in facts.items() if _is_credible(key, value)}


def _is_credible(key: str, value: object) -> bool:
    if key in _WORDS:
        return isinstance(value, str)
    return not isinstance(value, int | float) or -_MOST <= value <= _MOST


def _is_of_now(view: JobView, dossier: Mapping[str, Any], ends: tuple[EarlierEnd, ...]) -> bool:
    if view.state is not State.DONE or view.signal is None or view.signal.status is not ObservationStatus.BLOCKED:
        return False
    written = dossier.get("blocked_at_ms", dossier.get("at_ms"))
    latest = max((end.ended_ms for end in ends), default=None)
    return latest is None or not isinstance(written, int) or written > latest


def _counted(ending: Mapping[str, Any], delivery: Delivery) -> Delivery:
    """The job's own count; of a blocked one the dossier's, where the last run is counted in."""
    attempts, crashes, errors = ending.get("attempts"), ending.get("crashes"), ending.get("errors")
    if not (isinstance(attempts, int) and isinstance(crashes, int) and isinstance(errors, list)):
        return delivery
    if attempts < delivery.attempt:
        return delivery
    return Delivery(attempt=attempts, crashes=crashes, errors=tuple(map(str, errors)))


def _runs(counted: Delivery, facts: object) -> list[FailedRun]:
    known = {each["run"]: each for each in facts if _is_run(each)} if isinstance(facts, list) else {}
    first = counted.attempt - len(counted.errors) + 1
    return [_run(number, error, known.get(number, {})) for number, error in enumerate(counted.errors, start=first)]


def _is_run(facts: object) -> bool:
    return isinstance(facts, dict) and isinstance(facts.get("run"), int)


def _run(number: int, error: str, facts: Mapping[str, Any]) -> FailedRun:
    facts = _credible(facts)
    ended, seconds, halved = facts.get("ended_ms"), facts.get("seconds"), facts.get("halved_from")
    return FailedRun(
        number=number,
        error=error,
        ended_ms=ended if isinstance(ended, int) else None,
        seconds=float(seconds) if isinstance(seconds, int | float) else None,
        halved_from=halved if isinstance(halved, int) else 0,
    )


def _earlier_ends(texts: object) -> list[EarlierEnd]:
    return [_earlier_end(str(text)) for text in texts] if isinstance(texts, list) else []


def _earlier_end(text: str) -> EarlierEnd:
    try:
        end = json.loads(text)
        at = _credible(end["completed_at"])["physical_time"]
        return EarlierEnd(status=str(end["status"]), ended_ms=int(at))
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError):  # kept as it was found
        return EarlierEnd(text=text)
