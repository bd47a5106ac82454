"""T4 and C01: the power is cut under a running pool and its producers; what was acknowledged is worked off afterwards.

The store is on an ext4 of its own (`power_disk`), the history of what handlers did is not. A cut takes every process
with it; the next pool starts on what the disk has, as the first one after a reboot, and nobody repairs anything.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from children import fork_child
from databases import DatabaseEstate
from lengths import short_and_long
from pool import Estate, suppressed_end, until
from power_disk import PowerDisk, power_disk

from queuekit import Job, QueueKit, decode_job
from queuekit.backends.maildir.fsck import Severity, examine
from queuekit.backends.sql import fsck as sql_fsck
from queuekit.contract import JobView
from queuekit.errors import BackendUnavailable, QueueError
from queuekit.job import Delivery
from queuekit.lifecycle import State

pytestmark = pytest.mark.needs("linux", "root", "loop", "namespaces")

STREAMS = ("encode", "dreaming")
EPOCH = 6
"""Cuts of one store before it is worked off and a new one is made."""
MOST_PENDING = 300
SETTLING = 5.0
RAISES = b'{"do": "raise", "until": 1}'
DISCARDS = b'{"do": "discard"}'
COMMAND = str(Path(sys.executable).with_name("workerpool"))
STALE_SECONDS = 600


def payload_of(dice: random.Random) -> bytes:
    """Mostly bytes that the handler hashes; some jobs fail once, and some are given up by their handler."""
    match dice.randrange(20):
        case 0:
            return RAISES
        case 1:
            return DISCARDS
        case 2:
            return b""
        case _:
            return b"#" + dice.randbytes(dice.choice((1, 100, 4095, 20_000, 100_000)))


class Site:
    """An estate whose store is on a disk that loses its power. `acknowledged`: the payload's hash of each job."""

    def __init__(self, estate: Estate, disk: PowerDisk, dice: random.Random, place: Path) -> None:
        self.estate, self.disk, self.dice, self.place = estate, disk, dice, place
        self.receipts = estate.folder / "receipts"
        self.findings: Counter[str] = Counter()
        self.jobs = self.repeats = self.left_over = 0
        self.slowest = 0.0
        self.renew()

    @property
    def is_folder(self) -> bool:
        return self.estate.url.startswith("dir:")

    def renew(self) -> None:
        """A new store, and nothing known of it."""
        if self.place.exists():
            shutil.rmtree(self.place)
        if not self.is_folder:
            self.place.mkdir(mode=0o700)
        self.receipts.write_text("")
        self.estate.history.write_text("")
        self.estate.kills.clear()
        self.ended: dict[str, float] = {}  # since when the disk has had a job's end, at the latest

    def acknowledged(self) -> dict[str, str]:
        lines = self.receipts.read_text().splitlines()
        return dict(line.split() for line in lines)

    # -- what runs until the power is gone

    def cut_under_load(self) -> None:
        """A pool and two producers, at any moment of their work or of the pool's start."""
        pool = self.estate.start()
        producers = [self._start_producer() for _ in range(2)]
        try:
            self._wait_for_a_moment()
        finally:
            self.cut(producers)
        until(lambda: pool.code is not None, "the pool's end")
        self.estate.pools.clear()
        self.look()

    def _wait_for_a_moment(self) -> None:
        if self.dice.random() < 0.3:
            end = time.monotonic() + self.dice.uniform(0, 1.5)
            until(lambda: time.monotonic() >= end, "the moment")
            return
        size = self.estate.history.stat().st_size + self.dice.randrange(1, 60_000)
        until(lambda: self.estate.history.stat().st_size >= size, "so much work", patience=60)

    def _start_producer(self) -> int:
        seed = self.dice.randrange(2**32)
        return fork_child(lambda: self._produce(random.Random(seed)), dies_with_us=True)

    def _produce(self, dice: random.Random) -> None:
        """Send on and on, single jobs and batches; note what was acknowledged, somewhere else."""
        receipts = os.open(self.receipts, os.O_WRONLY | os.O_APPEND)
        with QueueKit.open(self.estate.url) as queue:
            while True:
                jobs = [self._job(dice) for _ in range(dice.choice((1, 1, 1, 5, 30)))]
                try:
                    if len(jobs) == 1:
                        queue.send(jobs[0], delay=dice.choice((None, None, 0.05)))
                    else:
                        queue.send_batch(jobs)
                    busy = queue.tally().pending > MOST_PENDING
                except QueueError:
                    return  # the power is gone
                lines = [f"{job.id} {hashlib.sha256(job.payload).hexdigest()}\n" for job in jobs]
                os.write(receipts, "".join(lines).encode())
                if busy:
                    time.sleep(0.05)

    def _job(self, dice: random.Random) -> Job:
        from queuekit.testing.jobs import make_job

        return make_job(stream=dice.choice(STREAMS), payload=payload_of(dice))

    def cut(self, producers: list[int]) -> None:
        """The power is gone, and everything that ran; then it is back."""
        if self.dice.random() < 0.5:  # somebody else syncs the disk: what is half done is on it
            self.disk.sync()
        begun = time.monotonic()
        self.disk.cut()
        for pid in producers:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        until(self._is_all_dead, "the end of everything")
        self.estate.kills.append((begun, time.monotonic()))
        self.disk.restore()

    def _is_all_dead(self) -> bool:
        living = self.estate.processes()
        for process in living:
            with contextlib.suppress(psutil.NoSuchProcess), suppressed_end():
                process.kill()
        return not living

    # -- what is there afterwards

    def look(self) -> None:
        """No job that was acknowledged is missing, none is there in part, and fsck finds nothing for a person to do."""
        if not self.place.exists():
            assert not self.acknowledged()
            return
        for each in self.examined():
            self.findings[each.kind] += 1
            assert each.repairable or each.severity is Severity.NOTE, each
        with self._estates_queue() as queue:
            self.estate.check(self.acknowledged())
            for view in queue.jobs([State.DONE]):
                assert isinstance(view, JobView), f"{view} was delivered in part"
                self.ended.setdefault(str(view.job.id), time.monotonic())
        if self.is_folder:
            self.left_over += len(self.estate.folder_if_there("tmp"))

    def examined(self) -> list:  # type: ignore[type-arg]
        try:
            return examine(self.place) if self.is_folder else sql_fsck.examine(self.estate.url, deep=True)
        except BackendUnavailable:
            if self.acknowledged():
                raise
            return []  # the cut came before there was a store

    @contextlib.contextmanager
    def _estates_queue(self) -> Iterator[QueueKit]:
        """The estate's own handle on its store, and none of it left open on the disk."""
        try:
            if self.is_folder:
                for folder in ("new", "cur", "later", "done", "tmp"):
                    (self.place / folder).mkdir(mode=0o700, exist_ok=True)  # the oracle lists them all
            yield self.estate.queue
        finally:
            self.estate.queue.close()
            self.estate._queue = None

    def work_off(self) -> None:
        """A pool without any trouble, to the end of all jobs; then each has ended once, as told, with its bytes."""
        begun = time.monotonic()
        pool = self.estate.run("--burst", patience=120)
        self.slowest = max(self.slowest, time.monotonic() - begun)
        assert pool.code in {0, 6}, pool.log[-3000:]
        sent = self.acknowledged()
        with self._estates_queue() as queue:
            found = self.estate.check(sent)
            assert set(found) <= {"done"}, found
            for view in queue.jobs([State.DONE]):
                assert isinstance(view, JobView), f"{view} was delivered in part"
                check_end(view)
        self._check_bytes(sent)
        self.jobs += len(sent)
        self.repeats += self._check_repeats(sent)
        assert not {each.kind for each in self.examined()} - {"tmp-stale", "alive-dead"}
        self.estate.pools.clear()

    def _check_bytes(self, sent: dict[str, str]) -> None:
        hashes = {facts[0]: facts[1] for _, _, *facts in self.estate.notes("hash")}
        wrong = [id for id, told in hashes.items() if sent.get(id, told) != told]
        assert not wrong, f"delivered with other bytes: {wrong}"
        runs = self.estate.runs()
        assert sent.keys() <= runs.keys(), "ended without a run"

    def _check_repeats(self, sent: dict[str, str]) -> int:
        """Every run that was repeated failed, or was in flight at a cut; none began when its job had ended on the disk.

        Returns how many were in flight.
        """
        fails = hashlib.sha256(RAISES).hexdigest()
        repeats = 0
        for id, runs in self.estate.runs().items():
            assert runs[-1].start < self.ended.get(id, float("inf")), f"{id} ran again after its end: {runs}"
            for run, later in itertools.pairwise(runs):
                if run.end is None and sent.get(id, fails) == fails:
                    continue  # it raised, as told
                ended = later.start if run.end is None else min(later.start, run.end + SETTLING)
                at_a_cut = any(run.start <= last and first <= ended for first, last in self.estate.kills)
                assert at_a_cut, f"{run} was repeated ({later}) with no cut meanwhile: {self.estate.kills}"
                repeats += 1
        return repeats


def check_end(view: JobView) -> None:
    """As its payload has told, and nobody was charged for the cuts."""
    assert view.signal is not None
    record, status = Delivery.of(view.job), view.signal.status.value
    assert record.crashes == 0, f"{view.job.id} is charged: {record}"
    match view.job.payload:
        case b'{"do": "discard"}':
            assert (status, record.attempt) == ("blocked", 0)
            assert "never again" in str(view.dossier)
        case b'{"do": "raise", "until": 1}':
            assert (status, record.attempt) == ("done", 1)
        case _:
            assert (status, record.attempt) == ("done", 0)


@pytest.fixture(params=["dir", "sqlite"])
def site(request: pytest.FixtureRequest, tmp_path: Path, dice: random.Random) -> Iterator[Site]:
    streams = {name: {"workers": 2} for name in STREAMS}
    with power_disk(tmp_path / "disk", megabytes=256) as disk:
        place = disk.folder / "store"
        url = f"dir:{place}" if request.param == "dir" else f"sqlite:{place}/jobs.db"
        tables = {"store": {"url": url}, "lease": {"ttl": "1s"}}
        if request.param == "dir":
            estate = Estate(tmp_path, streams, **tables)
            estate.root, estate.url = place, url
        else:
            estate = DatabaseEstate(tmp_path, url, streams, **tables)
        with estate:
            yield Site(estate, disk, dice, place)


@pytest.mark.parametrize("cuts", short_and_long(3, 100))
def test_a_pool_under_load_loses_nothing_to_power_cuts(site: Site, cuts: int) -> None:
    """T4: producers, pool and handlers end at one instant; the pools after them bring every job to its end."""
    for number in range(cuts):
        site.cut_under_load()
        if (number + 1) % EPOCH == 0 or number + 1 == cuts:
            site.work_off()
            site.renew()
    print(
        f"T4, pool on {site.estate.url.partition(':')[0]}: {cuts} cuts, {site.jobs} jobs acknowledged, "
        f"0 lost, 0 partial, 0 charged, "
        f"{site.repeats} runs in flight at a cut repeated; {site.left_over} left in tmp/; fsck: {dict(site.findings)}; "
        f"worked off within {site.slowest:.1f} s"
    )


# -- C01


class Shop:
    """Producers that type `workerpool send`, and note an id only when the command has ended with 0."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.sent: dict[str, str] = {}

    def send_until_cut(self) -> None:
        site = self.site
        producers = [self._start(site.dice.randrange(2**32)) for _ in range(2)]
        try:
            size = site.receipts.stat().st_size
            lines = site.dice.randrange(1, 6) * 70
            until(lambda: site.receipts.stat().st_size >= size + lines, "some jobs", patience=60)
            end = time.monotonic() + site.dice.uniform(0, 0.5)
            until(lambda: time.monotonic() >= end, "the moment")
        finally:
            site.cut(producers)

    def _start(self, seed: int) -> int:
        return fork_child(lambda: self._send_on_and_on(random.Random(seed)), dies_with_us=True)

    def _send_on_and_on(self, dice: random.Random) -> None:
        receipts = os.open(self.site.receipts, os.O_WRONLY | os.O_APPEND)
        command = [COMMAND, "send", "encode", "-", "--config", str(self.site.estate.config)]
        while True:
            payload = b"#" + dice.randbytes(dice.choice((0, 1, 100, 4095, 20_000, 100_000)))
            done = subprocess.run(
                command, input=payload, capture_output=True, env=self.site.estate.environment(), check=False
            )
            if done.returncode != 0:
                return  # the power is gone
            os.write(receipts, f"{done.stdout.decode().strip()} {hashlib.sha256(payload).hexdigest()}\n".encode())


@pytest.mark.parametrize("site", ["dir"], indirect=True)
@pytest.mark.parametrize("rounds", short_and_long(3, 200))
def test_every_id_that_send_has_printed_is_worked(site: Site, rounds: int) -> None:
    """C01: `workerpool send` in a loop, the power is cut, `workerpool run`: each printed id runs, to the last byte."""
    shop = Shop(site)
    for number in range(rounds):
        shop.send_until_cut()
        site.look()
        assert_whole(site)
        check_what_is_left_in_tmp(site)
        site.work_off()
        if (number + 1) % 20 == 0:
            site.renew()
    print(f"C01: {rounds} rounds, {site.jobs} ids printed, 0 lost, 0 changed, 0 partial; {site.left_over} left in tmp/")


def assert_whole(site: Site) -> None:
    """Every file in new/ is a job, and says what its sender has told, if that came to be acknowledged."""
    sent = site.acknowledged()
    for file in site.estate.files("new"):
        job = decode_job(file.read_bytes())
        told = hashlib.sha256(job.payload).hexdigest()
        assert sent.get(str(job.id), told) == told


def check_what_is_left_in_tmp(site: Site) -> None:
    """It is not delivered, and swept by a mount when it is old."""
    left = [site.place / "tmp" / name for name in site.estate.folder_if_there("tmp")]
    old = time.time() - STALE_SECONDS
    for file in left:
        os.utime(file, (old, old))
    with QueueKit.open(site.estate.url):
        assert not any(file.exists() for file in left)
