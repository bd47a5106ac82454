"""What each signal to the master does: stopping in order, harder, at once; reloading; quieting."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from collections.abc import Callable

import pytest
from pool import Estate, Pool, lines_of, until

from queuekit.job import Delivery
from workerpool.board import Kind

STREAMS = ("encode", "dreaming")


def busy(
    estate: Estate, *, streams: tuple[str, ...] = ("encode",), waiting: int = 10
) -> tuple[Pool, list[str], list[str]]:
    """A pool in which each stream runs a job that waits for the file `gate`, with more of them behind it."""
    gate = str(estate.folder / "gate")
    jobs = estate.send_many(len(streams) * (waiting + 1), streams, do="wait", file=gate)
    pool = estate.start()
    running = jobs[: len(streams)]
    for job_id in running:
        until(estate.started(job_id), "the first runs")
    return pool, running, jobs[len(streams) :]


def open_gate(estate: Estate) -> None:
    (estate.folder / "gate").touch()


def attempts_in(estate: Estate, folder: str) -> list[int]:
    from queuekit import decode_job

    return [Delivery.of(decode_job(path.read_bytes())).attempt for path in estate.files(folder)]


def test_term_lets_finish_what_runs_and_gives_back_what_was_not_started(make_estate: Callable[..., Estate]) -> None:
    """C15, C21: the running job is in done/ before the exit, the others are in new/ as if nothing had been."""
    estate = make_estate({name: {} for name in STREAMS})
    pool, running, waiting = busy(estate, streams=STREAMS)
    pool.tell(signal.SIGTERM)
    until(lambda: "stopping" in pool.log, "the answer to the signal")
    until(
        lambda: all(row.state == "stopping" for row in pool.rows() if row.kind is Kind.STREAM), "the streams' stopping"
    )
    assert estate.count("done") == 0
    open_gate(estate)
    assert pool.wait() == 0
    assert {estate.status_of(job_id) for job_id in running} == {"done"}
    assert estate.check([*running, *waiting]) == {"done": len(running), "new": len(waiting)}
    assert set(attempts_in(estate, "new")) == {0}
    assert sorted(estate.runs()) == sorted(running)
    assert estate.processes() == []
    assert estate.run("--burst").code == 0
    assert {len(runs) for runs in estate.runs().values()} == {1}
    estate.check_settled([*running, *waiting])


def test_jobs_that_were_sent_ahead_to_a_worker_are_given_back_too(make_estate: Callable[..., Estate]) -> None:
    """Short jobs let the pool send some ahead; behind a long one they are called back when the pool stops."""
    estate = make_estate()
    gate = str(estate.folder / "gate")
    pool = estate.start()
    warm = [estate.send() for _ in range(30)]
    until(estate.finished(*warm), "the short jobs")
    long = estate.send(do="wait", file=gate)
    until(estate.started(long), "the long job")
    behind = estate.send_many(20, do="wait", file=gate)
    until(lambda: estate.count("cur") > 1, "a job that was sent ahead")
    pool.tell(signal.SIGTERM)
    until(lambda: estate.count("cur") == 1, "the giving back")
    assert estate.count("new") == len(behind)
    open_gate(estate)
    assert pool.wait() == 0
    assert sorted(estate.runs()) == sorted([*warm, long])
    assert estate.check([*warm, long, *behind]) == {"done": 31, "new": 20}


def test_at_the_hard_deadline_workers_are_killed_and_their_jobs_run_again_later(
    make_estate: Callable[..., Estate],
) -> None:
    estate = make_estate(shutdown={"soft": "200ms", "hard": "600ms"})
    pool, running, waiting = busy(estate, waiting=2)
    begun = time.monotonic()
    assert pool.stop() == 5
    assert time.monotonic() - begun < 0.6 + 2
    assert estate.check([*running, *waiting]) == {"cur": 1, "new": 2}
    assert attempts_in(estate, "cur") == [0]
    assert estate.processes() == []
    open_gate(estate)
    assert estate.run("--burst").code == 0
    estate.check_settled([*running, *waiting])
    assert {Delivery.of(job).attempt for job in estate.queue.completed()} == {0}


def test_from_the_soft_deadline_on_a_handler_is_told_that_it_should_stop(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate(shutdown={"soft": "100ms", "hard": "20s"})
    pool = estate.start()
    job = estate.send(do="wait to be stopped")
    until(estate.started(job), "the run")
    assert pool.stop(patience=5) == 0
    assert estate.status_of(job) == "done"


def test_each_interrupt_asks_harder(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate()
    pool, running, waiting = busy(estate, waiting=2)
    pool.tell(signal.SIGINT)
    until(lambda: "interrupt again to kill it" in pool.log, "the first answer")
    until(lambda: estate.count("cur") == 1, "the giving back")
    assert pool.code is None
    pool.tell(signal.SIGINT)
    assert pool.wait(5) == 5
    assert "killing the workers" in pool.log
    assert estate.check([*running, *waiting]) == {"cur": 1, "new": 2}
    assert attempts_in(estate, "cur") == [0]
    assert estate.processes() == []


def test_the_third_interrupt_ends_everything_even_when_nothing_answers(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate({"encode": {"workers": 0}})
    pool = estate.start()
    job = estate.send(do="hang")
    until(estate.started(job), "the run")
    for word in ("interrupt again to kill it", "killing the workers", "killing everything"):
        pool.tell(signal.SIGINT)
        until(lambda word=word: word in pool.log, word)
    assert pool.wait(5) == 5
    assert estate.processes() == []
    assert estate.check([job]) == {"cur": 1}


@pytest.mark.skipif(sys.platform != "linux", reason="there is no subreaper elsewhere")
def test_the_third_interrupt_leaves_nothing_of_a_jobs_behind_and_charges_nobody(
    make_estate: Callable[..., Estate],
) -> None:
    """Not even a daemon, when the stream process could not obey the second one."""
    estate = make_estate({"encode": {"max_crashes": 1}})
    pool = estate.start()
    job = estate.send(do="spawn", daemon=True, then="hang")
    until(lambda: estate.notes("child"), "the daemon")
    os.kill(pool.stream_pid(), signal.SIGSTOP)
    for word in ("interrupt again to kill it", "killing the workers", "killing everything"):
        pool.tell(signal.SIGINT)
        until(lambda word=word: word in pool.log, word)
    assert pool.wait(5) == 5
    assert estate.processes() == []
    again = estate.start()
    until(lambda: len(estate.runs()[job]) == 2, "the second run")
    assert attempts_in(estate, "cur") == [0]
    for word in ("interrupt again to kill it", "killing the workers"):
        again.tell(signal.SIGINT)
        until(lambda word=word: word in again.log, word)
    assert again.wait(5) == 5


def test_a_terminals_interrupt_reaches_every_process_and_only_the_master_acts(
    make_estate: Callable[..., Estate],
) -> None:
    estate = make_estate()
    pool, running, waiting = busy(estate, waiting=2)
    os.killpg(pool.pid, signal.SIGINT)
    until(lambda: "interrupt again to kill it" in pool.log, "the answer")
    open_gate(estate)
    assert pool.wait(10) == 0
    assert estate.check([*running, *waiting]) == {"done": 1, "new": 2}


def test_hangup_replaces_the_workers_one_by_one_under_the_same_stream_process(
    make_estate: Callable[..., Estate],
) -> None:
    estate = make_estate({"encode": {"workers": 2}})
    pool = estate.start()
    until(pool.is_working(), "the pool")
    sent = estate.send_many(400, do="sleep", seconds=0.005)
    until(lambda: len(estate.notes("end")) > 50, "some jobs")
    stream, old = pool.stream_pid(), workers(pool)
    lease = (estate.root / "encode.drain.lease").read_text().split()[0]
    pool.tell(signal.SIGHUP)
    until(lambda: len(workers(pool)) == 2 and not workers(pool) & old, "new workers")
    until(estate.finished(*sent), "all jobs")
    assert pool.stream_pid() == stream
    assert (estate.root / "encode.drain.lease").read_text().split()[0] == lease
    assert {len(runs) for runs in estate.runs().values()} == {1}
    assert longest_gap(estate) < 1
    assert pool.stop() == 0
    estate.check_settled(sent)


def test_hangup_starts_new_streams_stops_removed_ones_and_changes_handlers(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate({"encode": {}, "dreaming": {}})
    pool = estate.start()
    until(pool.is_working("encode", "dreaming"), "the pool")
    estate.configure({"encode": {"handler": "acting:act_async", "workers": 2}, "import": {}})
    pool.tell(signal.SIGHUP)
    until(pool.is_working("encode", "import"), "the new stream")
    until(lambda: pool.row("dreaming") is None, "the end of the removed one")
    until(lambda: len(workers(pool)) == 2, "another worker")
    jobs = [estate.send("encode"), estate.send("import")]
    until(estate.finished(*jobs), "their jobs")
    left = estate.send("dreaming")
    assert pool.stop() == 0
    assert estate.check([*jobs, left]) == {"done": 2, "new": 1}


def test_a_bad_config_at_hangup_keeps_the_old_one_and_says_why(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate()
    pool = estate.start()
    until(pool.is_working(), "the pool")
    worker = pool.worker_pid()
    estate.configure({"encode": {"wokers": 2}})
    pool.tell(signal.SIGHUP)
    until(lambda: "stays as it was" in pool.log, "the answer")
    assert any(lines_of(pool.log, "wokers", "did you mean 'workers'?"))
    job = estate.send()
    until(estate.finished(job), "a job")
    assert pool.worker_pid() == worker
    assert pool.stop() == 0


@pytest.mark.parametrize("inline", [False, True], ids=["workers", "inline"])
def test_a_handler_that_cannot_be_imported_at_hangup_keeps_the_old_workers(
    make_estate: Callable[..., Estate], inline: bool
) -> None:
    """Whether the config names a wrong one, or its module is broken; set right, it is taken at the next hangup."""
    keys = {"workers": 0} if inline else {}
    estate = make_estate({"encode": keys})
    pool = estate.start()
    until(pool.is_working(), "the pool")
    old = workers(pool)
    estate.configure({"encode": {"handler": "acting:actt", **keys}})
    pool.tell(signal.SIGHUP)
    until(lambda: "goes on with what it has" in pool.log, "the refusal")
    assert list(lines_of(pool.log, "acting:actt", "did you mean"))
    (estate.folder / "later.py").write_text("def act(job: ")
    estate.configure({"encode": {"handler": "later:act", **keys}})
    pool.tell(signal.SIGHUP)
    until(lambda: pool.log.count("goes on with what it has") == 2, "the second refusal")
    until(estate.finished(estate.send()), "a job of the old handler")
    assert (workers(pool), pool.is_working()()) == (old, True)
    assert not list(lines_of(pool.log, "replaced one by one"))
    (estate.folder / "later.py").write_text("from acting import note\n\ndef act(job):\n    note('later', job.id)\n")
    pool.tell(signal.SIGHUP)
    until(lambda: "replaced one by one" in pool.log, "the reload")
    until(lambda: estate.send() and estate.notes("later"), "a job of the new handler")
    assert pool.stop() == 0


def test_an_import_that_kills_its_process_is_no_reason_to_stop_working(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate()
    pool = estate.start()
    until(pool.is_working(), "the pool")
    (estate.folder / "deadly.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    estate.configure({"encode": {"handler": "deadly:act"}})
    pool.tell(signal.SIGHUP)
    until(lambda: list(lines_of(pool.log, "goes on with what it has", "was killed by SIGSEGV")), "the refusal")
    job = estate.send()
    until(estate.finished(job), "a job")
    pid = pool.stream_pid()
    estate.kill(pid)  # the next stream process works with what this one had
    until(lambda: pool.is_working()() and pool.stream_pid() != pid, "the next one")
    until(estate.finished(estate.send()), "another job")
    assert pool.stop() == 0


def test_a_quieted_pool_claims_nothing_until_it_is_told_to_go_on(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate()
    pool = estate.start()
    until(pool.is_working(), "the pool")
    pool.tell(signal.SIGTSTP)
    until(lambda: "nothing is claimed" in pool.log, "the answer")
    probe = [estate.send() for _ in range(3)]
    moment = time.monotonic() + 0.5  # nothing announces that nothing happens
    until(lambda: time.monotonic() > moment, "half a second")
    assert estate.check(probe) == {"new": 3}
    pool.tell(signal.SIGCONT)
    until(estate.finished(*probe), "the jobs", patience=2)
    assert pool.stop() == 0


def test_usr2_dumps_the_stack_of_every_process(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate()
    pool, _, _ = busy(estate, waiting=0)
    pool.tell(signal.SIGUSR2)
    until(lambda: "in wait_for" in pool.log, "the handler's stack")
    until(lambda: pool.log.count("most recent call first") >= 3, "the stacks of master, stream and worker")
    open_gate(estate)
    assert pool.stop() == 0


def workers(pool: Pool) -> set[int]:
    """The pids of the stream's living workers that are ready."""
    rows = [row for row in pool.rows() if row.kind is Kind.WORKER and row.stream == "encode"]
    return {row.pid for row in rows if row.owner_is_running() and row.state == "ready"}


def longest_gap(estate: Estate) -> float:
    """The longest time between two runs' ends, in seconds."""
    ends = sorted(float(facts[1]) for facts in estate.notes("end"))
    return max((later - end for end, later in itertools.pairwise(ends)), default=0.0)
