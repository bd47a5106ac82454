"""T19 and C79: payloads of every size arrive whole or are refused, and other streams do not notice."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from databases import DatabaseEstate
from lengths import short_and_long
from pool import PATIENCE, Estate, Pool, until

MIB = 2**20
HUGE = 256 * MIB
MOST_LATENCY = 1.0
MOST_TIMES = 5
USUAL_LIMIT = 64 * MIB
"""SQLite writes a row anew at each of its moves, and has one writer: others wait for seconds where a row is larger."""
SLACK = 16 * MIB
"""What a process may grow by whatever the payload: it has more code, and more pages of its own."""
BEHIND = 10
"""So many jobs of 1 KiB come right behind each."""
_WORKERPOOL = str(Path(sys.executable).with_name("workerpool"))


def an_estate(folder: Path, store: str, limit: int) -> Estate:
    """Two streams over either store, which takes payloads up to so many bytes."""
    streams: dict[str, dict[str, object]] = {"encode": {}, "small": {}}
    tables = {"lease": {"ttl": "15s"}, "store": {"max_job_bytes": f"{limit}B"}}
    if store == "folder":
        return Estate(folder, streams, **tables)
    return DatabaseEstate(folder, f"sqlite:{folder / 'jobs.db'}", streams, **tables)


@dataclasses.dataclass(frozen=True)
class Sent:
    """What a `workerpool send` came to; `memory`: the most that it had resident, in bytes."""

    code: int
    said: str
    memory: int


def send_file(estate: Estate, payload: str, stdin: Path | None = None) -> Sent:
    """Type `workerpool send encode PAYLOAD`."""
    words = estate.folder / "words"
    with open(stdin or os.devnull, "rb") as source, words.open("wb") as target:
        process = subprocess.Popen(
            [_WORKERPOOL, "send", "encode", payload, "--config", str(estate.config)],
            env=estate.environment(),
            stdin=source,
            stdout=target,
            stderr=subprocess.STDOUT,
        )
    memory = 0
    while process.poll() is None:
        memory = max(memory, most_memory(process.pid))
        time.sleep(0.002)
    return Sent(process.returncode, words.read_text(), memory)


def most_memory(pid: int) -> int:
    """The most that a process has had resident, in bytes; 0 when it has just ended."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


def memory_of(pool: Pool) -> dict[str, int]:
    """The same of each process of a pool: the master, then its streams, and their workers behind them."""
    names = [f"{row.kind.name.lower()} {row.stream}" for row in pool.rows()]
    pids = [row.pid for row in pool.rows()]
    return {"master": most_memory(pool.pid)} | {
        name: most_memory(pid) for name, pid in zip(names, pids, strict=True) if pid and pid != pool.pid
    }


@contextmanager
def small_jobs(estate: Estate) -> Iterator[list[tuple[str, float]]]:
    """Jobs of the other stream, twenty a second meanwhile: each with the moment when it was accepted."""
    sent: list[tuple[str, float]] = []
    over = threading.Event()

    def send() -> None:
        while not over.wait(0.05):
            sent.append((estate.send("small"), time.monotonic()))

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield sent
    finally:
        over.set()
        sender.join()


def latencies(estate: Estate, sent: list[tuple[str, float]]) -> list[float]:
    """How long after they were accepted these jobs have started."""
    until(lambda: {job for job, _ in sent} <= estate.runs().keys(), "the small jobs")
    runs = estate.runs()
    return [runs[job][0].start - accepted for job, accepted in sent]


def move(estate: Estate, size: int, dice: random.Random) -> Sent:
    """Send a payload of this size and small ones behind it; they arrive whole."""
    file = estate.folder / "payload"
    file.write_bytes(b"\xff" * min(size, 1) + dice.randbytes(max(0, size - 1)))
    sent = send_file(estate, f"@{file}")
    assert sent.code == 0, sent.said
    wanted = {sent.said.split()[0]: hashlib.sha256(file.read_bytes()).hexdigest()}
    for _ in range(BEHIND):
        payload = b"\xff" + dice.randbytes(1023)
        wanted[str(estate.queue.submit("encode", payload))] = hashlib.sha256(payload).hexdigest()
    until(estate.finished(*wanted), "the jobs", patience=PATIENCE + size / MIB)
    hashes = {note[2]: note[3] for note in estate.notes("hash")}
    assert {job: hashes[job] for job in wanted} == wanted
    return sent


def check_refused(estate: Estate, size: int, limit: int, base: int) -> None:
    """A payload of this size is too large, from a file and from standard input; nothing of it stays."""
    file = estate.folder / "payload"
    with file.open("wb") as made:
        made.truncate(size)
    for sent in (send_file(estate, f"@{file}"), send_file(estate, "-", stdin=file)):
        assert sent.code == 2, sent.said
        assert "Traceback" not in sent.said
        assert sent.memory <= base + MOST_TIMES * limit + SLACK


@pytest.mark.needs("linux")
@pytest.mark.parametrize("store", ["folder", "sqlite"])
@pytest.mark.parametrize(("limit", "rounds"), short_and_long((64 * MIB, 0), (HUGE, 20)))
def test_payloads_of_every_size_arrive_whole_or_are_refused(
    tmp_path: Path, dice: random.Random, store: str, limit: int, rounds: int
) -> None:
    """T19 and C79: smallest first, so that a process's peak is due to the last one; then what is too large."""
    sizes = sorted([0, 1, 2**16 + 1, MIB, limit // 8, limit, *(dice.randint(0, limit) for _ in range(rounds))])
    with an_estate(tmp_path, store, limit) as estate:
        pool = estate.start()
        until(pool.is_working("encode", "small"), "the pool")
        base = move(estate, 0, dice).memory
        bases = memory_of(pool)
        most = 0.0
        waits: dict[int, float] = {}
        for size in sizes:
            with small_jobs(estate) as small:
                sent = move(estate, size, dice)
            waits[size] = max(latencies(estate, small), default=0.0)
            more = {name: peak - bases[name] for name, peak in memory_of(pool).items()} | {"send": sent.memory - base}
            print(f"{size:10d}: {more}")
            assert max(more.values()) <= MOST_TIMES * size + SLACK, f"{more} bytes more for a payload of {size}"
            most = max(most, (max(more.values()) - SLACK) / size) if size >= MIB else most
        for size in (limit + 1, max(HUGE, limit + 1)):
            check_refused(estate, size, limit, base)
        assert pool.stop() == 0
        ran = len(estate.runs())
        assert estate.check([]) == {"done": ran}
    print(
        f"T19: {len(sizes)} payloads up to {limit} bytes in {store}: each whole, larger ones refused with 2;"
        f" at most {most:.1f} times the payload resident in a process above its base;"
        f" small jobs beside them waited at most {max(waits.values()):.3f} s"
    )
    usual = [wait for size, wait in waits.items() if store == "folder" or size <= USUAL_LIMIT]
    assert max(usual) < MOST_LATENCY
    shutil.rmtree(tmp_path)  # some GB
