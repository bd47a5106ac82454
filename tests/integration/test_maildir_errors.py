"""An error of the disk at any one file call, once or from then on: a QueueError comes out, no job is lost, and the same
act succeeds once the fault is gone."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

import pytest
from queue_stories import BARRIER_FROM, FOLDER_STORIES, MAY_FIND_IT_DONE, SAYS_DONE, STORIES, Act, Folder, Story, check

from queuekit.backends.maildir import mount
from queuekit.backends.maildir.backend import FilesystemBackend
from queuekit.errors import QueueError
from queuekit.testing.faults import FaultyOps, fail_at


def attempt(act: Act) -> QueueError | None:
    try:
        act()
    except QueueError as error:
        return error
    return None


@pytest.fixture(autouse=True)
def few_files_need_a_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mount, "_SYNC_EACH", BARRIER_FROM)


FAULTS = [
    pytest.param(errno.ENOSPC, False, id="full disk, once"),
    pytest.param(errno.ENOSPC, True, id="full disk, lasting"),
    pytest.param(errno.EIO, False, id="bad disk, once"),
    pytest.param(errno.EMFILE, True, id="no descriptors, lasting"),
    pytest.param(errno.EACCES, False, id="no access, once"),
    pytest.param(errno.ENOENT, False, id="not there, once"),
    pytest.param(errno.ENOENT, True, id="not there, lasting"),
]


@pytest.mark.parametrize(("number", "lasting"), FAULTS)
@pytest.mark.parametrize("story", STORIES + FOLDER_STORIES, ids=str)
def test_an_error_at_any_call_loses_nothing(story: Story, number: int, lasting: bool, tmp_path: Path) -> None:
    for nth in range(1, 500):
        root = tmp_path / str(nth)
        ops = FaultyOps(syncing=False)
        queue = FilesystemBackend(root, ops=ops)
        act = story.prepare(queue)
        ops.arm(fail_at(nth, number, lasting=lasting))
        failure = attempt(act)
        struck = ops.calls[nth - 1] if len(ops.calls) >= nth else ""
        finished = not struck
        ops.disarm()
        assert not (finished and failure), f"it failed without a fault: {failure!r}"
        again = None
        if failure is not None:
            again = attempt(act)
            found_done = story.name in MAY_FIND_IT_DONE and isinstance(again, SAYS_DONE)
            assert again is None or found_done, f"after {failure!r} at call {nth} ({struck}): {again!r}"
        drop_leases(root)  # this process lives on: the next holder would have to wait
        check(Folder(str(root), syncing=False), story, acknowledged=again is None)
        swept = lasting or struck == "unlink"  # what cannot be removed is left for the next mount
        assert os.listdir(root / "tmp") == [] or swept, f"left in tmp/ after call {nth} ({struck})"
        queue.close()
        if finished:
            assert nth > 1
            return
    pytest.fail("the story never finished")


def drop_leases(root: Path) -> None:
    for name in os.listdir(root):
        if name.endswith(".drain.lease"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(root / name)
