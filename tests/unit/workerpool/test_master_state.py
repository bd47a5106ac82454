"""What the master decides: who is started when, when a burst is over, how a stop ends."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workerpool.master.state import (
    FRUITLESS_DEATHS,
    FRUITLESS_SECONDS,
    Burst,
    Condition,
    Ending,
    StreamState,
    all_failed_at_start,
    next_ending,
)


def running(name: str, now: float = 0.0) -> StreamState:
    state = StreamState(name)
    state.began(now)
    state.became_ready()
    return state


# -- starting again


def test_a_stream_is_started_at_once_and_not_twice():
    state = StreamState("encode")
    assert state.to_start(0.0)
    state.began(0.0)
    assert not state.to_start(99.0)


def test_one_that_had_been_ready_is_started_again_at_once_and_then_ever_later():
    state, now, delays = running("encode"), 0.0, []
    for _ in range(9):
        state.died(now)
        delays.append(state.start_at - now)
        assert state.to_start(state.start_at)
        now = state.start_at
        state.began(now)
        state.became_ready()
    assert delays[0] == 0.0
    assert delays == sorted(delays)
    assert delays[-1] == 2.0


def test_one_that_never_gets_ready_waits_for_up_to_half_a_minute():
    state, now = StreamState("encode"), 0.0
    for _ in range(12):
        state.began(now)
        state.died(now)
        now = state.start_at
    assert state.start_at - now == 0.0
    state.died(now)
    assert state.start_at - now == 30.0


def test_one_that_lived_long_has_a_clean_record():
    state = running("encode")
    for _ in range(5):
        state.died(0.0)
        state.began(0.0)
        state.became_ready()
    state.died(10.0)
    assert state.start_at == 10.0


def test_a_dismissed_stream_is_not_started_and_one_that_is_wanted_again_is_at_once():
    state = running("encode")
    state.dismissed = state.told_to_end = True
    state.ended(5.0)
    assert not state.to_start(99.0)
    state.dismissed = False
    assert state.to_start(5.0)
    state.began(5.0)
    assert not state.told_to_end


def test_a_failed_import_does_not_make_a_ready_stream_failing():
    state = running("encode")
    state.failed()
    assert state.condition is Condition.READY
    fresh = StreamState("other")
    fresh.began(0.0)
    fresh.failed()
    assert fresh.condition is Condition.FAILING


def failing(name: str) -> StreamState:
    state = StreamState(name)
    state.began(0.0)
    state.failed()
    return state


def test_the_pool_ends_only_when_every_stream_failed_at_its_start():
    assert all_failed_at_start([failing("a"), failing("b")])
    assert not all_failed_at_start([failing("a"), running("b")])
    assert not all_failed_at_start([failing("a"), StreamState("b")])
    assert not all_failed_at_start([])


def test_a_stream_that_was_dismissed_does_not_keep_a_failed_pool_alive():
    gone = running("gone")
    gone.dismissed = True
    assert all_failed_at_start([failing("a"), gone])
    assert not all_failed_at_start([gone])


# -- endings


def test_every_interrupt_asks_harder_and_a_term_only_once():
    assert next_ending(Ending.NOT, interrupt=False) is Ending.GRACEFUL
    assert next_ending(Ending.GRACEFUL, interrupt=False) is Ending.GRACEFUL
    assert next_ending(Ending.KILL_WORKERS, interrupt=False) is Ending.KILL_WORKERS
    asked = [Ending.NOT]
    for _ in range(4):
        asked.append(next_ending(asked[-1], interrupt=True))
    assert asked[1:] == [Ending.GRACEFUL, Ending.KILL_WORKERS, Ending.KILL_ALL, Ending.KILL_ALL]


# -- dying again and again


def die_often(state: StreamState, times: int, settled: int = 0, lived: float = FRUITLESS_SECONDS, **why: bool) -> None:
    for _ in range(times):
        state.died(state.started + lived, settled, **why)
        state.began(state.start_at)


def test_a_stream_whose_processes_die_again_and_again_is_hopeless_until_one_gets_something_done():
    state = running("encode")
    die_often(state, FRUITLESS_DEATHS - 1)
    assert not state.is_hopeless
    die_often(state, 1)
    assert state.is_hopeless
    die_often(state, 1, settled=1)
    assert not state.is_hopeless


def test_a_stream_is_not_given_up_for_deaths_that_follow_each_other_at_once_nor_for_a_few_slow_ones():
    state = running("encode")
    die_often(state, 2, lived=0.0)
    assert state.started == 0.1
    die_often(state, FRUITLESS_DEATHS - 2, lived=0.0)
    assert not state.is_hopeless
    while state.started < FRUITLESS_SECONDS:
        die_often(state, 1, lived=0.0)
    die_often(state, 1, lived=0.0)
    assert state.is_hopeless


def test_a_stream_that_settles_jobs_between_its_deaths_is_never_hopeless():
    state = running("encode")
    for settled in range(1, 10 * FRUITLESS_DEATHS):
        die_often(state, 1, settled=settled)
        assert not state.is_hopeless


def test_a_store_that_is_away_makes_no_stream_hopeless():
    state = running("encode")
    die_often(state, 10 * FRUITLESS_DEATHS, for_want_of_store=True)
    assert not state.is_hopeless


def test_a_burst_waits_for_no_hopeless_stream_until_that_says_that_it_is_idle():
    burst, a, hopeless = Burst(), running("a"), running("hopeless")
    die_often(hopeless, FRUITLESS_DEATHS)
    burst.said_idle(a, 1, None)
    number = burst.next_question([a, hopeless])
    burst.said_idle(a, 1, number)
    assert burst.is_over([a, hopeless])
    burst.said_idle(hopeless, 0, None)
    assert not burst.is_over([a, hopeless])


# -- a burst


def test_nothing_is_asked_before_every_stream_has_said_that_it_is_idle():
    burst, a, b = Burst(), running("a"), running("b")
    burst.said_idle(a, 3, None)
    assert burst.next_question([a, b]) is None
    burst.said_idle(b, 0, None)
    assert burst.next_question([a, b]) == 1
    assert burst.next_question([a, b]) is None
    assert not burst.is_over([a, b])


def test_it_is_over_when_all_say_the_same_once_more():
    burst, a, b = Burst(), running("a"), running("b")
    burst.said_idle(a, 3, None)
    burst.said_idle(b, 0, None)
    number = burst.next_question([a, b])
    burst.said_idle(a, 3, number)
    assert not burst.is_over([a, b])
    burst.said_idle(b, 0, number)
    assert burst.is_over([a, b])


def test_it_asks_again_when_a_job_was_handled_in_between():
    burst, a, b = Burst(), running("a"), running("b")
    burst.said_idle(a, 3, None)
    burst.said_idle(b, 0, None)
    burst.next_question([a, b])
    burst.said_idle(a, 4, 1)
    burst.said_idle(b, 0, 1)
    assert not burst.is_over([a, b])
    assert burst.next_question([a, b]) == 2


def test_it_asks_again_after_a_process_died_also_when_the_new_one_has_handled_as_many():
    burst, a = Burst(), running("a")
    burst.said_idle(a, 0, None)
    assert burst.next_question([a]) == 1
    a.died(1.0)
    assert burst.next_question([a]) is None
    a.began(1.0)
    burst.said_idle(a, 0, None)
    assert not burst.is_over([a])
    assert burst.next_question([a]) == 2
    burst.said_idle(a, 0, 2)
    assert burst.is_over([a])


def test_a_stream_that_cannot_be_worked_is_not_waited_for():
    burst, a, broken = Burst(), running("a"), failing("broken")
    burst.said_idle(a, 1, None)
    number = burst.next_question([a, broken])
    burst.said_idle(a, 1, number)
    assert burst.is_over([a, broken])


def test_a_burst_of_which_nothing_can_be_worked_is_over():
    burst, broken = Burst(), failing("broken")
    assert not burst.is_over([broken])
    assert burst.next_question([broken]) is not None
    assert burst.is_over([broken])


@dataclasses.dataclass
class _Process:
    """A model of a stream process: the jobs in its store, what it runs, and what it knows of the burst."""

    state: StreamState
    jobs: list[list[str]]  # each job: the streams that it submits one job to when it ends
    running: list[str] | None = None
    handled: int = 0
    question: int | None = None
    inbox: list[int] = dataclasses.field(default_factory=list)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_burst_ends_and_never_while_a_job_is_outstanding(data):
    names = ["a", "b", "c"][: data.draw(st.integers(1, 3))]
    burst = Burst()
    model = {name: _Process(running(name), []) for name in names}
    for name in names:
        model[name].jobs = data.draw(st.lists(st.lists(st.sampled_from(names), max_size=2), max_size=2))
    words: list[tuple[str, int, int, int | None]] = []  # on their way to the master: of which start, handled, question
    deaths = data.draw(st.integers(0, 2))

    def step(name: str, what: str) -> None:
        nonlocal deaths
        process = model[name]
        if what == "claim" and process.running is None and process.jobs:
            process.running = process.jobs.pop()
        elif what == "end" and process.running is not None:
            for target in process.running:  # durable before the reply
                model[target].jobs.append([])
            process.running, process.handled = None, process.handled + 1
        elif what == "listen" and process.inbox:
            process.question = process.inbox.pop(0)
        elif what == "look" and process.running is None and not process.jobs:
            words.append((name, process.state.starts, process.handled, process.question))
        elif what == "die" and deaths:
            deaths -= 1
            if process.running is not None:
                process.jobs.append(process.running)
            words[:] = [word for word in words if word[0] != name]
            process.running, process.handled, process.question, process.inbox = None, 0, None, []
            process.state.died(0.0)
            process.state.began(0.0)

    def judge() -> bool:
        if words:
            name, starts, handled, question = words.pop(0)
            assert starts == model[name].state.starts
            burst.said_idle(model[name].state, handled, question)
        states = [process.state for process in model.values()]
        number = burst.next_question(states)
        if number is not None:
            for process in model.values():
                process.inbox.append(number)
            return False
        return burst.is_over(states)

    acts = st.sampled_from(["claim", "end", "listen", "look", "die", "judge"])
    over = False
    for _ in range(data.draw(st.integers(0, 60))):
        what = data.draw(acts)
        if what == "judge":
            over = judge()
        else:
            step(data.draw(st.sampled_from(names)), what)
        if over:
            break
    rounds = 0
    while not over:
        rounds += 1
        assert rounds < 100, "it never ends"
        for name in names:
            for what in ("claim", "end", "listen", "look"):
                step(name, what)
        for _ in range(len(names)):
            over = over or judge()
    assert not any(process.jobs or process.running is not None for process in model.values())


@pytest.mark.parametrize("handled", [0, 7])
def test_an_old_answer_does_not_confirm_a_new_question(handled):
    burst, a, b = Burst(), running("a"), running("b")
    burst.said_idle(a, handled, None)
    burst.said_idle(b, 1, None)
    burst.next_question([a, b])
    burst.said_idle(a, handled, 1)
    burst.said_idle(b, 2, 1)
    assert burst.next_question([a, b]) == 2
    burst.said_idle(b, 2, 2)
    assert not burst.is_over([a, b])
