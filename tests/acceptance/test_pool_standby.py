"""Two pools on one root: each stream is worked by one of them, and the other goes on where the first one dies."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest
from pool import Estate, Pool, until

STREAMS = ("encode", "dreaming")


def both(estate: Estate) -> tuple[Pool, Pool]:
    """The holder, which has every stream, and a second pool, which stands by."""
    holder = estate.start()
    until(holder.is_working(*STREAMS), "the first pool")
    other = estate.start()
    until(lambda: stands_by(other), "the second pool's standing by")
    return holder, other


def stands_by(pool: Pool) -> bool:
    rows = [pool.row(stream) for stream in STREAMS]
    return all(row is not None and row.lease == "standby" for row in rows) and pool.log.count("standing by") == 2


def test_every_stream_is_worked_by_one_pool_only(make_estate: Callable[..., Estate]) -> None:
    """C04."""
    estate = make_estate({name: {"handler": "acting:act_fast"} for name in STREAMS})
    holder, other = both(estate)
    workers = {holder.worker_pid(stream) for stream in STREAMS}
    sent = estate.send_many(500, STREAMS)
    until(estate.finished(*sent), "all jobs")
    starts = estate.notes("start")
    assert sorted(facts[2] for facts in starts) == sorted(sent)
    assert {int(facts[0]) for facts in starts} <= workers
    assert (other.stop(), holder.stop()) == (0, 0)
    estate.check_settled(sent)


def test_when_the_whole_tree_of_the_holder_is_killed_the_other_pool_goes_on_within_two_seconds(
    make_estate: Callable[..., Estate],
) -> None:
    """C48: nobody restarts anything; the job that was running runs again, once."""
    estate = make_estate({name: {} for name in STREAMS}, lease={"ttl": "15s"})
    gate = estate.folder / "gate"
    holder, _ = both(estate)
    running = estate.send(do="wait", file=str(gate))
    until(estate.started(running), "the run")
    pending = [estate.send("dreaming", do="wait", file=str(gate)), estate.send()]
    for pid in reversed(holder.tree()):
        estate.kill(pid)
    killed = time.monotonic()
    gate.touch()
    until(estate.finished(running, *pending), "the rest of the work", patience=2)
    print(f"the other pool had finished everything {time.monotonic() - killed:.2f} s after the kill")
    estate.check_settled([running, *pending])
    estate.check_repeats()
    assert len(estate.runs()[running]) == 2


def test_when_the_holder_stops_in_order_the_other_pool_takes_over_at_once(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate({name: {} for name in STREAMS}, lease={"ttl": "15s"})
    holder, other = both(estate)
    assert holder.stop() == 0
    job = estate.send()
    until(estate.finished(job), "the job", patience=2)
    assert int(estate.notes("start")[0][0]) == other.worker_pid()


def test_a_pool_that_may_not_stand_by_names_the_other_one_and_exits_with_4(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate({name: {} for name in STREAMS})
    holder = estate.start()
    until(holder.is_working(*STREAMS), "the first pool")
    second = estate.run("--no-standby")
    assert second.code == 4
    assert (
        f"(pid {holder.stream_pid('encode')})" in second.log or f"(pid {holder.stream_pid('dreaming')})" in second.log
    )
    assert holder.code is None
    job = estate.send()
    until(estate.finished(job), "a job of the first pool")


def test_a_holder_that_was_stopped_for_longer_than_its_ttl_settles_nothing_afterwards(
    make_estate: Callable[..., Estate],
) -> None:
    """C20: the successor's lease and claim stay as they are, whatever the former holder does when it wakes."""
    estate = make_estate(lease={"ttl": "1s"})
    gate = estate.folder / "gate"
    zombie = estate.start()
    until(zombie.is_working(), "the first pool")
    job = estate.send(do="wait", file=str(gate))
    until(estate.started(job), "the first run")
    successor = estate.start()
    until(lambda: "standing by" in successor.log, "the second pool's standing by")
    zombie.signal_tree(signal.SIGSTOP)
    until(lambda: len(estate.runs()[job]) == 2, "the second run", patience=10)
    zombie.signal_tree(signal.SIGCONT)
    until(lambda: "lease" in zombie.log and "workers are killed" in zombie.log, "the first pool's noticing")
    lease = (estate.root / "encode.drain.lease").read_text()
    assert zombie.stop() == 0
    third = estate.run("--no-standby")
    assert third.code == 4
    assert (estate.root / "encode.drain.lease").read_text().split()[0] == lease.split()[0]
    assert estate.status_of(job) is None
    gate.touch()
    until(estate.finished(job), "the job")
    assert [run.end is None for run in estate.runs()[job]] == [True, False]
    assert successor.stop() == 0
    estate.check_settled([job])


def test_a_pool_that_was_stopped_without_a_contender_goes_on_as_if_nothing_had_been(
    make_estate: Callable[..., Estate],
) -> None:
    """C70: the whole pool stands still for longer than its ttl in the middle of a job."""
    estate = make_estate(lease={"ttl": "1s"})
    gate = estate.folder / "gate"
    pool = estate.start()
    job = estate.send(do="wait", file=str(gate))
    until(estate.started(job), "the run")
    pool.signal_tree(signal.SIGSTOP)
    lease = estate.root / "encode.drain.lease"
    until(lambda: time.time() - float(lease.read_text().split()[1]) > 3, "three ttls without a heartbeat")
    pool.signal_tree(signal.SIGCONT)
    gate.touch()
    until(estate.finished(job), "the job", patience=2)
    assert estate.status_of(job) == "done"
    assert len(estate.runs()[job]) == 1
    later = estate.send()
    until(estate.finished(later), "another job", patience=2)
    assert pool.stop() == 0
    estate.check_settled([job, later])


@pytest.mark.parametrize("victim", ["stream", "master"])
def test_a_job_in_flight_and_a_new_one_both_finish_after_a_kill(
    make_estate: Callable[..., Estate], victim: str
) -> None:
    """C59: with one worker, a dead job keeps nobody's place."""
    estate = make_estate(lease={"ttl": "2s"})
    pool = estate.start()
    gate = estate.folder / "gate"
    job = estate.send(do="wait", file=str(gate))
    until(estate.started(job), "the run")
    estate.kill(pool.stream_pid() if victim == "stream" else pool.pid)
    gate.touch()
    if victim == "master":
        pool.wait()
        pool = estate.start()
    other = estate.send()
    until(estate.finished(job, other), "both jobs", patience=5)
    assert pool.stop() == 0
    estate.check_settled([job, other])
