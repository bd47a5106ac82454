"""What the system refuses to locks and their folders: an error of ours or none, and nobody stays locked out by it."""

from __future__ import annotations

import builtins
import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from queuekit import locks
from queuekit.errors import BackendUnavailable
from queuekit.locks import AliveFile, Life, StreamLock, boot_id, life_of
from queuekit.private import make_folders


def refusing(number: int) -> Any:
    """A call that gives this error, whatever it is asked."""

    def call(*args: object, **kwargs: object) -> object:
        raise OSError(number, os.strerror(number))

    return call


def test_a_lock_that_cannot_be_unlocked_is_closed_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, other = StreamLock(str(tmp_path / "s.lock")), StreamLock(str(tmp_path / "s.lock"), patience=0.0)
    with lock:
        monkeypatch.setattr(fcntl, "flock", refusing(errno.EIO))
    monkeypatch.undo()
    with other, pytest.raises(BackendUnavailable, match="held"), StreamLock(str(tmp_path / "s.lock"), patience=0.0):
        pass
    with lock:
        pass


def test_what_closing_a_lock_reports_is_nobodys_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, alive, real = StreamLock(str(tmp_path / "s.lock")), AliveFile(str(tmp_path / "me.alive")), os.close
    with lock:
        alive.hold()

    def close(fd: int) -> None:
        real(fd)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "close", close)
    lock.close()
    alive.drop()
    monkeypatch.undo()
    assert life_of(str(tmp_path / "me.alive")) is Life.UNKNOWN


def test_an_alive_file_that_cannot_be_removed_is_given_up_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive = AliveFile(str(tmp_path / "me.alive"))
    alive.hold()
    monkeypatch.setattr(os, "unlink", refusing(errno.EROFS))
    alive.drop()
    assert life_of(str(tmp_path / "me.alive")) is Life.DEAD


def test_a_lock_file_that_is_another_at_each_look_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "_is_at", lambda fd, path: False)
    with pytest.raises(BackendUnavailable, match="another file"), StreamLock(str(tmp_path / "s.lock"), patience=0.02):
        pass


def test_nobody_gets_another_boot_id_for_want_of_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive = AliveFile(str(tmp_path / "me.alive"))
    boot_id.cache_clear()
    monkeypatch.setattr(builtins, "open", refusing(errno.EMFILE))
    with pytest.raises(OSError, match="Too many open files"):
        alive.hold()
    monkeypatch.undo()
    alive.hold()
    assert (tmp_path / "me.alive").read_text().startswith(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    alive.drop()


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOENT])
def test_folders_above_one_that_cannot_be_looked_at_are_not_sought_for_ever(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "stat", refusing(number))
    monkeypatch.setattr(os, "mkdir", refusing(number))
    with pytest.raises(OSError, match=os.strerror(number)):
        make_folders(str(tmp_path / "a" / "b"))
