"""The built-in hook "opentelemetry": each metric as an observable gauge with the attributes estate, kit and stream.

Observable, because then the export asks for what is true now: what a stream's last report left out is not exported
again and again with its old value.

Needs the extra: `pip install workerpool[otel]`. Where the SDK is used, it must be set up in each process after the
fork; make the hook there too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from queuekit.telemetry.hook import ReportHook
from queuekit.telemetry.metric import DESCRIPTIONS, Metric

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation

_UNITS = {"_ms": "ms", "_s": "s"}

Tags = tuple[tuple[str, str], ...]


class OpenTelemetryHook(ReportHook):
    """Keeps the last report of each set of tags, for the gauges to read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latest: dict[Tags, dict[str, float]] = {}

    def __call__(self, metric: Metric, /) -> None:
        """Keep one metric beside those known."""
        with self._lock:
            self._latest.setdefault(_tags(metric), {})[metric.name] = metric.value

    def report(self, metrics: Sequence[Metric], /) -> None:
        """Keep a report in place of the one before."""
        fresh: dict[Tags, dict[str, float]] = {}
        for metric in metrics:
            fresh.setdefault(_tags(metric), {})[metric.name] = metric.value
        with self._lock:
            self._latest.update(fresh)

    def values(self, name: str) -> list[tuple[Tags, float]]:
        """What is known of one metric, by tags."""
        with self._lock:
            return [(tags, values[name]) for tags, values in self._latest.items() if name in values]


def _tags(metric: Metric) -> Tags:
    return tuple(sorted(metric.tags.items()))


def opentelemetry_hook(meter: Meter | None = None) -> OpenTelemetryHook:
    """A hook with its gauges in `meter` (default: that of the global provider).

    Raises `ImportError` when the extra is missing.
    """
    try:
        from opentelemetry.metrics import get_meter
    except ImportError as error:
        raise ImportError("the opentelemetry hook needs an extra: pip install workerpool[otel]") from error
    chosen = get_meter("queuekit") if meter is None else meter
    hook = OpenTelemetryHook()
    for name, description in DESCRIPTIONS.items():
        chosen.create_observable_gauge(name, [_observer(hook, name)], _unit(name), description)
    return hook


def _unit(name: str) -> str:
    return next((unit for suffix, unit in _UNITS.items() if name.endswith(suffix)), "1")


def _observer(hook: OpenTelemetryHook, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
    from opentelemetry.metrics import Observation

    def observe(_: CallbackOptions) -> Iterator[Observation]:
        for tags, value in hook.values(name):
            yield Observation(value, dict(tags))

    return observe
