# ruff: noqa: S101  these are tests
"""Noticing arrivals: a watcher attached before a job arrives is readable after it."""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator

import pytest

from queuekit.clock import now_ms
from queuekit.contract import QueueBackend, Watcher
from queuekit.status import ObservationStatus
from queuekit.testing.contract.base import Contract
from queuekit.testing.jobs import DEADLINE, ids_of, make_job, wait_until


def woken(watcher: Watcher) -> bool:
    """Whether the watcher becomes readable within the deadline, or asks to be read by itself."""
    timeout = watcher.timeout()
    return bool(select.select([watcher], [], [], DEADLINE if timeout is None else timeout)[0]) or timeout is not None


def quiet(watcher: Watcher) -> bool:
    """Whether there is nothing to read now."""
    return not select.select([watcher], [], [], 0)[0]


class WakingContract(Contract):
    """`watcher`, `hint`, `watch`."""

    @pytest.fixture
    def watcher(self, backend: QueueBackend) -> Iterator[Watcher]:
        """A watcher, attached before anything happened."""
        watcher = backend.watcher()
        yield watcher
        watcher.close()

    def test_an_arrival_is_noticed(self, backend: QueueBackend, peer: QueueBackend, watcher: Watcher) -> None:
        for number in range(3):
            peer.write(make_job(f"j{number}"))
            assert woken(watcher)
            backend.hint(watcher.read())
            assert ids_of(backend.drain_available()) == [f"j{number}"]

    def test_reading_never_blocks_and_clears(self, backend: QueueBackend, watcher: Watcher) -> None:
        assert watcher.read() == ()
        backend.write_batch([make_job(), make_job()])
        assert woken(watcher)
        watcher.read()
        assert quiet(watcher)
        assert watcher.check()

    def test_a_job_that_comes_back_is_noticed(self, peer: QueueBackend, watcher: Watcher) -> None:
        peer.write(make_job("j"))
        assert woken(watcher)
        peer.drain_available()
        watcher.read()
        peer.release("j")
        assert woken(watcher)
        peer.drain_available()
        watcher.read()
        peer.reclaim_in_flight("encode")
        assert woken(watcher)
        peer.drain_available()
        peer.complete("j", ObservationStatus.DONE)
        watcher.read()
        peer.retry("j")
        assert woken(watcher)

    def test_closing_twice_is_closing_once(self, backend: QueueBackend) -> None:
        watcher = backend.watcher("encode")
        watcher.close()
        watcher.close()
        backend.write(make_job())
        assert backend.pending_count() == 1

    def test_a_watch_calls_once_and_at_each_arrival(self, backend: QueueBackend, peer: QueueBackend) -> None:
        stop, seen = threading.Event(), list[str]()

        def on_wake() -> None:
            seen.extend(ids_of(backend.drain_available()))

        backend.write(make_job("there-before"))
        thread = threading.Thread(target=backend.watch, args=(on_wake, stop))
        thread.start()
        wait_until(lambda: seen == ["there-before"])
        peer.write(make_job("later"))
        wait_until(lambda: seen == ["there-before", "later"])
        stop.set()
        thread.join(DEADLINE)
        assert not thread.is_alive()

    def test_an_error_ends_the_watch(self, backend: QueueBackend) -> None:
        def on_wake() -> None:
            raise LookupError("mine")

        with pytest.raises(LookupError, match="mine"):
            backend.watch(on_wake, threading.Event())

    def test_a_stopped_watch_calls_nothing(self, backend: QueueBackend) -> None:
        stop, calls = threading.Event(), list[int]()
        stop.set()
        backend.watch(lambda: calls.append(1), stop)
        assert calls == []

    def test_a_job_that_somebody_sends_for_later_is_noticed_when_it_is_due(
        self, backend: QueueBackend, peer: QueueBackend
    ) -> None:
        """Not at the next slow look only: who waits learns of the due time when the job is sent."""
        stop, begun, seen = threading.Event(), threading.Event(), list[str]()

        def on_wake() -> None:
            seen.extend(ids_of(backend.drain_available()))
            begun.set()

        watching = threading.Thread(target=backend.watch, args=(on_wake, stop))
        watching.start()
        assert begun.wait(DEADLINE)
        peer.write(make_job("j"), due_ms=now_ms() + 400)
        try:
            wait_until(lambda: seen == ["j"])
        finally:
            stop.set()
            watching.join(DEADLINE)

    def test_a_watch_brings_a_deferred_job_when_it_is_due(self, backend: QueueBackend) -> None:
        backend.write(make_job("j"), due_ms=now_ms() + 400)
        stop = threading.Event()
        seen: list[str] = []

        def look() -> None:
            seen.extend(ids_of(backend.drain_available()))
            if seen:
                stop.set()

        watching = threading.Thread(target=backend.watch, args=(look, stop))
        watching.start()
        watching.join(DEADLINE)
        assert seen == ["j"]
