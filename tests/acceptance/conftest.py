"""Fixtures of the acceptance tests."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.register_assert_rewrite("pool")

from pool import Estate  # noqa: E402  after its assertions were made to tell more


@pytest.fixture
def make_estate(tmp_path: Path) -> Iterator[Callable[..., Estate]]:
    """Make an estate with the given streams (and other tables); whatever was started on it is gone afterwards."""
    with ExitStack() as stack:

        def make(streams: dict[str, dict[str, Any]] | None = None, **tables: Any) -> Estate:
            return stack.enter_context(Estate(tmp_path, streams or {"encode": {}}, **tables))

        yield make


@pytest.fixture
def dice() -> random.Random:
    """Random numbers whose seed is printed; `ACTING_SEED` rolls the same ones again."""
    seed = int(os.environ.get("ACTING_SEED") or random.SystemRandom().randrange(2**32))
    print(f"ACTING_SEED={seed}")
    return random.Random(seed)
