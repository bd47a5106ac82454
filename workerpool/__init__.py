"""A pool of worker processes over a durable queue: `workerpool run config.toml`, or `run_pool` from a program.

What handlers use is here too; `JobContext` is their second argument. These names are loaded when they are asked for.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing would take the longest of all that is imported before an interrupt is seen to
if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from workerpool.outcome import Discard, Outcome, Retry
    from workerpool.worker.context import JobContext

__all__ = ["Discard", "JobContext", "Outcome", "Retry", "run_pool"]
_HOMES = {
    "Discard": "workerpool.outcome",
    "JobContext": "workerpool.worker.context",
    "Outcome": "workerpool.outcome",
    "Retry": "workerpool.outcome",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    globals()[name] = value = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]


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
