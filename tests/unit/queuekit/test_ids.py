"""Identifiers: what they are, and which of them may be part of a file name."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given

from queuekit.errors import InvalidIdentifier, UnknownTool
from queuekit.ids import JobID, SessionID, StreamID, ToolName, check_identifier
from queuekit.testing.strategies import identifiers


def test_a_generated_job_id_is_a_uuid4_without_hyphens() -> None:
    generated = {JobID.generate() for _ in range(1000)}
    assert len(generated) == 1000
    assert all(re.fullmatch(r"[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}", each) for each in generated)
    assert {type(each) for each in generated} == {JobID}


def test_a_session_id_is_a_hyphenated_uuid() -> None:
    minted = {SessionID.mint() for _ in range(1000)}
    assert len(minted) == 1000
    assert all(re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", each) for each in minted)


def test_identifiers_are_text() -> None:
    stream = StreamID("encode")
    assert stream == "encode"
    assert {stream: 1}["encode"] == 1
    assert json.dumps(stream) == '"encode"'


def test_a_tool_is_checked_against_its_allow_list() -> None:
    tool = ToolName("grep")
    assert tool.validate({"grep", "sed"}) is tool
    with pytest.raises(UnknownTool) as caught:
        tool.validate(["sed"])
    assert caught.value.name == "grep"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "empty"),
        (".", "dot component"),
        ("..", "dot component"),
        ("a/b", "path separator"),
        ("/", "path separator"),
        ("a\\b", "path separator"),
        ("a/\n", "path separator"),
        ("\0", "control character"),
        ("a\n", "control character"),
        ("\x1f", "control character"),
        ("\x7f", "control character"),
        ("é\t", "control character"),
        ("é\x7f", "control character"),
        ("\ud800", "not valid Unicode"),
        ("a\udfff", "not valid Unicode"),
    ],
)
def test_what_cannot_be_in_a_file_name_is_refused(name: str, reason: str) -> None:
    with pytest.raises(InvalidIdentifier) as caught:
        check_identifier(name)
    assert (caught.value.id, caught.value.reason) == (name, reason)


@pytest.mark.parametrize(
    "name",
    ["a", " ", "two words", "...", ".hidden", "a.signal", "-", "a-b--c", "é", "\x80\x9f", "日本語", "\U0001f40d"],
)
def test_everything_else_passes(name: str) -> None:
    check_identifier(name)


@given(identifiers())
def test_what_passes_is_one_path_component(name: str) -> None:
    check_identifier(name)
    assert name.encode().split(b"/") == [name.encode()]
    assert b"\0" not in name.encode()
