"""The handlers of examples/reindex: what a job does to the index, and that no order, repetition or crash changes it."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from queuekit.hlc import HLC
from queuekit.ids import JobID, StreamID
from queuekit.job import Job

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "reindex"
MODULES = ("estate", "reading", "catalog", "handlers")


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

ESTATE = {
    "cache.py": '"""Keeps answers.\n\nMore."""\nimport zlib\n\nclass AnswerKeeper:\n    """Holds them."""\n',
    "client.py": "import zlib\nfrom cache import AnswerKeeper\n\ndef fetch_everything():\n    return AnswerKeeper()\n",
    "server.py": "import socketserver\n\ndef fetch_everything():\n    return 1\n",
    "broken.py": "def incomplete(:\n    pass  # marmalade\n",
    "notes.txt": "\nShopping list\n\nmarmalade, bread\n",
}


class Context:
    """The part of a job's context that the handlers use."""

    def __init__(self) -> None:
        self.submitted: list[tuple[str, bytes]] = []

    def submit(self, stream: str, payload: bytes, *, parent: Job) -> None:
        assert parent.stream_id == "encode"
        self.submitted.append((stream, payload))


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "index.db"
    monkeypatch.setenv("REINDEX_INDEX", str(path))
    return path


@pytest.fixture
def estate(tmp_path: Path) -> Path:
    folder = tmp_path / "estate"
    folder.mkdir()
    for name, text in ESTATE.items():
        (folder / name).write_text(text)
    return folder


def job(stream: str, payload: bytes) -> Job:
    return Job(id=JobID("1" * 32), stream_id=StreamID(stream), submitted_at=HLC(1, 0, 1), payload=payload)


def encode(path: Path) -> list[tuple[str, bytes]]:
    context = Context()
    body = json.dumps({"path": str(path), "size": 1, "mtime_ns": 1}).encode()
    reindex.handlers.encode([job("encode", body)], context)
    return context.submitted


def dream(path: Path) -> None:
    reindex.handlers.dreaming([job("dreaming", json.dumps({"path": str(path)}).encode())])


def run_all(paths: list[Path]) -> None:
    for path in paths:
        for stream, payload in encode(path):
            assert stream == "dreaming"
            reindex.handlers.dreaming([job(stream, payload)])


def contents(index: Path) -> dict[str, Any]:
    """Everything the index says, without the row numbers, which depend on the order of arrival."""
    with reindex.catalog.Catalog(index) as catalog:
        return contents_of(catalog)


def contents_of(catalog: Any) -> dict[str, Any]:
    db = catalog._db
    return {
        "documents": db.execute("SELECT path, version, title, linked FROM documents ORDER BY path").fetchall(),
        "words": db.execute("SELECT path, title, names, docstrings, text FROM words ORDER BY path").fetchall(),
        "terms": db.execute("SELECT path, term FROM terms JOIN documents ON id = document ORDER BY 1, 2").fetchall(),
        "links": db.execute(
            "SELECT a.path, b.path, score FROM links JOIN documents a ON a.id = document"
            " JOIN documents b ON b.id = other ORDER BY 1, 2"
        ).fetchall(),
    }


def found(index: Path, query: str) -> list[str]:
    with reindex.catalog.Catalog(index) as catalog:
        return [os.path.basename(hit.path) for hit in catalog.search(query)]


def neighbours(index: Path, path: Path) -> list[tuple[str, int]]:
    with reindex.catalog.Catalog(index) as catalog:
        return [(os.path.basename(other), score) for other, score in catalog.neighbours(str(path))]


# --- one file


def test_an_encoded_file_is_found_by_its_docstring_names_and_text(index: Path, estate: Path) -> None:
    encode(estate / "cache.py")
    assert found(index, "keeps answers") == ["cache.py"]
    assert found(index, "answer keeper") == ["cache.py"]  # the parts of a name
    assert found(index, "AnswerKeeper") == ["cache.py"]
    assert found(index, "zlib") == ["cache.py"]


def test_encode_asks_for_the_link_job_of_the_same_document(index: Path, estate: Path) -> None:
    assert encode(estate / "cache.py") == [("dreaming", json.dumps({"path": str(estate / "cache.py")}).encode())]


def test_encode_asks_again_when_it_runs_again(index: Path, estate: Path) -> None:
    """The first run may have died after the index was written and before the follow-up job was stored."""
    assert encode(estate / "cache.py") == encode(estate / "cache.py")


def test_a_file_that_does_not_parse_is_indexed_by_its_text(index: Path, estate: Path) -> None:
    encode(estate / "broken.py")
    assert found(index, "marmalade") == ["broken.py"]


def test_text_that_is_not_python_has_its_first_line_for_a_title(index: Path, estate: Path) -> None:
    encode(estate / "notes.txt")
    with reindex.catalog.Catalog(index) as catalog:
        assert [hit.title for hit in catalog.search("bread")] == ["Shopping list"]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xef\xbb\xbfx = 'caf\xc3\xa9'", "x = 'café'"),
        (b"# coding: latin-1\nx = 'caf\xe9'", "# coding: latin-1\nx = 'café'"),
        (b"# coding: nonsense\nx = 1", "# coding: nonsense\nx = 1"),
        (b"caf\xe9\0", "caf\ufffd\ufffd"),
    ],
)
def test_bytes_of_any_kind_become_text(data: bytes, text: str) -> None:
    assert reindex.reading.read_document(data, python=True).text == text


@given(st.binary(max_size=200), st.booleans())
def test_no_file_is_refused(data: bytes, python: bool) -> None:
    document = reindex.reading.read_document(data, python=python)
    document.text.encode()  # what SQLite stores must be valid Unicode


def test_a_changed_file_replaces_what_was_known_of_it(index: Path, estate: Path) -> None:
    run_all(sorted(estate.iterdir()))
    (estate / "cache.py").write_text('"""Forgets everything now."""\n')
    run_all([estate / "cache.py"])
    assert found(index, "forgets") == ["cache.py"]
    assert "cache.py" not in found(index, "AnswerKeeper")
    assert neighbours(index, estate / "client.py") == [("server.py", 1)]


def test_a_file_that_is_gone_is_forgotten_with_its_links(index: Path, estate: Path) -> None:
    run_all(sorted(estate.iterdir()))
    (estate / "cache.py").unlink()
    assert encode(estate / "cache.py") == []
    assert found(index, "keeps answers") == []
    assert neighbours(index, estate / "client.py") == [("server.py", 1)]


def test_a_job_for_a_document_that_was_never_indexed_changes_nothing(index: Path, estate: Path) -> None:
    dream(estate / "cache.py")
    assert contents(index)["documents"] == []


# --- links


def test_documents_are_linked_by_the_imports_and_rare_words_they_share(index: Path, estate: Path) -> None:
    run_all(sorted(estate.iterdir()))
    assert neighbours(index, estate / "client.py") == [("cache.py", 2), ("server.py", 1)]
    assert neighbours(index, estate / "cache.py") == [("client.py", 2)]
    assert neighbours(index, estate / "notes.txt") == [("broken.py", 1)]


def test_a_term_that_many_documents_have_links_none(index: Path, tmp_path: Path) -> None:
    paths = [tmp_path / f"module{n}.py" for n in range(reindex.catalog.RARE + 1)]
    for path in paths:
        path.write_text("import commonplace\n")
    run_all(paths[:-1])
    assert len(neighbours(index, paths[0])) == reindex.catalog.NEIGHBOURS
    run_all(paths[-1:])
    assert contents(index)["links"] == []


def test_the_same_work_twice_gives_the_same_index(index: Path, estate: Path) -> None:
    paths = sorted(estate.iterdir())
    run_all(paths)
    once = contents(index)
    run_all(paths)
    assert contents(index) == once
    assert once["links"]


@pytest.mark.parametrize("backwards", [False, True])
def test_links_do_not_wait_for_all_documents(index: Path, estate: Path, backwards: bool) -> None:
    """Linking each document at once, linking all at the end, in either direction: one result."""
    paths = sorted(estate.iterdir(), reverse=backwards)
    run_all(paths)
    at_once = contents(index)
    index.unlink()
    for path in paths:
        encode(path)
    for path in reversed(paths):
        dream(path)
    assert contents(index) == at_once


class Books(RuleBasedStateMachine):
    """Documents come, change, go and are linked in any order; `links` is always what a plain count would say."""

    paths = Bundle("paths")

    def __init__(self) -> None:
        super().__init__()
        self.rare, reindex.catalog.RARE = reindex.catalog.RARE, 2
        self.catalog = reindex.catalog.Catalog(Path(":memory:"))
        self.indexed: dict[str, frozenset[str]] = {}
        self.linked: dict[str, frozenset[str]] = {}

    def teardown(self) -> None:
        self.catalog.__exit__()
        reindex.catalog.RARE = self.rare

    @rule(target=paths, path=st.sampled_from("abcdef"), terms=st.frozensets(st.sampled_from("tuvwxyz")))
    def put(self, path: str, terms: frozenset[str]) -> str:
        document = reindex.reading.Document(title="", names="", docstrings="", text="", terms=terms)
        file = reindex.estate.SourceFile(path=path, size=1, mtime_ns=len(terms))
        self.catalog.put(file, document)
        self.indexed[path] = terms
        return path

    @rule(path=paths)
    def link(self, path: str) -> None:
        self.catalog.link(path)
        if path in self.indexed:
            self.linked[path] = self.indexed[path]

    @rule(path=consumes(paths))
    def forget(self, path: str) -> None:
        self.catalog.forget(path)
        self.indexed.pop(path, None)
        self.linked.pop(path, None)

    @invariant()
    def links_are_a_plain_count(self) -> None:
        holders = {term: [p for p, terms in self.linked.items() if term in terms] for term in "tuvwxyz"}
        rare = {term for term, paths in holders.items() if len(paths) <= 2}
        expected = {
            (a, b, len(self.linked[a] & self.linked[b] & rare)) for a in self.linked for b in self.linked if a != b
        }
        assert set(contents_of(self.catalog)["links"]) == {pair for pair in expected if pair[2]}


Books.TestCase.settings = settings(max_examples=60, deadline=None)
TestBooks = Books.TestCase


# --- several processes, and death

PROLOGUE = """
import json, os, signal, sys
sys.path.insert(0, sys.argv[1])
import catalog, handlers
from types import SimpleNamespace as Value

def work(paths):
    for path in paths:
        context = Value(submit=lambda stream, payload, parent: handlers.dreaming([Value(payload=payload)]))
        job = Value(id=path, payload=json.dumps({"path": path, "size": 1, "mtime_ns": 1}).encode())
        handlers.encode([job], context)
"""

WORK = PROLOGUE + "work(sys.argv[2:])\n"

DIE_AT_EACH_STATEMENT = (
    PROLOGUE
    + """
def die_at(statement):
    seen = [0]
    def note(text):
        seen[0] += 1
        if seen[0] == statement:
            os.kill(os.getpid(), signal.SIGKILL)
    set_up = catalog.Catalog._set_up
    def traced(self):
        self._db.set_trace_callback(note)
        set_up(self)
    catalog.Catalog._set_up = traced

statement, ended = 0, -1
while ended != 0:
    statement += 1
    if (child := os.fork()) == 0:
        die_at(statement)
        work(sys.argv[2:])
        os._exit(0)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert ended in (0, -signal.SIGKILL), ended
print(statement)
"""
)


def start(script: str, paths: list[Path]) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, str(EXAMPLE), *map(str, paths)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def expected(index: Path, estate: Path) -> dict[str, Any]:
    """What one undisturbed run leaves; the index is gone again afterwards."""
    run_all(sorted(estate.iterdir()))
    result = contents(index)
    index.unlink()
    return result


def test_killed_at_any_statement_the_work_completes_and_the_result_is_the_same(
    index: Path, estate: Path, expected: dict[str, Any]
) -> None:
    """Each run dies one statement later than the one before, on what that one left behind, until one gets through."""
    process = start(DIE_AT_EACH_STATEMENT, sorted(estate.iterdir()))
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert int(out) > 20
    assert contents(index) == expected


def test_several_workers_on_the_same_files_give_the_same_result(
    index: Path, estate: Path, expected: dict[str, Any]
) -> None:
    paths = sorted(estate.iterdir())
    processes = [start(WORK, order) for order in (paths, paths[::-1], paths[2:] + paths[:2])]
    for process in processes:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    assert contents(index) == expected


@pytest.mark.parametrize(
    ("version", "safe"),
    [
        ((3, 40, 1), False),
        ((3, 44, 5), False),
        ((3, 44, 6), True),
        ((3, 45, 0), False),
        ((3, 50, 6), False),
        ((3, 50, 7), True),
        ((3, 51, 2), False),
        ((3, 51, 3), True),
        ((4, 0, 0), True),
    ],
)
def test_the_write_ahead_log_is_used_only_where_it_is_sound(version: tuple[int, int, int], safe: bool) -> None:
    assert reindex.catalog.wal_is_safe(version) is safe


def test_an_index_made_with_a_write_ahead_log_is_not_used_with_one_where_that_is_unsafe(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for safe, journal in ((True, "wal"), (False, "delete")):
        monkeypatch.setattr(reindex.catalog, "wal_is_safe", lambda _version, safe=safe: safe)
        with reindex.catalog.Catalog(index) as catalog:
            assert catalog._value("PRAGMA journal_mode") == journal
