"""T14: a pool over a folder in which strangers put names and files of every kind: it works on, and stays inside."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lengths import short_and_long
from mutations import damaged
from pool import _COMMAND as COMMAND
from pool import Estate, Pool, until

from queuekit.backends.maildir import layout
from queuekit.completion import SignalFile
from queuekit.hlc import HLC
from queuekit.ids import JobID
from queuekit.job import Delivery
from queuekit.status import ObservationStatus
from queuekit.testing.jobs import make_job
from queuekit.wire import encode_job, encode_signal

STREAMS = ("encode", "mail")
A_ROUND = 50
MOST_LATE = 2.0
TRAVERSALS = [
    *(
        "..",
        ".",
        "../../victims/a",
        "../victims/a",
        "/etc/passwd",
        "victims/../../a",
        "..\\..\\victims",
        "a/b",
        "%2e%2e%2f",
    ),
    *(
        "a\nb",
        "a\r\nb",
        "a\0b",
        "\x1b[2J",
        "\x7f",
        "a\tb",
        " ",
        "",
        "\u202egnp",
        "e\u0301",
        "\u00e9",
        "\U0001f469\u200d\U0001f4bb",
    ),
    *(
        "Encode",
        "ENCODE",
        "encode.signal",
        "x.signal",
        ".signal",
        "encode-mail",
        "-",
        "--help",
        "*",
        "$(id)",
        "`id`",
        "'\"",
        "~",
    ),
    *("x" * 255, "x" * 10_000, "\u00e9" * 120, "CON", "nul.txt", "con/../..", "\ud800"),
]
FOLDERS = ("new", "new", "new", "new", "cur", "later", "claim", "done", "tmp", ".workerpool/retry", ".workerpool/jobs")


def sound(rolls: random.Random, serial: int) -> tuple[str, bytes]:
    """A job's file as it should be, older than every other; to be damaged."""
    job = make_job(f"m{serial}", rolls.choice([*STREAMS, "thumb"]), at=HLC(serial, 0, 1), payload=b"x")
    if rolls.random() < 0.3:
        job = Delivery(attempt=rolls.randrange(4), errors=("no",)).onto(job)
    return layout.job_filename(job), encode_job(job)


def named(rolls: random.Random, serial: int) -> tuple[str, bytes]:
    """A job whose id, stream or both say something odd, under a name that fits as well as a name can."""
    id, stream = rolls.choice(TRAVERSALS), rolls.choice([*STREAMS, *STREAMS, *TRAVERSALS])
    name = f"{serial:016d}-00000000-0000000001-{stream}-{id}"
    body = {
        "extensions": rolls.choice([{}, {"delivery": {"attempt": -1, "crashes": 10**400}}, {"delivery": "no"}]),
        "id": id,
        "payload": rolls.choice(["eA", "e", "//", "eA==", None]),
        "priority": rolls.choice([50, 50, 50, -(2**63), 2**63, 1.5, True]),
        "stream_id": stream,
        "submitted_at": {"logical_count": 0, "node_id": 1, "physical_time": serial},
    }
    return name, json.dumps(body, ensure_ascii=rolls.random() < 0.5).encode(errors="surrogatepass")


class Stranger:
    """Who puts things into a root: `plant` one round of them. Every name begins before those of good jobs."""

    def __init__(self, root: Path, victims: Path, rolls: random.Random, count: int) -> None:
        self._root, self._victims, self._rolls = root, victims, rolls
        self._serials = itertools.count(1)
        signal = encode_signal(SignalFile(job_id=JobID("m1"), status=ObservationStatus.DONE, completed_at=HLC(1, 0, 1)))
        examples = [sound(rolls, 10**9 + number)[1] for number in range(20)]
        self._damaged = damaged([*examples, signal], count)
        self.planted = 0

    def plant(self, count: int) -> None:
        for _ in range(count):
            serial = next(self._serials)
            kind = self._rolls.random()
            if kind < 0.6:
                name, _ = sound(self._rolls, serial)
                data = next(self._damaged)
            elif kind < 0.9:
                name, data = named(self._rolls, serial)
            else:
                self._plant_odd(serial)
                continue
            self._write(self._folder(), name, data)

    def _folder(self) -> str:
        return self._rolls.choice(FOLDERS)

    def _write(self, folder: str, name: str, data: bytes) -> None:
        """As far as a file system takes such a name; in pieces that a person with an editor would not make."""
        prefix = {"later": f"{1:016d}-{self._rolls.choice('rs?')}-", "claim": f"{self._rolls.randbytes(16).hex()}-"}
        suffix = {"done": self._rolls.choice(["", ".signal"]), ".workerpool/jobs": ".json"}.get(folder, "")
        text = f"{prefix.get(folder, '')}{name}{suffix}".replace("/", self._rolls.choice(["_", "%2f", "\\"])).replace(
            "\0", "0"
        )
        path = os.path.join(os.fsencode(self._root / folder), os.fsencode(text.encode(errors="replace"))[:255])
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                os.write(fd, data)
            finally:
                os.close(fd)
            self.planted += 1

    def _plant_odd(self, serial: int) -> None:
        """What is no file, or a file of the pool's own in a stranger's words."""
        name = f"{serial:016d}-00000000-0000000001-{self._rolls.choice(STREAMS)}-odd{serial}"
        path = self._root / self._rolls.choice(["new", "cur", "done", "later"]) / name
        match self._rolls.randrange(8):
            case 0:
                os.mkfifo(path)
            case 1:
                path.mkdir()
            case 2:
                path.symlink_to(self._victims / "a")
            case 3:
                path.with_name(f"{name}.signal").symlink_to(self._victims / "b")
            case 4:
                os.link(self._victims / "linked", path)
            case 5:
                words = self._rolls.choice(
                    [b"", b"x", b"pid-1-x\n9e999", b"pid-1-../../x\n1", b"pid-1-x\nnan", b"\xff" * 9000]
                )
                (self._root / f"{self._rolls.choice(['thumb', 'Encode', '..', 'a b'])}.drain.lease").write_bytes(words)
            case 6:
                (self._root / ".workerpool" / f"board-{serial}-1").write_bytes(self._rolls.randbytes(5000))
            case _:
                (self._root / ".workerpool" / "pauses").mkdir(mode=0o700, exist_ok=True)
                (self._root / ".workerpool" / "pauses" / f"thumb{serial}").write_bytes(self._rolls.randbytes(50))
        self.planted += 1


def outside(estate: Estate, ours: set[str]) -> dict[str, tuple[int, ...]]:
    """Everything of the estate's folder that is not the queue's, nor what the test lets grow."""
    found = {}
    for folder, folders, files in os.walk(estate.folder):
        folders[:] = [name for name in folders if Path(folder, name) != estate.root and name != "__pycache__"]
        for name in [*folders, *files]:
            facts = os.lstat(os.path.join(folder, name))
            if os.path.relpath(os.path.join(folder, name), estate.folder) not in ours:
                found[os.path.join(folder, name)] = (facts.st_mode, facts.st_size, facts.st_mtime_ns, facts.st_ino)
    return found


@contextlib.contextmanager
def nothing_outside_changes(estate: Estate, pools: int) -> Iterator[None]:
    """Fail when something appeared, changed or vanished beside the queue."""
    ours = {"history", *(f"pool-{number}.log" for number in range(pools))}
    before = outside(estate, ours)
    yield
    assert outside(estate, ours) == before


@pytest.fixture
def estate(make_estate: Callable[..., Estate]) -> Estate:
    """Streams without retries, so that a damaged payload that a handler cannot read ends at once."""
    return make_estate({name: {"retries": 0, "workers": 2} for name in STREAMS}, watch={"scan": "1s"})


def victims_of(estate: Estate) -> Path:
    folder = estate.folder / "victims"
    folder.mkdir()
    for name in ("a", "b", "linked", "a.signal", "b.signal"):
        (folder / name).write_text(f"precious {name}")
    return folder


@pytest.mark.parametrize("count", short_and_long(1_000, 100_000, timeout=7200))
def test_good_jobs_run_behind_hostile_files_and_nothing_leaves_the_folder(
    estate: Estate, dice: random.Random, count: int
) -> None:
    """T14: 0 crashes, 0 escapes from the folder, the good jobs behind 50 fresh hostile files have ended within 2 s."""
    victims = victims_of(estate)
    assert estate.queue.pending_count() == 0
    for folder in FOLDERS:
        (estate.root / folder).mkdir(mode=0o700, exist_ok=True)
    stranger = Stranger(estate.root, victims, dice, count)
    with nothing_outside_changes(estate, pools=1):
        stranger.plant(A_ROUND)
        pool = estate.start()
        until(pool.is_working(*STREAMS), "the pool", patience=120)
        processes = sorted(pool.tree())
        good, delays = [], []
        while stranger.planted < count:
            stranger.plant(A_ROUND)
            sent = time.monotonic()
            jobs = [estate.send(name) for name in STREAMS]
            until(estate.finished(*jobs), "the ends of good jobs", patience=120)
            good += jobs
            delays.append(time.monotonic() - sent)
        assert sorted(pool.tree()) == processes, "a process has died"
        check_commands(estate)
        assert pool.stop() == 0
    check_ends(estate, pool, good)
    delays.sort()
    late = sum(delay > MOST_LATE for delay in delays)
    print(
        f"T14: {stranger.planted} hostile entries, {len(good)} good jobs behind them, 0 crashes, 0 escapes; "
        f"ended after p50 {delays[len(delays) // 2]:.2f} s, at most {delays[-1]:.2f} s, {late} over {MOST_LATE:g} s"
    )
    assert late == 0


def check_commands(estate: Estate) -> None:
    """Those that read the whole of it tell something and do not fall over."""
    for words in (["status", "--json"], ["jobs", "--json", "--limit", "0"], ["fsck", "--json"], ["jobs"], ["status"]):
        done = subprocess.run(
            [*COMMAND, *words, "--config", str(estate.config)], capture_output=True, check=False, timeout=300
        )
        assert done.returncode in {0, 1}, done.stderr
        assert b"Traceback" not in done.stderr
        if "--json" in words:
            json.loads(done.stdout)


def check_ends(estate: Estate, pool: Pool, good: list[str]) -> None:
    """Each good job has run once and ended well; no process told of a fault of its own."""
    runs = estate.runs()
    assert {len(runs[job]) for job in good} == {1}
    assert {estate.status_of(job) for job in good} == {"done"}
    own = [line for line in pool.log.splitlines() if "Traceback" in line and "acting.py" not in line]
    assert not own, own[:1]
