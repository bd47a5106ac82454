"""A pool of worker processes over a durable queue: `workerpool run config.toml`, or `run_pool` from a program.

What handlers use is here too; `JobContext` is their second argument.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from workerpool.outcome import Discard, Outcome, Retry
from workerpool.worker.context import JobContext

__all__ = ["Discard", "JobContext", "Outcome", "Retry", "run_pool"]


def run_pool(
    config: str | os.PathLike[str] | Mapping[str, object], *, burst: bool = False, only: Sequence[str] = ()
) -> int:
    """Run a pool in this process until it ends; returns the exit code of `workerpool run`.

    `config`: a config.toml, or its content as a mapping. `burst`: end when nothing is outstanding. `only`: the streams
    to work (default: all). Raises `workerpool.errors.ConfigError` before anything is started, `queuekit.QueueError`
    when the store cannot be used. The process must have no threads; its signal handlers are the pool's meanwhile.
    """
    from workerpool.assemble import run
    from workerpool.config_file import load_config

    return run(load_config(config), reload=lambda: load_config(config), burst=burst, only=only)
