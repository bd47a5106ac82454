"""Opening the store that a configuration names."""

from __future__ import annotations

import os

from queuekit import BackendUnavailable, QueueKit
from workerpool.config import PoolConfig
from workerpool.locations import board_directory, store_path


def open_queue(config: PoolConfig, *, create: bool = False) -> QueueKit:
    """The queue of a configuration, for a `with` statement.

    `create`: make a folder or database file that is not there; else that raises `BackendUnavailable`, so that whoever
    only looks, or has mistyped a path, leaves nothing behind. Raises what `QueueKit.open` raises.
    """
    path = store_path(config)
    if path is not None and not create and not os.path.exists(path):
        reason = why_not_makeable(path)
        yet = f"there is no queue at {path} yet: the first `workerpool send` or `run` makes it"
        raise BackendUnavailable(reason or _who_had_it(config, path) or yet)
    store = config.store
    return QueueKit.open(
        store.url, estate=store.estate, durability=store.durability.value, max_job_bytes=store.max_job_bytes
    )


def _who_had_it(config: PoolConfig, path: str) -> str | None:
    """What to say of a store that is not at its path, where a pool of its configuration lives."""
    from workerpool.cli.pools import about_elsewhere, pools_elsewhere, read_pools

    directory = board_directory(config)
    pid = next((pool.header.pid for pool in read_pools(directory) if pool.alive), None)
    if pid is not None:
        return f"the queue at {path} is gone, but pool {pid} runs: put it back, or `kill -TERM {pid}` ends the pool"
    found = pools_elsewhere(directory, config.path)
    return f"there is no queue at {path}; {about_elsewhere(*found[0])}" if found else None


def why_not_makeable(path: str) -> str | None:
    """Why a file or folder cannot be made at a path where nothing is, as far as looking tells; None when it can."""
    parent = nearest_folder(path)
    if not os.path.isdir(parent):
        return f"cannot make {path}: {parent} is not a folder"
    return None if os.access(parent, os.W_OK | os.X_OK) else f"cannot make {path}: {parent} may not be written"


def nearest_folder(path: str) -> str:
    """What is there already of the way to a path."""
    parent = os.path.dirname(os.path.abspath(path))
    while not os.path.lexists(parent):
        parent = os.path.dirname(parent)
    return parent
