"""The pools of a store as their boards show them: who runs, what each process does, and whether a stream is well.

Nobody is asked and nothing is locked: the boards are read. A pool that was killed leaves its board, so that what was
running can still be told.

A stream is well only when its handler has been seen to load. Each restart begins a row anew, so a fresh sign of life
proves nothing: a stream whose processes die again and again is `failing`, however new the present one is.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator

import psutil

from queuekit import BackendUnavailable
from workerpool.board import Board, BoardError, BoardHeader, Kind, RowView, find_boards, find_elsewhere, find_lost
from workerpool.process import NOT_THERE, boot_id, is_running

UNSTEADY_RESTARTS = 3
STEADY_SECONDS = 60.0
_NOT_READY = {"starting", "failed", "failing"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StreamRows:
    """One stream process and its workers. `alive`: the process that owns the row runs."""

    row: RowView
    workers: tuple[RowView, ...]
    alive: bool

    @property
    def health(self) -> str:
        """`failing`, or the state that its process says: `starting`, `running`, `stopping`, `ended`."""
        return "failing" if self.trouble else self.row.state

    @property
    def trouble(self) -> str:
        """Why the stream is failing; "" when it is not (or is being started for the first time)."""
        if self.row.state in {"stopping", "ended"}:
            return ""
        if self.row.state == "failing":
            return self.row.error or "its handler cannot be loaded"
        if not self.alive:
            return self.row.error or "its process died and is started again"
        if self._restarts_without_rest():
            return self.row.error or f"its process was restarted {self.row.restarts} times and is not steady"
        return self._trouble_of_workers()

    @property
    def cannot_load(self) -> bool:
        """Whether the trouble is that its handler cannot be imported: somebody has to mend that."""
        return bool(self.trouble) and any(row.state in {"failing", "failed"} for row in (self.row, *self.workers))

    def _restarts_without_rest(self) -> bool:
        return self.row.restarts >= UNSTEADY_RESTARTS and _age(self.row.pid) < STEADY_SECONDS

    def _trouble_of_workers(self) -> str:
        """Workers die by themselves and are replaced; but when none gets ready any more, nothing is worked."""
        members = [row for row in self.workers if row.state != "ended"]
        if not members or any(row.state not in _NOT_READY and row.owner_is_running() for row in members):
            return ""
        restarts = sum(row.restarts for row in members)
        if restarts < (1 if self.row.state == "starting" else UNSTEADY_RESTARTS):
            return next((row.error for row in members if row.state == "failed"), "")
        error = next((row.error for row in members if row.error), "")
        return error or f"no worker gets ready: {restarts} were started again so far"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A pool by its board. `alive`: its master runs; `same_boot`: its monotonic times can be compared with ours.

    `lost`: the board's file was removed, and only its processes have it still.
    """

    header: BoardHeader
    alive: bool
    same_boot: bool
    master: RowView | None
    streams: tuple[StreamRows, ...]
    lost: bool = False

    def stream(self, name: str) -> StreamRows | None:
        """The stream of that name here."""
        return next((each for each in self.streams if each.row.stream == name), None)

    @property
    def survivors(self) -> list[RowView]:
        """The rows of processes that still run: of a dead pool, those that have outlived its master."""
        streams = [stream.row for stream in self.streams if stream.row.state != "ended" and stream.alive]
        return [*streams, *(row for row in self.workers() if row.state != "ended" and row.owner_is_running())]

    def workers(self) -> Iterator[RowView]:
        """Every worker."""
        for stream in self.streams:
            yield from stream.workers


def read_pools(directory: str) -> list[Pool]:
    """The pools with a board in `directory`, living ones first, the newest first among each.

    Where none lives by these, those are looked for whose board was removed from there. Raises `BackendUnavailable`
    when the directory cannot be listed.
    """
    try:
        boards = find_boards(directory)
    except OSError as error:
        raise BackendUnavailable(f"cannot list {directory}: {error.strerror}") from error
    pools = [pool for path, alive in boards if (pool := _read(path, alive=alive)) is not None]
    if not any(pool.alive for pool in pools):
        pools += [pool for path in find_lost(directory) if (pool := _read(path, alive=True, lost=True)) is not None]
    return sorted(pools, key=lambda pool: (not pool.alive, -pool.header.created_ms))


def pools_elsewhere(directory: str, config: str | None) -> list[tuple[Pool, str]]:
    """The living pools that run with this configuration file, but on a store that is not here (any more).

    Each with the folder where its board is now. Where a pool's store was moved away only its own processes tell.
    """
    found = []
    for path, target in find_elsewhere(directory, config) if config else ():
        pool = _read(path, alive=True, lost=True)
        if pool is not None and pool.alive:
            found.append((pool, os.path.dirname(target)))
    return found


def about_elsewhere(pool: Pool, folder: str) -> str:
    """What to say of one of these, and what to do."""
    pid, where = pool.header.pid, os.path.dirname(folder)
    return (
        f"pool {pid} of this configuration works a store in {where}: move it back, or `kill -TERM {pid}` ends the pool"
    )


def running_for(row: RowView, same_boot: bool = True) -> float:
    """Seconds since the row's job started (or its last one ended)."""
    if same_boot:
        return max(0.0, (time.monotonic_ns() - row.since_ns) / 1e9)
    return max(0.0, time.time() - row.since_ms / 1000)


def who_runs(pools: list[Pool], job_id: str) -> tuple[Pool, RowView] | None:
    """The living worker that runs a job now; where none is, the one that a dead pool's board shows with it."""
    for pool in pools:
        for row in pool.workers():
            if row.runs(job_id) and (not pool.alive or row.owner_is_running()):
                return pool, row
    return None


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped (SIGSTOP, Ctrl-Z, a debugger) and does nothing until it is continued."""
    try:
        return bool(pid > 0 and psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except NOT_THERE:
        return False


def _is_its_maker(pid: int, path: str) -> bool:
    """Whether the process is of the user whose board this is: root may look at anybody's, and signals whom it names."""
    try:
        return bool(psutil.Process(pid).uids().effective == os.stat(path).st_uid)
    except NOT_THERE:
        return False


def _read(path: str, *, alive: bool, lost: bool = False) -> Pool | None:
    try:
        board = Board.attach(path, follow=lost)
    except (BoardError, OSError):  # of another version, or gone meanwhile: nothing to show
        return None
    try:
        header, rows = board.header, board.rows()
        alive = alive and is_running(header.pid, header.start) and _is_its_maker(header.pid, path)
    except OSError:
        return None
    finally:
        board.close()
    return Pool(
        header=header,
        alive=alive,
        same_boot=header.boot == boot_id(),
        master=next((row for row in rows if row.kind is Kind.MASTER), None),
        streams=tuple(_streams(rows)),
        lost=lost,
    )


def _streams(rows: list[RowView]) -> Iterator[StreamRows]:
    for row in rows:
        if row.kind is Kind.STREAM:
            workers = tuple(each for each in rows if each.kind is Kind.WORKER and each.stream == row.stream)
            yield StreamRows(row=row, workers=workers, alive=row.owner_is_running())


def _age(pid: int) -> float:
    """Seconds since a process started; 0 when it is gone."""
    try:
        return max(0.0, time.time() - psutil.Process(pid).create_time())
    except NOT_THERE:
        return 0.0
