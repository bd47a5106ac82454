"""What a claim costs does not grow with what else is in the queue: counted in listings and calls, not in time."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from queuekit.backends.maildir import census, drain, layout, lookahead
from queuekit.backends.maildir.backend import FilesystemBackend
from queuekit.facade import QueueKit
from queuekit.lease import DrainLease
from queuekit.telemetry import Metric, install, set_enabled
from queuekit.testing.faults import FaultyOps
from queuekit.testing.jobs import FAR_MS, ids_of, make_job, make_jobs
from queuekit.wire import encode_job

STREAM = "encode"


@pytest.fixture
def ops() -> FaultyOps:
    return FaultyOps(syncing=False)


@pytest.fixture
def queue(tmp_path: Path, ops: FaultyOps) -> FilesystemBackend:
    made = FilesystemBackend(tmp_path / "spool", ops=ops)
    os.utime(tmp_path / "spool" / "later", (1, 1))  # unchanged for long, so that one listing of it is enough
    return made


@pytest.fixture(autouse=True)
def listings_are_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is just now: how often new/ is listed is what counts here."""
    monkeypatch.setattr(drain, "_CHEAP_LISTING_SECONDS", float("inf"))


def fill(queue: FilesystemBackend, folder: str, count: int, stream: str) -> list[str]:
    """Put job files where they belong by hand; their ids, oldest first."""
    jobs = make_jobs(count, stream)
    for job in jobs:
        Path(queue.root, folder, layout.job_filename(job)).write_bytes(encode_job(job))
    return ids_of(jobs)


def won(queue: FilesystemBackend) -> DrainLease:
    lease = queue.lease(STREAM)
    assert lease.try_acquire()
    return lease


def calls_of_a_drain(queue: FilesystemBackend, ops: FaultyOps, limit: int) -> Counter[str]:
    lease = queue.lease(STREAM)
    assert lease.try_acquire()
    ops.arm()
    assert len(queue.drain_available(STREAM, limit, lease=lease)) == limit
    ops.disarm()
    lease.release()
    return Counter(ops.calls)


def test_a_backlog_is_listed_once_for_many_claims(queue: FilesystemBackend, ops: FaultyOps) -> None:
    ids = fill(queue, "new", 1000, STREAM)
    lease = won(queue)
    ops.arm()
    got: list[str] = []
    while len(got) < 1000:
        got += ids_of(queue.drain_available(STREAM, 10, lease=lease))
    assert got == ids
    assert ops.calls.count("entries") <= 2  # new/ and later/, each once


def test_a_backlog_beyond_the_lookahead_is_listed_once_for_each_of_it(
    queue: FilesystemBackend, ops: FaultyOps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookahead.Lookahead.__init__, "__defaults__", (50,))
    ids = fill(queue, "new", 500, STREAM)
    lease = won(queue)
    ops.arm()
    got: list[str] = []
    while len(got) < 500:
        got += ids_of(queue.drain_available(STREAM, 7, lease=lease))
    assert got == ids
    assert 10 <= ops.calls.count("entries") <= 13


@pytest.mark.parametrize("folder", ["new", "done", "later"])
def test_what_is_not_ours_adds_no_call_to_a_claim(
    tmp_path: Path, queue: FilesystemBackend, ops: FaultyOps, folder: str
) -> None:
    """F21: names alone tell it."""
    fill(queue, "new", 3, STREAM)
    alone = calls_of_a_drain(queue, ops, 3)
    if folder == "later":
        queue.write_batch([])
        for job in make_jobs(500, "other"):
            Path(queue.root, "later", layout.later_filename(layout.job_filename(job), FAR_MS, retry=True)).touch()
    else:
        fill(queue, folder, 5000 if folder == "new" else 500, "other")
    again = FilesystemBackend(queue.root, ops=ops)
    fill(queue, "new", 3, STREAM)
    beside = calls_of_a_drain(again, ops, 3)
    assert beside == alone


def test_a_hint_saves_the_listing(queue: FilesystemBackend, ops: FaultyOps, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another stream's million jobs make a listing dear; an arrival that was seen needs none."""
    fill(queue, "new", 100, "other")
    lease = won(queue)
    assert queue.drain_available(STREAM, 5, lease=lease) == []
    monkeypatch.setattr(drain, "_CHEAP_LISTING_SECONDS", -1.0)
    monkeypatch.setattr(drain, "_LISTING_SHARE", 10**9)
    assert queue.drain_available(STREAM, 5, lease=lease) == []
    job = make_job("seen")
    FilesystemBackend(queue.root).write(job)
    ops.arm()
    assert queue.drain_available(STREAM, 5, lease=lease) == []
    queue.hint([layout.job_filename(job), "no job at all", os.fsdecode(b"\xff")])
    assert ids_of(queue.drain_available(STREAM, 5, lease=lease)) == ["seen"]
    assert "entries" not in ops.calls


def test_the_slow_look_finds_what_no_event_told(queue: FilesystemBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = won(queue)
    assert queue.drain_available(STREAM, lease=lease) == []
    monkeypatch.setattr(drain, "_CHEAP_LISTING_SECONDS", -1.0)
    monkeypatch.setattr(drain, "_LISTING_SHARE", 10**9)
    FilesystemBackend(queue.root).write(make_job("missed"))
    assert queue.drain_available(STREAM, lease=lease) == []
    queue.look_again()
    assert ids_of(queue.drain_available(STREAM, lease=lease)) == ["missed"]


def test_a_reply_looks_at_its_own_jobs_only(queue: FilesystemBackend, ops: FaultyOps) -> None:
    """F1: no rescan of cur/ for each."""
    ids = fill(queue, "new", 200, STREAM)
    lease = won(queue)
    queue.drain_available(STREAM, lease=lease)
    ops.arm()
    queue.complete(ids[0], "done", lease=lease)
    assert Counter(ops.calls) == Counter(create=1, write=1, sync_data=1, close=1, stat=1, move=2, sync_folder=1)


def test_older_jobs_go_first_also_when_they_come_by_hint(queue: FilesystemBackend) -> None:
    jobs = make_jobs(6)
    queue.write_batch(jobs[3:])
    lease = won(queue)
    assert ids_of(queue.drain_available(STREAM, 1, lease=lease)) == ids_of(jobs[3:4])
    queue.write_batch(jobs[:3])
    assert ids_of(queue.drain_available(STREAM, 4, lease=lease)) == ids_of([*jobs[:3], jobs[4]])


def test_a_retry_does_not_wait_for_the_backlog_after_a_slow_look(queue: FilesystemBackend) -> None:
    """It is older than what waits; T9 found that it was run behind all of that."""
    lease = won(queue)
    assert queue.drain_available(STREAM, lease=lease) == []
    retried, *others = make_jobs(20)
    queue.write_batch(others)
    queue.look_again()
    queue.write(retried)
    assert ids_of(queue.drain_available(STREAM, 2, lease=lease)) == ids_of([retried, others[0]])


def test_a_slow_folder_is_drained_to_its_end(queue: FilesystemBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known to be there is looked for at once; only a look for what nobody told of may wait."""
    monkeypatch.setattr(drain, "_CHEAP_LISTING_SECONDS", -1.0)
    monkeypatch.setattr(drain, "_LISTING_SHARE", float("inf"))
    monkeypatch.setattr(lookahead.Lookahead.__init__, "__defaults__", (10,))
    expected = fill(queue, "new", 25, STREAM)
    lease = won(queue)
    claimed: list[str] = []
    while batch := queue.drain_available(STREAM, 4, lease=lease):
        claimed += ids_of(batch)
    assert claimed == expected


def test_whose_jobs_there_are_can_be_told_without_going_through_a_backlog(
    queue: FilesystemBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(50):
        fill(queue, "new", 1, f"stream{number}")
    seen: list[str] = []
    tell = layout.clear_stream

    def count(name: str) -> str | None:
        seen.append(name)
        return tell(name)

    monkeypatch.setattr(layout, "clear_stream", count)
    assert len(queue.streams(at_most=10)) == 10
    assert len(seen) == 10
    assert len(queue.streams()) == 50


def test_a_backlog_is_counted_in_portions(queue: FilesystemBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(census, "_PORTION", 10)
    fill(queue, "new", 25, STREAM)
    fill(queue, "new", 5, "another")
    *portions, count = queue.pending_portions(STREAM)
    assert len(portions) >= 3
    assert portions == sorted(portions)
    assert count == queue.pending_count(STREAM) == 25
    assert list(queue.pending_portions("a third"))[-1] == 0


def test_a_report_is_emitted_once_everything_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it before somebody goes through it: whoever claimed has better things to do first."""
    monkeypatch.setattr(census, "_PORTION", 10)
    seen: list[Metric] = []
    with QueueKit(str(tmp_path / "spool"), durability="none") as kit:
        kit.send_batch(make_jobs(25))
        install(seen.append)
        set_enabled(True)
        try:
            claimed, report = kit.drain_and_report_later(STREAM, 1)
            assert len(claimed) == 1
            assert next(report, "over") is None
            assert next(report, "over") is None
            assert seen == []
            assert list(report)[-1:] == [None]
            assert [each.value for each in seen if each.name == "queue.depth"] == [24.0]
        finally:
            install(None)
            set_enabled(False)
