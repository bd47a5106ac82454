"""Fuzzing of the readers guided by coverage: `python tests/fuzz_readers.py KIND CORPUS [libFuzzer's options]`.

Needs atheris (`pip install atheris`), which the project itself does not. It goes on until it is stopped, or
`-max_total_time=SECONDS`; an input for which a reader fails is written to a file `crash-…`, and belongs into
`fixtures/hostile/`, as do those of `-merge=1 NEW CORPUS`, the fewest that reach everything.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

_JSON_IN_C = "_json"


def main() -> None:
    """See above; a corpus that is empty begins with the sound examples of the kind."""
    atheris: Any = importlib.import_module("atheris")
    kind, corpus, *options = sys.argv[1:]
    sys.modules[_JSON_IN_C] = None  # type: ignore[assignment]  what is written in C cannot tell what it covers
    with atheris.instrument_imports(include=["queuekit", "workerpool", "json", "tomllib"]):
        readers = importlib.import_module("readers")
    with tempfile.TemporaryDirectory() as folder:
        read = readers.readers(Path(folder))[kind]
        _begin(Path(corpus), readers.good(kind, Path(folder)))
        atheris.Setup([sys.argv[0], *options, corpus], lambda data: read(data) and None)
        atheris.Fuzz()


def _begin(corpus: Path, examples: list[bytes]) -> None:
    corpus.mkdir(exist_ok=True)
    if not any(corpus.iterdir()):
        for number, data in enumerate(examples):
            (corpus / f"example-{number}").write_bytes(data)


if __name__ == "__main__":
    main()
