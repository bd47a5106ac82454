"""Which job goes to which worker, and who is started and replaced when: decisions only, so facts are made up."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stream_config import make_config

from queuekit.ids import SessionID
from queuekit.job import Claimed
from queuekit.testing.jobs import make_job
from workerpool.outcome import Result
from workerpool.stream.state import Roster, Slot, SlotState, Unit

MIB = 2**20


def roster(**values: Any) -> Roster:
    """A roster whose workers are all ready since 0."""
    made = Roster(make_config(**values))
    start_all(made)
    return made


def start_all(made: Roster, now: float = 0.0) -> None:
    for slot in made.to_start(now):
        slot.began(now, made.generation, batched=made.batched, most_jobs=made.most_jobs(0.0))
        slot.became_ready(now)


def claims(*ids: str) -> list[Claimed]:
    return [Claimed(job=make_job(each), session_id=SessionID("s")) for each in ids]


def unit(*ids: str) -> Unit:
    return Unit(claims(*ids))


def give(made: Roster, now: float = 0.0, *, only_full: bool = False) -> list[tuple[int, list[str]]]:
    """Assign and give: `(slot index, job ids)` of each unit."""
    chosen = made.assign(only_full=only_full)
    for slot, each in chosen:
        slot.give(each, now)
    return [(slot.index, each.job_ids) for slot, each in chosen]


def waiting(made: Roster) -> list[list[str]]:
    return [each.job_ids for each in made.waiting]


def ready_slot(index: int = 0, *, mean: float | None = None) -> Slot:
    slot = Slot(index)
    slot.began(0.0, 0, batched=False)
    slot.became_ready(0.0)
    slot.mean_seconds = mean
    return slot


# -- how much may be with a worker


def test_nothing_is_given_to_a_worker_that_is_not_ready():
    slot = Slot(0)
    assert slot.window(False) == 0
    slot.began(0.0, 0, batched=False)
    assert slot.window(False) == 0
    slot.became_ready(0.0)
    assert slot.window(False) == 1
    slot.dismiss()
    assert slot.window(False) == 0


@pytest.mark.parametrize(("mean", "window"), [(10.0, 1), (0.02, 1), (0.0029, 10), (0.0, 64)])
def test_the_shorter_the_runs_the_more_wait_in_the_pipe(mean, window):
    assert ready_slot(mean=mean).window(False) == window


def test_a_batch_is_never_queued_behind_another():
    slot = Slot(0)
    slot.began(0.0, 0, batched=True)
    slot.became_ready(0.0)
    slot.mean_seconds = 0.0
    assert slot.window(True) == 1


def test_a_worker_made_for_single_jobs_gets_no_batch_and_the_other_way_round():
    made = roster(batch_size=1)
    made.resize(make_config(batch_size=10))
    made.add(claims("a", "b"))
    assert made.room == 0
    assert made.assign() == []
    back = roster(batch_size=10)
    back.resize(make_config())
    back.add(claims("a"))
    assert back.assign() == []


def test_the_time_of_a_run_is_learned_and_smoothed():
    slot = ready_slot()
    first, second = unit("a"), unit("b")
    slot.give(first, 1.0)
    slot.give(second, 2.0)
    assert slot.head_since == 1.0
    slot.ended(first, 1.0, 5.0)
    assert (slot.mean_seconds, slot.head_since, slot.ran) == (1.0, 5.0, 1)
    slot.ended(second, 2.0, 6.0)
    assert (slot.mean_seconds, slot.ran, slot.busy) == (pytest.approx(1.2), 2, False)


# -- claiming and assigning


def test_jobs_go_to_the_worker_with_the_shortest_queue():
    made = roster(workers=2)
    made.slots[0].mean_seconds = made.slots[1].mean_seconds = 0.009  # three at a time
    made.slots[0].give(unit("x"), 0.0)
    made.add(claims("a", "b", "c", "d", "e", "f"))
    assert give(made) == [(1, ["a"]), (0, ["b"]), (1, ["c"]), (0, ["d"]), (1, ["e"])]
    assert waiting(made) == [["f"]]


@given(st.lists(st.floats(0, 1) | st.none(), min_size=1, max_size=5), st.integers(0, 200), st.integers(1, 7))
def test_what_there_is_room_for_is_all_assigned_and_no_window_is_exceeded(means, wanted, batch_size):
    made = roster(workers=len(means), batch_size=batch_size)
    for slot, mean in zip(made.slots, means, strict=True):
        slot.mean_seconds = mean
    count = min(made.room, wanted)
    made.add(claims(*(f"j{number}" for number in range(count))))
    given_ids = [job_id for _, ids in give(made) for job_id in ids]
    assert given_ids == [f"j{number}" for number in range(count)]
    assert all(len(slot.units) <= slot.window(made.batched) for slot in made.slots)


def test_there_is_no_room_for_what_would_only_wait_here():
    made = roster(workers=2, batch_size=3)
    assert made.room == 6
    made.add(claims("a", "b", "c", "d"))
    assert made.room == 2
    give(made)
    assert made.room == 0


def test_a_batch_fills_up_with_what_is_claimed_later():
    made = roster(batch_size=3)
    made.add(claims("a"))
    made.add(claims("b"))
    assert made.growing is not None
    assert give(made, only_full=True) == []
    made.add(claims("c", "d"))
    assert waiting(made) == [["a", "b", "c"], ["d"]]
    assert give(made, only_full=True) == [(0, ["a", "b", "c"])]


def test_a_batch_that_is_not_full_starts_when_it_has_waited_enough():
    made = roster(batch_size=3)
    made.add(claims("a"))
    assert give(made) == [(0, ["a"])]
    assert made.growing is None


def test_what_was_with_a_worker_is_never_mixed_with_new_jobs():
    made = roster(batch_size=4)
    made.add(claims("a", "b"))
    ((slot, given_unit),) = made.assign()
    slot.give(given_unit, 0.0)
    made.first(slot.exited(1.0, blameless=True))
    made.add(claims("c"))
    assert waiting(made) == [["a", "b"], ["c"]]


def test_two_jobs_of_one_id_are_not_in_one_batch():
    made = roster(batch_size=4)
    made.add(claims("a", "b", "a"))
    assert waiting(made) == [["a", "b"], ["a"]]


def test_units_that_come_back_keep_their_order_before_what_waits():
    made = roster()
    made.add(claims("c"))
    made.first([unit("a"), unit("b")])
    assert waiting(made) == [["a"], ["b"], ["c"]]


def test_a_smaller_batch_size_cuts_what_waits_and_what_comes_back():
    made = roster(batch_size=4)
    made.add(claims("a", "b", "c"))
    made.resize(make_config(batch_size=2))
    assert waiting(made) == [["a", "b"], ["c"]]
    made.first([unit("x", "y", "z")])
    assert waiting(made) == [["x", "y"], ["z"], ["a", "b"], ["c"]]


# -- halving


@given(st.integers(2, 65), st.data())
def test_halving_a_batch_that_fails_leaves_the_bad_job_alone(size, data):
    bad = f"j{data.draw(st.integers(0, size - 1))}"
    pending, alone = [unit(*(f"j{number}" for number in range(size)))], []
    passed = set()
    for _ in itertools.count():
        if not pending:
            break
        each = pending.pop()
        if bad not in each.job_ids:
            passed.update(each.job_ids)
        elif len(each.claims) == 1:
            alone.append(each.job_ids)
        else:
            pending += each.halves()
    assert alone == [[bad]]
    assert passed == {f"j{number}" for number in range(size)} - {bad}


def test_halves_are_not_filled_up_again():
    made = roster(batch_size=4)
    made.first(unit("a", "b", "c").halves())
    made.add(claims("d"))
    assert waiting(made) == [["a", "b"], ["c"], ["d"]]


# -- calling back


def test_only_what_is_behind_the_running_job_is_behind_it():
    slot = ready_slot()
    for each in ("a", "b", "c"):
        slot.give(unit(each), 0.0)
    assert [each.job_ids for each in slot.behind("a")] == [["b"], ["c"]]
    assert slot.behind("c") == []
    assert slot.behind("gone") == []


def test_units_are_stuck_only_behind_a_long_run_and_beside_a_worker_that_could_take_them():
    made = roster(workers=2)
    busy, other = made.slots
    busy.give(unit("a"), 1.0)
    busy.give(unit("b"), 1.0)
    made.look_at_runs(1.05)
    assert made.stuck() == []
    assert made.next_stuck() == pytest.approx(1.1)
    made.look_at_runs(2.0)
    assert made.stuck() == [busy]
    other.give(unit("c"), 2.0)
    made.look_at_runs(2.05)
    assert made.stuck() == [busy]
    made.look_at_runs(3.0)
    assert (made.stuck(), made.next_stuck()) == ([], None)


def test_a_worker_in_a_long_run_gets_nothing_more_until_that_has_ended():
    made = roster(workers=2)
    busy, other = made.slots
    for slot in made.slots:
        slot.mean_seconds = 0.0001
    long = unit("a")
    busy.give(long, 0.0)
    made.look_at_runs(1.0)
    made.add(claims("b", "c", "d"))
    assert {slot.index for slot, _ in made.assign()} == {other.index}
    busy.ended(long, 1.0, 1.0)
    made.look_at_runs(1.0)
    made.add(claims("e"))
    assert made.free > 0
    assert len(made.assign()) == 1


# -- starting and replacing workers


def test_a_worker_that_had_been_ready_is_started_again_at_once_and_then_ever_later():
    made = roster()
    (slot,) = made.slots
    delays = []
    now = 0.0
    for _ in range(8):
        slot.exited(now, blameless=False)
        delays.append(slot.start_at - now)
        now = slot.start_at
        start_all(made, now)
    assert delays[0] == 0.0
    assert delays == sorted(delays)
    assert delays[-1] == 2.0


def test_a_worker_that_never_gets_ready_is_tried_ever_more_slowly_also_after_better_times():
    made = roster()
    (slot,) = made.slots
    slot.exited(0.0, blameless=True)
    delays = []
    now = 0.0
    for _ in range(10):
        slot.began(now, 0, batched=False)
        slot.exited(now, blameless=False)
        delays.append(slot.start_at - now)
        now = slot.start_at
    assert delays == sorted(delays)
    assert delays[-1] == 30.0


def test_a_worker_that_lived_long_or_was_told_to_go_has_a_clean_record():
    made = roster()
    (slot,) = made.slots
    for _ in range(5):
        slot.exited(0.0, blameless=False)
        start_all(made, slot.start_at)
    slot.exited(slot.started + 10.0, blameless=False)
    assert slot.failures == 1
    start_all(made, slot.start_at)
    slot.exited(100.0, blameless=True)
    assert (slot.failures, slot.start_at) == (0, 100.0)


def test_a_slot_waits_for_its_time_and_says_when_that_is():
    made = Roster(make_config())
    (slot,) = made.slots
    assert made.to_start(0.0) == [slot]
    slot.began(0.0, 0, batched=False)
    assert (made.to_start(9.0), made.next_start()) == ([], None)
    slot.exited(1.0, blameless=False)
    due = made.next_start()
    assert due is not None
    assert due > 1.0
    assert made.to_start(due - 0.001) == []
    assert made.to_start(due) == [slot]


def test_what_a_dead_worker_had_comes_back_in_order():
    slot = ready_slot()
    for each in ("a", "b"):
        slot.give(unit(each), 0.0)
    assert [each.job_ids for each in slot.exited(1.0, blameless=False)] == [["a"], ["b"]]
    assert not slot.busy


def test_a_worker_that_was_told_to_go_while_it_imported_does_not_become_ready():
    slot = Slot(0)
    slot.began(0.0, 0, batched=False)
    slot.dismiss()
    slot.became_ready(1.0)
    assert slot.state is SlotState.RETIRING


def test_an_empty_place_cannot_be_dismissed():
    slot = Slot(0)
    slot.dismiss()
    assert slot.state is SlotState.EMPTY


def test_a_reload_replaces_the_workers_one_at_a_time():
    made = roster(workers=3)
    made.resize(make_config(workers=3))
    replaced = []
    while (slot := made.to_retire()) is not None:
        slot.dismiss()
        assert made.to_retire() is None
        slot.exited(1.0, blameless=True)
        assert made.to_retire() is None, "the next one has to wait until this one's successor is ready"
        slot.began(1.0, made.generation, batched=False)
        assert made.to_retire() is None
        slot.became_ready(1.0)
        replaced.append(slot.index)
    assert sorted(replaced) == [0, 1, 2]


def test_a_reload_to_a_broken_handler_costs_one_worker_only():
    made = roster(workers=3)
    made.resize(make_config(workers=3))
    slot = made.to_retire()
    assert slot is not None
    slot.dismiss()
    slot.exited(1.0, blameless=True)
    for _ in range(3):
        slot.began(slot.start_at, made.generation, batched=False)
        slot.exited(slot.start_at, blameless=False)
        assert made.to_retire() is None


def test_a_reload_tries_at_once_what_could_not_be_started():
    made = Roster(make_config())
    (slot,) = made.slots
    for _ in range(9):
        slot.began(slot.start_at, 0, batched=False)
        slot.exited(slot.start_at, blameless=False)
    made.resize(make_config())
    assert made.to_start(0.0) == [slot]


def test_surplus_workers_are_dismissed_and_not_started_again():
    made = roster(workers=3)
    made.resize(make_config(workers=1))
    gone = []
    for _ in range(2):
        slot = made.to_retire()
        assert slot is not None
        slot.dismiss()
        slot.exited(1.0, blameless=True)
        gone.append(slot.index)
    assert sorted(gone) == [1, 2]
    assert made.to_start(99.0) == []
    assert made.next_start() is None


def test_a_dismissed_worker_that_is_wanted_again_is_started_again():
    made = roster(workers=2)
    made.resize(make_config(workers=1))
    slot = made.to_retire()
    assert slot is not None
    assert slot.index == 1
    slot.dismiss()
    made.resize(make_config(workers=2))
    slot.exited(1.0, blameless=True)
    assert made.to_start(1.0) == [slot]


def test_new_slots_are_started_when_more_workers_are_wanted():
    made = roster(workers=1)
    made.resize(make_config(workers=3))
    assert [slot.index for slot in made.to_start(0.0)] == [1, 2]


def test_a_worker_is_replaced_after_its_last_allowed_job():
    made = roster(max_jobs=2)
    (slot,) = made.slots
    for each in ("a", "b"):
        assert made.to_retire() is None
        one = unit(each)
        slot.give(one, 0.0)
        slot.ended(one, 0.1, 0.1)
    assert made.to_retire() is slot
    slot.dismiss()
    slot.exited(1.0, blameless=True)
    start_all(made, 1.0)
    assert made.to_retire() is None


def test_workers_that_started_together_may_run_different_numbers_of_jobs_and_none_more_than_max_jobs():
    several, alone = roster(workers=4, max_jobs=100), roster(workers=1, max_jobs=100)
    dice = [number / 100 for number in range(100)]
    assert {several.most_jobs(rand) for rand in dice} == set(range(80, 101))
    assert {alone.most_jobs(rand) for rand in dice} == {100}
    assert {roster(workers=4).most_jobs(rand) for rand in dice} == {0}
    assert min(roster(workers=4, max_jobs=1).most_jobs(rand) for rand in dice) == 1


def test_each_worker_goes_after_its_own_number_of_jobs():
    made = Roster(make_config(workers=2, max_jobs=10))
    for slot, rand in zip(made.slots, (0.0, 0.99), strict=True):
        slot.began(0.0, 0, batched=False, most_jobs=made.most_jobs(rand))
        slot.became_ready(0.0)
        slot.ran = 8
    assert made.to_retire() is made.slots[1]


# -- memory


def run_one(slot: Slot) -> None:
    one = unit("a")
    slot.give(one, 0.0)
    slot.ended(one, 0.1, 0.1)


def test_a_worker_that_has_outgrown_its_first_job_is_replaced():
    made = roster(max_memory=10 * MIB)
    (slot,) = made.slots
    run_one(slot)
    assert not made.weigh(slot, 500 * MIB, 5.0)
    assert not made.weigh(slot, 510 * MIB, 6.0)
    assert made.to_retire() is None
    assert not made.weigh(slot, 510 * MIB + 1, 7.0)
    assert made.to_retire() is slot


def test_what_a_worker_weighs_before_its_first_job_is_not_its_measure():
    made = roster(max_memory=10 * MIB)
    (slot,) = made.slots
    made.weigh(slot, 1 * MIB, 5.0)
    run_one(slot)
    made.weigh(slot, 500 * MIB, 6.0)
    assert made.to_retire() is None


def test_a_limit_that_every_job_exceeds_costs_a_twentieth_of_the_time_at_most():
    made = Roster(make_config(max_memory=1))
    (slot,) = made.slots
    slot.began(0.0, 0, batched=False)
    slot.became_ready(2.0)
    run_one(slot)
    assert not made.weigh(slot, 10, 2.1)
    assert made.weigh(slot, 20, 41.9), "it is said that the limit cannot be kept"
    assert made.to_retire() is None
    assert not made.weigh(slot, 20, 42.0)
    assert made.to_retire() is slot


def test_a_new_worker_is_weighed_anew():
    made = roster(max_memory=10)
    (slot,) = made.slots
    run_one(slot)
    made.weigh(slot, 100, 5.0)
    made.weigh(slot, 200, 5.0)
    slot.dismiss()
    slot.exited(6.0, blameless=True)
    start_all(made, 6.0)
    run_one(slot)
    made.weigh(slot, 200, 9.0)
    assert made.to_retire() is None


def test_without_a_limit_nobody_is_weighed():
    made = roster()
    (slot,) = made.slots
    run_one(slot)
    made.weigh(slot, 1, 5.0)
    made.weigh(slot, 2**40, 9.0)
    assert made.to_retire() is None


# -- losing the lease


def test_nothing_that_is_here_is_ours_any_more():
    made = roster(workers=2)
    made.slots[0].give(unit("a"), 0.0)
    made.add(claims("b"))
    made.give_up()
    assert not made.busy
    assert waiting(made) == []
    assert {slot.state for slot in made.slots} == {SlotState.RETIRING}


def test_results_are_told_apart_by_the_job():
    one = unit("a", "b")
    one.results["a"] = Result.failed("x")
    assert [each for each in one.job_ids if each not in one.results] == ["b"]
