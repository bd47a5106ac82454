"""What is told about a queue: one `Metric` per number, and which numbers a report consists of. No I/O.

`queue_metrics` decides what is said and what is left out. The rule behind it: a number that is not known is never
told as 0. So a depth that could not be read becomes `queue.depth_unavailable` = 1, and `queue.idle_nonempty`, which
depends on it, is left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

KIT = "QueueKit"
TAG_NAMES = ("estate", "kit", "stream")

DEPTH = "queue.depth"
DEPTH_UNAVAILABLE = "queue.depth_unavailable"
DRAIN_COUNT = "queue.drain_count"
IDLE_NONEMPTY = "queue.idle_nonempty"
LATENCY_P50 = "queue.latency_p50_ms"
LATENCY_P95 = "queue.latency_p95_ms"
HEAD_OF_LINE_AGE = "queue.head_of_line_age_s"

DESCRIPTIONS: Mapping[str, str] = {
    DEPTH: "Jobs of the stream that are pending",
    DEPTH_UNAVAILABLE: "1 when the number of pending jobs could not be read",
    DRAIN_COUNT: "Jobs claimed since the last report",
    IDLE_NONEMPTY: "1 when jobs are pending and none was claimed since the last report",
    LATENCY_P50: "Median duration of the last drains in milliseconds",
    LATENCY_P95: "95th percentile of the duration of the last drains in milliseconds",
    HEAD_OF_LINE_AGE: "Seconds that the oldest job of the last drain had waited",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Metric:
    """One number. `tags` hold `estate`, `kit` and `stream`; `ts` is when, in seconds since the epoch."""

    name: str
    value: float
    tags: Mapping[str, str]
    ts: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QueueFacts:
    """What one report is made from.

    `depth`: jobs pending, None when it could not be read. `drained`: jobs claimed since the last report. `oldest_ms`:
    when the oldest job of the drain just made was submitted (ms since the epoch), None when that drain got none.
    """

    estate: str
    stream: str
    depth: int | None
    drained: int
    p50_ms: float
    p95_ms: float
    oldest_ms: int | None
    now: float


def queue_metrics(facts: QueueFacts) -> list[Metric]:
    """The metrics of one report, at most six."""
    values = {
        **_depth(facts),
        DRAIN_COUNT: float(facts.drained),
        LATENCY_P50: facts.p50_ms,
        LATENCY_P95: facts.p95_ms,
        **_head_of_line(facts),
    }
    return [Metric(name, value, _tags(facts), facts.now) for name, value in values.items()]


def _tags(facts: QueueFacts) -> dict[str, str]:
    return {"estate": facts.estate, "kit": KIT, "stream": facts.stream}


def _depth(facts: QueueFacts) -> dict[str, float]:
    if facts.depth is None:
        return {DEPTH_UNAVAILABLE: 1.0}
    return {DEPTH: float(facts.depth), IDLE_NONEMPTY: float(_is_stuck(facts))}


def _head_of_line(facts: QueueFacts) -> dict[str, float]:
    if _is_stuck(facts):
        return {HEAD_OF_LINE_AGE: 0.0}
    if facts.oldest_ms is None:
        return {}
    return {HEAD_OF_LINE_AGE: max(0.0, facts.now - facts.oldest_ms / 1000)}


def _is_stuck(facts: QueueFacts) -> bool:
    return bool(facts.depth) and facts.drained == 0
