"""The clock: its order, its rules, its two binary forms and the prefix of file names."""

from __future__ import annotations

import itertools
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuekit.hlc import HLC, ZERO, HLCError, HLCGenerator, signed_node, sortable_hlc, unsigned_node
from queuekit.testing.strategies import hlcs

INT32 = st.integers(-(2**31), 2**31 - 1)
MILLISECONDS = st.integers(0, 2**41)


def test_the_order_is_physical_then_logical_then_signed_node() -> None:
    ascending = [HLC(-1, 9, 9), ZERO, HLC(0, 0, 1), HLC(0, 1, -1), HLC(0, 1, 0), HLC(1, 0, -5)]
    shuffled = [ascending[place] for place in (3, 0, 5, 1, 4, 2)]
    assert sorted(shuffled) == ascending
    assert HLC(0, 0, -1) < ZERO <= HLC(0, 0, 0)


@pytest.mark.parametrize(
    ("signed", "unsigned"),
    [(0, 0), (-1, 4294967295), (2**31 - 1, 2**31 - 1), (-(2**31), 2**31), (-559038737, 0xDEADBEEF)],
)
def test_a_node_has_a_signed_and_an_unsigned_view(signed: int, unsigned: int) -> None:
    assert unsigned_node(signed) == unsigned
    assert signed_node(unsigned) == signed


class TestBinaryForms:
    def test_16_bytes_little_endian(self) -> None:
        data = bytes.fromhex("0807060504030201 0c0b0a09 ffffffff")
        assert HLC(0x0102030405060708, 0x090A0B0C, -1).to_bytes() == data
        assert HLC.from_bytes(data) == HLC(0x0102030405060708, 0x090A0B0C, -1)

    @given(hlcs())
    def test_16_bytes_lose_nothing(self, hlc: HLC) -> None:
        assert HLC.from_bytes(hlc.to_bytes()) == hlc

    @pytest.mark.parametrize("length", [0, 8, 15, 17])
    def test_any_other_length_is_refused(self, length: int) -> None:
        with pytest.raises(HLCError) as caught:
            HLC.from_bytes(bytes(length))
        assert caught.value.length == length

    def test_8_bytes_hold_node_logical_physical(self) -> None:
        data = bytes.fromhex("fe 0201 0706050403")
        assert HLC(0x0304050607, 0x0102, -2).to_packed() == data
        assert HLC.from_packed(data) == HLC(0x0304050607, 0x0102, -2)

    def test_8_bytes_keep_only_low_bits(self) -> None:
        packed = HLC(2**40 + 5, 2**16 + 6, 2**8 + 7).to_packed()
        assert HLC.from_packed(packed) == HLC(5, 6, 7)

    def test_only_the_nodes_byte_is_sign_extended(self) -> None:
        assert HLC.from_packed(b"\xff" * 8) == HLC(2**40 - 1, 2**16 - 1, -1)

    @pytest.mark.parametrize("length", [0, 7, 9, 16])
    def test_a_packed_one_of_another_length_is_refused(self, length: int) -> None:
        with pytest.raises(HLCError):
            HLC.from_packed(bytes(length))


class TestNamePrefix:
    @pytest.mark.parametrize(
        ("hlc", "prefix"),
        [
            (HLC(1747526400000, 0, -559038737), "0001747526400000-00000000-3735928559"),
            (ZERO, "0000000000000000-00000000-0000000000"),
            (HLC(-2, -3, -1), "-000000000000002--0000003-4294967295"),
            (HLC(2**63 - 1, 2**31 - 1, 1), "9223372036854775807-2147483647-0000000001"),
        ],
    )
    def test_it_is_padded_with_the_sign_inside_and_overflows_its_width(self, hlc: HLC, prefix: str) -> None:
        assert sortable_hlc(hlc) == prefix

    @given(st.lists(st.builds(HLC, MILLISECONDS, st.integers(0, 10**8 - 1), st.integers(0, 2**31 - 1)), max_size=8))
    def test_in_the_normal_range_names_sort_like_timestamps(self, stamps: list[HLC]) -> None:
        assert sorted(stamps, key=sortable_hlc) == sorted(stamps)


class TestSend:
    def test_it_follows_the_wall_clock_and_counts_within_a_millisecond(self) -> None:
        clock = HLCGenerator(7)
        assert [clock.send(now) for now in (5, 5, 5, 6)] == [HLC(5, 0, 7), HLC(5, 1, 7), HLC(5, 2, 7), HLC(6, 0, 7)]

    def test_it_never_runs_backwards(self) -> None:
        clock = HLCGenerator(7)
        assert [clock.send(now) for now in (9, 3, -1, 10)] == [HLC(9, 0, 7), HLC(9, 1, 7), HLC(9, 2, 7), HLC(10, 0, 7)]

    def test_it_goes_on_from_a_saved_timestamp(self) -> None:
        assert HLCGenerator(7, last=HLC(50, 4, 99)).send(20) == HLC(50, 5, 7)

    def test_the_counter_wraps_at_int32(self) -> None:
        assert HLCGenerator(0, last=HLC(5, 2**31 - 1, 0)).send(5) == HLC(5, -(2**31), 0)
        assert HLC(5, 2**31 - 1, 1).advanced() == HLC(5, -(2**31), 1)
        assert HLC(5, 3, 1).advanced() == HLC(5, 4, 1)

    def test_a_node_id_is_taken_by_its_32_bits(self) -> None:
        assert HLCGenerator(0xDEADBEEF).send(1).node_id == -559038737

    def test_looking_does_not_tick(self) -> None:
        clock = HLCGenerator(7)
        clock.send(5)
        assert clock.current() == clock.current() == HLC(5, 0, 7)

    @given(st.lists(MILLISECONDS, min_size=2))
    def test_each_is_later_than_the_one_before(self, readings: list[int]) -> None:
        clock = HLCGenerator(1)
        stamps = [clock.send(now) for now in readings]
        assert all(earlier < later for earlier, later in itertools.pairwise(stamps))

    def test_threads_never_get_the_same(self) -> None:
        clock, stamps = HLCGenerator(1), []

        def tick() -> None:
            stamps.extend([clock.send(5) for _ in range(2000)])

        threads = [threading.Thread(target=tick) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(stamps)) == 8000


class TestReceive:
    """The local clock stands at (10, 5) in each."""

    @pytest.mark.parametrize(
        ("remote", "now", "result"),
        [
            (HLC(10, 8, 99), 10, HLC(10, 9, 7)),
            (HLC(10, 2, 99), 3, HLC(10, 6, 7)),
            (HLC(9, 90, 99), 10, HLC(10, 6, 7)),
            (HLC(20, 8, 99), 3, HLC(20, 9, 7)),
            (HLC(20, 8, 99), 20, HLC(20, 9, 7)),
            (HLC(11, 8, 99), 30, HLC(30, 0, 7)),
        ],
        ids=["all equal", "both equal, wall behind", "remote behind", "remote ahead", "remote at wall", "wall ahead"],
    )
    def test_the_paper_says(self, remote: HLC, now: int, result: HLC) -> None:
        clock = HLCGenerator(7, last=HLC(10, 5, 7))
        assert clock.receive(remote, now) == result
        assert clock.current() == result

    @given(st.lists(st.tuples(st.builds(HLC, MILLISECONDS, st.integers(0, 1000), INT32), MILLISECONDS), min_size=1))
    def test_it_is_later_than_the_remote_and_than_each_one_before(self, events: list[tuple[HLC, int]]) -> None:
        clock = HLCGenerator(1)
        for remote, now in events:
            before = clock.current()
            after = clock.receive(remote, now)
            assert (after.physical_time, after.logical_count) > (remote.physical_time, remote.logical_count)
            assert after > before
