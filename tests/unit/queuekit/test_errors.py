"""Errors are values with facts; their messages can always be logged."""

from __future__ import annotations

import pytest

from queuekit.errors import DrainTimeout, InvalidIdentifier, QueueError, RenameFailed, WriteFailed

HOSTILE = "job-\udcff"


@pytest.mark.parametrize(
    "error",
    [
        WriteFailed(HOSTILE, "no space"),
        RenameFailed(f"new/{HOSTILE}", f"cur/{HOSTILE}", "no space"),
        InvalidIdentifier(HOSTILE, "not valid Unicode"),
    ],
)
def test_a_message_is_valid_unicode_whatever_name_it_tells(error: QueueError) -> None:
    assert "\\udcff" in str(error)
    str(error).encode()


def test_facts_are_kept_as_they_were() -> None:
    error = RenameFailed(HOSTILE, "b", "c")
    assert (error.source, error.destination, error.reason) == (HOSTILE, "b", "c")
    assert (DrainTimeout(1, 2).pending, DrainTimeout(1, 2).in_flight) == (1, 2)
