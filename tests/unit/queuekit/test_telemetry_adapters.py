"""The adapters against the real libraries, read back as their users would read them."""

import sys

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from queuekit.telemetry import Metric
from queuekit.telemetry.opentelemetry import opentelemetry_hook
from queuekit.telemetry.prometheus import prometheus_hook


def metrics(stream: str = "encode", **values: float) -> list[Metric]:
    tags = {"estate": "notes", "kit": "QueueKit", "stream": stream}
    return [Metric(f"queue.{name}", value, tags, 1000.0) for name, value in values.items()]


class TestPrometheus:
    @pytest.fixture
    def registry(self) -> CollectorRegistry:
        return CollectorRegistry()

    def depth(self, registry: CollectorRegistry, name: str = "queue_depth", stream: str = "encode") -> float | None:
        return registry.get_sample_value(name, {"estate": "notes", "kit": "QueueKit", "stream": stream})

    def test_a_report_is_what_a_scrape_shows(self, registry):
        prometheus_hook(registry).report(metrics(depth=5, latency_p50_ms=1.5))
        text = generate_latest(registry).decode()
        assert 'queue_depth{estate="notes",kit="QueueKit",stream="encode"} 5.0' in text
        assert 'queue_latency_p50_ms{estate="notes",kit="QueueKit",stream="encode"} 1.5' in text

    def test_what_a_report_leaves_out_is_taken_away_for_that_stream_only(self, registry):
        hook = prometheus_hook(registry)
        hook.report(metrics(depth=5))
        hook.report(metrics("dreaming", depth=6))
        hook.report(metrics(depth_unavailable=1))
        assert self.depth(registry) is None
        assert self.depth(registry, "queue_depth_unavailable") == 1
        assert self.depth(registry, stream="dreaming") == 6
        hook.report(metrics(depth=4))
        assert self.depth(registry) == 4
        assert self.depth(registry, "queue_depth_unavailable") is None

    def test_a_single_metric_leaves_the_others(self, registry):
        hook = prometheus_hook(registry)
        for metric in metrics(depth=5, drain_count=2):
            hook(metric)
        assert (self.depth(registry), self.depth(registry, "queue_drain_count")) == (5, 2)

    def test_a_registry_has_one_hook(self, registry):
        assert prometheus_hook(registry) is prometheus_hook(registry)
        assert prometheus_hook(registry) is not prometheus_hook(CollectorRegistry())

    def test_a_name_that_is_taken_is_refused_at_once(self, registry):
        Gauge("queue_depth", "somebody else's", registry=registry)
        with pytest.raises(ValueError, match="queue_depth"):
            prometheus_hook(registry)

    def test_without_the_extra_it_says_what_to_install(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "prometheus_client", None)
        with pytest.raises(ImportError, match=r"pip install workerpool\[prometheus\]"):
            prometheus_hook()


class TestOpenTelemetry:
    @pytest.fixture
    def reader(self) -> InMemoryMetricReader:
        return InMemoryMetricReader()

    @pytest.fixture
    def hook(self, reader):
        return opentelemetry_hook(MeterProvider([reader]).get_meter("test"))

    def exported(self, reader) -> dict[tuple[str, str], float]:
        data = reader.get_metrics_data()
        found = [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics] if data else []
        return {(m.name, point.attributes["stream"]): point.value for m in found for point in m.data.data_points}

    def test_a_report_is_what_an_export_shows(self, reader, hook):
        hook.report(metrics(depth=5, head_of_line_age_s=2.5))
        hook.report(metrics("dreaming", depth=6))
        assert self.exported(reader) == {
            ("queue.depth", "encode"): 5,
            ("queue.head_of_line_age_s", "encode"): 2.5,
            ("queue.depth", "dreaming"): 6,
        }

    def test_what_a_report_leaves_out_is_not_exported_again(self, reader, hook):
        hook.report(metrics(depth=5))
        assert self.exported(reader) == {("queue.depth", "encode"): 5}
        hook.report(metrics(depth_unavailable=1))
        assert self.exported(reader) == {("queue.depth_unavailable", "encode"): 1}

    def test_a_single_metric_leaves_the_others(self, reader, hook):
        for metric in metrics(depth=5, drain_count=2):
            hook(metric)
        assert self.exported(reader) == {("queue.depth", "encode"): 5, ("queue.drain_count", "encode"): 2}

    def test_without_the_extra_it_says_what_to_install(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "opentelemetry.metrics", None)
        with pytest.raises(ImportError, match=r"pip install workerpool\[otel\]"):
            opentelemetry_hook()
