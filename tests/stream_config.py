"""The settings of a stream for tests: those of a config.toml that names only a handler."""

from __future__ import annotations

import dataclasses
from typing import Any

from workerpool.config import StreamConfig

_PLAIN = StreamConfig(
    name="encode",
    handler="h:f",
    workers=1,
    batch_size=1,
    batch_wait=0.0,
    timeout=0.0,
    soft_timeout=0.0,
    retries=3,
    backoff=1.0,
    max_backoff=300.0,
    max_crashes=2,
    max_jobs=0,
    max_memory=0,
    exclusive=True,
)


def make_config(**changes: Any) -> StreamConfig:
    """The plain settings with these changed."""
    return dataclasses.replace(_PLAIN, **changes)
