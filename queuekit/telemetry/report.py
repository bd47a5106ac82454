"""What the facade calls after every drain: sample, and now and then tell.

gate off? nothing at all  ->  count, sample  ->  due? no: done  ->  read the depth  ->  emit
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from queuekit.errors import QueueError
from queuekit.telemetry.hook import emit, gate
from queuekit.telemetry.metric import QueueFacts, queue_metrics
from queuekit.telemetry.window import LatencyBox

log = logging.getLogger("queuekit.telemetry")


def report_queue_stats(
    box: LatencyBox,
    *,
    estate: str,
    stream: str | None,
    drained: int,
    latency_ms: float,
    oldest_ms: int | None,
    depth: Callable[[], int],
    now: float,
    interval: float = 30.0,
) -> None:
    """Record one drain, and emit a report of its stream when none was for `interval` seconds.

    `drained`: jobs it claimed. `latency_ms`: how long it took, by a monotonic clock. `oldest_ms`: when the oldest of
    them was submitted (ms since the epoch), None when there were none. `depth`: reads how many jobs of the stream are
    pending; called only when a report is due, and may raise `QueueError` or `OSError`. `now`: seconds since the epoch.
    `stream` is None for a drain of all streams, whose tag is empty.

    While telemetry is off, nothing is read or recorded.
    """
    if not gate.enabled:
        return
    tag = stream or ""
    if drained:
        box.note_drained(tag, drained)
    p50_ms, p95_ms, should_emit = box.sample(latency_ms, now, interval, tag)
    if not should_emit:
        return
    facts = QueueFacts(
        estate=estate,
        stream=tag,
        depth=_read(depth),
        drained=box.take_drained(tag),
        p50_ms=p50_ms,
        p95_ms=p95_ms,
        oldest_ms=oldest_ms,
        now=now,
    )
    emit(queue_metrics(facts))


def _read(depth: Callable[[], int]) -> int | None:
    try:
        return depth()
    except (QueueError, OSError) as error:
        log.debug("the depth of the queue could not be read: %s", error)
        return None
