"""`workerpool replay`: the handler in the foreground, and not a byte of the queue moves."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from queuekit import Completion, JobID, ObservationStatus, QueueKit
from queuekit.testing.jobs import make_job

COMMAND = os.path.join(sysconfig.get_path("scripts"), "workerpool")
CONFIG = """
[store]
url = "dir:spool"
[streams.work]
handler = "handlers:work"
[streams.many]
handler = "handlers:many"
batch_size = 10
[streams.slow]
handler = "handlers:slow"
timeout = "400ms"
soft_timeout = "200ms"
[streams.broken]
handler = "handlers:not_there"
"""
HANDLERS = """
import os, subprocess, time
from queuekit import ArtifactRef
from workerpool import Discard, Outcome, Retry


def work(job, ctx):
    word = job.payload.decode()
    if word == "raise":
        inner(word)
    if word == "facts":
        ctx.logger.info("here")
        ctx.progress(1, 2)
        return Outcome("done_with_concerns", [ArtifactRef.file_path(f"/attempt/{ctx.attempt}")])
    if word == "submit":
        ctx.submit("many", b"four", priority=7)
    if word == "later":
        raise Retry(after=90)
    if word == "never":
        raise Discard("no good")
    if word == "nonsense":
        return {"some": "thing"}
    if word == "blocked":
        return Outcome("blocked")
    if word == "fork":
        os.fork()
    if word == "leave":
        subprocess.Popen(["sleep", "1000"])
    if word == "exit":
        raise SystemExit(0)


def inner(found):
    raise ValueError(f"on purpose: {found}")


def many(jobs):
    return [Outcome("done", [ArtifactRef.commit_hash(f"{len(jobs)} {job.id}")]) for job in jobs]


def slow(job):
    time.sleep(30)
"""


class Place:
    """A folder with a configuration and a store, without a pool."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "config.toml").write_text(CONFIG)
        (folder / "handlers.py").write_text(HANDLERS)
        self.queue = QueueKit(str(folder / "spool"))

    def replay(self, *arguments: str, typed: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [COMMAND, "replay", *arguments],
            cwd=self.folder,
            input=typed or "",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def send(self, payload: str, stream: str = "work") -> str:
        return str(self.queue.submit(stream, payload.encode()))

    def snapshot(self) -> dict[str, Any]:
        """Every file of the store with its bytes, inode and times: nothing may touch one."""
        found = {}
        for path in sorted((self.folder / "spool").rglob("*")):
            facts = path.lstat()
            found[str(path)] = (facts.st_ino, facts.st_mtime_ns, path.read_bytes() if path.is_file() else None)
        return found


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_run_that_succeeds_is_told_and_nothing_is_settled(place: Place) -> None:
    job = place.send("facts")
    before = place.snapshot()
    done = place.replay(job)
    assert done.returncode == 0, done.stderr
    for part in ("run 1 of job", "done_with_concerns", "file_path: /attempt/1", "took", "MiB", "nothing was settled"):
        assert part in done.stdout
    assert "progress 1 of 2" in done.stderr
    assert f"info replay job {job}: here" in done.stderr
    assert place.snapshot() == before


def test_a_run_that_raises_shows_the_whole_traceback_and_only_the_handlers(place: Place) -> None:
    done = place.replay(place.send("raise"))
    assert done.returncode == 1
    assert "ValueError: on purpose: raise" in done.stdout
    frames = [line for line in done.stdout.splitlines() if "File " in line]
    assert [frame.rpartition("in ")[2] for frame in frames] == ["work", "inner"]
    assert "a failed run" in done.stdout


def test_follow_up_jobs_are_told_and_not_sent(place: Place) -> None:
    job = place.send("submit")
    before = place.snapshot()
    done = place.replay(job)
    assert done.returncode == 0
    assert "would send" in done.stdout
    assert "to many: " in done.stdout
    assert "4 bytes, priority 7" in done.stdout
    assert place.snapshot() == before
    assert place.queue.pending_count("many") == 0


def test_jobs_in_every_state_can_be_replayed(place: Place) -> None:
    running, retrying, done, blocked = (place.send("facts") for _ in range(4))
    place.queue.drain("work")
    place.queue.backend.defer(retrying, 2**42, error="E: no")
    place.queue.reply_batch([Completion(JobID(done), ObservationStatus.DONE)])
    place.queue.reply_batch([Completion(JobID(blocked), ObservationStatus.BLOCKED, (), {"cause": "x"})])
    scheduled = str(place.queue.submit("work", b"facts", delay=3600))
    before = place.snapshot()
    for job, attempt in ((running, 1), (retrying, 2), (done, 1), (blocked, 1), (scheduled, 1)):
        replayed = place.replay(job)
        assert replayed.returncode == 0, replayed.stderr
        assert f"/attempt/{attempt}" in replayed.stdout
        assert (f"workerpool retry {job}" in replayed.stdout) == (job == blocked)
    assert place.snapshot() == before


@pytest.mark.parametrize(
    ("payload", "code", "said"),
    [
        ("later", 1, "another run after 1m30s"),
        ("never", 1, "discarded"),
        ("nonsense", 1, "the handler returned a dict"),
        ("blocked", 1, "blocked"),
        ("exit", 1, "SystemExit"),
        ("leave", 0, "running: 1, killed"),
    ],
)
def test_ends_of_every_kind(place: Place, payload: str, code: int, said: str) -> None:
    done = place.replay(place.send(payload))
    assert (done.returncode, said in done.stdout) == (code, True), done.stdout


def test_a_child_that_comes_back_from_the_handler_does_not_report_too(place: Place) -> None:
    done = place.replay(place.send("fork"))
    assert done.returncode == 0
    assert done.stdout.count("nothing was settled") == 1


def test_a_batch_handler_gets_a_list_of_one(place: Place) -> None:
    job = place.send("x", stream="many")
    done = place.replay(job)
    assert done.returncode == 0, done.stdout
    assert f"commit_hash: 1 {job}" in done.stdout


def test_the_soft_timeout_is_raised_and_tells_where(place: Place) -> None:
    done = place.replay(place.send("x", stream="slow"))
    assert done.returncode == 1
    assert "SoftTimeout: still running after the soft timeout of 0.2 s" in done.stdout
    assert "time.sleep(30)" in done.stdout


def test_the_debugger_stands_where_the_handler_raised(place: Place) -> None:
    done = place.replay(place.send("raise"), "--pdb", typed="p found\nup\np word\nq\n")
    assert done.returncode == 1
    assert done.stdout.count("(Pdb) 'raise'") == 2


def test_what_cannot_be_replayed_is_refused_with_the_reason(place: Place) -> None:
    (place.folder / "spool" / "new" / f"{1:016d}-{0:08d}-{1:010d}-work-{'a' * 32}").write_bytes(b"{")
    assert place.queue.drain("work") == []
    (bad,) = [path.name for path in (place.folder / "spool" / "done").iterdir() if not path.name.endswith(".signal")]
    place.queue.send(make_job("j", "elsewhere"))
    refused = {
        "no-such-job": "no job no-such-job",
        bad: "could not be read as a job",
        "j": "has no stream elsewhere",
        place.send("x", stream="broken"): "not_there",
    }
    for job, reason in refused.items():
        done = place.replay(job)
        assert done.returncode == 2
        assert reason in done.stderr
    without = place.replay("j", "--store", "dir:spool", "--config", "config.toml")
    assert without.returncode == 2
    (place.folder / "config.toml").unlink()
    assert "needs a configuration" in place.replay("j", "--store", "dir:spool").stderr
