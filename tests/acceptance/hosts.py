"""Several hosts that share a database: each a network namespace with its own temporary folder, config and board.

`Network` is a bridge with an address for the server; `network.host(…)` is one more `Host` on it. A host can be cut off
(`host.cut_off()`) and killed or stopped with all its processes (`Pool.signal_tree`). Nothing that a process of one host
could find on the disk tells it whether one of another lives.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import sqlalchemy as sa
from databases import DatabaseEstate
from pool import Estate, Pool, Run, until

from queuekit.backends.sql import schema


def ip(*words: str) -> str:
    """What one `ip` command prints; raises with its words when it fails."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def sweep() -> None:
    """Remove the networks of test runs that were killed: their names tell whose they were."""
    namespaces = re.findall(r"^wp(\d+)-\S+", ip("netns", "list"), re.MULTILINE)
    for owner in {int(each) for each in namespaces if not psutil.pid_exists(int(each))}:
        for name in re.findall(rf"^wp{owner}-\S+", ip("netns", "list"), re.MULTILINE):
            ip("netns", "del", name)
        if Path(f"/sys/class/net/wp{owner}b").exists():
            ip("link", "del", f"wp{owner}b")


class Network:
    """A bridge of its own with an address, and hosts on it; use it as a context. Skips where that cannot be made."""

    def __init__(self) -> None:
        number = os.getpid()
        self._name = f"wp{number}"
        self._subnet = f"198.18.{number % 254 + 1}"  # of the range that is set aside for measuring devices
        self._addresses = itertools.count(2)
        self._stack = ExitStack()
        self.address = f"{self._subnet}.1"

    def __enter__(self) -> Network:
        if sys.platform != "linux" or os.getuid() != 0 or shutil.which("ip") is None:
            pytest.skip("network namespaces need Linux, root and iproute2")
        with ExitStack() as stack:
            try:
                sweep()
                ip("link", "add", f"{self._name}b", "type", "bridge")
                stack.callback(ip, "link", "del", f"{self._name}b")
                ip("addr", "add", f"{self.address}/24", "dev", f"{self._name}b")
                ip("link", "set", f"{self._name}b", "up")
                self._make_namespace(stack, "probe")
            except OSError as error:
                pytest.skip(f"no network can be made here: {error}")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def host(self, folder: Path, url: str, streams: Mapping[str, Mapping[str, Any]], **tables: Any) -> Host:
        """One more host; what runs on it is killed at the end."""
        folder.mkdir()
        name, link = self._make_namespace(self._stack, folder.name)
        return self._stack.enter_context(Host(name, link, folder, url, streams, **tables))

    def _make_namespace(self, stack: ExitStack, host: str) -> tuple[str, str]:
        """The names of the namespace and of the bridge's end of its cable."""
        number = next(self._addresses)
        name, link = f"{self._name}-{host}", f"{self._name}v{number}"
        ip("netns", "add", name)
        stack.callback(ip, "netns", "del", name)
        ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("link", "set", link, "master", f"{self._name}b", "up")
        ip("-n", name, "addr", "add", f"{self._subnet}.{number}/24", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        ip("-n", name, "link", "set", "lo", "up")
        return name, link


class Host(DatabaseEstate):
    """One host. `kills` says when it was killed, cut off or stopped: from then until it was back."""

    def __init__(
        self,
        namespace: str,
        link: str,
        folder: Path,
        url: str,
        streams: Mapping[str, Mapping[str, Any]],
        **tables: Mapping[str, Any],
    ) -> None:
        super().__init__(folder, url, streams, **tables)
        self._namespace = namespace
        self._link = link
        self.gate = folder / "gate"
        (folder / "tmp").mkdir()

    def environment(self) -> dict[str, str]:
        return super().environment() | {"TMPDIR": str(self.folder / "tmp"), "HOST": str(self.folder)}

    def start(self, *flags: str, before: Sequence[str] = ()) -> Pool:
        return super().start(*flags, before=["ip", "netns", "exec", self._namespace, *before])

    @contextmanager
    def cut_off(self) -> Iterator[None]:
        """Nothing reaches it or comes from it meanwhile, and nobody is told."""
        begun = time.monotonic()
        ip("link", "set", self._link, "down")
        try:
            yield
        finally:
            ip("link", "set", self._link, "up")
            self.kills.append((begun, time.monotonic()))

    @contextmanager
    def stopped(self, pool: Pool) -> Iterator[None]:
        """Every process of it is stopped meanwhile."""
        begun = time.monotonic()
        tree = pool.tree()
        for pid in tree:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in tree:
                os.kill(pid, signal.SIGCONT)
            self.kills.append((begun, time.monotonic()))

    def lose_power(self, pool: Pool) -> float:
        """Kill every process of it at once; returns when, in monotonic seconds."""
        begun = time.monotonic()
        for process in self.processes():
            process.kill()
        pool.wait()
        until(lambda: not self.processes(), "the end of all")
        self.kills.append((begun, time.monotonic()))
        return begun


def all_runs(hosts: Sequence[Estate]) -> dict[str, list[tuple[Estate, Run]]]:
    """Every run of every host by job, in the order of their starts."""
    runs: dict[str, list[tuple[Estate, Run]]] = {}
    for host in hosts:
        for job_id, its in host.runs().items():
            runs.setdefault(job_id, []).extend((host, run) for run in its)
    return {job_id: sorted(its, key=lambda each: each[1].start) for job_id, its in runs.items()}


def check_repeats(hosts: Sequence[Estate], settling: float) -> int:
    """Fail unless each run that was repeated was in flight when its own host was in trouble; returns how many were.

    In flight is a job until its reply is durable, at most `settling` seconds after its handler's end.
    """
    repeats = 0
    for job_id, runs in all_runs(hosts).items():
        for (host, run), (_, later) in itertools.pairwise(runs):
            ended = later.start if run.end is None else min(later.start, run.end + settling)
            assert any(run.start <= last and first <= ended for first, last in host.kills), (
                f"{job_id}: {run} on {host.folder.name} was repeated ({later}) although nothing happened: {host.kills}"
            )
            repeats += 1
    return repeats


def settled_by(host: Estate, job_id: str) -> int:
    """The pid of the stream process whose reply for a job was accepted."""
    wanted = sa.select(schema.jobs.c.claimed_by).where(schema.jobs.c.id == job_id, schema.is_status(schema.DONE))
    database = host.queue.backend.database  # type: ignore[attr-defined]
    return int(str(database.run(lambda connection: connection.scalar(wanted), write=False)).split("-")[1])
