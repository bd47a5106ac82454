"""What was measured, and how it is written. No I/O."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

_WIDTH = 44


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """`key`: its stable name; `what`: in words; `jobs` in `seconds`; `each_ms`: of each single act, where that was
    taken. Without `seconds` only these count: jobs came one by one, with pauses.
    """

    key: str
    what: str
    jobs: int
    seconds: float | None
    each_ms: tuple[float, ...] = ()

    @property
    def per_second(self) -> float | None:
        """Jobs a second."""
        return self.jobs / self.seconds if self.seconds else None

    def to_dict(self) -> dict[str, object]:
        """For `--json`."""
        rate = self.per_second
        return {
            "jobs": self.jobs,
            "seconds": self.seconds,
            "jobs_per_second": rate,
            "us_per_job": 1e6 / rate if rate else None,
            "p50_ms": percentile(self.each_ms, 50),
            "p99_ms": percentile(self.each_ms, 99),
        }


def percentile(values: Sequence[float], p: float) -> float | None:
    """The value at that place of the sorted ones; None for none."""
    return sorted(values)[int(p / 100 * (len(values) - 1))] if values else None


def table(figures: Sequence[Figure]) -> Iterator[str]:
    """The lines of a table with units."""
    yield f"{'':{_WIDTH}}{'jobs':>9}{'jobs/s':>10}{'µs/job':>10}{'p50 ms':>9}{'p99 ms':>9}"
    for each in figures:
        rate = each.per_second
        cells = [
            f"{each.jobs:>9,}",
            f"{rate:>10,.0f}" if rate else " " * 10,
            f"{1e6 / rate:>10,.0f}" if rate else " " * 10,
            *(f"{ms:>9.2f}" if ms is not None else " " * 9 for ms in (percentile(each.each_ms, p) for p in (50, 99))),
        ]
        yield f"{each.what:{_WIDTH}}{''.join(cells)}".rstrip()
