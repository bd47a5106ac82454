"""Search the index: the best documents for some words, each with the documents linked to it.

    python search.py temporary file

Exit codes: 0 found something, 1 found nothing, 2 no index or a usage error.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import sys
from collections.abc import Iterator, Sequence

from catalog import Catalog, Hit, default_path


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="search.py", description="Search the index.")
    parser.add_argument("words", nargs="+", metavar="WORD")
    parser.add_argument("-n", "--limit", type=int, default=8, metavar="N", help="hits to print (default: %(default)s)")
    options = parser.parse_args(arguments)
    index = default_path()
    if not index.is_file():
        print(f"search: {index}: no index yet; run produce.py and the pool first", file=sys.stderr)
        return 2
    try:
        with Catalog(index) as catalog:
            hits = catalog.search(" ".join(options.words), limit=options.limit)
    except sqlite3.Error as error:
        print(f"search: {index}: {error}", file=sys.stderr)
        return 2
    print("\n".join(lines(hits)) if hits else f"nothing about {' '.join(options.words)!r}")
    return 0 if hits else 1


def lines(hits: Sequence[Hit]) -> Iterator[str]:
    """What is printed for some hits: rank, path and first line of each, and its neighbours below it."""
    folder = common_folder([hit.path for hit in hits] + [path for hit in hits for path, _ in hit.neighbours])
    yield f"in {folder}:"
    for rank, hit in enumerate(hits, start=1):
        yield f"{rank:>3}. {os.path.relpath(hit.path, folder)}" + (f"  {hit.title}" if hit.title else "")
        if hit.neighbours:
            related = (f"{os.path.relpath(path, folder)} ({score})" for path, score in hit.neighbours)
            yield f"     see also: {', '.join(related)}"


def common_folder(paths: Sequence[str]) -> str:
    """The deepest folder that holds all of them."""
    return os.path.commonpath([os.path.dirname(path) for path in paths])


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
