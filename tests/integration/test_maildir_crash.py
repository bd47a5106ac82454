"""A process that ends without clean-up before any one of its file calls loses nothing and doubles nothing.

Each story is run in a forked child that dies before call 1, 2, 3, … until it finishes; then the next holder looks.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from children import in_child
from queue_stories import BARRIER_FROM, FOLDER_STORIES, STORIES, STREAM, Folder, Recovered, Story, check, job, recover

from queuekit import lease as lease_module
from queuekit.backends.maildir import mount
from queuekit.backends.maildir.backend import FilesystemBackend
from queuekit.testing.faults import DIED, FaultyOps, die_at


@pytest.fixture(autouse=True)
def few_files_need_a_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mount, "_SYNC_EACH", BARRIER_FROM)


def recovered(root: Path) -> Recovered:
    return recover(Folder(str(root), syncing=False))


def play(root: Path, story: Story, number: int) -> None:
    ops = FaultyOps(syncing=False)
    act = story.prepare(FilesystemBackend(root, ops=ops))
    ops.arm(die_at(number))
    act()


@pytest.mark.parametrize("story", STORIES + FOLDER_STORIES, ids=str)
def test_a_death_before_any_call_loses_nothing(story: Story, tmp_path: Path) -> None:
    for number in range(1, 500):
        root = tmp_path / str(number)
        code = in_child(lambda root=root, number=number: play(root, story, number))
        assert code in {0, DIED}, f"the story itself failed at call {number}"
        check(Folder(str(root), syncing=False), story, acknowledged=code == 0)
        if code == 0:
            assert number > 1
            return
    pytest.fail("the story never finished")


def test_a_death_while_mounting_leaves_a_root_that_mounts(tmp_path: Path) -> None:
    for number in range(1, 200):
        root = tmp_path / str(number)

        def mount(root: Path = root, number: int = number) -> None:
            ops = FaultyOps(die_at(number))
            ops.arm()
            FilesystemBackend(root, ops=ops)

        code = in_child(mount)
        queue = FilesystemBackend(root)
        queue.write(job("a"))
        queue.close()
        assert set(recovered(root).delivered) == {"a"}
        if code == 0:
            return
    pytest.fail("mounting never finished")


CALLS = ("open", "write", "pwrite", "ftruncate", "fchmod", "fsync", "replace", "rename", "unlink", "close", "listdir")


def test_a_death_while_taking_a_lease_over_leaves_it_to_the_next(tmp_path: Path) -> None:
    fences = []
    for number in range(1, 200):
        root = tmp_path / str(number)
        with_dead_holder(root)
        code = in_child(lambda root=root, number=number: take_over_dying(root, number))
        assert code in {0, DIED}
        successor = FilesystemBackend(root).lease(STREAM)
        assert successor.try_acquire(), f"nobody can have it after a death at call {number}"
        assert successor.fence >= 2
        fences.append(successor.fence)
        assert set(recover_with(root, successor)) == {"a"}
        if code == 0:
            assert fences[0] == 2
            assert fences[-1] == 3
            return
    pytest.fail("the take-over never finished")


def with_dead_holder(root: Path) -> None:
    """A root whose stream is held by a process that is dead, with a job in flight."""

    def hold() -> None:
        queue = FilesystemBackend(root)
        queue.write(job("a"))
        lease = queue.lease(STREAM)
        assert lease.try_acquire()
        assert queue.drain_available(STREAM, lease=lease)

    assert in_child(hold) == 0


def take_over_dying(root: Path, number: int) -> None:
    lease = FilesystemBackend(root).lease(STREAM)
    count = 0

    def dying(name: str) -> Callable[..., object]:
        real = getattr(os, name)

        def call(*args: object, **kwargs: object) -> object:
            nonlocal count
            count += 1
            if count == number:
                os._exit(DIED)
            return real(*args, **kwargs)

        return call

    for name in CALLS:
        setattr(lease_module.os, name, dying(name))
    assert lease.try_acquire()


def recover_with(root: Path, lease: lease_module.DrainLease) -> list[str]:
    lease.release()
    return list(recovered(root).delivered)
