"""A paused stream: it claims nothing, what it has is run, it keeps its lease, and it does not spin."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from stage import Stage

from workerpool.pauses import Pause

PAUSE = Pause(stream="encode", since_ms=1)


class Notice:
    """What a look at the pauses finds. `error`: what it raises instead; `looks`: how many there were."""

    def __init__(self) -> None:
        self.pause: Pause | None = None
        self.error: OSError | None = None
        self.looks = 0

    def find(self, directory: str, stream: str) -> Pause | None:
        assert (directory, stream) == ("/nowhere", "encode")
        self.looks += 1
        if self.error is not None:
            raise self.error
        return self.pause


@pytest.fixture
def notice(monkeypatch: pytest.MonkeyPatch) -> Notice:
    made = Notice()
    monkeypatch.setattr("workerpool.stream.pausing.pauses.find", made.find)
    return made


@pytest.fixture
def it(notice: Notice) -> Iterator[Stage]:
    made = Stage()
    yield made
    made.close()


@pytest.fixture
def burst(notice: Notice) -> Iterator[Stage]:
    made = Stage(burst=True)
    yield made
    made.close()


def test_a_stream_that_is_paused_at_the_start_claims_nothing_and_holds_its_lease(it: Stage, notice: Notice) -> None:
    notice.pause = PAUSE
    it.send("a")
    it.open()
    assert it.in_flight() == []
    assert it.row.said["lease"] == "held"
    assert it.settle() > 0


def test_resumed_and_told_so_it_claims_at_once(it: Stage, notice: Notice) -> None:
    notice.pause = PAUSE
    it.send("a")
    it.open()
    notice.pause = None
    it.order(t="look")
    it.settle()
    assert it.with_worker() == [["a"]]


def test_paused_in_the_middle_it_finishes_what_runs_and_claims_no_more(it: Stage, notice: Notice) -> None:
    it.send("a", "b", "c")
    it.open()
    it.crew.run()
    begun = it.in_flight()
    notice.pause = PAUSE
    it.order(t="look")
    it.settle()
    while it.with_worker():
        it.crew.finish()
        it.settle()
    assert it.ended() == dict.fromkeys(begun, "done")
    assert it.backend.pending_count("encode") == 3 - len(begun)
    assert it.backend.pending_count("encode") > 0


def test_a_pause_that_nobody_told_of_is_seen_with_the_next_slow_look(it: Stage, notice: Notice) -> None:
    it.open()
    notice.pause = PAUSE
    it.after(it.pool.watch.scan)
    it.send("a")
    it.settle()
    assert it.in_flight() == []
    notice.pause = None
    it.after(it.pool.watch.scan)
    assert it.in_flight() == ["a"]


def test_it_is_not_looked_at_each_turn(it: Stage, notice: Notice) -> None:
    it.open()
    before = notice.looks
    for _ in range(3):
        it.send(f"j{it.now}")
        it.after(1)
        it.crew.finish()
    assert notice.looks == before


def test_while_it_cannot_be_told_at_the_start_nothing_is_claimed(it: Stage, notice: Notice) -> None:
    notice.error = OSError(5, "I/O error")
    it.send("a")
    it.turn()
    it.crew.become_ready()
    assert it.settle() > 0
    assert it.in_flight() == []
    notice.error = None
    it.after(10)
    assert it.in_flight() == ["a"]


@pytest.mark.parametrize("paused", [True, False])
def test_while_it_cannot_be_told_later_it_stays_as_it_was(it: Stage, notice: Notice, paused: bool) -> None:
    notice.pause = PAUSE if paused else None
    it.open()
    notice.error = OSError(5, "I/O error")
    it.order(t="look")
    it.settle()
    it.send("a")
    it.order(t="confirm", n=1)  # whatever makes it look for jobs
    it.settle()
    assert it.in_flight() == ([] if paused else ["a"])


def test_a_burst_does_not_wait_for_what_a_paused_stream_has_not_claimed(burst: Stage, notice: Notice) -> None:
    notice.pause = PAUSE
    burst.send("a", "b")
    burst.open()
    burst.order(t="confirm", n=1)
    burst.settle()
    assert burst.words("idle")[-1] == {"t": "idle", "n": 1, "handled": 0, "left": 2}
    assert burst.in_flight() == []


def test_a_burst_waits_for_what_a_paused_stream_runs(burst: Stage, notice: Notice) -> None:
    burst.send("a")
    burst.open()
    burst.crew.run()
    notice.pause = PAUSE
    burst.order(t="look")
    burst.order(t="confirm", n=1)
    burst.settle()
    burst.after(5)
    assert burst.words("idle") == []
    burst.crew.finish()
    burst.settle()
    burst.after(5)
    assert burst.words("idle")[-1] == {"t": "idle", "n": 1, "handled": 1}


def test_each_turn_is_a_sign_of_life(it: Stage) -> None:
    it.open()
    before = it.row.sums["beats"]
    it.turn(3)
    assert it.row.sums["beats"] == before + 3
