"""The first thing under a lease just won: bring home what the last holder left.

Its workers are killed first, then the jobs that they were running are charged, and everything else that is in flight
becomes pending again. When any of it fails, all of it is tried again: what is done already is not found a second time.
Where many share a stream, a consumer of this host that dies is followed in the same way by one that lives.
"""

from __future__ import annotations

import logging

from queuekit import LeaseLost
from queuekit.clock import now_ms
from queuekit.transfer import unfinished
from workerpool.stream import succession
from workerpool.stream.arrivals import Arrivals
from workerpool.stream.desk import STORE_ERRORS, Desk
from workerpool.stream.succession import Predecessor

_log = logging.getLogger("workerpool.stream")


class TakingOver:
    """`directory`: where boards are; `in_place`: what this place on our own board said before it was taken."""

    def __init__(self, desk: Desk, arrivals: Arrivals, directory: str, in_place: Predecessor | None) -> None:
        self._desk = desk
        self._arrivals = arrivals
        self._directory = directory
        self._in_place = in_place
        self._shared = not desk.config.exclusive
        self._charged = 0
        self._told_of = ""
        self._trouble = desk.troubles.new("taking the stream over", _log)

    def act(self, now: float) -> None:
        """Take over once it is time; raises `LeaseLost`."""
        if not self._is_wanted() or self._trouble.blocks(now):
            return
        try:
            self._take_over(now)
        except LeaseLost:
            raise
        except STORE_ERRORS as error:
            self._trouble.met(error, now)
        else:
            self._trouble.over(now)
            self._desk.taken_over = True
            self._desk.row.set(held_ms=now_ms())
            self._sweep()
            self._tell_of_a_move()

    def follow(self, now: float) -> None:
        """Take over from a consumer of a shared stream that has died on this host; raises `LeaseLost`."""
        desk = self._desk
        if not (self._shared and desk.taken_over) or self._trouble.blocks(now):
            return
        try:
            owner = desk.lease.holder()
            if owner is not None:
                self._charge(owner)
                rescued = desk.backend.rescue_strays(desk.stream, lease=desk.lease)
                _log.warning("%s died on this host; of its jobs %d are pending again", owner, rescued)
        except LeaseLost:
            raise
        except STORE_ERRORS as error:
            self._trouble.met(error, now)
        else:
            self._trouble.over(now)

    def next(self, now: float) -> float | None:  # noqa: ARG002
        """When it is to be tried (again)."""
        return self._trouble.until if self._is_wanted() else None

    def _is_wanted(self) -> bool:
        return self._desk.tenure.may_claim and not self._desk.taken_over and not self._desk.stopping

    def _take_over(self, now: float) -> None:
        desk = self._desk
        owner = desk.tenure.predecessor
        if owner is not None:
            self._charge(owner)
        with desk.counting():
            while desk.journey.waiting:
                desk.journey.carry_out(desk.lease)
        reclaimed = desk.backend.reclaim_in_flight(desk.stream, lease=desk.lease)
        if reclaimed or owner is not None:
            _log.warning(
                "took over stream %s; jobs in flight: %d, of which %d were being run",
                desk.stream,
                reclaimed + self._charged,
                self._charged,
            )
        else:
            _log.info("stream %s is worked here from now on", desk.stream)
        desk.backend.finish_intents(desk.stream, lease=desk.lease)
        self._arrivals.open(now)

    def _sweep(self) -> None:
        try:
            self._desk.row.board.sweep_predecessors()
        except OSError as error:
            _log.warning("what dead pools have left on their boards stays there: %s", error)

    def _tell_of_a_move(self) -> None:
        """That jobs are out of sight, if some are; nothing of the work waits for that."""
        try:
            half_moved = unfinished(self._desk.backend)
        except STORE_ERRORS as error:
            _log.warning("whether a move of jobs is not finished cannot be told: %s", error)
            return
        if half_moved:
            _log.warning("%s", half_moved)

    def _charge(self, owner: str) -> None:
        """Kill what the dead one's workers left, and charge the jobs that they were running."""
        desk = self._desk
        found = succession.find(owner, self._directory, self._in_place)
        if found is not None:
            succession.kill_left_over(found.workers)
            self._tell(owner, found)
            for job_id, how in found.running_jobs():
                claimed = desk.backend.adopt(job_id, lease=desk.lease)
                if claimed is not None:
                    self._charged += 1
                    desk.journey.crashed(claimed, how)
        self._in_place = None

    def _tell(self, owner: str, found: Predecessor) -> None:
        """What ran there and is charged nothing, once."""
        if owner != self._told_of:
            self._told_of = owner
            for sentence in found.blameless_runs():
                _log.warning("%s", sentence)
