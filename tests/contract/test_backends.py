"""The contract, run for every backend, and what only several processes can show."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from queuekit import FilesystemBackend, MemoryBackend, ObservationStatus, PersistenceKitBackend, QueueBackend, QueueKit
from queuekit.backends.memory import MemoryStore
from queuekit.testing.contract import BackendContract, Opener
from queuekit.testing.jobs import ids_of, make_jobs


def _opener(stack: contextlib.ExitStack, make: Callable[..., QueueBackend]) -> Opener:
    def open_backend(**options: Any) -> QueueBackend:
        return stack.enter_context(contextlib.closing(make(**options)))

    return open_backend


class TestMemory(BackendContract):
    @pytest.fixture
    def open_backend(self) -> Iterator[Opener]:
        store = MemoryStore()
        with contextlib.ExitStack() as stack:
            yield _opener(stack, lambda **options: MemoryBackend(store=store, **options))


class TestMaildir(BackendContract):
    @pytest.fixture
    def open_backend(self, tmp_path: Path) -> Iterator[Opener]:
        with contextlib.ExitStack() as stack:
            yield _opener(stack, lambda **options: FilesystemBackend(tmp_path / "spool", **options))

    def test_ten_processes_get_each_job_once(self, backend: FilesystemBackend) -> None:
        check_that_processes_share(backend, f"dir:{backend.root}")


class TestSqlite(BackendContract):
    ids_are_unique = True

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:{tmp_path}/queue/jobs.db"

    @pytest.fixture
    def open_backend(self, url: str) -> Iterator[Opener]:
        with contextlib.ExitStack() as stack:
            yield _opener(stack, lambda **options: PersistenceKitBackend(url, **options))

    def test_ten_processes_get_each_job_once(self, backend: QueueBackend, url: str) -> None:
        check_that_processes_share(backend, url)


class TestPostgres(BackendContract):
    ids_are_unique = True
    shares_streams = True

    @pytest.fixture
    def open_backend(self, postgres_url: str) -> Iterator[Opener]:
        with contextlib.ExitStack() as stack:
            yield _opener(stack, lambda **options: PersistenceKitBackend(postgres_url, **options))

    def test_ten_processes_get_each_job_once(self, backend: QueueBackend, postgres_url: str) -> None:
        check_that_processes_share(backend, postgres_url)


def check_that_processes_share(backend: QueueBackend, url: str) -> None:
    jobs = make_jobs(100)
    backend.write_batch(jobs)
    fork = multiprocessing.get_context("fork")
    start, reports = fork.Barrier(10), fork.SimpleQueue()
    drainers = [fork.Process(target=_drain_all, args=(url, start, reports)) for _ in range(10)]
    for drainer in drainers:
        drainer.start()
    got = [job_id for _ in drainers for job_id in reports.get()]
    for drainer in drainers:
        drainer.join()
    assert [drainer.exitcode for drainer in drainers] == [0] * 10
    assert sorted(got) == sorted(ids_of(jobs))
    assert ids_of(backend.completed()) == ids_of(jobs)


def _drain_all(url: str, start: Any, reports: Any) -> None:
    mine = []
    with contextlib.closing(QueueKit.open(url).backend) as backend:
        start.wait()
        while batch := backend.drain_available("encode", 3):
            for each in batch:
                backend.complete(each.job.id, ObservationStatus.DONE)
                mine.append(each.job.id)
    reports.put(mine)
