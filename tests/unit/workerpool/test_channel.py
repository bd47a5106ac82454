"""Frames over a socket pair: whole, in order, bounded, and with an end that is noticed."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workerpool.process.channel import Channel, ChannelError, Frame, frame_limit

JSON_VALUES = st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text(), max_size=3)
MESSAGES = st.tuples(st.dictionaries(st.text(), JSON_VALUES, max_size=3), st.binary(max_size=300))


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    left, right = Channel.pair()
    yield left, right
    left.close()
    right.close()


@pytest.fixture
def raw() -> Iterator[tuple[socket.socket, Channel]]:
    """A bare socket, and a channel on its other end that takes frames of up to 1,000 bytes."""
    left, right = socket.socketpair()
    channel = Channel(right, max_frame=1000)
    yield left, channel
    left.close()
    channel.close()


def carry(sender: Channel, receiver: Channel, count: int) -> list[Frame]:
    """Turn both ends until `count` frames arrived; neither ever waits."""
    frames: list[Frame] = []
    while len(frames) < count:
        sender.flush()
        frames += receiver.receive()
    return frames


@settings(max_examples=50, deadline=None)
@given(messages=st.lists(MESSAGES, min_size=1, max_size=8))
def test_what_is_sent_arrives_in_order(messages: list[tuple[dict[str, object], bytes]]) -> None:
    left, right = Channel.pair()
    for header, body in messages:
        left.send(header, body)
    assert [(f.header, f.body) for f in carry(left, right, len(messages))] == messages
    left.close()
    right.close()


def test_nothing_is_there_before_anything_was_sent(ends: tuple[Channel, Channel]) -> None:
    assert ends[0].receive() == []
    assert not ends[0].eof


def test_send_only_queues(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    left.send({"t": "job"})
    assert left.wants_write
    assert right.receive() == []
    left.flush()
    assert not left.wants_write
    assert right.receive() == [Frame({"t": "job"})]


def test_many_small_frames_go_in_one_write() -> None:
    observer, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)  # keeps apart what was written apart
    channel = Channel(end)
    for number in range(32):
        channel.send({"n": number}, b"payload")
    channel.flush()
    assert observer.recv(65536).count(b"payload") == 32
    observer.close()
    channel.close()


@pytest.mark.parametrize("size", [65_535, 65_536, 262_143, 262_144, 3_000_000])
def test_bodies_around_the_buffer_sizes_arrive_between_small_ones(ends: tuple[Channel, Channel], size: int) -> None:
    left, right = ends
    body = os.urandom(size)
    for part in (b"before", body, b"", body, b"after"):
        left.send({"len": len(part)}, part)
    assert [frame.body for frame in carry(left, right, 5)] == [b"before", body, b"", body, b"after"]


def test_the_largest_payload_passes_and_leaves_no_large_buffer_behind(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    body = bytes(64 * 2**20)
    left.send({"t": "job"}, body)
    left.send({"t": "stop"})
    frames = carry(left, right, 2)
    assert len(frames[0].body) == len(body)
    assert frames[1].header == {"t": "stop"}
    assert len(right._buffer) < 2**20


def test_a_frame_that_comes_byte_by_byte(raw: tuple[socket.socket, Channel]) -> None:
    sock, channel = raw
    data = struct.pack("<II", 7, 3) + b'{"a":1}' + b"xyz"
    for place in range(len(data) - 1):
        sock.send(data[place : place + 1])
        assert channel.receive() == []
    sock.send(data[-1:])
    assert channel.receive() == [Frame({"a": 1}, b"xyz")]


def test_too_large_a_frame_is_refused_before_it_is_queued() -> None:
    left, right = Channel.pair(max_frame=100)
    with pytest.raises(ChannelError, match="larger than 100"):
        left.send({}, bytes(100))
    assert not left.wants_write
    left.close()
    right.close()


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<II", 2, 999) + b"{}",
        struct.pack("<II", 2**32 - 1, 2**32 - 1),
        struct.pack("<II", 3, 0) + b"{x}",
        struct.pack("<II", 2, 0) + b"[]",
        struct.pack("<II", 2, 0) + b"\xff\xff",
        struct.pack("<II", 0, 0),
        b"hello from a handler\n",
    ],
)
def test_what_is_not_a_frame_is_an_error(raw: tuple[socket.socket, Channel], data: bytes) -> None:
    sock, channel = raw
    sock.send(data)
    with pytest.raises(ChannelError):
        channel.receive()


def test_the_frames_before_what_is_none_are_given_first(raw: tuple[socket.socket, Channel]) -> None:
    sock, channel = raw
    sock.sendall(struct.pack("<II", 2, 1) + b"{}x" + b"\xff" * 8)
    assert channel.receive() == [Frame({}, b"x")]
    assert channel.spoiled is not None
    with pytest.raises(ChannelError):
        channel.receive()


def test_a_descriptor_that_somebody_else_has_closed_is_not_intact(ends: tuple[Channel, Channel]) -> None:
    left, _ = ends
    assert left.is_intact()
    kept, other = os.dup(left.fileno()), os.open(os.devnull, os.O_RDONLY)
    try:
        os.dup2(other, left.fileno())
        assert not left.is_intact()
        os.close(left.fileno())
        assert not left.is_intact()
    finally:
        os.dup2(kept, left.fileno())
        os.close(kept)
        os.close(other)


def test_the_last_frames_of_a_peer_that_closed_are_still_there(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    left.send({"n": 1})
    left.send_blocking({"n": 2})
    left.close()
    assert [frame.header["n"] for frame in right.receive()] == [1, 2]
    assert right.recv_blocking() == []
    assert right.eof


def test_a_frame_cut_short_by_death_is_dropped(raw: tuple[socket.socket, Channel]) -> None:
    sock, channel = raw
    sock.send(struct.pack("<II", 2, 100) + b"{}" + b"half")
    sock.close()
    assert channel.recv_blocking() == []
    assert channel.eof


def test_writing_to_a_peer_that_is_gone_drops_and_says_so(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    right.close()
    assert left.send_blocking({"t": "out"}) is False
    assert not left.wants_write
    assert left.receive() == []
    assert left.eof


def test_a_full_socket_keeps_the_rest_queued(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    left.send({}, bytes(5_000_000))
    left.flush()
    assert left.wants_write
    assert len(carry(left, right, 1)[0].body) == 5_000_000
    assert not left.wants_write


def test_blocking_ends_wait_for_each_other(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    body = os.urandom(2_000_000)
    writer = threading.Thread(target=lambda: left.send_blocking({"t": "big"}, body))
    writer.start()
    frames = right.recv_blocking()
    writer.join()
    assert frames == [Frame({"t": "big"}, body)]


def test_the_limit_covers_base64_of_the_largest_payload() -> None:
    assert frame_limit(3 * 2**20) >= 4 * 2**20 + 2**20
