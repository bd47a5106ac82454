"""What is done now and then for a stream that is held: the slow look, and removing old records.

The slow look finds what no event announced, what a late claim of the last holder stranded, and retries that were cut
off. It comes with the heartbeat before it is due: an idle process is not woken for it alone. Records are removed in
small portions while nothing is to be done, and the time for that stays a small share; where it makes the sending of
jobs slow (see `queuekit.backends.maildir.creation`), it rests until that is over, and between portions.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from queuekit import LeaseLost, ObservationStatus
from queuekit.backends.maildir.creation import CreationCost
from workerpool.locations import store_folder
from workerpool.stream.arrivals import Arrivals
from workerpool.stream.desk import STORE_ERRORS, Desk
from workerpool.stream.pausing import Pausing
from workerpool.stream.taking_over import TakingOver
from workerpool.stream.tenure import Phase

_EARLY_SHARE = 5
_PRUNED_AT_ONCE = 100
_PRUNE_SHARE = 20
_PRUNE_SOON, _PRUNE_REST, _PRUNE_LATER = 0.2, 8.0, 60.0
_BLOCKED = (ObservationStatus.BLOCKED,)
_NOT_BLOCKED = tuple(each for each in ObservationStatus if each.is_terminal and each is not ObservationStatus.BLOCKED)
_log = logging.getLogger("workerpool.stream")


class Housekeeping:
    """Of one stream. `is_busy`: whether there is work to do; `clock`: monotonic seconds."""

    def __init__(
        self,
        desk: Desk,
        arrivals: Arrivals,
        pausing: Pausing,
        taking_over: TakingOver,
        is_busy: Callable[[], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._desk = desk
        self._arrivals = arrivals
        self._pausing = pausing
        self._taking_over = taking_over
        self._is_busy = is_busy
        folder = store_folder(desk.pool)
        self._cost = None if folder is None else CreationCost(folder)
        self._clock = clock
        self._looking = desk.troubles.new("looking through the queue", _log)
        self._pruning = desk.troubles.new("removing old records", _log)
        self._scan_at = self._prune_at = 0.0

    def began(self, now: float) -> None:
        """The stream was just taken over, which is a slow look."""
        self._pausing.look()
        self._scan_at = now + self._desk.pool.watch.scan
        self._prune_at = now + _PRUNE_SOON

    def act(self, now: float) -> None:
        """Do what is due; raises `LeaseLost`."""
        if not self._is_open():
            return
        if now >= self._scan_at - self._early():
            self._scan_at = now + self._desk.pool.watch.scan
            self._scan(now)
        if self._may_prune() and now >= self._prune_at:
            self._prune(now)

    def next(self, now: float) -> float | None:  # noqa: ARG002
        """When something is due."""
        if not self._is_open():
            return None
        return min(self._scan_at, self._prune_at) if self._may_prune() else self._scan_at

    def _early(self) -> float:
        """How much before its time a look may come: so much that a heartbeat falls into it, but a small share."""
        return min(self._desk.pool.lease.heartbeat, self._desk.pool.watch.scan / _EARLY_SHARE)

    def _is_open(self) -> bool:
        desk = self._desk
        return desk.tenure.phase is Phase.HOLDING and desk.taken_over and not desk.stopping

    def _scan(self, now: float) -> None:
        desk = self._desk
        self._taking_over.follow(now)
        try:
            desk.backend.rescue_strays(desk.stream, lease=desk.lease)
            desk.backend.finish_intents(desk.stream, lease=desk.lease)
        except LeaseLost:
            raise
        except STORE_ERRORS as error:
            self._looking.met(error, now)
        else:
            self._looking.over(now)
        self._arrivals.look_again()
        self._pausing.look()

    # -- retention

    def _may_prune(self) -> bool:
        kept = self._desk.pool.retention
        return bool(kept.done or kept.blocked) and not self._is_busy()

    def _prune(self, now: float) -> None:
        if self._cost is not None and self._cost.has_risen():
            self._prune_at = now + _PRUNE_REST
            return
        begun = self._clock()
        try:
            pruned = self._prune_a_portion()
        except LeaseLost:
            raise
        except STORE_ERRORS as error:
            self._pruning.met(error, now)
            pruned = 0
        else:
            self._pruning.over(now)
        soon = _PRUNE_REST if self._cost is not None and self._cost.rises else _PRUNE_SOON
        wait = soon if pruned >= _PRUNED_AT_ONCE else _PRUNE_LATER
        self._prune_at = now + max(wait, _PRUNE_SHARE * (self._clock() - begun))

    def _prune_a_portion(self) -> int:
        desk, kept = self._desk, self._desk.pool.retention
        pruned = 0
        for age, statuses in ((kept.done, _NOT_BLOCKED), (kept.blocked, _BLOCKED)):
            if age:
                pruned += desk.backend.prune(
                    age, limit=_PRUNED_AT_ONCE - pruned, stream=desk.stream, lease=desk.lease, statuses=statuses
                )
        return pruned
