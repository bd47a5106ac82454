"""Damaged jobs, signals, columns, leases and names (T14): read, or refused with the documented error."""

from __future__ import annotations

from pathlib import Path

import pytest
from mutations import COUNTS, try_all
from readers import good, readers

from queuekit.errors import DecodingFailed
from queuekit.wire import decode_job, decode_signal

KINDS = ["job", "signal", "extensions", "artifacts", "lease", "name"]


def test_there_is_something_to_damage(tmp_path: Path) -> None:
    """Else the tests below would pass for the wrong reason."""
    jobs, signals = good("job", tmp_path), good("signal", tmp_path)
    assert all(decode_job(data) for data in jobs)
    assert all(decode_signal(data) for data in signals)
    assert min(len(jobs), len(signals), len(good("name", tmp_path))) >= 3
    with pytest.raises(DecodingFailed):
        decode_job(b"x")


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_records(tmp_path: Path, kind: str, count: int) -> None:
    try_all(kind, good(kind, tmp_path), count, readers(tmp_path)[kind])
