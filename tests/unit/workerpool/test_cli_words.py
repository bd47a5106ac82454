"""How the command line says things."""

from __future__ import annotations

import pytest

from workerpool.cli import words


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        *((0, "0ms"), (-3, "0ms"), (0.25, "250ms"), (1.84, "1.8s"), (2, "2s"), (9.97, "10s"), (27.6, "28s")),
        *((59.7, "1m"), (125, "2m5s"), (3599.8, "1h"), (3600, "1h"), (3605, "1h"), (90061, "1d1h")),
    ],
)
def test_durations_have_at_most_two_units(seconds: float, said: str) -> None:
    assert words.duration(seconds) == said


@pytest.mark.parametrize(("ms", "said"), [(1_000, "9s ago"), (10_000, "0ms ago"), (130_000, "in 2m")])
def test_moments_are_seen_from_now(ms: int, said: str) -> None:
    assert words.relative(ms, now_ms=10_000) == said


@pytest.mark.parametrize(("count", "said"), [(0, "0 bytes"), (1, "1 byte"), (1536, "1.5 KiB"), (3 * 2**40, "3.0 TiB")])
def test_sizes(count: int, said: str) -> None:
    assert words.size(count) == said


def test_a_moment_beyond_every_calendar_is_said_as_it_is() -> None:
    assert words.moment(2**63 - 1) == f"{2**63 - 1} ms since 1970"


@pytest.mark.parametrize("text", ["\x1b[31mred", "a\nb", "a\u202eb", "\udcff"])
def test_foreign_text_cannot_reach_the_terminal_as_it_is(text: str) -> None:
    assert words.printable(text).isprintable()


def test_the_line_of_a_traceback_that_says_most_is_its_last() -> None:
    assert words.last_line("Traceback (most recent call last):\n  File x\nValueError: no\n") == "ValueError: no"
    assert words.last_line("ValueError: no\nTraceback …") == "ValueError: no"
    assert words.last_line("x" * 300).endswith("…")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@host/db", "postgresql://me:***@host/db"),
        ("postgresql://me:a@b:c@host:5432/db", "postgresql://me:***@host:5432/db"),
        ("postgresql://host/db?user=me&password=secret&x=1", "postgresql://host/db?user=me&password=***&x=1"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("postgresql://host/db?sslpassword=secret", "postgresql://host/db?sslpassword=***"),
        ("postgresql://host:1/db?PASS%77ord=se@cret&x=a@b", "postgresql://host:***@b"),
        ("postgresql://me:a/s?e#c=r&e[t@host/db", "postgresql://me:***@host/db"),
        ("postgresql://me:secret@[::1/db", "postgresql://me:***@[::1/db"),
        ("--store=postgresql://me:secret@host/db", "--store=postgresql://me:***@host/db"),
        ("dir:/a b/spool", "dir:/a b/spool"),
    ],
)
def test_no_password_is_shown(url: str, shown: str) -> None:
    assert words.masked(url) == shown
