"""A pool whose configuration names other streams again and again: each is worked, with no restart."""

from __future__ import annotations

import signal
from collections.abc import Callable

from pool import Estate, until


def test_streams_that_come_and_go_use_the_board_again(make_estate: Callable[..., Estate]) -> None:
    """T20: sixty-four rows of the board are there for streams that were not known at the start."""
    estate = make_estate({"encode": {}})
    pool = estate.start()
    sent = [estate.send()]
    until(estate.finished(*sent), "the first job")
    for number in range(14):
        name = f"guest-{number}"
        estate.configure({"encode": {}, name: {"workers": 1 + number % 2}})
        pool.tell(signal.SIGHUP)
        sent.append(estate.send(name))
        until(estate.finished(*sent), f"a job of {name}")
        estate.configure({"encode": {}})
        pool.tell(signal.SIGHUP)
        until(lambda name=name: f"stream {name} has ended" in pool.log, f"the end of {name}")
    assert {row.stream for row in pool.rows() if row.stream.startswith("guest")} >= {"guest-13"}
    assert pool.stop() == 0
    assert "no room" not in pool.log
    estate.check_settled(sent)
