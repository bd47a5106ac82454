"""One stream shared by the pools of several hosts, one PostgreSQL: hosts die, are cut off, stand still and come back.

The long forms measure, and print what they saw.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from databases import DatabaseEstate
from hosts import Host, Network, all_runs, check_repeats, settled_by
from pool import Pool, is_dead, until
from postgres import Server

from queuekit.job import Delivery

TTL = 2.0
BEAT = TTL / 3
STREAMS = {"encode": {"exclusive": False, "workers": 1}}
WAITING = {"do": "wait", "file": "$HOST/gate"}


class Site:
    """A network with a server on it."""

    def __init__(self, network: Network, server: Server, folder: Path) -> None:
        self.server = server
        self._network = network
        self._folder = folder
        self._url = f"postgresql://postgres@{network.address}/postgres"

    def hosts(self, count: int = 3, *, ttl: float = TTL, **keys: Any) -> list[Host]:
        """So many hosts; `keys`: of the stream that all of them work."""
        streams = {"encode": {**STREAMS["encode"], **keys}}
        tables = {"lease": {"ttl": f"{ttl}s"}, "shutdown": {"soft": "2s", "hard": "4s"}}
        return [self._network.host(self._folder / name, self._url, streams, **tables) for name in "abcdef"[:count]]


@pytest.fixture
def site(own_postgres: Callable[..., Server], tmp_path: Path) -> Iterator[Site]:
    with Network() as network:
        yield Site(network, own_postgres(listen_addresses=network.address), tmp_path)


def started(hosts: list[Host]) -> list[Pool]:
    pools = [host.start() for host in hosts]
    for pool in pools:
        until(pool.is_working(), "a pool")
    return pools


def runs_of(hosts: list[Host], job_id: str) -> int:
    return len(all_runs(hosts).get(job_id, ()))


def check_each_once(hosts: list[Host], jobs: list[str]) -> None:
    hosts[0].check_settled(jobs)
    assert {job: len(runs) for job, runs in all_runs(hosts).items()} == dict.fromkeys(jobs, 1)


def test_three_hosts_work_one_stream_each_job_once(site: Site) -> None:
    hosts = site.hosts(3)
    pools = started(hosts)
    jobs = hosts[0].send_many(150, do="sleep", seconds=0.02)
    until(hosts[0].finished(*jobs), "the ends")
    assert all(host.runs() for host in hosts)
    assert [pool.stop() for pool in pools] == [0, 0, 0]
    check_each_once(hosts, jobs)


def test_the_claims_of_a_host_that_died_are_worked_by_the_others_and_no_others(site: Site) -> None:
    hosts = site.hosts(3)
    first, *others = hosts
    (pool,) = started([first])
    running = first.send(**WAITING)
    until(first.started(running), "the run")
    behind = [first.send(**WAITING) for _ in range(3)]
    rest = started(others)
    first.lose_power(pool)
    for host in others:
        host.gate.touch()
    until(first.finished(running, *behind), "the ends")
    assert runs_of(hosts, running) == 2
    assert {runs_of(hosts, job) for job in behind} == {1}
    assert {Delivery.of(job).attempt for job in first.queue.completed()} == {0}
    assert [each.stop() for each in rest] == [0, 0]
    first.check_settled([running, *behind])


def cut_off(host: Host, pool: Pool) -> AbstractContextManager[None]:
    return host.cut_off()


def stopped(host: Host, pool: Pool) -> AbstractContextManager[None]:
    return host.stopped(pool)


@pytest.mark.parametrize("away", [cut_off, stopped])
def test_a_host_that_comes_back_settles_nothing_that_was_rescued(
    site: Site, away: Callable[[Host, Pool], AbstractContextManager[None]]
) -> None:
    hosts = site.hosts(3)
    first, *others = hosts
    (pool,) = started([first])
    job = first.send(**WAITING)
    until(first.started(job), "the run")
    worker = pool.worker_pid()
    rest = started(others)
    with away(first, pool):
        until(lambda: runs_of(hosts, job) == 2, "the rescue")
        first.gate.touch()
    until(lambda: "workers are killed" in pool.log, "its notice of the loss")
    until(lambda: is_dead(worker), "the worker's end")
    until(pool.is_working(), "its joining again")
    assert first.status_of(job) is None
    for host in others:
        host.gate.touch()
    until(first.finished(job), "its end")
    assert settled_by(first, job) in {each.stream_pid() for each in rest}
    late = first.send_many(30)
    until(first.finished(*late), "the work afterwards")
    assert [each.stop() for each in (pool, *rest)] == [0, 0, 0]
    assert {Delivery.of(each).attempt for each in first.queue.completed()} == {0}
    first.check_settled([job, *late])
    assert check_repeats(hosts, settling=1.0) == 1


@pytest.mark.parametrize("away", [cut_off, stopped])
def test_a_stream_that_one_host_works_moves_to_another_and_the_first_settles_nothing(
    site: Site, away: Callable[[Host, Pool], AbstractContextManager[None]]
) -> None:
    """C48 and C85 for an exclusive stream: the one that could not renew its lease stands by when it is back."""
    hosts = site.hosts(2, exclusive=True)
    first, second = hosts
    (pool,) = started([first])
    job = first.send(**WAITING)
    until(first.started(job), "the run")
    worker = pool.worker_pid()
    other = second.start()
    until(lambda: (row := other.row()) is not None and row.lease == "standby", "the other's standing by")
    with away(first, pool):
        until(second.started(job), "the other's run")
        first.gate.touch()
    until(lambda: "workers are killed" in pool.log, "its notice of the loss")
    until(lambda: is_dead(worker), "the worker's end")
    assert first.status_of(job) is None
    second.gate.touch()
    until(first.finished(job), "its end")
    assert settled_by(first, job) == other.stream_pid()
    assert other.stop() == 0
    late = first.send()
    until(first.finished(late), "the work of the first one, which had stood by")
    assert pool.stop() == 0
    assert check_repeats(hosts, settling=1.0) == 1
    first.check_settled([job, late])


def test_after_an_outage_of_the_server_longer_than_the_ttl_nobody_is_taken_for_dead(site: Site) -> None:
    ttl = 6.0
    hosts = site.hosts(2, ttl=ttl)
    pools = started(hosts)
    running = [host.send(**WAITING) for host in hosts for _ in range(3)]
    until(lambda: all(host.runs() for host in hosts), "a run on each")
    site.server.pause()
    begun = time.monotonic()
    until(lambda: time.monotonic() > begun + 1.4 * ttl, "the outage")
    site.server.resume()
    for host in hosts:
        host.gate.touch()
    until(hosts[0].finished(*running), "the ends")
    assert all("workers are killed" not in pool.log for pool in pools)
    assert [pool.stop() for pool in pools] == [0, 0]
    check_each_once(hosts, running)


def test_a_pool_that_died_on_this_host_is_followed_by_its_neighbour_which_charges_what_ran(
    postgres_url: str, tmp_path: Path
) -> None:
    """Two pools of one config on one host: what the dead one ran has one crash; what it had not started has none."""
    with DatabaseEstate(tmp_path, postgres_url, STREAMS, lease={"ttl": "60s"}) as estate:
        gate = estate.folder / "gate"
        first = estate.start()
        until(first.is_working(), "the first pool")
        running = estate.send(do="wait", file=str(gate))
        until(estate.started(running), "the run")
        waiting = estate.send_many(2)
        second = estate.start()
        until(second.is_working(), "the second pool")
        first.signal_tree(signal.SIGKILL)
        gate.touch()
        until(estate.finished(running, *waiting), "the ends", patience=45)
        assert second.stop() == 0
        crashes = {str(job.id): Delivery.of(job).crashes for job in estate.queue.completed()}
        assert crashes == {running: 1, **dict.fromkeys(waiting, 0)}
        assert "died on this host" in second.log


# -- the long forms


@pytest.mark.torture
@pytest.mark.timeout(600)
def test_throughput_grows_with_the_hosts(site: Site) -> None:
    """Handlers that wait for 50 ms, four at a time on each host."""
    hosts = site.hosts(3, workers=4)
    rates = []
    for count in (1, 2, 3):
        pools = started(hosts[:count])
        jobs = hosts[0].send_many(300 * count, do="sleep", seconds=0.05)
        until(hosts[0].finished(jobs[0]), "the first end")
        begun = time.monotonic()
        until(lambda: not hosts[0].queue.pending_count() + hosts[0].queue.in_flight_count(), "the ends", patience=120)
        rates.append(len(jobs) / (time.monotonic() - begun))
        assert [pool.stop() for pool in pools] == [0] * count
    print(f"jobs/s with 1, 2, 3 hosts: {', '.join(f'{rate:.0f}' for rate in rates)}")
    assert rates[0] * 1.5 < rates[1]
    assert rates[1] * 1.2 < rates[2]


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("rounds", [30])
def test_a_stream_survives_whatever_happens_to_its_hosts(site: Site, dice: Random, rounds: int) -> None:
    hosts = site.hosts(3, workers=2)
    pools = dict(zip(hosts, started(hosts), strict=True))
    sent: list[str] = []
    delays: list[float] = []
    for number in range(rounds):
        sent += hosts[0].send_many(200, do="sleep", seconds=0.03)
        host = dice.choice(hosts)
        until(lambda pool=pools[host]: pool.is_working()(), "its work")
        what = ["lose power", "cut off", "stop"][number % 3]
        begun = time.monotonic()
        if what == "lose power":
            host.lose_power(pools[host])
            left = in_flight_of(host, hosts)
            until(lambda left=left: all(runs_of(hosts, job) > 1 or hosts[0].status_of(job) for job in left), "a rescue")
            delays.append(time.monotonic() - begun)
            pools[host] = host.start()
        else:
            with cut_off(host, pools[host]) if what == "cut off" else stopped(host, pools[host]):
                until(lambda begun=begun: time.monotonic() > begun + dice.uniform(0.5, 3) * TTL, "the outage")
    for pool in pools.values():
        until(pool.is_working(), "all at work")
    until(lambda: not hosts[0].queue.pending_count() + hosts[0].queue.in_flight_count(), "the ends", patience=120)
    assert [pool.stop() for pool in pools.values()] == [0, 0, 0]
    hosts[0].check_settled(sent)
    repeats = check_repeats(hosts, settling=1.0)
    attempts = {Delivery.of(job).attempt for job in hosts[0].queue.completed()}
    print(f"{rounds} rounds, {len(sent)} jobs, {repeats} repeats; attempts charged: {attempts}")
    print(f"rescued and started anew after {max(delays):.2f} s at most; the ttl and a beat are {TTL + BEAT:.2f} s")
    assert attempts == {0}


def in_flight_of(host: Host, hosts: list[Host]) -> list[str]:
    """What a dead host was running: started there last, and not ended."""
    return [job for job, runs in all_runs(hosts).items() if runs[-1][0] is host and runs[-1][1].end is None]
