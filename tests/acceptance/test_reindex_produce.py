"""The producer of examples/reindex: what it sends on a first run, on a second one, and after a change."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from queuekit.facade import QueueKit
from queuekit.ids import JobID, StreamID
from queuekit.job import Job
from queuekit.status import ObservationStatus

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "reindex"
MODULES = ("estate", "reading", "catalog", "handlers", "produce", "search")


def load() -> SimpleNamespace:
    """The example's modules, without leaving their plain names behind for other tests."""
    sys.path.insert(0, str(EXAMPLE))
    try:
        return SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    finally:
        sys.path.remove(str(EXAMPLE))
        for name in MODULES:
            sys.modules.pop(name, None)


reindex = load()


class Place:
    """An estate of three modules, an empty queue and no index yet."""

    def __init__(self, folder: Path) -> None:
        self.estate, self.spool, self.index = folder / "estate", folder / "spool", folder / "index.db"
        self.estate.mkdir()
        for name in ("alpha", "beta", "gamma"):
            (self.estate / f"{name}.py").write_text(f'"""The {name} module."""\nimport zlib\n')
        self.ran: Counter[str] = Counter()

    def produce(self) -> int:
        return int(reindex.produce.produce(str(self.estate), f"dir:{self.spool}").sent)

    def waiting(self) -> list[str]:
        return sorted(os.listdir(self.spool / "new"))

    def work(self) -> None:
        """What a pool does, in this process: until nothing is left."""
        with QueueKit(self.spool) as queue:
            while claimed := queue.drain():
                for each in claimed:
                    self.handle(queue, each.job)

    def handle(self, queue: QueueKit, job: Job) -> None:
        def submit(stream: str, payload: bytes, parent: Job) -> None:
            hlc = parent.submitted_at.advanced()
            queue.send(
                Job(id=JobID(parent.id[::-1]), stream_id=StreamID(stream), submitted_at=hlc, payload=payload),
            )

        self.ran[job.id] += 1
        if job.stream_id == "encode":
            reindex.handlers.encode([job], SimpleNamespace(submit=submit))
        else:
            reindex.handlers.dreaming([job])
        queue.reply(job.id, ObservationStatus.DONE)

    def search(self, query: str) -> list[str]:
        with reindex.catalog.Catalog(self.index) as catalog:
            return sorted(os.path.basename(hit.path) for hit in catalog.search(query))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    place = Place(tmp_path)
    monkeypatch.setenv("REINDEX_INDEX", str(place.index))
    return place


def test_there_is_one_job_for_each_file(place: Place) -> None:
    assert place.produce() == 3
    with QueueKit(place.spool) as queue:
        jobs = [claimed.job for claimed in queue.drain("encode")]
    payloads = [json.loads(job.payload) for job in jobs]
    assert sorted(payload["path"] for payload in payloads) == sorted(map(str, place.estate.iterdir()))
    for payload in payloads:
        facts = os.stat(payload["path"])
        assert (payload["size"], payload["mtime_ns"]) == (facts.st_size, facts.st_mtime_ns)


def test_a_second_run_makes_the_same_jobs(place: Place) -> None:
    place.produce()
    names = place.waiting()
    place.produce()
    assert place.waiting() == names


def test_a_run_that_died_half_way_is_completed(place: Place) -> None:
    place.produce()
    names = place.waiting()
    (place.spool / "new" / names[1]).unlink()
    place.produce()
    assert place.waiting() == names


def test_what_is_in_flight_is_not_run_twice(place: Place) -> None:
    place.produce()
    with QueueKit(place.spool) as queue:
        claimed = queue.drain("encode", limit=2)
        assert len(claimed) == 2
        place.produce()
        for each in claimed:
            place.handle(queue, each.job)
    place.work()
    assert len(place.ran) == 6
    assert set(place.ran.values()) == {1}


def test_what_is_finished_is_not_sent_again(place: Place) -> None:
    place.produce()
    place.work()
    assert place.produce() == 0
    assert place.waiting() == []


def test_what_is_indexed_but_not_linked_is_sent_again(place: Place) -> None:
    """The queue may have been lost between the two steps."""
    for path in place.estate.iterdir():
        file = reindex.estate.look_at(str(path))
        with reindex.catalog.Catalog(place.index) as catalog:
            catalog.put(file, reindex.reading.read_document(path.read_bytes(), python=True))
    assert place.produce() == 3
    place.work()
    assert place.produce() == 0


def test_a_changed_file_is_sent_again_and_found_by_its_new_words(place: Place) -> None:
    place.produce()
    place.work()
    (place.estate / "beta.py").write_text('"""Rewritten entirely."""\n')
    assert place.produce() == 1
    place.work()
    assert place.search("rewritten") == ["beta.py"]
    assert place.produce() == 0


def test_a_file_that_is_gone_is_forgotten(place: Place) -> None:
    place.produce()
    place.work()
    (place.estate / "beta.py").unlink()
    assert place.produce() == 1
    place.work()
    assert place.search("module") == ["alpha.py", "gamma.py"]
    assert place.produce() == 0


def test_another_estate_in_the_same_index_is_left_alone(place: Place, tmp_path: Path) -> None:
    place.produce()
    place.work()
    (tmp_path / "estate2").mkdir()
    assert reindex.produce.produce(str(tmp_path / "estate2"), f"dir:{place.spool}") == (0, 0, None)


def test_a_new_index_is_filled_although_the_queue_remembers_the_jobs(place: Place) -> None:
    place.produce()
    place.work()
    place.index.unlink()
    assert place.produce() == 3
    place.work()
    assert place.search("module") == ["alpha.py", "beta.py", "gamma.py"]


def test_caches_hidden_folders_links_and_other_kinds_of_files_are_no_documents(place: Place) -> None:
    for folder in ("__pycache__", ".git", "site-packages"):
        (place.estate / folder).mkdir()
        (place.estate / folder / "inside.py").write_text("x = 1\n")
    (place.estate / "picture.png").write_bytes(b"\x89PNG")
    (place.estate / "link.py").symlink_to(place.estate / "alpha.py")
    (place.estate / "folder.py").mkdir()
    (place.estate / "folder.py" / "deep.py").write_text("x = 1\n")
    names = [os.path.basename(file.path) for file in reindex.estate.files_of(str(place.estate))]
    assert sorted(names) == ["alpha.py", "beta.py", "deep.py", "gamma.py"]


@pytest.mark.parametrize(
    ("changed_ms", "due_ms"),
    [(500, 1000), (1500, 1500), (2000, 2000), (2001, 1000)],
    ids=["before the index", "after the index", "now", "in the future"],
)
def test_a_job_is_due_since_its_file_or_the_index_changed(changed_ms: int, due_ms: int) -> None:
    file = reindex.estate.SourceFile(path="/x", size=1, mtime_ns=changed_ms * 1_000_000)
    job = reindex.produce.job_for(file, "generation", created_ms=1000, now_ms=2000)
    assert job.submitted_at.physical_time == due_ms


def test_the_commands_say_what_is_wrong(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert reindex.search.main(["anything"]) == 2
    assert "no index yet" in capsys.readouterr().err
    assert reindex.produce.main([str(place.estate / "alpha.py")]) == 2
    assert "not a directory" in capsys.readouterr().err
    (place.estate / "file").write_text("")
    assert reindex.produce.main([str(place.estate), "--store", f"dir:{place.estate / 'file'}"]) == 3
    assert "produce: dir:" in capsys.readouterr().err


def test_a_search_prints_rank_path_title_and_neighbours(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.produce()
    place.work()
    assert reindex.search.main(["beta"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed == [
        f"in {place.estate}:",
        "  1. beta.py  The beta module.",
        "     see also: alpha.py (1), gamma.py (1)",
    ]
    assert reindex.search.main(["nowhere", "at", "all"]) == 1


@pytest.mark.parametrize("word", ['"', "AND", "NOT", "path:x", "a*", "NEAR(", "-", "'", "{"])
def test_words_that_mean_something_to_the_search_engine_are_plain_words(place: Place, word: str) -> None:
    place.produce()
    place.work()
    assert place.search(f"beta {word}") == ["beta.py"]
