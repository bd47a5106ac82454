"""Damaged configurations, boards, pauses and dossiers (T14): read and shown, or refused with a documented error."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import COUNTS, try_all
from readers import NOW, good, readers, show

from queuekit.testing.strategies import json_values

KINDS = ["config", "board", "pause", "dossier"]


@pytest.mark.parametrize("kind", KINDS)
def test_there_is_something_to_damage(tmp_path: Path, kind: str) -> None:
    """Else the test below would pass for the wrong reason."""
    read = readers(tmp_path)[kind]
    assert any(read(data) for data in good(kind, tmp_path))


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files(tmp_path: Path, kind: str, count: int) -> None:
    try_all(kind, good(kind, tmp_path), count, readers(tmp_path)[kind])


KEYS = ["blocked_at_ms", "at_ms", "error", "reason", "cause", "ended", "attempts", "crashes", "errors", "runs", "by"]
RUN_KEYS = ["run", "ended_ms", "seconds", "halved_from"]
ANYTHING = st.one_of(json_values(), st.integers(), st.floats(), st.sampled_from([True, 10**400, "\x1b[2J\n"]))
RUNS = st.lists(st.dictionaries(st.sampled_from(RUN_KEYS), ANYTHING | st.integers(0, 3)), max_size=4)


@settings(suppress_health_check=[HealthCheck.too_slow])  # the first draw looks at all of Unicode
@given(st.fixed_dictionaries({}, optional={**dict.fromkeys(KEYS, ANYTHING), "runs": RUNS | ANYTHING}))
def test_dossiers_with_anything_in_them(dossier: dict[str, object]) -> None:
    show(dossier)


@pytest.mark.parametrize(
    "end", ["[" * 20_000, '{"status": "x", "completed_at": {"physical_time": 1e999}}', "\x1b[2J\n"]
)
def test_earlier_ends_that_cannot_be_read(end: str) -> None:
    show({"earlier_ends": [end]})


@pytest.mark.parametrize(
    "run",
    [
        {"run": 1, "seconds": 10**400},
        {"run": 1, "seconds": float("nan"), "ended_ms": 10**30},
        {"run": 2, "ended_ms": -(10**30), "seconds": float("inf")},
    ],
)
def test_runs_with_impossible_times(run: dict[str, object]) -> None:
    show({"blocked_at_ms": NOW, "attempts": 2, "crashes": 0, "errors": ["one", "two"], "runs": [run]})
