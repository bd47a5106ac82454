"""A pool of its own, with handlers that do nothing: what a job costs from end to end, and how soon one starts.

The pool is `workerpool run` in a process group of its own, so that an interrupt at the terminal is not meant for it; it
ends with this process, however that ends. How far it is is read from its board, which costs it nothing. A handler says
itself when it was started, by the clock that all processes of a machine share.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import NoReturn

from queuekit import QueueKit, StreamID
from queuekit.clock import ProcessClock
from workerpool.board import Board, BoardError, Kind, RowView, find_boards
from workerpool.cli.benching.figures import Figure
from workerpool.cli.benching.phases import SENT_AT_ONCE, Tell, new_job
from workerpool.cli.benching.scratch import Scratch
from workerpool.cli.main import FAILED, Refusal
from workerpool.process import Child, kill_group, spawn

WORK, START = StreamID("work"), StreamID("start")
_PATIENCE_SECONDS = 60.0
_STOP_SECONDS = 15.0
_POLL_SECONDS = 0.002
_REST_SECONDS = 0.01  # after a job, until a pool certainly waits again
_STAMPS = "started"
HANDLERS = f"""\
import os
import time

STAMPS = os.open(os.path.join(os.path.dirname(__file__), "{_STAMPS}"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def nothing(job):
    pass


def stamp(job):
    os.write(STAMPS, b"%d\\n" % time.monotonic_ns())
"""


class IdlePool:
    """A pool on a scratch store; ready when it is made, to be stopped with `stop`.

    Raises `Refusal` when it does not get ready.
    """

    def __init__(self, scratch: Scratch, durability: str) -> None:
        self._scratch = scratch
        self._log = os.path.join(scratch.folder, "pool.log")
        self._stamps = os.path.join(scratch.folder, _STAMPS)
        config = os.path.join(scratch.folder, "config.toml")
        _write(os.path.join(scratch.folder, "handlers.py"), HANDLERS)
        _write(config, _config(scratch.url, durability))
        self._child: Child | None = spawn(lambda: self._become(config), name="bench pool", own_group=True)
        try:
            self._wait_for_streams()
        except BaseException:
            self.stop()
            raise

    def _become(self, config: str) -> NoReturn:
        log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("WORKERPOOL_")}
        os.execve(sys.executable, [sys.executable, "-P", "-m", "workerpool", "run", config], kept)  # noqa: S606

    def _wait_for_streams(self) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not all(self._is_ready(stream) for stream in (WORK, START)):
            self._check_alive()
            if time.monotonic() > deadline:
                raise Refusal(f"the pool was not ready within {_PATIENCE_SECONDS:g} s; its log: {self._tail()}", FAILED)
            time.sleep(_POLL_SECONDS)

    def _is_ready(self, stream: str) -> bool:
        row = self._row(stream)
        return row is not None and row.lease == "held" and row.state == "running"

    def _row(self, stream: str) -> RowView | None:
        for path, alive in find_boards(self._scratch.boards):
            if not alive:
                continue
            with contextlib.suppress(BoardError, OSError):
                board = Board.attach(path)
                try:
                    rows = board.rows()
                finally:
                    board.close()
                return next((row for row in rows if row.kind is Kind.STREAM and row.stream == stream), None)
        return None

    def _check_alive(self) -> None:
        child = self._child
        if child is not None and os.waitpid(child.pid, os.WNOHANG)[0]:
            self._child = None
            raise Refusal(f"the pool has ended; its log: {self._tail()}", FAILED)

    def _tail(self) -> str:
        with open(self._log, encoding="utf-8", errors="replace") as file:
            return file.read()[-1000:].strip()

    def done(self, stream: str) -> int:
        """How many jobs of the stream it has ended. Raises `Refusal` when it does not live any more."""
        self._check_alive()
        row = self._row(stream)
        return row.jobs_done if row is not None else 0

    def wait_for(self, stream: str, count: int) -> Iterator[int]:
        """Until that many have ended: how many have so far, again and again."""
        done, moved = self.done(stream), time.monotonic()
        while done < count:
            yield done
            time.sleep(_POLL_SECONDS)
            before, done = done, self.done(stream)
            if done > before:
                moved = time.monotonic()
            elif time.monotonic() - moved > _PATIENCE_SECONDS:
                raise Refusal(f"the pool has stood still for {_PATIENCE_SECONDS:g} s; its log: {self._tail()}", FAILED)

    def starts_ns(self) -> list[int]:
        """When the jobs of `START` were started; monotonic."""
        with open(self._stamps, encoding="ascii") as file:
            return [int(line) for line in file.read().split()]

    def stop(self) -> None:
        """End it, by force when it takes too long; any number of times."""
        child, self._child = self._child, None
        if child is None:
            return
        os.kill(child.pid, signal.SIGTERM)
        deadline = time.monotonic() + _STOP_SECONDS
        while not os.waitpid(child.pid, os.WNOHANG)[0]:
            if time.monotonic() > deadline:
                kill_group(child.pid, child.start, signal.SIGKILL, session=child.session)
                os.waitpid(child.pid, 0)
                return
            time.sleep(_POLL_SECONDS)


def measure_pool(queue: QueueKit, pool: IdlePool, count: int, starts: int, tell: Tell) -> Iterator[Figure]:
    """Two figures. `count`: jobs of the first, sent in batches; `starts`: of the second, each sent to an idle pool."""
    clock = ProcessClock()
    yield _end_to_end(queue, pool, count, clock, tell)
    yield _start_latency(queue, pool, starts, clock, tell)


def _end_to_end(queue: QueueKit, pool: IdlePool, count: int, clock: ProcessClock, tell: Tell) -> Figure:
    what = "pool of 1 worker: sent, run, ended"
    begun = time.perf_counter()
    for sent in range(0, count, SENT_AT_ONCE):
        queue.send_batch([new_job(WORK, clock) for _ in range(min(SENT_AT_ONCE, count - sent))])
    for done in pool.wait_for(WORK, count):
        tell(what, done, count)
    return Figure(key="end_to_end", what=what, jobs=count, seconds=time.perf_counter() - begun)


def _start_latency(queue: QueueKit, pool: IdlePool, count: int, clock: ProcessClock, tell: Tell) -> Figure:
    what = "idle pool: from calling send to the handler"
    sent = []
    for number in range(count):
        tell(what, number, count)
        time.sleep(_REST_SECONDS)
        job = new_job(START, clock)
        sent.append(time.monotonic_ns())
        queue.send(job)
        for _ in pool.wait_for(START, number + 1):
            continue
    each = tuple((start - at) / 1e6 for start, at in zip(pool.starts_ns(), sent, strict=True))
    return Figure(key="start_latency", what=what, jobs=count, seconds=None, each_ms=each)


def _config(url: str, durability: str) -> str:
    """JSON's strings are TOML's here."""
    return (
        f"[store]\nurl = {json.dumps(url)}\ndurability = {json.dumps(durability)}\n"
        '[handlers]\npath = ["."]\n[telemetry]\nhooks = []\n[defaults]\nretries = 0\n'
        f'[streams.{WORK}]\nhandler = "handlers:nothing"\n[streams.{START}]\nhandler = "handlers:stamp"\n'
    )


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="utf-8") as file:
        file.write(text)
