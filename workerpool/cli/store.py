"""Opening the store that a configuration names, and knowing where its pools keep their boards."""

from __future__ import annotations

import os

from queuekit import BackendUnavailable, QueueKit
from workerpool.config import PoolConfig


def open_queue(config: PoolConfig, *, create: bool = False) -> QueueKit:
    """The queue of a configuration, for a `with` statement.

    `create`: make a folder that is not there; else that raises `BackendUnavailable`, so that whoever only looks, or has
    mistyped a path, leaves nothing behind. Raises what `QueueKit.open` raises.
    """
    folder = store_folder(config)
    if folder is not None and not create and not os.path.isdir(folder):
        raise BackendUnavailable(f"there is no queue at {folder} yet: the first `workerpool send` or `run` makes it")
    store = config.store
    return QueueKit.open(
        store.url, estate=store.estate, durability=store.durability.value, max_job_bytes=store.max_job_bytes
    )


def store_folder(config: PoolConfig) -> str | None:
    """The root of a store that is a folder, links resolved; None when it is a database."""
    if config.store.scheme != "dir":
        return None
    return os.path.realpath(config.store.url.removeprefix("dir:"))


def board_directory(config: PoolConfig) -> str:
    """Where the boards of this store's pools are: inside its folder, beside the configuration for a database."""
    return os.path.join(store_folder(config) or config.base, ".workerpool")
