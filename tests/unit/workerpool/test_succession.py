"""Who is charged for a stream process that died: told by boards in a folder, of processes that never were."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from workerpool.board import DIED, KILLED, Board, Kind
from workerpool.process import is_running, reap, spawn, start_identity
from workerpool.stream import succession
from workerpool.stream.succession import find, in_place, kill_left_over

OWNER = "pid-4000000-abc"
NOBODY = (4_000_000, "1@no-such-boot")


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    made = Board.create(str(tmp_path), 12)
    yield made
    made.remove()


def play_stream(
    board: Board, first: int = 1, *, owner: str = OWNER, stream: str = "encode", alive: bool = False
) -> None:
    row = board.row(first)
    row.take(kind=Kind.STREAM, stream=stream, name=owner)
    if not alive:
        row.adopt(*NOBODY)


def play_worker(board: Board, index: int, *jobs: str, stream: str = "encode", end: bool = False) -> None:
    row = board.row(index)
    row.take(kind=Kind.WORKER, stream=stream, name=f"{stream}-{index}")
    if len(jobs) > 1:
        row.start_batch(jobs)
    elif jobs:
        row.start_job(jobs[0])
    if end:
        row.end_job(done=1)
    row.adopt(NOBODY[0] + index, NOBODY[1])


def charged(board: Board, tmp_path: Path, owner: str = OWNER) -> list[str]:
    found = find(owner, str(tmp_path), in_place(board, 1, 3))
    assert found is not None
    return [job_id for job_id, _ in found.running_jobs()]


def test_nobody_is_charged_when_the_master_has_killed_its_processes_itself(board, tmp_path):
    board.row(0).take(kind=Kind.MASTER, name="master", state=KILLED)
    play_stream(board)
    play_worker(board, 2, "ran")
    found = find(OWNER, str(tmp_path), None)
    assert found is not None
    assert found.running_jobs() == []
    assert len(found.workers) == 1


def test_only_what_was_running_is_charged(board, tmp_path):
    play_stream(board)
    play_worker(board, 2, "ran")
    play_worker(board, 3, "ended", end=True)
    play_worker(board, 4)
    assert charged(board, tmp_path) == ["ran"]


def test_of_a_batch_nobody_is_known_to_blame(board, tmp_path):
    play_stream(board)
    play_worker(board, 2, "a", "b")
    play_worker(board, 3, "c")
    assert charged(board, tmp_path) == ["c"]


def test_rows_that_were_never_taken_tell_nothing(board, tmp_path):
    assert find(OWNER, str(tmp_path), in_place(board, 1, 3)) is None


def test_the_place_is_read_before_it_is_taken_again(board, tmp_path):
    play_stream(board)
    play_worker(board, 2, "ran")
    before = in_place(board, 1, 3)
    board.row(1).take(kind=Kind.STREAM, stream="encode", name="pid-1-successor")
    found = find(OWNER, str(tmp_path), before)
    assert found is not None
    assert [job_id for job_id, _ in found.running_jobs()] == ["ran"]


def test_another_holder_than_the_one_in_place_is_looked_for_on_every_board(board, tmp_path):
    play_stream(board, owner="pid-1-in-this-place", alive=True)
    play_stream(board, 6)
    play_worker(board, 7, "mine")
    play_worker(board, 8, "foreign", stream="another")
    play_worker(board, 9, "behind")
    found = find(OWNER, str(tmp_path), in_place(board, 1, 3))
    assert found is not None
    assert [job_id for job_id, _ in found.running_jobs()] == ["mine"]


def test_without_a_place_the_boards_alone_tell(board, tmp_path):
    play_stream(board, 6)
    play_worker(board, 7, "mine")
    found = find(OWNER, str(tmp_path), None)
    assert found is not None
    assert [row.job for row in found.workers] == ["mine"]


def test_nobody_is_charged_while_the_stream_process_lives(board, tmp_path):
    play_stream(board, alive=True)
    play_worker(board, 2, "ran")
    assert find(OWNER, str(tmp_path), in_place(board, 1, 3)) is None
    assert find(OWNER, str(tmp_path), None) is None


def test_nobody_is_charged_after_a_reboot(board, tmp_path, monkeypatch):
    play_stream(board)
    play_worker(board, 2, "ran")
    monkeypatch.setattr(succession, "boot_id", lambda: "another-boot")
    assert find(OWNER, str(tmp_path), None) is None


def test_files_that_are_no_boards_are_passed_over(board, tmp_path):
    (tmp_path / "board-1-nonsense").write_bytes(b"x" * 10_000)
    (tmp_path / "board-2-empty").touch()
    (tmp_path / "board-3-folder").mkdir()
    play_stream(board)
    assert find(OWNER, str(tmp_path), None) is not None
    assert find("pid-1-unknown", str(tmp_path), None) is None


def test_a_folder_that_is_not_there_knows_of_nobody(tmp_path):
    assert find(OWNER, str(tmp_path / "gone"), None) is None


# -- real processes


def test_workers_that_outlived_their_stream_process_are_gone_afterwards(board):
    child = spawn(_wait_for_ever, name="worker", own_group=True)
    row = board.row(2)
    row.take(kind=Kind.WORKER, stream="encode", name="encode-1")
    row.adopt(child.pid, child.start)
    row.set(session=child.session)
    kill_left_over([board.view(2)])
    assert not is_running(child.pid, child.start)
    (end,) = [each for each in reap() if each.pid == child.pid]
    assert end.signal == signal.SIGKILL


def test_a_process_that_only_has_the_pid_of_a_worker_is_left_alone(board):
    row = board.row(2)
    row.take(kind=Kind.WORKER, stream="encode", name="encode-1")
    child = spawn(_wait_for_ever, name="stranger", own_group=True)
    row.adopt(child.pid, "1@no-such-boot")
    kill_left_over([board.view(2)])
    assert is_running(child.pid, child.start)
    os.kill(child.pid, signal.SIGKILL)
    os.waitpid(child.pid, 0)


def test_the_row_of_this_very_process_is_no_left_over(board):
    board.row(2).take(kind=Kind.WORKER, stream="encode", name="encode-inline")
    kill_left_over([board.view(2)])
    assert start_identity(os.getpid()) is not None


def _wait_for_ever() -> int:
    signal.pause()
    return 0


# -- what is told


def told(board: Board, tmp_path: Path, *, here: bool = True) -> list[str]:
    """How each charged job was lost; `here`: by a process of this very pool."""
    found = find(OWNER, str(tmp_path), in_place(board, 1, 3) if here else None)
    assert found is not None
    return [how for _, how in found.running_jobs()]


def test_a_job_lost_with_a_stream_process_of_this_pool_has_its_end_and_its_begin(board, tmp_path):
    play_stream(board)
    board.row(1).say(state=DIED, error="was killed by SIGKILL")
    play_worker(board, 2, "ran")
    board.row(2).set(since_ms=1_700_000_000_000)
    assert told(board, tmp_path) == [
        "encode-2 died with its stream's process, which was killed by SIGKILL, while it ran this job\n"
        "the run had begun 2023-11-14 22:13:20 UTC; it is charged as a crash"
    ]


def test_a_job_lost_with_a_whole_pool_tells_which(board, tmp_path):
    play_stream(board)
    play_worker(board, 2, "ran")
    (how,) = told(board, tmp_path, here=False)
    process = f"its stream's process (of pool {os.getpid()})"
    assert how.startswith(f"encode-2 died with {process}, which was killed, nobody saw by whom, while")


def test_a_run_that_is_charged_nothing_is_told_of_for_the_log(board, tmp_path):
    board.row(0).take(kind=Kind.MASTER, name="master", state=KILLED)
    play_stream(board)
    play_worker(board, 2, "ran")
    play_worker(board, 3, "ended", end=True)
    board.row(2).set(since_ms=1_700_000_000_000)
    found = find(OWNER, str(tmp_path), None)
    assert found is not None
    assert found.blameless_runs() == [
        f"job ran ran in encode-2 since 2023-11-14 22:13:20 UTC and was cut short when pool {os.getpid()} killed it; "
        "it is charged nothing and runs again"
    ]


def test_a_batch_that_nobody_is_known_to_blame_for_is_told_of_once(board, tmp_path):
    play_stream(board)
    play_worker(board, 2, "a", "b", "c")
    play_worker(board, 3, "charged")
    found = find(OWNER, str(tmp_path), in_place(board, 1, 3))
    assert found is not None
    (sentence,) = found.blameless_runs()
    assert sentence.startswith("job a (with 2 others) ran in encode-2 since ")
