"""A backlog made at once: job files and rows by the hundred thousand, as if they had been sent; and a disk for them.

Each job is as the wire format has it, which the first and the last one of a backlog are checked for.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pool import until

from queuekit import HLC, Job, JobID, StreamID, decode_job, encode_job, job_filename
from queuekit.testing.jobs import EPOCH_MS

_ROWS_AT_ONCE = 10_000
_ID = "0" * 32


@contextmanager
def own_disk(folder: Path, size: int, filesystem: str) -> Iterator[None]:
    """An ext4 or tmpfs of its own at this new folder, `size` bytes large at most.

    Unmounted and removed at the end, whatever is in it: a million files are not deleted one by one.
    """
    folder.mkdir()
    image = folder.with_name(f"{folder.name}.img")
    inodes = size // 4096
    try:
        if filesystem == "tmpfs":
            _run("mount", "-t", "tmpfs", "-o", f"size={size},nr_inodes={inodes}", "tmpfs", str(folder))
        else:
            with image.open("wb") as file:
                file.truncate(size)
            _run("mkfs.ext4", "-qF", "-m", "0", "-N", str(inodes), str(image))
            _run("mount", "-o", "loop", str(image), str(folder))
        try:
            folder.chmod(0o700)
            yield
        finally:
            until(lambda: subprocess.run(["umount", str(folder)], check=False).returncode == 0, "the unmounting")
    finally:
        image.unlink(missing_ok=True)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


def job_of(number: int, stream: str) -> Job:
    """The job number `number` of a backlog: one millisecond younger than the one before."""
    return Job(
        id=JobID(f"{number:032x}"), stream_id=StreamID(stream), submitted_at=HLC(EPOCH_MS + number, 0, 1), payload=b"{}"
    )


def fill_folder(new: Path, numbers: range, stream: str = "encode") -> None:
    """Make the files of these jobs in a queue's new/."""
    name = job_filename(job_of(0, stream)).replace(str(EPOCH_MS), "%d").replace(_ID, "%032x")
    text = encode_job(job_of(0, stream)).decode().replace(_ID, "%032x").replace(str(EPOCH_MS), "%d")
    folder = os.open(new, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for number in numbers:
            file = os.open(
                name % (EPOCH_MS + number, number), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder
            )
            os.write(file, (text % (number, EPOCH_MS + number)).encode())
            os.close(file)
    finally:
        os.close(folder)
    for number in (numbers[0], numbers[-1]):
        job = job_of(number, stream)
        assert decode_job((new / job_filename(job)).read_bytes()) == job


def fill_table(file: Path, numbers: range, stream: str = "encode") -> None:
    """Make the rows of these jobs in a queue's SQLite file, which exists."""
    columns = "id, stream_id, physical_time, logical_count, node_id, priority, status, payload, extensions"
    statement = f"INSERT INTO queuekit_jobs ({columns}) VALUES (?, ?, ?, 0, 1, 50, 'new', ?, '{{}}')"
    with contextlib.closing(sqlite3.connect(file)) as database:
        for begin in range(0, len(numbers), _ROWS_AT_ONCE):
            some = numbers[begin : begin + _ROWS_AT_ONCE]
            with database:
                database.executemany(statement, ((f"{each:032x}", stream, EPOCH_MS + each, b"{}") for each in some))
