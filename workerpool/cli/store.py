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
        reason = why_not_makeable(path)
        yet = f"there is no queue at {path} yet: the first `workerpool send` or `run` makes it"
        raise BackendUnavailable(reason or yet)
    store = config.store
    return QueueKit.open(
        store.url, estate=store.estate, durability=store.durability.value, max_job_bytes=store.max_job_bytes
    )


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
