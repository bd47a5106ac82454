"""From a file's bytes to a `Document`: what the index keeps of it. Pure; the same bytes give the same document.

Python is read with `ast`; whatever does not parse, and every other kind of text, is read as plain words.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import io
import re
import tokenize
import warnings
from collections.abc import Iterable, Iterator

MAX_BYTES = 4 * 2**20
MAX_TERMS = 80
_WORD = re.compile(r"[^\W\d]\w+")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """`title`: the first line of what the document says of itself. `names`: what it defines. `docstrings`, `text`:
    prose. `terms`: what may link it to other documents: `import NAME`, and single words, at most `MAX_TERMS` of these.
    """

    title: str
    names: str
    docstrings: str
    text: str
    terms: frozenset[str]


def read_document(data: bytes, *, python: bool) -> Document:
    """The document in `data`, of which the first `MAX_BYTES` count."""
    data = data[:MAX_BYTES]
    text = decode(data, python=python)
    if python and (tree := parse(data)):
        return _python_document(tree, text)
    return Document(title=_first_line(text), names="", docstrings="", text=text, terms=_word_terms(_words(text)))


def decode(data: bytes, *, python: bool) -> str:
    """The text in `data`, by byte order mark or (`python`) coding line, else UTF-8; bad bytes become U+FFFD."""
    encoding = "utf-8-sig"
    if python:
        try:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        except SyntaxError:
            pass  # a coding line that names no encoding, or bytes that are not what it names
    return data.decode(encoding, errors="replace").replace("\0", "\ufffd")


def parse(data: bytes) -> ast.Module | None:
    """The syntax tree, or None when this Python cannot parse it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # MemoryError is how some versions report too deep a nesting


def _python_document(tree: ast.Module, text: str) -> Document:
    nodes = list(ast.walk(tree))
    definitions = [node for node in nodes if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)]
    names = list(dict.fromkeys(node.name for node in definitions))
    docstrings = [said for node in (tree, *definitions) if (said := ast.get_docstring(node))]
    return Document(
        title=_first_line(ast.get_docstring(tree) or ""),
        names=" ".join(f"{name} {spelled_out(name)}" for name in names),
        docstrings="\n\n".join(docstrings),
        text=text,
        terms=frozenset(f"import {name}" for name in imports(nodes)) | _word_terms([*names, *_used_names(nodes)]),
    )


def imports(nodes: Iterable[ast.AST]) -> set[str]:
    """The full names of the modules that are imported anywhere in `nodes`; relative ones keep their dots."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add("." * node.level + (node.module or ""))
    return found


def spelled_out(name: str) -> str:
    """The words that a name is made of: `NamedTemporaryFile` and `named_temporary_file` can be found by `file`."""
    return " ".join(_PART.findall(name)).lower()


def _used_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Name):
            yield node.id


def _word_terms(words: Iterable[str]) -> frozenset[str]:
    """The words that tell most about a document by itself: long ones, the most used first, ties by alphabet."""
    counts = collections.Counter(word for word in words if len(word) > 5 and not word.startswith("__"))
    return frozenset(sorted(counts, key=lambda word: (-counts[word], word))[:MAX_TERMS])


def _words(text: str) -> Iterator[str]:
    return (match.group().lower() for match in _WORD.finditer(text))


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
