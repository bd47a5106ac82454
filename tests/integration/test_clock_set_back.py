"""A clock that is set back by an hour does not make a retry wait for longer than its delay (C32)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from queuekit.backends.maildir.backend import FilesystemBackend
from queuekit.backends.sql.backend import PersistenceKitBackend
from queuekit.clock import now_ms
from queuekit.contract import QueueBackend
from queuekit.testing.faults import FaultyOps
from queuekit.testing.jobs import make_job

STREAM = "encode"
DELAY = 10.0
TICK = 0.05  # by so much, at most, the kernel stamps a file with a time that is over


@pytest.fixture
def set_back(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Set the clock of this process back by an hour."""
    real = time.time_ns

    def step() -> None:
        monkeypatch.setattr(time, "time_ns", lambda: real() - 3_600_000_000_000)

    return step


@contextlib.contextmanager
def claimed(queue: QueueBackend) -> Iterator[QueueBackend]:
    """A queue that has one job in flight, "a"."""
    with contextlib.closing(queue):
        queue.write(make_job("a"))
        queue.drain_available(STREAM)
        queue.drain_available(STREAM)  # so that it has looked for deferred ones
        yield queue


def wait_of(queue: QueueBackend) -> float:
    """For how long the next deferred job has to wait."""
    queue.drain_available(STREAM)
    wait = queue.next_due(STREAM)
    assert wait is not None
    return wait


def test_in_a_folder_while_the_retry_is_written_down(tmp_path: Path, set_back: Callable[[], None]) -> None:
    ops = FaultyOps(lambda call, _: set_back() if call == "sync_folder" else None)
    with claimed(FilesystemBackend(tmp_path / "spool", ops=ops)) as queue:
        ops.arm()
        queue.defer("a", now_ms() + int(DELAY * 1000))
        assert DELAY - 5 < wait_of(queue) <= DELAY


def test_in_a_folder_while_the_retry_cannot_be_written_down(tmp_path: Path, set_back: Callable[[], None]) -> None:
    """The delay begins when the run has failed, not when the disk takes it."""
    ops = FaultyOps()
    with claimed(FilesystemBackend(tmp_path / "spool", ops=ops)) as queue:

        def fail(call: str, _: int) -> None:
            if call == "create":
                raise OSError(28, "No space left on device")

        ops.arm(fail)
        due_ms = now_ms() + int(DELAY * 1000)
        with pytest.raises(Exception, match="No space left"):
            queue.defer("a", due_ms)
        ops.disarm()
        set_back()
        queue.defer("a", due_ms)
        assert DELAY - 5 < wait_of(queue) <= DELAY


def test_in_a_folder_when_who_put_it_off_has_died(tmp_path: Path, set_back: Callable[[], None]) -> None:
    with claimed(FilesystemBackend(tmp_path / "spool")) as queue:
        queue.defer("a", now_ms() + int(DELAY * 1000))
    set_back()
    with contextlib.closing(FilesystemBackend(tmp_path / "spool")) as successor:
        assert DELAY - 5 < wait_of(successor) <= DELAY + TICK


def test_what_a_person_scheduled_waits_for_the_hour_that_was_named(
    tmp_path: Path, set_back: Callable[[], None]
) -> None:
    with contextlib.closing(FilesystemBackend(tmp_path / "spool")) as queue:
        queue.write(make_job("a"), due_ms=now_ms() + int(DELAY * 1000))
    set_back()
    with contextlib.closing(FilesystemBackend(tmp_path / "spool")) as other:
        assert wait_of(other) > 3600


def test_in_a_database_while_the_retry_is_committed(
    tmp_path: Path, set_back: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with claimed(PersistenceKitBackend(f"sqlite:{tmp_path}/jobs.db")) as backend:
        assert isinstance(backend, PersistenceKitBackend)
        real = backend.database.run

        def slow_run(*args: object, **keywords: object) -> object:
            done = real(*args, **keywords)  # type: ignore[arg-type]
            set_back()
            return done

        with monkeypatch.context() as slow:
            slow.setattr(backend.database, "run", slow_run)
            backend.defer("a", now_ms() + int(DELAY * 1000))
        wait = backend.next_due(STREAM)
        assert wait is not None
        assert DELAY - 5 < wait <= DELAY
