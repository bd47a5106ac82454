"""What a freshly forked stream process does before its loop: logging, telemetry, the queue, its place on the board."""

from __future__ import annotations

import dataclasses
import faulthandler
import logging
import selectors
import signal
from collections.abc import Callable, Sequence

from queuekit import QueueError, QueueKit
from queuekit.telemetry import install, set_enabled
from queuekit.telemetry.shared_window import SharedLatencyWindowBox
from workerpool import logs
from workerpool.board import Board
from workerpool.config import PoolConfig, StreamConfig
from workerpool.process import Channel, ChannelError, SignalPipe
from workerpool.reporting import Reports
from workerpool.stream.crew import Crew
from workerpool.stream.inline import Inline
from workerpool.stream.loop import Stream
from workerpool.stream.succession import in_place

EXIT_STORE = 3
_PATIENCE_SECONDS = 0.5
_MOST_SAID = 200
_log = logging.getLogger("workerpool.stream")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What the master gives a stream process: its rows on the board, the shared files, the way to the reporter."""

    board: Board
    first_row: int
    rows: int
    directory: str
    window: str
    reports: Reports
    keep: Sequence[int]
    burst: bool


def stream_main(config: StreamConfig, pool: PoolConfig, master: Channel, place: Place) -> int:
    """Be the process of one stream; returns the exit code. To be the target of `spawn`.

    An error that nobody has foreseen leaves it, after its master was told of it.
    """
    try:
        return _be_stream(config, pool, master, place)
    except Exception as error:
        say_why(master, error)
        raise


def say_why(master: Channel, error: Exception, *, lacks_store: bool = False) -> None:
    """Tell the master why this process ends, if it listens; `lacks_store`: it cannot open the store."""
    said = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {said[-1]}" if said else type(error).__name__
    try:
        master.send({"t": "dying", "error": text[:_MOST_SAID], "store": lacks_store})
        master.flush()
    except (ChannelError, OSError) as failure:
        _log.warning("the master cannot be told why this process ends: %s", failure)


def _be_stream(config: StreamConfig, pool: PoolConfig, master: Channel, place: Place) -> int:
    logs.configure(pool.log, config.name)
    faulthandler.unregister(signal.SIGUSR2)  # the master's: spawn has put the default action in its place
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    install(place.reports.hook())
    set_enabled(bool(pool.telemetry.hooks))
    predecessor = in_place(place.board, place.first_row, place.rows - 1)
    row = place.board.row(place.first_row)
    worker_rows = [place.board.row(place.first_row + 1 + index) for index in range(place.rows - 1)]

    def crew(selector: selectors.BaseSelector, stop_is_waiting: Callable[[], bool]) -> Crew | Inline:
        if config.workers:
            return Crew(
                selector,
                worker_rows,
                handler_path=pool.handlers.path,
                max_job_bytes=pool.store.max_job_bytes,
                log=logs.settled(pool.log),
                keep=lambda: place.keep,
            )
        return Inline(
            worker_rows[0],
            handler_path=pool.handlers.path,
            max_job_bytes=pool.store.max_job_bytes,
            beat_every=pool.lease.heartbeat,
            beat=row.beat,
            stop_is_waiting=stop_is_waiting,
        )

    try:
        queue = open_queue(pool, latency=SharedLatencyWindowBox(place.window))
        stream = Stream(
            config,
            pool,
            queue=queue,
            master=master,
            row=row,
            crew=crew,
            directory=place.directory,
            predecessor=predecessor,
            burst=place.burst,
            signals=SignalPipe(),
        )
    except (QueueError, OSError) as error:
        _log.error("the store cannot be used: %s", error)
        say_why(master, error, lacks_store=True)
        return EXIT_STORE
    return stream.run()


def open_queue(pool: PoolConfig, latency: SharedLatencyWindowBox | None = None) -> QueueKit:
    """The queue that a configuration names, for a loop: it waits for no lock for long. Raises `QueueError`."""
    store = pool.store
    return QueueKit.open(
        store.url,
        estate=store.estate,
        durability=store.durability.value,
        max_job_bytes=store.max_job_bytes,
        latency=latency,
        report_interval=pool.telemetry.interval,
        patience=_PATIENCE_SECONDS,
        poll=pool.watch.poll,
    )
