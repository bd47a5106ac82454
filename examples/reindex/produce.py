"""Send one `encode` job for each file of an estate that the index does not have yet, in durable batches.

    python produce.py [ESTATE] [--store URL]

ESTATE is a directory; without it, the standard library of the Python that runs this. The same index and the same
version of a file always make the same job (id, time stamp, name), so that a second run adds nothing: what is finished
is not sent, and what is still under way is recognised by its name. After each batch a checkpoint in the queue's store
says how far it has come: a run that was cut off is gone on with from there, and only a complete one looks at everything
again.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import os
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from catalog import Catalog, default_path
from estate import SourceFile, files_of, job_id, place_of

from queuekit import HLC, Job, JobID, QueueError, QueueKit, StreamID
from queuekit.checkpoints import Checkpoints

STREAM = "encode"
BATCH = 500
NODE_ID = 1  # fixed: part of the name, so it must be the same in every run
STORE = f"dir:{Path(__file__).resolve().with_name('spool')}"


class Produced(NamedTuple):
    """What a run did: jobs sent, files looked at, and the path behind which it began (None: at the beginning)."""

    sent: int
    files: int
    start: str | None


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit code: 0, 2 for an estate that is no directory, 3 when the store cannot be used."""
    parser = argparse.ArgumentParser(prog="produce.py", description="Send a job for each file of an estate.")
    parser.add_argument("estate", nargs="?", default=default_estate(), help="a directory (default: %(default)s)")
    parser.add_argument("--store", default=STORE, metavar="URL", help="the queue (default: %(default)s)")
    options = parser.parse_args(arguments)
    if not os.path.isdir(options.estate):
        print(f"produce: {options.estate}: not a directory", file=sys.stderr)
        return 2
    try:
        done = produce(options.estate, options.store)
    except QueueError as error:
        print(f"produce: {options.store}: {error}", file=sys.stderr)
        return 3
    where = options.estate + (f" after {done.start}, where an earlier run was cut off" if done.start else "")
    print(f"{done.files} files in {where}: {done.sent} jobs sent (what was under way already is not doubled)")
    return 0


def default_estate() -> str:
    """The folder of this Python's standard library."""
    return sysconfig.get_paths()["stdlib"]


def produce(estate: str, store: str, batch: int = BATCH) -> Produced:
    """Send what is missing, `batch` jobs at a time. A run that follows one that was cut off goes on where that was.

    So what has changed before that place is found by the run after it. Raises `OSError` when the estate cannot be
    listed and `QueueError` when the jobs could not be stored; then a second call completes it.
    """
    root = os.path.realpath(estate)
    with Catalog(default_path()) as catalog:
        generation, created_ms = catalog.birth()
        finished, known = catalog.finished(), catalog.known()
    now_ms = time.time_ns() // 1_000_000
    sent, files = 0, 0
    missing: list[Job] = []
    with QueueKit.open(store) as queue:
        mark = Bookmark(queue.checkpoints, root, generation)
        for file in documents(root, known, mark.start):
            files += file.size is not None
            if finished.get(file.path) != file.version:
                missing.append(job_for(file, generation, created_ms, now_ms))
            if len(missing) >= batch:
                sent += queue.send_batch(missing)
                mark.move(file.path)
                missing.clear()
        sent += queue.send_batch(missing)
        mark.remove()
    return Produced(sent, files, mark.start)


class Bookmark:
    """How far the runs over one estate have come, on the way into one index: a checkpoint beside the jobs.

    It is moved when the jobs of all files up to there have been accepted. `start`: the path that the last one moved it
    to, None for a run that begins at the beginning.

    Two runs at once send the same jobs, which is harmless. One of them moves the mark; the other one, which finds it
    moved, leaves it alone from then on.
    """

    def __init__(self, store: Checkpoints, root: str, generation: str) -> None:
        self._store = store
        self._id = f"reindex-{hashlib.blake2b(root.encode(errors='surrogateescape'), digest_size=16).hexdigest()}"
        self._generation = generation
        self._seen = store.read(self._id, STREAM)
        self._ours = True
        self.start = self._path_in(self._seen)

    def _path_in(self, payload: bytes | None) -> str | None:
        """A mark on the way into another index says nothing about this one."""
        mark = json.loads(payload) if payload else {}
        return mark["after"] if mark.get("index") == self._generation else None

    def move(self, path: str) -> None:
        """Everything up to this path has been accepted; kept when this returns."""
        payload = json.dumps({"index": self._generation, "after": path}).encode()
        self._ours = self._ours and self._store.compare_and_swap(self._id, STREAM, self._seen, payload)
        self._seen = payload

    def remove(self) -> None:
        """The run is complete: the next one looks at everything."""
        if self._ours and self._seen is not None:
            self._store.delete(self._id, STREAM)


def documents(root: str, known: Mapping[str, int], after: str | None) -> Iterator[SourceFile]:
    """Every file of the estate, and in between what the index knows below `root` and the estate no longer has.

    In the order of the walk, from behind the path `after`.
    """
    start = place_of(root, after) if after else ()
    places = ((place_of(root, path), path) for path in known if path.startswith(os.path.join(root, "")))
    remembered = collections.deque(sorted(each for each in places if each[0] > start))
    for file in files_of(root, after):
        here = place_of(root, file.path)
        while remembered and remembered[0][0] < here:
            yield _gone(remembered.popleft()[1], known)
        if remembered and remembered[0][0] == here:
            remembered.popleft()
        yield file
    for _, path in remembered:
        yield _gone(path, known)


def _gone(path: str, known: Mapping[str, int]) -> SourceFile:
    return SourceFile(path=path, size=None, mtime_ns=known[path])


def job_for(file: SourceFile, generation: str, created_ms: int, now_ms: int) -> Job:
    """The `encode` job of one version of a file, on its way into the index made at `created_ms`.

    Its time stamp is the moment since when it is due: the file's last change, or the birth of the index when that was
    later. A change in the future (a wrong clock wrote the file) says nothing and is not used.
    """
    changed_ms = file.mtime_ns // 1_000_000
    due_ms = changed_ms if created_ms < changed_ms <= now_ms else created_ms
    return Job(
        id=JobID(job_id(generation, file)),
        stream_id=StreamID(STREAM),
        submitted_at=HLC(due_ms, 0, NODE_ID),
        payload=file.payload(),
    )


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
