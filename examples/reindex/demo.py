"""The whole journey in one command: produce the jobs, run the pool until nothing is left, search the result.

    python demo.py [ESTATE] [--query "temporary file"]

Killed at any moment and started again it completes what is missing. INT, TERM and HUP are passed on to the pool, which
stops in good order. Exit codes: those of the step that failed (`workerpool run --burst`: 6 = some jobs ended blocked,
and the search is still made); 130 after INT.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import produce
import search
from catalog import Catalog, default_path
from estate import files_of
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

HERE = Path(__file__).resolve().parent
CONFIG = HERE.parents[1] / "config" / "reindex.toml"
BLOCKED = 6
LOOK_SECONDS = 0.5
PASSED_ON: dict[int, int] = {
    signal.SIGINT: signal.SIGINT,
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGHUP: signal.SIGTERM,  # to the pool HUP means reload; here it means that the terminal is gone
}


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="demo.py", description="Re-index an estate through a pool, then search it.")
    parser.add_argument(
        "estate", nargs="?", default=produce.default_estate(), help="a directory (default: %(default)s)"
    )
    parser.add_argument("--config", default=str(CONFIG), metavar="FILE", help="the pool (default: %(default)s)")
    parser.add_argument("--store", default=produce.STORE, metavar="URL", help="its queue (default: %(default)s)")
    parser.add_argument("--query", default="temporary file", metavar="WORDS", help="default: %(default)s")
    options = parser.parse_args(arguments)

    headline("1. produce: durable batches of jobs")
    if code := produce.main([options.estate, "--store", options.store]):
        return code
    headline(f"2. the pool: workerpool run {os.path.relpath(options.config)} --burst")
    code = run_pool(options.config, options.store, sum(1 for _ in files_of(options.estate)))
    if code not in {0, BLOCKED}:
        return code
    headline(f"3. search: {options.query}")
    return search.main(options.query.split()) or code


def headline(text: str) -> None:
    """Print what comes next, before anything that a subprocess prints."""
    print(f"== {text}", flush=True)


def run_pool(config: str, store: str, files: int) -> int:
    """Run the pool until its queue is empty; returns its exit code, or 128 + the signal that ended it or us."""
    workerpool = os.path.join(sysconfig.get_path("scripts"), "workerpool")
    command = [workerpool, "run", config, "--store", store, "--burst"]
    with Passing() as passing:
        code = _run_with_bars(passing, command, files) if sys.stdout.isatty() else passing.start(command).wait()
    if passing.received:
        return 128 + passing.received[0]
    return code if code >= 0 else 128 - code


class Passing:
    """While it is entered, INT, TERM and HUP go to the process that it started, and are kept in `received`.

    The process has a group of its own, so that a key press reaches it once, through here. A signal that was ignored
    when this program started (`nohup`) stays ignored.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self._before: dict[int, object] = {}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Passing:
        for number in PASSED_ON:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def start(self, command: Sequence[str], output: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
        """Start the process, its output going to ours or into a file; what was received before is passed on now."""
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, process_group=0, env=_plain_log()
        )
        for number in list(self.received):
            self._process.send_signal(PASSED_ON[number])
        return self._process

    def _note(self, number: int, _frame: object) -> None:
        self.received.append(number)
        if self._process:
            self._process.send_signal(PASSED_ON[number])


def _plain_log() -> dict[str, str]:
    return {"WORKERPOOL_LOG_FORMAT": "text"} | os.environ


def _run_with_bars(passing: Passing, command: Sequence[str], files: int) -> int:
    """Draw how far the index is. What the pool prints goes through a file, not a pipe: it never waits for a reader."""
    columns = TextColumn("{task.description:>9}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with tempfile.TemporaryFile() as output, Progress(*columns) as bars:
        encode, dreaming = bars.add_task("encode", total=files), bars.add_task("dreaming", total=files)
        pool, shown, code = passing.start(command, output), 0, None
        while code is None:
            code = _wait_a_little(pool)
            shown = _show_lines(output.fileno(), shown, bars.console, all_of_it=code is not None)
            with Catalog(default_path()) as catalog:
                now = catalog.progress()
            bars.update(encode, completed=now.documents)
            bars.update(dreaming, completed=now.linked)
    return code


def _wait_a_little(pool: subprocess.Popen[bytes]) -> int | None:
    try:
        return pool.wait(LOOK_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def _show_lines(file: int, start: int, console: Console, *, all_of_it: bool) -> int:
    """Print the whole lines (or everything) that were added since `start`; returns where the next call starts.

    Reads without moving the file's position, which the writer shares.
    """
    data = os.pread(file, max(0, os.fstat(file).st_size - start), start)
    if not all_of_it:
        data = data[: data.rfind(b"\n") + 1]
    if data:
        console.out(data.decode(errors="replace").rstrip("\n"), highlight=False)
    return start + len(data)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
