"""The handlers of the re-index pool: what a worker does with one job of each stream.

    encode      reads a file into the index, and asks for `dreaming` once it is there
    dreaming    links the document to its relatives

Both may run twice, in any order, in several workers at once, and may be killed at any moment: the index ends up the
same. A job names a file, and the file is read as it is now, so a late job never brings an old version back.
The index is where REINDEX_INDEX says, else beside this file.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from catalog import Catalog, default_path
from estate import SourceFile, look_at
from reading import MAX_BYTES, Document, read_document

if TYPE_CHECKING:
    from queuekit import Job
    from workerpool import JobContext


def encode(job: Job, ctx: JobContext) -> None:
    """Index the file that the job names, or forget it when it is gone; then submit its `dreaming` job.

    Raises `OSError` when the file cannot be read and `sqlite3.OperationalError` when the index cannot be written: both
    are worth another try. A payload that names no file raises `ValueError`, `KeyError` or `TypeError`.
    """
    path = SourceFile.of_payload(job.payload).path
    with Catalog(default_path()) as catalog:
        if (found := look_at(path)) is None:
            catalog.forget(path)
            return
        if not catalog.has(found):
            catalog.put(found, _read(path))
    ctx.submit("dreaming", json.dumps({"path": path}).encode())


def dreaming(job: Job) -> None:
    """Link the document that the job names to those it shares rare terms with, in both directions."""
    path = json.loads(job.payload)["path"]
    with Catalog(default_path()) as catalog:
        catalog.link(path)


def _read(path: str) -> Document:
    with open(path, "rb") as file:
        return read_document(file.read(MAX_BYTES), python=path.endswith((".py", ".pyi")))
