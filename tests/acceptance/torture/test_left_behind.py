"""T12: what handlers leave behind is gone soon, and nothing stays a zombie, whoever its parent is by then."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import leaving
import psutil
import pytest
from lengths import short_and_long
from pool import Estate, Pool, suppressed_end, until

pytestmark = pytest.mark.needs("linux")
HERE = Path(__file__).parent
ZOMBIE_SECONDS = 10.0
GONE_SECONDS = 5.0
WORKERS = 2
STREAMS = ("encode", "dreaming")


def leaving_estate(make_estate: Callable[..., Estate]) -> Estate:
    keys = {
        "handler": "leaving:leave",
        "workers": WORKERS,
        "timeout": "1s",
        "max_crashes": 1_000_000,
        "retries": 1_000_000,
    }
    return make_estate(dict.fromkeys(STREAMS, keys), handlers={"path": [str(HERE), str(HERE.parent)]})


class Zombies:
    """Those of an estate's pools, and since when each is one."""

    def __init__(self) -> None:
        self._since: dict[tuple[int, float], float] = {}
        self.longest = 0.0

    def look(self, pid: int) -> None:
        """Among the descendants of a process."""
        now, found = time.monotonic(), set()
        with suppressed_end():
            for child in psutil.Process(pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):
                    if child.status() == psutil.STATUS_ZOMBIE:
                        found.add((child.pid, child.create_time()))
        self._since = {each: self._since.get(each, now) for each in found}
        self.longest = max([self.longest, *(now - since for since in self._since.values())])


@pytest.mark.parametrize(("jobs", "kills"), short_and_long((72, 6), (3_240, 200), timeout=7200))
def test_nothing_that_handlers_leave_stays(
    make_estate: Callable[..., Estate], dice: random.Random, jobs: int, kills: int
) -> None:
    """T12: in every way, with every end of the run, while workers and stream processes are killed."""
    estate = leaving_estate(make_estate)
    pool = estate.start()
    until(pool.is_working(*STREAMS), "the pool")
    ways = list(itertools.product(leaving.WAYS, leaving.ENDS)) * (jobs // (len(leaving.WAYS) * len(leaving.ENDS)))
    dice.shuffle(ways)
    sent = [estate.send(dice.choice(STREAMS), way=way, end=end) for way, end in ways]
    zombies = Zombies()
    for left in range(kills, 0, -1):
        share = len(sent) * (kills - left) // kills
        until(lambda share=share: zombies.look(pool.pid) or estate.count("done") >= 2 * share, "the moment", 300)
        estate.kill(dice.choice([pool.stream_pid, pool.worker_pid])(dice.choice(STREAMS)))
    until(lambda: zombies.look(pool.pid) or estate.finished(*sent)(), "all jobs", 300)
    whole = 1 + len(STREAMS) * (1 + WORKERS)
    until(lambda: len(estate.processes()) == whole, "the end of all that is not the pool's", GONE_SECONDS)
    assert pool.stop() == 0
    begun = time.monotonic()
    until(lambda: not estate.processes(), "the end of all that was left", GONE_SECONDS)
    print(
        f"T12: {len(sent)} jobs, {kills} kills, nothing left {time.monotonic() - begun:.1f} s after the stop,"
        f" no zombie for longer than {zombies.longest:.1f} s"
    )
    assert zombies.longest < ZOMBIE_SECONDS
    estate.check_settled(sent)


@pytest.mark.parametrize("way", sorted(leaving.WAYS))
def test_nothing_that_an_inline_handler_leaves_outlives_the_pool(make_estate: Callable[..., Estate], way: str) -> None:
    """T12, with no worker between the handler and its stream's process."""
    keys = {"handler": "leaving:leave", "workers": 0}
    estate = make_estate({"encode": keys}, handlers={"path": [str(HERE), str(HERE.parent)]})
    pool = estate.start()
    jobs = [estate.send(way=way, end="return") for _ in range(3)]
    until(estate.finished(*jobs), "the jobs")
    assert pool.stop() == 0
    assert '"level": "error"' not in pool.log
    until(lambda: not estate.processes(), "the end of all that was left", GONE_SECONDS)
    estate.check_settled(jobs)


# -- as the first process of a container

FIRST = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


class Contained:
    """A pool whose master is the first process of a PID namespace, as of a container that runs nothing else."""

    def __init__(self, estate: Estate) -> None:
        self.estate = estate
        self.pool: Pool = estate.start(before=FIRST)
        self.master = int(until(self._find_master, "the master"))

    def _find_master(self) -> int | None:
        """Its pid outside."""
        with suppressed_end():
            return next((child.pid for child in psutil.Process(self.pool.pid).children()), None)
        return None

    def inside(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the container; what it leaves is the master's."""
        enter = ["nsenter", "-t", str(self.master), "-p", "-m", *command]
        return subprocess.run(enter, check=False, capture_output=True, text=True, cwd=self.estate.folder, timeout=60)

    def workerpool(self, *words: str) -> subprocess.CompletedProcess[str]:
        """One of our commands in the container."""
        return self.inside(sys.executable, "-m", "workerpool", *words, "--config", str(self.estate.config))

    def children(self) -> list[psutil.Process]:
        """The master's."""
        return psutil.Process(self.master).children()


@pytest.fixture
def container(make_estate: Callable[..., Estate]) -> Contained:
    estate = make_estate({"encode": {"workers": 2}}, shutdown={"soft": "1s", "hard": "2s"})
    contained = Contained(estate)
    job = estate.send()
    until(estate.finished(job), "a job")
    return contained


@pytest.mark.needs("namespaces")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("from_inside", [True, False], ids=["inside", "outside"])
def test_the_first_process_of_a_container_ends_when_it_is_told_to(
    container: Contained, number: signal.Signals, from_inside: bool
) -> None:
    """T12: the kernel has no default action for the first process; what is running may finish."""
    gate = container.estate.folder / "gate"
    job = container.estate.send(do="wait", file=str(gate))
    until(container.estate.started(job), "the run")
    if from_inside:
        assert container.inside("kill", f"-{number}", "1").returncode == 0
    else:
        os.kill(container.master, number)
    until(lambda: "stopping" in container.pool.log, "the word that it stops")
    gate.touch()
    assert container.pool.wait(5) == 0
    assert container.estate.processes() == []
    container.estate.check_settled([job, *container.estate.runs()])


@pytest.mark.needs("namespaces")
def test_the_first_process_of_a_container_can_be_steered(container: Contained) -> None:
    """T12: `status`, `reload` and `stop`, as with `docker exec`."""
    assert "encode" in container.workerpool("status").stdout
    reloaded = container.workerpool("reload")
    assert (reloaded.returncode, reloaded.stderr) == (0, "")
    until(lambda: "configuration read anew" in container.pool.log, "the reload")
    stopped = container.workerpool("stop")
    # With the first process the kernel ends every other one, this command, too, if it has not been quicker.
    assert stopped.returncode in {0, -signal.SIGKILL}
    assert stopped.stderr == ""
    assert container.pool.wait(5) == 0


@pytest.mark.needs("namespaces")
def test_the_first_process_of_a_container_buries_strangers(container: Contained) -> None:
    """T12: orphans of programs that were run in the container fall to it; it does not kill them."""
    until(lambda: len(container.children()) == 1, "the stream's process alone")
    assert container.inside("sh", "-c", "(sleep 0.2 & sleep 1000 &) > /dev/null 2>&1").returncode == 0
    until(lambda: len(container.children()) == 2, "the burial", ZOMBIE_SECONDS)
    assert "sleep" in {child.name() for child in container.children()}
    assert psutil.STATUS_ZOMBIE not in {child.status() for child in container.children()}
    os.kill(container.master, signal.SIGTERM)
    assert container.pool.wait(5) == 0
    assert container.estate.processes() == []


@pytest.mark.needs("namespaces")
def test_in_a_container_nothing_stays_of_a_stream_that_is_killed_with_its_worker(container: Contained) -> None:
    """T12: the jobs run again; what had left the worker's group lives until the container ends, and no longer."""
    estate = container.estate
    left = estate.send(do="spawn", daemon=True, then="hang")
    until(lambda: estate.notes("child"), "the child")
    (stream,) = container.children()
    for process in [*stream.children(), stream]:
        process.kill()
    good = estate.send()
    until(estate.finished(good), "a job of the next stream's process")
    os.kill(container.master, signal.SIGTERM)
    assert container.pool.wait(10) in {0, 5}
    until(lambda: not estate.processes(), "the end of all that was left", GONE_SECONDS)
    assert estate.check([left, good])["done"] >= 1


@pytest.mark.needs("namespaces")
def test_the_next_container_is_not_taken_for_the_one_that_was_killed(container: Contained) -> None:
    """T12: its processes have the same pids. What ran there is run again at once, and charged once."""
    estate = container.estate
    job = estate.send(do="wait", file=str(estate.folder / "gate"))
    until(estate.started(job), "the run")
    (stream,) = container.children()
    pids = inner_pids(container.master, stream.pid)
    container.pool.process.kill()
    until(lambda: not estate.processes(), "the end of the container")
    (estate.folder / "gate").touch()
    heir = Contained(estate)
    until(estate.finished(job), "the job's second run", 5)
    (stream,) = heir.children()
    assert inner_pids(heir.master, stream.pid) == pids
    os.kill(heir.master, signal.SIGTERM)
    assert heir.pool.wait(5) == 0
    assert len(estate.runs()[job]) == 2
    estate.check_settled(list(estate.runs()))


@pytest.mark.needs("namespaces")
@pytest.mark.parametrize("step", short_and_long(50, 5, timeout=3600))
def test_the_first_process_of_a_container_ends_however_early_it_is_told_to(
    make_estate: Callable[..., Estate], step: int
) -> None:
    """T12, as T10: a TERM at 0 to 1,000 ms from the first moment on at which Python runs our code. None is lost."""
    estate = make_estate({"encode": {}}, shutdown={"soft": "1s", "hard": "2s"})
    slowest, deaf = 0.0, 0.0
    for milliseconds in range(0, 1001, step):
        begun = time.monotonic()
        contained = Contained(estate)
        until(lambda contained=contained: hears_term(contained.master), "the first line of our code")
        heard = time.monotonic()
        deaf = max(deaf, heard - begun)
        until(lambda end=heard + milliseconds / 1000: time.monotonic() > end, "the moment")
        with suppressed_end():
            os.kill(contained.master, signal.SIGTERM)
        told = time.monotonic()
        assert contained.pool.wait(4) in {0, 128 + signal.SIGTERM}
        slowest = max(slowest, time.monotonic() - told)
        assert estate.processes() == []
    print(
        f"T12, PID 1: a TERM at each of {1000 // step + 1} moments, the pool ended within {slowest:.2f} s;"
        f" it hears one at most {deaf:.2f} s after its start"
    )


def inner_pids(*pids: int) -> list[int]:
    """Which pids these processes have in their own namespace."""
    return [int(status_line(pid, "NSpid:").split()[-1]) for pid in pids]


def status_line(pid: int, name: str) -> str:
    """One line of what the kernel tells of a process."""
    return next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(name))


def hears_term(pid: int) -> bool:
    """Whether a process handles TERM by now."""
    caught = int(status_line(pid, "SigCgt:").split()[1], 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)
