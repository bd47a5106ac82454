"""What machines do to a running pool: no descriptors, no processes, a disk that errs, a root that is gone.

An error of the environment burns no attempt, costs under 5 % of a CPU, is said once and not every second, and ends by
itself when its cause does.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Collection
from pathlib import Path

import pytest
from machine import (
    FORKS,
    MOST_CPU,
    RECOVERY_SECONDS,
    RENAMES,
    SYNCS,
    check_untouched,
    endure,
    failing,
    needs_linux,
    no_more_descriptors,
    no_more_processes,
    small_disk,
    used_up,
)
from pool import Estate, Pool, lines_of, until

from queuekit import QueueKit
from workerpool.board import Kind

pytestmark = needs_linux
MOST_LINES = 16  # some kinds of trouble, each with its end


def running_at_gate(estate: Estate, count: int = 1) -> tuple[list[str], Path]:
    """Jobs that run until the file is made."""
    gate = estate.folder / "gate"
    jobs = [estate.send(do="wait", file=str(gate)) for _ in range(count)]
    for job in jobs:
        until(estate.started(job), "the run")
    return jobs, gate


def check_calm(pool: Pool, seconds: float = 4) -> None:
    """Nothing spins and the log does not fill up."""
    before = len(complaints(pool))
    assert endure(pool, seconds) < MOST_CPU
    assert len(complaints(pool)) - before < seconds
    assert "Traceback" not in pool.log


def complaints(pool: Pool) -> list[str]:
    """The lines of the log that somebody should read."""
    return [line for line in pool.log.splitlines() if '"level": "info"' not in line]


def check_recovery(estate: Estate, pool: Pool, jobs: Collection[str]) -> None:
    """All of these end soon, and the pool is still the same, in good order."""
    until(estate.finished(*jobs), "everything", patience=RECOVERY_SECONDS)
    assert pool.stop() == 0
    assert "Traceback" not in pool.log
    assert len(complaints(pool)) < MOST_LINES


# -- descriptors


def test_twenty_streams_under_a_small_limit_of_open_files(make_estate: Callable[..., Estate]) -> None:
    """C69 (a): `ulimit -n 64` is enough for twenty streams."""
    names = [f"stream{number}" for number in range(20)]
    estate = make_estate({name: {} for name in names})
    jobs = estate.send_many(40, names)
    pool = estate.start(before=["prlimit", "--nofile=64:64"])
    until(estate.finished(*jobs), "all jobs")
    assert pool.stop() == 0
    check_untouched(estate, jobs)


@pytest.mark.parametrize("left", [0, 2, 6])
def test_a_stream_process_without_free_descriptors_keeps_its_jobs(
    make_estate: Callable[..., Estate], left: int
) -> None:
    """C69 (b): what runs is not run again, what waits waits, and a worker that dies meanwhile is replaced later."""
    estate = make_estate({"encode": {"workers": 2}})
    pool = estate.start()
    running, gate = running_at_gate(estate)
    process = pool.stream_pid()
    idle = idle_worker(estate, pool)
    with no_more_descriptors(process, left):
        estate.kill(idle)  # before there is anything that it could run
        pending = estate.send_many(20)
        gate.touch()
        if left < 2:
            until(lambda: "settling jobs" in pool.log, "the trouble")
            assert estate.status_of(running[0]) is None
        check_calm(pool)
    assert pool.stream_pid() == process
    check_recovery(estate, pool, [*running, *pending])
    check_untouched(estate, [*running, *pending])


def idle_worker(estate: Estate, pool: Pool) -> int:
    """The pid of a worker that is ready and has nothing to do."""
    busy = {run.pid for runs in estate.runs().values() for run in runs}

    def find() -> int:
        rows = [row for row in pool.rows() if row.kind is Kind.WORKER and row.state == "ready"]
        return next((row.pid for row in rows if row.pid not in busy), 0)

    return int(until(find, "an idle worker"))


def test_a_master_without_free_descriptors_starts_its_streams_later(make_estate: Callable[..., Estate]) -> None:
    """C69 (b), for the master: it stays, and the other stream goes on."""
    estate = make_estate({"encode": {}, "dreaming": {}})
    pool = estate.start()
    until(pool.is_working("encode", "dreaming"), "the pool")
    with no_more_descriptors(pool.pid):
        estate.kill(pool.stream_pid("encode"))
        until(lambda: list(lines_of(pool.log, "stream encode", "killed by SIGKILL")), "the burial")
        pending = estate.send_many(10)
        others = estate.send_many(10, ["dreaming"])
        until(estate.finished(*others), "the other stream's jobs", patience=RECOVERY_SECONDS)
        check_calm(pool)
    check_recovery(estate, pool, [*pending, *others])
    check_untouched(estate, [*pending, *others])


# -- processes


@pytest.mark.needs("root")
def test_a_full_pids_cgroup_delays_what_must_be_forked_and_nothing_else(make_estate: Callable[..., Estate]) -> None:
    """C69 (c): master and stream try again until they may, the third stream goes on."""
    names = ("encode", "dreaming", "indexing")
    estate = make_estate({name: {} for name in names})
    pool = estate.start()
    until(pool.is_working(*names), "the pool")
    with no_more_processes(pool.tree()):
        estate.kill(pool.stream_pid("encode"))
        estate.kill(pool.worker_pid("dreaming"))
        for name in ("encode", "dreaming"):
            until(lambda name=name: list(lines_of(pool.log, "Resource temporarily unavailable", name)), "the trouble")
        pending = estate.send_many(10, ["encode", "dreaming"])
        others = estate.send_many(10, ["indexing"])
        until(estate.finished(*others), "the third stream's jobs", patience=RECOVERY_SECONDS)
        check_calm(pool, 6)
    check_recovery(estate, pool, [*pending, *others])
    check_untouched(estate, [*pending, *others])


@pytest.mark.needs("root")
def test_an_inline_stream_waits_for_room_for_its_heartbeat(make_estate: Callable[..., Estate]) -> None:
    """C69 (c), with no worker to fork: the thread beside the handler needs room, too."""
    estate = make_estate({"encode": {"workers": 0}})
    pool = estate.start()
    until(pool.is_working(), "the pool")
    process = pool.stream_pid()
    with no_more_processes(pool.tree()):
        jobs = estate.send_many(5)
        until(lambda: "running a job" in pool.log, "the trouble")
        check_calm(pool)
        assert estate.runs() == {}
    assert pool.stream_pid() == process
    check_recovery(estate, pool, jobs)
    check_untouched(estate, jobs)


@pytest.mark.needs("strace")
def test_a_pool_that_starts_while_nothing_can_be_forked_works_soon_after(make_estate: Callable[..., Estate]) -> None:
    """C69 (c), from the first moment on: what never was ready is not put off for long either."""
    estate = make_estate({"encode": {}, "dreaming": {}})
    pool = estate.start()
    until(pool.is_working("encode", "dreaming"), "the pool")
    jobs = estate.send_many(4, ["encode", "dreaming"])
    until(estate.finished(*jobs), "the first jobs")
    with failing(pool.pid, FORKS, "EAGAIN"):
        estate.configure({"encode": {}, "dreaming": {}, "late": {}})
        pool.tell(signal.SIGHUP)
        until(lambda: list(lines_of(pool.log, "stream late", "Resource temporarily unavailable")), "the trouble")
        late = estate.send_many(2, ["late"])
        check_calm(pool, 8)
    until(estate.finished(*late), "the late stream's jobs", patience=RECOVERY_SECONDS)
    assert pool.stop() == 0
    check_untouched(estate, [*jobs, *late])


@pytest.mark.needs("strace")
def test_workers_that_cannot_be_forked_are_recycled_later(make_estate: Callable[..., Estate]) -> None:
    """C69 (c), by the call itself: a worker that has run its jobs goes, and the next one comes when it can."""
    estate = make_estate({"encode": {"workers": 2, "max_jobs": 2}})
    pool = estate.start()
    until(pool.is_working(), "the pool")
    with failing(pool.stream_pid(), FORKS, "EAGAIN"):
        jobs = estate.send_many(30)
        until(lambda: "starting a worker" in pool.log, "the trouble")
        check_calm(pool)
    check_recovery(estate, pool, jobs)
    check_untouched(estate, jobs)


# -- the disk


@pytest.mark.needs("strace")
@pytest.mark.parametrize("calls", [SYNCS, RENAMES, f"{SYNCS},{RENAMES}"], ids=["sync", "rename", "both"])
def test_a_disk_that_errs_delays_replies_and_repeats_no_run(make_estate: Callable[..., Estate], calls: str) -> None:
    """T6 and T8 for a running pool: EIO of each sync and rename; the reply is kept and tried again, not the handler."""
    estate = make_estate({"encode": {"workers": 2}})
    pool = estate.start()
    running, gate = running_at_gate(estate, 2)
    pending = estate.send_many(20)
    process = pool.stream_pid()
    with failing(process, calls, "EIO"):
        gate.touch()
        until(lambda: list(lines_of(pool.log, "settling jobs", "Input/output error")), "the trouble")
        check_calm(pool, 6)
        assert len(list(lines_of(pool.log, "settling jobs"))) == 1
    assert pool.stream_pid() == process
    check_recovery(estate, pool, [*running, *pending])
    check_untouched(estate, [*running, *pending])


@pytest.mark.needs("strace")
def test_while_no_reply_can_be_written_not_everything_is_run(make_estate: Callable[..., Estate]) -> None:
    """T6: results pile up to some hundred, not to the length of the backlog: a death would run them all again."""
    estate = make_estate({"encode": {"handler": "acting:act_fast"}})
    pool = estate.start()
    until(pool.is_working(), "the pool")
    with failing(pool.stream_pid(), SYNCS, "EIO"):
        jobs = estate.send_many(1000)
        until(lambda: "settling jobs" in pool.log, "the trouble")
        until(lambda: len(estate.runs()) >= 100, "as many runs as are allowed")
        check_calm(pool, 6)
        assert len(estate.runs()) < 500
    check_recovery(estate, pool, jobs)
    check_untouched(estate, jobs)


@pytest.mark.needs("loop")
@pytest.mark.parametrize("seconds", [3, pytest.param(30, marks=pytest.mark.torture)])
def test_without_inodes_results_are_kept_and_nothing_spins(make_estate: Callable[..., Estate], seconds: int) -> None:
    """T7: there is room for bytes, and none for one more file but the one that the pool's reserve gives back."""
    estate = make_estate({"encode": {"workers": 3}})
    with small_disk(estate.root, "-N", "128"):
        try:
            run_without_inodes(estate, seconds)
        finally:
            estate.close()


def run_without_inodes(estate: Estate, seconds: float) -> None:
    pool = estate.start()
    running, gate = running_at_gate(estate, 3)
    pending = estate.send_many(20)
    with used_up(Path.touch, estate.root / "ballast"):
        gate.touch()
        until(lambda: list(lines_of(pool.log, "settling jobs", "No space left")), "the trouble")
        check_calm(pool, seconds)
        assert [estate.status_of(job) for job in running].count(None) >= 2
    check_recovery(estate, pool, [*running, *pending])
    check_untouched(estate, [*running, *pending])


# -- the root


def jobs_in(root: Path) -> list[str]:
    """Where each job of a root is, by the folders' names; what is in done/ has its signal."""
    return sorted(folder for folder in ("new", "cur", "later", "done") for _ in (root / folder).iterdir())


def test_a_root_that_was_moved_away_and_made_anew_is_worked(make_estate: Callable[..., Estate], tmp_path: Path) -> None:
    """C74 and T17: the new root's job runs soon, it is said, and every job of the old one can still be run there."""
    estate = make_estate(lease={"ttl": "6s"})
    pool = estate.start()
    running, gate = running_at_gate(estate)
    pending = estate.send_many(5)
    old = tmp_path / "spool.old"
    estate.root.rename(old)
    with QueueKit(str(estate.root)) as queue:
        job = str(queue.submit("encode", b"{}"))
    begun = time.monotonic()
    until(estate.finished(job), "the new root's job", patience=RECOVERY_SECONDS)
    print(f"a job of the new root ran after {time.monotonic() - begun:.1f} s")
    assert list(lines_of(pool.log, '"level": "error"', str(estate.root)))
    assert jobs_in(old) == ["cur", *["new"] * 5]
    until(pool.is_working(), "the pool, as the new root's board tells")
    check_calm(pool)
    assert pool.stop() == 0
    estate.check_settled([job])
    check_old_root(estate, old, gate, [*running, *pending])
    assert {len(estate.runs()[each]) for each in [job, *pending]} == {1}


def check_old_root(estate: Estate, old: Path, gate: Path, jobs: list[str]) -> None:
    """A pool that is started on the old root finishes what it holds."""
    gate.touch()
    shutil.rmtree(estate.root)
    old.rename(estate.root)
    assert estate.run("--burst").code == 0
    assert {estate.status_of(job) for job in jobs} == {"done"}


def test_a_pool_that_stood_by_is_found_in_the_new_root_too(make_estate: Callable[..., Estate], tmp_path: Path) -> None:
    """C74 with two pools: whichever works the new root, `status` finds it there."""
    estate = make_estate()
    first = estate.start()
    until(first.is_working(), "the pool")
    second = estate.start()
    until(lambda: "standing by" in second.log, "the other pool")
    estate.root.rename(tmp_path / "spool.old")
    with QueueKit(str(estate.root)) as queue:
        job = str(queue.submit("encode", b"{}"))
    until(estate.finished(job), "the new root's job", patience=RECOVERY_SECONDS)
    until(lambda: first.is_working()() or second.is_working()(), "the board of who works there", RECOVERY_SECONDS)
    assert (first.stop(), second.stop()) == (0, 0)
    estate.check_settled([job])


def test_a_root_that_is_away_for_a_while_is_waited_for(make_estate: Callable[..., Estate], tmp_path: Path) -> None:
    """T17: nothing is given up, no run is repeated; it is said once that the root is gone, and that it is back."""
    estate = make_estate({"encode": {"workers": 2}})
    pool = estate.start()
    running, gate = running_at_gate(estate)
    process = pool.stream_pid()
    pending = estate.send_many(3, do="sleep", seconds=0.1)
    estate.root.rename(tmp_path / "away")
    try:
        until(lambda: list(lines_of(pool.log, '"level": "error"', str(estate.root))), "a word", RECOVERY_SECONDS)
        gate.touch()
        check_calm(pool, 6)
        assert not estate.root.exists()
    finally:
        (tmp_path / "away").rename(estate.root)
    assert pool.stream_pid() == process
    check_recovery(estate, pool, [*running, *pending])
    check_untouched(estate, [*running, *pending])


def test_a_root_that_was_removed_is_told_of_and_a_new_one_is_worked(make_estate: Callable[..., Estate]) -> None:
    """T17: never silent, no CPU; the first job that is sent afterwards makes a new root and runs."""
    estate = make_estate()
    pool = estate.start()
    job = estate.send()
    until(estate.finished(job), "a job")
    shutil.rmtree(estate.root)
    until(lambda: list(lines_of(pool.log, '"level": "error"', str(estate.root))), "a word", RECOVERY_SECONDS)
    check_calm(pool, 6)
    with QueueKit(str(estate.root)) as queue:
        later = str(queue.submit("encode", b"{}"))
    until(estate.finished(later), "the job of the new root", patience=RECOVERY_SECONDS)
    assert pool.stop() == 0
    assert {each: len(runs) for each, runs in estate.runs().items()} == {job: 1, later: 1}
    estate.check_settled([later])


def test_a_folder_that_was_moved_away_and_made_anew_is_worked(make_estate: Callable[..., Estate]) -> None:
    """C74, for new/ alone."""
    estate = make_estate()
    pool = estate.start()
    until(pool.is_working(), "the pool")
    (estate.root / "new").rename(estate.root / "new.old")
    (estate.root / "new").mkdir(mode=0o700)
    with QueueKit(str(estate.root)) as queue:
        job = str(queue.submit("encode", b"{}"))
    until(estate.finished(job), "the job in the new folder", patience=RECOVERY_SECONDS)
    assert pool.stop() == 0
    estate.check_settled([job])


def test_the_private_folder_may_be_removed(make_estate: Callable[..., Estate]) -> None:
    """T17, for what is not a job's: locks and boards come again by themselves."""
    estate = make_estate()
    pool = estate.start()
    until(pool.is_working(), "the pool")
    shutil.rmtree(estate.root / ".workerpool")
    jobs = estate.send_many(5)
    until(estate.finished(*jobs), "all jobs", patience=RECOVERY_SECONDS)
    check_calm(pool)
    assert pool.stop() == 0
    check_untouched(estate, jobs)
