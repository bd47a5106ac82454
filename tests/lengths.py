"""How long a test of the torture programme goes on: its short form runs in CI, its long one before a release.

`make torture-short` runs what is marked `torture_short`, `make torture` what is marked `torture`; `make test` neither.
"""

from __future__ import annotations

from typing import Any

import pytest


def short_and_long(short: Any, long: Any, *, timeout: float = 7200) -> list[Any]:
    """For `parametrize`: one value, or tuple of values, for each form; `timeout`: the long form's, in seconds.

    The short form has ten minutes, and should need one.
    """
    return [
        pytest.param(*_values(short), marks=[pytest.mark.torture_short, pytest.mark.timeout(600)], id="short"),
        pytest.param(*_values(long), marks=[pytest.mark.torture, pytest.mark.timeout(timeout)], id="long"),
    ]


def _values(given: Any) -> tuple[Any, ...]:
    return given if isinstance(given, tuple) else (given,)
