"""Faults that made other systems run a job twice, or end it twice: C54, C84, C85."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pool as pool_module
import pytest
from machine import RENAMES, slowed
from pool import Estate, Pool, until

from queuekit.job import Delivery

HERE = Path(__file__).parent
TTL = 1.0
needs_root = pytest.mark.needs("linux", "root")


def two_pools(estate: Estate) -> tuple[Pool, Pool]:
    """One that holds the stream, and one that stands by."""
    holder = estate.start()
    until(holder.is_working(), "the holder")
    other = estate.start()
    until(lambda: (row := other.row()) is not None and row.lease == "standby", "the one that stands by")
    return holder, other


def wait(seconds: float) -> None:
    """Let time pass: it is what the case is about."""
    end = time.monotonic() + seconds
    until(lambda: time.monotonic() > end, "the time", patience=seconds + 5)


def check_one_end(estate: Estate, job: str) -> None:
    """One job file, one record, and a count of failed runs that agrees with the starts."""
    names = [path.name for path in estate.files("done") if job in path.name]
    assert len(names) == 2
    assert names.count(f"{job}.signal") == 1
    assert estate.status_of(job) == "done"
    (kept,) = [each for each in estate.queue.completed() if each.id == job]
    starts, crashes = len(estate.runs()[job]), Delivery.of(kept).crashes
    assert starts - 1 >= crashes


# -- C54


def stop_around_the_end(estate: Estate, holder: Pool, job: str, gate: Path, after: float) -> None:
    """Let the job end, and stop its stream process a moment later, in the midst of writing the reply or not."""
    pid = holder.stream_pid()
    gate.touch()
    until(lambda: any(facts[2] == job for facts in estate.notes("end")), "the handler's end")
    moment = time.monotonic() + after
    while time.monotonic() < moment:
        pass
    os.kill(pid, signal.SIGSTOP)
    stopped = time.monotonic()
    wait(TTL + 2)
    os.kill(pid, signal.SIGCONT)
    estate.kills.append((stopped - 1, time.monotonic()))


@pytest.mark.parametrize(
    "rounds", [2, pytest.param(100, marks=[pytest.mark.torture, pytest.mark.timeout(3600)])], ids=["few", "many"]
)
def test_a_reply_held_up_for_longer_than_the_ttl_ends_a_job_once(
    make_estate: Callable[..., Estate], dice: random.Random, rounds: int
) -> None:
    """C54: with a contender that takes over meanwhile, or waits for the lock in which the holder was stopped."""
    estate = make_estate(lease={"ttl": f"{TTL:g}s"})
    holder, other = two_pools(estate)
    sent = []
    for number in range(rounds):
        gate = estate.folder / f"gate-{number}"
        job = estate.send(do="wait", file=str(gate))
        sent.append(job)
        until(estate.started(job), "the run")
        working = next(each for each in (holder, other) if (row := each.row()) is not None and row.lease == "held")
        stop_around_the_end(estate, working, job, gate, dice.uniform(0, 0.004))
        until(estate.finished(job), "the job")
    probe = estate.send()
    until(estate.finished(probe), "a job after it")
    assert (holder.stop(), other.stop()) == (0, 0)
    for job in sent:
        check_one_end(estate, job)
    estate.check_settled([*sent, probe])


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.needs("strace")
def test_a_rename_to_done_that_takes_longer_than_the_ttl_ends_a_job_once(make_estate: Callable[..., Estate]) -> None:
    """C54, in the very system call: it holds the stream's lock, so the contender has to wait."""
    estate = make_estate(lease={"ttl": f"{TTL:g}s"})
    holder, other = two_pools(estate)
    sent = []
    for number in range(10):
        gate = estate.folder / f"gate-{number}"
        job = estate.send(do="wait", file=str(gate))
        sent.append(job)
        until(estate.started(job), "the run")
        working = next(each for each in (holder, other) if (row := each.row()) is not None and row.lease == "held")
        with slowed(working.stream_pid(), RENAMES, TTL + 2, "-f", "-P", str(estate.root / "done")):
            gate.touch()
            until(estate.finished(job), "the record")
            until(lambda: not estate.count("cur"), "the job's move")
    assert (holder.stop(), other.stop()) == (0, 0)
    for job in sent:
        check_one_end(estate, job)
    estate.check_settled(sent)


# -- C84


@needs_root
def test_a_pool_with_the_pids_of_its_dead_predecessor_recovers_its_jobs(tmp_path: Path) -> None:
    """C84: who had a job is told by more than a pid."""
    if not Path("/proc/sys/kernel/ns_last_pid").exists() or shutil.which("unshare") is None:
        pytest.skip("pids cannot be chosen here")
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, str(HERE / "acting_same_pids.py")]
    done = subprocess.run(
        [*command, str(tmp_path)], capture_output=True, text=True, timeout=90, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "same pids" in done.stdout


# -- C85


@contextmanager
def no_new_names(*folders: Path) -> Iterator[None]:
    """Whoever has no power over modes can make, move or remove nothing in these folders meanwhile."""
    for folder in folders:
        folder.chmod(0o500)
    try:
        yield
    finally:
        for folder in folders:
            folder.chmod(0o700)


@needs_root
def test_a_holder_that_cannot_renew_its_lease_stops_claiming(
    make_estate: Callable[..., Estate], monkeypatch: pytest.MonkeyPatch
) -> None:
    """C85: the contender can write where the lease is, the holder cannot; at most the running job is repeated."""
    estate = make_estate(lease={"ttl": f"{TTL:g}s"})
    gate = estate.folder / "gate"
    holder = estate.start()
    until(holder.is_working(), "the holder")
    monkeypatch.setattr(pool_module, "prepare", lambda: None)
    other = estate.start()
    until(lambda: (row := other.row()) is not None and row.lease == "standby", "the one that stands by")
    running = estate.send(do="wait", file=str(gate))
    until(estate.started(running), "the run")
    first_worker = holder.worker_pid()
    with no_new_names(estate.root, estate.root / ".workerpool" / "lease"):
        cut = time.monotonic()
        until(lambda: (row := other.row()) is not None and row.lease == "held", "the take-over", patience=10 * TTL)
        late = estate.send_many(50)
        until(lambda: len(estate.runs()[running]) == 2, "its run by the contender")
        estate.kills.append((cut, time.monotonic()))
        gate.touch()
        until(estate.finished(running, *late), "everything")
    assert first_worker not in {run.pid for job in late for run in estate.runs()[job]}
    until(lambda: (row := holder.row()) is not None and row.lease == "standby", "the former holder's standing by")
    assert (other.stop(), holder.stop()) == (0, 0)
    assert estate.check_repeats() == 1
    estate.check_settled([running, *late])
