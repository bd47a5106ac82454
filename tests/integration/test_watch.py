"""Watchers of a maildir against the real kernel: what arrives is noticed, whatever happens to the folder."""

import errno
import logging
import os
import select
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from queuekit import watch
from queuekit.contract import Watcher
from queuekit.errors import WatcherFailed
from queuekit.watch import open_watcher, wait_loop, warm_up

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")

PATIENCE = 10.0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "spool"
    make_queue(root)
    return root


def make_queue(root: Path) -> None:
    for folder in ("tmp", "new"):
        (root / folder).mkdir(parents=True)


def deliver(root: Path, name: str) -> None:
    (root / "tmp" / name).write_bytes(b"{}")
    (root / "tmp" / name).rename(root / "new" / name)


@pytest.fixture
def open_one(root: Path) -> Iterator:
    opened: list[Watcher] = []

    def open_one(**options: object) -> Watcher:
        opened.append(open_watcher(str(root), str(root / "new"), **options))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


def is_readable(watcher: Watcher, seconds: float = 0.0) -> bool:
    return bool(select.select([watcher], [], [], seconds)[0])


def refuse(monkeypatch: pytest.MonkeyPatch, call: str, number: int) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(f"queuekit.watch.inotify.INotify.{call}", refused)


class TestInotify:
    def test_is_what_linux_gets_by_itself(self, open_one, monkeypatch):
        monkeypatch.setattr(watch, "filesystem_type", lambda path: "ext4")
        assert open_one().kind == "inotify"

    def test_names_what_was_renamed_or_linked_into_new(self, root, open_one):
        watcher = open_one(force="inotify")
        deliver(root, "one")
        (root / "tmp" / "two").write_bytes(b"")
        os.link(root / "tmp" / "two", root / "new" / "two")
        assert is_readable(watcher, PATIENCE)
        assert watcher.read() == ("one", "two")
        assert not is_readable(watcher)

    def test_with_one_watch_where_it_needs_two_it_polls_and_sleeps(self, root, monkeypatch):
        """What it gave up it is told of once more by the kernel; that must not wake it again and again."""
        from queuekit.watch.inotify import INotify

        (root / "later").mkdir()
        add = INotify.add_watch

        def add_one(instance: INotify, path: str, mask: int) -> int:
            if path.endswith("later"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return int(add(instance, path, mask))

        watcher = open_watcher(str(root), str(root / "new"), str(root / "later"), force="inotify")
        with monkeypatch.context() as kernel:
            kernel.setattr(INotify, "add_watch", add_one)
            (root / "new").rename(root / "old")
            (root / "new").mkdir()
            for _ in range(3):
                assert watcher.read() == ()
                assert watcher.timeout() is not None
                assert not is_readable(watcher)
        assert watcher.read() == ()
        assert watcher.timeout() is None
        deliver(root, "one")
        assert watcher.read() == ("one",)
        watcher.close()

    def test_is_attached_when_made(self, root, open_one):
        watcher = open_one(force="inotify")
        deliver(root, "at-once")
        assert is_readable(watcher)

    def test_has_nothing_to_say_of_departures_and_folders(self, root, open_one):
        deliver(root, "one")
        watcher = open_one(force="inotify")
        (root / "new" / "one").rename(root / "tmp" / "one")
        assert not is_readable(watcher)
        (root / "new" / "folder").mkdir()
        deliver(root, "two")
        assert watcher.read() == ("two",)

    def test_keeps_a_name_that_is_not_utf8(self, root, open_one):
        watcher = open_one(force="inotify")
        with open(os.fsencode(root / "new") + b"/\xff", "wb"):
            pass
        (name,) = watcher.read()
        assert os.fsencode(name) == b"\xff"

    def test_needs_no_timeout_while_it_is_attached(self, open_one):
        watcher = open_one(force="inotify")
        assert watcher.timeout() is None
        assert watcher.check()

    def test_is_closed_on_exec_and_closes_twice(self, open_one):
        watcher = open_one(force="inotify")
        assert not os.get_inheritable(watcher.fileno())
        watcher.close()
        watcher.close()

    def test_an_overflow_means_look_at_everything(self, root, open_one):
        limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
        watcher = open_one(force="inotify")
        (root / "tmp" / "a").write_bytes(b"")
        names = [str(root / folder) for folder in ("tmp/a", "new/a", "new/b")]
        os.rename(names[0], names[1])
        for turn in range(limit + 1):
            os.rename(names[1 + turn % 2], names[2 - turn % 2])
        assert watcher.read() == ()
        deliver(root, "after")
        assert watcher.read() == ("after",)

    def test_follows_a_folder_that_was_deleted_and_made_again(self, root, open_one):
        watcher = open_one(force="inotify")
        (root / "new").rmdir()
        (root / "new").mkdir()
        assert is_readable(watcher, PATIENCE)
        assert watcher.read() == ()
        deliver(root, "afterwards")
        assert watcher.read() == ("afterwards",)

    def test_a_missing_folder_is_polled_for_until_it_is_back(self, root, open_one):
        watcher = open_one(force="inotify", poll_interval=0.05)
        (root / "new").rename(root / "gone")
        assert watcher.read() == ()
        assert watcher.timeout() == 0.05
        assert not watcher.check()
        watcher.read()
        (root / "gone" / "stray").write_bytes(b"")
        assert not is_readable(watcher), "the old folder must not keep waking us"
        (root / "new").mkdir()
        assert watcher.read() == ()
        assert watcher.timeout() is None
        assert watcher.check()
        deliver(root, "afterwards")
        assert watcher.read() == ("afterwards",)

    def test_a_folder_that_is_missing_at_first_is_no_error(self, root, open_one):
        (root / "new").rmdir()
        watcher = open_one(force="inotify")
        assert watcher.timeout() is not None
        (root / "new").mkdir()
        assert not watcher.check()
        assert watcher.check()

    def test_a_queue_that_was_moved_away_is_noticed_by_the_check(self, root, open_one):
        watcher = open_one(force="inotify")
        root.rename(root.with_name("spool.old"))
        make_queue(root)
        assert not watcher.check()
        deliver(root, "in-the-new-one")
        assert watcher.read() == ("in-the-new-one",)
        assert watcher.check()

    def test_late_events_of_the_old_folder_do_not_matter(self, root, open_one):
        watcher = open_one(force="inotify")
        root.rename(root.with_name("spool.old"))
        make_queue(root)
        watcher.check()
        deliver(root.with_name("spool.old"), "in-the-old-one")
        assert watcher.read() == ()

    def test_a_watch_refused_later_is_polled_for_and_said_once(self, root, open_one, monkeypatch, caplog):
        watcher = open_one(force="inotify")
        (root / "new").rmdir()
        (root / "new").mkdir()
        with monkeypatch.context() as kernel:
            refuse(kernel, "add_watch", errno.ENOSPC)
            assert watcher.read() == ()
            assert watcher.read() == ()
            assert watcher.timeout() is not None
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert watcher.read() == ()
        assert watcher.timeout() is None

    def test_a_linked_folder_is_not_followed(self, root, open_one):
        (root / "new").rename(root / "elsewhere")
        (root / "new").symlink_to(root / "elsewhere")
        with pytest.raises(WatcherFailed):
            open_one(force="inotify")

    def test_warming_up_leaves_no_descriptor(self):
        before = set(os.listdir("/proc/self/fd"))
        warm_up()
        assert set(os.listdir("/proc/self/fd")) == before


class TestWhereInotifyCannotBe:
    @pytest.mark.parametrize(
        ("call", "number", "limit"),
        [("__init__", errno.EMFILE, "max_user_instances"), ("add_watch", errno.ENOSPC, "max_user_watches")],
    )
    def test_one_warning_names_inotify_and_the_limit(self, open_one, monkeypatch, caplog, call, number, limit):
        monkeypatch.setattr(watch, "filesystem_type", lambda path: "ext4")
        refuse(monkeypatch, call, number)
        monkeypatch.setattr("queuekit.watch.inotify.INotify.close", lambda self: None, raising=False)
        assert open_one().kind == "poll"
        (record,) = (each for each in caplog.records if each.levelno >= logging.WARNING)
        assert "inotify" in record.getMessage()
        assert limit in record.getMessage()

    def test_forced_it_raises(self, open_one, monkeypatch):
        refuse(monkeypatch, "add_watch", errno.ENOSPC)
        with pytest.raises(WatcherFailed, match="max_user_watches"):
            open_one(force="inotify")

    @pytest.mark.parametrize("filesystem", ["nfs4", "fuse.sshfs", "overlay", "cifs", "9p"])
    def test_a_filesystem_that_stays_silent_is_polled(self, open_one, monkeypatch, filesystem):
        monkeypatch.setattr(watch, "filesystem_type", lambda path: filesystem)
        assert open_one().kind == "poll"

    def test_an_unknown_word_is_refused(self, open_one):
        with pytest.raises(ValueError, match="fsevents"):
            open_one(force="fsevents")

    def test_what_another_system_has_cannot_be_forced(self, open_one):
        with pytest.raises(WatcherFailed, match="kqueue"):
            open_one(force="kqueue")


def test_the_filesystem_is_that_of_the_deepest_mount(monkeypatch, tmp_path):
    class Mount:
        def __init__(self, mountpoint: str, fstype: str) -> None:
            self.mountpoint, self.fstype = mountpoint, fstype

    inner = str(tmp_path.resolve())
    mounts = [Mount(inner, "xfs"), Mount(inner, "nfs4"), Mount("/", "ext4"), Mount(inner + "/que", "tmpfs")]
    monkeypatch.setattr("psutil.disk_partitions", lambda all: mounts)
    assert watch.filesystem_type(inner + "/queue") == "nfs4"
    assert watch.filesystem_type("/nowhere") == "ext4"


class TestPoll:
    def test_is_due_at_its_interval_and_never_readable(self, root, open_one):
        watcher = open_one(force="poll", poll_interval=0.07)
        deliver(root, "one")
        assert watcher.timeout() == 0.07
        assert not is_readable(watcher)
        assert watcher.read() == ()

    def test_notices_that_the_queue_was_replaced(self, root, open_one):
        watcher = open_one(force="poll")
        assert watcher.check()
        root.rename(root.with_name("spool.old"))
        assert not watcher.check()
        assert not watcher.check()
        make_queue(root)
        assert not watcher.check()
        assert watcher.check()

    def test_closes_twice(self, open_one):
        watcher = open_one(force="poll")
        descriptor = watcher.fileno()
        watcher.close()
        watcher.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)

    def test_no_descriptor_at_all_is_an_error(self, open_one, monkeypatch):
        def refused() -> tuple[int, int]:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        monkeypatch.setattr(os, "pipe", refused)
        with pytest.raises(WatcherFailed, match="descriptor"):
            open_one(force="poll")


class Waiting:
    """A `wait_loop` in a thread, what it was woken with, and what a look at each wake would have found."""

    def __init__(self, watcher: Watcher, root: Path | None = None, **periods: float) -> None:
        self.wakes: list[tuple[str, ...]] = []
        self.found: set[str] = set()
        self._root = root
        self.stop = threading.Event()
        self._changed = threading.Condition()
        self.thread = threading.Thread(target=wait_loop, args=(watcher, self._wake, self.stop), kwargs=periods)

    def _wake(self, names: tuple[str, ...]) -> None:
        with self._changed:
            self.wakes.append(names)
            if self._root and (self._root / "new").exists():
                self.found |= set(os.listdir(self._root / "new"))
            self._changed.notify_all()

    def until(self, fact) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: fact(self.wakes), PATIENCE), self.wakes

    def __enter__(self) -> "Waiting":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


class TestWaitLoop:
    def test_looks_once_and_then_at_each_arrival(self, root, open_one):
        with Waiting(open_one(force="inotify")) as waiting:
            waiting.until(lambda wakes: wakes == [()])
            deliver(root, "one")
            waiting.until(lambda wakes: ("one",) in wakes)

    def test_what_arrives_between_attaching_and_waiting_is_not_lost(self, root, open_one):
        watcher = open_one(force="inotify")
        deliver(root, "early")
        with Waiting(watcher) as waiting:
            waiting.until(lambda wakes: ("early",) in wakes)

    def test_looks_at_each_poll(self, open_one):
        with Waiting(open_one(force="poll", poll_interval=0.01)) as waiting:
            waiting.until(lambda wakes: len(wakes) >= 4)

    def test_looks_after_each_scan_period_without_an_event(self, open_one):
        with Waiting(open_one(force="inotify"), scan=0.01) as waiting:
            waiting.until(lambda wakes: len(wakes) >= 4)

    def test_finds_the_queue_that_took_the_place_of_the_watched_one(self, root, open_one):
        with Waiting(open_one(force="inotify"), root=root, check=0.01) as waiting:
            waiting.until(lambda wakes: wakes == [()])
            root.rename(root.with_name("spool.old"))
            make_queue(root)
            deliver(root, "in-the-new-one")
            waiting.until(lambda wakes: "in-the-new-one" in waiting.found)

    def test_an_error_of_the_callers_ends_it(self, open_one):
        def fail(names: tuple[str, ...]) -> None:
            raise RuntimeError("no")

        with pytest.raises(RuntimeError, match="no"):
            wait_loop(open_one(force="inotify"), fail, None)

    def test_an_error_at_a_later_wake_ends_it_too(self, root, open_one):
        def fail_at_names(names: tuple[str, ...]) -> None:
            if names:
                raise RuntimeError(names[0])

        watcher = open_one(force="inotify")
        deliver(root, "one")
        with pytest.raises(RuntimeError, match="one"):
            wait_loop(watcher, fail_at_names, None)

    def test_does_nothing_when_it_is_stopped_already(self, open_one):
        wakes: list[tuple[str, ...]] = []
        stop = threading.Event()
        stop.set()
        wait_loop(open_one(force="inotify"), wakes.append, stop)
        assert wakes == []
