"""One trouble, one line a minute."""

from __future__ import annotations

import errno
import logging

import pytest

from queuekit.backends.complaints import Complaints, kind
from queuekit.errors import BackendUnavailable

LOG = logging.getLogger("queuekit.test")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_same_is_said_again_after_a_minute_only(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    complaints = Complaints(LOG, clock)
    for second in (0, 1, 59, 60, 61):
        clock.now = second
        complaints.say("disk", "at %d", second)
    assert caplog.messages == ["at 0", "at 60"]


def test_each_subject_is_said(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints(LOG, Clock())
    complaints.say("disk", "the disk")
    complaints.say("lock", "the lock")
    assert caplog.messages == ["the disk", "the lock"]


def test_ten_thousand_subjects_a_minute_are_neither_all_said_nor_remembered(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    complaints = Complaints(LOG, clock)
    for number in range(10_000):
        complaints.say(number, "one")
    assert len(caplog.messages) == 1_000
    clock.now = 61
    complaints.say("new", "one more")
    assert caplog.messages[-1] == "one more"


def test_one_reason_at_two_files_is_one_kind() -> None:
    first, second = BackendUnavailable("cannot list new/"), BackendUnavailable("cannot list later/")
    first.__cause__ = second.__cause__ = OSError(errno.EMFILE, "too many open files")
    other = OSError(errno.EIO, "input/output error")
    assert kind(first) == kind(second) != kind(other)
    assert kind(BackendUnavailable("no reason")) == "BackendUnavailable"
