"""`make demo` in small on every store: produce, a real pool, a search; typed twice; killed half-way and typed again."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from pool import until

from queuekit.facade import QueueKit
from queuekit.lifecycle import State

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "reindex"
FILES = 150


class Demo:
    """An estate of `FILES` modules, and the demo's command over it with its queue in `store`."""

    def __init__(self, folder: Path, store: str) -> None:
        self.estate, self.index, self.store = folder / "estate", folder / "index.db", store
        self.estate.mkdir()
        for number in range(FILES):
            text = f'"""Module {number} about gardening."""\nimport shared_{number // 3}\n\ndef sow_{number}(): pass\n'
            (self.estate / f"module{number}.py").write_text(text)

    def start(self) -> subprocess.Popen[str]:
        command = [sys.executable, str(EXAMPLE / "demo.py"), str(self.estate), "--store", self.store]
        return subprocess.Popen(
            [*command, "--query", "gardening"],
            env=os.environ | {"REINDEX_INDEX": str(self.index)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self) -> str:
        """Run it to its end, which must be a good one; returns what it printed."""
        process = self.start()
        printed, _ = process.communicate(timeout=60)
        assert process.returncode == 0, printed
        return printed

    def start_and_wait_for_ends(self, count: int) -> subprocess.Popen[str]:
        """A run that has come so far that so many jobs have ended, and goes on."""
        process = self.start()
        with QueueKit.open(self.store) as queue:

            def come_so_far() -> bool:
                assert process.poll() is None, process.communicate()[0]
                return sum(1 for _ in queue.jobs({State.DONE})) >= count

            until(come_so_far, f"the end of {count} jobs", patience=60)
        return process

    def in_flight(self) -> int:
        with QueueKit.open(self.store) as queue:
            return queue.in_flight_count()

    def check_complete(self) -> None:
        """Everything has ended, and groups of three share an import: each of the three is linked to the two others."""
        with QueueKit.open(self.store) as queue:
            assert queue.tally().outstanding == 0
            assert len(list(queue.jobs())) == len(queue.completed()) == 2 * FILES
        assert len(self.links()) == 2 * FILES

    def links(self) -> list[tuple[str, str, int]]:
        database = sqlite3.connect(self.index)
        try:
            return database.execute(
                "SELECT a.path, b.path, score FROM links JOIN documents a ON a.id = document"
                " JOIN documents b ON b.id = other ORDER BY 1, 2"
            ).fetchall()
        finally:
            database.close()


@pytest.fixture(params=["dir", "sqlite", "postgresql"])
def demo(request: pytest.FixtureRequest, tmp_path: Path) -> Demo:
    if request.param == "postgresql":
        return Demo(tmp_path, request.getfixturevalue("postgres_url"))
    return Demo(tmp_path, f"{request.param}:{tmp_path}/store")


def test_the_demo_indexes_the_estate_and_has_nothing_to_do_when_it_is_typed_again(demo: Demo) -> None:
    printed = demo.run()
    assert f"{FILES} jobs sent" in printed
    assert "about gardening." in printed
    assert "see also: module" in printed
    demo.check_complete()
    assert ": 0 jobs sent" in demo.run()
    demo.check_complete()


def test_killed_half_way_and_typed_again_it_completes(demo: Demo) -> None:
    process = demo.start_and_wait_for_ends(5)
    for victim in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]:
        victim.kill()
    process.communicate(timeout=60)
    demo.run()
    demo.check_complete()


def test_interrupted_it_stops_the_pool_in_good_order(demo: Demo) -> None:
    process = demo.start_and_wait_for_ends(5)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 130, printed
    assert "Traceback" not in printed
    assert demo.in_flight() == 0
    demo.run()
    demo.check_complete()
