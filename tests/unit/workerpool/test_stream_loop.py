"""The stream process as a whole, turned by hand: what it does, and that it never spins."""

from __future__ import annotations

import dataclasses
import errno
import signal
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from stage import OK, Stage

from queuekit import LeaseLost, WriteFailed
from queuekit.backends.memory import MemoryBackend, MemoryStore
from queuekit.errors import BackendUnavailable, WatcherFailed
from queuekit.testing.jobs import FAR_MS, make_job
from workerpool.outcome import Result, classify_error
from workerpool.outcome import Retry as RetryAsked
from workerpool.process import ChannelError
from workerpool.stream import succession
from workerpool.stream.tenure import Tenure
from workerpool.worker.protocol import Out, Ready, Spent

FULL = WriteFailed("the disk", "it is full")
FULL.__cause__ = OSError(28, "No space left on device")


class Faulty(MemoryBackend):
    """A backend whose verbs raise what `faults` says, each time."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        super().__init__(store=store)
        self.faults: dict[str, Exception] = {}
        self.pruned: list[Any] = []

    def __getattribute__(self, name: str) -> Any:
        faults = object.__getattribute__(self, "__dict__").get("faults", {})
        if name in faults:

            def fail(*_: Any, **__: Any) -> None:
                raise faults[name]

            return fail
        return object.__getattribute__(self, name)


@pytest.fixture
def stage() -> Iterator[Callable[..., Stage]]:
    made: list[Stage] = []

    def make(**values: Any) -> Stage:
        made.append(Stage(**values))
        return made[-1]

    yield make
    for each in made:
        each.close()


# -- the straight way


def test_jobs_are_claimed_run_and_replied_to(stage):
    it = stage()
    it.send("a", "b")
    it.open()
    assert it.with_worker() == [["a"]]
    it.crew.finish()
    it.settle()
    it.crew.finish()
    it.settle()
    assert it.ended() == {"a": "done", "b": "done"}
    assert it.row.sums["jobs_done"] == 2
    assert it.row.said["state"] == "running"
    assert len(it.words("ready")) == 1


def test_nothing_is_claimed_before_a_worker_is_ready(stage):
    it = stage()
    it.send("a")
    it.settle()
    assert it.in_flight() == []
    it.crew.become_ready()
    it.settle()
    assert it.in_flight() == ["a"]


def test_an_arrival_wakes_it(stage):
    it = stage()
    it.open()
    it.send("a")
    it.stream.turn(5)  # the watcher is readable: this does not wait
    assert it.with_worker() == [["a"]]


def test_an_idle_stream_waits_for_its_next_check_or_heartbeat(stage):
    it = stage()
    it.open()
    assert it.settle() > 4


def test_a_retry_is_taken_up_when_it_is_due(stage):
    it = stage()
    it.send("a")
    it.open()
    it.crew.finish(result=classify_error(RetryAsked(0, "busy")))
    it.settle()
    it.settle()
    assert it.with_worker() == [["a"]]
    assert it.row.sums["jobs_retried"] == 1


def test_what_is_scheduled_far_ahead_wakes_nobody(stage):
    it = stage()
    it.backend.write(make_job("a"), due_ms=FAR_MS)
    it.open()
    assert it.settle() > 4


# -- batches


def test_a_batch_waits_for_more_and_then_starts(stage):
    it = stage(batch_size=3, batch_wait="2s")
    it.send("a")
    it.open()
    assert it.with_worker() == []
    assert it.settle() == pytest.approx(2.0)
    it.send("b")
    it.after(1.0)
    assert it.with_worker() == []
    it.after(1.0)
    assert it.with_worker() == [["a", "b"]]


def test_a_full_batch_does_not_wait(stage):
    it = stage(batch_size=2, batch_wait="60s")
    it.open()
    it.send("a")
    it.settle()
    it.send("b")
    it.settle()
    assert it.with_worker() == [["a", "b"]]


def test_a_batch_that_has_waited_enough_but_has_no_worker_waits_quietly(stage):
    it = stage(batch_size=2, batch_wait="1s")
    it.send("a", "b", "c")
    it.open()
    it.crew.run()
    it.after(5.0)
    it.send("d")
    assert it.settle() > 0
    it.crew.finish()
    it.settle()
    it.after(1.0)
    assert it.with_worker() == [["c", "d"]]


def test_a_batch_that_fails_is_halved_and_only_the_guilty_job_is_charged(stage):
    it = stage(batch_size=4, batch_wait="1s", retries=0)
    it.send("a", "b", "c", "d")
    it.open()
    bad, seen = "c", []
    for _ in range(10):
        if not it.with_worker():
            break
        ids = it.with_worker()[0]
        seen.append(ids)
        it.crew.finish(result=Result.failed("boom") if bad in ids else OK)
        it.settle()
    assert it.ended() == {"a": "done", "b": "done", "c": "blocked", "d": "done"}
    assert seen[0] == ["a", "b", "c", "d"]


def test_a_worker_that_dies_in_a_batch_leaves_the_results_it_had(stage):
    it = stage(batch_size=3, max_crashes=1)
    it.send("a", "b", "c")
    it.open()
    it.crew.run()
    it.crew.say(0, Out("a", OK))
    it.turn()
    it.crew.die(signal=9)
    it.turn()
    it.crew.become_ready()
    it.settle()
    assert it.ended() == {"a": "done"}
    assert it.with_worker() == [["b"]]  # the first half of what is left


# -- workers die


def test_only_the_running_job_is_charged_for_a_death(stage):
    it = stage(max_crashes=1)
    it.send(*"abcd")
    it.open()
    it.crew.finish()  # its time is known now: more are sent ahead
    it.settle()
    assert it.with_worker() == [["b"], ["c"], ["d"]]
    it.crew.run()
    it.crew.die(signal=11)
    it.turn()
    it.crew.become_ready()
    it.settle()
    assert it.ended() == {"a": "done", "b": "blocked"}
    assert it.with_worker()[0] == ["c"]
    assert it.row.sums["crashes"] == 1


def test_a_death_after_the_run_and_before_its_outcome_is_charged_to_that_job(stage, caplog):
    it = stage(max_crashes=1)
    it.send("guilty", "behind")
    it.open()
    assert it.with_worker() == [["guilty"]]
    it.crew.unheard.add(0)
    it.crew.die(code=1)
    it.settle()
    assert it.ended() == {"guilty": "blocked"}
    assert "after the run, before its outcome was told" in caplog.text


def test_a_worker_that_is_spent_is_replaced_at_once_and_nobody_is_charged(stage, caplog):
    it = stage(max_crashes=1, retries=0)
    it.send("a", "b")
    it.open()
    it.crew.say(0, Spent("it has no descriptors left after 9 jobs"))
    it.crew.unheard.add(0)
    it.crew.die(code=0)
    it.settle()
    assert it.crew.starts == 2
    it.crew.become_ready()
    it.settle()
    assert it.with_worker() == [["a"]]
    assert (it.ended(), it.row.sums["crashes"]) == ({}, 0)
    assert "worker 1 is replaced: it has no descriptors left after 9 jobs" in caplog.text


def test_a_run_that_takes_too_long_ends_with_its_worker_and_is_a_failed_one(stage):
    it = stage(timeout="5s")
    it.send(*"abc")
    it.open()
    it.crew.finish()
    it.settle()
    it.crew.run()
    it.after(5.1)
    assert it.crew.asked == [0]
    assert it.backend.tally("encode").retrying == 0
    it.after(0.11)
    assert it.backend.tally("encode").retrying == 1
    assert it.crew.starts == 2


def test_the_record_of_a_timeout_tells_where_the_job_was(stage):
    it = stage(timeout="5s", retries=0)
    it.send("a")
    it.open()
    it.crew.run()
    it.crew.wrote[0] = 'Thread 1 (most recent call first):\n  File "handlers.py", line 3 in encode'
    it.after(5.1)
    it.after(0.11)
    error = it.backend.store.dossiers["a"]["error"]
    assert error.splitlines()[0] == "killed after 5 s (timeout)"
    assert error.splitlines()[1:3] == ["where it was, and its last words:", "Thread 1 (most recent call first):"]
    assert 'File "handlers.py", line 3 in encode' in error


def test_the_record_of_a_timeout_tells_that_a_deaf_job_did_not_say_where_it_was(stage):
    it = stage(timeout="5s", retries=0)
    it.send("a")
    it.open()
    it.crew.run()
    it.crew.wrote[0] = "my own words"
    it.after(5.1)
    it.after(0.11)
    lines = it.backend.store.dossiers["a"]["error"].splitlines()
    assert "did not say where it was" in lines[1]
    assert lines[2:] == ["its last words:", "my own words"]


def test_the_loop_wants_its_turn_when_an_overdue_worker_is_to_be_killed_and_not_before(stage):
    it = stage(timeout="5s")
    it.send("a")
    it.open()
    it.crew.run()
    killed = []
    it.crew.kill = killed.append
    patience = it.after(5.1)
    assert 0 < patience < 0.11
    it.after(patience + 0.001)
    assert [slot.index for slot in killed] == [0]
    assert it.after(0.01) > 0.1
    assert len(killed) == 1


def test_what_an_overdue_run_still_says_does_not_count_and_the_next_one_is_not_blamed(stage):
    """The question where it is may have ended the call that it hung in."""
    it = stage(timeout="5s", max_crashes=1, retries=0)
    it.send(*"abc")
    it.open()
    it.crew.finish()
    it.settle()
    it.crew.run()
    it.now += 5.1
    kill, it.crew.kill = it.crew.kill, lambda slot: None
    it.turn()  # decides to kill b
    it.crew.finish()  # but b ends
    it.crew.run()  # and c begins
    kill(it.crew.workers[0].slot)
    it.turn()
    it.crew.become_ready()
    it.settle()
    assert it.ended() == {"a": "done", "b": "blocked"}
    assert it.with_worker() == [["c"]]


def test_a_handler_that_cannot_be_imported_is_tried_ever_more_slowly_and_said_once(stage):
    it = stage()
    it.turn()
    waits = []
    for _ in range(6):
        it.crew.fail()
        begun = it.now
        while it.settle() and not it.crew.workers:
            it.now += it.stream.patience()
        waits.append(it.now - begun)
    assert waits == sorted(waits)
    assert waits[-1] > 10
    assert len(it.words("failed")) == 1
    assert it.row.said["state"] == "failing"
    it.now += 40
    it.turn()
    it.crew.become_ready()
    it.settle()
    assert len(it.words("ready")) == 1


def test_a_fork_that_fails_is_tried_again_later(stage):
    it = stage()
    it.crew.refuse_start = OSError(11, "Resource temporarily unavailable")
    assert it.settle() > 0
    it.crew.refuse_start = None
    it.after(1.0)
    assert it.crew.starts == 1


def test_a_job_that_cannot_be_handed_to_a_worker_fails_alone(stage):
    it = stage(batch_size=2, retries=0)
    it.crew.refuse_jobs["a"] = ChannelError("too large")
    it.send("a", "b")
    it.open()
    it.settle()
    assert it.ended() == {"a": "blocked"}
    assert it.with_worker() == [["b"]]


def test_what_waits_behind_a_long_run_goes_to_an_idle_worker(stage):
    it = stage(workers=2)
    it.send(*"abcdef")
    it.open()
    it.crew.finish(0)
    it.settle()
    assert len(it.with_worker(0)) > 1
    it.crew.run(0)
    for _ in range(len(it.with_worker(1))):
        it.crew.finish(1)
    it.settle()
    it.after(0.2)
    it.after(0.01)
    assert it.with_worker(1) == [["d"], ["e"], ["f"]]
    it.crew.drop_recalled(0)
    it.settle()
    assert it.with_worker(0) == [["c"]]
    for _ in "def":
        it.crew.finish(1)
    it.crew.finish(0)
    it.settle()
    assert set(it.ended()) == set("abcdef")


def test_an_import_that_takes_long_is_mentioned_once_and_does_not_spin(stage, caplog):
    it = stage()
    it.turn()
    it.after(31.0)
    it.after(31.0)
    assert caplog.text.count("still being imported") == 1


def test_a_worker_that_outgrows_its_memory_is_replaced_between_two_jobs(stage):
    it = stage(max_memory="10MiB")
    it.send(*"abcd")
    it.open()
    it.crew.workers[0].view.rss = 100 * 2**20
    it.crew.finish()
    it.settle()
    it.crew.workers[0].view.rss = 111 * 2**20
    it.after(5.0)
    assert it.crew.workers[0].stopped
    it.crew.die(code=0)
    it.turn()
    it.crew.become_ready()
    it.settle()
    assert it.with_worker() != []
    assert it.crew.starts == 2
    assert it.row.sums["crashes"] == 0


# -- the lease


def test_a_lease_that_is_held_elsewhere_is_waited_for(stage):
    store = MemoryStore()
    other = MemoryBackend(store=store).lease("encode", 1e9)
    assert other.try_acquire()
    it = stage(store=store)
    it.send("a")
    it.open()
    assert (it.in_flight(), it.row.said["lease"]) == ([], "standby")
    assert len(it.words("standby")) == 1
    it.after(1.0)
    assert len(it.words("standby")) == 1
    other.release()
    it.after(1.0)
    assert it.in_flight() == ["a"]


def test_a_lost_lease_takes_everything_with_it(stage):
    it = stage()
    it.send(*"ab")
    it.open()
    thief = it.backend.lease("encode", -1.0)
    assert thief.try_acquire()
    it.crew.finish()
    it.settle()
    assert it.ended() == {}
    assert it.row.said["lease"] == "standby"
    assert it.crew.starts == 2  # workers wait for the next time, new ones
    thief.release()
    it.after(1.0)
    it.crew.become_ready()
    it.settle()
    assert it.in_flight() == ["a"]
    it.crew.finish()
    it.settle()
    assert it.ended() == {"a": "done"}


def test_a_broken_handler_in_standby_is_no_fork_storm(stage):
    store = MemoryStore()
    assert MemoryBackend(store=store).lease("encode", 1e9).try_acquire()
    it = stage(store=store)
    it.turn()
    starts = 0
    for _ in range(20):
        if it.crew.workers:
            it.crew.fail()
        it.turn()
        starts = it.crew.starts
        it.now += 0.01
    assert starts == 1


def test_a_take_over_tells_of_jobs_that_a_move_keeps_out_of_sight(stage, caplog):
    store = MemoryStore()
    mover = MemoryBackend(store=store)
    mover.write(make_job("hidden"))
    mover.transfer().hide(list(mover.transfer().whole()), leases={})
    stage(store=store).open()
    assert "jobs are out of sight" in caplog.text


def test_a_move_that_cannot_be_looked_at_keeps_no_job_waiting(stage, caplog):
    backend = Faulty()
    backend.faults["transfer"] = BackendUnavailable("no access")
    it = stage(backend=backend)
    it.send("a")
    it.open()
    assert it.in_flight() == ["a"]
    assert "cannot be told: the queue is not available: no access" in caplog.text


def test_a_take_over_that_fails_is_tried_again_and_nothing_is_claimed_before(stage):
    backend = Faulty()
    it = stage(backend=backend)
    it.send("a")
    backend.faults["watcher"] = WatcherFailed("no descriptor is left")
    it.open()
    assert it.in_flight() == []
    del backend.faults["watcher"]
    it.after(5.0)
    assert it.in_flight() == ["a"]


@pytest.mark.parametrize("error", [FULL, BackendUnavailable("the lock is held"), OSError(5, "I/O error")])
def test_without_heartbeats_it_claims_nothing_more_and_does_not_spin(stage, error):
    it = stage()
    it.open()
    lease = it.stream._desk.tenure.lease
    lease.heartbeat = lambda now=None: (_ for _ in ()).throw(error)
    for _ in range(10):
        it.after(5.0)
    assert it.row.said["lease"] == "fenced"
    it.send("a")
    assert it.settle() > 0
    assert it.in_flight() == []
    del lease.heartbeat
    it.after(1.0)
    assert it.in_flight() == ["a"]


# -- the store fails


@pytest.mark.parametrize("verb", ["drain_available", "next_due", "rescue_strays", "finish_intents", "tally"])
@pytest.mark.parametrize("error", [BackendUnavailable("the disk is gone"), OSError(5, "I/O error")])
def test_a_verb_that_fails_is_tried_again_without_spinning(stage, verb, error):
    backend = Faulty()
    it = stage(backend=backend, burst=True)
    it.open()
    backend.faults[verb] = error
    it.send("a")
    it.after(31.0)
    for _ in range(5):
        assert it.after(0.01) > 0
    backend.faults.clear()
    it.after(6.0)
    it.crew.finish()
    it.settle()
    assert it.ended() == {"a": "done"}


def test_a_result_that_the_disk_does_not_take_is_kept_and_the_job_not_run_again(stage):
    backend = Faulty()
    it = stage(backend=backend)
    it.send("a")
    it.open()
    backend.faults["complete_batch"] = FULL
    it.crew.finish()
    it.settle()
    assert it.ended() == {}
    backend.faults.clear()
    it.after(5.0)
    assert it.ended() == {"a": "done"}
    assert it.with_worker() == []


# -- orders


def test_a_quiet_stream_claims_nothing_until_it_is_told(stage):
    it = stage()
    it.open()
    it.order(t="quiet", on=True)
    it.settle()
    it.send("a")
    it.settle()
    assert it.in_flight() == []
    it.order(t="quiet", on=False)
    it.settle()
    assert it.in_flight() == ["a"]


def test_a_reload_replaces_the_worker_when_its_run_has_ended(stage):
    it = stage()
    it.send("a", "b")
    it.open()
    it.crew.run()
    it.order(t="reload", stream=it.config.to_dict())
    it.settle()
    assert it.crew.workers[0].stopped
    it.crew.finish()
    it.crew.die(code=0)
    it.turn()
    it.crew.become_ready()
    it.settle()
    assert it.with_worker() == [["b"]]
    assert it.ended() == {"a": "done"}


def test_a_reload_waits_for_the_trial_of_its_handler(stage):
    it = stage()
    it.open()
    it.crew.trial_says = None
    it.order(t="reload", stream=dataclasses.replace(it.config, retries=7).to_dict())
    it.settle()
    assert not it.crew.workers[0].stopped
    assert it.words("reloaded") == []
    it.crew.end_trial("")
    it.settle()
    assert it.crew.workers[0].stopped
    assert [word["stream"]["retries"] for word in it.words("reloaded")] == [7]


def test_a_handler_that_fails_its_trial_changes_nothing_and_is_said(stage, caplog):
    it = stage()
    it.open()
    it.crew.trial_says = "there is no module goood"
    it.order(t="reload", stream=dataclasses.replace(it.config, handler="goood:f", workers=3).to_dict())
    it.settle()
    assert not it.crew.workers[0].stopped
    assert len(it.crew.workers) == 1
    assert [word["stream"]["handler"] for word in it.words("reloaded")] == ["h:f"]
    assert "goood:f: there is no module goood" in caplog.text


def test_a_stream_with_nothing_that_works_takes_a_reload_untried(stage):
    it = stage()
    it.settle()
    it.crew.trial_says = "never asked"
    it.order(t="reload", stream=dataclasses.replace(it.config, handler="other:f").to_dict())
    it.settle()
    assert [word["stream"]["handler"] for word in it.words("reloaded")] == ["other:f"]


def test_a_reload_to_batches_gives_none_to_a_worker_for_single_jobs(stage):
    it = stage()
    it.open()
    it.order(t="reload", stream=dataclasses.replace(it.config, batch_size=5).to_dict())
    it.send(*"abc")
    it.settle()
    assert it.with_worker() == []
    it.crew.die(code=0)
    it.turn()
    it.crew.become_ready()
    it.settle()
    assert it.with_worker() == [["a", "b", "c"]]


def test_stacks_are_asked_of_every_worker(stage):
    it = stage()
    it.open()
    it.order(t="stacks")
    it.settle()
    assert it.crew.told == [signal.SIGUSR2]


# -- stopping


def stop_by_order(it: Stage) -> None:
    it.order(t="stop")


def stop_by_signal(it: Stage) -> None:
    it.signals.send(signal.SIGTERM)


def stop_by_death_of_the_master(it: Stage) -> None:
    it.master.close()
    it.master.eof = True


@pytest.mark.parametrize("stop", [stop_by_order, stop_by_signal, stop_by_death_of_the_master])
def test_what_runs_may_finish_and_what_was_not_started_goes_back(stage, stop):
    it = stage()
    it.send(*"abcd")
    it.open()
    it.crew.finish()
    it.settle()
    it.crew.run()
    stop(it)
    it.stream.turn(0)
    it.stream.turn(0)
    assert it.stream.patience() > 0, "it spins while a job runs"
    assert it.in_flight() == ["b"]
    it.crew.finish()
    for _ in range(3):
        it.stream.turn(0)
    it.crew.leave()
    it.stream.turn(0)
    assert it.stream.is_over()
    assert it.ended() == {"a": "done", "b": "done"}
    assert it.backend.pending_count("encode") == 2


def test_a_stop_does_not_spin_while_one_worker_is_busy_and_the_other_gone(stage):
    it = stage(workers=2)
    it.send("a")
    it.open()
    busy = 0 if it.with_worker(0) else 1
    it.crew.run(busy)
    it.order(t="stop")
    it.settle()
    it.crew.leave()
    it.settle()
    for _ in range(5):
        assert it.after(1.5) > 0
    assert not it.stream.is_over()


def test_after_soft_the_jobs_are_asked_and_after_hard_killed_and_left_in_flight(stage):
    it = stage(tables={"shutdown": {"soft": "2s", "hard": "4s"}})
    it.send("a")
    it.open()
    it.crew.run()
    it.order(t="stop")
    it.settle()
    assert it.crew.asked_to_stop == 0
    it.after(2.0)
    assert it.crew.asked_to_stop == 1
    it.after(2.0)
    assert it.crew.workers == {}
    assert it.stream.is_over()
    assert it.in_flight() == ["a"]
    assert it.ended() == {}


def test_an_order_to_kill_does_not_wait(stage):
    it = stage()
    it.send("a")
    it.open()
    it.crew.run()
    it.order(t="kill")
    it.turn(2)
    assert it.stream.is_over()
    assert it.in_flight() == ["a"]


def test_a_worker_that_is_still_importing_is_not_waited_for_long(stage):
    it = stage()
    it.turn()
    it.order(t="stop")
    it.settle()
    it.after(1.1)
    it.turn()
    assert it.stream.is_over()


def test_ready_during_a_stop_changes_nothing(stage):
    it = stage()
    it.send("a")
    it.turn()
    it.order(t="stop")
    it.turn()
    it.crew.say(0, Ready())
    it.settle()
    assert (it.in_flight(), it.row.said["state"]) == ([], "stopping")


@pytest.mark.parametrize("error", [BackendUnavailable("the lock is held"), OSError(5, "I/O error")])
def test_what_cannot_be_given_back_now_is_tried_again_until_the_hard_end(stage, error):
    backend = Faulty()
    it = stage(backend=backend, batch_size=3, batch_wait="60s", tables={"shutdown": {"soft": "2s", "hard": "4s"}})
    it.send("a", "b")
    it.open()
    backend.faults["release"] = error
    it.order(t="stop")
    it.settle()
    it.crew.leave()
    it.settle()
    assert not it.stream.is_over()
    backend.faults.clear()
    it.after(1.0)
    assert it.stream.is_over()
    assert it.backend.pending_count("encode") == 2


def test_a_job_that_somebody_took_away_does_not_hold_up_a_stop(stage):
    it = stage(batch_size=3, batch_wait="60s")
    it.send("a", "b")
    it.open()
    it.backend.store.cur.clear()
    it.order(t="stop")
    it.settle()
    it.crew.leave()
    it.turn()
    assert it.stream.is_over()


def test_a_stop_in_standby_ends_at_once(stage):
    store = MemoryStore()
    assert MemoryBackend(store=store).lease("encode", 1e9).try_acquire()
    it = stage(store=store)
    it.open()
    it.order(t="stop")
    it.settle()
    it.crew.leave()
    it.turn()
    assert it.stream.is_over()


def test_a_lease_that_is_lost_during_a_stop_ends_it(stage):
    it = stage()
    it.send("a")
    it.open()
    it.crew.run()
    it.order(t="stop")
    it.settle()
    assert it.backend.lease("encode", -1.0).try_acquire()
    it.after(6.0)
    it.turn()
    assert it.stream.is_over()
    assert it.ended() == {}


def test_a_reload_during_a_stop_starts_nobody(stage):
    it = stage()
    it.open()
    it.order(t="stop")
    it.settle()
    it.order(t="reload", stream=it.config.to_dict())
    it.crew.leave()
    it.turn(2)
    assert it.crew.starts == 1
    assert it.stream.is_over()


# -- a burst


def test_a_stream_is_idle_only_when_nothing_is_outstanding(stage):
    it = stage(burst=True)
    it.send("a")
    it.open()
    assert it.words("idle") == []
    it.crew.finish()
    it.settle()
    assert it.words("idle") == [{"t": "idle", "n": None, "handled": 1}]
    it.order(t="confirm", n=7)
    it.settle()
    assert it.words("idle")[-1] == {"t": "idle", "n": 7, "handled": 1}


def test_a_retry_that_is_not_due_keeps_a_burst_waiting(stage):
    it = stage(burst=True)
    it.send("a")
    it.open()
    it.crew.finish(result=classify_error(RetryAsked(60, "busy")))
    assert it.settle() > 0
    assert it.words("idle") == []
    assert it.words("counts") == []


def test_a_stream_in_standby_waits_for_what_the_other_pool_does(stage):
    store = MemoryStore()
    other = MemoryBackend(store=store)
    lease = other.lease("encode", 1e9)
    assert lease.try_acquire()
    it = stage(store=store, burst=True)
    it.send("a")
    it.open()
    assert it.words("idle") == []
    other.drain_available("encode", lease=lease)
    other.complete("a", "done", lease=lease)
    it.after(1.0)
    assert it.words("idle") == [{"t": "idle", "n": None, "handled": 0}]


# -- a full disk


class FakeReserve:
    """A reserve that is made when there is room. `refusal`: what keeps it from being made."""

    there: ClassVar[bool]
    refusal: ClassVar[OSError | None]

    def __init__(self, directory: str) -> None: ...

    def make(self) -> None:
        if self.refusal is not None:
            raise self.refusal
        type(self).there = True

    def check_room(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def give_up(self) -> bool:
        given, type(self).there = self.there, False
        return given


@pytest.fixture
def reserve(monkeypatch: pytest.MonkeyPatch) -> type[FakeReserve]:
    monkeypatch.setattr("workerpool.stream.reserve.Reserve", FakeReserve)
    FakeReserve.there, FakeReserve.refusal = False, None
    return FakeReserve


def full_at_the_end_of_a_run(stage, reserve) -> tuple[Stage, Faulty]:
    """A stream whose job has ended when the disk is full: its result is kept, the reserve is given up."""
    backend = Faulty()
    it = stage(backend=backend)
    it.send("a")
    it.open()
    assert reserve.there
    backend.faults["complete_batch"] = FULL
    reserve.refusal = OSError(errno.ENOSPC, "No space left on device")
    it.crew.finish()
    it.settle()
    assert not reserve.there
    assert it.ended() == {}
    return it, backend


def test_what_has_ended_is_tried_again_at_once_when_the_reserve_was_given_up(stage, reserve):
    backend = Faulty()
    it = stage(backend=backend)
    it.send("a")
    it.open()
    backend.faults["complete_batch"] = FULL
    it.crew.finish()
    it.turn()
    assert not reserve.there
    backend.faults.clear()
    it.settle()  # no time passes
    assert it.ended() == {"a": "done"}


def test_while_the_disk_is_full_nothing_is_claimed_and_nothing_spins(stage, reserve, caplog):
    it, backend = full_at_the_end_of_a_run(stage, reserve)
    backend.faults.clear()
    it.after(5.0)
    assert it.ended() == {"a": "done"}  # by what the reserve has left
    it.send("b")
    for _ in range(20):
        assert it.after(5.0) > 0
    assert it.in_flight() == []
    assert len([record for record in caplog.records if "the disk is full" in record.message]) == 1
    reserve.refusal = None
    it.after(5.0)
    assert it.in_flight() == ["b"]
    assert reserve.there


def test_a_heartbeat_that_finds_no_room_gets_the_reserve(stage, reserve):
    it = stage()
    it.open()
    lease = it.stream._desk.lease
    beats: list[float] = []

    def heartbeat() -> None:
        if reserve.there:
            raise FULL
        beats.append(it.now)

    lease.heartbeat = heartbeat
    it.after(5.0)
    assert beats == [it.now]


def test_room_that_a_result_does_not_fit_into_is_not_enough_to_claim(stage, reserve):
    it, _ = full_at_the_end_of_a_run(stage, reserve)
    reserve.refusal = None
    it.send("b")
    it.after(30.0)
    assert it.in_flight() == ["a"]
    assert not reserve.there


def test_a_reserve_that_can_never_be_made_keeps_nobody_from_claiming(stage, reserve):
    it, backend = full_at_the_end_of_a_run(stage, reserve)
    reserve.refusal = OSError(errno.EISDIR, "Is a directory")
    backend.faults.clear()
    it.send("b")
    it.after(5.0)
    it.after(5.0)
    assert it.in_flight() == ["b"]


@pytest.mark.parametrize("url", ["sqlite:./jobs.db", "postgresql://localhost/jobs"])
def test_a_store_without_a_reserve_goes_on_by_itself_when_there_is_room(stage, reserve, url):
    it = stage(tables={"store": {"url": url}})
    it.open()
    lease = it.stream._desk.lease
    working = lease.heartbeat

    def heartbeat() -> None:
        raise FULL

    lease.heartbeat = heartbeat
    reserve.refusal = OSError(errno.ENOSPC, "No space left on device")
    it.after(5.0)
    it.send("a")
    it.after(30.0)
    lease.heartbeat = working
    it.after(5.0)
    assert it.in_flight() == []  # a heartbeat fits, and hardly more
    assert it.row.said["trouble"].startswith("the disk is full")
    reserve.refusal = None
    it.after(5.0)
    assert it.in_flight() == ["a"]
    assert it.row.said["trouble"] == ""
    assert not reserve.there


def test_another_trouble_than_a_full_disk_leaves_the_reserve_alone(stage, reserve):
    backend = Faulty()
    it = stage(backend=backend)
    it.send("a")
    it.open()
    backend.faults["complete_batch"] = BackendUnavailable("the lock is held")
    it.crew.finish()
    it.after(30.0)
    assert reserve.there


# -- retention


def test_old_records_are_removed_in_portions_while_nothing_is_to_be_done(stage):
    it = stage(tables={"retention": {"done": "1s"}})
    for number in range(150):
        it.send(f"j{number}")
    jobs = it.backend.drain_available()
    for claimed in jobs:
        it.backend.complete(claimed.job.id, "done" if claimed.job.id != "j0" else "blocked")
    for name, end in list(it.backend.store.signals.items()):
        old = dataclasses.replace(end.completed_at, physical_time=end.completed_at.physical_time - 5000)
        it.backend.store.signals[name] = dataclasses.replace(end, completed_at=old)
    it.open()
    it.after(0.5)
    assert len(it.backend.completed()) == 50
    it.after(0.5)
    assert [job.id for job in it.backend.completed()] == ["j0"]
    assert it.after(1.0) > 1


def test_nothing_is_removed_while_that_makes_sending_slow(stage, monkeypatch):
    slow = True

    class Cost:
        rises = True

        def __init__(self, root: str) -> None: ...

        def has_risen(self) -> bool:
            return slow

    monkeypatch.setattr("workerpool.stream.housekeeping.CreationCost", Cost)
    it = stage(tables={"retention": {"done": "1s"}})
    it.send("a")
    it.backend.drain_available()
    it.backend.complete("a", "done")
    end = it.backend.store.signals["a"]
    old = dataclasses.replace(end.completed_at, physical_time=end.completed_at.physical_time - 5000)
    it.backend.store.signals["a"] = dataclasses.replace(end, completed_at=old)
    it.open()
    for _ in range(10):
        assert it.after(5.0) > 1
    assert [job.id for job in it.backend.completed()] == ["a"]
    slow = False
    it.after(10.0)
    assert it.backend.completed() == []


def test_nothing_is_removed_when_everything_is_to_be_kept(stage):
    backend = Faulty()
    backend.faults["prune"] = AssertionError("asked to remove records")
    it = stage(backend=backend)
    it.open()
    it.after(120.0)


def test_records_that_cannot_be_removed_stop_nothing(stage):
    backend = Faulty()
    backend.faults["prune"] = BackendUnavailable("the lock is held")
    it = stage(backend=backend, tables={"retention": {"blocked": "1s"}})
    it.open()
    it.after(1.0)
    it.send("a")
    it.settle()
    assert it.in_flight() == ["a"]


def test_an_idle_stream_is_woken_by_its_heartbeat_alone_and_looks_then(stage):
    backend = Faulty()
    it = stage(backend=backend, tables={"lease": {"ttl": "15s"}, "watch": {"scan": "30s"}})
    it.open()
    looks: list[float] = []
    backend.rescue_strays = lambda *_, **__: looks.append(it.now)
    begun, wakeups, wait = it.now, 0, it.settle()
    while it.now + wait <= begun + 300:
        wait = it.after(wait + 0.001)  # nobody is woken in time to the microsecond
        wakeups += 1
    assert wakeups == 59
    times = [begun, *looks]
    assert max(later - sooner for sooner, later in zip(times, looks, strict=False)) <= 30.0
    assert len(looks) <= 12


def test_a_look_is_not_hurried_by_wakeups_for_something_else(stage):
    backend = Faulty()
    it = stage(backend=backend, tables={"lease": {"ttl": "90s"}, "watch": {"scan": "30s"}})
    it.open()
    looks: list[float] = []
    backend.rescue_strays = lambda *_, **__: looks.append(it.now)
    for _ in range(100):
        it.after(1.0)
    assert len(looks) == 4


def test_a_lease_lost_in_any_part_is_the_end_of_all_of_them(stage):
    backend = Faulty()
    it = stage(backend=backend)
    it.send("a")
    it.open()
    backend.faults["rescue_strays"] = LeaseLost("encode", "pid-1-x")
    it.after(31.0)
    assert it.row.said["lease"] == "standby"
    assert it.with_worker() == []


class DeadHolder:
    """A predecessor that was running these jobs when it died."""

    workers = ()

    def __init__(self, *running: str) -> None:
        self._running = running

    def running_jobs(self) -> list[tuple[str, str]]:
        return [(job_id, "encode-1 died while it ran this job") for job_id in self._running]

    def blameless_runs(self) -> list[str]:
        return ["job z was cut short"]


def _won_from(owner: str, tenure: Tenure) -> Callable[[float], bool]:
    """A win of the lease from a dead holder."""
    win = tenure._try

    def won(now: float) -> bool:
        result = win(now)
        tenure.predecessor = owner
        return result

    return won


def test_what_a_take_over_blocks_is_counted(stage, monkeypatch):
    store = MemoryStore()
    it = stage(store=store, max_crashes=1)
    it.send("poison")
    MemoryBackend(store=store).drain_available("encode")
    monkeypatch.setattr(succession, "find", lambda *_: DeadHolder("poison"))
    monkeypatch.setattr(it.stream._desk.tenure, "_try", _won_from("pid-1-dead", it.stream._desk.tenure))
    it.open()
    assert it.ended() == {"poison": "blocked"}
    assert it.row.sums["jobs_blocked"] == 1


def test_what_was_cut_short_and_is_charged_nothing_is_said_once_however_often_the_take_over_is_tried(
    stage, monkeypatch, caplog
):
    backend = Faulty()
    it = stage(backend=backend)
    monkeypatch.setattr(succession, "find", lambda *_: DeadHolder())
    monkeypatch.setattr(it.stream._desk.tenure, "_try", _won_from("pid-1-dead", it.stream._desk.tenure))
    backend.faults["reclaim_in_flight"] = BackendUnavailable("the lock is held")
    it.open()
    for _ in range(5):
        it.after(2.0)
    backend.faults.clear()
    it.after(2.0)
    assert it.stream._desk.taken_over
    assert [record.message for record in caplog.records if "cut short" in record.message] == ["job z was cut short"]


def test_a_take_over_of_a_free_stream_is_said_too(stage, caplog):
    caplog.set_level("INFO")
    store = MemoryStore()
    first = MemoryBackend(store=store).lease("encode")
    assert first.try_acquire()
    it = stage(store=store)
    it.open()
    assert (it.row.sums.get("held_ms", 0), it.row.board.sweeps) == (0, 0)
    first.release()
    it.after(1.0)
    assert "stream encode is worked here from now on" in caplog.text
    assert it.row.sums["held_ms"] > 0
    assert it.row.board.sweeps == 1


def test_the_board_says_what_keeps_a_stream_from_its_work_and_since_when(stage):
    backend = Faulty()
    it = stage(backend=backend)
    it.open()
    assert it.row.said.get("trouble", "") == ""
    it.send("a")
    it.after(0.1)
    backend.faults["complete_batch"] = failed = WriteFailed("a name that is long", "no")
    failed.__cause__ = OSError(errno.EIO, "Input/output error")
    it.crew.finish()
    it.settle()
    assert it.row.said["trouble"] == "settling jobs: Input/output error"
    since = it.row.sums["trouble_ms"]
    assert since > 0
    it.after(5.0)
    assert it.row.sums["trouble_ms"] == since
    del backend.faults["complete_batch"]
    it.after(5.0)
    assert (it.row.said["trouble"], it.row.sums["trouble_ms"]) == ("", 0)


def test_a_full_disk_is_trouble_until_there_is_room(stage):
    it = stage()
    it.open()
    it.stream._desk.full = True
    it.turn()
    assert it.row.said["trouble"].startswith("the disk is full")


def test_who_has_lost_its_lease_has_no_trouble_with_what_it_was_doing(stage):
    backend = Faulty()
    it = stage(backend=backend)
    it.open()
    it.send("a")
    it.after(0.1)
    backend.faults["complete_batch"] = BackendUnavailable("the lock is held")
    it.crew.finish()
    it.settle()
    assert it.row.said["trouble"]
    it.stream._lose_lease(LeaseLost("encode", "pid-1-thief"))
    it.turn()
    assert it.row.said["trouble"] == ""
