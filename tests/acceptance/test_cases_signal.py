"""Signals and dying children under adverse conditions: C24, C27, C63, C65."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from machine import SYNCS, slowed
from pool import Estate, Pool, prepare, suppressed_end, until

STREAMS = ("encode", "dreaming", "import", "replay")
few_or_many = pytest.mark.parametrize(
    "seconds", [3, pytest.param(60, marks=[pytest.mark.torture, pytest.mark.timeout(300)])], ids=["short", "long"]
)


# -- C24

CHATTY = """
import logging, threading, time
import psutil
import acting
from acting import act

LOG = logging.getLogger("chatty")
LOG.addHandler(logging.FileHandler({file!r}))
LOG.propagate = False


def chat():
    while True:
        LOG.warning("and another line")


threading.Thread(target=chat, daemon=True).start()
acting.note("import", time.time() - psutil.Process().create_time())
"""


@pytest.mark.parametrize("count", [10, pytest.param(200, marks=[pytest.mark.torture, pytest.mark.timeout(900)])])
def test_a_handler_whose_module_logs_in_a_thread_hangs_no_worker(
    make_estate: Callable[..., Estate], count: int
) -> None:
    """C24, T24: no process with such a thread is ever forked from; each worker is ready within 5 s, and runs its job.

    Forked from a process that logs so, nearly all of them would hang at their first line.
    """
    estate = make_estate({"encode": {"handler": "chatty:act", "max_jobs": 1}})
    (estate.folder / "chatty.py").write_text(CHATTY.format(file=os.devnull))
    sent = estate.send_many(count)
    pool = estate.start()
    for job in sent:
        until(estate.finished(job), "the next job")
    assert pool.stop() == 0
    slowest = max(float(facts[2]) for facts in estate.notes("import"))
    print(
        f"T24: {count} workers with a busy logging thread, the slowest has its handler {slowest:.2f} s after its fork"
    )
    assert slowest < 5
    assert len({run.pid for (run,) in estate.runs().values()}) == count
    estate.check_settled(sent)


# -- C27


@contextmanager
def pool_with_a_slow_reader(estate: Estate) -> Iterator[tuple[subprocess.Popen[bytes], list[bytes]]]:
    """A pool at log level debug whose log is a pipe that is read 4 KiB at a time, with pauses; and what was read."""
    command = [str(Path(sys.executable).with_name("workerpool")), "run", str(estate.config)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=estate.environment(),
        cwd=estate.folder,
        preexec_fn=prepare,  # noqa: PLW1509  no thread of this process holds a lock that it needs
        start_new_session=True,
    )
    heard: list[bytes] = []

    def read_slowly() -> None:
        assert process.stdout is not None
        while data := process.stdout.raw.read(4096):  # type: ignore[attr-defined]
            heard.append(data)
            time.sleep(0.02)

    reader = threading.Thread(target=read_slowly)
    reader.start()
    try:
        yield process, heard
    finally:
        process.kill()
        process.wait(30)
        for child in estate.processes():
            with suppressed_end():
                child.kill()
        reader.join(60)


def descendants(process: subprocess.Popen[bytes]) -> list[int]:
    with suppressed_end():
        return [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    return []


@few_or_many
def test_children_die_and_signals_come_while_the_log_is_read_slowly(
    make_estate: Callable[..., Estate], dice: random.Random, seconds: int
) -> None:
    """C27: 50 deaths and 10 signals a second; the master lives, nothing is logged from inside a signal handler."""
    estate = make_estate({name: {"max_crashes": 1000, "retries": 1000} for name in STREAMS}, log={"level": "debug"})
    sent = estate.send_many(200, STREAMS, do="sleep", seconds=0.01)
    with pool_with_a_slow_reader(estate) as (pool, heard):
        until(lambda: len(descendants(pool)) >= 2 * len(STREAMS), "the pool")
        end, turn = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            for pid in dice.sample(found := descendants(pool), min(1, len(found))):
                estate.kill(pid)
            if turn % 5 == 0:
                pool.send_signal(dice.choice([signal.SIGHUP, signal.SIGUSR1]))
            turn += 1
            time.sleep(0.02)
            assert pool.poll() is None
        probes = estate.send_many(len(STREAMS), STREAMS)
        until(estate.finished(*probes, *sent), "all jobs", patience=90)
        pool.send_signal(signal.SIGTERM)
        assert pool.wait(60) == 0
        assert b"Traceback" not in b"".join(heard)
    estate.check([*sent, *probes])


# -- C63


def zombies(pids: list[int]) -> set[int]:
    found = set()
    for pid in pids:
        with suppressed_end():
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                found.add(pid)
    return found


@few_or_many
@pytest.mark.needs("strace")
def test_dead_children_do_not_stay_zombies_while_syncs_are_slow(
    make_estate: Callable[..., Estate], dice: random.Random, seconds: int
) -> None:
    """C63: the master waits for no disk; whoever dies is collected and replaced."""
    estate = make_estate({name: {"max_crashes": 1000, "retries": 1000} for name in STREAMS})
    pool = estate.start()
    until(pool.is_working(*STREAMS), "the pool")
    seen: dict[int, float] = {}
    with slowed(pool.pid, SYNCS, 5):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            estate.kill(dice.choice(pool.tree()[1:]))
            turn = time.monotonic() + 1
            while time.monotonic() < turn:
                now, found = time.monotonic(), zombies(pool.tree())
                seen = {pid: seen.get(pid, now) for pid in found}
                assert all(now - since < 10 for since in seen.values()), "a zombie for ten seconds"
                time.sleep(0.05)
        probes = estate.send_many(len(STREAMS), STREAMS)
        until(estate.finished(*probes), "jobs of every stream")
    assert pool.stop() == 0


# -- C65


@pytest.mark.parametrize("count", [10, pytest.param(50, marks=[pytest.mark.torture, pytest.mark.timeout(300)])])
def test_reloads_of_a_stream_whose_import_always_fails_kill_nobody(
    make_estate: Callable[..., Estate], dice: random.Random, count: int
) -> None:
    """C65: HUP at random moments, then TERM."""
    streams = {"encode": {}, "dreaming": {"handler": "flapping:act"}}
    estate = make_estate(streams, shutdown={"soft": "2s", "hard": "3s"})
    (estate.folder / "flapping.py").write_text("raise RuntimeError('flapping')\n")
    pool = estate.start()
    until(pool.is_working("encode"), "the good stream")
    for _ in range(count):
        moment = time.monotonic() + dice.uniform(0, 0.4)
        until(lambda moment=moment: time.monotonic() > moment, "the moment")
        pool.tell(signal.SIGHUP)
        assert pool.code is None
    good = estate.send()
    until(estate.finished(good), "a job of the good stream")
    begun = time.monotonic()
    assert stop_code(pool) == 0
    assert time.monotonic() - begun < 2 + 2
    assert "flapping" in pool.log
    assert estate.processes() == []


def stop_code(pool: Pool) -> int:
    return pool.stop(patience=10)
