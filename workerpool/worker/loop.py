"""The worker process: imports the handler, runs the jobs it is sent one after the other, sends back how they ended.

It holds no queue and no lease, so it cannot settle a job twice or keep one. Its stream process owns it:

* a job is named on the board before its handler starts and taken back when it ended, then its outcome is sent, and only
  then the next one starts: a worker that dies takes one job (one batch) with it, and the board tells which;
* SIGTERM only makes `ctx.should_stop` true, SIGINT is ignored; a `stop` frame ends it before its next job; the end of
  the channel ends it at once, and what it was running has nobody left to hear of it;
* a handler's time limit is raised inside it (soft); killing at the hard one is the stream process's affair;
* what a job leaves running (children, daemons) is killed before its outcome is sent;
* a worker that has no descriptor left, or has grown far too much, says that it is *spent* and ends. A run that failed
  in it for want of descriptors which earlier jobs took has no outcome: it counts for nothing, and is run elsewhere;
* a handler that has closed the channel's descriptor ends its worker, and the board still shows its job as running;
* one that has closed standard input, output or error leaves a worker that is spent, too: who prints next is innocent.
"""

from __future__ import annotations

import dataclasses
import os
import resource
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from types import FrameType

import psutil

from queuekit.errors import DecodingFailed
from queuekit.wire import decode_job
from workerpool import logs
from workerpool.board import Kind, Row
from workerpool.config import LogConfig
from workerpool.handlers import Handler, HandlerError, load_handler
from workerpool.outcome import Result, ResultKind
from workerpool.process import (
    become_subreaper,
    can_open,
    child_pids,
    descriptor_limit,
    end_left_overs,
    open_descriptors,
    standard_descriptors,
    unread_bytes,
)
from workerpool.process.channel import Channel, ChannelError, Frame
from workerpool.process.reap import RSS_UNIT
from workerpool.process.spare import FULL, with_spare
from workerpool.worker.context import Surroundings
from workerpool.worker.protocol import send_dropped, send_failed, send_out, send_ready, send_spent
from workerpool.worker.run import Limits, WorkItem, run_batch, run_job

EXIT_OK = 0
EXIT_BAD_HANDLER = 78
"""The handler could not be imported."""
EXIT_BAD_CHANNEL = 70
"""The channel is of no use: it was closed here, or what came was not a frame; the row's `error` says which."""
FAR_BYTES = 256 * 2**20
"""A worker that has grown by so much over `max_memory` ends before its next job, however young it is."""
_MEMORY_EVERY_NS = 250_000_000
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What a worker needs to know.

    `handler_path`: absolute folders; timeouts in seconds, `max_memory` in bytes, 0 = none; `log`: None = as it is.
    """

    stream: str
    name: str
    handler: str
    handler_path: tuple[str, ...]
    batch: bool = False
    soft_timeout: float = 0.0
    timeout: float = 0.0
    max_memory: int = 0
    max_job_bytes: int = 64 * 2**20
    log: LogConfig | None = None


def worker_main(channel: Channel, row: Row, settings: WorkerSettings) -> int:
    """Be a worker until told to stop; returns the exit code. To be the target of `spawn` (main thread of a fork)."""
    stop = _StopFlag()
    if settings.log is not None:
        logs.configure(settings.log, settings.name)
    row.take(kind=Kind.WORKER, stream=settings.stream, name=settings.name)
    signal.signal(signal.SIGTERM, stop.note)
    signal.signal(signal.SIGINT, _ignore)
    _guard_forks(channel)
    become_subreaper()
    try:
        handler = load_handler(settings.handler, settings.handler_path)
    except HandlerError as error:
        row.say(state="failed", error=error.reason)
        send_failed(channel, error.reason)
        channel.flush_blocking()
        return EXIT_BAD_HANDLER
    return _Worker(channel, row, settings, handler, stop).serve()


def trial_main(channel: Channel, settings: WorkerSettings) -> int:
    """Import the handler as a worker would, send how that went, and be done; returns the exit code."""
    if settings.log is not None:
        logs.configure(settings.log, settings.name)
    _guard_forks(channel)
    try:
        load_handler(settings.handler, settings.handler_path)
    except HandlerError as error:
        send_failed(channel, error.reason)
    else:
        send_ready(channel)
    channel.flush_blocking()
    return EXIT_OK


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """A handler and not SIG_IGN, because that would be inherited by the programs that a handler starts."""


def _guard_forks(channel: Channel) -> None:
    """Let processes that a handler forks have signals as usual, and no way to speak in the worker's name.

    Blocked around the fork, so that a handler that ends its child at once is not heard by our handler there.
    """
    ours = (signal.SIGTERM, signal.SIGINT)
    thread = threading.local()

    def before() -> None:
        thread.mask = signal.pthread_sigmask(signal.SIG_BLOCK, ours)

    def after() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, thread.mask)

    def in_child() -> None:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
        channel.close()
        after()

    os.register_at_fork(before=before, after_in_parent=after, after_in_child=in_child)


class _StopFlag:
    def __init__(self) -> None:
        self._noted = False

    def note(self, _number: int, _frame: FrameType | None) -> None:
        self._noted = True

    def __call__(self) -> bool:
        return self._noted


class _Worker:
    def __init__(self, channel: Channel, row: Row, settings: WorkerSettings, handler: Handler, stop: _StopFlag) -> None:
        self._channel = channel
        self._row = row
        self._handler = handler
        self._batch = settings.batch
        self._limits = Limits(soft=settings.soft_timeout, hard=settings.timeout)
        self._surroundings = Surroundings(stop=stop, progress=row.progress, max_job_bytes=settings.max_job_bytes)
        self._queue: deque[Frame] = deque()
        self._stopping = False
        self._memory_at = 0
        self._most_memory = self._first_memory = 0
        self._max_memory = settings.max_memory
        self._ran = 0
        self._spent = ""
        self._pid = os.getpid()
        self._helpers = child_pids()
        self._standard = standard_descriptors()

    def serve(self) -> int:
        self._row.say(state="ready")
        send_ready(self._channel)
        try:
            while self._channel.flush_blocking() and self._take_frames():
                self._run_next()
        except ChannelError as error:
            self._row.say(state="failed", error=error.reason)
            return EXIT_BAD_CHANNEL
        if not self._channel.eof:
            self._channel.flush_blocking()
            self._handler.close()
        self._row.say(state="ended")
        return EXIT_OK

    def _take_frames(self) -> bool:
        """Note what has come, waiting only when there is nothing to run; False: end now."""
        if self._stopping:
            return False
        frames = self._channel.receive() if self._can_run() else self._channel.recv_blocking()
        for frame in frames:
            self._note(frame)
        return not self._stopping and not self._channel.eof

    def _note(self, frame: Frame) -> None:
        match frame.header.get("t"):
            case "job":
                self._queue.append(frame)
            case "stop":
                self._stopping = True
            case unknown:
                raise ChannelError(f"the stream process sent a frame of type {unknown!r}")

    def _can_run(self) -> bool:
        """A batch starts when all of it has come."""
        return bool(self._queue) and len(self._queue) >= self._queue[0].header.get("n", 1)

    def _run_next(self) -> None:
        if not self._can_run():
            return
        frames = [self._queue.popleft() for _ in range(self._queue[0].header.get("n", 1))]
        number = frames[0].header.get("q", 1)
        if number <= self._row.recalled():
            send_dropped(self._channel, number)
            return
        claims = [claim for frame in frames if (claim := self._read_claim(frame)) is not None]
        if claims:
            self._run(claims)
        self._measure()
        if self._spent:
            send_spent(self._channel, f"{self._spent} after {self._ran} job{'' if self._ran == 1 else 's'}")
            self._stopping = True

    def _read_claim(self, frame: Frame) -> WorkItem | None:
        """The job in a frame; one that cannot be read has failed already."""
        header = frame.header
        try:
            job = decode_job(frame.body)
        except DecodingFailed as error:
            self._row.add(jobs_failed=1)
            send_out(self._channel, header["id"], Result.failed(f"the worker could not read the job: {error}"))
            return None
        return WorkItem(job=job, session=header["s"], attempt=header["a"], fence=header["f"])

    def _run(self, claims: Sequence[WorkItem]) -> None:
        if self._batch:
            self._row.start_batch([claim.job.id for claim in claims])
            results = run_batch(self._handler, claims, self._surroundings, self._limits)
        else:
            self._row.start_job(claims[0].job.id)
            results = [run_job(self._handler, claims[0], self._surroundings, self._limits)]
        self._end_a_stray_fork()
        if not self._channel.is_intact():
            raise ChannelError("the handler has closed it")
        if standard_descriptors() != self._standard:
            self._spent = "a job has closed its standard input, output or error"
        self._end_left_overs()
        ended = [(claim, result) for claim, result in zip(claims, results, strict=True) if self._counts(result)]
        done = sum(result.kind is ResultKind.SUCCESS for _, result in ended)
        self._row.end_job(done=done, failed=len(ended) - done)
        unread = _unread_words()
        for claim, result in ended:
            send_out(self._channel, claim.job.id, result, unread)
            if result.error:
                self._row.say(error=result.error)
        self._ran += len(claims)
        self._note_growth()

    def _counts(self, result: Result) -> bool:
        """Whether a run's result is the job's own, and not of the descriptors that earlier jobs have left it.

        A worker that can open nothing more is spent, or one that holds more than half of its limit and could not open
        what this job needed. In its first run all of them are the job's own.
        """
        if result.kind is not ResultKind.FAILED:
            return True
        if can_open() and not (result.lacked_descriptors and 2 * len(open_descriptors()) > descriptor_limit()):
            return True
        self._spent = "it has no descriptors left"
        return self._ran == 0

    def _end_a_stray_fork(self) -> None:
        """A handler that forks and lets the child return must not become a second worker on the same row."""
        if os.getpid() != self._pid:
            os._exit(EXIT_OK)

    def _end_left_overs(self) -> None:
        """Nothing that a job started outlives it; what the handler's module started at its import belongs to no job."""
        try:
            ended = end_left_overs(self._helpers | resource_tracker())
        except OSError as error:
            self._note_want(error)  # the stream process inherits what is left, and kills it
            return
        if ended:
            self._row.say(error=f"a job left {len(ended)} processes running; they were killed")

    def _measure(self) -> None:
        """Put the memory on the board, now and then: it costs some system calls."""
        now = time.monotonic_ns()
        if now < self._memory_at:
            return
        self._memory_at = now + _MEMORY_EVERY_NS
        rss = self._resident()
        if not can_open():
            self._spent = "it has no descriptors left"
        self._most_memory = max(self._most_memory, rss)
        self._row.set(rss=rss, max_rss=self._most_memory, heartbeat_ns=now)

    def _note_want(self, error: OSError) -> None:
        """Our own bookkeeping has met the limit, even with the reserve."""
        if error.errno not in FULL:
            raise error
        self._spent = "it has no descriptors left"

    def _note_growth(self) -> None:
        """Be spent when grown far beyond `max_memory`; up to there replacing it has time (see `Roster.weigh`).

        The peak costs almost nothing to ask, and as long as it is low there is nothing to measure.
        """
        if not self._max_memory:
            return
        if not self._first_memory:
            self._first_memory = self._resident()
            return
        most = self._first_memory + self._max_memory + FAR_BYTES
        if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT > most and (rss := self._resident()) > most:
            self._spent = f"it has grown by {(rss - self._first_memory) // 2**20} MiB"

    def _resident(self) -> int:
        """The memory that is resident now, in bytes; 0 when there is no descriptor to look with."""
        try:
            return resident_bytes()
        except OSError as error:
            self._note_want(error)
            return 0


def _unread_words() -> tuple[int, int] | None:
    """For `Out.unread`. Looking at the clock first: what is read in between is rather taken for the next job's."""
    at_ns = time.monotonic_ns()
    count = unread_bytes(2)
    return (at_ns, count) if count else None


def resource_tracker() -> frozenset[int]:
    """The one process that multiprocessing starts for its own bookkeeping and expects to stay."""
    module = sys.modules.get("multiprocessing.resource_tracker")
    pid = getattr(getattr(module, "_resource_tracker", None), "_pid", None)
    return frozenset() if pid is None else frozenset({pid})


@with_spare
def resident_bytes() -> int:
    """The memory that this process has resident now, in bytes."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * _PAGE
    except FileNotFoundError:
        return int(psutil.Process().memory_info().rss)
