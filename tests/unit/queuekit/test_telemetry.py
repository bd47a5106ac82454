"""Telemetry from the outside: what a drain tells, when, and what a bad hook can do (nothing)."""

import logging

import pytest

from queuekit import telemetry
from queuekit.errors import BackendUnavailable
from queuekit.telemetry import Metric, QueueLatencyWindowBox, fan_out, install, report_queue_stats, set_enabled

NAMES = {
    "queue.depth",
    "queue.drain_count",
    "queue.idle_nonempty",
    "queue.latency_p50_ms",
    "queue.latency_p95_ms",
    "queue.head_of_line_age_s",
}


@pytest.fixture(autouse=True)
def _telemetry_off_afterwards():
    yield
    install(None)
    set_enabled(False)


@pytest.fixture
def told() -> list[Metric]:
    metrics: list[Metric] = []
    install(metrics.append)
    set_enabled(True)
    return metrics


def report(box=None, *, stream="encode", drained=0, depth=0, oldest_ms=None, now=1000.0, latency_ms=4.0) -> None:
    report_queue_stats(
        QueueLatencyWindowBox() if box is None else box,
        estate="notes",
        stream=stream,
        drained=drained,
        latency_ms=latency_ms,
        oldest_ms=oldest_ms,
        depth=depth if callable(depth) else lambda: depth,
        now=now,
    )


def values(metrics: list[Metric]) -> dict[str, float]:
    return {metric.name: metric.value for metric in metrics}


class TestGate:
    def test_it_is_off_until_somebody_asks(self):
        assert not telemetry.is_enabled()
        set_enabled(True)
        assert telemetry.is_enabled()

    def test_off_nothing_is_read_or_recorded(self, told):
        set_enabled(False)
        box = QueueLatencyWindowBox()
        report(box, drained=3, depth=lambda: pytest.fail("the depth was read"))
        assert told == []
        assert box.percentiles() == (0, 0)
        assert box.take_drained("encode") == 0

    def test_without_a_hook_nobody_is_hurt(self):
        set_enabled(True)
        box = QueueLatencyWindowBox()
        report(box)
        assert box.percentiles() == (4.0, 4.0)

    def test_a_removed_hook_hears_no_more(self, told):
        install(None)
        report()
        assert told == []


class TestReport:
    def test_a_drain_of_some_jobs(self, told):
        report(drained=2, depth=5, oldest_ms=990_500)
        assert values(told) == {
            "queue.depth": 5,
            "queue.drain_count": 2,
            "queue.idle_nonempty": 0,
            "queue.latency_p50_ms": 4,
            "queue.latency_p95_ms": 4,
            "queue.head_of_line_age_s": 9.5,
        }

    def test_every_metric_has_the_same_tags_and_time(self, told):
        report(drained=1, depth=1, oldest_ms=1)
        assert {metric.name for metric in told} == NAMES
        for metric in told:
            assert metric.tags == {"estate": "notes", "kit": "QueueKit", "stream": "encode"}
            assert metric.ts == 1000.0

    def test_jobs_that_nobody_takes(self, told):
        report(drained=0, depth=3)
        assert values(told)["queue.idle_nonempty"] == 1
        assert values(told)["queue.head_of_line_age_s"] == 0

    def test_an_empty_queue_has_no_head(self, told):
        report(drained=0, depth=0)
        assert values(told)["queue.idle_nonempty"] == 0
        assert "queue.head_of_line_age_s" not in values(told)

    def test_a_job_from_the_future_has_no_negative_age(self, told):
        report(drained=1, oldest_ms=2_000_000)
        assert values(told)["queue.head_of_line_age_s"] == 0

    @pytest.mark.parametrize("error", [BackendUnavailable("locked"), OSError("gone")])
    def test_a_depth_that_cannot_be_read_is_never_zero(self, told, error):
        def depth() -> int:
            raise error

        report(drained=1, oldest_ms=990_000, depth=depth)
        assert values(told)["queue.depth_unavailable"] == 1
        assert values(told).keys() & {"queue.depth", "queue.idle_nonempty"} == set()
        assert values(told)["queue.head_of_line_age_s"] == 10

    def test_with_neither_depth_nor_jobs_there_is_no_age(self, told):
        def depth() -> int:
            raise OSError("gone")

        report(depth=depth)
        assert "queue.head_of_line_age_s" not in values(told)

    def test_a_drain_of_all_streams_has_an_empty_stream_tag(self, told):
        report(stream=None)
        assert {metric.tags["stream"] for metric in told} == {""}


class TestThrottle:
    def test_the_count_is_the_sum_since_the_last_report(self, told):
        box = QueueLatencyWindowBox()
        report(box, drained=1, now=1000)
        for now in (1001, 1010, 1029.9):
            report(box, drained=2, now=now, depth=lambda: pytest.fail("the depth was read"))
        told.clear()
        report(box, drained=0, now=1030, depth=9)
        assert values(told)["queue.drain_count"] == 6
        assert values(told)["queue.idle_nonempty"] == 0, "jobs were taken in this interval"
        assert "queue.head_of_line_age_s" not in values(told)

    def test_streams_do_not_silence_each_other(self, told):
        box = QueueLatencyWindowBox()
        for stream in ("encode", "dreaming", "encode"):
            report(box, stream=stream, drained=1)
        streams = [metric.tags["stream"] for metric in told if metric.name == "queue.drain_count"]
        assert streams == ["encode", "dreaming"]


class TestHooks:
    def test_one_that_raises_is_logged_once_and_called_again(self, caplog):
        calls: list[str] = []

        def bad(metric: Metric) -> None:
            calls.append(metric.name)
            raise ValueError("I am bad")

        install(bad)
        set_enabled(True)
        report()
        report()
        assert len(calls) == 2
        (record,) = caplog.records
        assert "bad" in record.getMessage()
        assert "I am bad" in str(record.exc_info[1])

    def test_several_hear_the_same_and_one_that_raises_hurts_no_other(self, told, caplog):
        other: list[Metric] = []

        def bad(metric: Metric) -> None:
            raise ValueError("no")

        install(fan_out([told.append, bad, other.append]))
        report(depth=2)
        assert told == other
        assert {metric.name for metric in told} == NAMES
        assert len(caplog.records) == 1

    def test_the_log_gets_one_line_with_everything(self, caplog):
        caplog.set_level(logging.INFO, "queuekit.telemetry")
        install(telemetry.log_hook())
        set_enabled(True)
        report(drained=2, depth=5, oldest_ms=990_000)
        (record,) = caplog.records
        assert record.levelno == logging.INFO
        assert record.name == "queuekit.telemetry"
        assert "stream=encode" in record.getMessage()
        assert "depth=5" in record.getMessage()
        assert (record.estate, record.kit, record.stream) == ("notes", "QueueKit", "encode")
        assert record.metrics.keys() == NAMES
        assert record.metrics_ts == 1000.0

    def test_a_queue_with_nothing_to_do_is_no_news(self, caplog):
        caplog.set_level(logging.DEBUG, "queuekit.telemetry")
        install(telemetry.log_hook())
        set_enabled(True)
        report(drained=0, depth=0)
        assert [record.levelno for record in caplog.records] == [logging.DEBUG]

    def test_a_log_that_is_not_wanted_is_not_written(self, caplog):
        caplog.set_level(logging.WARNING, "queuekit.telemetry")
        install(telemetry.log_hook())
        set_enabled(True)
        report()
        assert caplog.records == []

    def test_a_metric_cannot_be_changed(self):
        metric = Metric("queue.depth", 1.0, {}, 0.0)
        with pytest.raises(AttributeError):
            metric.value = 2.0  # type: ignore[misc]
