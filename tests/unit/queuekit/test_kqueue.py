"""The kqueue watcher against a stand-in for the kernel: what it asks for, and what it does with what it is told."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from queuekit.watch.base import Place
from queuekit.watch.kqueue import KqueueWatcher


class Kernel:
    """As much of `select` as the watcher uses; events are put in by the test."""

    KQ_FILTER_VNODE, KQ_EV_ADD, KQ_EV_CLEAR = -4, 1, 32
    KQ_NOTE_DELETE, KQ_NOTE_WRITE, KQ_NOTE_EXTEND, KQ_NOTE_RENAME, KQ_NOTE_REVOKE = 1, 2, 4, 32, 64

    def __init__(self) -> None:
        self.pending: list[SimpleNamespace] = []
        self.watched: list[SimpleNamespace] = []
        self.closed = False

    def kqueue(self) -> "Kernel":
        return self

    def kevent(self, ident: int, **facts: int) -> SimpleNamespace:
        return SimpleNamespace(ident=ident, inode=os.fstat(ident).st_ino, **facts)

    def control(self, changes, most: int, timeout: float) -> list[SimpleNamespace]:
        self.watched += changes or []
        taken, self.pending = self.pending[:most], self.pending[most:]
        return taken

    def fileno(self) -> int:
        return 99

    def close(self) -> None:
        self.closed = True

    def happened(self, note: int) -> None:
        self.pending.append(SimpleNamespace(fflags=note))


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "new").mkdir()
    return tmp_path


@pytest.fixture
def watcher(root, kernel):
    watcher = KqueueWatcher(Place(str(root), str(root / "new")), kernel=kernel)
    yield watcher
    watcher.close()


def test_it_asks_for_every_change_of_the_folder(root, kernel, watcher):
    (watch,) = kernel.watched
    assert watch.inode == os.stat(root / "new").st_ino
    assert watch.filter == kernel.KQ_FILTER_VNODE
    for note in (kernel.KQ_NOTE_WRITE, kernel.KQ_NOTE_EXTEND, kernel.KQ_NOTE_DELETE, kernel.KQ_NOTE_RENAME):
        assert watch.fflags & note
    assert watcher.fileno() == 99
    assert watcher.timeout() is None


def test_a_change_means_look(kernel, watcher):
    kernel.happened(kernel.KQ_NOTE_WRITE)
    assert watcher.read() == ()
    assert kernel.pending == []
    assert len(kernel.watched) == 1


@pytest.mark.parametrize("note", [Kernel.KQ_NOTE_DELETE, Kernel.KQ_NOTE_RENAME, Kernel.KQ_NOTE_REVOKE])
def test_a_folder_that_went_away_is_opened_anew(root, kernel, watcher, note):
    (root / "new").rename(root / "old")
    (root / "new").mkdir()
    kernel.happened(note)
    assert watcher.read() == ()
    assert kernel.watched[-1].inode == os.stat(root / "new").st_ino
    assert watcher.check()


def test_a_missing_folder_is_polled_for(root, kernel, watcher):
    (root / "new").rmdir()
    assert not watcher.check()
    assert watcher.timeout() == 0.2
    (root / "new").mkdir()
    watcher.read()
    assert watcher.timeout() is None


def test_closing_gives_both_descriptors_back(kernel, watcher):
    folder = kernel.watched[0].ident
    watcher.close()
    watcher.close()
    assert kernel.closed
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(folder)
