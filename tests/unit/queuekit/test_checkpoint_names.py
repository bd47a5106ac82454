"""The name of a checkpoint's file tells its stream and its id, whatever is in them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuekit.backends.maildir import layout

IDENTIFIERS = st.text(st.sampled_from("-0123ab .ü\n"), min_size=1, max_size=12)


@given(IDENTIFIERS, IDENTIFIERS)
def test_a_name_tells_stream_and_id(stream: str, id: str) -> None:
    assert layout.split_checkpoint(layout.checkpoint_filename(stream, id)) == (stream, id)


def test_the_name_is_what_the_document_says() -> None:
    assert layout.checkpoint_filename("my-stream", "the-place") == "9-my-stream-the-place"


@pytest.mark.parametrize(
    "name", ["", "-", "x", "1", "1-", "1-a", "1-a-", "0--a", "2-a-b", "01-a-b", "-1-a-b", "9999-a-b", "1a-b", "+1-a-b"]
)
def test_other_names_are_none(name: str) -> None:
    assert layout.split_checkpoint(name) is None
