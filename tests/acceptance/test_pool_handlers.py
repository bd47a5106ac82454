"""What becomes of a job, by what its handler does: returns, raises, hands over, dies, hangs, leaves children behind."""

from __future__ import annotations

import hashlib
import itertools
import os
import sys
import time
from collections import Counter
from collections.abc import Callable

import pytest
from pool import Estate, Pool, cpu_ticks, is_dead, until

from queuekit.job import Delivery
from queuekit.testing.jobs import ids_of
from workerpool.board import Kind


def delivery(estate: Estate, job_id: str) -> Delivery:
    """What a finished job carries about its runs."""
    return Delivery.of(next(job for job in estate.queue.completed() if job.id == job_id))


def ran(estate: Estate, job_id: str) -> int:
    """How often a handler was started on a job."""
    return len(estate.runs()[job_id])


# -- failing and trying again


def test_a_job_that_always_raises_runs_retries_plus_one_times_and_then_tells_why(
    make_estate: Callable[..., Estate],
) -> None:
    estate = make_estate(defaults={"retries": 2, "backoff": "100ms", "max_backoff": "10s"})
    bad, good = estate.send(**{"do": "raise", "text": "no ink"}), estate.send()
    pool = estate.start("--burst")
    until(lambda: estate.folder_if_there("later"), "the wait for another run")
    assert pool.wait() == 6
    assert (estate.status_of(bad), estate.status_of(good)) == ("blocked", "done")
    starts = [run.start for run in estate.runs()[bad]]
    assert len(starts) == 3
    assert starts[1] - starts[0] >= 0.05
    assert starts[2] - starts[1] >= 0.1
    dossier = estate.dossier(bad)
    assert dossier["cause"] == "retries exhausted"
    assert dossier["attempts"] == 3
    assert "ValueError: no ink" in dossier["error"]
    assert any(bad in line and "no ink" in line for line in pool.log.splitlines())
    estate.check_settled([bad, good])


def test_a_job_that_succeeds_at_last_is_done_and_keeps_its_record(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate()
    job = estate.send(**{"do": "raise", "until": 2})
    assert estate.run("--burst").code == 0
    assert (estate.status_of(job), ran(estate, job)) == ("done", 3)
    record = delivery(estate, job)
    assert (record.attempt, record.crashes, len(record.errors)) == (2, 0, 2)


def test_a_handler_may_say_when_to_try_again_and_that_it_never_should(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate(defaults={"backoff": "20s", "max_backoff": "20s"})
    later, never = estate.send(do="retry", after=0.3, until=1), estate.send(do="discard")
    assert estate.run("--burst").code == 6
    first, second = estate.runs()[later]
    assert 0.3 <= second.start - first.start < 5
    assert (estate.status_of(later), estate.status_of(never)) == ("done", "blocked")
    assert ran(estate, never) == 1
    assert estate.dossier(never)["cause"] == "discarded by its handler"


@pytest.mark.parametrize("status", ["done", "done_with_concerns", "needs_context", "blocked"])
def test_a_status_that_a_handler_returns_is_final(make_estate: Callable[..., Estate], status: str) -> None:
    estate = make_estate()
    job = estate.send(do="status", status=status)
    assert estate.run("--burst").code == (6 if status == "blocked" else 0)
    assert (estate.status_of(job), ran(estate, job)) == (status, 1)


def test_handlers_in_coroutines_work_alike(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate({"encode": {"handler": "acting:act_async", "retries": 1}})
    good, bad = estate.send(), estate.send(**{"do": "raise"})
    assert estate.run("--burst").code == 6
    assert [estate.status_of(good), estate.status_of(bad)] == ["done", "blocked"]


def test_whatever_ends_a_handler_counts_as_one_failed_run_and_the_stream_goes_on(
    make_estate: Callable[..., Estate],
) -> None:
    """C58: `os._exit(0)` is no success either."""
    estate = make_estate({"encode": {"max_crashes": 3}})
    acts = ("system exit", "keyboard interrupt", "generator exit", "raise base", "exit", "crash", "be killed")
    odd = {act: estate.send(do=act, until=1) for act in acts}
    normal = [estate.send() for _ in range(10)]
    pool = estate.start("--burst")
    until(estate.finished(*normal), "the normal jobs", patience=5)
    assert pool.wait() == 0
    assert {act: (estate.status_of(job), ran(estate, job)) for act, job in odd.items()} == dict.fromkeys(
        acts, ("done", 2)
    )
    crashes = {act: delivery(estate, job).crashes for act, job in odd.items()}
    assert crashes == dict.fromkeys(acts[:4], 0) | dict.fromkeys(acts[4:], 1)
    assert {ran(estate, job) for job in normal} == {1}
    estate.check_settled([*odd.values(), *normal])


def test_results_and_errors_that_cannot_be_kept_end_the_job_blocked_after_the_usual_runs(
    make_estate: Callable[..., Estate],
) -> None:
    """C49: the text is escaped and cut, the stream lives on."""
    estate = make_estate(defaults={"retries": 1})
    texts = [estate.send(**{"do": "raise", "text": "\0\x1b[31m\ud800" * 100_000})]
    odd = [estate.send(do="raise oddly"), estate.send(do="return", what="nothing")]
    odd += [estate.send(do="return", what="much")]
    good = estate.send()
    assert estate.run("--burst").code == 6
    assert estate.status_of(good) == "done"
    for job in [*texts, *odd]:
        assert (estate.status_of(job), ran(estate, job)) == ("blocked", 2)
        error = estate.dossier(job)["error"]
        assert 0 < len(error.encode()) <= 4096
        assert error.replace("\n", "").replace("\t", "").isprintable()
    estate.check_settled([*texts, *odd, good])


# -- handing over


def test_follow_up_jobs_are_made_once_even_when_their_parent_runs_twice(
    make_estate: Callable[..., Estate],
) -> None:
    estate = make_estate({"encode": {"max_crashes": 3}, "dreaming": {}})
    plain = estate.send(do="submit", into="dreaming", count=3)
    failing = estate.send(do="submit", into="dreaming", count=2, then={"do": "raise", "until": 1})
    dying = estate.send(do="submit", into="dreaming", count=2, then={"do": "be killed", "until": 1})
    assert estate.run("--burst").code == 0
    assert [ran(estate, job) for job in (plain, failing, dying)] == [1, 2, 2]
    children = estate.queue.completed("dreaming")
    assert len(children) == 7
    assert [job.extensions["number"] for job in children].count(0) == 3
    assert {ran(estate, child) for child in ids_of(children)} == {1}
    estate.check_settled([plain, failing, dying, *ids_of(children)])


def test_a_parent_whose_reply_was_cut_off_makes_the_same_children_again_and_they_stay_one(
    make_estate: Callable[..., Estate],
) -> None:
    """The crash between the follow-ups and the parent's reply: they exist already when the parent runs again."""
    estate = make_estate({"encode": {}, "dreaming": {}})
    parent = estate.send(do="submit", into="dreaming", count=5)
    first = estate.run("--burst")
    assert first.code == 0
    children = sorted(ids_of(estate.queue.completed("dreaming")))
    estate.queue.retry(parent)
    assert estate.run("--burst").code == 0
    assert ran(estate, parent) == 2
    assert sorted(ids_of(estate.queue.completed("dreaming"))) == children
    assert {ran(estate, child) for child in children} == {1}


def test_artifacts_are_in_the_jobs_record(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate()
    job = estate.send(do="artifact", path="/results/1.flac")
    assert estate.run("--burst").code == 0
    found = estate.signal_of(job)
    assert found is not None
    assert [str(artifact.value) for artifact in found.artifacts] == ["/results/1.flac"]


def test_payloads_arrive_whole_whatever_their_size(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate()
    payloads = [b"", b"\0", bytes(range(256)) * 4096, b"x" * 20_000_000]
    jobs = {str(estate.queue.submit("encode", payload)): payload for payload in payloads}
    assert estate.run("--burst").code == 0
    hashes = {facts[2]: facts[3] for facts in estate.notes("hash")}
    assert hashes == {job: hashlib.sha256(payload).hexdigest() for job, payload in jobs.items()}


# -- batches


def test_one_bad_job_of_a_batch_is_found_and_the_others_complete(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate({"encode": {"handler": "acting:act_together", "batch_size": 8, "retries": 1}})
    good = estate.send_many(5)
    poison = estate.send(**{"do": "raise", "text": "poison"})
    good += estate.send_many(2)
    assert estate.run("--burst").code == 6
    assert {estate.status_of(job) for job in good} == {"done"}
    assert estate.status_of(poison) == "blocked"
    sizes = [len(facts) - 2 for facts in estate.notes("batch")]
    assert sizes[0] == 8
    assert {delivery(estate, job).attempt for job in good} == {0}
    alone = [facts for facts in estate.notes("batch") if facts[2:] == [poison]]
    assert len(alone) == 2
    assert "poison" in estate.dossier(poison)["error"]


def test_a_job_that_kills_the_worker_of_its_batch_is_found_too(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate({"encode": {"handler": "acting:act_together", "batch_size": 8, "max_crashes": 2}})
    good = estate.send_many(4)
    poison = estate.send(do="be killed")
    good += estate.send_many(3)
    assert estate.run("--burst").code == 6
    assert {estate.status_of(job) for job in good} == {"done"}
    assert estate.status_of(poison) == "blocked"
    assert {delivery(estate, job).crashes for job in good} == {0}
    assert estate.dossier(poison)["crashes"] == 2


# -- limits


def test_a_timeout_kills_the_handler_with_everything_that_it_started(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate({"encode": {"timeout": "500ms", "retries": 0}})
    in_group = estate.send(do="spawn", then="hang")
    daemon = estate.send(do="spawn", daemon=True, then="hang")
    good = estate.send()
    pool = estate.start("--burst")
    until(estate.finished(in_group, daemon, good), "all jobs")
    children = [int(facts[2]) for facts in estate.notes("child")]
    until(lambda: all(map(is_dead, children)), "the death of what handlers had started")
    assert pool.wait() == 6
    assert [estate.status_of(job) for job in (in_group, daemon, good)] == ["blocked", "blocked", "done"]
    assert "timeout" in estate.dossier(in_group)["error"]
    assert delivery(estate, in_group).crashes == 0


def test_a_soft_timeout_is_raised_inside_the_handler_and_its_worker_lives_on(
    make_estate: Callable[..., Estate],
) -> None:
    estate = make_estate({"encode": {"timeout": "20s", "soft_timeout": "200ms", "retries": 0}})
    pool = estate.start()
    slow = estate.send(do="sleep", seconds=15)
    until(estate.finished(slow), "the slow job", patience=5)
    worker = pool.worker_pid()
    good = estate.send()
    until(estate.finished(good), "a good one")
    assert (estate.status_of(slow), estate.status_of(good)) == ("blocked", "done")
    assert "SoftTimeout" in estate.dossier(slow)["error"]
    assert pool.worker_pid() == worker
    assert pool.stop() == 0


def test_a_hanging_job_keeps_nobody_elses_from_running(make_estate: Callable[..., Estate]) -> None:
    """What waits behind a long run goes to another worker."""
    estate = make_estate({"encode": {"workers": 2}})
    pool = estate.start()
    warm = estate.send_many(100)
    until(estate.finished(*warm), "short jobs")
    gate = estate.folder / "gate"
    long = estate.send(do="wait", file=str(gate))
    short = estate.send_many(100)
    until(estate.finished(*short), "the short jobs beside the long one", patience=2)
    assert estate.status_of(long) is None
    gate.touch()
    until(estate.finished(long), "the long job")
    assert pool.stop() == 0
    assert {len(runs) for runs in estate.runs().values()} == {1}


@pytest.mark.parametrize("streams", [("encode",), ("encode", "dreaming", "import", "replay")], ids=["one", "four"])
def test_workers_are_recycled_after_max_jobs_without_a_pause(
    make_estate: Callable[..., Estate], streams: tuple[str, ...]
) -> None:
    """C87."""
    estate = make_estate({name: {"max_jobs": 10} for name in streams})
    sent = estate.send_many(200, streams)
    pool = estate.start("--burst")
    most = 0
    while pool.code is None:
        most = max(most, len(pool.tree()))
    assert pool.code == 0
    workers = Counter(run.pid for runs in estate.runs().values() for run in runs)
    print(f"runs per worker: {sorted(workers.values())}; processes at most: {most}")
    assert max(workers.values()) == 10
    assert most <= 1 + 2 * len(streams) + 1
    ends = sorted(float(facts[1]) for facts in estate.notes("end"))
    assert max(later - end for end, later in itertools.pairwise(ends)) < 2
    assert {len(runs) for runs in estate.runs().values()} == {1}
    estate.check_settled(sent)


# -- inline, imports


def test_without_workers_the_handler_runs_in_the_stream_process(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate({"encode": {"workers": 0, "retries": 1}, "dreaming": {"workers": 0}})
    good, bad = estate.send(), estate.send(**{"do": "raise"})
    parent = estate.send(do="submit", into="dreaming", count=2)
    pool = estate.start()
    until(estate.finished(good, bad, parent), "all jobs")
    until(lambda: len(estate.queue.completed("dreaming")) == 2, "the follow-ups")
    assert [estate.status_of(job) for job in (good, bad, parent)] == ["done", "blocked", "done"]
    assert {run.pid for run in estate.runs()[good]} == {pool.stream_pid()}
    assert len(pool.tree()) == 3
    assert pool.stop() == 0
    assert estate.processes() == []


def test_an_inline_job_of_several_ttls_keeps_its_lease(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate({"encode": {"workers": 0}}, lease={"ttl": "1s"})
    pool, other = estate.start(), estate.start()
    job = estate.send(do="sleep", seconds=2.5)
    until(estate.finished(job), "the job")
    assert ran(estate, job) == 1
    assert (pool.stop(), other.stop()) == (0, 0)
    estate.check_settled([job])


def test_a_handler_that_cannot_be_imported_stops_only_its_own_stream(make_estate: Callable[..., Estate]) -> None:
    """C35: tried again ever more slowly, said in the log and on the board; the others do not notice."""
    estate = make_estate({"encode": {}, "dreaming": {"handler": "nosuch:fn"}})
    stuck = estate.send("dreaming")
    pool = estate.start()
    until(lambda: failing(pool, "dreaming"), "the failing stream's state")
    jobs = [estate.send() for _ in range(10)]
    until(estate.finished(*jobs), "the other stream's jobs")
    assert "nosuch" in pool.log
    (estate.folder / "nosuch.py").write_text("from acting import act as fn\n")
    until(estate.finished(stuck), "the job of the stream whose handler has appeared")
    begun = time.monotonic()
    assert pool.stop() == 0
    assert time.monotonic() - begun < 2
    estate.check_settled([stuck, *jobs])


def test_a_pool_none_of_whose_handlers_can_be_imported_exits_with_2(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate({"encode": {"handler": "nosuch:fn"}, "dreaming": {"handler": "acting:nothing_there"}})
    job = estate.send()
    pool = estate.run(patience=10)
    assert pool.code == 2
    assert "nosuch" in pool.log
    assert "nothing_there" in pool.log
    assert estate.check([job]) == {"new": 1}
    assert estate.processes() == []


def test_a_burst_with_a_stream_that_cannot_work_says_so_by_its_code(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate({"encode": {}, "dreaming": {"handler": "nosuch:fn"}})
    good = estate.send()
    pool = estate.run("--burst")
    assert pool.code == 1
    assert "dreaming" in pool.log
    assert estate.status_of(good) == "done"


def test_a_stream_whose_handler_disappears_under_way_is_shown_as_failing(make_estate: Callable[..., Estate]) -> None:
    """C77: the file is gone, and then the worker is."""
    estate = make_estate({"encode": {"handler": "nosuch:fn"}})
    handler = estate.folder / "nosuch.py"
    handler.write_text("from acting import act as fn\n")
    pool = estate.start()
    job = estate.send()
    until(estate.finished(job), "a job")
    handler.unlink()
    estate.kill(pool.worker_pid())
    until(lambda: failing(pool, "encode"), "the failing stream's state")
    left = estate.send()
    assert pool.stop() == 0
    assert estate.check([job, left]) == {"done": 1, "new": 1}


@pytest.mark.torture
@pytest.mark.skipif(sys.platform != "linux", reason="CPU is read from /proc")
def test_an_import_that_fails_is_tried_ever_more_slowly(make_estate: Callable[..., Estate]) -> None:
    """C35: about ten times in a minute, while the master sleeps and the others work."""
    estate = make_estate({"encode": {}, "dreaming": {}, "import": {"handler": "nosuch:fn"}})
    (estate.folder / "nosuch.py").write_text("from acting import note\nnote('import')\nraise ImportError('nosuch')\n")
    pool = estate.start()
    until(pool.is_working("encode", "dreaming"), "the others")
    ticks, end = cpu_ticks(pool.pid), time.monotonic() + 60
    while time.monotonic() < end:
        jobs = estate.send_many(2, ("encode", "dreaming"))
        until(estate.finished(*jobs), "the others' jobs", patience=2)
    print(f"imported {len(estate.notes('import'))} times in a minute")
    assert 3 <= len(estate.notes("import")) <= 12
    assert cpu_ticks(pool.pid) - ticks < 0.05 * 60 * os.sysconf("SC_CLK_TCK")
    begun = time.monotonic()
    assert pool.stop() == 0
    assert time.monotonic() - begun < 2


def failing(pool: Pool, stream: str) -> bool:
    row = pool.row(stream, Kind.STREAM)
    return row is not None and row.state == "failing" and "nosuch" in row.error


# -- what handlers leave behind


def test_a_daemon_that_a_handler_left_is_gone_after_the_stop(make_estate: Callable[..., Estate]) -> None:
    """T12."""
    estate = make_estate()
    pool = estate.start()
    jobs = [estate.send(do="spawn"), estate.send(do="spawn", daemon=True)]
    until(estate.finished(*jobs), "the jobs")
    children = [int(facts[2]) for facts in estate.notes("child")]
    assert len(children) == 2
    assert pool.stop() == 0
    until(lambda: all(map(is_dead, children)), "the end of what handlers left", patience=5)
    assert estate.processes() == []
