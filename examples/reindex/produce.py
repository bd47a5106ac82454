"""Send one `encode` job for each file of an estate that the index does not have yet, all in one durable batch.

    python produce.py [ESTATE] [--store URL]

ESTATE is a directory; without it, the standard library of the Python that runs this. The same index and the same
version of a file always make the same job (id, time stamp, name), so that a second run adds nothing: what is finished
is not sent, and what is still under way is recognised by its name.
"""

from __future__ import annotations

import argparse
import os
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from catalog import Catalog, default_path
from estate import SourceFile, files_of, job_id

from queuekit import HLC, Job, JobID, QueueError, QueueKit, StreamID

NODE_ID = 1  # fixed: part of the name, so it must be the same in every run
STORE = f"dir:{Path(__file__).resolve().with_name('spool')}"


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
        sent, files = produce(options.estate, options.store)
    except QueueError as error:
        print(f"produce: {options.store}: {error}", file=sys.stderr)
        return 3
    print(f"{files} files in {options.estate}: {sent} jobs sent (what was under way already is not doubled)")
    return 0


def default_estate() -> str:
    """The folder of this Python's standard library."""
    return sysconfig.get_paths()["stdlib"]


def produce(estate: str, store: str) -> tuple[int, int]:
    """Send what is missing; returns how many jobs were sent, and how many files the estate has.

    Raises `OSError` when the estate cannot be listed and `QueueError` when the jobs could not be stored; then a second
    call completes it.
    """
    files = list(files_of(estate))
    with Catalog(default_path()) as catalog:
        generation, created_ms = catalog.birth()
        finished, known = catalog.finished(), catalog.known()
    missing = [file for file in files if finished.get(file.path) != file.version]
    missing += gone(os.path.realpath(estate), {file.path for file in files}, known)
    now_ms = time.time_ns() // 1_000_000
    with QueueKit.open(store) as queue:
        return queue.send_batch([job_for(file, generation, created_ms, now_ms) for file in missing]), len(files)


def job_for(file: SourceFile, generation: str, created_ms: int, now_ms: int) -> Job:
    """The `encode` job of one version of a file, on its way into the index made at `created_ms`.

    Its time stamp is the moment since when it is due: the file's last change, or the birth of the index when that was
    later. A change in the future (a wrong clock wrote the file) says nothing and is not used.
    """
    changed_ms = file.mtime_ns // 1_000_000
    due_ms = changed_ms if created_ms < changed_ms <= now_ms else created_ms
    return Job(
        id=JobID(job_id(generation, file)),
        stream_id=StreamID("encode"),
        submitted_at=HLC(due_ms, 0, NODE_ID),
        payload=file.payload(),
    )


def gone(root: str, present: set[str], known: Mapping[str, int]) -> Iterator[SourceFile]:
    """What the index knows below `root` and the estate no longer has."""
    for path, mtime_ns in sorted(known.items()):
        if path not in present and path.startswith(os.path.join(root, "")):
            yield SourceFile(path=path, size=None, mtime_ns=mtime_ns)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
