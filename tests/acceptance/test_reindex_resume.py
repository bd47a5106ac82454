"""The producer of examples/reindex is cut off and goes on: after the last batch that was accepted, on every store."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_reindex_produce import load

from queuekit.facade import QueueKit
from queuekit.job import Job
from queuekit.lifecycle import State
from queuekit.status import ObservationStatus

reindex = load()
STREAM = "encode"
NAMES = ("a.py", "b.py", "c/a.py", "c/b.py", "d.d/a.py", "e.py")
WALK = ("a.py", "b.py", "e.py", "c/a.py", "c/b.py", "d.d/a.py")


class Place:
    """An estate of six modules in the order `WALK`, an empty queue, no index yet. Batches are of two jobs."""

    def __init__(self, folder: Path, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.estate, self.index, self.store = folder / "estate", folder / "index.db", store
        self.monkeypatch = monkeypatch
        monkeypatch.setenv("REINDEX_INDEX", str(self.index))
        for name in NAMES:
            (self.estate / name).parent.mkdir(parents=True, exist_ok=True)
            (self.estate / name).write_text(f"x = {name!r}\n")
        reindex.catalog.Catalog(self.index).__exit__()

    def produce(self) -> Any:
        return reindex.produce.produce(str(self.estate), self.store, batch=2)

    def killed(self, at: int, *, before: bool) -> None:
        """A run that is killed at its batch `at`, before or after that was accepted."""
        send, count = QueueKit.send_batch, 0

        def dying(queue: QueueKit, jobs: Iterable[Job], **keywords: Any) -> int:
            nonlocal count
            count += 1
            if count == at and before:
                os.kill(os.getpid(), signal.SIGKILL)
            sent = send(queue, jobs, **keywords)
            if count == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return sent

        pid = os.fork()
        if pid == 0:
            QueueKit.send_batch = dying  # type: ignore[method-assign]
            self.produce()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL

    def looked_at(self) -> list[str]:
        """From here on: the names of the files that are looked at."""
        looked: list[str] = []
        look = reindex.estate.look_at

        def noting(path: str) -> Any:
            looked.append(os.path.relpath(path, self.estate))
            return look(path)

        self.monkeypatch.setattr(reindex.estate, "look_at", noting)
        return looked

    def sent(self) -> list[str]:
        """The names of the files that the queue has jobs for, sorted."""
        with QueueKit.open(self.store) as queue:
            payloads = [view.job.payload for view in queue.jobs(set(State))]
        files = [reindex.estate.SourceFile.of_payload(payload).path for payload in payloads]
        return sorted(os.path.relpath(path, self.estate) for path in files)

    def marks(self) -> int:
        with QueueKit.open(self.store) as queue:
            return len(queue.checkpoints.list(STREAM))

    def work(self) -> None:
        """What a pool does with `encode` jobs, and the links at once."""
        with QueueKit.open(self.store) as queue, reindex.catalog.Catalog(self.index) as catalog:
            for claimed in queue.drain(STREAM):
                file = reindex.estate.SourceFile.of_payload(claimed.job.payload)
                if file.size is None:
                    catalog.forget(file.path)
                else:
                    catalog.put(file, reindex.reading.read_document(b"", python=True))
                    catalog.link(file.path)
                queue.reply(claimed.job.id, ObservationStatus.DONE)


@pytest.fixture(params=["dir", "sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    if request.param == "postgresql":
        return Place(tmp_path, request.getfixturevalue("postgres_url"), monkeypatch)
    return Place(tmp_path, f"{request.param}:{tmp_path}/store", monkeypatch)


@pytest.mark.parametrize(
    ("at", "before", "start"),
    [(1, True, None), (1, False, None), (2, True, 1), (2, False, 1), (3, True, 3), (3, False, 3)],
)
def test_a_run_that_was_killed_is_gone_on_with_after_the_last_batch_accepted(
    place: Place, at: int, before: bool, start: int | None
) -> None:
    place.killed(at, before=before)
    assert place.sent() == sorted(WALK[: 2 * (at - before)])
    looked = place.looked_at()
    done = place.produce()
    rest = WALK if start is None else WALK[start + 1 :]
    assert looked == list(rest)
    assert (done.sent, done.files) == (len(rest), len(rest))
    assert done.start == (None if start is None else str(place.estate / WALK[start]))
    assert place.sent() == sorted(NAMES)
    assert place.marks() == 0


def test_after_a_complete_run_changed_files_are_found_again(place: Place) -> None:
    place.killed(2, before=False)
    place.produce()
    place.work()
    (place.estate / "a.py").write_text("changed = 1\n")
    looked = place.looked_at()
    assert place.produce() == (1, len(NAMES), None)
    assert looked == list(WALK)
    place.work()
    assert place.produce().sent == 0


def test_what_changed_before_the_place_is_found_by_the_next_complete_run(place: Place) -> None:
    place.killed(2, before=False)
    place.work()
    (place.estate / "a.py").write_text("changed = 1\n")
    assert place.produce() == (2, 4, str(place.estate / "b.py"))
    place.work()
    assert place.produce().sent == 1


def test_files_that_are_gone_are_forgotten_in_their_turn(place: Place) -> None:
    place.produce()
    place.work()
    for name in ("b.py", "c/b.py", "d.d/a.py", "e.py"):
        (place.estate / name).unlink()
    place.killed(1, before=False)
    place.work()
    place.killed(2, before=True)
    place.produce()
    place.work()
    with reindex.catalog.Catalog(place.index) as catalog:
        assert sorted(os.path.relpath(path, place.estate) for path in catalog.known()) == ["a.py", "c/a.py"]
    assert place.produce() == (0, 2, None)


def test_a_place_on_the_way_into_another_index_means_nothing(place: Place) -> None:
    place.killed(2, before=False)
    place.index.unlink()
    assert place.produce() == (len(NAMES), len(NAMES), None)
    assert place.marks() == 0


def test_the_mark_of_another_run_is_left_alone(place: Place) -> None:
    """Another run of the producer is at work: both send the same, and what that one keeps stays."""
    send, theirs = QueueKit.send_batch, b"theirs"

    def meanwhile(queue: QueueKit, jobs: Iterable[Job], **keywords: Any) -> int:
        for id, payload in queue.checkpoints.list(STREAM).items():
            if payload != theirs:
                assert queue.checkpoints.compare_and_swap(id, STREAM, payload, theirs)
        return send(queue, jobs, **keywords)

    place.monkeypatch.setattr(QueueKit, "send_batch", meanwhile)
    assert place.produce().sent == len(NAMES)
    with QueueKit.open(place.store) as queue:
        assert list(queue.checkpoints.list(STREAM).values()) == [theirs]
    assert place.sent() == sorted(NAMES)


def test_the_command_says_where_it_goes_on(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.killed(2, before=True)
    assert reindex.produce.main([str(place.estate), "--store", place.store]) == 0
    printed = capsys.readouterr().out
    start = place.estate / "b.py"
    assert f"4 files in {place.estate} after {start}, where an earlier run was cut off: 4 jobs sent" in printed


# -- the walk

PARTS = st.sampled_from(["a", "a.py", "a-b", "b", "b.py", "é"])
PATHS = st.lists(st.lists(PARTS, min_size=1, max_size=3).map("/".join), min_size=1, max_size=8, unique=True)


@given(PATHS)
def test_places_sort_as_the_walk_goes(paths: list[str]) -> None:
    ordered = sorted(paths, key=lambda path: reindex.estate.place_of("/", f"/{path}"))
    assert ordered == list(_walk(paths))


def _walk(paths: list[str]) -> Iterable[str]:
    """Of each folder its files, then its folders."""
    files = sorted(path for path in paths if "/" not in path)
    below: dict[str, list[str]] = {}
    for path in sorted(set(paths) - set(files)):
        folder, _, rest = path.partition("/")
        below.setdefault(folder, []).append(rest)
    yield from files
    for folder in sorted(below):
        yield from (f"{folder}/{rest}" for rest in _walk(below[folder]))


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The folders listed so far."""
    seen: list[str] = []
    scan = os.scandir

    def noting(path: str) -> Any:
        seen.append(path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", noting)
    return lambda: seen


def test_the_walk_goes_on_behind_any_path_there_or_not(tmp_path: Path, listed: Callable[[], list[str]]) -> None:
    for name in NAMES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    for position, name in enumerate(WALK):
        found = [file.path for file in reindex.estate.files_of(str(tmp_path), str(tmp_path / name))]
        assert found == [str(tmp_path / each) for each in WALK[position + 1 :]]
    listed().clear()
    assert list(reindex.estate.files_of(str(tmp_path), str(tmp_path / "d.d" / "zzz.py"))) == []
    assert listed() == [str(tmp_path), str(tmp_path / "d.d")]
