"""A process whose power is cut: it works a store, act by act, and tells of each before it begins and when it has ended.

Not a test file. `work` is run in a forked child. What it tells are lines of JSON in a pipe; the last one says that it
has come to its end and waits for the cut.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import signal
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from power_book import ABSENT, CHECKPOINT, DUE_MS, STREAM, Act, Book, job_of

from queuekit import Completion, JobID, ObservationStatus, QueueKit
from queuekit.contract import Lease
from queuekit.job import Delivery
from queuekit.testing.jobs import EPOCH_MS, wait_until

TTL = 0.2
WELL = (ObservationStatus.DONE, ObservationStatus.DONE_WITH_CONCERNS, ObservationStatus.NEEDS_CONTEXT)
BLOCKED = ObservationStatus.BLOCKED


class Worker:
    """One producer, consumer, person and pruner in one. `serial`: of its first new job."""

    def __init__(
        self, queue: QueueKit, book: Book, serial: int, dice: random.Random, tell: Callable[..., None]
    ) -> None:
        self.queue = queue
        self.backend = queue.backend
        self.book = book
        self.serial = serial
        self.dice = dice
        self.tell = tell
        self.claims: dict[str, int] = {}
        self.lease = queue.lease(STREAM, TTL)

    @contextlib.contextmanager
    def telling(self, name: str, to: dict[str, str] | None = None, **facts: Any) -> Iterator[None]:
        """One act: told before it begins, and when it is acknowledged."""
        act = Act(name, to or {}, **facts)
        self.book.begin(act)
        self.tell(begin=dataclasses.asdict(act))
        yield
        self.book.acknowledge(act)
        self.tell(ended=name, fence=self.lease.fence)

    # -- as the next holder

    def start(self) -> None:
        """Take the stream over, bring home what the last one had, and send again what was not acknowledged."""
        with self.telling("take over"):
            self._acquire()
            self.backend.reclaim_in_flight(STREAM, lease=self.lease)
            self.backend.finish_intents(STREAM, lease=self.lease)
        for id in sorted(self.book.unacknowledged):
            self._send("send again", id)

    def _acquire(self) -> None:
        take_over(self.lease)
        assert self.lease.fence > self.book.fence, f"take-over {self.lease.fence} comes after {self.book.fence}"

    # -- acts: each returns False when there is nothing that it could be about

    def send(self) -> bool:
        self._send("send", self._new("j"))
        return True

    def send_later(self) -> bool:
        self._send("send later", self._new(self.dice.choice("pf")))
        return True

    def send_again(self) -> bool:
        pending = self._pending("j")
        if not pending:
            return False
        id = self.dice.choice(pending)
        with self.telling("again", {id: self._fate(id)}):
            self.queue.send(job_of(id))
        return True

    def _send(self, name: str, id: str) -> None:
        with self.telling(name, {id: "open 0"}):
            self.backend.write(job_of(id), due_ms=DUE_MS[id[0]])

    def send_few(self) -> bool:
        return self._send_batch(3)

    def send_many(self) -> bool:
        return self._send_batch(40)

    def _send_batch(self, count: int) -> bool:
        ids = [self._new("j") for _ in range(count)]
        with self.telling(f"send {count}", dict.fromkeys(ids, "open 0"), whole=tuple(ids)):
            self.queue.send_batch(map(job_of, ids))
        return True

    def claim(self) -> bool:
        with self.telling("claim", sure=False):
            claimed = self.queue.drain(STREAM, self.dice.randint(1, 8), lease=self.lease)
        for each in claimed:
            self.book.check_delivery(each.job)
            self.claims[each.job.id] = Delivery.of(each.job).attempt
        return bool(claimed)

    def complete(self) -> bool:
        for id in self._some_claims(1):
            status = self.dice.choice(WELL)
            with self.telling("complete", {id: f"ended {status.value}"}):
                self.queue.reply(id, status, lease=self.lease)
            return True
        return False

    def block(self) -> bool:
        for id in self._some_claims(1):
            error = f"no {self._count()}"
            with self.telling("block", {id: f"ended blocked, {error}"}):
                self.backend.complete(id, BLOCKED, dossier={"error": error}, lease=self.lease)
            return True
        return False

    def complete_batch(self) -> bool:
        ids = self._some_claims(8)
        if not ids:
            return False
        ends = {id: self.dice.choice((*WELL, BLOCKED)) for id in ids}
        error = f"no {self._count()}"
        said = {id: f"ended {end.value}" + (f", {error}" if end is BLOCKED else "") for id, end in ends.items()}
        completions = [
            Completion(JobID(id), end, (), {"error": error} if end is BLOCKED else None) for id, end in ends.items()
        ]
        with self.telling("complete batch", said):
            assert self.queue.reply_batch(completions, lease=self.lease) == len(ids)
        return True

    def release(self) -> bool:
        for id in self._some_claims(1):
            with self.telling("release", sure=False):
                self.backend.release(id, lease=self.lease)
            return True
        return False

    def defer(self) -> bool:
        for id in self._some_claims(1):
            attempt = self._fate(id).split()[1]
            with self.telling("defer", {id: f"open {int(attempt) + 1}"}):
                self.backend.defer(id, EPOCH_MS, error="again", lease=self.lease)
            return True
        return False

    def retry(self) -> bool:
        ended = self.book.certain("ended")
        if not ended:
            return False
        id = self.dice.choice(ended)
        with self.telling("retry", {id: "open 0"}):
            self.queue.retry(id)
        return True

    def cancel(self) -> bool:
        pending = self._pending("j", "p", "f")
        if not pending:
            return False
        id = self.dice.choice(pending)
        with self.telling("cancel", {id: "ended blocked, cancelled"}):
            self.queue.cancel(id)
        return True

    def run_now(self) -> bool:
        waiting = [id for id in self._pending("f") if id not in self.book.unacknowledged and self._is_deferred(id)]
        if not waiting:
            return False
        with self.telling("run now", sure=False):
            self.backend.run_now(waiting[0])
        return True

    def prune(self) -> bool:
        ended = [id for id, fates in self.book.may_be.items() if any(fate.startswith("ended") for fate in fates)]
        with self.telling("prune", dict.fromkeys(ended, ABSENT), sure=False):
            pruned = self.backend.prune(-60.0, limit=2, stream=STREAM, lease=self.lease)
        return bool(pruned)

    def swap_checkpoint(self) -> bool:
        before = self._checkpoint()
        payload = f"place {self._count()}" + "." * self.dice.choice((0, 5000))
        with self.telling("checkpoint", {CHECKPOINT: payload}):
            assert self.queue.checkpoints.compare_and_swap(CHECKPOINT, STREAM, before, payload.encode())
        return True

    def delete_checkpoint(self) -> bool:
        if self._checkpoint() is None:
            return False
        with self.telling("checkpoint's end", {CHECKPOINT: ABSENT}):
            assert self.queue.checkpoints.delete(CHECKPOINT, STREAM)
        return True

    def take_lease_again(self) -> bool:
        with self.telling("lease given up", sure=False):
            self.lease.release()
        self.claims.clear()
        with self.telling("lease"):
            self.lease = self.queue.lease(STREAM, TTL)
            self._acquire()
            self.backend.reclaim_in_flight(STREAM, lease=self.lease)
        return True

    def beat(self) -> bool:
        with self.telling("heartbeat", sure=False):
            self.lease.heartbeat()
        return True

    # -- what is known

    def _new(self, kind: str) -> str:
        return f"{kind}{self._count():07}"

    def _count(self) -> int:
        self.serial += 1
        return self.serial

    def _fate(self, id: str) -> str:
        (fate,) = self.book.may_be[id]
        return fate

    def _some_claims(self, most: int) -> list[str]:
        ids = self.dice.sample(sorted(self.claims), min(most, len(self.claims)))
        for id in ids:
            del self.claims[id]
        return ids

    def _pending(self, *kinds: str) -> list[str]:
        return [id for id in self.book.certain("open") if id.startswith(kinds) and id not in self.claims]

    def _is_deferred(self, id: str) -> bool:
        view = self.queue.look_up(id)
        return view is not None and view.due_ms is not None

    def _checkpoint(self) -> bytes | None:
        kept = next(iter(self.book.may_be.get(CHECKPOINT, {ABSENT})))
        return None if kept == ABSENT else kept.encode()


BEFORE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("complete", "block", "complete_batch", "release", "defer"), ("send_few", "claim")),
    **dict.fromkeys(("claim", "cancel", "send_again"), ("send",)),
    **dict.fromkeys(("retry", "prune"), ("send", "claim", "complete")),
    "run_now": ("send_later",) * 6,
    "delete_checkpoint": ("swap_checkpoint",),
}
"""What makes an act possible that was not."""
ACTS = (
    "send",
    "send_few",
    "send_many",
    "send_later",
    "send_again",
    "claim",
    "complete",
    "block",
    "complete_batch",
    "release",
    "defer",
    "retry",
    "cancel",
    "run_now",
    "prune",
    "swap_checkpoint",
    "delete_checkpoint",
    "take_lease_again",
    "beat",
)
WEIGHTS = {"send_many": 1, "claim": 8, "complete_batch": 8}
"""How often an act comes at random; 4 where nothing is said. Enough is claimed and ended that no backlog grows."""


def take_over(lease: Lease) -> None:
    """A dead holder's lease is to be had soon."""
    wait_until(lease.try_acquire)


def work(store: str, durability: str, book: Book, serial: int, seed: int, acts: int, last: str, pipe: int) -> None:
    """Do so many acts and then `last`, and wait for the end; does not return."""

    def tell(**facts: Any) -> None:
        os.write(pipe, (json.dumps(facts) + "\n").encode())

    try:
        dice = random.Random(seed)
        with QueueKit.open(store, durability=durability) as queue:
            worker = Worker(queue, book, serial, dice, tell)
            worker.start()
            for name in dice.choices(ACTS, [WEIGHTS.get(act, 4) for act in ACTS], k=acts):
                getattr(worker, name)()
            act_surely(worker, last)
            tell(rests=True)
            while True:
                signal.pause()
    except BaseException as error:
        tell(fault=traceback.format_exc(), wrong=isinstance(error, AssertionError | KeyError | ValueError))


def act_surely(worker: Worker, name: str) -> None:
    for before in ("beat", *BEFORE.get(name, ())):
        if getattr(worker, name)():
            return
        getattr(worker, before)()
    getattr(worker, name)()
