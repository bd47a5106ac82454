"""`workers = 0`: the handler runs in the stream process itself. The lowest cost, and the easiest to debug.

What is lost, and the docs say so: a handler that crashes takes the stream process with it, a hard timeout cannot be
enforced, and nothing else happens in the loop while a job runs. Only the heartbeat goes on, in a small thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from queuekit import Claimed, QueueError
from queuekit.contract import Lease
from queuekit.job import Delivery
from workerpool.board import Kind, Row, RowView
from workerpool.config import StreamConfig
from workerpool.handlers import Handler, HandlerError, load_handler
from workerpool.outcome import ResultKind
from workerpool.process import Exit, KeptStandard
from workerpool.stream.crew import Death
from workerpool.stream.state import Slot, Unit
from workerpool.trouble import Trouble
from workerpool.worker.context import Surroundings
from workerpool.worker.loop import EXIT_BAD_HANDLER
from workerpool.worker.protocol import Failed, Message, Out, Ready
from workerpool.worker.run import Limits, WorkItem, run_batch, run_job

_log = logging.getLogger("workerpool.stream")


class _NoThread(Exception):
    """The system has no room for a thread now."""


class Inline:
    """What `Crew` is, with one worker that is this very process.

    `beat`: a sign of life of this process, for the board; called beside a running handler every `beat_every` seconds.
    """

    def __init__(
        self,
        row: Row,
        *,
        handler_path: Sequence[str],
        max_job_bytes: int,
        beat_every: float,
        beat: Callable[[], None],
        stop_is_waiting: Callable[[], bool],
    ) -> None:
        self._row = row
        self._handler_path = tuple(handler_path)
        self._beat_every = beat_every
        self._beat = beat
        self._surroundings = Surroundings(stop=stop_is_waiting, progress=row.progress, max_job_bytes=max_job_bytes)
        self._slot: Slot | None = None
        self._handler: Handler | None = None
        self._config: StreamConfig | None = None
        self._units: deque[tuple[Unit, Lease]] = deque()
        self._said: list[Message] = []
        self._ended: int | None = None
        self._tried: str | None = None
        self._claims = 0
        self._standard: KeptStandard | None = None
        self._beating = Trouble("running a job beside a heartbeat", _log)

    def __len__(self) -> int:
        return 0 if self._slot is None else 1

    @property
    def pending(self) -> bool:
        """Whether a unit can be run, or something waits to be said."""
        can_run = bool(self._units) and not self._beating.blocks(time.monotonic())
        return bool(can_run or self._said or self._ended is not None or self._tried is not None)

    def next(self, now: float) -> float | None:  # noqa: ARG002
        """When to try again to run a unit that could not be run: the system had no room for a thread."""
        return self._beating.until if self._units and self._beating.lasts else None

    def death(self, slot: Slot) -> Death:  # noqa: ARG002
        """It has ended because it was told to."""
        return Death()

    def start(self, slot: Slot, config: StreamConfig) -> None:
        """Import the handler into this process. Raises `OSError` when no descriptor is left, with nothing changed."""
        self._standard = self._standard or KeptStandard()
        self._slot, self._config = slot, config
        self._row.take(kind=Kind.WORKER, stream=config.name, name=f"{config.name}-inline")
        try:
            self._handler = load_handler(config.handler, self._handler_path)
        except HandlerError as error:
            self._said.append(Failed(error.reason))
            self._ended = EXIT_BAD_HANDLER
        else:
            self._row.say(state="ready")
            self._said.append(Ready())

    def try_out(self, config: StreamConfig) -> None:
        """Import a configuration's handler; here, for there is no other process."""
        try:
            load_handler(config.handler, self._handler_path)
        except HandlerError as error:
            self._tried = error.reason
        else:
            self._tried = ""

    def tried(self) -> str | None:
        """Once, after `try_out`: why the handler cannot be imported, "" when it can; else None."""
        told, self._tried = self._tried, None
        return told

    def give(self, slot: Slot, unit: Unit, lease: Lease) -> None:  # noqa: ARG002
        """Queue a unit; it runs at the next `messages`."""
        self._units.append((unit, lease))

    def messages(self) -> Iterator[tuple[Slot, Message]]:
        """What is to be said; then one unit is run, and how it ended is said too."""
        slot = self._slot
        if slot is None:
            return
        said, self._said = self._said, []
        yield from ((slot, message) for message in said)
        if self._units and self._handler is not None and self._config is not None:
            yield from ((slot, message) for message in self._run_next(self._handler, self._config))

    def _run_next(self, handler: Handler, config: StreamConfig) -> list[Message]:
        """Run one unit beside a heartbeat; without one it waits, for its lease would be lost."""
        now = time.monotonic()
        if self._beating.blocks(now):
            return []
        unit, lease = self._units[0]
        try:
            with self._heartbeats(lease):
                self._beating.over(now)
                self._units.popleft()
                return self._run(handler, config, unit, lease)
        except _NoThread as error:
            self._beating.met(error, now)
            return []

    def _run(self, handler: Handler, config: StreamConfig, unit: Unit, lease: Lease) -> list[Message]:
        limits = Limits(soft=config.soft_timeout, hard=config.timeout)
        items = [self._item(claimed, lease) for claimed in unit.claims]
        own_pid = os.getpid()
        self._row.start_batch(unit.job_ids) if config.batch_size > 1 else self._row.start_job(unit.job_ids[0])
        if config.batch_size > 1:
            results = run_batch(handler, items, self._surroundings, limits)
        else:
            results = [run_job(handler, items[0], self._surroundings, limits)]
        if os.getpid() != own_pid:  # a handler has forked and let the child return: it must not work the stream, too
            os._exit(0)
        self._put_back_standard()
        done = sum(result.kind is ResultKind.SUCCESS for result in results)
        self._row.end_job(done=done, failed=len(results) - done)
        return [Out(job_id, result) for job_id, result in zip(unit.job_ids, results, strict=True)]

    def _put_back_standard(self) -> None:
        """What a handler has closed would be the number of our next file, and the log be written into that."""
        if self._standard is None or not (closed := self._standard.put_back()):
            return
        _log.warning("a job has closed descriptors %s of the stream's process; they were put back", closed)

    def _item(self, claimed: Claimed, lease: Lease) -> WorkItem:
        self._claims += 1
        job, attempt = claimed.job, Delivery.of(claimed.job).attempt + 1
        number = lease.run_number(self._claims, attempt)
        return WorkItem(job=job, session=claimed.session_id, attempt=attempt, fence=number)

    @contextlib.contextmanager
    def _heartbeats(self, lease: Lease) -> Iterator[None]:
        """Renew the lease beside the handler; what goes wrong there the loop finds when it looks itself."""
        over = threading.Event()
        trouble = Trouble("renewing the lease beside the running handler", _log)

        def beat() -> None:
            while not over.wait(self._beat_every):
                self._beat()
                try:
                    lease.heartbeat()
                except (QueueError, OSError) as error:
                    trouble.met(error, time.monotonic())
                else:
                    trouble.over(time.monotonic())

        thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise _NoThread(str(error)) from error
        try:
            yield
        finally:
            over.set()
            thread.join()

    def recall(self, slot: Slot) -> RowView:  # noqa: ARG002
        """Nothing runs while the loop does, so what waits can be taken back at once."""
        return self._row.view()

    def view(self, slot: Slot) -> RowView:  # noqa: ARG002
        """What the handler's row says."""
        return self._row.view()

    def stop(self, slot: Slot) -> None:  # noqa: ARG002
        """End at the next `reap`."""
        self._ended = 0

    def kill(self, slot: Slot) -> None:  # noqa: ARG002
        """The same: between two turns nothing runs."""
        self._ended = 0

    def kill_all(self) -> None:
        """End at the next `reap`, without what waits."""
        if self._slot is not None:
            self._units.clear()
            self._ended = 0

    def tell(self, signal_number: int) -> None:
        """There is nobody to tell."""

    def ask_where(self, slot: Slot) -> None:
        """Nothing runs while anybody could ask."""

    def ask_to_stop(self) -> None:
        """There is nobody to ask."""

    def flush(self) -> None:
        """Nothing is sent."""

    def reap(self) -> list[tuple[Slot, Exit, RowView, list[Message]]]:
        """This worker, once it was told to end."""
        slot, code = self._slot, self._ended
        if slot is None or code is None:
            return []
        said, self._said = self._said, []
        if self._handler is not None:
            self._handler.close()
        self._slot, self._ended, self._handler = None, None, None
        self._units.clear()
        return [(slot, Exit(pid=0, code=code, signal=None, max_rss=0), self._row.view(), said)]

    def close(self) -> None:
        """Forget everything."""
        if self._standard is not None:
            self._standard.close()
        self._slot = self._standard = None
        self._units.clear()
