"""Telemetry of a queue: off by default, told to one hook, at most once per interval and stream.

    from queuekit.telemetry import install, set_enabled

    install(print)          # or log_hook(), prometheus_hook(), …, or fan_out([…])
    set_enabled(True)

After every drain `report_queue_stats` adds a sample to a latency window, and when a report of the stream is due it
emits `Metric`s: `queue.depth` (or `queue.depth_unavailable`), `queue.drain_count`, `queue.idle_nonempty`,
`queue.latency_p50_ms`, `queue.latency_p95_ms`, `queue.head_of_line_age_s`. The hook runs in the caller's thread and
cannot hurt the drain by raising, only by taking long.

The adapters are files of their own, imported by name: `queuekit.telemetry.prometheus`, `.opentelemetry`, and
`.shared_window` for a window that several processes share.
"""

from queuekit.telemetry.hook import Hook, ReportHook, fan_out, install, is_enabled, set_enabled
from queuekit.telemetry.log_hook import log_hook
from queuekit.telemetry.metric import Metric
from queuekit.telemetry.report import report_in_portions, report_queue_stats
from queuekit.telemetry.window import LatencyBox, QueueLatencyWindow, QueueLatencyWindowBox

__all__ = [
    "Hook",
    "LatencyBox",
    "Metric",
    "QueueLatencyWindow",
    "QueueLatencyWindowBox",
    "ReportHook",
    "fan_out",
    "install",
    "is_enabled",
    "log_hook",
    "report_in_portions",
    "report_queue_stats",
    "set_enabled",
]
