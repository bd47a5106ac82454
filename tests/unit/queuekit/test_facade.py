"""What `QueueKit` itself adds to a backend: how it is opened, how it waits, what it reports. A fake backend answers;
time is a number that a fake clock moves."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

import queuekit
from queuekit import (
    HLC,
    BackendUnavailable,
    Claimed,
    DrainTimeout,
    FilesystemBackend,
    HLCGenerator,
    InvalidTerminalStatus,
    Job,
    JobID,
    LeaseLost,
    MemoryBackend,
    ObservationStatus,
    PersistenceKitBackend,
    QueueKit,
    SessionID,
    StreamID,
    Tally,
    WriteFailed,
    facade,
    telemetry,
)
from queuekit.telemetry import Metric

WALL_MS = 1_700_000_000_000


class Clock:
    """Seconds since it was made; only sleeping moves it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return WALL_MS / 1000 + self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class Backend(MemoryBackend):
    """Answers tallies from a script, the last one for ever; a look takes `cost` seconds. Notes what it is asked."""

    def __init__(
        self, clock: Clock | None = None, tallies: Sequence[Tally | Exception] = (), cost: float = 0.0
    ) -> None:
        super().__init__()
        self.clock = clock or Clock()
        self.tallies = list(tallies)
        self.cost = cost
        self.asked: list[Any] = []
        self.failure: Exception | None = None

    def tally(self, stream: str | None = None) -> Tally:
        self.asked.append(stream)
        self.clock.now += self.cost
        answer = self.tallies.pop(0) if len(self.tallies) > 1 else self.tallies[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def complete(self, *args: Any, **keywords: Any) -> None:
        self.asked.append(("complete", args, keywords))

    def complete_session(self, *args: Any, **keywords: Any) -> int:
        self.asked.append(("complete_session", args, keywords))
        return 0

    def drain_available(self, *args: Any, **keywords: Any) -> list[Claimed]:
        if self.failure:
            raise self.failure
        return super().drain_available(*args, **keywords)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(facade, "time", clock)
    monkeypatch.setattr(facade, "now_ms", lambda: WALL_MS + round(clock.now * 1000))
    return clock


@pytest.fixture
def waits(clock: Clock) -> Callable[..., QueueKit]:
    def make(*tallies: Tally | Exception, cost: float = 0.0) -> QueueKit:
        return QueueKit(backend=Backend(clock, tallies, cost))

    return make


def in_flight(count: int) -> Tally:
    return Tally(in_flight=count)


# -- opening


def test_a_queue_needs_a_place():
    with pytest.raises(ValueError, match="root"):
        QueueKit()


@pytest.mark.parametrize("prefix", ["dir:", ""])
def test_a_folder_is_opened_by_url_or_path(tmp_path, prefix):
    with QueueKit.open(f"{prefix}{tmp_path}/spool", estate="notes") as queue:
        assert isinstance(queue.backend, FilesystemBackend)
        assert (queue.backend.root, queue.estate) == (str(tmp_path / "spool"), "notes")


def test_a_path_object_is_opened(tmp_path):
    with QueueKit.open(tmp_path / "spool") as queue:
        assert queue.root == str(tmp_path / "spool")


@pytest.mark.parametrize("url", ["postgres://me@host/db", "redis://x", "sqlite:"])
def test_a_store_that_there_is_not_is_refused(tmp_path, monkeypatch, url):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="sqlite:PATH or postgresql"):
        QueueKit.open(url)
    assert list(tmp_path.iterdir()) == []


def test_a_database_is_opened_by_its_url(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with QueueKit.open("sqlite:./jobs.db", max_job_bytes=3, estate="notes", report_interval=1.0) as queue:
        assert isinstance(queue.backend, PersistenceKitBackend)
        assert (queue.root, queue.estate) == (None, "notes")
        with pytest.raises(WriteFailed):
            queue.submit("encode", b"long")
    assert (tmp_path / "jobs.db").exists()


@pytest.mark.parametrize(
    ("missing", "url", "extra"),
    [("sqlalchemy", "sqlite:./jobs.db", "sql"), ("psycopg", "postgresql://me@host/db", "postgres")],
)
def test_a_store_whose_library_is_not_installed_says_what_to_install(monkeypatch, missing, url, extra):
    for name in [
        name for name in sys.modules if name.split(".")[0] == missing or name.startswith("queuekit.backends.sql")
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(BackendUnavailable, match=rf"pip install 'workerpool\[{extra}\]'"):
        QueueKit.open(url)


def test_a_folder_takes_no_job_into_a_transaction(tmp_path):
    with QueueKit(tmp_path / "spool") as queue, pytest.raises(ValueError, match="database"):
        queue.submit("encode", connection=object())


def test_leaving_closes_the_backend():
    with QueueKit(backend=MemoryBackend()) as queue:
        queue.submit("encode")
    with pytest.raises(BackendUnavailable):
        queue.submit("encode")
    queue.close()


def test_limits_reach_the_backend(tmp_path):
    with QueueKit(tmp_path, max_job_bytes=3) as queue, pytest.raises(queuekit.WriteFailed):
        queue.submit("encode", b"1234")


# -- submitting


def test_a_submitted_job_is_stamped_by_the_given_clock():
    queue = QueueKit(backend=MemoryBackend(), hlc=HLCGenerator(7, last=HLC(2**50, 4, 7)))
    queue.submit("encode")
    assert queue.drain()[0].job.submitted_at == HLC(2**50, 5, 7)


@pytest.mark.parametrize(("delay", "due_ms"), [(90.0, WALL_MS + 90_000), (0.0, WALL_MS), (-5.0, WALL_MS)])
def test_a_delay_is_a_due_time(clock, delay, due_ms):
    queue = QueueKit(backend=MemoryBackend())
    job_id = queue.submit("encode", delay=delay)
    view = queue.look_up(job_id)
    assert view is not None
    assert (view.due_ms, view.retry) == (due_ms, False)


@pytest.mark.parametrize(("delay", "due_ms"), [(1.5, WALL_MS + 1500), (0.0, WALL_MS)])
def test_deferring_takes_seconds_too(clock, delay, due_ms):
    queue = QueueKit(backend=MemoryBackend())
    job_id = queue.submit("encode")
    queue.drain()
    queue.defer(job_id, delay)
    view = queue.look_up(job_id)
    assert view is not None
    assert (view.due_ms, view.retry) == (due_ms, True)


# -- replying


def test_a_status_is_checked_before_the_backend_is_asked():
    backend = Backend()
    queue = QueueKit(backend=backend)
    for act in (lambda: queue.reply("j", "running"), lambda: queue.reply_session(SessionID.mint(), "finished")):
        with pytest.raises(InvalidTerminalStatus):
            act()
    assert backend.asked == []


def test_a_status_may_be_a_word():
    backend = Backend()
    QueueKit(backend=backend).reply("j", "done")
    assert backend.asked == [("complete", ("j", ObservationStatus.DONE, ()), {"lease": None})]


# -- waiting


def test_an_empty_queue_is_not_waited_for(waits, clock):
    waits(Tally(scheduled=3)).await_drain()
    assert clock.slept == []


def test_it_looks_until_nothing_is_left(waits, clock):
    queue = waits(Tally(pending=2), in_flight(2), in_flight(1), Tally())
    queue.await_drain("encode", poll_interval=0.5)
    assert clock.slept == [0.5] * 3
    assert queue.backend.asked == ["encode"] * 4


def test_progress_restarts_the_timeout(waits, clock):
    queue = waits(*[in_flight(count) for count in (3, 3, 3, 2, 2, 2, 1, 1, 1, 0)])
    queue.await_drain(poll_interval=1.0, timeout=3.5)
    assert clock.now == 9.0


def test_standing_still_ends_it_with_the_last_numbers(waits, clock):
    queue = waits(Tally(pending=1, in_flight=2), Tally(pending=0, in_flight=2))
    with pytest.raises(DrainTimeout) as raised:
        queue.await_drain(poll_interval=1.0, timeout=5.0)
    assert (raised.value.pending, raised.value.in_flight) == (0, 2)
    assert clock.now == 6.0


def test_new_jobs_do_not_extend_it(waits, clock):
    ups_and_downs = itertools.chain([2], itertools.islice(itertools.cycle([5, 4, 3, 2]), 40))
    queue = waits(*[Tally(pending=count) for count in ups_and_downs])
    with pytest.raises(DrainTimeout):
        queue.await_drain(poll_interval=1.0, timeout=10.0)
    assert clock.now == 10.0


def test_the_time_until_a_retry_is_due_is_not_standing_still(waits, clock):
    queue = waits(Tally(retrying=1, next_retry_ms=WALL_MS + 60_000))
    with pytest.raises(DrainTimeout) as raised:
        queue.await_drain(poll_interval=1.0, timeout=5.0)
    assert (raised.value.pending, raised.value.in_flight) == (0, 0)
    assert clock.now == 65.0


def test_a_slow_look_is_not_repeated_too_often(waits, clock):
    waits(in_flight(1), Tally(), cost=2.0).await_drain(poll_interval=0.02)
    assert clock.slept == [8.0]


def test_a_store_that_cannot_be_read_is_no_empty_queue(waits):
    with pytest.raises(BackendUnavailable):
        waits(in_flight(1), BackendUnavailable("gone")).await_drain()


# -- watching


def test_an_error_of_the_drain_ends_the_watch():
    backend = Backend()
    backend.failure = LeaseLost("encode", "somebody")
    with pytest.raises(LeaseLost):
        QueueKit(backend=backend).watch(lambda job, session: None, threading.Event())


# -- telemetry


@pytest.fixture
def metrics() -> Iterator[list[Metric]]:
    seen: list[Metric] = []
    telemetry.install(seen.append)
    telemetry.set_enabled(True)
    yield seen
    telemetry.set_enabled(False)
    telemetry.install(None)


def _told(metrics: Sequence[Metric]) -> Mapping[str, float]:
    return {metric.name: metric.value for metric in metrics}


def test_the_estate_is_on_every_metric(metrics):
    QueueKit(backend=MemoryBackend(), estate="notes").drain("encode")
    QueueKit(backend=MemoryBackend()).drain("encode")
    assert {metric.tags["estate"] for metric in metrics} == {"notes", "unknown"}


def test_a_drain_of_all_streams_has_an_empty_stream_tag(metrics):
    QueueKit(backend=MemoryBackend()).drain()
    assert {metric.tags["stream"] for metric in metrics} == {""}


def test_streams_are_reported_apart_and_not_too_often(clock, metrics):
    queue = QueueKit(backend=MemoryBackend(), report_interval=30.0)
    for stream, seconds in [("a", 0.0), ("b", 1.0), ("a", 28.0), ("a", 1.0)]:
        clock.now += seconds
        queue.drain(stream)
    reported = [(metric.tags["stream"], metric.ts) for metric in metrics if metric.name == "queue.depth"]
    assert [stream for stream, _ in reported] == ["a", "b", "a"]
    assert reported[2][1] - reported[0][1] == 30.0


def test_the_age_is_that_of_the_oldest_job_claimed(clock, metrics):
    queue = QueueKit(backend=MemoryBackend())
    for serial, age_ms in enumerate((3000, 5000, 4000)):
        queue.send(Job(id=JobID(f"j{serial}"), stream_id=StreamID("encode"), submitted_at=HLC(WALL_MS - age_ms, 0, 1)))
    queue.drain("encode", 2)
    told = _told(metrics)
    assert (told["queue.head_of_line_age_s"], told["queue.depth"], told["queue.drain_count"]) == (5.0, 1, 2)


def test_a_drain_that_raises_reports_nothing(metrics):
    backend = Backend()
    backend.failure = BackendUnavailable("gone")
    with pytest.raises(BackendUnavailable):
        QueueKit(backend=backend).drain("encode")
    assert metrics == []


def test_a_depth_that_cannot_be_read_is_said_to_be_unknown(metrics, monkeypatch):
    backend = MemoryBackend()

    def unreadable(stream: str | None = None) -> int:
        raise BackendUnavailable("gone")

    monkeypatch.setattr(backend, "pending_count", unreadable)
    QueueKit(backend=backend).drain("encode")
    told = _told(metrics)
    assert told["queue.depth_unavailable"] == 1
    assert "queue.depth" not in told


@pytest.mark.parametrize("root", ["redis://x", "dir:./spool", "sqlite:jobs.db"])
def test_a_url_is_no_root(tmp_path, monkeypatch, root):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="open"):
        QueueKit(root)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_root_is_not_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for make in (QueueKit, QueueKit.open):
        with pytest.raises(ValueError, match="root folder"):
            make("")
    assert list(tmp_path.iterdir()) == []
