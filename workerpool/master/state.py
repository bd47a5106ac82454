"""What the master decides, without I/O: when a stream process is started again, when a burst is over, how a stop ends.

Times are monotonic seconds; facts come in as arguments, decisions go out as values.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable

from workerpool.policy import respawn_delay

LIVED_LONG_SECONDS = 10.0
FRUITLESS_DEATHS, FRUITLESS_SECONDS = 5, 10.0
"""A stream whose processes have died so often in a row and for so long, and settled no job meanwhile, is hopeless."""


class Condition(enum.Enum):
    """How a stream process is doing."""

    DOWN = "down"
    STARTING = "starting"
    READY = "ready"
    FAILING = "failing"  # it runs, and its handler cannot be imported


@dataclasses.dataclass(slots=True)
class StreamState:
    """One stream, as the master sees it.

    `start_at`: when its process is to be started next; `starts`: how often it was; `dismissed`: it is not wanted any
    more; `told_to_end`: so its process was told to end, whatever is wanted by now; `settled`: jobs that its processes
    had settled when one last died; `fruitless`, `fruitless_since`: how many have died in a row without settling one,
    and when the first of them was started; `is_hopeless`: whether they die again and again and get nothing done.
    """

    name: str
    condition: Condition = Condition.DOWN
    started: float = 0.0
    start_at: float = 0.0
    failures: int = 0
    settled: int = 0
    fruitless: int = 0
    fruitless_since: float = 0.0
    is_hopeless: bool = False
    ever_ready: bool = False
    dismissed: bool = False
    told_to_end: bool = False
    starts: int = 0
    idle: int | None = None  # jobs it had handled when it last said that nothing is outstanding
    confirmed: int | None = None  # the number of the confirming question that it last said so to
    standby: str | None = None  # who holds its lease, when that is another pool

    def began(self, now: float) -> None:
        """Its process was started."""
        self.condition, self.started, self.idle, self.confirmed = Condition.STARTING, now, None, None
        self.starts, self.told_to_end = self.starts + 1, False

    def became_ready(self) -> None:
        """A worker of it has imported the handler."""
        self.condition, self.ever_ready = Condition.READY, True

    def failed(self) -> None:
        """A worker could not import the handler."""
        if self.condition is not Condition.READY:
            self.condition = Condition.FAILING

    def got_something_done(self) -> None:
        """It has settled a job, or seen that there is none."""
        self.fruitless, self.is_hopeless = 0, False

    def ended(self, now: float) -> None:
        """Its process is gone, as it was told; should it be wanted again, it is started at once."""
        self.condition, self.idle, self.confirmed = Condition.DOWN, None, None
        self.failures, self.start_at = 0, now

    def died(self, now: float, settled: int = 0, *, for_want_of_store: bool = False) -> None:
        """Its process is gone, untold.

        `settled`: how many jobs all its processes have settled; `for_want_of_store`: it could not open the store, which
        may be there again at any time and says nothing of the stream.
        """
        if settled != self.settled:
            self.settled = settled
            self.got_something_done()
        if not for_want_of_store:
            self._note_fruitless(now)
        lived_long = self.ever_ready and now - self.started >= LIVED_LONG_SECONDS
        self.failures = 1 if lived_long else self.failures + 1
        self.condition, self.idle, self.confirmed = Condition.DOWN, None, None
        self.start_at = now + respawn_delay(self.failures, self.ever_ready)

    def _note_fruitless(self, now: float) -> None:
        if not self.fruitless:
            self.fruitless_since = self.started
        self.fruitless += 1
        if self.fruitless >= FRUITLESS_DEATHS and now - self.fruitless_since >= FRUITLESS_SECONDS:
            self.is_hopeless = True

    def put_off(self, until: float) -> None:
        """Its process could not be made: the system's fault, which says nothing of the stream."""
        self.start_at = until

    def to_start(self, now: float) -> bool:
        """Whether its process is to be started now."""
        return self.condition is Condition.DOWN and not self.dismissed and self.start_at <= now


def all_failed_at_start(streams: Iterable[StreamState]) -> bool:
    """Whether no stream has ever been ready and every one of them has failed."""
    states = [each for each in streams if not each.dismissed]
    return bool(states) and all(not each.ever_ready and each.condition is Condition.FAILING for each in states)


class Burst:
    """When a burst is over: every stream has said that nothing is outstanding, and says so again when asked.

    A job that exists when the question is asked is seen by its stream's second look, or has been handled since the
    first, and then the number of handled jobs differs. A process that was started since has not heard the question and
    counts anew: then it is put again. A stream whose handler cannot be imported is not waited for, nor one whose
    processes die again and again.
    """

    def __init__(self) -> None:
        self.question = 0
        self._asked_at: dict[str, tuple[int, int]] = {}

    def said_idle(self, stream: StreamState, handled: int, question: int | None) -> None:
        """A stream's answer; `question`: the number of the last question that it had seen."""
        stream.idle, stream.confirmed = handled, question
        stream.got_something_done()

    def next_question(self, streams: Iterable[StreamState]) -> int | None:
        """The number of a question to put to every stream now, or None: not yet, or it is being answered."""
        awaited = _awaited(streams)
        if any(each.idle is None for each in awaited):
            return None
        handled = _handled(awaited)
        if self.question and handled == self._asked_at:
            return None
        self.question, self._asked_at = self.question + 1, handled
        return self.question

    def is_over(self, streams: Iterable[StreamState]) -> bool:
        """Whether every stream has answered the last question with nothing handled in between."""
        awaited = _awaited(streams)
        if not self.question or any(each.idle is None or each.confirmed != self.question for each in awaited):
            return False
        return _handled(awaited) == self._asked_at


def _awaited(streams: Iterable[StreamState]) -> list[StreamState]:
    return [each for each in streams if not (each.condition is Condition.FAILING or each.is_hopeless or each.dismissed)]


def _handled(awaited: Iterable[StreamState]) -> dict[str, tuple[int, int]]:
    """By which process, and how many."""
    return {each.name: (each.starts, each.idle or 0) for each in awaited}


class Ending(enum.IntEnum):
    """How hard the master is asked to end; each is stronger than the one before."""

    NOT = 0
    GRACEFUL = 1
    KILL_WORKERS = 2
    KILL_ALL = 3


def next_ending(current: Ending, *, interrupt: bool) -> Ending:
    """What a TERM or INT comes to: TERM asks once; every INT asks harder."""
    if not interrupt:
        return max(current, Ending.GRACEFUL)
    return Ending(min(current + 1, Ending.KILL_ALL))


NEXT_WORDS = {
    Ending.GRACEFUL: "stopping: what runs may finish within {hard:g} s; interrupt again to kill it, it will run again",
    Ending.KILL_WORKERS: "killing the workers: their jobs will run again; interrupt again to kill everything at once",
    Ending.KILL_ALL: "killing everything at once",
}
