"""A whole stream process on a stage: its loop over a queue in memory, with workers that do what the test says.

No process, file or thread, and the clock is a number that the test moves. What crosses the edge is played: `FakeCrew`
is the workers, `Stage.master` the master's end of a real channel.
"""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Callable, Iterator
from typing import Any, cast

from queuekit import QueueKit
from queuekit.backends.memory import MemoryBackend, MemoryStore
from queuekit.contract import Lease
from queuekit.testing.jobs import make_job
from workerpool.board import Row, RowView
from workerpool.config import PoolConfig, StreamConfig
from workerpool.config_file import load_config
from workerpool.outcome import Result, classify
from workerpool.process import Channel, Exit, SignalPipe
from workerpool.stream.crew import Crew, Death
from workerpool.stream.loop import Stream
from workerpool.stream.state import Slot, Unit
from workerpool.worker.protocol import Dropped, Failed, Message, Out, Ready

OK = classify(None, run_seconds=0.001)


@dataclasses.dataclass
class FakeBoard:
    """How often the boards of dead pools were swept."""

    sweeps: int = 0

    def sweep_predecessors(self) -> None:
        self.sweeps += 1


@dataclasses.dataclass
class FakeRow:
    """What its owner said last, and the sums of what was added."""

    board: FakeBoard = dataclasses.field(default_factory=FakeBoard)
    said: dict[str, str] = dataclasses.field(default_factory=dict)
    sums: dict[str, int] = dataclasses.field(default_factory=dict)

    def take(self, **values: Any) -> None:
        self.said.update({"state": "starting"})

    def say(self, **texts: str) -> None:
        self.said.update(texts)

    def beat(self) -> None:
        self.add(beats=1)

    def set(self, **numbers: int) -> None:
        self.sums.update(numbers)

    def add(self, **numbers: int) -> None:
        for name, number in numbers.items():
            self.sums[name] = self.sums.get(name, 0) + number


@dataclasses.dataclass
class FakeView:
    """What a worker's row says."""

    job: str = ""
    since_ns: int = 0
    rss: int = 0

    def runs(self, job_id: str) -> bool:
        return self.job == job_id


@dataclasses.dataclass
class FakeWorker:
    """A worker: what it was given and has not answered, what its row says, and its end once it has one."""

    slot: Slot
    view: FakeView = dataclasses.field(default_factory=FakeView)
    given: list[tuple[int, Unit]] = dataclasses.field(default_factory=list)
    recalled: int = 0
    stopped: bool = False
    end: Exit | None = None


class FakeCrew:
    """Workers that become ready, end jobs and die when the test says so. `refuse`: what `start` or `give` raises."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.workers: dict[int, FakeWorker] = {}
        self.refuse_start: OSError | None = None
        self.refuse_jobs: dict[str, Exception] = {}
        self.asked_to_stop = 0
        self.starts = 0
        self.told: list[int] = []
        self.asked: list[int] = []
        self.wrote: dict[int, str] = {}
        self.unheard: set[int] = set()
        self.trial_says: str | None = ""
        self._tried: str | None = None
        self._clock = clock
        self._words: list[tuple[Slot, Message]] = []
        self._number = 0

    # -- what the test says

    def become_ready(self) -> None:
        for worker in self.workers.values():
            self._words.append((worker.slot, Ready()))

    def say(self, index: int, message: Message) -> None:
        self._words.append((self.workers[index].slot, message))

    def run(self, index: int = 0) -> str:
        """The worker begins its next job; returns the job's id."""
        worker = self.workers[index]
        job_id = worker.given[0][1].job_ids[0]
        worker.view.job, worker.view.since_ns = job_id, int(self._clock() * 1e9)
        return job_id

    def finish(self, index: int = 0, result: Result = OK) -> list[str]:
        """The worker ends its next unit, each job with `result`; returns the ids."""
        worker = self.workers[index]
        _, unit = worker.given.pop(0)
        worker.view.job = ""
        for job_id in unit.job_ids:
            self.say(index, Out(job_id, result))
        return unit.job_ids

    def end_trial(self, error: str) -> None:
        """The trial that is under way ends: `error` is why the handler cannot be imported, "" when it can."""
        self._tried = error

    def drop_recalled(self, index: int = 0) -> None:
        """The worker notices what was called back."""
        worker = self.workers[index]
        for number, unit in worker.given[1:] if worker.view.job else list(worker.given):
            if number <= worker.recalled:
                worker.given.remove((number, unit))
                self.say(index, Dropped(number))

    def fail(self, index: int = 0, error: str = "no such module") -> None:
        """The worker cannot import its handler, and ends."""
        self.say(index, Failed(error))
        self.die(index, code=78)

    def die(self, index: int = 0, *, code: int | None = None, signal: int | None = None) -> None:
        self.workers[index].end = Exit(pid=1, code=code, signal=signal, max_rss=0)

    def leave(self) -> None:
        """Whoever was told to stop, and runs nothing, ends."""
        for index, worker in self.workers.items():
            if worker.stopped and not worker.view.job and worker.end is None:
                self.die(index, code=0)

    @property
    def has_news(self) -> bool:
        """Whether there is something that would wake the loop."""
        return bool(self._words) or any(worker.end is not None for worker in self.workers.values())

    # -- what a crew is

    def __len__(self) -> int:
        return len(self.workers)

    pending = False

    def start(self, slot: Slot, config: StreamConfig) -> None:
        if self.refuse_start is not None:
            raise self.refuse_start
        self.starts += 1
        self.workers[slot.index] = FakeWorker(slot)

    def try_out(self, config: StreamConfig) -> None:
        self._tried = self.trial_says

    def tried(self) -> str | None:
        told, self._tried = self._tried, None
        return told

    def give(self, slot: Slot, unit: Unit, lease: Lease) -> None:
        for job_id in unit.job_ids:
            if job_id in self.refuse_jobs:
                raise self.refuse_jobs[job_id]
        self._number += 1
        unit.number = self._number
        self.workers[slot.index].given.append((self._number, unit))

    def flush(self) -> None: ...

    def messages(self) -> Iterator[tuple[Slot, Message]]:
        words, self._words = self._words, []
        yield from words

    def recall(self, slot: Slot) -> RowView:
        worker = self.workers[slot.index]
        worker.recalled = self._number
        return self.view(slot)

    def view(self, slot: Slot) -> RowView:
        return cast("RowView", dataclasses.replace(self.workers[slot.index].view))

    def stop(self, slot: Slot) -> None:
        self.workers[slot.index].stopped = True

    def ask_to_stop(self) -> None:
        self.asked_to_stop += 1

    def tell(self, signal_number: int) -> None:
        self.told.append(signal_number)

    def ask_where(self, slot: Slot) -> None:
        self.asked.append(slot.index)

    def kill(self, slot: Slot) -> None:
        self.die(slot.index, signal=9)

    def kill_all(self) -> None:
        for index in self.workers:
            self.die(index, signal=9)

    def reap(self) -> list[tuple[Slot, Exit, RowView, list[Message]]]:
        ended = []
        for index, worker in list(self.workers.items()):
            if worker.end is not None:
                del self.workers[index]
                words = [message for slot, message in self._words if slot is worker.slot]
                self._words = [each for each in self._words if each[0] is not worker.slot]
                ended.append((worker.slot, worker.end, cast("RowView", worker.view), words))
        return ended

    def next(self, now: float) -> float | None:
        return None

    def death(self, slot: Slot) -> Death:
        return Death(last_lines=self.wrote.get(slot.index, ""), unheard=slot.index in self.unheard)

    def close(self) -> None:
        self.workers.clear()


class FakeSignals:
    """Signals that the test sends."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)

    def send(self, number: int) -> None:
        self._theirs.send(bytes([number]))

    def install(self, signals: object) -> None: ...

    def fileno(self) -> int:
        return self._ours.fileno()

    def take(self) -> list[int]:
        try:
            return list(self._ours.recv(1000))
        except BlockingIOError:
            return []

    def close(self) -> None:
        self._ours.close()
        self._theirs.close()


class Stage:
    """One stream at work. `now`: the time; `heard`: what it told its master."""

    def __init__(
        self,
        *,
        store: MemoryStore | None = None,
        backend: MemoryBackend | None = None,
        burst: bool = False,
        tables: dict[str, dict[str, Any]] | None = None,
        **stream: Any,
    ) -> None:
        self.now = 1000.0
        self.pool: PoolConfig = load_config(
            {
                "store": {"url": "dir:/nowhere"},
                "streams": {"encode": {"handler": "h:f", **stream}},
                **(tables or {}),
            }
        )
        self.config = self.pool.streams[0]
        self.backend = backend or MemoryBackend(store=store)
        self.queue = QueueKit(backend=self.backend)
        self.row = FakeRow()
        self.signals = FakeSignals()
        self.heard: list[dict[str, Any]] = []
        self.master, ours = Channel.pair()
        self._ours = ours
        self.crew = FakeCrew(lambda: self.now)
        self.stream = Stream(
            self.config,
            self.pool,
            queue=self.queue,
            master=ours,
            row=cast("Row", self.row),
            crew=lambda selector, stop: cast("Crew", self.crew),
            directory="/nowhere",
            predecessor=None,
            burst=burst,
            signals=cast("SignalPipe", self.signals),
            clock=lambda: self.now,
        )

    def close(self) -> None:
        self._ours.close()
        if not self.master.eof:
            self.master.close()
        self.signals.close()

    def turn(self, times: int = 1) -> None:
        """Let it do what there is to do, without waiting."""
        for _ in range(times):
            self.stream.turn(0)
            self.heard += [frame.header for frame in self.master.receive()]

    def settle(self) -> float:
        """Turn it until it wants to wait, and return for how long; fails when it never does."""
        for _ in range(20):
            self.turn()
            patience = self.stream.patience()
            if patience > 0 and not self.crew.has_news:
                return patience
        raise AssertionError("it spins")

    def open(self) -> None:
        """Let the workers become ready."""
        self.turn()
        self.crew.become_ready()
        self.settle()

    def after(self, seconds: float) -> float:
        """Let time pass, then `settle`."""
        self.now += seconds
        return self.settle()

    def order(self, **words: Any) -> None:
        self.master.send(words)
        self.master.flush()

    def send(self, *ids: str, stream: str = "encode") -> None:
        for job_id in ids:
            self.backend.write(make_job(job_id, stream))

    def ended(self) -> dict[str, str]:
        """How each finished job ended."""
        return {job_id: signal.status.value for job_id, signal in self.backend.store.signals.items()}

    def in_flight(self) -> list[str]:
        return [job.id for job in self.backend.in_flight("encode")]

    def with_worker(self, index: int = 0) -> list[list[str]]:
        return [unit.job_ids for _, unit in self.crew.workers[index].given]

    def words(self, kind: str) -> list[dict[str, Any]]:
        return [word for word in self.heard if word["t"] == kind]


__all__ = ["OK", "FakeCrew", "FakeRow", "Stage"]
