"""The index: one SQLite file with the documents, a full-text table over them, and the links between them.

    documents   one row per file; `version` is what was indexed, `linked` the version whose links are in place
    words       the full-text table (FTS5); its rowid is the document's id
    terms       what may link a document to others, written when it is indexed
    placed      the terms that have been counted into `links`, written when it is linked
    links       document, other, score: always in both directions
    birth       one row: the id of this index, and when it was made

The score of two documents is the number of *rare* terms that both have: those that at most `RARE` documents have. That
a word is rare changes as documents arrive, so `link` keeps the books: the document that makes a term too common takes
the term's share out of every pair again. Therefore `links` depends on which documents have been linked and never on
the order, on repetitions, or on runs that died half-way: each public function here is one transaction.

Several processes may use one index at once. Write-ahead logging is used only where it is safe: SQLite before 3.51.3
(and outside the two repaired branches) may damage such a file when several connections use it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from estate import SourceFile
from reading import Document

RARE = 12
NEIGHBOURS = 5
BUSY_SECONDS = 120.0

_SCHEMA = """
CREATE TABLE documents (id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, version TEXT NOT NULL,
                        mtime_ns INTEGER NOT NULL, title TEXT NOT NULL, linked TEXT);
CREATE VIRTUAL TABLE words USING fts5 (path, title, names, docstrings, text, tokenize = 'porter unicode61');
CREATE TABLE terms (document INTEGER NOT NULL, term TEXT NOT NULL, PRIMARY KEY (document, term)) WITHOUT ROWID;
CREATE TABLE placed (term TEXT NOT NULL, document INTEGER NOT NULL, PRIMARY KEY (term, document)) WITHOUT ROWID;
CREATE INDEX placed_by_document ON placed (document);
CREATE TABLE links (document INTEGER NOT NULL, other INTEGER NOT NULL, score INTEGER NOT NULL,
                    PRIMARY KEY (document, other)) WITHOUT ROWID;
CREATE TABLE birth (generation TEXT NOT NULL, created_ms INTEGER NOT NULL);
PRAGMA user_version = 1;
"""
_UPSERT = """
INSERT INTO documents (path, version, mtime_ns, title) VALUES (?, ?, ?, ?)
ON CONFLICT (path) DO UPDATE SET version = excluded.version, mtime_ns = excluded.mtime_ns, title = excluded.title
RETURNING id
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Hit:
    """A search result. `neighbours`: paths and scores of the most closely linked documents, the closest first."""

    path: str
    title: str
    neighbours: tuple[tuple[str, int], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Progress:
    """How many documents the index has, and how many of them are linked."""

    documents: int
    linked: int


def default_path() -> Path:
    """Where the index is: what the environment variable REINDEX_INDEX says, else `index.db` beside this file."""
    return Path(os.environ.get("REINDEX_INDEX") or Path(__file__).with_name("index.db"))


class Catalog:
    """An open index. For one thread of one process, opened after any fork; a context manager.

    Every method raises `sqlite3.OperationalError` when the file cannot be used, or stays locked for `BUSY_SECONDS`.
    """

    def __init__(self, path: Path) -> None:
        """Open the index at `path`; it is made when absent."""
        self._db = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
        try:
            self._set_up()
        except BaseException:
            self._db.close()
            raise

    def __enter__(self) -> Catalog:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def _set_up(self) -> None:
        journal, synchronous = ("wal", "FULL") if wal_is_safe(sqlite3.sqlite_version_info) else ("delete", "EXTRA")
        if self._value("PRAGMA journal_mode") != journal:
            self._db.execute(f"PRAGMA journal_mode = {journal}")
        self._db.execute(f"PRAGMA synchronous = {synchronous}")
        if not self._value("PRAGMA user_version"):
            with self._transaction():
                self._create()

    def _create(self) -> None:
        if self._value("PRAGMA user_version"):
            return  # another process was first
        for statement in filter(str.strip, _SCHEMA.split(";")):
            self._db.execute(statement)
        self._db.execute("INSERT INTO birth VALUES (?, ?)", (secrets.token_hex(8), time.time_ns() // 1_000_000))

    # --- what was indexed already

    def birth(self) -> tuple[str, int]:
        """The id of this index (another one for each file made), and when it was made (ms since the epoch)."""
        generation, created_ms = self._db.execute("SELECT generation, created_ms FROM birth").fetchone()
        return generation, created_ms

    def finished(self) -> dict[str, str]:
        """The version of each document that is indexed and linked, by path."""
        return dict(self._db.execute("SELECT path, version FROM documents WHERE linked = version"))

    def known(self) -> dict[str, int]:
        """The time of change (ns since the epoch) of each document in the index, by path."""
        return dict(self._db.execute("SELECT path, mtime_ns FROM documents"))

    def has(self, file: SourceFile) -> bool:
        """Is this version of the file indexed, linked or not?"""
        return (
            self._value("SELECT 1 FROM documents WHERE path = ? AND version = ?", file.path, file.version) is not None
        )

    def progress(self) -> Progress:
        """Counts, for people who wait."""
        return Progress(
            *self._db.execute("SELECT count(*), coalesce(sum(linked = version), 0) FROM documents").fetchone()
        )

    # --- changing it

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Make all changes in the body one transaction: all of them or none, and one wait for the disk."""
        with self._transaction():
            yield

    def put(self, file: SourceFile, document: Document) -> None:
        """Index one version of a file in place of any other."""
        with self._transaction():
            id = self._value(_UPSERT, file.path, file.version, file.mtime_ns, document.title)
            self._drop_words(id)
            self._db.execute(
                "INSERT INTO words (rowid, path, title, names, docstrings, text) VALUES (?, ?, ?, ?, ?, ?)",
                (id, file.path, document.title, document.names, document.docstrings, document.text),
            )
            self._db.executemany("INSERT INTO terms VALUES (?, ?)", ((id, term) for term in sorted(document.terms)))

    def forget(self, path: str) -> None:
        """Take a document and its links out of the index; nothing happens when it is not there."""
        with self._transaction():
            id = self._id(path)
            if id is None:
                return
            self._drop_words(id)
            self._place(id)
            self._db.execute("DELETE FROM documents WHERE id = ?", (id,))

    def link(self, path: str) -> None:
        """Bring the links of a document up to date, in both directions; nothing happens when it is not there."""
        with self._transaction():
            id = self._id(path)
            if id is None:
                return
            self._place(id)
            self._db.execute("UPDATE documents SET linked = version WHERE id = ?", (id,))

    # --- asking it

    def search(self, query: str, limit: int = 10) -> list[Hit]:
        """The best documents for some words, the best first: those with all of them, or, when there are none, with any.

        Names and titles count more than prose.
        """
        words = ['"' + word.replace('"', '""') + '"' for word in query.split()]
        if not words:
            return []
        rows = self._matching(" AND ".join(words), limit) or self._matching(" OR ".join(words), limit)
        return [Hit(path, title, tuple(self.neighbours(path))) for path, title in rows]

    def neighbours(self, path: str, limit: int = NEIGHBOURS) -> list[tuple[str, int]]:
        """Paths and scores of the documents most closely linked to this one; ties in alphabetical order."""
        return self._db.execute(
            "SELECT theirs.path, score FROM links JOIN documents mine ON mine.id = document"
            " JOIN documents theirs ON theirs.id = other WHERE mine.path = ? ORDER BY score DESC, theirs.path LIMIT ?",
            (path, limit),
        ).fetchall()

    def _matching(self, expression: str, limit: int) -> list[tuple[str, str]]:
        return self._db.execute(
            "SELECT documents.path, documents.title FROM words JOIN documents ON documents.id = words.rowid"
            " WHERE words MATCH ? ORDER BY bm25(words, 8, 8, 4, 2, 1), documents.path LIMIT ?",
            (expression, limit),
        ).fetchall()

    # --- the books of `links`

    def _place(self, id: int) -> None:
        """Make `placed` say of the document what `terms` says, and move every affected pair with it."""
        wanted = {term for (term,) in self._db.execute("SELECT term FROM terms WHERE document = ?", (id,))}
        placed = {term for (term,) in self._db.execute("SELECT term FROM placed WHERE document = ?", (id,))}
        for term in sorted(placed - wanted):
            self._take(id, term)
        for term in sorted(wanted - placed):
            self._add(id, term)

    def _add(self, id: int, term: str) -> None:
        holders = self._holders(term)
        self._db.execute("INSERT INTO placed VALUES (?, ?)", (term, id))
        if len(holders) < RARE:
            self._pair(id, holders, +1)
        elif len(holders) == RARE:
            self._pair_all(holders, -1)

    def _take(self, id: int, term: str) -> None:
        self._db.execute("DELETE FROM placed WHERE term = ? AND document = ?", (term, id))
        holders = self._holders(term)
        if len(holders) < RARE:
            self._pair(id, holders, -1)
        elif len(holders) == RARE:
            self._pair_all(holders, +1)

    def _holders(self, term: str) -> list[int]:
        """The documents that have the term; as many as it takes to know whether it is rare."""
        rows = self._db.execute("SELECT document FROM placed WHERE term = ? LIMIT ?", (term, RARE + 1))
        return [id for (id,) in rows]

    def _pair_all(self, holders: list[int], change: int) -> None:
        for position, id in enumerate(holders):
            self._pair(id, holders[:position], change)

    def _pair(self, id: int, others: list[int], change: int) -> None:
        both_ways = [pair for other in others for pair in ((id, other), (other, id))]
        self._db.executemany(
            "INSERT INTO links VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET score = score + excluded.score",
            ((document, other, change) for document, other in both_ways),
        )
        if change < 0:
            self._db.executemany("DELETE FROM links WHERE document = ? AND other = ? AND score = 0", both_ways)

    # --- small change

    def _drop_words(self, id: int) -> None:
        self._db.execute("DELETE FROM words WHERE rowid = ?", (id,))
        self._db.execute("DELETE FROM terms WHERE document = ?", (id,))

    def _id(self, path: str) -> int | None:
        found: int | None = self._value("SELECT id FROM documents WHERE path = ?", path)
        return found

    def _value(self, statement: str, *values: str | int) -> Any:
        """The first column of the only row, None when there is no row."""
        rows = self._db.execute(statement, values).fetchall()
        return rows[0][0] if rows else None

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        if self._db.in_transaction:
            yield
            return
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise


def wal_is_safe(version: tuple[int, int, int]) -> bool:
    """Can several connections of this SQLite share a write-ahead log without damage?"""
    return version >= (3, 51, 3) or (3, 50, 7) <= version < (3, 51) or (3, 44, 6) <= version < (3, 45)
