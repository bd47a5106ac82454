"""`workerpool bench` as it is typed: figures of every kind of store, nobody's jobs touched, nothing left running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from pool import until

from queuekit import QueueKit

BIN = sysconfig.get_path("scripts")
KEYS = {"store", "scratch", "left", "jobs", "durability", "interrupted", "figures"}
FIGURES = ["send_single", "send_batch", "work_single", "work_batch", "end_to_end", "start_latency"]
QUICK = '[store]\nurl = "dir:./spool"\ndurability = "none"\n[streams.encode]\nhandler = "handlers:work"\n'


def environment(**changes: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("WORKERPOOL_")}
    return kept | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"} | changes


def bench(folder: Path, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["workerpool", "bench", "--jobs", "30", *arguments],
        cwd=folder,
        env=environment(**changes),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def report_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report.keys() == KEYS
    check_figures(report["figures"])
    return report


def check_figures(figures: Mapping[str, Mapping[str, float]]) -> None:
    assert list(figures) == FIGURES
    assert [figures[key]["jobs"] for key in FIGURES] == [30, 30, 30, 30, 30, 20]
    assert all(figures[key]["jobs_per_second"] > 0 for key in FIGURES[:-1])
    assert 0 < figures["start_latency"]["p50_ms"] <= figures["start_latency"]["p99_ms"]


def pending(url: str) -> int:
    with QueueKit.open(url) as queue:
        return queue.pending_count()


@pytest.mark.parametrize("scheme", ["dir", "sqlite"])
def test_a_local_store_is_measured_beside_itself(tmp_path: Path, scheme: str) -> None:
    url = f"{scheme}:{tmp_path}/mine"
    with QueueKit.open(url) as queue:
        queue.submit("encode", b"stays")
    report = report_of(bench(tmp_path, "--store", url, "--json"))
    assert pending(url) == 1
    assert Path(report["left"]).is_dir()
    assert Path(report["left"]).parent == tmp_path
    with QueueKit.open(
        f"{url.partition(':')[0]}:{report['left']}/{'spool' if scheme == 'dir' else 'jobs.db'}"
    ) as queue:
        assert len(queue.completed()) == 30 * 3 + 20
        assert queue.backend.tally().outstanding == 0


def test_a_postgresql_store_is_measured_in_a_schema_that_goes(tmp_path: Path, postgres_url: str) -> None:
    with QueueKit.open(postgres_url) as queue:
        queue.submit("encode", b"stays")
    report = report_of(bench(tmp_path, "--store", postgres_url, "--json", TMPDIR=str(tmp_path)))
    assert report["left"] is None
    assert pending(postgres_url) == 1
    with psycopg.connect(postgres_url) as connection:
        words = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'queuekit_bench%'"
        assert connection.execute(words).fetchone() == (0,)
    assert not list(tmp_path.glob("workerpool-bench-*"))


def test_the_text_says_what_and_where_and_needs_no_configuration(tmp_path: Path) -> None:
    done = bench(tmp_path, "--scratch", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.glob("bench-*")
    assert f"What was measured stays in {folder}." in done.stdout
    assert "pool of 1 worker: sent, run, ended" in done.stdout
    assert "durability full" in done.stdout
    assert done.stderr.splitlines()[0] == "send, one by one …"


def test_what_the_environment_says_of_the_store_does_not_reach_the_pool(tmp_path: Path) -> None:
    with QueueKit(tmp_path / "other") as queue:
        queue.submit("work", b"stays")
    (tmp_path / "config.toml").write_text(QUICK)
    report_of(bench(tmp_path, "--json", WORKERPOOL_STORE_URL=f"dir:{tmp_path}/other"))
    assert pending(f"dir:{tmp_path}/other") == 1


def test_usage_errors_and_stores_that_cannot_be_had(tmp_path: Path) -> None:
    assert bench(tmp_path, "--scratch", "nowhere").returncode == 2
    assert bench(tmp_path, "--scratch", ".", "--store", "dir:spool").returncode == 2
    assert bench(tmp_path, "--jobs", "0", "--scratch", ".").returncode == 2
    assert bench(tmp_path, "--store", "dir:/proc/nope").returncode == 3
    assert bench(tmp_path, "--store", f"postgresql://nobody@/db?host={tmp_path}").returncode == 3
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def running(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A long one that tells in `told` how far it is."""
    (tmp_path / "config.toml").write_text(QUICK)
    (tmp_path / "handlers.py").write_text("def work(job): pass\n")
    with (tmp_path / "told").open("wb") as told, (tmp_path / "printed").open("wb") as printed:
        process = subprocess.Popen(
            ["workerpool", "bench", "--jobs", "4000"],
            cwd=tmp_path,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=told,
            start_new_session=True,
        )
    yield process
    process.kill()
    process.wait(30)


def wait_for(folder: Path, words: str) -> None:
    until(lambda: words in (folder / "told").read_text(), words, patience=90)


@pytest.mark.parametrize("moment", ["send, one by one", "idle pool"])
def test_an_interrupt_tells_what_was_measured_and_leaves_no_pool(
    tmp_path: Path, running: subprocess.Popen[bytes], moment: str
) -> None:
    wait_for(tmp_path, moment)
    family = psutil.Process(running.pid).children(recursive=True)
    assert bool(family) == (moment == "idle pool")
    os.killpg(running.pid, signal.SIGINT)
    assert running.wait(60) == 130
    printed = (tmp_path / "printed").read_text()
    assert "interrupted: the rest was not measured" in printed
    assert "What was measured stays in" in printed
    assert ("sent, run, ended" in printed) == (moment == "idle pool")
    assert "Traceback" not in (tmp_path / "told").read_text()
    assert not [each for each in family if each.is_running()]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's death")
def test_a_killed_one_takes_its_pool_along(tmp_path: Path, running: subprocess.Popen[bytes]) -> None:
    wait_for(tmp_path, "idle pool")
    family = psutil.Process(running.pid).children(recursive=True)
    assert family
    running.kill()
    until(lambda: not any(each.is_running() for each in family), "the end of the pool")
