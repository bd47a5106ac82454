"""The words for how a job ended."""

from __future__ import annotations

import pytest

from queuekit.errors import InvalidTerminalStatus
from queuekit.status import ObservationStatus, check_terminal

TERMINAL = ["done", "done_with_concerns", "needs_context", "blocked"]


def test_the_words_are_those_of_the_wire() -> None:
    assert [str(status) for status in ObservationStatus] == ["running", *TERMINAL]


def test_only_running_is_not_an_end() -> None:
    assert [status for status in ObservationStatus if not status.is_terminal] == ["running"]


@pytest.mark.parametrize("word", TERMINAL)
def test_an_end_is_accepted_as_word_and_as_member(word: str) -> None:
    assert check_terminal(word) is ObservationStatus(word)
    assert check_terminal(ObservationStatus(word)) is ObservationStatus(word)


@pytest.mark.parametrize("word", ["running", ObservationStatus.RUNNING, "", "DONE", "failed", "done "])
def test_anything_else_is_refused(word: str) -> None:
    with pytest.raises(InvalidTerminalStatus) as caught:
        check_terminal(word)
    assert caught.value.status == word
