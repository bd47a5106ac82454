"""The file that takes up room until it is needed: really allocated, whole or missing, and one for everybody."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from queuekit import QueueKit
from queuekit.backends.maildir.fsck import examine
from workerpool.stream import reserve
from workerpool.stream.reserve import BYTES, Reserve, means_full


def file_of(folder: Path) -> Path:
    return folder / "reserve"


def check_whole(folder: Path) -> None:
    facts = file_of(folder).lstat()
    assert stat.S_ISREG(facts.st_mode)
    assert stat.S_IMODE(facts.st_mode) == 0o600
    assert facts.st_size == BYTES
    assert facts.st_blocks * 512 >= BYTES


def test_it_takes_up_its_room_and_gives_it_back_once(tmp_path: Path) -> None:
    kept = Reserve(str(tmp_path))
    kept.make()
    check_whole(tmp_path)
    assert kept.give_up()
    assert not file_of(tmp_path).exists()
    assert not kept.give_up()


def test_making_it_again_changes_nothing(tmp_path: Path) -> None:
    Reserve(str(tmp_path)).make()
    before = file_of(tmp_path).stat()
    Reserve(str(tmp_path)).make()
    after = file_of(tmp_path).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_what_a_killed_process_had_begun_is_made_whole(tmp_path: Path) -> None:
    file_of(tmp_path).touch(0o600)
    os.truncate(file_of(tmp_path), 4096)
    Reserve(str(tmp_path)).make()
    check_whole(tmp_path)


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL])
def test_where_room_cannot_be_allocated_it_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    Reserve(str(tmp_path)).make()
    check_whole(tmp_path)


def test_a_system_that_knows_no_allocating_writes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    Reserve(str(tmp_path)).make()
    check_whole(tmp_path)


def test_nothing_is_left_of_one_that_did_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(OSError, match="No space left"):
        Reserve(str(tmp_path)).make()
    assert not file_of(tmp_path).exists()


@pytest.mark.parametrize(
    ("blocks", "files", "fits"),
    [(512, (1000, 1000), True), (511, (1000, 1000), False), (512, (1000, 15), False), (512, (0, 0), True)],
)
def test_it_is_not_made_of_the_last_room_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: int, files: tuple[int, int], fits: bool
) -> None:
    """Twice as much must be free, and some inodes, where there is a limit to these."""
    facts = SimpleNamespace(f_bavail=blocks, f_frsize=4096, f_files=files[0], f_favail=files[1])
    monkeypatch.setattr(reserve.os, "statvfs", lambda _: facts)
    if fits:
        Reserve(str(tmp_path)).make()
    else:
        with pytest.raises(OSError, match="No space left") as refused:
            Reserve(str(tmp_path)).make()
        assert means_full(refused.value)
    assert file_of(tmp_path).exists() == fits


def test_what_is_no_file_is_neither_used_nor_removed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    file_of(tmp_path).symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        Reserve(str(tmp_path)).make()
    assert victim.read_text() == "precious"
    assert file_of(tmp_path).is_symlink()


def test_a_pipe_of_that_name_stays_where_it_is(tmp_path: Path) -> None:
    os.mkfifo(file_of(tmp_path))
    with pytest.raises(OSError, match="no regular file"):
        Reserve(str(tmp_path)).make()
    assert file_of(tmp_path).is_fifo()


def test_a_full_disk_is_told_from_other_troubles_however_deep_it_is() -> None:
    outer = RuntimeError("outer")
    outer.__cause__ = OSError(errno.EDQUOT, "Disk quota exceeded")
    assert means_full(outer)
    assert means_full(OSError(errno.ENOSPC, "No space left on device"))
    assert not means_full(OSError(errno.EIO, "Input/output error"))
    assert not means_full(RuntimeError("outer"))


def test_fsck_knows_it_and_names_what_is_none(tmp_path: Path) -> None:
    root = tmp_path / "spool"
    QueueKit(root).close()
    private = root / ".workerpool"
    Reserve(str(private)).make()
    assert list(examine(str(root), max_job_bytes=2**20, ttl=15.0)) == []
    file_of(private).unlink()
    file_of(private).mkdir()
    found = examine(str(root), max_job_bytes=2**20, ttl=15.0)
    assert [(each.kind, each.path) for each in found] == [("not-regular", ".workerpool/reserve")]
