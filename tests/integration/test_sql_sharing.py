"""Many consumers of one stream in PostgreSQL: each job once, only the dead one's claims are rescued, late ones fenced.

A consumer on another host is one with another folder for alive files: neither can see whether the other lives.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import sqlalchemy as sa

from queuekit import Completion, JobNotFound, LeaseLost, ObservationStatus
from queuekit.backends.sql import leases, schema
from queuekit.backends.sql.backend import PersistenceKitBackend
from queuekit.backends.sql.leases import SqlLease
from queuekit.ids import JobID
from queuekit.job import Claimed
from queuekit.testing.jobs import ids_of, make_job, make_jobs, wait_until

STREAM = "encode"
DONE = ObservationStatus.DONE
SHORT = 0.6
"""A ttl that a test can wait for, in seconds; `LONG` is one that none does."""
LONG = 600.0


class Consumer:
    """One consumer of the stream: a backend of its own, and a lease."""

    def __init__(self, backend: PersistenceKitBackend, ttl: float, exclusive: bool) -> None:
        self.backend = backend
        self.lease: SqlLease = backend.lease(STREAM, ttl, exclusive=exclusive)

    def join(self) -> Consumer:
        assert self.lease.try_acquire()
        return self

    def drain(self, limit: int | None = None) -> list[Claimed]:
        return self.backend.drain_available(STREAM, limit, lease=self.lease)

    def complete(self, *job_ids: str) -> int:
        return self.backend.complete_batch([Completion(JobID(each), DONE) for each in job_ids], lease=self.lease)

    def beats_until(self, fact: Callable[[], bool]) -> None:
        """Beat as a pool does until something is true."""
        beat_at = 0.0

        def beaten() -> bool:
            nonlocal beat_at
            if time.monotonic() >= beat_at:
                self.lease.heartbeat()
                beat_at = time.monotonic() + self.lease.heartbeat_interval
            return fact()

        wait_until(beaten)


Make = Callable[..., Consumer]


@pytest.fixture
def consumer(postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Make a consumer on a host of that name."""
    with ExitStack() as stack:

        def make(host: str = "here", ttl: float = LONG, *, exclusive: bool = False) -> Consumer:
            folder = tmp_path / host
            folder.mkdir(mode=0o700, exist_ok=True)
            monkeypatch.setattr(leases, "alive_folder", lambda: str(folder))
            backend = PersistenceKitBackend(postgres_url)
            stack.callback(backend.close)
            return Consumer(backend, ttl, exclusive)

        yield make


@pytest.fixture
def dead(consumer: Make) -> Callable[..., str]:
    """A consumer in a process that was killed: it had joined, and claimed so many jobs. Returns its owner."""

    def die(host: str = "here", claims: int = 0, ttl: float = LONG) -> str:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                mine = consumer(host, ttl).join()
                mine.drain(claims)
                os.write(writing, mine.lease.owner.encode())
                os.kill(os.getpid(), signal.SIGKILL)
            finally:
                os._exit(1)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            owner = pipe.read()
        assert os.WIFSIGNALED(os.waitpid(pid, 0)[1])
        return owner

    return die


def claimed_by(consumer: Consumer, job_id: str) -> str | None:
    """The tag of the lease under which a job is in flight."""
    wanted = sa.select(schema.jobs.c.claimed_by).where(schema.jobs.c.id == job_id, schema.is_status(schema.CUR))
    return consumer.backend.database.run(lambda connection: connection.scalar(wanted), write=False)


# -- sharing


def test_two_consumers_work_a_stream_each_job_once(consumer: Make) -> None:
    one, two = consumer("a").join(), consumer("b").join()
    one.backend.write_batch(make_jobs(400, STREAM))
    taken: list[str] = []

    def work(who: Consumer) -> None:
        while claimed := who.drain(7):
            ids = ids_of(claimed)
            taken.extend(ids)
            assert who.complete(*ids) == len(ids)

    threads = [threading.Thread(target=work, args=(each,)) for each in (one, two)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == len(set(taken)) == len(one.backend.completed(STREAM)) == 400


def test_who_shares_a_stream_can_be_told(consumer: Make) -> None:
    one, two = consumer("a").join(), consumer("b").join()
    told = one.backend.sharers(STREAM)
    assert set(told) == {one.lease.owner, two.lease.owner}
    assert all(0 <= age < LONG for age in told.values())
    assert one.backend.sharers("other") == {}
    two.lease.release()
    assert set(one.backend.sharers(STREAM)) == {one.lease.owner}
    one.lease.release()
    consumer(exclusive=True).join()
    assert one.backend.sharers(STREAM) == {}


def test_each_consumer_has_its_own_number(consumer: Make) -> None:
    one, two = consumer("a").join(), consumer("b").join()
    assert one.lease.fence < two.lease.fence
    assert one.join().lease.fence < two.lease.fence


def test_what_another_has_claimed_is_not_mine_to_settle(consumer: Make) -> None:
    one, two = consumer("a").join(), consumer("b").join()
    one.backend.write(make_job("j", STREAM))
    one.drain()
    assert two.backend.reclaim_in_flight(STREAM, lease=two.lease) == 0
    assert two.backend.rescue_strays(STREAM, lease=two.lease) == 0
    assert two.backend.adopt("j", lease=two.lease) is None
    assert one.complete("j") == 1


def test_my_own_claims_survive_my_own_looks(consumer: Make) -> None:
    one = consumer().join()
    one.backend.write(make_job("j", STREAM))
    one.drain()
    assert one.backend.rescue_strays(STREAM, lease=one.lease) == 0
    one.lease.heartbeat()
    assert one.complete("j") == 1


# -- one that stops beating


def test_a_claim_of_mine_that_i_never_heard_of_comes_home(consumer: Make) -> None:
    """The connection was lost while a claim was committed: the rows say that it is mine, and I know of none."""
    one = consumer("a").join()
    one.backend.write_batch([make_job("known", STREAM), make_job("unheard", STREAM)])
    one.drain(1)
    two = consumer("a").join()
    two.lease.owner, two.lease.fence = one.lease.owner, one.lease.fence
    two.drain(1)
    assert one.backend.rescue_strays(STREAM, lease=one.lease) == 1
    assert ids_of(one.drain()) == ["unheard"]


def test_only_the_silent_ones_claims_are_rescued_and_it_settles_nothing_afterwards(consumer: Make) -> None:
    silent, other, third = (consumer(host, 5 * SHORT).join() for host in ("a", "b", "c"))  # no load silences the others
    silent.backend.write_batch([make_job(each, STREAM) for each in ("s1", "s2", "s3", "o1")])
    assert ids_of(silent.drain(3)) == ["s1", "s2", "s3"]
    assert ids_of(other.drain(1)) == ["o1"]
    third.beats_until(lambda: _beaten(other) and third.backend.pending_count(STREAM) == 3)
    assert claimed_by(other, "o1") == other.lease.tag
    assert set(ids_of(third.drain(2))) == {"s1", "s2"}
    for act in (
        silent.lease.verify,
        silent.lease.heartbeat,
        lambda: silent.complete("s1", "s3"),
        lambda: silent.backend.release("s2", lease=silent.lease),
        lambda: silent.backend.defer("s3", 0, lease=silent.lease),
        silent.drain,
    ):
        with pytest.raises(LeaseLost):
            act()
    assert (claimed_by(third, "s1"), claimed_by(third, "s2")) == (third.lease.tag, third.lease.tag)
    assert third.complete("s1", "s2") == 2
    assert other.complete("o1") == 1
    assert other.backend.pending_count(STREAM) == 1


def _beaten(consumer: Consumer) -> bool:
    consumer.lease.heartbeat()
    return True


def test_a_rescue_comes_within_the_ttl_and_one_heartbeat(consumer: Make) -> None:
    """Counted in beats of the rescuer, not in seconds: a silence of a ttl is seen at the next one."""
    silent, other = consumer("a", SHORT).join(), consumer("b", SHORT).join()
    silent.backend.write(make_job("j", STREAM))
    silent.drain()
    silent.lease.heartbeat()
    beats = 0
    while not other.backend.pending_count(STREAM):
        threading.Event().wait(other.lease.heartbeat_interval)
        other.lease.heartbeat()
        beats += 1
    assert (
        beats <= 5
    )  # of a third of a ttl each, or longer; the fourth is the one after the ttl, and clocks are not one


def test_whoever_claims_after_a_rescue_outranks_the_one_that_was_given_up(consumer: Make) -> None:
    """Whoever joined first and last: the number of the later run of a job is the greater one."""
    other = consumer("b", SHORT).join()
    silent = consumer("a", SHORT).join()
    other.backend.write(make_job("j", STREAM))
    silent.drain()
    first = silent.lease.run_number(9, 1)
    other.beats_until(lambda: other.backend.pending_count(STREAM) == 1)
    assert ids_of(other.drain()) == ["j"]
    second = other.lease.run_number(1, 1)
    assert first < second
    with pytest.raises(LeaseLost):
        silent.lease.heartbeat()
    assert silent.lease.run_number(10, 1) < second
    other.lease.release()
    silent.join()
    silent.backend.reclaim_in_flight(STREAM, lease=silent.lease)
    assert ids_of(silent.drain()) == ["j"]
    assert second < silent.lease.run_number(1, 1)


def test_a_second_attempt_by_another_has_the_greater_number(consumer: Make) -> None:
    one, two = consumer("a").join(), consumer("b").join()
    one.backend.write(make_job("j", STREAM))
    two.drain()
    first = two.lease.run_number(50, 1)
    two.backend.defer("j", 0, lease=two.lease)
    assert ids_of(one.drain()) == ["j"]
    assert first < one.lease.run_number(1, 2)


def test_the_fenced_one_can_join_again_and_its_old_claims_stay_lost(consumer: Make) -> None:
    silent, other = consumer("a", SHORT).join(), consumer("b", SHORT).join()
    silent.backend.write(make_job("j", STREAM))
    silent.drain()
    first = silent.lease.fence
    other.beats_until(lambda: other.backend.pending_count(STREAM) == 1)
    with pytest.raises(LeaseLost):
        silent.lease.heartbeat()
    assert silent.join().lease.fence > first
    assert silent.complete("j") == 0
    with pytest.raises(JobNotFound):
        silent.backend.release("j", lease=silent.lease)
    assert ids_of(silent.drain()) == ["j"]
    assert silent.complete("j") == 1


def test_an_outcome_of_before_is_not_accepted_after_joining_again_though_it_is_claimed_again(consumer: Make) -> None:
    """The loser drops every claim that it had, also when it wins the lease again."""
    silent, other = consumer("a", SHORT).join(), consumer("b", SHORT).join()
    silent.backend.write(make_job("j", STREAM))
    silent.drain()
    other.beats_until(lambda: other.backend.pending_count(STREAM) == 1)
    assert ids_of(other.drain()) == ["j"]
    silent.join()
    assert silent.complete("j") == 0
    for act in (silent.backend.release, lambda job_id, lease: silent.backend.defer(job_id, 0, lease=lease)):
        with pytest.raises(JobNotFound):
            act("j", lease=silent.lease)
    assert other.complete("j") == 1


def test_one_consumers_session_is_not_anothers_to_end(consumer: Make) -> None:
    one, two = consumer("a").join(), consumer("b").join()
    one.backend.write(make_job("j", STREAM))
    (claimed,) = one.drain()
    assert two.backend.complete_session(claimed.session_id, DONE, lease=two.lease) == 0
    assert two.complete("j") == 0
    assert one.backend.complete_session(claimed.session_id, DONE, lease=one.lease) == 1


def test_a_waiter_that_could_not_look_either_does_not_take_an_exclusive_lease(
    consumer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same for one that stands by: what it sees after an outage is as old for the holder as for itself."""
    monkeypatch.setattr(leases, "_STANDBY_PAUSE", 0.0)
    holder, waiter = consumer("a", SHORT, exclusive=True).join(), consumer("b", SHORT, exclusive=True)
    assert not waiter.lease.try_acquire()
    threading.Event().wait(SHORT * 1.5)
    assert not waiter.lease.try_acquire()
    holder.lease.heartbeat()
    fresh = consumer("c", SHORT, exclusive=True)
    assert not fresh.lease.try_acquire()


def test_whoever_could_not_look_either_blames_nobody_for_an_outage(consumer: Make) -> None:
    """The server was away for longer than a ttl: all are late, nobody is dead, nothing may run twice."""
    one, two = consumer("a", SHORT).join(), consumer("b", SHORT).join()
    one.backend.write(make_job("j", STREAM))
    one.drain()
    for each in (one, two):
        each.lease.heartbeat()
    threading.Event().wait(SHORT * 1.5)
    two.lease.heartbeat()
    one.lease.heartbeat()
    assert two.backend.rescue_strays(STREAM, lease=two.lease) == 0
    assert one.complete("j") == 1


def test_one_that_is_in_the_middle_of_a_transaction_is_not_dead(consumer: Make) -> None:
    busy, other = consumer("a", SHORT).join(), consumer("b", SHORT).join()

    def slowly(connection: sa.Connection) -> None:
        busy.lease.check(connection)
        for _ in range(6):  # two ttls of the other's
            threading.Event().wait(other.lease.heartbeat_interval)
            other.lease.heartbeat()

    busy.backend.database.run(slowly)
    busy.lease.verify()


def test_a_clock_that_is_set_back_hides_no_dead_consumer(consumer: Make) -> None:
    silent, other = consumer("a", SHORT).join(), consumer("b", SHORT).join()
    silent.backend.write(make_job("j", STREAM))
    silent.drain()
    ahead = sa.update(schema.sessions).where(schema.sessions.c.id == silent.lease.tag)
    other.backend.database.run(
        lambda connection: connection.execute(ahead.values(beat=schema.sessions.c.beat + 3_600_000)).close()
    )
    other.beats_until(lambda: other.backend.pending_count(STREAM) == 1)


# -- one that died on this host


def test_a_dead_one_on_this_host_is_known_and_followed_at_once(consumer: Make, dead: Callable[..., str]) -> None:
    living = consumer().join()
    living.backend.write_batch(make_jobs(3, STREAM))
    owner = dead(claims=2)
    assert living.backend.in_flight_count(STREAM) == 2
    assert living.lease.holder() == owner
    living.lease.heartbeat()
    assert living.backend.pending_count(STREAM) == 3
    assert living.lease.holder() is None


def test_one_that_joins_follows_it_and_adopts_what_it_was_running(consumer: Make, dead: Callable[..., str]) -> None:
    first = consumer("elsewhere").join()
    first.backend.write_batch([make_job(each, STREAM) for each in ("a", "b", "c")])
    owner = dead(claims=2)
    assert ids_of(first.drain()) == ["c"]
    heir = consumer()
    assert heir.lease.holder() == owner
    heir.join()
    adopted = heir.backend.adopt("a", lease=heir.lease)
    assert adopted is not None
    assert heir.backend.adopt("a", lease=heir.lease) is None
    assert heir.backend.adopt("c", lease=heir.lease) is None
    heir.backend.defer("a", 0, error="it died", crashed=True, lease=heir.lease)
    assert heir.backend.reclaim_in_flight(STREAM, lease=heir.lease) == 1
    assert claimed_by(heir, "c") == first.lease.tag
    assert set(ids_of(heir.drain())) == {"a", "b"}
    assert heir.complete("a", "b") == 2


def test_a_dead_one_on_another_host_is_waited_for(consumer: Make, dead: Callable[..., str]) -> None:
    living = consumer("here").join()
    living.backend.write(make_job("j", STREAM))
    dead("elsewhere", claims=1)
    living.lease.heartbeat()
    assert living.lease.holder() is None
    assert living.backend.adopt("j", lease=living.lease) is None
    assert living.backend.rescue_strays(STREAM, lease=living.lease) == 0
    assert living.backend.in_flight_count(STREAM) == 1


# -- exclusive and shared


def test_an_exclusive_holder_keeps_sharers_out_and_sharers_keep_it_out(consumer: Make) -> None:
    alone, one, two = consumer("a", exclusive=True).join(), consumer("b"), consumer("c")
    assert not one.lease.try_acquire()
    assert one.lease.is_held_by_other()
    alone.lease.release()
    one.join()
    two.join()
    assert alone.lease.is_held_by_other()
    assert not alone.lease.try_acquire()
    one.lease.release()
    assert not alone.lease.try_acquire()
    two.lease.release()
    assert not alone.lease.is_held_by_other()
    assert alone.lease.try_acquire()


def test_an_exclusive_holder_follows_dead_sharers_at_once(consumer: Make, dead: Callable[..., str]) -> None:
    alone = consumer(exclusive=True)
    dead()
    assert not alone.lease.is_held_by_other()
    assert alone.lease.try_acquire()


def test_a_sharer_follows_a_dead_exclusive_holder_at_once(consumer: Make) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            consumer(exclusive=True).join()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    heir = consumer()
    assert not heir.lease.is_held_by_other()
    heir.join()


def test_a_sharer_that_was_silent_cannot_go_on_beside_an_exclusive_holder(consumer: Make) -> None:
    silent, alone = consumer("a", SHORT).join(), consumer("b", SHORT, exclusive=True)
    alone.backend.write(make_job("j", STREAM))
    wait_until(alone.lease.try_acquire)
    with pytest.raises(LeaseLost):
        silent.lease.heartbeat()
    with pytest.raises(LeaseLost):
        silent.drain()


# -- leaving, and no lease


def test_what_one_leaves_behind_is_rescued_by_the_others(consumer: Make) -> None:
    one, two = consumer("a").join(), consumer("b").join()
    one.backend.write_batch([make_job("mine", STREAM), make_job("theirs", STREAM)])
    one.drain(1)
    two.drain(1)
    one.lease.release()
    with pytest.raises(LeaseLost):
        one.complete("mine")
    assert two.backend.rescue_strays(STREAM, lease=two.lease) == 1
    assert ids_of(two.drain()) == ["mine"]
    assert two.complete("mine", "theirs") == 2


def test_a_rescue_takes_nothing_that_was_claimed_anew(consumer: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two look through the queue at a time: what the one brings home and a third claims is not taken from the third."""
    one, two, third = (consumer(host).join() for host in "abc")
    one.backend.write(make_job("j", STREAM))
    left = consumer("d").join()
    left.drain()
    left.lease.release()
    looked, go_on = threading.Event(), threading.Event()
    nobodys = leases.SharedLease.abandoned

    def slowly(self: leases.SharedLease, connection: sa.Connection) -> sa.ColumnElement[bool]:
        if self is one.lease:
            looked.set()
            go_on.wait(5)
        return nobodys(self, connection)

    monkeypatch.setattr(leases.SharedLease, "abandoned", slowly)
    rescues: list[int] = []
    thread = threading.Thread(target=lambda: rescues.append(one.backend.rescue_strays(STREAM, lease=one.lease)))
    thread.start()
    looked.wait(5)
    assert two.backend.rescue_strays(STREAM, lease=two.lease) == 1
    assert ids_of(third.drain()) == ["j"]
    go_on.set()
    thread.join()
    assert rescues == [0]
    assert third.complete("j") == 1


def test_a_shared_stream_is_not_drained_without_a_lease(consumer: Make) -> None:
    one, two = consumer("a").join(), consumer("b")
    one.backend.write(make_job("j", STREAM))
    for stream in (STREAM, None):
        with pytest.raises(LeaseLost):
            two.backend.drain_available(stream)
    one.lease.release()
    assert ids_of(two.backend.drain_available(STREAM)) == ["j"]
