"""What systemd is told when, by a pool whose streams do what the test says."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any, cast

import pytest

from workerpool.board import Board
from workerpool.config_file import load_config
from workerpool.master.desk import Desk, Member, Workplace
from workerpool.master.service import Service
from workerpool.master.state import Ending, StreamState
from workerpool.systemd import Notifier
from workerpool.trouble import Trouble

TTL, INTERVAL = 15.0, 30.0


@dataclasses.dataclass
class FakeView:
    """A stream's row."""

    pid: int = 0
    heartbeat_ns: int = 0
    jobs_done: int = 0
    jobs_blocked: int = 0


class FakeBoard:
    """Rows that the test writes."""

    def __init__(self) -> None:
        self.rows: dict[int, FakeView] = {1: FakeView(), 2: FakeView()}

    def view(self, index: int) -> FakeView:
        return self.rows[index]


class FakeNotifier:
    """What was sent. `is_heard`, `watchdog_interval`: as of the real one."""

    def __init__(self) -> None:
        self.is_heard = True
        self.watchdog_interval: float | None = INTERVAL
        self.sent: list[str] = []

    def ready(self) -> None:
        self.sent.append("ready")

    def reloading(self) -> None:
        self.sent.append("reloading")

    def feed(self) -> None:
        self.sent.append("fed")

    def status(self, text: str) -> None:
        self.sent.append(text)


@dataclasses.dataclass
class FakeChild:
    """A stream process that lives."""

    pid: int


class Scene:
    """A pool of two streams, and its service. `now`: the time."""

    def __init__(self, **notifier: Any) -> None:
        self.now = 1000.0
        self.board, self.notifier = FakeBoard(), FakeNotifier()
        for name, value in notifier.items():
            setattr(self.notifier, name, value)
        streams = {name: {"handler": "h:f"} for name in ("encode", "dreaming")}
        pool = load_config({"store": {"url": "dir:/nowhere"}, "streams": streams})
        assert pool.lease.ttl == TTL
        place = Workplace(
            board=cast("Board", self.board),
            be_stream=lambda *_: 0,
            be_reporter=None,
            reload=None,
            move_on=lambda: cast("Board", self.board),
            keep=(),
            notifier=cast("Notifier", self.notifier),
        )
        self.desk = Desk(pool=pool, place=place, selector=cast("Any", None), burst=None)
        for row, config in enumerate(pool.streams, start=1):
            trouble = Trouble("starting it", logging.getLogger("test.service"))
            self.desk.members[config.name] = Member(config, StreamState(config.name), row, 1, trouble)
        self.service = Service(self.desk)

    def start(self, *names: str) -> None:
        for name in names or ("encode", "dreaming"):
            member = self.desk.members[name]
            member.child = cast("Any", FakeChild(pid=100 + member.first_row))
            member.state.began(self.now)

    def beat(self, *names: str) -> None:
        for name in names or ("encode", "dreaming"):
            member = self.desk.members[name]
            row = self.board.rows[member.first_row]
            row.pid, row.heartbeat_ns = 100 + member.first_row, int(self.now * 1e9)

    def state(self, name: str) -> StreamState:
        return self.desk.members[name].state

    def act(self, after: float = 0.0) -> list[str]:
        """Let time pass and the service act; returns what it sent."""
        self.now += after
        before = len(self.notifier.sent)
        self.service.act(self.now)
        return self.notifier.sent[before:]


def without_watchdog() -> Scene:
    return Scene(watchdog_interval=None)


def test_it_is_ready_once_when_every_stream_is() -> None:
    it = without_watchdog()
    it.start()
    assert "ready" not in it.act()
    it.state("encode").became_ready()
    assert "ready" not in it.act()
    it.state("dreaming").became_ready()
    assert "ready" in it.act()
    assert "ready" not in it.act(100)


@pytest.mark.parametrize("trouble", ["bad handler", "died", "cannot be forked"])
def test_a_stream_that_has_failed_once_is_not_waited_for(trouble: str) -> None:
    it = without_watchdog()
    it.start()
    it.state("encode").became_ready()
    if trouble == "died":
        it.state("dreaming").died(it.now)
    elif trouble == "cannot be forked":
        it.desk.members["dreaming"].starting.met(OSError("no room for a process"), it.now)
    else:
        it.state("dreaming").failed()
    assert it.act() == ["ready", "2 streams, 0 jobs done, failing: dreaming"]


def test_a_pool_that_ends_before_it_was_ready_never_says_so() -> None:
    it = without_watchdog()
    it.start()
    it.desk.ending = Ending.GRACEFUL
    for name in ("encode", "dreaming"):
        it.state(name).became_ready()
    assert it.act() == ["stopping, 2 streams, 0 jobs done"]


def test_a_reload_is_framed_and_only_of_a_pool_that_is_ready() -> None:
    it = without_watchdog()
    with it.service.reloading():
        pass
    assert it.notifier.sent == []
    for name in ("encode", "dreaming"):
        it.state(name).became_ready()
    it.act()
    it.notifier.sent.clear()
    with it.service.reloading():
        assert it.notifier.sent == ["reloading"]
    assert it.notifier.sent == ["reloading", "ready"]


def test_the_status_line_counts_and_is_not_said_at_each_turn() -> None:
    it = without_watchdog()
    it.start()
    assert it.act() == ["2 streams, 0 jobs done"]
    it.board.rows[1].jobs_done, it.board.rows[2].jobs_done, it.board.rows[2].jobs_blocked = 1000, 204, 3
    assert it.act(1) == []
    assert it.act(5) == ["2 streams, 1,204 jobs done, 3 blocked"]
    assert it.act(5) == []


def test_a_stream_that_begins_to_fail_is_said_at_once() -> None:
    it = without_watchdog()
    it.start()
    it.act()
    it.state("encode").failed()
    assert it.act() == ["2 streams, 0 jobs done, failing: encode"]


def test_that_it_stops_is_in_the_status_line_at_once() -> None:
    it = without_watchdog()
    it.start()
    it.act()
    it.desk.ending = Ending.GRACEFUL
    assert it.act() == ["stopping, 2 streams, 0 jobs done"]


def test_a_dismissed_stream_is_no_part_of_it() -> None:
    it = without_watchdog()
    it.start()
    it.state("dreaming").dismissed = True
    it.state("encode").became_ready()
    assert it.act() == ["ready", "1 stream, 0 jobs done"]


def test_without_a_watchdog_no_pool_is_woken() -> None:
    it = without_watchdog()
    it.start()
    it.act()
    assert it.service.next() is None


def test_without_a_manager_nothing_is_sent() -> None:
    it = Scene(is_heard=False, watchdog_interval=None)
    for name in ("encode", "dreaming"):
        it.state(name).became_ready()
    assert it.act() == []


# -- the watchdog


def test_the_watchdog_is_fed_each_interval_while_every_stream_beats() -> None:
    it = Scene()
    it.start()
    it.beat()
    assert "fed" in it.act()
    assert it.service.next() == it.now + INTERVAL
    assert "fed" not in it.act(INTERVAL - 1)
    it.beat()
    assert "fed" in it.act(1)


def test_it_is_not_fed_while_one_stream_is_silent_and_again_soon_after_it_beats() -> None:
    it = Scene()
    it.start()
    it.beat()
    it.act()
    it.now += INTERVAL + 1
    it.beat("encode")
    assert "fed" not in it.act()
    assert it.service.next() is not None
    assert cast("float", it.service.next()) - it.now < INTERVAL / 2
    it.beat("dreaming")
    assert "fed" in it.act(cast("float", it.service.next()) - it.now)


def test_a_process_that_is_not_on_the_board_yet_has_as_long_from_its_start() -> None:
    it = Scene()
    it.start()
    assert "fed" in it.act()
    assert "fed" in it.act(INTERVAL)
    assert "fed" not in it.act(INTERVAL)


def test_the_row_of_a_process_before_this_one_says_nothing_about_it() -> None:
    it = Scene()
    it.start()
    it.beat()
    it.board.rows[1].pid = 7
    it.board.rows[1].heartbeat_ns = 0
    assert "fed" in it.act()


def test_a_stream_that_waits_to_be_started_again_is_the_masters_business() -> None:
    it = Scene()
    it.start("encode")
    it.state("dreaming").died(it.now)
    it.now += 10 * INTERVAL
    it.beat("encode")
    assert "fed" in it.act()


def test_a_pool_that_ends_is_fed_whoever_is_silent() -> None:
    it = Scene()
    it.start()
    it.desk.ending = Ending.GRACEFUL
    assert "fed" in it.act(10 * INTERVAL)
