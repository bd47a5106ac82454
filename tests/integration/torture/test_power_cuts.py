"""T4: the power is cut under a store, and what was acknowledged is there when it is back.

Cuts come right after an acknowledged act, each of the acts in turn, and at random moments within them. The disk is a
real ext4 (`power_disk`), the process that works it a real one, the judge is `power_book`. The store is used on from cut
to cut; now and then a next holder works off everything, and a new store is made.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import shutil
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from children import fork_child
from lengths import short_and_long
from power_acts import ACTS, take_over, work
from power_book import STREAM, Act, Book, left_over, observed
from power_disk import PowerDisk, power_disk

from queuekit import Completion, QueueError, QueueKit
from queuekit.backends.likeness import Likeness, likeness
from queuekit.backends.maildir.fsck import Finding, Severity, examine
from queuekit.backends.sql import fsck as sql_fsck
from queuekit.backends.sql.sqlite import library
from queuekit.contract import JobView, QueueBackend
from queuekit.errors import BackendUnavailable
from queuekit.lifecycle import State
from queuekit.status import ObservationStatus
from queuekit.testing.contract.transferring import fill
from queuekit.testing.jobs import make_job
from queuekit.transfer import MoveRefused, Side, move
from queuekit.wire import encode_job

pytestmark = pytest.mark.needs("linux", "root", "loop", "namespaces")

EPOCH = 10
"""Cuts of one store before it is worked off and a new one is made."""
NORMAL = {"tmp-stale", "alive-dead", "no-record", "dossier-alone", "due-far"}
"""What fsck may find in a store that was worked off: what is swept later, prunes cut off, jobs that are due in 2096."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[PowerDisk]:
    with power_disk(tmp_path / "disk") as disk:
        yield disk


class Store:
    """One store on the disk, and what is known of it. `kind`: `dir`, or the journal of an SQLite database."""

    def __init__(self, disk: PowerDisk, kind: str, dice: random.Random, durability: str = "full") -> None:
        self.disk, self.kind, self.dice, self.durability = disk, kind, dice, durability
        self.folder = disk.folder / "store"
        self.url = f"dir:{self.folder}" if kind == "dir" else f"sqlite:{self.folder}/jobs.db"
        self.serial = 0
        self.told: Counter[str] = Counter()
        self.findings: Counter[str] = Counter()
        self.jobs = self.left_over = 0
        self.renew()

    def renew(self) -> None:
        """A new store, in a folder that is not there yet."""
        self.book = Book()
        if self.folder.exists():
            shutil.rmtree(self.folder)
        if self.kind != "dir":
            make_database(self.folder, self.kind)

    # -- a cut

    def cut(self, number: int, *, within: bool) -> None:
        """Work the store in a process of its own, cut the power, and look. `within`: at any moment."""
        acts = self.dice.randrange(12)
        last = ACTS[number % len(ACTS)]
        lines = self.dice.randrange(1, 2 * acts + 8) if within else None
        pid, pipe = self._start(acts, last)
        with os.fdopen(pipe, "rb") as told:
            self._hear(told, lines)
            if within:
                spin(self.dice.choice((0, 0.0005, 0.003)) * self.dice.random())
                if self.dice.random() < 0.5:  # then what the act has half done is on the disk, too
                    self.disk.sync()
            self.disk.cut()
            end(pid)
            self._hear_the_rest(told)
        self.disk.restore(reboot=self.dice.random() < 0.25)
        self.look()

    def _start(self, acts: int, last: str) -> tuple[int, int]:
        seed = self.dice.randrange(2**32)
        begun = start(
            lambda pipe: work(self.url, self.durability, self.book, self.serial, seed, acts, last, pipe),
        )
        self.serial += 1000
        return begun

    def _hear(self, told: Any, lines: int | None) -> None:
        """Note what the process tells: so many lines, or all of them, until it rests."""
        count = 0
        while lines is None or count < lines:
            line = json.loads(told.readline())
            assert "fault" not in line, line["fault"]
            if "rests" in line:
                return
            self._note(line)
            count += 1

    def _hear_the_rest(self, told: Any) -> None:
        for line in map(json.loads, told):
            if "fault" in line:  # of the disk, that is gone
                assert not line["wrong"], line["fault"]
            elif "rests" not in line:
                self._note(line)

    def _note(self, line: dict[str, Any]) -> None:
        if "begin" in line:
            self.book.begin(Act(**line["begin"] | {"whole": tuple(line["begin"]["whole"])}))
            return
        assert self.book.under_way is not None
        self.told[line["ended"]] += 1
        self.book.fence = max(self.book.fence, line["fence"])
        self.book.acknowledge(self.book.under_way)

    def look(self) -> None:
        """Fail unless everything that was acknowledged is there, whole, once."""
        self.left_over += left_over(self.url)
        for each in self.examined():
            self.findings[each.kind] += 1
            assert each.repairable or each.severity is Severity.NOTE, each
        self.book.look(observed(self.url), prefix=self.kind == "dir")
        if self.kind != "dir" and Path(self.url.partition(":")[2]).exists():
            check_database(self.url, self.kind)

    def examined(self) -> list[Finding]:
        """What fsck finds; nothing where there is no store yet."""
        try:
            return examine(self.folder) if self.kind == "dir" else sql_fsck.examine(self.url, deep=True)
        except BackendUnavailable:
            if self.book.certain("open", "ended"):
                raise
            return []  # the cut came before there was a store

    # -- the end

    def work_off(self) -> None:
        """As a next holder: everything that has not ended is delivered and ends, nothing else; fsck is content."""
        with QueueKit.open(self.url) as queue:
            lease = queue.lease(STREAM, 0.2)
            take_over(lease)
            queue.reclaim_in_flight(STREAM, lease=lease)
            queue.backend.finish_intents(STREAM, lease=lease)
            self._deliver_all(queue, lease)
            lease.release()
        self.jobs += len(self.book.may_be)
        assert {each.kind for each in self.examined()} <= NORMAL

    def _deliver_all(self, queue: QueueKit, lease: Any) -> None:
        while claimed := queue.drain(STREAM, lease=lease):
            for each in claimed:
                self.book.check_delivery(each.job)
                self.book.may_be[each.job.id] = {"ended done"}
            ends = [Completion(each.job.id, ObservationStatus.DONE) for each in claimed]
            assert queue.reply_batch(ends, lease=lease) == len(ends)
        still_open = self.book.certain("open")
        assert all(id.startswith("f") for id in still_open), f"never delivered: {still_open}"
        tally = queue.tally(STREAM)
        assert (tally.outstanding, tally.scheduled) == (0, len(still_open))


def start(act: Callable[[int], None]) -> tuple[int, int]:
    """Do this in a child that dies with this process; its pid, and the pipe whose other end `act` gets."""
    read, write = os.pipe()
    pid = fork_child(lambda: act(write), dies_with_us=True)
    os.close(write)
    return pid, read


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def make_database(folder: Path, kind: str) -> None:
    """A database that exists already keeps its journal, so one for DELETE is made here, by the library itself."""
    folder.mkdir(mode=0o700)
    if kind == "delete":
        path = folder / "jobs.db"
        connection = library().module.connect(path)
        connection.execute("PRAGMA journal_mode=DELETE")
        connection.execute("VACUUM")
        connection.close()
        path.chmod(0o600)
        with path.open("rb") as file:
            os.fsync(file.fileno())
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def check_database(url: str, kind: str) -> None:
    with QueueKit.open(url) as queue:
        reason = queue.backend.database.journal_reason
        assert reason.startswith({"wal": "WAL with synchronous=FULL", "delete": "DELETE with synchronous=EXTRA"}[kind])
    connection = library().module.connect(url.partition(":")[2])
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def spin(seconds: float) -> None:
    """So short a time that a sleep would be too long."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


@pytest.mark.parametrize("kind", ["dir", "wal", "delete"])
@pytest.mark.parametrize("cuts", short_and_long(40, 1000))
def test_what_was_acknowledged_survives_power_cuts(disk: PowerDisk, dice: random.Random, kind: str, cuts: int) -> None:
    """T4: half of the cuts come right after an acknowledged act, half at any moment."""
    store = Store(disk, kind, dice)
    for number in range(cuts):
        store.cut(number // 2, within=bool(number % 2))
        if (number + 1) % EPOCH == 0 or number + 1 == cuts:
            store.work_off()
            store.renew()
    assert len(store.told) >= len(ACTS)
    print(
        f"T4, {kind}: {disk.cuts} cuts, {store.told.total()} acts acknowledged, {store.jobs} jobs, 0 lost, 0 partial, "
        f"0 delivered after their end; {store.left_over} left in tmp/; fsck: {dict(store.findings)}; {dict(store.told)}"
    )


@pytest.mark.torture
@pytest.mark.torture_short
@pytest.mark.parametrize("kind", ["dir", "wal"])
def test_the_oracle_sees_what_is_not_synced(disk: PowerDisk, dice: random.Random, kind: str) -> None:
    """The cut is one and the judge has eyes: with durability `none` it finds what is lost."""
    store = Store(disk, kind, dice, durability="none")

    def go_on() -> None:
        for number in range(30):
            store.cut(number, within=False)

    with pytest.raises((AssertionError, QueueError)):
        go_on()


# -- moves between stores


class Moving:
    """One move from store to store, as often as it is cut off."""

    def __init__(self, disk: PowerDisk, dice: random.Random) -> None:
        self.disk, self.dice = disk, dice
        self.stores = [f"dir:{disk.folder}/spool", f"sqlite:{disk.folder}/database/jobs.db"]
        self.longest = 1.0  # seconds, about; longer with each try that was cut off, so that there is an end
        with QueueKit.open(self.stores[0]) as queue:
            fill(queue.backend)
            queue.send_batch([make_job(payload=dice.randbytes(dice.randrange(20_000))) for _ in range(60)])
            queue.checkpoints.compare_and_swap("place", "encode", None, b"here")
            self.whole = everything(queue)

    def cut(self) -> bool:
        """Begin or go on with the move, and cut the power at any moment, also just after its end; whether it ended."""
        begun = time.monotonic()
        pid, pipe = start(self._move)
        with os.fdopen(pipe, "rb") as told:
            assert told.readline() == b"ready\n"
            spoke = select.select([told], [], [], self.dice.uniform(0, 1.3 * self.longest))[0]
            if self.dice.random() < 0.5:
                self.disk.sync()
            self.disk.cut()
            end(pid)
            said = told.read().decode()
        ended = said == "moved\n"
        self.longest = time.monotonic() - begun if ended else 1.1 * self.longest
        assert ended or not spoke, said  # what it says after the cut is of a disk that is gone
        self.disk.restore(reboot=self.dice.random() < 0.25)
        self.check(ended)
        return ended

    def _move(self, pipe: int) -> None:
        source, target = self.stores
        try:
            with QueueKit.open(source) as one, QueueKit.open(target) as other:
                os.write(pipe, b"ready\n")
                sides = [
                    Side(name=url, backend=briefly(queue.backend)) for url, queue in ((source, one), (target, other))
                ]
                while True:
                    with contextlib.suppress(MoveRefused):  # the lease of the last try has not run out
                        move(*sides)
                        break
            os.write(pipe, b"moved\n")
            signal.pause()
        except BaseException:
            os.write(pipe, traceback.format_exc().encode())

    def check(self, ended: bool) -> None:
        """Every job is somewhere, whole, and at most one store lets anybody have it."""
        source, target = self.stores
        with QueueKit.open(source) as one, QueueKit.open(target) as other:
            assert not claimable(one) & claimable(other)
            if ended:
                assert everything(other) == self.whole
                assert not everything(one)
                assert not list(one.backend.transfer().leaving())
                assert other.checkpoints.read("place", "encode") == b"here"
            elif self.dice.random() < 0.3:  # it sets right what is half hidden, which else is left to the next try
                self._check_all_are_there(one, other)

    def _check_all_are_there(self, one: QueueKit, other: QueueKit) -> None:
        hidden = {view.job.id: encode_job(view.job) for view in one.backend.transfer().leaving()}
        known = hidden | {id: each[0] for queue in (one, other) for id, each in everything(queue).items()}
        assert known == {id: self.whole[id][0] for id in known}
        assert known.keys() == self.whole.keys() or other.backend.transfer().let_in_from() is not None

    def go_back(self) -> None:
        self.stores.reverse()


def everything(queue: QueueKit) -> dict[str, Likeness]:
    views = [view for view in queue.backend.transfer().whole() if isinstance(view, JobView)]
    found = {str(view.job.id): likeness(view) for view in views}
    assert len(found) == len(views)
    return found


def claimable(queue: QueueKit) -> set[str]:
    views = queue.jobs([State.NEW, State.LATER, State.CUR])
    return {str(view.job.id) for view in views if isinstance(view, JobView)}


def briefly(backend: QueueBackend) -> QueueBackend:
    """The same backend, with leases that a power cut leaves behind for a moment only."""
    lease = backend.lease
    backend.lease = lambda stream, ttl=0.2, **exclusive: lease(stream, ttl, **exclusive)  # type: ignore[method-assign]
    return backend


@pytest.mark.parametrize("cuts", short_and_long(12, 300))
def test_a_move_between_stores_survives_power_cuts(disk: PowerDisk, dice: random.Random, cuts: int) -> None:
    """T4, `migrate`: cut at any moment, from a folder to a database and back, and gone on with until it has ended."""
    moving = Moving(disk, dice)
    moves = 0
    while disk.cuts < cuts or not moves:
        if moving.cut():
            moving.go_back()
            moves += 1
    print(
        f"T4, migrate: {disk.cuts} cuts, {moves} moves of {len(moving.whole)} jobs, 0 lost, 0 changed, 0 in two stores"
    )
