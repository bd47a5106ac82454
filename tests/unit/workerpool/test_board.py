"""The board in one process: what is written is read, clipped, counted, and never half believed."""

from __future__ import annotations

import os
import stat
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workerpool.board import HEADER_BYTES, ROW_BYTES, Board, BoardError, Kind, find_boards, find_lost, sweep
from workerpool.process.identity import boot_id, start_identity


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    made = Board.create(str(tmp_path), 4, config="/etc/pool/config.toml")
    yield made
    made.close()


def test_the_header_says_whose_it_is(board: Board) -> None:
    header = Board.attach(board.path).header
    assert (header.pid, header.start, header.boot) == (os.getpid(), start_identity(os.getpid()), boot_id())
    assert (header.config, header.rows) == ("/etc/pool/config.toml", 4)
    assert os.path.basename(board.path).startswith(f"board-{os.getpid()}-")


def test_only_the_owner_of_the_files_may_read_them(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = Board.create(str(tmp_path), 1).path
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_untaken_rows_are_not_shown(board: Board) -> None:
    assert board.rows() == []
    board.row(2).take(kind=Kind.STREAM, stream="encode", name="stream encode")
    (row,) = board.rows()
    assert (row.index, row.kind, row.stream, row.name) == (2, Kind.STREAM, "encode", "stream encode")
    assert (row.pid, row.group, row.session) == (os.getpid(), os.getpgrp(), os.getsid(0))
    assert row.owner_is_running()
    assert not row.torn


def test_rows_beyond_the_last_do_not_exist(board: Board) -> None:
    for index in (-1, 4):
        with pytest.raises(IndexError):
            board.row(index)
        with pytest.raises(IndexError):
            board.view(index)


def test_a_job_is_shown_while_it_runs(board: Board) -> None:
    row = board.row(1)
    row.take(kind=Kind.WORKER, stream="encode")
    row.start_job("job-1", 12345)
    row.progress(3, 10)
    reader = Board.attach(board.path)
    running = reader.view(1)
    assert (running.job, running.since_ns, running.progress_done, running.progress_total) == ("job-1", 12345, 3, 10)
    assert running.runs("job-1")
    assert not running.runs("job-2")
    row.end_job(done=1)
    ended = reader.view(1)
    assert (ended.job, ended.jobs_done, ended.jobs_failed) == ("", 1, 0)
    assert not ended.runs("job-1")


def test_a_second_job_starts_with_fresh_progress_and_without_the_first_ones_name(board: Board) -> None:
    row = board.row(0)
    row.take(kind=Kind.WORKER)
    row.start_job("a-rather-long-name")
    row.progress(9, 9)
    row.end_job(failed=1)
    row.start_job("short")
    view = row.view()
    assert (view.job, view.progress_done, view.progress_total, view.jobs_failed) == ("short", 0, 0, 1)


@settings(max_examples=40, deadline=None)
@given(ids=st.lists(st.text(min_size=1, max_size=50), min_size=2, max_size=64, unique=True))
def test_every_job_of_a_batch_is_recognised(tmp_path_factory: pytest.TempPathFactory, ids: list[str]) -> None:
    made = Board.create(str(tmp_path_factory.mktemp("board")), 1)
    row = made.row(0)
    row.take(kind=Kind.WORKER)
    row.start_batch(ids[:-1])
    view = row.view()
    assert view.batch == len(ids) - 1
    assert all(view.runs(id) for id in ids[:-1])
    assert not view.runs(ids[-1])
    row.end_job()
    row.start_job(ids[-1])
    assert not any(row.view().runs(id) for id in ids[:-1])
    made.close()


def test_the_longest_identifier_fits(board: Board) -> None:
    row = board.row(0)
    row.take(kind=Kind.WORKER, stream="é" * 111)
    row.start_job("é" * 111)
    assert (row.view().stream, row.view().job) == ("é" * 111, "é" * 111)


def test_texts_are_clipped_to_their_room_and_stay_readable(board: Board) -> None:
    row = board.row(0)
    row.take(kind=Kind.MASTER)
    row.say(error="ü" * 5000, state="running\x00\ud800", lease="held")
    view = row.view()
    assert set(view.error) == {"ü"}
    assert 190 <= len(view.error) <= 200
    assert view.state == "running\\x00\\ud800"
    assert view.lease == "held"


def test_a_stream_is_named_as_it_is_whatever_is_in_its_name(board: Board) -> None:
    """Else nothing that is known of it by its name, a lease, a pause or who died with a job, would be found."""
    name = "\x9b2J \u202e \U0001f469\u200d\U0001f4bb"
    row = board.row(0)
    row.take(kind=Kind.STREAM, stream=name)
    assert row.view().stream == name


def test_a_new_owner_goes_on_with_the_counters(board: Board) -> None:
    row = board.row(1)
    row.take(kind=Kind.STREAM, stream="encode")
    row.add(jobs_done=5, jobs_blocked=1, crashes=2)
    row.add(jobs_done=1)
    row.start_job("x")
    board.row(1).take(kind=Kind.STREAM, stream="encode")
    view = board.view(1)
    assert (view.jobs_done, view.jobs_blocked, view.crashes, view.restarts, view.job) == (6, 1, 2, 1, "")


def test_a_cleared_row_is_free_and_forgets(board: Board) -> None:
    row = board.row(1)
    row.take(kind=Kind.STREAM, stream="encode")
    row.add(jobs_done=5)
    row.clear()
    assert board.rows() == []
    row.take(kind=Kind.STREAM, stream="other")
    assert (row.view().jobs_done, row.view().restarts) == (0, 0)


def test_numbers_beyond_64_bits_are_held_at_the_limit(board: Board) -> None:
    row = board.row(0)
    row.take(kind=Kind.WORKER)
    row.progress(10**30, -(10**30))
    assert (row.view().progress_done, row.view().progress_total) == (2**63 - 1, -(2**63))


def test_an_unknown_name_changes_nothing(board: Board) -> None:
    row = board.row(0)
    row.take(kind=Kind.WORKER)
    before = row.view()
    with pytest.raises(KeyError):
        row.set(rss=1, nonsense=2)
    with pytest.raises(KeyError):
        row.say(state="x", nonsense="y")
    assert row.view() == before


def test_a_writer_that_died_inside_a_write_leaves_a_torn_row_and_its_successor_mends_it(board: Board) -> None:
    row = board.row(0)
    row.take(kind=Kind.WORKER)
    row.start_job("job-1")
    odd = struct.unpack_from("@q", board.mapping, HEADER_BYTES)[0] + 1
    struct.pack_into("@q", board.mapping, HEADER_BYTES, odd)
    assert row.view().torn
    assert row.view().job == "job-1"
    board.row(0).take(kind=Kind.WORKER)
    assert not row.view().torn


def test_rows_do_not_touch_each_other(board: Board) -> None:
    for index in range(4):
        board.row(index).take(kind=Kind.WORKER, stream=f"s{index}", name=f"n{index}")
        board.row(index).start_batch([f"job-{index}-{n}" for n in range(64)])
    for index in range(4):
        board.row(index).say(error="x" * 600)
    views = board.rows()
    assert [view.stream for view in views] == ["s0", "s1", "s2", "s3"]
    assert all(view.runs(f"job-{view.index}-63") for view in views)


def test_the_file_has_its_blocks_from_the_start(board: Board) -> None:
    assert os.stat(board.path).st_blocks * 512 >= HEADER_BYTES + 4 * ROW_BYTES


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"x" * 10000, b"WPBOARD2" + bytes(5000)])
def test_something_else_is_not_taken_for_a_board(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "board-1-1"
    path.write_bytes(content)
    with pytest.raises(BoardError):
        Board.attach(str(path))
    assert find_boards(str(tmp_path)) == [(str(path), False)]
    assert sweep(str(tmp_path)) == []


def test_a_living_board_is_alive_and_not_swept(board: Board, tmp_path: Path) -> None:
    assert find_boards(str(tmp_path)) == [(board.path, True)]
    assert sweep(str(tmp_path)) == []
    assert os.path.exists(board.path)


def test_a_board_whose_lock_is_free_but_whose_processes_run_is_not_swept(board: Board, tmp_path: Path) -> None:
    board.row(1).take(kind=Kind.STREAM)
    board.close()
    assert find_boards(str(tmp_path)) == [(board.path, False)]
    assert sweep(str(tmp_path)) == []


def test_a_dead_board_is_swept_unless_it_is_to_be_kept(board: Board, tmp_path: Path) -> None:
    board.close()
    assert sweep(str(tmp_path), keep=[board.path]) == []
    assert sweep(str(tmp_path)) == [board.path]
    assert find_boards(str(tmp_path)) == []


def test_a_dead_board_stays_until_each_stream_that_it_held_was_taken_over(board: Board, tmp_path: Path) -> None:
    """What it shows as running is charged at the take-over; a standby, or a pool of other streams, has charged none."""
    hold(board, a=1000, b=2000, never_held=0)
    board.close()
    assert sweep(str(tmp_path)) == []
    assert sweep(str(tmp_path), taken_over={"a": 3000, "b": 0}) == []
    assert sweep(str(tmp_path), taken_over={"a": 3000, "b": 3000}) == [board.path]


def test_a_living_board_sweeps_those_that_it_has_taken_every_stream_over_from(tmp_path: Path) -> None:
    """Killed pools sweep nothing themselves; their successors must not have to look through all of them for ever."""
    dead = Board.create(str(tmp_path), 3)
    hold(dead, a=1000, b=2000)
    dead.close()
    path = str(tmp_path / "board-1-1")
    os.rename(dead.path, path)
    living = Board.create(str(tmp_path), 3)
    hold(living, a=3000, b=0)
    assert living.sweep_predecessors() == []
    hold(living, a=3000, b=3000)
    assert living.sweep_predecessors() == [path]
    assert find_boards(str(tmp_path)) == [(living.path, True)]
    living.close()


def hold(board: Board, **held_ms: int) -> None:
    """Streams whose processes are gone, and when they were last taken over."""
    for index, (stream, at) in enumerate(held_ms.items()):
        board.row(index).take(kind=Kind.STREAM, stream=stream)
        board.row(index).adopt(2**22 + 1, "nobody")
        board.row(index).set(held_ms=at)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows what a process has open")
def test_a_board_that_was_removed_is_found_with_its_living_master(board: Board, tmp_path: Path) -> None:
    assert find_lost(str(tmp_path)) == []
    board.row(0).take(kind=Kind.MASTER, name="master", state="running")
    os.unlink(board.path)
    assert find_boards(str(tmp_path)) == []
    [path] = find_lost(str(tmp_path))
    found = Board.attach(path, follow=True)
    assert (found.header.pid, found.view(0).state) == (os.getpid(), "running")
    found.close()
    board.close()
    assert find_lost(str(tmp_path)) == []


def test_no_directory_no_boards(tmp_path: Path) -> None:
    assert find_boards(str(tmp_path / "absent")) == []
    assert sweep(str(tmp_path / "absent")) == []


def test_a_removed_board_is_gone(board: Board, tmp_path: Path) -> None:
    board.remove()
    assert os.listdir(tmp_path) == []
