"""Puts a pool together: the store is tried, the board and the shared window are made, and the master runs.

The only module that knows master and stream both; they do not know each other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import time
from collections.abc import Callable, Sequence

from queuekit import BackendUnavailable, QueueError, QueueKit
from queuekit.telemetry.shared_window import SharedLatencyWindowBox
from queuekit.watch import warm_up
from workerpool import logs
from workerpool.board import Board, Kind, sweep
from workerpool.config import PoolConfig, StreamConfig
from workerpool.config_source import line_of
from workerpool.errors import ConfigError, Problem, TooFewDescriptors
from workerpool.locations import make_board_directory
from workerpool.master.desk import EXIT_USAGE, Workplace, rows_of
from workerpool.master.loop import Master
from workerpool.process import Channel, descriptor_limit
from workerpool.reporting import Reports
from workerpool.stream.process import Place, open_queue, stream_main
from workerpool.stream.reserve import Reserve, means_full
from workerpool.systemd import Notifier

SPARE_STREAM_ROWS = 64
_DESCRIPTORS, _DESCRIPTORS_PER_WORKER, _DESCRIPTORS_PER_STREAM = 32, 4, 1
_LOOKED_AT = 10_000
_log = logging.getLogger("workerpool.master")


def run(
    config: PoolConfig,
    *,
    reload: Callable[[], PoolConfig] | None,
    burst: bool,
    only: Sequence[str],
    standby: bool = True,
) -> int:
    """Run a pool in this process until it ends; returns the exit code of `workerpool run`.

    `reload`: reads the configuration again (at HUP), None: it cannot be. `burst`: end when nothing is outstanding.
    `only`: the streams to work, empty = all. `standby=False`: end with 4 when another pool works one of them.

    Raises `ConfigError` and `TooFewDescriptors` before anything is started, `QueueError` when the store cannot be used.
    The process must have no threads; its signal handlers are the pool's meanwhile.
    """
    streams = _chosen(config, only)
    refuse_unsupported(config)
    _check_descriptors(streams)
    logs.configure(config.log, "master")
    rows = 1 + sum(rows_of(stream) for stream in streams) + SPARE_STREAM_ROWS
    quarters = _move_in(config, rows)
    warm_up()
    reports = Reports(config.telemetry.hooks)

    def be_stream(stream: StreamConfig, master: Channel, first_row: int, count: int) -> int:
        place = Place(
            board=quarters.board,
            first_row=first_row,
            rows=count,
            directory=quarters.directory,
            window=quarters.window,
            reports=reports,
            keep=reports.descriptors(),
            burst=burst,
        )
        return stream_main(stream, config, master, place)

    def move_on() -> Board:
        nonlocal quarters
        left, quarters = quarters, _move_in(config, rows)
        left.close()
        return quarters.board

    place = Workplace(
        board=quarters.board,
        be_stream=be_stream,
        be_reporter=(lambda: reports.serve(config)) if reports.foreign else None,
        reload=None if reload is None else lambda: _narrowed(reload(), only),
        move_on=move_on,
        keep=reports.descriptors(),
        notifier=Notifier(),
    )
    master = Master(_narrowed(config, only), streams, place, burst=burst, standby=standby)
    names = ", ".join(stream.name for stream in streams)
    _log.info("pool %d starts%s: %s", os.getpid(), " a burst" if burst else "", names)
    begun = time.monotonic()
    code = master.run()
    taken_over = {row.stream: row.held_ms for row in quarters.board.rows() if row.kind is Kind.STREAM}
    sweep(quarters.directory, keep=[quarters.board.path], taken_over=taken_over)
    if burst and code != EXIT_USAGE:
        with contextlib.suppress(QueueError), open_queue(config) as queue:
            _mention_strangers(config, queue)
        _summarise(master, time.monotonic() - begun, quarters.box)
    quarters.close()
    reports.close()
    return code


def _check_descriptors(streams: Sequence[StreamConfig]) -> None:
    """Raise `TooFewDescriptors` where processes could not even be set up; what handlers need comes on top."""
    needed = descriptors_needed(streams)
    if descriptor_limit() < needed:
        raise TooFewDescriptors(needed, descriptor_limit())


def descriptors_needed(streams: Sequence[StreamConfig]) -> int:
    """How many descriptors the largest process of a pool with these streams needs, apart from what handlers open."""
    workers = max((stream.workers for stream in streams), default=0)
    return _DESCRIPTORS + _DESCRIPTORS_PER_WORKER * workers + _DESCRIPTORS_PER_STREAM * len(streams)


def refuse_unsupported(config: PoolConfig) -> None:
    """Raise `ConfigError` for what a configuration may say and this version cannot do: it must not be ignored."""
    file = config.path or "config"
    problems = []
    if config.http.listen:
        line = line_of(config.path, ("http", "listen"), lambda listen: listen == config.http.listen)
        problems.append(Problem(file, line, "http.listen", "this version serves no page; leave it empty"))
    if problems:
        raise ConfigError(problems)


def _chosen(config: PoolConfig, only: Sequence[str]) -> list[StreamConfig]:
    unknown = [name for name in only if config.stream(name) is None]
    if unknown:
        known = ", ".join(stream.name for stream in config.streams)
        file = config.path or "config"
        raise ConfigError(
            [Problem(file, None, "streams", f"no stream {name!r}; there are {known}") for name in unknown]
        )
    return [stream for stream in config.streams if not only or stream.name in only]


def _narrowed(config: PoolConfig, only: Sequence[str]) -> PoolConfig:
    """The configuration with the chosen streams; one that it names no more is left out."""
    return dataclasses.replace(config, streams=tuple(s for s in config.streams if not only or s.name in only))


@dataclasses.dataclass(frozen=True, slots=True)
class _Quarters:
    """What a pool has of its own in its store: a folder with its board and the shared window."""

    directory: str
    window: str
    box: SharedLatencyWindowBox
    board: Board

    def close(self) -> None:
        """Leave them; the board's file stays, so that `status` can tell of the last run, until the next pool ends."""
        self.board.close()
        self.box.close()


def _move_in(config: PoolConfig, rows: int) -> _Quarters:
    directory = _try_store(config)
    if config.store.scheme == "dir":
        _make_reserve(directory)
    board = _make_board(directory, rows, config)
    window = os.path.join(directory, "latency")
    try:
        box = SharedLatencyWindowBox(window)
        box.reset()
    except BaseException:
        board.remove()
        raise
    return _Quarters(directory, window, box, board)


def _make_board(directory: str, rows: int, config: PoolConfig) -> Board:
    try:
        return Board.create(directory, rows, config.path or "")
    except OSError as error:
        if not (means_full(error) and _gave_up_reserve(directory)):
            raise BackendUnavailable(f"cannot make the board in {directory}: {error.strerror}") from error
    return _make_board(directory, rows, config)


def _try_store(config: PoolConfig) -> str:
    """Open the store once and close it again; returns the folder for what belongs to the pool."""
    with open_queue(config) as queue:
        _mention_strangers(config, queue)
    return make_board_directory(config)


def _make_reserve(directory: str) -> None:
    """Room for the day when the disk is full; a pool runs without it, too."""
    try:
        Reserve(directory).make()
    except OSError as error:
        _log.warning("no room is kept for when the disk is full: %s", error.strerror or error)


def _gave_up_reserve(directory: str) -> bool:
    """Whether there was a reserve to make room with, so that the pool can start."""
    try:
        given = Reserve(directory).give_up()
    except OSError as error:
        _log.error("the reserve cannot be given up: %s", error)
        return False
    if given:
        _log.warning("the disk is full: the reserve was given up, so that the pool can start")
    return given


def _mention_strangers(config: PoolConfig, queue: QueueKit) -> None:
    """Jobs of streams that nobody works here are not waited for; they shall not be forgotten either.

    Those of a few are overlooked behind a long backlog, which the start must not wait for; `status` names them.
    """
    for name in sorted(queue.backend.streams(_LOOKED_AT) - {stream.name for stream in config.streams}):
        _log.warning("stream %r has jobs and is not configured: nobody works them here", name)


def _summarise(master: Master, seconds: float, box: SharedLatencyWindowBox) -> None:
    done, blocked, retried = master.counts
    p50, p95 = box.percentiles()
    total = done + blocked
    rate = total / seconds if seconds else 0.0
    text = (
        f"{total:,} job{'' if total == 1 else 's'} in {seconds:.1f} s ({rate:,.0f} jobs/s), {blocked} blocked, "
        f"{retried} retried; "
        f"drain p50 {p50:.1f} ms, p95 {p95:.1f} ms\n"
    )
    try:
        os.write(1, text.encode())
    except OSError as error:  # the work is done, and that is what the exit code tells
        _log.warning("cannot write to standard output (%s): %s", error.strerror, text.rstrip())
