"""A process that may open no more still knows who a pid is, kills a group, and sets up a child."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from workerpool.process import kill_group, spawn, start_identity
from workerpool.process.spare import keep_spare, with_spare

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are read from /proc")


@contextmanager
def nothing_more_to_open() -> Iterator[None]:
    """This process is at its limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    first_free = os.dup(0)
    os.close(first_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (first_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_who_a_process_is_can_be_told_without_a_free_descriptor():
    known = start_identity(os.getpid())
    keep_spare()
    with nothing_more_to_open():
        assert start_identity(os.getpid()) == known
        with pytest.raises(OSError, match="Too many open files"):
            os.open(os.devnull, os.O_RDONLY)


def test_a_group_can_be_killed_without_a_free_descriptor():
    keep_spare()
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    start = start_identity(child.pid)
    assert start is not None
    with nothing_more_to_open():
        assert kill_group(child.pid, start, signal.SIGKILL)
        assert child.wait(10) == -signal.SIGKILL
        assert kill_group(child.pid, start, signal.SIGKILL) is False


def test_a_child_of_a_process_at_its_limit_is_set_up():
    with nothing_more_to_open():
        child = spawn(lambda: 7, name="it", own_group=True)
    assert os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1]) == 7
    assert child.start


def test_a_child_is_set_up_although_a_descriptor_is_above_its_limit():
    high = os.dup2(0, 900, inheritable=False)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (800, hard))
    try:
        child = spawn(lambda: 0 if not os.path.exists("/proc/self/fd/900") else 3, name="it", own_group=True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(high)
    assert os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1]) == 0


def test_another_error_is_not_tried_again():
    calls = []

    @with_spare
    def act() -> None:
        calls.append(1)
        raise PermissionError(1, "no")

    with pytest.raises(PermissionError):
        act()
    assert calls == [1]
