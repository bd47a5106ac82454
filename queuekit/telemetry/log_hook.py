"""The built-in hook "log": one line per report, through the logger `queuekit.telemetry`.

At INFO when there was something to tell, at DEBUG when nothing was drained and nothing waits.

The line reads well as text; a JSON formatter finds the same in the fields `estate`, `kit`, `stream`, `metrics` (name to
value) and `metrics_ts`. It does what logging does and nothing more: whoever sets logging up decides where lines go.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from queuekit.telemetry.hook import ReportHook
from queuekit.telemetry.metric import Metric

_NAME_PREFIX = "queue."


class LogHook(ReportHook):
    """Writes reports to `logger`."""

    def __init__(self, logger: logging.Logger) -> None:
        self.logger = logger

    def report(self, metrics: Sequence[Metric], /) -> None:
        """Write one line for all of them."""
        values = {metric.name: metric.value for metric in metrics}
        level = logging.INFO if _tells_something(values) else logging.DEBUG
        if not metrics or not self.logger.isEnabledFor(level):
            return
        first = metrics[0]
        fields = {**first.tags, "metrics": values, "metrics_ts": first.ts}
        self.logger.log(level, "queue stream=%s %s", first.tags.get("stream", ""), _in_words(values), extra=fields)


def _tells_something(values: dict[str, float]) -> bool:
    return any(values.get(name, 0) for name in ("queue.depth", "queue.drain_count", "queue.depth_unavailable"))


def _in_words(values: dict[str, float]) -> str:
    return " ".join(f"{name.removeprefix(_NAME_PREFIX)}={value:.4g}" for name, value in values.items())


def log_hook(logger: logging.Logger | None = None) -> LogHook:
    """The hook; `logger` instead of `queuekit.telemetry` when given."""
    return LogHook(logging.getLogger("queuekit.telemetry") if logger is None else logger)
