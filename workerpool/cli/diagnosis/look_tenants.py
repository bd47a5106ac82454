"""Gathers who works a store: the pools by their boards, the leases by their files. No lease is touched.

Whether a holder lives is asked of its alive file, with a lock that is tried for a moment.
"""

from __future__ import annotations

import math
import os
import time

from queuekit import BackendUnavailable
from queuekit.lease import FOLDER, SUFFIX, Record
from queuekit.locks import Life, life_of
from workerpool.cli.diagnosis.tenants import Lease, Pool
from workerpool.cli.pools import read_pools
from workerpool.config import PoolConfig
from workerpool.locations import board_directory

_BYTES = 4096


def look_at_pools(config: PoolConfig) -> tuple[Pool, ...]:
    """The pools with a board here; raises `BackendUnavailable` when these cannot be listed."""
    return tuple(
        Pool(
            pid=pool.header.pid,
            alive=pool.alive,
            in_order=pool.master is not None and pool.master.state == "ended",
            config=pool.header.config,
            streams=tuple(stream.row.stream for stream in pool.streams),
        )
        for pool in read_pools(board_directory(config))
    )


def look_at_lease_files(folder: str) -> tuple[Lease, ...]:
    """The leases that are files in `folder`; raises `BackendUnavailable` when it cannot be listed."""
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(SUFFIX) and not name.startswith("."))
    except OSError as error:
        raise BackendUnavailable(f"cannot list {folder}: {error.strerror}") from error
    found = []
    for name in names:
        record = _record(os.path.join(folder, name))
        if record is not None:
            age = time.time() - record.at if math.isfinite(record.at) else None
            found.append(lease_of(name.removesuffix(SUFFIX), record.owner, age, os.path.join(folder, FOLDER)))
    return tuple(found)


def lease_of(stream: str, owner: str, age: float | None, alive_folder: str, *, shared: bool = False) -> Lease:
    """A lease with what its owner's name and alive file tell. `age`: seconds since it was renewed."""
    word = owner.removeprefix("pid-").partition("-")[0]
    pid = int(word) if owner.startswith("pid-") and word.isascii() and word.isdigit() else None
    return Lease(stream=stream, owner=owner, pid=pid, age=age, life=_life(alive_folder, owner), shared=shared)


def _life(folder: str, owner: str) -> Life:
    if "/" in owner:
        return Life.UNKNOWN
    try:
        return life_of(os.path.join(folder, f"{owner}.alive"))
    except OSError:
        return Life.UNKNOWN


def _record(path: str) -> Record | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # released meanwhile, or nothing that anybody wrote as a lease
        return None
    try:
        return Record.decode(os.read(fd, _BYTES))
    except OSError:
        return None
    finally:
        os.close(fd)
