"""Taking over from a stream process that died: its workers are killed, and the jobs that they were running are charged.

Who the predecessor was, the lease says; what it was doing, its rows on a board say: those of this very place (a restart
in the same pool, read before they are taken again), or those of another pool on the same root. Charged is once, by
whoever replaced that lease. Nobody is charged after a reboot, and nobody whose stream process still lives (it is only
stopped, and its worker may be at work).
"""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import time
from collections.abc import Sequence

from workerpool.board import DIED, KILLED, Board, BoardError, Kind, RowView, find_boards
from workerpool.process import boot_id, is_running, kill_group

_log = logging.getLogger("workerpool.stream")
_DEATH_SECONDS = 2.0


@dataclasses.dataclass(frozen=True, slots=True)
class Predecessor:
    """The rows of a stream process: its own, and its workers'. Its row's `name` is the owner in its lease.

    `pool`: which other pool it was of, in words; "" when it was of this one.
    """

    stream: RowView
    workers: tuple[RowView, ...]
    killed_by_master: bool = False
    pool: str = ""

    def running_jobs(self) -> list[tuple[str, str]]:
        """`(job id, how its worker was lost)` of what ran when the process died and is charged for that.

        Of batches none is known to blame, and nobody is when their pool killed them itself.
        """
        return [(row.job, self._how(row)) for row in self._running() if not self._is_blameless(row)]

    def blameless_runs(self) -> list[str]:
        """What else ran then, a sentence each, for the log: their jobs run again, and nothing else tells of these."""
        return [self._cut_short(row) for row in self._running() if self._is_blameless(row)]

    def _cut_short(self, worker: RowView) -> str:
        ran = f"job {worker.job}{_others(worker)} ran in {worker.name} since {_utc(worker.since_ms)}"
        return f"{ran} and was cut short{self._by_whom()}; it is charged nothing and runs again"

    def _running(self) -> list[RowView]:
        return [row for row in self.workers if row.job]

    def _is_blameless(self, worker: RowView) -> bool:
        return self.killed_by_master or worker.batch != 1

    def _by_whom(self) -> str:
        return f" when {self.pool or 'its pool'} killed it" if self.killed_by_master else self._with_what().rstrip(",")

    def _how(self, worker: RowView) -> str:
        if worker.pid == self.stream.pid:
            lost = f"its stream's process, in which it ran (workers = 0), {self._fate()}"
        else:
            lost = f"{worker.name} died{self._with_what()} while it ran this job"
        return f"{lost}\nthe run had begun {_utc(worker.since_ms)}; it is charged as a crash"

    def _with_what(self) -> str:
        of = f" (of {self.pool})" if self.pool else ""
        return f" with its stream's process{of}, which {self._fate()},"

    def _fate(self) -> str:
        return self.stream.error if self.stream.state == DIED else "was killed, nobody saw by whom"


def _others(row: RowView) -> str:
    return f" (with {row.batch - 1} others)" if row.batch > 1 else ""


def _utc(at_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at_ms / 1000))


def in_place(board: Board, first: int, count: int) -> Predecessor:
    """What the rows of a place say before they are taken again."""
    return Predecessor(board.view(first), tuple(board.view(first + 1 + each) for each in range(count)))


def find(owner: str, directory: str, in_place: Predecessor | None) -> Predecessor | None:
    """The dead stream process that held a lease as `owner`; None when nothing is known of it, or it still lives."""
    if in_place is not None and in_place.stream.name == owner:
        return in_place if _is_dead(in_place.stream) else None
    for path, _ in find_boards(directory):
        found = _on_board(path, owner)
        if found is not None:
            return found
    return None


def _on_board(path: str, owner: str) -> Predecessor | None:
    try:
        board = Board.attach(path)
    except (BoardError, OSError):
        return None
    try:
        if board.header.boot != boot_id():
            return None
        rows, pool = board.rows(), f"pool {board.header.pid}"
    finally:
        board.close()
    killed = any(row.kind is Kind.MASTER and row.state == KILLED for row in rows)
    for place, row in enumerate(rows):
        if row.kind is Kind.STREAM and row.name == owner:
            workers = tuple(_workers_of(rows[place + 1 :], row))
            return Predecessor(row, workers, killed, pool) if _is_dead(row) else None
    return None


def _workers_of(rows: Sequence[RowView], stream: RowView) -> list[RowView]:
    workers = []
    for row in rows:
        if row.kind is not Kind.WORKER or row.stream != stream.stream:
            break
        workers.append(row)
    return workers


def _is_dead(row: RowView) -> bool:
    return row.kind is Kind.STREAM and not is_running(row.pid, row.start)


def kill_left_over(workers: Sequence[RowView]) -> None:
    """Kill the process groups that a dead stream process left, and wait until they are gone."""
    left = [row for row in workers if row.kind is Kind.WORKER and row.pid != os.getpid()]
    for row in left:
        if kill_group(row.pid, row.start, signal.SIGKILL, session=row.session):
            _log.warning("killed %s (pid %d), which had outlived its stream process", row.name, row.pid)
    deadline = time.monotonic() + _DEATH_SECONDS
    while any(is_running(row.pid, row.start) for row in left) and time.monotonic() < deadline:
        time.sleep(0.005)
