"""A worker's standard error passes through, its end is kept, and a slow reader of ours stops it, not us."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from workerpool import handlers
from workerpool.process import unread_bytes
from workerpool.stream.stderr import HELD_SECONDS, KEPT_BYTES, TOLD_BYTES, StderrTap


@pytest.fixture
def ends() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)
    os.close(writer)


@pytest.fixture
def tap(ends: tuple[int, int]) -> Iterator[StderrTap]:
    tap = StderrTap(target=ends[1])
    yield tap
    tap.close()


def fill(tap: StderrTap) -> int:
    """Write until neither pipe takes more; how many bytes that were."""
    os.set_blocking(tap.writer, False)
    written = 0
    while True:
        try:
            written += os.write(tap.writer, b"x" * 4096)
        except BlockingIOError:
            return written
        tap.pump()


def test_what_is_written_comes_out_and_is_kept(tap: StderrTap, ends: tuple[int, int]) -> None:
    os.write(tap.writer, b"one\ntwo\n")
    assert tap.pump()
    assert os.read(ends[0], 100) == b"one\ntwo\n"
    assert tap.last_lines() == "one\ntwo"


def test_what_is_passed_on_begins_and_ends_with_a_line(tap: StderrTap, ends: tuple[int, int]) -> None:
    """Others write to the same place: what they write must not come into the middle of a line."""
    os.set_blocking(ends[0], False)
    os.write(tap.writer, b"half a li")
    tap.pump()
    with pytest.raises(BlockingIOError):
        os.read(ends[0], 100)
    os.write(tap.writer, b"ne\nand the ne")
    tap.pump()
    assert os.read(ends[0], 100) == b"half a line\n"
    assert not tap.is_stuck
    assert tap.holds


def test_a_line_without_an_end_is_passed_on_after_a_moment(ends: tuple[int, int]) -> None:
    """Somebody may wait for it: a question, the dots of a progress."""
    now = 100.0
    tap = StderrTap(target=ends[1], clock=lambda: now)
    os.set_blocking(ends[0], False)
    os.write(tap.writer, b"sure? ")
    tap.pump()
    now += HELD_SECONDS / 2
    os.write(tap.writer, b"(y/n) ")
    tap.pump()
    with pytest.raises(BlockingIOError):
        os.read(ends[0], 100)
    now += HELD_SECONDS
    tap.pump()
    assert os.read(ends[0], 100) == b"sure? (y/n) "
    assert not tap.holds
    tap.close()


def test_an_unfinished_line_is_not_lost_when_somebody_else_still_holds_the_pipe(
    tap: StderrTap, ends: tuple[int, int]
) -> None:
    """A child of a dead worker's."""
    os.write(tap.writer, b"last words")
    assert tap.pump()
    tap.close()
    assert os.read(ends[0], 100) == b"last words\n"


def test_lines_of_several_workers_are_whole_in_a_file_however_long(tmp_path: Path) -> None:
    """As in T23: each reads what there is, and both write to one file."""
    file = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    taps = [StderrTap(target=file) for _ in range(2)]
    for tap in taps:
        os.set_blocking(tap.writer, False)
    left = [b"".join(bytes([letter]) * size + b"\n" for size in (10, 30_000, 4096)) for letter in b"ab"]
    while any(left):
        for number, tap in enumerate(taps):
            left[number] = left[number][os.write(tap.writer, left[number][:3000]) if left[number] else 0 :]
            tap.pump()
    for tap in taps:
        tap.close()
    os.close(file)
    lines = (tmp_path / "log").read_bytes().splitlines()
    assert sorted(lines) == sorted(letter * size for letter in (b"a", b"b") for size in (10, 30_000, 4096))


def test_what_never_ends_its_line_is_not_kept_for_ever(tmp_path: Path) -> None:
    file = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    tap = StderrTap(target=file, clock=lambda: 0.0)
    for _ in range(200):
        os.write(tap.writer, b"x" * 4096)
        tap.pump()
    assert (tmp_path / "log").stat().st_size >= 100 * 4096
    tap.close()
    os.close(file)
    assert (tmp_path / "log").read_bytes() == b"x" * 200 * 4096 + b"\n"


def test_only_the_end_is_kept_from_a_whole_line_on(tap: StderrTap) -> None:
    for number in range(300):
        os.write(tap.writer, b"line %06d\n" % number)
    tap.pump()
    kept = tap.last_lines().splitlines()
    assert kept[-1] == "line 000299"
    assert all(len(line) == len("line 000299") for line in kept)
    assert len(tap.last_lines()) <= TOLD_BYTES


def test_a_stack_is_told_without_the_frames_below_the_handler(tap: StderrTap) -> None:
    stack = f"""\
Fatal Python error: Segmentation fault

Current thread 0x0001 (most recent call first):
  File "/home/me/tasks.py", line 3 in deep
  File "/home/me/tasks.py", line 9 in encode
  File "{handlers.__file__}", line 85 in _invoke
  File "/elsewhere/loop.py", line 1 in serve

Extension modules: none
"""
    os.write(tap.writer, stack.encode())
    tap.pump()
    assert tap.last_lines().splitlines()[3:] == [
        '  File "/home/me/tasks.py", line 3 in deep',
        '  File "/home/me/tasks.py", line 9 in encode',
        "",
        "Extension modules: none",
    ]


def test_a_reader_that_does_not_read_does_not_block_the_loop(tap: StderrTap, ends: tuple[int, int]) -> None:
    written = fill(tap)
    assert tap.is_stuck
    os.set_blocking(ends[0], False)
    got = 0
    while tap.is_stuck or got < written:
        got += len(os.read(ends[0], 65536))
        tap.pump()
    assert got == written


def test_the_end_of_the_worker_is_noticed_after_its_last_words(tap: StderrTap, ends: tuple[int, int]) -> None:
    os.write(tap.writer, b"bye")
    tap.close_writer()
    assert not tap.pump()
    assert os.read(ends[0], 10) == b"bye\n"


def test_the_last_line_of_a_dead_worker_is_ended_for_it(tap: StderrTap, ends: tuple[int, int]) -> None:
    """Once, although a loop may ask again."""
    os.write(tap.writer, b"one\nhalf")
    tap.close_writer()
    assert not tap.pump()
    assert not tap.pump()
    assert os.read(ends[0], 100) == b"one\nhalf\n"
    assert tap.last_lines() == "one\nhalf"


def test_nobody_listening_is_no_error(ends: tuple[int, int]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    tap = StderrTap(target=writer)
    os.write(tap.writer, b"into the void")
    assert tap.pump()
    assert not tap.is_stuck
    assert tap.last_lines() == "into the void"
    tap.close()
    os.close(writer)


def test_bytes_that_are_no_text_are_shown_escaped(tap: StderrTap) -> None:
    os.write(tap.writer, b"\xff\xfe\n")
    tap.pump()
    assert tap.last_lines() == "\\xff\\xfe"


def test_descriptors_do_not_leak_into_programs(tap: StderrTap) -> None:
    assert all(fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC for fd in (tap.fileno(), tap.writer))


def test_of_a_deep_stack_the_innermost_frames_are_told(tap: StderrTap) -> None:
    frames = "".join(f'  File "/home/me/deep.py", line {number} in down\n' for number in range(40))
    own = f'  File "{handlers.__file__}", line 85 in _invoke\n'
    os.write(tap.writer, f"Current thread 0x0001 (most recent call first):\n{frames}{own}".encode())
    tap.pump()
    told = tap.last_lines().splitlines()
    assert told[1] == '  File "/home/me/deep.py", line 0 in down'
    assert told[12:] == ['  File "/home/me/deep.py", line 11 in down', "  … and 28 more frames"]


# -- whose words


def read_all(tap: StderrTap) -> int:
    """Let the tap read what is there; returns when that was done (monotonic ns)."""
    tap.pump()
    return time.monotonic_ns()


def test_what_was_read_before_a_job_began_is_not_its(tap: StderrTap) -> None:
    os.write(tap.writer, b"the job before\n")
    begun = read_all(tap)
    os.write(tap.writer, b"this one\n")
    tap.pump()
    tap.note_start(begun)
    assert tap.last_lines() == "this one"


def test_what_lay_in_the_pipe_when_a_job_ended_is_not_the_next_ones(tap: StderrTap) -> None:
    os.write(tap.writer, b"the job before\n")
    read_all(tap)
    os.write(tap.writer, b"the rest of it\n")
    ended, unread = time.monotonic_ns(), unread_bytes(tap.writer)
    os.write(tap.writer, b"this one\n")
    tap.pump()
    tap.note_end(ended, unread)
    tap.note_start(ended)
    assert tap.last_lines() == "this one"


def test_who_has_written_nothing_has_no_last_words_although_the_pipe_is_not_read_yet(tap: StderrTap) -> None:
    os.write(tap.writer, b"the job before\n")
    tap.note_end(time.monotonic_ns(), unread_bytes(tap.writer))
    assert tap.last_lines() == ""
    tap.pump()
    assert tap.last_lines() == ""


def test_a_job_that_writes_more_than_is_kept_has_the_end_of_it(tap: StderrTap, ends: tuple[int, int]) -> None:
    os.write(tap.writer, b"the job before\n")
    begun = read_all(tap)
    for _ in range(2 * KEPT_BYTES // 4096):
        os.write(tap.writer, b"mine\n" * 800)
        tap.pump()
        os.read(ends[0], 65536)
    tap.note_start(begun)
    assert set(tap.last_lines().splitlines()) == {"mine"}


def test_only_a_pipe_has_unread_bytes(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 100)
    with open(tmp_path / "file", "rb+") as file:
        assert unread_bytes(file.fileno()) == 0
    assert unread_bytes(10_000) == 0
