"""What `workerpool torture` says of effects that differ."""

from __future__ import annotations

import pytest

from workerpool.torture.difference import Fault, compare, help_against


def fault(expected: str | None, found: str | None) -> Fault:
    def effects(text: str | None) -> dict[str, str]:
        return {} if text is None else {"log": text}

    difference = compare(effects(expected), effects(found))
    assert difference is not None
    return difference.fault


@pytest.mark.parametrize(
    ("expected", "found", "kind"),
    [
        ("a\n", "a\na\n", Fault.DOUBLE),
        ("a\nb\n", "a\na\nb\nb\n", Fault.DOUBLE),
        ("ab", "abab", Fault.DOUBLE),
        ("a\n", "a\nb\n", Fault.SURPLUS),
        (None, "a\n", Fault.SURPLUS),
        ("a\nb\n", "b\n", Fault.MISSING),
        ("a\nb\n", "a\n", Fault.MISSING),
        ("a\n", None, Fault.MISSING),
        ("a long line\n", "a lon", Fault.HALF),
        ("a\n", "", Fault.HALF),
        ("1\n", "2\n", Fault.OTHER),
        ("a\nb\n", "b\na\n", Fault.OTHER),
    ],
)
def test_the_kind_of_a_difference(expected: str | None, found: str | None, kind: Fault) -> None:
    assert fault(expected, found) is kind


def test_the_same_is_no_difference() -> None:
    assert compare({"log": "a\n", "x": ""}, {"x": "", "log": "a\n"}) is None


def test_several_names_are_told_together_and_their_kinds_have_to_agree() -> None:
    both = compare({"a": "1\n", "b": "1\n", "c": "1\n"}, {"a": "1\n1\n", "b": "1\n1\n", "c": "1\n"})
    assert both is not None
    assert (both.fault, both.names) == (Fault.DOUBLE, ("a", "b"))
    mixed = compare({"a": "1\n", "b": "1\n"}, {"a": "1\n1\n"})
    assert mixed is not None
    assert mixed.fault is Fault.OTHER


def test_the_diff_shows_both_sides_and_is_clipped() -> None:
    difference = compare({"log": "a\n"}, {})
    assert difference is not None
    assert difference.lines[:2] == ("--- log (undisturbed)", "+++ log (killed, run again)")
    assert difference.lines[-2:] == ("-a", "+(not there)")
    long = compare({"log": ""}, {"log": "".join(f"{number} {'x' * 300}\n" for number in range(500))})
    assert long is not None
    assert len(long.lines) == 41
    assert all(len(line) <= 201 for line in long.lines)
    assert long.lines[-1].startswith("… and 4")


def test_an_end_of_line_that_is_missing_is_not_told_by_an_empty_diff() -> None:
    difference = compare({"log": "a\n"}, {"log": "a"})
    assert difference is not None
    assert difference.lines == ("log: the ends of lines differ",)


@pytest.mark.parametrize("kind", Fault)
def test_there_is_help_against_each(kind: Fault) -> None:
    own, always = help_against(kind)
    assert own
    assert "ctx.fence" in always
