"""Stream processes that die again and again: what the master says of them, and how a burst with them ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from workerpool.board import DIED, Board, Kind
from workerpool.config_file import load_config
from workerpool.master.bursting import Bursting
from workerpool.master.desk import Desk, Workplace
from workerpool.master.hearing import Hearing
from workerpool.master.moving import Moving
from workerpool.master.state import FRUITLESS_DEATHS, FRUITLESS_SECONDS, Burst
from workerpool.master.stopping import Stopping
from workerpool.master.streams import Streams
from workerpool.process import Channel, Exit
from workerpool.stream.process import say_why
from workerpool.systemd import Notifier


class NoSelector:
    """Nobody waits here."""

    def register(self, *_: object) -> None: ...

    def unregister(self, *_: object) -> None: ...


class Pool:
    """A master's parts with one stream whose processes are played: each has a channel, and ends as the test says."""

    def __init__(self, board: Board, *, burst: bool) -> None:
        self.now = 0.0
        pool = load_config({"store": {"url": "dir:/nowhere"}, "streams": {"encode": {"handler": "h:f"}}})
        place = Workplace(
            board=board,
            be_stream=lambda *_: 0,
            be_reporter=None,
            reload=None,
            move_on=lambda: board,
            keep=(),
            notifier=Notifier(),
        )
        selector = cast("Any", NoSelector())
        self.desk = Desk(pool=pool, place=place, selector=selector, burst=Burst() if burst else None)
        self.stopping = Stopping(self.desk, lambda: None)
        self.hearing = Hearing(self.desk, self.stopping, Moving(self.desk), standby=True)
        self.streams = Streams(self.desk, self.hearing.listen)
        self.streams.add(pool.streams[0])
        self.bursting = Bursting(self.desk, self.stopping)
        self.member = self.desk.members["encode"]

    def live_and_die(self, how: Callable[[Channel], object] = lambda _: None, *, code: int = 1) -> None:
        """One process: `how` is what it still does with its channel."""
        self.member.channel, theirs = Channel.pair()
        self.member.state.began(self.now)
        self.now += FRUITLESS_SECONDS
        self.desk.place.board.row(1).take(kind=Kind.STREAM, stream="encode")
        theirs.send({"t": "ready"})
        how(theirs)
        theirs.flush()
        self.streams.bury(self.member, Exit(pid=1, code=code, signal=None, max_rss=0), self.now)
        theirs.close()


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    made = Board.create(str(tmp_path), 12)
    yield made
    made.remove()


def with_an_error(channel: Channel) -> None:
    say_why(channel, AttributeError("first\nno attribute 'frob'"))


def test_the_board_and_the_log_tell_the_error_that_a_stream_process_died_of(board, caplog):
    pool = Pool(board, burst=False)
    pool.live_and_die(with_an_error)
    assert (board.view(1).state, board.view(1).error) == (
        DIED,
        "exited with code 1: AttributeError: no attribute 'frob'",
    )
    assert "AttributeError: no attribute 'frob'; started again" in caplog.text
    pool.live_and_die(code=9)
    assert board.view(1).error == "exited with code 9"


def test_an_error_that_is_longer_than_a_row_is_cut_and_a_master_that_is_gone_keeps_nobody_from_ending(board):
    pool = Pool(board, burst=False)
    pool.live_and_die(lambda channel: say_why(channel, ValueError("x" * 10_000_000)))
    assert board.view(1).error.endswith("ValueError: " + "x" * 188)
    ours, theirs = Channel.pair()
    theirs.close()
    say_why(ours, ValueError("unheard"))
    assert not ours.wants_write
    ours.close()


def test_a_burst_whose_stream_dies_again_and_again_ends_by_itself_and_says_so(board, caplog):
    caplog.set_level(logging.INFO)
    pool = Pool(board, burst=True)
    for _ in range(FRUITLESS_DEATHS):
        pool.bursting.act(1.0)
        assert not pool.desk.is_ending
        pool.live_and_die(with_an_error)
    pool.bursting.act(1.0)
    assert pool.desk.is_ending
    assert pool.stopping.exit_code() == 1
    assert "dies again and again: encode" in caplog.text


def test_a_burst_whose_stream_dies_between_jobs_goes_on(board):
    pool = Pool(board, burst=True)
    for _ in range(3 * FRUITLESS_DEATHS):
        pool.live_and_die(lambda _: board.row(1).add(jobs_retried=1))
        pool.bursting.act(1.0)
    assert not pool.desk.is_ending


def test_a_burst_waits_for_a_store_that_is_away(board):
    pool = Pool(board, burst=True)
    for _ in range(3 * FRUITLESS_DEATHS):
        pool.live_and_die(lambda channel: say_why(channel, OSError("no route"), lacks_store=True), code=3)
        pool.bursting.act(1.0)
    assert not pool.desk.is_ending


def test_a_burst_that_is_stopped_while_its_stream_keeps_dying_has_failed(board):
    pool = Pool(board, burst=True)
    for _ in range(FRUITLESS_DEATHS):
        pool.live_and_die()
    assert pool.stopping.exit_code() == 1
