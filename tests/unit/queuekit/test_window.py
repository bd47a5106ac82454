"""The latency window and the box around it: percentiles, first in first out, one report per interval and stream."""

import math
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuekit.telemetry import QueueLatencyWindow, QueueLatencyWindowBox

samples = st.lists(st.floats(min_value=0, max_value=1e6), max_size=60)


def filled(values, capacity: int = 100) -> QueueLatencyWindow:
    window = QueueLatencyWindow(capacity)
    for value in values:
        window.append(value)
    return window


class TestWindow:
    def test_percentiles_of_ten(self):
        window = filled([7, 1, 10, 3, 9, 2, 8, 4, 6, 5])
        assert [window.percentile(p) for p in (0, 50, 95, 100)] == [1, 5, 9, 10]

    def test_the_oldest_goes_first(self):
        window = filled([1, 2, 3, 100], capacity=3)
        assert len(window) == 3
        assert window.percentile(50) == 3

    def test_it_holds_a_hundred_by_itself(self):
        window = filled(range(150))
        assert (len(window), window.percentile(0), window.percentile(100)) == (100, 50, 149)

    @pytest.mark.parametrize("p", [-0.1, 100.1, math.nan, math.inf, -math.inf])
    def test_what_is_no_percentage_gives_zero(self, p):
        assert filled([5, 6]).percentile(p) == 0

    def test_empty_gives_zero(self):
        assert QueueLatencyWindow().percentile(50) == 0

    @pytest.mark.parametrize("ms", [math.nan, math.inf, -math.inf])
    def test_what_is_no_number_is_no_sample(self, ms):
        window = filled([4, ms, 6])
        assert (len(window), window.percentile(0), window.percentile(100)) == (2, 4, 6)

    def test_it_cannot_hold_nothing(self):
        with pytest.raises(ValueError, match="0"):
            QueueLatencyWindow(0)

    @given(samples, st.integers(1, 10))
    def test_its_extremes_are_those_of_the_last_samples(self, values, capacity):
        window, last = filled(values, capacity), values[-capacity:]
        assert len(window) == len(last)
        assert window.percentile(0) == min(last, default=0)
        assert window.percentile(100) == max(last, default=0)

    @given(samples, st.floats(0, 100), st.floats(0, 100))
    def test_a_higher_percentage_never_gives_less(self, values, one, other):
        window = filled(values)
        assert window.percentile(min(one, other)) <= window.percentile(max(one, other))


class TestBox:
    def test_the_first_sample_is_told_whatever_the_clock_says(self):
        assert QueueLatencyWindowBox().sample(1.0, 0.0, 30.0) == (1.0, 1.0, True)

    def test_then_one_in_each_interval(self):
        box = QueueLatencyWindowBox()
        told = [now for now in (1000, 1001, 1029.9, 1030.1, 1031, 1060.2) if box.sample(1, now, 30.0)[2]]
        assert told == [1000, 1030.1, 1060.2]

    def test_samples_that_are_not_told_count(self):
        box = QueueLatencyWindowBox()
        box.sample(100.0, 1000, 30.0)
        for step in range(11):
            p50, _, told = box.sample(0.0, 1001 + step, 30.0)
            assert not told
        assert p50 == 0

    def test_each_stream_has_its_own_interval_and_all_share_the_window(self):
        box = QueueLatencyWindowBox()
        assert box.sample(2.0, 1000, 30.0, "encode") == (2.0, 2.0, True)
        assert box.sample(8.0, 1001, 30.0, "dreaming") == (2.0, 2.0, True)
        assert box.sample(8.0, 1002, 30.0, "encode") == (8.0, 8.0, False)
        assert box.percentiles() == (8.0, 8.0)

    def test_a_clock_set_back_silences_it_for_one_interval_only(self):
        box = QueueLatencyWindowBox()
        told = [now for now in (10_000, 5_000, 5_029, 5_030, 5_031) if box.sample(1, now, 30.0)[2]]
        assert told == [10_000, 5_030]

    @pytest.mark.parametrize("now", [math.nan, math.inf, -math.inf])
    def test_a_time_that_is_no_number_is_not_remembered(self, now):
        box = QueueLatencyWindowBox()
        assert not box.sample(1, now, 30.0)[2]
        assert box.sample(1, 1000, 30.0)[2]
        assert not box.sample(1, now, 30.0)[2]
        assert box.sample(1, 1030, 30.0)[2]

    def test_it_takes_over_a_window(self):
        assert QueueLatencyWindowBox(filled([5, 5], capacity=3)).sample(1.0, 0, 30.0)[:2] == (5.0, 5.0)

    def test_drained_jobs_add_up_until_taken(self):
        box = QueueLatencyWindowBox()
        box.note_drained("encode", 2)
        box.note_drained("encode", 3)
        box.note_drained("dreaming", 7)
        assert [box.take_drained("encode"), box.take_drained("encode"), box.take_drained("dreaming")] == [5, 0, 7]

    def test_threads_agree_on_who_tells(self):
        box = QueueLatencyWindowBox()
        told: list[bool] = []

        def drain() -> None:
            for _ in range(500):
                told.append(box.sample(1.0, 1000.0, 30.0)[2])
                box.note_drained("", 1)

        threads = [threading.Thread(target=drain) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert told.count(True) == 1
        assert box.take_drained("") == 2000
