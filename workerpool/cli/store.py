"""Opening the store that a configuration names."""

from __future__ import annotations

import os

from queuekit import BackendUnavailable, QueueKit
from workerpool.config import PoolConfig
from workerpool.locations import store_path


def open_queue(config: PoolConfig, *, create: bool = False) -> QueueKit:
    """The queue of a configuration, for a `with` statement.

    `create`: make a folder or database file that is not there; else that raises `BackendUnavailable`, so that whoever
    only looks, or has mistyped a path, leaves nothing behind. Raises what `QueueKit.open` raises.
    """
    path = store_path(config)
    if path is not None and not create and not os.path.exists(path):
        raise BackendUnavailable(f"there is no queue at {path} yet: the first `workerpool send` or `run` makes it")
    store = config.store
    return QueueKit.open(
        store.url, estate=store.estate, durability=store.durability.value, max_job_bytes=store.max_job_bytes
    )
