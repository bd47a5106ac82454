"""One delivery: a real worker is started, given one job, killed where it was asked, and cleaned up after.

The worker is a pool's: `workerpool.worker.loop.worker_main` in a process group of its own, which imports the handler
anew, gets the job over a channel and sends back its outcome. When it has died or is given up, its group is killed and
everything that it left elsewhere, as a stream process does it. `Rig` makes its process a subreaper for that.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import os
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from queuekit.job import Job
from queuekit.wire import encode_job
from workerpool.board import Board
from workerpool.config import StreamConfig
from workerpool.outcome import Result
from workerpool.process import (
    Channel,
    ChannelError,
    Child,
    Exit,
    become_subreaper,
    child_pids,
    end_left_overs,
    frame_limit,
    is_running,
    kill_group,
    kill_process,
    spawn,
    wait_readable,
)
from workerpool.torture.points import Place, Point, PointKind
from workerpool.torture.trap import Notes, Trap, TrappedRow
from workerpool.worker.loop import WorkerSettings, worker_main
from workerpool.worker.protocol import Failed, Out, Spent, WorkerInbox, send_job, send_stop

if TYPE_CHECKING:
    from workerpool.process.channel import Frame

_TURN_SECONDS = 0.05
_EXIT_SECONDS = 2.0
_NAP = 0.001
_GRACE_SECONDS = 0.01  # after which an alarm that should have killed a worker has not


class Cut(enum.Enum):
    """Why a delivery has no outcome."""

    KILLED = "killed at the point"
    DIED = "its worker died"
    HUNG = "killed at the time limit"
    SPENT = "its worker was spent"
    UNLOADED = "the handler could not be imported"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """How a delivery ended: with `result`, or without one and `cut` says why (`why` in words).

    `killed`: whether it was at the point (for `reply`: whether that was reached); `ms`: how long the handler had run
    then; `place`: the line that was to be executed next, as a point's name, "" = none of the user's; `seconds`: from
    the handler's call to the outcome; `counts`: each line with its executions, where they were asked for.
    """

    result: Result | None
    cut: Cut | None = None
    why: str = ""
    killed: bool = False
    ms: float = 0.0
    place: str = ""
    seconds: float = 0.0
    counts: Mapping[Place, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Surrounding:
    """Where a run's workers work. `folder`: their current one; `temporary`: theirs for temporary files; `environ`: what
    is set in their environment; `output`: the file that what they print is appended to."""

    folder: str
    temporary: str
    environ: Mapping[str, str]
    output: str

    def enter(self) -> None:
        """Be there, for the rest of this process."""
        os.environ.update(self.environ)
        os.environ["TMPDIR"] = self.temporary
        tempfile.tempdir = None
        os.chdir(self.folder)
        output = os.open(self.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)


class Rig:
    """Starts workers, one at a time. `control`: an empty folder for its own files."""

    def __init__(self, stream: StreamConfig, folders: Sequence[str], max_job_bytes: int, control: str) -> None:
        """Raises `OSError` when the board cannot be made."""
        self._stream = stream
        self._folders = tuple(folders)
        self._max_job_bytes = max_job_bytes
        self._board = Board.create(control, rows=1)
        self._counts = os.path.join(control, "lines.json")
        self._known = child_pids()
        become_subreaper()

    def close(self) -> None:
        """Forget the board."""
        self._board.remove()

    def deliver(
        self,
        job: Job,
        at: Surrounding,
        *,
        attempt: int,
        fence: int,
        limit: float,
        point: Point | None = None,
        count: bool = False,
    ) -> Delivered:
        """Run the job once in a new worker. Nothing that it started is left when this returns or raises.

        `limit`: seconds until it is killed as hanging, import included; `point`: where to kill it; `count`: whether to
        count lines, which slows it down, as a point does.
        """
        notes = Notes()
        trap = None
        if point is not None or count:
            module = self._stream.handler.partition(":")[0]
            counts = self._counts if count else None
            trap = Trap(point, folders=self._folders, module=module, notes=notes, counts=counts)
        try:
            with _Worker(self._start(at, trap, point), self._known) as worker:
                worker.give(job, attempt, fence)
                delivered = worker.watch(notes, point, limit)
            return dataclasses.replace(delivered, counts=self._read_counts()) if count else delivered
        finally:
            notes.close()

    def _start(self, at: Surrounding, trap: Trap | None, point: Point | None) -> tuple[Child, Channel]:
        ours, theirs = Channel.pair(frame_limit(self._max_job_bytes))
        row = self._board.row(0) if trap is None else TrappedRow(self._board, 0, trap)
        row.recall(0)
        settings = self._settings(point)

        def be_worker() -> int:
            at.enter()
            return worker_main(theirs, row, settings)

        try:
            child = spawn(
                be_worker,
                name=f"torture {self._stream.handler}",
                own_group=True,
                death_signal=signal.SIGKILL,
                keep=(theirs.fileno(),),
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        return child, ours

    def _settings(self, point: Point | None) -> WorkerSettings:
        by_time = point is not None and point.kind is PointKind.TIME  # which takes the alarm of the soft timeout
        return WorkerSettings(
            stream=self._stream.name,
            name=f"{self._stream.name}-torture",
            handler=self._stream.handler,
            handler_path=self._folders,
            batch=self._stream.batch_size > 1,
            soft_timeout=0.0 if by_time else self._stream.soft_timeout,
            timeout=self._stream.timeout,
            max_job_bytes=self._max_job_bytes,
        )

    def _read_counts(self) -> dict[Place, int]:
        """The lines of the last run that was counted, once; none when it did not end."""
        try:
            with open(self._counts, encoding="utf-8") as file:
                counts = json.load(file)
            os.unlink(self._counts)
        except FileNotFoundError:
            return {}
        return {(file, line): hits for file, line, hits in counts}


class _Worker:
    """One worker from its start to its end; within `with`, nothing of it is left afterwards."""

    def __init__(self, started: tuple[Child, Channel], known: frozenset[int]) -> None:
        self._child, self._channel = started
        self._known = known
        self._inbox = WorkerInbox()
        self._result: Result | None = None
        self._said: tuple[Cut, str] | None = None
        self._spoiled = ""
        self._ended: Exit | None = None

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.end()
        self._channel.close()

    def give(self, job: Job, attempt: int, fence: int) -> None:
        """Send it the job."""
        send_job(self._channel, job.id, encode_job(job), session="", attempt=attempt, fence=fence)

    def watch(self, notes: Notes, point: Point | None, limit: float) -> Delivered:
        """Wait for the outcome or the end of the worker, and kill it where a time is the point."""
        ms = point.ms if point is not None and point.kind is PointKind.TIME else None
        until = time.monotonic() + limit
        killed_at, hung = 0.0, False
        while not self._is_over():
            now = time.monotonic()
            due = notes.started + ms / 1000 + _GRACE_SECONDS if ms is not None and notes.started else None
            if due is not None and now >= due:
                killed_at = self._kill_alone()
                break
            if now >= until:
                hung = True
                break
            self._channel.flush()
            self._wait(min(until, until if due is None else due) - now, start_is_awaited=ms is not None and due is None)
            self._hear()
        if self._result is not None and self._said is None:
            self._settle(point)
        self.end()
        self._hear()
        if ms is not None and self._ended is not None and self._ended.signal == signal.SIGALRM:
            killed_at = notes.started + ms / 1000
        return self._delivered(notes, point, killed_at or notes.fired, hung)

    def _wait(self, seconds: float, *, start_is_awaited: bool) -> None:
        if self._channel.wants_write:
            seconds = min(seconds, _NAP)
        if start_is_awaited:  # nobody wakes us when the handler is called
            seconds = min(seconds, _NAP)
        wait_readable(self._channel, min(seconds, _TURN_SECONDS))

    def _hear(self) -> None:
        try:
            frames: list[Frame] = self._channel.receive() if not self._spoiled else []
            messages = self._inbox.read(frames)
        except ChannelError as error:
            self._spoiled = error.reason
            return
        for message in messages:
            match message:
                case Out(result=result):
                    self._result = result
                case Failed(error=reason):
                    self._said = (Cut.UNLOADED, reason)
                case Spent(reason=reason):
                    self._said = (Cut.SPENT, reason)

    def _is_over(self) -> bool:
        return self._result is not None or self._said is not None or bool(self._spoiled) or self._channel.eof

    def _settle(self, point: Point | None) -> None:
        """After an outcome: let it end by itself, as far as it does, or kill it before its end is recorded."""
        if point is not None and point.kind is PointKind.REPLY:
            self._kill_alone()
            return
        send_stop(self._channel)
        self._channel.flush()
        self._wait_for_exit()

    def _kill_alone(self) -> float:
        moment = time.monotonic()
        kill_process(self._child.pid, self._child.start, signal.SIGKILL)
        return moment

    def end(self) -> None:
        """Kill what is left of the worker: itself, its group, and what left the group."""
        child = self._child
        if self._ended is not None:
            return
        if self._channel.eof:
            self._wait_for_exit()  # it may be about to exit with a code
        kill_process(child.pid, child.start, signal.SIGKILL)
        while is_running(child.pid, child.start):
            time.sleep(_NAP)
        kill_group(child.pid, child.start, signal.SIGKILL, session=child.session)  # before the wait frees its number
        status = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
        self._ended = Exit(
            pid=child.pid, code=status if status >= 0 else None, signal=-status if status < 0 else None, max_rss=0
        )
        end_left_overs(self._known)

    def _wait_for_exit(self) -> None:
        until = time.monotonic() + _EXIT_SECONDS
        while is_running(self._child.pid, self._child.start) and time.monotonic() < until:
            time.sleep(_NAP)

    def _delivered(self, notes: Notes, point: Point | None, killed_at: float, hung: bool) -> Delivered:
        started = notes.started
        if self._result is not None:
            reached = point is not None and point.kind is PointKind.REPLY
            seconds = self._result.run_seconds
            return Delivered(result=self._result, killed=reached, ms=seconds * 1000, place="", seconds=seconds)
        ms = max(0.0, (killed_at - started) * 1000) if killed_at and started else 0.0
        cut, why = self._cut(bool(killed_at), hung)
        return Delivered(result=None, cut=cut, why=why, killed=cut is Cut.KILLED, ms=ms, place=notes.place)

    def _cut(self, killed: bool, hung: bool) -> tuple[Cut, str]:
        if self._said is not None:
            return self._said
        if killed:
            return Cut.KILLED, "its worker was killed"
        if hung:
            return Cut.HUNG, "it had not ended within its time"
        if self._spoiled:
            return Cut.DIED, f"the handler spoilt its worker's pipe: {self._spoiled}"
        return Cut.DIED, f"its worker {self._ended.how if self._ended else 'died'}"
