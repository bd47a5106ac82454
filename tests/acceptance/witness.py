"""Who saw what in a storm of kills (storm.py): the kills, every move into done/, the first work after each kill.

They are outside the queue and believe nothing that the pool says: the history that handlers write, and the kernel's own
record of what was renamed. Times are monotonic seconds.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import time
from collections.abc import Mapping, Sequence

from pool import Estate, Run, until

SETTLING = 5.0
"""So long after its handler's end a job may still be without its record, on a machine that has no CPU to spare."""


@dataclasses.dataclass(frozen=True)
class Kill:
    """One kill, from the signal until the death.

    `target`: a process of what kind (worker, stream, master), or `all`; `stream`: whose it was, None: nobody's, or not
    known; `alive`: what there was of the pool before.
    """

    target: str
    first: float
    last: float
    pid: int
    stream: str | None
    alive: frozenset[int]

    def silences(self, streams: Sequence[str]) -> list[str]:
        """Which of these start no job until a new process of theirs does."""
        if self.target in {"master", "all"}:
            return list(streams)
        return [stream for stream in streams if self.target == "stream" and self.stream == stream]

    def cuts_off(self, run: Run, stream: str) -> bool:
        """Whether a run in that stream can have ended by it. What runs when the master dies is finished."""
        if self.target == "all":
            return True
        return run.pid == self.pid or (self.target == "stream" and self.stream in {stream, None})


@dataclasses.dataclass(frozen=True)
class Repeats:
    """Of how many runs: those that were followed by another one, because they had failed, or were cut off by a kill;
    and all that were in flight at a kill that could end them."""

    failed: int
    cut_off: int
    in_flight: int


def judge_repeats(runs: Mapping[str, Sequence[Run]], stream_of: Mapping[str, str], kills: Sequence[Kill]) -> Repeats:
    """Fail unless every run but a job's last had failed, or was in flight at a kill that could cut it off.

    In flight is a job from its start until its record is on disk, at most `SETTLING` after its handler's end.
    `kills`: in their order, none overlaps another.
    """
    lasts = [kill.last for kill in kills]

    def was_cut_off(run: Run, until: float) -> bool:
        nearby = itertools.islice(kills, bisect.bisect_left(lasts, run.start), None)
        close = itertools.takewhile(lambda kill: kill.first <= until, nearby)
        return any(kill.cuts_off(run, stream_of[run.job_id]) for kill in close)

    failed = cut_off = in_flight = 0
    for its in runs.values():
        for run, later in itertools.zip_longest(its, its[1:]):
            until = min(
                kills[-1].last if run.end is None else run.end + SETTLING, later.start if later else float("inf")
            )
            hit = was_cut_off(run, until)
            in_flight += hit
            if later is not None:
                assert run.failed or hit, f"{run} was repeated ({later}) although no kill could have cut it off"
                failed += run.failed
                cut_off += not run.failed
    return Repeats(failed, cut_off, in_flight)


class Ledger:
    """Every move of a job into or out of done/, as the kernel tells it; read it often, its queue is short.

    `ended`: when each job was seen there first; `doubled`: those that came again; `left`: those that went.
    """

    def __init__(self, estate: Estate) -> None:
        from inotify_simple import INotify, flags  # only Linux has it

        self._watch = INotify()
        self._lost, self._gone = flags.Q_OVERFLOW, flags.MOVED_FROM | flags.DELETE
        self._watch.add_watch(str(estate.root / "done"), self._gone | flags.MOVED_TO | flags.CREATE)
        self.ended: dict[str, float] = {}
        self.doubled: list[str] = []
        self.left: list[str] = []

    def read(self) -> list[str]:
        """Take note of what has moved; returns the ids of the jobs that have ended meanwhile."""
        before, now = len(self.ended), time.monotonic()
        for event in self._watch.read(timeout=0):
            assert not event.mask & self._lost, "moves were missed: the ledger was read too seldom"
            if not event.name.endswith(".signal"):
                self._note(event.name[-32:], event.mask, now)
        return list(itertools.islice(self.ended, before, None))

    def _note(self, job_id: str, mask: int, now: float) -> None:
        if mask & self._gone:
            self.left.append(job_id)
        elif job_id in self.ended:
            self.doubled.append(job_id)
        else:
            self.ended[job_id] = now

    def judge(self, runs: Mapping[str, Sequence[Run]]) -> None:
        """Fail unless each job ended once, stayed, and was not run after that."""
        assert not self.doubled, f"ended twice: {self.doubled[:5]}"
        assert not self.left, f"not in done/ any more: {self.left[:5]}"
        late = [its[-1] for job_id, its in runs.items() if its[-1].start > self.ended[job_id]]
        assert not late, f"ran after they had ended: {late[:5]}"

    def close(self) -> None:
        """Watch no more."""
        self._watch.close()


class Recoveries:
    """How long each stream is silent after a kill, from the history as it grows.

    `times`: from a kill that silenced a stream to the first start by a process that was not there before it;
    `superseded`: kills that were followed by another one of the same stream before that; `silences`: from the first
    kill of such a row on. All in seconds.
    """

    def __init__(self, estate: Estate, streams: Sequence[str]) -> None:
        self._streams = streams
        self._history = estate.history.open()
        self._rest = ""
        self._awaited: dict[str, tuple[Kill, float]] = {}
        self.times: list[float] = []
        self.silences: list[float] = []
        self.superseded = 0

    def expect(self, kill: Kill) -> None:
        """Wait for a sign of life of the streams that it silenced."""
        for stream in kill.silences(self._streams):
            _, since = self._awaited.get(stream, (kill, kill.first))
            self.superseded += stream in self._awaited
            self._awaited[stream] = (kill, since)

    def read(self) -> None:
        """Take note of the runs that have started."""
        *lines, self._rest = (self._rest + self._history.read()).split("\n")
        for line in lines:
            what, pid, at, _, stream = line.split()
            if what == "start" and stream in self._awaited:
                self._note(stream, int(pid), float(at))

    def _note(self, stream: str, pid: int, at: float) -> None:
        kill, since = self._awaited[stream]
        if at > kill.first and pid not in kill.alive:
            del self._awaited[stream]
            self.times.append(at - kill.first)
            self.silences.append(at - since)

    def are_complete(self) -> bool:
        """Whether every stream works again."""
        return not self._awaited

    def figures(self) -> str:
        """All that in words."""
        return (
            f"recovery of {len(self.times)} streams p50 {quantile(self.times, 0.5):.2f} s, p99 "
            f"{quantile(self.times, 0.99):.2f} s, max {max(self.times):.2f} s ({self.superseded} were killed again "
            f"before), longest silence {max(self.silences):.2f} s"
        )

    def close(self) -> None:
        """Read no more."""
        self._history.close()


def seconds_of_a_start(estate: Estate, *streams: str) -> float:
    """How long a pool of this estate needs here and now until all these streams work; it is stopped again."""
    begun = time.monotonic()
    pool = estate.start()
    until(pool.is_working(*streams), "the pool", patience=120)
    took = time.monotonic() - begun
    assert pool.stop() == 0
    return took


def quantile(values: Sequence[float], share: float) -> float:
    """The value that this share of them does not exceed."""
    return sorted(values)[max(0, -int(-share * len(values) // 1) - 1)]
