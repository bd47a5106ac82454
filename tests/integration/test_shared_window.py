"""One latency window for several real processes, some of which are killed at the worst moment."""

import contextlib
import math
import os
import signal
import stat
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from children import fork_child
from hypothesis import given, settings
from hypothesis import strategies as st

from queuekit.errors import WriteFailed
from queuekit.telemetry import shared_window
from queuekit.telemetry.shared_window import SLOTS, SharedLatencyWindowBox

COUNT_AT, RING_AT, TABLE_AT = 8, 16, 16 + 800


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "window"


@pytest.fixture
def box(path: Path) -> SharedLatencyWindowBox:
    return SharedLatencyWindowBox(path)


def run(*works: Callable[[], None]) -> None:
    for pid in [fork_child(work) for work in works]:
        assert os.waitpid(pid, 0)[1] == 0


@contextlib.contextmanager
def child_that_says_so(work: Callable[[Callable[[], None]], None]) -> Iterator[int]:
    """A child that calls what it is given once it got where the test wants it, and then waits to be killed."""
    reader, writer = os.pipe()

    def say_so() -> None:
        os.write(writer, b"x")
        signal.pause()

    pid = fork_child(lambda: work(say_so))
    os.close(writer)
    try:
        assert os.read(reader, 1) == b"x"
        yield pid
    finally:
        os.close(reader)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def hold_the_lock(path: Path) -> Callable[[Callable[[], None]], None]:
    def hold(say_so: Callable[[], None]) -> None:
        with SharedLatencyWindowBox(path)._locked() as mapped:
            assert mapped is not None
            say_so()

    return hold


class TestAsTheOtherBox:
    def test_percentiles_and_throttles(self, box):
        assert box.sample(1.0, 0.0, 30.0) == (1.0, 1.0, True)
        for ms in range(2, 11):
            p50, p95, due = box.sample(ms, 29.9, 30.0)
            assert not due
        assert (p50, p95) == (5, 9)
        assert box.sample(5, 30.0, 30.0)[2]

    def test_the_oldest_of_a_hundred_goes_first(self, box):
        for ms in range(150):
            box.sample(ms, 0, 30.0)
        assert box.percentiles() == (99, 144)

    def test_each_stream_has_its_interval(self, box):
        assert box.sample(1, 1000, 30.0, "encode")[2]
        assert box.sample(1, 1000, 30.0, "dreaming")[2]
        assert not box.sample(1, 1001, 30.0, "encode")[2]

    def test_a_clock_set_back_silences_it_for_one_interval_only(self, box):
        told = [now for now in (10_000, 5_000, 5_029, 5_030) if box.sample(1, now, 30.0)[2]]
        assert told == [10_000, 5_030]

    @pytest.mark.parametrize("odd", [math.nan, math.inf])
    def test_what_is_no_number_is_neither_a_sample_nor_a_time(self, box, odd):
        assert box.sample(odd, odd, 30.0) == (0.0, 0.0, False)
        assert box.sample(3, 1000, 30.0) == (3, 3, True)

    def test_drained_jobs_add_up_until_taken(self, box):
        box.note_drained("encode", 2)
        box.note_drained("encode", 3)
        box.note_drained("dreaming", 7)
        assert [box.take_drained("encode"), box.take_drained("encode"), box.take_drained("dreaming")] == [5, 0, 7]

    def test_a_reset_forgets_everything(self, box):
        box.sample(9, 1000, 30.0)
        box.note_drained("", 4)
        box.reset()
        assert box.percentiles() == (0, 0)
        assert box.take_drained("") == 0
        assert box.sample(1, 1001, 30.0) == (1, 1, True)

    def test_more_streams_than_slots_are_still_throttled_and_counted(self, box):
        streams = [f"stream {number}" for number in range(SLOTS + 20)]
        for turn in range(2):
            for stream in streams:
                assert box.sample(1, 1000 + turn, 30.0, stream)[2] == (turn == 0)
                box.note_drained(stream, 1)
        assert {box.take_drained(stream) for stream in streams} == {2}

    def test_closed_it_opens_itself_again(self, box):
        box.sample(7, 0, 30.0)
        box.close()
        box.close()
        assert box.percentiles() == (7, 7)


class TestTheFile:
    def test_is_private_under_any_umask(self, path):
        before = os.umask(0o777)
        try:
            SharedLatencyWindowBox(path)
        finally:
            os.umask(before)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def test_has_its_space(self, box, path):
        assert path.stat().st_blocks * 512 >= path.stat().st_size

    def test_must_be_a_regular_one(self, tmp_path):
        os.mkfifo(tmp_path / "fifo")
        (tmp_path / "link").symlink_to(tmp_path / "target")
        for name in ("fifo", "link", "missing/window"):
            with pytest.raises(WriteFailed):
                SharedLatencyWindowBox(tmp_path / name)

    @pytest.mark.parametrize("content", [b"", b"x" * 100, b"\xff" * 20_000])
    def test_is_made_anew_when_it_is_something_else(self, path, content):
        path.write_bytes(content)
        box = SharedLatencyWindowBox(path)
        assert box.sample(3, 0, 30.0) == (3, 3, True)

    def test_survives_its_processes(self, box, path):
        box.sample(3, 1000, 30.0, "encode")
        box.close()
        assert SharedLatencyWindowBox(path).sample(5, 1001, 30.0, "encode") == (3, 3, False)

    @settings(max_examples=60)
    @given(words=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=40), at=st.integers(1, 400))
    def test_nonsense_in_it_gives_no_nonsense(self, tmp_path_factory, words, at):
        path = tmp_path_factory.mktemp("torn") / "window"
        box = SharedLatencyWindowBox(path)
        box.sample(1, 0, 30.0, "encode")
        with path.open("r+b") as file:
            file.seek(8 * at)
            file.write(struct.pack(f"={len(words)}Q", *words))
        p50, p95, _ = box.sample(2, 1000, 30.0, "encode")
        assert 0 <= p50 <= p95 < math.inf
        box.note_drained("encode", 3)
        assert box.take_drained("encode") >= 0


class TestProcesses:
    def test_share_samples_throttles_and_counts(self, box, path):
        def drain() -> None:
            mine = SharedLatencyWindowBox(path)
            for _ in range(50):
                mine.sample(4, 1000, 30.0, "encode")
                mine.note_drained("encode", 1)

        run(drain, drain, drain)
        assert box.sample(4, 1001, 30.0, "encode") == (4, 4, False)
        assert box.take_drained("encode") == 150

    def test_use_a_box_that_was_made_before_the_fork(self, box):
        def drain() -> None:
            for _ in range(50):
                box.note_drained("encode", 1)

        run(drain, drain, drain)
        assert box.take_drained("encode") == 150

    def test_a_stream_is_told_by_one_of_them(self, box, tmp_path):
        def drain() -> None:
            for _ in range(50):
                if box.sample(1, 1000, 30.0)[2]:
                    (tmp_path / f"told-{os.getpid()}").touch()

        run(drain, drain, drain)
        assert len(list(tmp_path.glob("told-*"))) == 1

    def test_a_child_does_not_keep_its_parents_lock(self, path):
        """The holder has a child from before, is killed with the lock held, and the child lives on."""
        reader, writer = os.pipe()

        def hold_with_a_child(say_so: Callable[[], None]) -> None:
            box = SharedLatencyWindowBox(path)
            with box._locked():
                child = fork_child(signal.pause)
                os.write(writer, child.to_bytes(8, "little"))
                say_so()

        with child_that_says_so(hold_with_a_child):
            grandchild = int.from_bytes(os.read(reader, 8), "little")
        try:
            assert SharedLatencyWindowBox(path).sample(3, 0, 30.0) == (3, 3, True)
        finally:
            os.kill(grandchild, signal.SIGKILL)
            os.close(reader)
            os.close(writer)


class TestAHolder:
    def test_that_is_killed_frees_the_lock(self, box, path):
        with child_that_says_so(hold_the_lock(path)):
            assert box.sample(3, 0, 30.0) == (0, 0, False)
        assert box.sample(3, 0, 30.0) == (3, 3, True)

    def test_that_keeps_the_lock_costs_one_wait_and_no_counts(self, box, path, monkeypatch):
        waits: list[float] = []
        monkeypatch.setattr(shared_window.time, "sleep", waits.append)
        with child_that_says_so(hold_the_lock(path)):
            box.sample(3, 0, 30.0, "encode")
            assert waits
            waits.clear()
            box.note_drained("encode", 2)
            assert box.sample(3, 0, 30.0, "encode") == (0, 0, False)
            assert box.percentiles() == (0, 0)
            assert waits == []
        box.note_drained("encode", 1)
        assert box.take_drained("encode") == 3

    @pytest.mark.parametrize("written", ["the sample", "half of a slot"])
    def test_that_is_killed_half_way_loses_its_own_sample_only(self, box, path, written):
        box.sample(3, 1000, 30.0, "encode")
        box.note_drained("encode", 5)

        def die_half_way(say_so: Callable[[], None]) -> None:
            with SharedLatencyWindowBox(path)._locked() as mapped:
                assert mapped is not None
                if written == "the sample":
                    mapped.doubles[RING_AT // 8 + 1] = 1e300
                else:
                    mapped.words[TABLE_AT // 8 + 1 : TABLE_AT // 8 + 4] = memoryview(b"\x07" * 24).cast("Q")
                say_so()

        with child_that_says_so(die_half_way):
            pass
        assert box.percentiles() == (3, 3)
        assert box.sample(5, 1001, 30.0, "encode") == (3, 3, False)
        assert box.take_drained("encode") == 5
        assert box.sample(5, 1001, 30.0, "dreaming")[2]

    def test_killed_at_random_moments_never_stops_the_others(self, box, path):
        for _ in range(20):
            reader, writer = os.pipe()

            def begin(writer: int = writer) -> None:
                mine = SharedLatencyWindowBox(path)
                turns = 0
                while True:
                    mine.sample(4, 1000, 30.0, "encode")
                    mine.note_drained("encode", 1)
                    turns += 1
                    if turns == 3:
                        os.write(writer, b"x")

            pid = fork_child(begin)
            os.close(writer)
            os.read(reader, 1)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(reader)
            assert box.sample(4, 1000, 30.0, "encode")[:2] == (4, 4)
        assert box.take_drained("encode") >= 60


def test_a_file_that_cannot_be_opened_after_a_fork_is_replaced_by_counting_alone(box, path, caplog):
    path.unlink()
    path.symlink_to("nowhere")

    def count_alone() -> None:
        assert box.sample(3, 1000, 30.0) == (3, 3, True)
        assert box.sample(3, 1001, 30.0) == (3, 3, False)
        box.note_drained("", 2)
        assert box.take_drained("") == 2
        assert box.percentiles() == (3, 3)
        assert len(caplog.records) == 1

    run(count_alone)
