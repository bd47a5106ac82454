"""The handlers of the re-index pool: what a worker does with a batch of jobs of each stream.

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


def encode(jobs: list[Job], ctx: JobContext) -> None:
    """Index the files that the jobs name, and forget those that are gone; then submit a `dreaming` job for each.

    All in one transaction, so that the disk is waited for once. What is raised fails the batch, which the pool then
    halves until the guilty job stands alone: `OSError` when a file cannot be read, `sqlite3.OperationalError` when the
    index cannot be written; a payload that names no file raises `ValueError`, `KeyError` or `TypeError`.
    """
    paths = {job.id: SourceFile.of_payload(job.payload).path for job in jobs}
    found = {path: look_at(path) for path in paths.values()}
    with Catalog(default_path()) as catalog:
        fresh = {path: _read(path) for path, file in found.items() if file is not None and not catalog.has(file)}
        with catalog.together():
            for path, file in found.items():
                if file is None:
                    catalog.forget(path)
                elif path in fresh:
                    catalog.put(file, fresh[path])
    for job in jobs:
        if found[paths[job.id]] is not None:
            ctx.submit("dreaming", json.dumps({"path": paths[job.id]}).encode(), parent=job)


def dreaming(jobs: list[Job]) -> None:
    """Link the documents that the jobs name to those they share rare terms with, in both directions."""
    with Catalog(default_path()) as catalog, catalog.together():
        for job in jobs:
            catalog.link(json.loads(job.payload)["path"])


def _read(path: str) -> Document:
    with open(path, "rb") as file:
        return read_document(file.read(MAX_BYTES), python=path.endswith((".py", ".pyi")))
