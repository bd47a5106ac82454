"""What the facade calls after every drain: sample, and now and then tell.

gate off? nothing at all  ->  count, sample  ->  due? no: done  ->  read the depth  ->  emit
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator

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
    portions = report_in_portions(
        box,
        estate=estate,
        stream=stream,
        drained=drained,
        latency_ms=latency_ms,
        oldest_ms=oldest_ms,
        count=lambda: iter((depth(),)),
        now=now,
        interval=interval,
    )
    for _ in portions:
        pass


def report_in_portions(
    box: LatencyBox,
    *,
    estate: str,
    stream: str | None,
    drained: int,
    latency_ms: float,
    oldest_ms: int | None,
    count: Callable[[], Iterator[int]],
    now: float,
    interval: float = 30.0,
) -> Iterator[None]:
    """The same as something to go through, a portion of the counting at each step: a long queue takes a second.

    `count`: begins to count what is pending, and says how many it has come to so far; the last is the depth.
    """
    if not gate.enabled:
        return
    tag = stream or ""
    if drained:
        box.note_drained(tag, drained)
    p50_ms, p95_ms, should_emit = box.sample(latency_ms, now, interval, tag)
    if not should_emit:
        return
    depth = yield from _counted(count)
    facts = QueueFacts(
        estate=estate,
        stream=tag,
        depth=depth,
        drained=box.take_drained(tag),
        p50_ms=p50_ms,
        p95_ms=p95_ms,
        oldest_ms=oldest_ms,
        now=now,
    )
    emit(queue_metrics(facts))


def _counted(count: Callable[[], Iterator[int]]) -> Generator[None, None, int | None]:
    depth = 0
    try:
        for depth in count():  # noqa: B007  the last one is what was wanted
            yield
        return depth
    except (QueueError, OSError) as error:
        log.debug("the depth of the queue could not be read: %s", error)
        return None
