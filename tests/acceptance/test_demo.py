"""`make demo` in small: produce, a real pool, a search; typed twice; killed half-way and typed again."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "reindex"
FILES = 150


class Demo:
    """An estate of `FILES` modules, and the demo's command over it."""

    def __init__(self, folder: Path) -> None:
        self.estate, self.spool, self.index = folder / "estate", folder / "spool", folder / "index.db"
        self.estate.mkdir()
        for number in range(FILES):
            text = f'"""Module {number} about gardening."""\nimport shared_{number // 3}\n\ndef sow_{number}(): pass\n'
            (self.estate / f"module{number}.py").write_text(text)

    def start(self) -> subprocess.Popen[str]:
        command = [sys.executable, str(EXAMPLE / "demo.py"), str(self.estate), "--store", f"dir:{self.spool}"]
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

    def signals(self) -> int:
        return len(list(self.spool.glob("done/*.signal")))

    def left(self) -> list[str]:
        return [name for folder in ("new", "cur", "later") for name in os.listdir(self.spool / folder)]

    def links(self) -> list[tuple[str, str, int]]:
        database = sqlite3.connect(self.index)
        try:
            return database.execute(
                "SELECT a.path, b.path, score FROM links JOIN documents a ON a.id = document"
                " JOIN documents b ON b.id = other ORDER BY 1, 2"
            ).fetchall()
        finally:
            database.close()


@pytest.fixture
def demo(tmp_path: Path) -> Demo:
    return Demo(tmp_path)


def test_the_demo_indexes_the_estate_and_finds_something(demo: Demo) -> None:
    printed = demo.run()
    assert f"{FILES} jobs sent" in printed
    assert "about gardening." in printed
    assert "see also: module" in printed
    assert demo.signals() == 2 * FILES
    assert demo.left() == []
    assert len(demo.links()) == 2 * FILES  # groups of three share an import: each is linked to two others


def test_typed_again_it_has_nothing_to_do(demo: Demo) -> None:
    demo.run()
    assert ": 0 jobs sent" in demo.run()
    assert demo.signals() == 2 * FILES


def wait_for_signals(demo: Demo, count: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while demo.signals() < count:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_killed_half_way_and_typed_again_it_completes(demo: Demo) -> None:
    process = demo.start()
    wait_for_signals(demo, 5, process)
    for victim in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]:
        victim.kill()
    process.communicate(timeout=60)
    demo.run()
    assert demo.signals() == 2 * FILES
    assert demo.left() == []
    assert len(demo.links()) == 2 * FILES


def test_interrupted_it_stops_the_pool_in_good_order(demo: Demo) -> None:
    process = demo.start()
    wait_for_signals(demo, 5, process)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 130, printed
    assert "Traceback" not in printed
    assert os.listdir(demo.spool / "cur") == []
    demo.run()
    assert demo.signals() == 2 * FILES
