"""The file that is a pause: made once, removed once, and a pause whatever is in it."""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from pathlib import Path

import pytest

from workerpool import pauses


def file_of(folder: Path, stream: str = "encode") -> Path:
    return folder / "pauses" / stream


def test_a_pause_tells_since_when_and_by_whom(tmp_path: Path) -> None:
    before = time.time_ns() // 1_000_000
    made, is_new = pauses.pause(str(tmp_path), "encode")
    assert is_new
    assert before <= made.since_ms <= time.time_ns() // 1_000_000
    assert made.pid == os.getpid()
    assert made.user
    assert pauses.find(str(tmp_path), "encode") == made
    assert pauses.find(str(tmp_path), "dreaming") is None


def test_the_file_is_json_under_the_name_of_the_lease(tmp_path: Path) -> None:
    made, _ = pauses.pause(str(tmp_path), "a.b")
    said = json.loads(file_of(tmp_path, "a_b").read_bytes())
    assert said == {"pid": made.pid, "since_ms": made.since_ms, "stream": "a.b", "user": made.user}


def test_a_second_pause_changes_nothing_and_says_since_when(tmp_path: Path) -> None:
    first, _ = pauses.pause(str(tmp_path), "encode")
    content = file_of(tmp_path).read_bytes()
    assert pauses.pause(str(tmp_path), "encode") == (first, False)
    assert file_of(tmp_path).read_bytes() == content


def test_resuming_ends_it_once(tmp_path: Path) -> None:
    made, _ = pauses.pause(str(tmp_path), "encode")
    assert pauses.resume(str(tmp_path), "encode") == made
    assert pauses.find(str(tmp_path), "encode") is None
    assert pauses.resume(str(tmp_path), "encode") is None
    assert list((tmp_path / "pauses").iterdir()) == []


def test_looking_and_resuming_make_no_folder(tmp_path: Path) -> None:
    assert pauses.find(str(tmp_path / "absent"), "encode") is None
    assert pauses.resume(str(tmp_path / "absent"), "encode") is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mask", [0o000, 0o777])
def test_it_is_private_and_readable_under_any_umask(tmp_path: Path, mask: int) -> None:
    (tmp_path / "pauses").mkdir()
    before = os.umask(mask)
    try:
        pauses.pause(str(tmp_path), "encode")
    finally:
        os.umask(before)
    assert stat.S_IMODE(file_of(tmp_path).stat().st_mode) == 0o600


@pytest.mark.parametrize("content", [b"", b'{"since_', b"[]", b'{"since_ms": "soon", "pid": null, "user": 3}', b"\xff"])
def test_a_file_with_anything_in_it_is_a_pause_since_it_was_written(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "pauses").mkdir()
    file_of(tmp_path).write_bytes(content)
    os.utime(file_of(tmp_path), (1000, 1000))
    assert pauses.find(str(tmp_path), "encode") == pauses.Pause(stream="encode", since_ms=1_000_000)
    assert pauses.resume(str(tmp_path), "encode") is not None
    assert pauses.find(str(tmp_path), "encode") is None


def test_a_pipe_or_a_link_blocks_nobody_and_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "pauses").mkdir()
    os.mkfifo(file_of(tmp_path, "pipe"))
    file_of(tmp_path, "link").symlink_to("/nowhere")
    for stream in ("pipe", "link"):
        assert pauses.find(str(tmp_path), stream) is not None
        assert pauses.pause(str(tmp_path), stream)[1] is False
        assert pauses.resume(str(tmp_path), stream) is not None


def test_a_pause_that_cannot_be_written_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_fd: int, _data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("workerpool.pauses.os.write", full)
    with pytest.raises(OSError, match="No space"):
        pauses.pause(str(tmp_path), "encode")
    assert pauses.find(str(tmp_path), "encode") is None


def test_what_cannot_be_told_is_an_error_and_no_answer(tmp_path: Path) -> None:
    (tmp_path / "pauses").write_text("a file where the folder should be")
    with pytest.raises(NotADirectoryError):
        pauses.find(str(tmp_path), "encode")


def test_of_many_who_pause_at_once_one_is_told_that_it_was_theirs(tmp_path: Path) -> None:
    start, answers = threading.Barrier(8), []

    def person() -> None:
        start.wait()
        answers.append(pauses.pause(str(tmp_path), "encode")[1])

    people = [threading.Thread(target=person) for _ in range(8)]
    for each in people:
        each.start()
    for each in people:
        each.join()
    assert sorted(answers) == [False] * 7 + [True]
