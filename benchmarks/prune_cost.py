"""What removing old records costs those who send meanwhile: the trap of ext4, and whether we step into it.

    python benchmarks/prune_cost.py DIR [--jobs 20000] [--after 60] [--only none housekeeping prune mass]

On ext4 an inode that was deleted in the last minutes is passed over, one by one, when a file is created in the same
block group. So after many deletions at once each creation is slow for minutes. DIR should be on an ext4 filesystem on
which nothing was deleted lately; a fresh image is best, one for each run:

    truncate -s 4G image && mkfs.ext4 -qF image && mount -o loop image DIR

(An ext4 with a journal, the default, does not do this; add `-O ^has_journal` to see it.)

Each way of removing gets a store of its own with so many finished jobs, `mass` (unlink everything in done/) last.
Before, during and for `--after` seconds after it, single jobs are sent, a few each second, with their data synced
(`durability = "full"`, what a pool does) and without (`none`, what the creation alone costs). `none` removes nothing:
it shows the noise. `housekeeping` is a pool with `[retention] done = "1s"`, `prune` is `workerpool prune`. When the
window `--most` is over, the removal is ended, and the table says how many jobs are left. `worst` is the highest median
of ten seconds during and after.

Nothing is removed at the end; delete DIR yourself.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from queuekit import Completion, Job, ObservationStatus, QueueKit
from queuekit.clock import ProcessClock
from queuekit.ids import JobID, StreamID

STREAM, ELSEWHERE = "bench", "elsewhere"
PAYLOAD = b"x" * 64
PACE_SECONDS = 0.02
BEFORE_SECONDS = 5.0
COMMAND = str(Path(sys.executable).with_name("workerpool"))
HANDLER = "def handle(job):\n    return None\n"
CONFIG = """\
[store]
url = "dir:./spool"
[handlers]
path = ["."]
[retention]
done = "1s"
[streams.bench]
handler = "handlers:handle"
"""


class Sender:
    """Sends single jobs of a stream that nobody works."""

    def __init__(self, root: Path) -> None:
        self._queues = {durability: QueueKit(root, durability=durability) for durability in ("full", "none")}

    def send_while(self, wanted: Callable[[], bool]) -> dict[str, list[float]]:
        """Send at a steady pace as long as it is wanted; returns what was measured, microseconds by durability."""
        took: dict[str, list[float]] = {durability: [] for durability in self._queues}
        while wanted():
            for durability, queue in self._queues.items():
                begun = time.perf_counter()
                queue.submit(ELSEWHERE, PAYLOAD)
                took[durability].append(1e6 * (time.perf_counter() - begun))
            time.sleep(PACE_SECONDS)
        return took


@dataclasses.dataclass(frozen=True)
class Measured:
    """One way of removing: how long it took in seconds, how many jobs were left, and the sends of each phase."""

    way: str
    seconds: float
    left: int
    phases: tuple[dict[str, list[float]], ...]

    def rows(self) -> list[str]:
        """A line for each durability: medians and 95th percentiles, and how many times as long as before."""
        return [self._row(durability) for durability in ("full", "none")]

    def _row(self, durability: str) -> str:
        before, *others = (phase[durability] for phase in self.phases)
        base = statistics.median(before)
        cells = [f"{base:6.0f} {p95(before):6.0f}"]
        for values in others:
            cells.append(f"{statistics.median(values):6.0f} {p95(values):6.0f} {statistics.median(values) / base:5.1f}")
        worst = highest_median([value for values in others for value in values])
        cells.append(f"{worst:6.0f} {worst / base:5.1f}")
        return f"{self.way:13} {durability:5} {self.seconds:8.1f} {self.left:6} | {' | '.join(cells)}"


def p95(values: Sequence[float]) -> float:
    """The 95th percentile."""
    return sorted(values)[int(0.95 * (len(values) - 1))]


def highest_median(values: Sequence[float]) -> float:
    """Of any ten seconds, taken one after the other."""
    size = int(10 / PACE_SECONDS)
    parts = [values[begin : begin + size] for begin in range(0, len(values), size)]
    return max(statistics.median(part) for part in parts if len(part) >= size // 2 or len(parts) == 1)


def main() -> None:
    """Measure and print."""
    options = arguments()
    print(f"{options.jobs} jobs removed; microseconds for one send: median, 95th percentile, median to that before")
    head = f"{'way':13} {'sync':5} {'seconds':>8} {'left':>6} | {'before':13} | {'during':19} | {'after':19} | worst"
    print(head, flush=True)
    for way in options.only:
        folder = Path(options.directory, way)
        folder.mkdir(parents=True)
        for row in measure(way, folder, options).rows():
            print(row, flush=True)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory")
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--after", type=float, default=60.0, help="seconds to go on measuring")
    parser.add_argument("--most", type=float, default=300.0, help="seconds that a removal may take")
    parser.add_argument("--only", nargs="+", choices=list(WAYS), default=list(WAYS))
    return parser.parse_args()


def measure(way: str, folder: Path, options: argparse.Namespace) -> Measured:
    """One way on a store of its own."""
    root = folder / "spool"
    fill(root, options.jobs)
    sender = Sender(root)
    before = sender.send_while(lasting(BEFORE_SECONDS))
    begun = time.monotonic()
    with WAYS[way](folder) as remover:
        during = sender.send_while(lambda: remover.poll() is None and time.monotonic() - begun < options.most)
        seconds = time.monotonic() - begun
        remover.terminate()
        after = sender.send_while(lasting(options.after))
    left = sum(not name.endswith(".signal") for name in os.listdir(root / "done"))
    return Measured(way, seconds, left, (before, during, after))


def lasting(seconds: float) -> Callable[[], bool]:
    """True for so long."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() < end


def fill(root: Path, count: int) -> None:
    """A store with so many jobs that have ended."""
    clock = ProcessClock()
    with QueueKit(root) as queue:
        jobs = [
            Job(id=JobID.generate(), stream_id=StreamID(STREAM), submitted_at=clock.send(), payload=PAYLOAD)
            for _ in range(count)
        ]
        queue.send_batch(jobs)
        lease = queue.lease(STREAM)
        while not lease.try_acquire():
            time.sleep(0.1)
        while claimed := queue.drain(STREAM, 1000, lease=lease):
            queue.reply_batch([Completion(each.job.id, ObservationStatus.DONE) for each in claimed], lease=lease)
            lease.heartbeat()
        lease.release()
    os.sync()
    time.sleep(1.5)  # so that they are older than what a pool is to keep


# -- the ways of removing


class Remover:
    """A process that removes; `poll` tells whether everything is gone, or the process."""

    def __init__(self, folder: Path, *command: str, until_empty: bool = False) -> None:
        self._folder = folder
        self._done = folder / "spool" / "done"
        self._until_empty = until_empty
        self._look_at = 0.0
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)

    def __enter__(self) -> Remover:
        return self

    def __exit__(self, *_: object) -> None:
        self.terminate()
        self._process.wait()

    def poll(self) -> int | None:
        """None while it removes."""
        if self._until_empty and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + 1
            if not os.listdir(self._done):
                return 0
        code = self._process.poll()
        if code:
            raise SystemExit((self._folder / "log").read_text())
        return code

    def terminate(self) -> None:
        """End it."""
        if self._process.poll() is None:
            self._process.terminate()


def housekeeping(folder: Path) -> Remover:
    """A pool that has nothing else to do."""
    (folder / "handlers.py").write_text(HANDLER)
    (folder / "config.toml").write_text(CONFIG)
    return Remover(folder, COMMAND, "run", "config.toml", until_empty=True)


def prune(folder: Path) -> Remover:
    """The command."""
    return Remover(folder, COMMAND, "prune", "--store", "dir:./spool", "--older-than", "1s")


def mass(folder: Path) -> Remover:
    """What nobody should do."""
    code = "import os\nfor name in os.listdir('spool/done'): os.unlink('spool/done/' + name)"
    return Remover(folder, sys.executable, "-c", code)


def nothing(folder: Path) -> Remover:
    """No removal, for ten seconds."""
    return Remover(folder, "sleep", "10")


WAYS: dict[str, Callable[[Path], Remover]] = {
    "none": nothing,
    "housekeeping": housekeeping,
    "prune": prune,
    "mass": mass,
}

if __name__ == "__main__":
    main()
