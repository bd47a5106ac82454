"""`workerpool migrate`, killed again and again on its way from a folder through two databases into a folder."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pool import Estate, prepare, until

from queuekit import Completion, JobID, ObservationStatus, QueueKit
from queuekit.backends.likeness import likeness
from queuekit.contract import JobView
from queuekit.lifecycle import State
from queuekit.testing.jobs import EPOCH_MS, make_job

KILLS = 10
_KILLS_OF_ONE = 4  # so often one move is killed at most, so that each of them is
_COMMAND = [str(Path(sys.executable).with_name("workerpool")), "migrate"]


@dataclasses.dataclass(frozen=True)
class Sent:
    """What a store was filled with: the ids of what is still to be worked, and everything as it was."""

    open: set[str]
    whole: dict[str, Any]


def fill(url: str, count: int) -> Sent:
    """A quarter each: pending, deferred, done, blocked."""
    quarter = count // 4
    with QueueKit.open(url) as queue:
        ended = [make_job(extensions={"n": number}) for number in range(2 * quarter)]
        queue.send_batch(ended)
        queue.drain("encode")
        queue.reply_batch([Completion(JobID(job.id), ObservationStatus.DONE) for job in ended[:quarter]])
        failed = [
            Completion(JobID(job.id), ObservationStatus.BLOCKED, (), {"error": f"no {job.id}"})
            for job in ended[quarter:]
        ]
        queue.reply_batch(failed)
        deferred = [make_job() for _ in range(quarter)]
        queue.send_batch(deferred[::2])
        for claimed in queue.drain("encode"):
            queue.backend.defer(claimed.job.id, EPOCH_MS, error="once")
        for job in deferred[1::2]:
            queue.backend.write(job, due_ms=EPOCH_MS)
        pending = [make_job(payload=b"{}") for _ in range(quarter)]
        queue.send_batch(pending)
        whole = everything(queue)
    assert len(whole) == 4 * quarter
    return Sent(open={str(job.id) for job in (*deferred, *pending)}, whole=whole)


def everything(queue: QueueKit) -> dict[str, Any]:
    views = [view for view in queue.backend.transfer().whole() if isinstance(view, JobView)]
    found = {str(view.job.id): likeness(view) for view in views}
    assert len(found) == len(views)
    return found


def claimable(url: str) -> set[str]:
    if url.startswith(("dir:", "sqlite:")) and not Path(url.partition(":")[2]).exists():
        return set()
    with QueueKit.open(url) as queue:
        views = queue.backend.jobs([State.NEW, State.LATER, State.CUR])
        return {str(view.job.id) for view in views if isinstance(view, JobView)}


class Migration:
    """One `workerpool migrate` process."""

    def __init__(self, estate: Estate, source: str, target: str, *flags: str) -> None:
        self.output = estate.folder / "migrate.log"
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [*_COMMAND, source, target, "--config", str(estate.config), *(flags or ("--yes",))],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=prepare,  # noqa: PLW1509  no thread of this process holds a lock that it needs
            )

    def ends_within(self, seconds: float | None) -> bool:
        """Whether it ended by itself, well; else it is killed now."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        assert code in {0, -signal.SIGKILL}, self.output.read_text()[-3000:]
        return code == 0


def go_round(estate: Estate, stores: Iterator[tuple[str, str]], dice: random.Random, longest: float) -> list[str]:
    """Migrate from store to store, with ten kills on the way at least, to the end of a round; what happened."""
    told: list[str] = []
    kills = 0
    for source, target in stores:
        for attempt in itertools.count():
            began = time.monotonic()
            spared = attempt == _KILLS_OF_ONE
            ended = Migration(estate, source, target).ends_within(None if spared else dice.uniform(0, longest))
            took = time.monotonic() - began
            kinds = " -> ".join(url.partition(":")[0] for url in (source, target))
            told.append(f"{kinds}: {'ended' if ended else 'killed'} after {took:.1f} s")
            if ended:
                break
            kills += 1
            assert not claimable(source) & claimable(target)
        if target == f"dir:{estate.root}" and kills >= KILLS:
            return told
    raise AssertionError("the stores never end")


def ring(estate: Estate, postgres_url: str) -> Iterator[tuple[str, str]]:
    first, last = f"dir:{estate.folder}/first", f"dir:{estate.root}"
    databases = [f"sqlite:{estate.folder}/jobs.db", postgres_url]
    yield from itertools.pairwise([first, *databases, last])
    while True:
        yield from itertools.pairwise([last, *databases, last])


@pytest.mark.parametrize(
    ("count", "longest"),
    [
        pytest.param(500, 1.5, id="500"),
        pytest.param(50_000, 30.0, id="50000", marks=[pytest.mark.torture, pytest.mark.timeout(3600)]),
    ],
)
def test_killed_ten_times_on_the_way_nothing_is_lost_doubled_or_changed(
    make_estate: Callable[..., Estate], postgres_url: str, dice: random.Random, count: int, longest: float
) -> None:
    estate = make_estate({"encode": {"handler": "acting:act_fast", "workers": 2}})
    sent = fill(f"dir:{estate.folder}/first", count)
    told = go_round(estate, ring(estate, postgres_url), dice, longest)
    print("\n".join(told))
    assert sum("killed" in line for line in told) >= KILLS
    assert everything(estate.queue) == sent.whole
    for source, _ in itertools.islice(ring(estate, postgres_url), 3):
        with QueueKit.open(source) as left:
            assert everything(left) == {}
    began = time.monotonic()
    pool = estate.run("--burst", patience=1800)
    print(f"worked off in {time.monotonic() - began:.1f} s")
    assert pool.code == 0
    runs = estate.runs()
    assert set(runs) == sent.open
    assert {len(each) for each in runs.values()} == {1}
    after = everything(estate.queue)
    assert {id for id, was in after.items() if was == sent.whole[id]} == set(sent.whole) - sent.open
    assert {after[id][1] for id in sent.open} == {State.DONE}


def test_a_running_pool_is_named_and_keeps_its_jobs(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate()
    pool = estate.start()
    job_id = estate.send(do="sleep", seconds=0)
    until(lambda: estate.status_of(job_id) == "done")
    refused = run(estate, f"dir:{estate.root}", f"sqlite:{estate.folder}/jobs.db", "--yes")
    assert refused.returncode == 1
    assert "stream 'encode'" in refused.stderr
    assert f"pid-{pool.stream_pid()}-" in refused.stderr
    assert pool.stop() == 0
    moved = run(estate, f"dir:{estate.root}", f"sqlite:{estate.folder}/jobs.db", "--yes", "--json")
    assert moved.returncode == 0
    said = json.loads(moved.stdout)
    assert (said["moved"], said["ended"], said["left"], said["kept"]) == (1, 1, [], False)
    assert said["change"].startswith("config.toml:") or "config.toml" in said["change"]


def test_the_pool_of_a_paused_stream_may_go_on_running(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate()
    pool = estate.start()
    until(pool.is_working())
    subprocess.run([_COMMAND[0], "pause", "encode", "--config", str(estate.config)], check=True, capture_output=True)
    job_id = estate.send()
    moved = run(estate, f"dir:{estate.root}", f"dir:{estate.folder}/other", "--yes", "--json")
    assert moved.returncode == 0, moved.stderr
    assert json.loads(moved.stdout)["moved"] == 1
    assert estate.runs() == {}
    with QueueKit(estate.folder / "other") as other:
        assert [claimed.job.id for claimed in other.drain()] == [job_id]


def test_an_interrupt_leaves_a_move_that_can_be_undone_or_gone_on_with(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate()
    source, target = f"dir:{estate.root}", f"dir:{estate.folder}/other"
    jobs = estate.send_many(4000)
    migration = Migration(estate, source, target)
    until((estate.folder / "other" / ".workerpool" / "arriving" / "new").exists)
    migration.process.send_signal(signal.SIGINT)
    code = migration.process.wait()
    assert code == 130, migration.output.read_text()
    assert "no job is lost" in migration.output.read_text()
    undone = run(estate, source, target, "--undo")
    assert undone.returncode == 0, undone.stderr
    assert claimable(source) == set(jobs)
    assert not (estate.folder / "other" / ".workerpool" / "arriving").exists()
    assert run(estate, source, target, "--yes").returncode == 0
    assert (claimable(source), claimable(target)) == (set(), set(jobs))


def run(estate: Estate, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*_COMMAND, *arguments, "--config", str(estate.config)]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
