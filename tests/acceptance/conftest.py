"""Fixtures of the acceptance tests."""

from __future__ import annotations

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
