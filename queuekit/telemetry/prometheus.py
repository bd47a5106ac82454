"""The built-in hook "prometheus": each metric as a gauge of prometheus-client, labelled estate, kit and stream.

`queue.depth` is exported as `queue_depth`, and so on. What a report leaves out is taken away from the export: an old
depth must not stand there as if it were read now. Where prometheus-client keeps values in files for several processes
it cannot take a series away; there it becomes NaN, and the newest value of any process counts.

Needs the extra: `pip install workerpool[prometheus]`.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

from queuekit.telemetry.hook import ReportHook
from queuekit.telemetry.metric import DESCRIPTIONS, TAG_NAMES, Metric

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Gauge

_hooks: weakref.WeakKeyDictionary[CollectorRegistry, PrometheusHook] = weakref.WeakKeyDictionary()


class PrometheusHook(ReportHook):
    """Sets the gauges of one registry."""

    def __init__(self, gauges: dict[str, Gauge]) -> None:
        self.gauges = gauges

    def __call__(self, metric: Metric, /) -> None:
        """Set one gauge."""
        self.gauges[metric.name].labels(*_labels(metric)).set(metric.value)

    def report(self, metrics: Sequence[Metric], /) -> None:
        """Set the gauges of one report, and take away what it leaves out."""
        for metric in metrics:
            self(metric)
        for labels in {_labels(metric) for metric in metrics}:
            for name in self.gauges.keys() - {metric.name for metric in metrics}:
                _take_away(self.gauges[name], labels)


def _labels(metric: Metric) -> tuple[str, ...]:
    return tuple(metric.tags.get(name, "") for name in TAG_NAMES)


def _take_away(gauge: Gauge, labels: tuple[str, ...]) -> None:
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        gauge.labels(*labels).set(float("nan"))
    else:
        gauge.remove(*labels)


def prometheus_hook(registry: CollectorRegistry | None = None) -> PrometheusHook:
    """The hook of a registry (default: prometheus-client's own), the same one each time.

    Raises `ImportError` when the extra is missing, `ValueError` when the registry has gauges of these names already.
    """
    try:
        from prometheus_client import REGISTRY
    except ImportError as error:
        raise ImportError("the prometheus hook needs an extra: pip install workerpool[prometheus]") from error
    chosen = REGISTRY if registry is None else registry
    if chosen not in _hooks:
        _hooks[chosen] = PrometheusHook({name: _gauge(name, chosen) for name in DESCRIPTIONS})
    return _hooks[chosen]


def _gauge(name: str, registry: CollectorRegistry) -> Gauge:
    from prometheus_client import Gauge

    exported = name.replace(".", "_")
    return Gauge(exported, DESCRIPTIONS[name], TAG_NAMES, registry=registry, multiprocess_mode="mostrecent")
