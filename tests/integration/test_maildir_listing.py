"""What a person sees of a folder: also what newer ports have claimed, what is no job, what names do not tell."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from queuekit import FilesystemBackend, Job, job_filename
from queuekit.contract import JobView, PutAside
from queuekit.lifecycle import State
from queuekit.status import ObservationStatus
from queuekit.testing.jobs import make_job, make_jobs

STEM = "0000000000000001-00000001-0000000001"


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[FilesystemBackend]:
    backend = FilesystemBackend(tmp_path / "spool")
    yield backend
    backend.close()


def put(queue: FilesystemBackend, folder: str, name: str, content: bytes = b"{") -> None:
    Path(queue.root, folder, name).write_bytes(content)


def listed(queue: FilesystemBackend, *states: State, stream: str | None = None) -> list[str]:
    return [each.job.id if isinstance(each, JobView) else each.name for each in queue.jobs(states, stream)]


def test_a_newer_ports_claims_are_running_and_their_ids_can_be_cut_short(queue: FilesystemBackend) -> None:
    job = make_job()
    queue.write(job)
    name = job_filename(job)
    os.rename(Path(queue.root, "new", name), Path(queue.root, "claim", f"{'0' * 32}-{name}"))
    assert list(queue.jobs([State.CUR])) == [JobView(job=job, state=State.CUR)]
    assert queue.ids_beginning(job.id[:9]) == [job.id]


def test_what_was_put_aside_is_listed_with_the_ended_and_found_by_name_and_id(queue: FilesystemBackend) -> None:
    clear, vague = f"{STEM}-s-{'ab' * 16}", f"{STEM}-s-file-17"
    put(queue, "new", clear)
    put(queue, "new", vague, b"{}")
    assert queue.drain_available("s") == []
    by_name = {each.name: each for each in queue.jobs([State.DONE]) if isinstance(each, PutAside)}
    assert {(each.name, each.stream, each.size) for each in by_name.values()} == {(clear, "s", 1), (vague, "", 2)}
    assert queue.put_aside(clear) == queue.put_aside("ab" * 16) == by_name[clear]
    assert queue.put_aside(vague) == queue.put_aside("file-17") == queue.put_aside("17") == by_name[vague]
    assert queue.put_aside("7") is None
    assert set(listed(queue, State.DONE, stream="s")) == {clear, vague}
    assert listed(queue, State.DONE, stream="t") == []
    assert queue.ids_beginning("abab") == ["ab" * 16]
    assert queue.ids_beginning("file") == []


def test_what_is_no_job_and_was_not_put_aside_is_left_out(queue: FilesystemBackend) -> None:
    job = make_job()
    queue.write(job)
    put(queue, "new", f"{STEM}-s-broken")
    put(queue, "done", f"{STEM}-s-{'cd' * 16}")
    put(queue, "done", "README")
    put(queue, "later", f"{STEM}-s-without-a-due-time")
    os.symlink(Path(queue.root, "new", job_filename(job)), Path(queue.root, "new", f"{STEM}-s-link"))
    put(queue, "new", f"{STEM}-s-another", Path(queue.root, "new", job_filename(job)).read_bytes())
    assert listed(queue, *State) == [job.id]
    assert queue.put_aside("README") is None
    assert queue.put_aside("cd" * 16) is None


def test_an_ended_job_without_a_record_is_shown_without_one(queue: FilesystemBackend) -> None:
    job = make_job()
    queue.write(job)
    os.rename(Path(queue.root, "new", job_filename(job)), Path(queue.root, "done", job_filename(job)))
    assert list(queue.jobs([State.DONE])) == [JobView(job=job, state=State.DONE)]


def test_a_stream_is_told_by_what_is_inside(queue: FilesystemBackend) -> None:
    mine, other = make_job("x", "a"), make_job("b-x", "a")
    hyphens = make_job("y", "a-b")
    queue.write_batch([mine, other, hyphens])
    assert listed(queue, State.NEW, stream="a") == ["x", "b-x"]
    assert listed(queue, State.NEW, stream="a-b") == ["y"]
    assert queue.ids_beginning("b") == ["b-x"]


def test_a_job_that_moves_while_it_is_listed_is_left_out(queue: FilesystemBackend) -> None:
    jobs = make_jobs(3)
    queue.write_batch(jobs)
    looking = queue.jobs([State.NEW])
    first = next(looking)
    assert isinstance(first, JobView)
    assert first.job == jobs[0]
    _end(queue, jobs)
    assert list(looking) == []


def _end(queue: FilesystemBackend, jobs: list[Job]) -> None:
    queue.drain_available()
    for job in jobs:
        queue.complete(job.id, ObservationStatus.DONE)


def test_a_listing_that_is_given_up_keeps_no_descriptor(queue: FilesystemBackend) -> None:
    queue.write_batch(make_jobs(3))
    before = len(os.listdir("/dev/fd"))
    looking = queue.jobs(list(State))
    next(looking)
    assert len(os.listdir("/dev/fd")) == before


def test_what_was_put_aside_counts_as_blocked(queue: FilesystemBackend) -> None:
    put(queue, "new", f"{STEM}-s-{'ab' * 16}")
    put(queue, "new", f"{STEM}-s-file-17", b"{}")
    assert queue.drain_available("s") == []
    assert queue.blocked_counts(at_most=1000) == {"s": 1, "": 1}


def test_of_many_that_ended_those_with_a_dossier_are_counted_first(queue: FilesystemBackend) -> None:
    jobs = [make_job(f"j-{number}", "a") for number in range(50)]
    queue.write_batch(jobs)
    queue.drain_available()
    for number, job in enumerate(jobs):
        blocked = number in {20, 30}
        status = ObservationStatus.BLOCKED if blocked else ObservationStatus.DONE
        queue.complete(job.id, status, dossier={"error": "no"} if blocked else None)
    assert queue.blocked_counts(at_most=60) == {"a": 2}  # of which six are read
