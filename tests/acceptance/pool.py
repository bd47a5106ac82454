"""A running pool under test: real processes, real signals, a root to look into, a history of what handlers did.

`Estate` is a folder with a config, a spool and a history; `estate.start()` runs a `Pool` on it, as a person would from
a shell. Every process that a pool starts, however deep and however orphaned, is found by a mark in its environment.
`Estate.check` is the oracle: what the root and the history say has to fit what was sent and when somebody was killed.
"""

from __future__ import annotations

import bisect
import collections
import ctypes
import dataclasses
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from queuekit import Job, QueueKit, decode_job, decode_signal
from queuekit.completion import SignalFile
from workerpool.board import Board, BoardError, Kind, RowView, find_boards

PATIENCE = 30.0
"""How long a fact may let wait for itself before a test gives up, in seconds. Nothing that is right takes it."""
_POOLS_TOLD = 10  # of how many pools, the last ones, the log is shown at the end
_OVER_MODES = (1, 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP = 1, 24
_libc = ctypes.CDLL(None)
_HERE = Path(__file__).parent
_MARK = "ACTING_MARK"
_COMMAND = [str(Path(sys.executable).with_name("workerpool"))]


def until(fact: Callable[[], Any], what: str = "it", patience: float = PATIENCE) -> Any:
    """Wait until `fact()` is true and return it; fails when it is not within `patience` seconds."""
    end = time.monotonic() + patience
    while not (found := fact()):
        assert time.monotonic() < end, f"{what} did not come true within {patience:g} s"
        time.sleep(0.01)
    return found


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a handler. `end`: None when it did not come to its end. Times: monotonic seconds.

    `failed`: it ended, and said that it had failed (not every handler of the tests says so).
    """

    job_id: str
    pid: int
    start: float
    end: float | None
    failed: bool = False


class Estate:
    """A folder in which pools run; use it as a context: at the end nothing that was started lives."""

    def __init__(self, folder: Path, streams: Mapping[str, Mapping[str, Any]], **tables: Mapping[str, Any]) -> None:
        """`streams`: keys of each `[streams.NAME]`, `handler` defaults to `acting:act`. `tables`: the other tables."""
        self.folder = folder
        self.root = folder / "spool"
        self.url = f"dir:{self.root}"
        self.history = folder / "history"
        self.history.touch()
        self.config = folder / "config.toml"
        self.pools: list[Pool] = []
        self.kills: list[tuple[float, float]] = []
        self._mark = f"{folder}-{time.monotonic_ns()}"
        self._queue: QueueKit | None = None
        self.configure(streams, **tables)

    def configure(self, streams: Mapping[str, Mapping[str, Any]], **tables: Mapping[str, Any]) -> None:
        """Write the config, again for a reload."""
        values = {
            "store": {"url": self.url},
            "handlers": {"path": [str(_HERE), str(self.folder)]},
            "lease": {"ttl": "2s"},
            "watch": {"scan": "5s"},
            "defaults": {"backoff": "50ms", "max_backoff": "200ms"},
            "telemetry": {"hooks": []},
        }
        for name, table in tables.items():
            values[name] = values.get(name, {}) | dict(table)
        for name, keys in streams.items():
            values[f"streams.{name}"] = {"handler": "acting:act", **keys}
        lines: list[str] = []
        for table_name, keys in values.items():
            lines += [f"[{table_name}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items()), ""]
        self.config.write_text("\n".join(lines))

    def __enter__(self) -> Estate:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill what lives, and tell what pools have said."""
        if self._queue is not None:
            self._queue.close()
            self._queue = None
        for process in self.processes():
            with suppressed_end():
                process.kill()
        for pool in self.pools:
            pool.process.wait(PATIENCE)
        for number, pool in list(enumerate(self.pools))[-_POOLS_TOLD:]:
            print(f"---- pool {number}, exit code {pool.code}\n{pool.log[-4000:]}")

    # -- jobs

    @property
    def queue(self) -> QueueKit:
        """The root, as a producer has it."""
        if self._queue is None:
            self._queue = QueueKit.open(self.url)
        return self._queue

    @property
    def boards(self) -> str:
        """The folder that the boards of its pools are in."""
        return str(self.root / ".workerpool")

    def send(self, stream: str = "encode", **told: Any) -> str:
        """Send one job whose payload says what its handler is to do; returns its id."""
        return str(self.queue.submit(stream, json.dumps(told).encode()))

    def send_many(self, count: int, streams: Sequence[str] = ("encode",), **told: Any) -> list[str]:
        """Send many alike, over several streams in turn, in one batch."""
        payload = json.dumps(told).encode()
        jobs = [self._job(streams[number % len(streams)], payload) for number in range(count)]
        self.queue.send_batch(jobs)
        return [str(job.id) for job in jobs]

    @staticmethod
    def _job(stream: str, payload: bytes) -> Job:
        from queuekit.testing.jobs import make_job

        return make_job(stream=stream, payload=payload)

    def signal_of(self, job_id: str) -> SignalFile | None:
        """How a job has ended; None when it has not."""
        path = self.root / "done" / f"{job_id}.signal"
        return decode_signal(path.read_bytes()) if path.exists() else None

    def status_of(self, job_id: str) -> str | None:
        """Its status in a word."""
        found = self.signal_of(job_id)
        return None if found is None else found.status.value

    def finished(self, *job_ids: str) -> Callable[[], bool]:
        """A fact to wait for: all of these have ended."""
        return lambda: all((self.root / "done" / f"{each}.signal").exists() for each in job_ids)

    def dossier(self, job_id: str) -> Any:
        """What is kept of a job that ended blocked."""
        return json.loads((self.root / ".workerpool" / "jobs" / f"{job_id}.json").read_text())

    def files(self, folder: str) -> list[Path]:
        """The files in one folder of the root, in the order of their names."""
        return sorted((self.root / folder).iterdir())

    def count(self, folder: str) -> int:
        """How many there are."""
        return len(os.listdir(self.root / folder))

    # -- what handlers did

    def notes(self, what: str) -> list[list[str]]:
        """The history's lines of one kind, each as `[pid, monotonic seconds, facts…]`."""
        lines = (line.split() for line in self.history.read_text().splitlines())
        return [line[1:] for line in lines if line[0] == what]

    def runs(self) -> dict[str, list[Run]]:
        """Every run, by job id, in the order of their starts."""
        runs: dict[str, list[Run]] = collections.defaultdict(list)
        for line in self.history.read_text().splitlines():
            what, pid, at, *facts = line.split()
            if what == "start":
                runs[facts[0]].append(Run(facts[0], int(pid), float(at), None))
            elif what in {"end", "failed"}:
                mine = [place for place, run in enumerate(runs[facts[0]]) if run.pid == int(pid)]
                ended = dataclasses.replace(runs[facts[0]][mine[-1]], end=float(at), failed=what == "failed")
                runs[facts[0]][mine[-1]] = ended
        return runs

    def started(self, job_id: str) -> Callable[[], bool]:
        """A fact to wait for: a handler runs or ran this job."""
        return lambda: bool(self.runs().get(job_id))

    # -- processes

    def start(self, *flags: str, before: Sequence[str] = ()) -> Pool:
        """Start a pool on this estate; `before`: a command that executes the one that follows it."""
        pool = Pool(self, flags, len(self.pools), before)
        self.pools.append(pool)
        return pool

    def run(self, *flags: str, patience: float = PATIENCE) -> Pool:
        """Run a pool until it ends by itself, as a burst does."""
        pool = self.start(*flags)
        pool.wait(patience)
        return pool

    def environment(self) -> dict[str, str]:
        """What marks the processes of this estate."""
        return os.environ | {_MARK: self._mark, "ACTING_HISTORY": str(self.history)}

    def processes(self) -> list[psutil.Process]:
        """Every living process that came from this estate's pools, wherever it went."""
        return [process for process in map(self._if_ours, psutil.pids()) if process is not None]

    def _if_ours(self, pid: int) -> psutil.Process | None:
        try:
            process = psutil.Process(pid)
            ours = process.status() != psutil.STATUS_ZOMBIE and process.environ().get(_MARK) == self._mark
        except (psutil.Error, OSError):
            return None
        return process if ours else None

    def kill(self, pid: int, number: int = signal.SIGKILL) -> None:
        """Kill a process of this estate and remember when, for the oracle: from the signal until it is dead."""
        begin = time.monotonic()
        with suppressed_end():
            os.kill(pid, number)
        until(lambda: is_dead(pid), f"the death of {pid}")
        self.kills.append((begin, time.monotonic()))

    # -- the oracle

    def check(self, sent: Iterable[str]) -> Counter:
        """Fail unless every job that was sent is in exactly one place and what ran twice was in flight at a kill.

        Returns how many jobs are where. Holds while a pool runs, too, but only between two moves: call it at rest.
        """
        places = self._places()
        doubled = {job_id: where for job_id, where in places.items() if len(where) > 1}
        assert not doubled, f"in two places: {doubled}"
        lost = set(sent) - set(places)
        assert not lost, f"{len(lost)} jobs are lost: {sorted(lost)[:5]}"
        done = {job_id for job_id, where in places.items() if where == ["done"]}
        signals = {path.name.removesuffix(".signal") for path in self.files("done") if path.name.endswith(".signal")}
        assert done <= signals, f"in done/ without a signal: {sorted(done - signals)[:5]}"
        in_flight = {job_id for job_id, where in places.items() if where == ["cur"]}
        assert signals <= done | in_flight, f"a signal without its job: {sorted(signals - done - in_flight)[:5]}"
        return collections.Counter(where[0] for where in places.values())

    def check_repeats(self, settling: float = 5.0) -> int:
        """Fail unless every run but a job's last was in flight at a kill; returns how many runs were repeats.

        In flight is a job from its start until its reply is on disk, at most `settling` seconds after the handler's
        end.
        """
        kills = sorted(self.kills)
        firsts = [first for first, _ in kills]
        lasts = [-math.inf, *itertools.accumulate((last for _, last in kills), max)]
        repeats = 0
        for runs in self.runs().values():
            for run, later in itertools.pairwise(runs):
                ended = later.start if run.end is None else min(later.start, run.end + settling)
                last = lasts[bisect.bisect_right(firsts, ended)]
                assert run.start <= last, (
                    f"{run} was repeated ({later}) although nobody was killed meanwhile: {kills[-20:]}"
                )
                repeats += 1
        return repeats

    def check_settled(self, sent: Sequence[str]) -> None:
        """Fail unless every job has ended and nothing is left over."""
        assert self.check(sent) == +Counter(done=len(set(sent)))
        assert (self.count("new"), self.count("cur")) == (0, 0)
        assert self.kills or not self.files("tmp")  # a killed process may leave a draft, swept when it is old
        assert not self.folder_if_there("later")
        assert not self.folder_if_there("claim")

    def folder_if_there(self, name: str) -> list[str]:
        """The names in a folder that need not exist."""
        path = self.root / name
        return os.listdir(path) if path.exists() else []

    def _places(self) -> dict[str, list[str]]:
        places: dict[str, list[str]] = collections.defaultdict(list)
        for folder in ("new", "cur", "done", "later", "claim"):
            for name in self.folder_if_there(folder):
                if not name.endswith(".signal"):
                    places[str(decode_job((self.root / folder / name).read_bytes()).id)].append(folder)
        return places


Counter = collections.Counter[str]


class Pool:
    """A pool that was started. `code`: its exit code once it has ended, negative when a signal killed it."""

    def __init__(self, estate: Estate, flags: Sequence[str], number: int, before: Sequence[str] = ()) -> None:
        self.estate = estate
        self.output = estate.folder / f"pool-{number}.log"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [*before, *_COMMAND, "run", str(estate.config), *flags],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=estate.environment(),
                cwd=estate.folder,
                preexec_fn=prepare,  # noqa: PLW1509  no thread of this process holds a lock that it needs
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The master's."""
        return self.process.pid

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self.process.poll()

    @property
    def log(self) -> str:
        """What it has said so far."""
        return self.output.read_text(errors="replace")

    def rows(self) -> list[RowView]:
        """Its board's rows; none before there is one."""
        for path, _ in find_boards(self.estate.boards):
            try:
                board = Board.attach(path)
            except (BoardError, FileNotFoundError):  # a stranger's file, or one that was swept just now
                continue
            try:
                if board.header.pid == self.pid:
                    return board.rows()
            finally:
                board.close()
        return []

    def row(self, stream: str = "encode", kind: Kind = Kind.STREAM) -> RowView | None:
        """The first row of a stream's process, or of its workers, when its process lives."""
        rows = (row for row in self.rows() if row.kind is kind and row.stream == stream)
        return next((row for row in rows if psutil.pid_exists(row.pid) and row.owner_is_running()), None)

    def is_working(self, *streams: str) -> Callable[[], bool]:
        """A fact to wait for: each of these streams holds its lease and has a worker that is ready."""
        return lambda: all(self._works(stream) for stream in streams or ("encode",))

    def _works(self, stream: str) -> bool:
        row = self.row(stream)
        return row is not None and row.lease == "held" and row.state == "running"

    def stream_pid(self, stream: str = "encode") -> int:
        """The pid of a stream's process, once there is one."""
        return int(until(lambda: self.row(stream), f"stream {stream}").pid)

    def worker_pid(self, stream: str = "encode") -> int:
        """The pid of a stream's first worker, once there is one."""
        return int(until(lambda: self.row(stream, Kind.WORKER), f"a worker of {stream}").pid)

    def tree(self) -> list[int]:
        """The pids of the master and all that descends from it."""
        try:
            return [self.pid, *(child.pid for child in psutil.Process(self.pid).children(recursive=True))]
        except psutil.NoSuchProcess:
            return []

    def tell(self, number: int) -> None:
        """Send a signal to the master."""
        self.process.send_signal(number)

    def signal_tree(self, number: int) -> None:
        """Send a signal to every process of the pool."""
        for pid in self.tree():
            with suppressed_end():
                os.kill(pid, number)

    def wait(self, patience: float = PATIENCE) -> int:
        """Wait until it has ended; returns its exit code."""
        try:
            return self.process.wait(patience)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the pool did not end within {patience:g} s:\n{self.log[-4000:]}") from None

    def stop(self, number: int = signal.SIGTERM, patience: float = PATIENCE) -> int:
        """Send it a signal and wait; returns its exit code."""
        self.tell(number)
        return self.wait(patience)


def prepare() -> None:
    """For what is executed next: it ends with its test, and the modes of files hold for it although it may be root."""
    if sys.platform != "linux":
        return
    assert _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0
    for capability in _OVER_MODES if os.getuid() == 0 else ():
        assert _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == 0


class suppressed_end:  # noqa: N801
    """A context in which it does not matter that a process has gone already."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, ProcessLookupError | psutil.NoSuchProcess)


def is_dead(pid: int) -> bool:
    """Whether nothing of a process is left but, perhaps, its entry for the parent to collect."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def cpu_ticks(pid: int) -> int:
    """User and system time that a process has used, in clock ticks."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def wakeups(pid: int) -> int:
    """How often a process has been woken from waiting."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("voluntary_ctxt_switches"):
            return int(line.split()[1])
    raise AssertionError("no such line")


def lines_of(text: str, *words: str) -> Iterator[str]:
    """The lines of a log that hold all of these words."""
    return (line for line in text.splitlines() if all(word in line for word in words))
