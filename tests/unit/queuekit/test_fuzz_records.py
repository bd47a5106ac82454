"""Damaged jobs, signals, columns, leases and names (T14): read, or refused with the documented error."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from mutations import COUNTS, try_all

from queuekit.backends.maildir import layout
from queuekit.errors import DecodingFailed
from queuekit.job import Delivery
from queuekit.lease import Record, judge
from queuekit.locks import Life
from queuekit.wire import (
    decode_artifacts,
    decode_extensions,
    decode_job,
    decode_signal,
    encode_job,
    encode_signal,
)

FIXTURES = Path(__file__).parents[3] / "fixtures"
JOBS = [path.read_bytes() for path in sorted((FIXTURES / "jobs").glob("*.file"))]
SIGNALS = [path.read_bytes() for path in sorted((FIXTURES / "signals").glob("*.file"))]
LEASES = [b"pid-1-a\n1700000000.5", b"pid-4711-0123456789abcdef\n1e9", b"x\n0"]
NAMES = [path.read_text().strip().encode() for path in sorted((FIXTURES / "jobs").glob("*.name"))]


def test_there_is_something_to_damage() -> None:
    """Else the tests below would pass for the wrong reason."""
    assert all(decode_job(data) for data in JOBS)
    assert all(decode_signal(data) for data in SIGNALS)
    assert min(len(JOBS), len(SIGNALS), len(NAMES)) >= 3
    with pytest.raises(DecodingFailed):
        decode_job(b"x")


def read_job(data: bytes) -> None:
    """What can be read can also be counted, named and written again, as a retry does."""
    with contextlib.suppress(DecodingFailed):
        job = decode_job(data)
        Delivery.of(job)
        layout.job_filename(job)
        assert decode_job(encode_job(job)) == job or job != job


def read_signal(data: bytes) -> None:
    """A checkpoint and an intent are such files, too."""
    with contextlib.suppress(DecodingFailed):
        signal = decode_signal(data)
        assert decode_signal(encode_signal(signal)) == signal


def read_columns(data: bytes) -> None:
    text = data.decode(errors="replace")
    with contextlib.suppress(DecodingFailed):
        decode_extensions(text)
    with contextlib.suppress(DecodingFailed):
        decode_artifacts(text)


def read_lease(data: bytes) -> None:
    Record.decode(data)
    for life in Life:
        judge(data, owner="pid-1-me", now=1.7e9, ttl=15.0, life=life, unchanged=0.0)


def read_name(data: bytes) -> None:
    name = data.replace(b"/", b"").replace(b"\0", b"").decode(errors="surrogateescape")
    layout.suggests(name, "encode")
    layout.is_clear(name, "encode")
    layout.clear_stream(name)
    layout.tail(name)
    layout.split_later(name)
    layout.split_claim(name)
    layout.split_checkpoint(name)
    layout.quarantine_signal_filename(name)


@pytest.mark.parametrize("count", COUNTS)
def test_damaged_jobs(count: int) -> None:
    try_all("job", JOBS, count, read_job)


@pytest.mark.parametrize("count", COUNTS)
def test_damaged_signals(count: int) -> None:
    try_all("signal", SIGNALS, count, read_signal)


@pytest.mark.parametrize("count", COUNTS)
def test_damaged_columns(count: int) -> None:
    columns = [json.dumps({"a": [1, {"b": None}]}).encode(), b'[{"type":"file_path","value":"/x"}]', *SIGNALS]
    try_all("column", columns, count, read_columns)


@pytest.mark.parametrize("count", COUNTS)
def test_damaged_leases(count: int) -> None:
    try_all("lease", LEASES, count, read_lease)


@pytest.mark.parametrize("count", COUNTS)
def test_damaged_names(count: int) -> None:
    try_all("name", NAMES, count, read_name)
