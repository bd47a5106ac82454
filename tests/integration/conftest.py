"""Fixtures of the integration tests. Those in the folders below may import what stands here, too."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where an empty database is, or will be: the test runs once for each kind."""
    return f"sqlite:{tmp_path}/jobs.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
