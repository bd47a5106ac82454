"""Where a configuration's things are on this machine: its store, and what belongs to the pools that work it.

Boards, pauses and the shared latency window are kept in one private folder: inside the store when that is a folder,
beside the configuration for a database. Every process and every command asks here, so that they look in the same place.
"""

from __future__ import annotations

import os
import stat

from queuekit import BackendUnavailable
from queuekit.private import why_shared
from workerpool.config import PoolConfig

PRIVATE = ".workerpool"


def store_folder(config: PoolConfig) -> str | None:
    """The root of a store that is a folder, links resolved; None when it is a database."""
    path = store_path(config)
    return os.path.realpath(path) if path is not None and config.store.scheme == "dir" else None


def store_path(config: PoolConfig) -> str | None:
    """The folder or file that the store is; None when a server keeps it."""
    scheme, _, rest = config.store.url.partition(":")
    return rest if scheme in {"dir", "sqlite"} else None


def board_directory(config: PoolConfig) -> str:
    """The folder for what belongs to the pools of this store; it need not be there yet.

    What is in it is believed: which processes to signal, what to pause. Raises `BackendUnavailable` when somebody else
    could have put it there; root may look at anybody's.
    """
    path = os.path.join(store_folder(config) or config.base, PRIVATE)
    try:
        facts = os.stat(path)
    except OSError:  # not there, or not to be reached: who wants to use it finds out
        return path
    reason = why_shared(facts)
    if reason and (os.geteuid() != 0 or facts.st_mode & stat.S_IWOTH):
        raise BackendUnavailable(f"cannot use {path}: {reason}")
    return path


def make_board_directory(config: PoolConfig) -> str:
    """The same, made (for its owner only) if absent. Raises `BackendUnavailable` when it cannot be."""
    path = board_directory(config)
    try:
        os.mkdir(path, 0o700)
        os.chmod(path, 0o700)  # whatever the umask
    except FileExistsError:
        pass
    except OSError as error:
        raise BackendUnavailable(f"cannot make {path}: {error.strerror}") from error
    if not os.path.isdir(path):
        raise BackendUnavailable(f"cannot use {path}: it is not a folder")
    if reason := why_shared(os.stat(path)):
        raise BackendUnavailable(f"cannot use {path}: {reason}")
    return path
