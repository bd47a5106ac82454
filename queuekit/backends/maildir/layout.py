"""The names of the maildir: what each folder and file is called, and what a name can tell. No I/O.

A job's file is named `{physical:016d}-{logical:08d}-{node:010d}-{stream}-{id}`. Stream and id may both hold hyphens,
so a name *suggests* a stream and only the file's content decides; but a name whose part after the stream is exactly a
32-digit hex id is taken at its word (`is_clear`) where a mistake is found out afterwards.
"""

from __future__ import annotations

import functools
import hashlib
import re

from queuekit.errors import InvalidIdentifier
from queuekit.hlc import sortable_hlc
from queuekit.ids import check_identifier
from queuekit.job import Job

TMP, NEW, CUR, DONE, CLAIM, LATER, PRIVATE = "tmp", "new", "cur", "done", "claim", "later", ".workerpool"
SHARED_FOLDERS = (TMP, NEW, CUR, DONE, CLAIM)
INTENTS, DOSSIERS, CHECKPOINTS = f"{PRIVATE}/retry", f"{PRIVATE}/jobs", f"{PRIVATE}/checkpoints"
RESERVE = f"{PRIVATE}/reserve"  # a file that a pool keeps to have some room when the disk is full

MAX_FILE_NAME = 255
MAX_JOB_NAME = 222  # a newer port's claim name is 33 bytes longer, and a file name holds 255
CLAIM_PREFIX = 33  # 32 hex digits and a hyphen
SIGNAL = ".signal"
ASIDE = "unreadable-"
STALE_TMP_SECONDS = 300.0

_TIMESTAMP = r"(-?\d+)--?\d+-\d+-"
_SHAPE = re.compile(f"{_TIMESTAMP}(?=.)", re.ASCII | re.DOTALL)
_HEX_ID = re.compile(r"[0-9a-f]{32}")
_LATER = re.compile(r"(?P<due>\d{16,})-(?P<kind>[rs])-(?P<name>.+)", re.ASCII | re.DOTALL)
_CHECKPOINT = re.compile(r"(?P<length>[1-9]\d*)-(?P<rest>.+)", re.ASCII | re.DOTALL)
_CLAIM = re.compile(r"[0-9a-f]{32}-(?=.)", re.DOTALL)


def job_filename(job: Job) -> str:
    """The name of the job's file, in every folder that it passes through."""
    return f"{sortable_hlc(job.submitted_at)}-{job.stream_id}-{job.id}"


def check_job_name(job: Job) -> str:
    """The job's file name; raises `InvalidIdentifier` unless stream, id and the whole may be used on disk."""
    check_identifier(job.stream_id)
    check_identifier(job.id)
    if job.id.endswith(SIGNAL):
        raise InvalidIdentifier(job.id, f"ends in {SIGNAL}")
    name = job_filename(job)
    size = len(name) if name.isascii() else len(name.encode())
    if size > MAX_JOB_NAME:
        raise InvalidIdentifier(name, f"the file name would take {size} bytes, {MAX_JOB_NAME} at most")
    return name


def tail(name: str) -> str | None:
    """The `{stream}-{id}` of a job's file name; None when it has not the shape of one."""
    shape = _SHAPE.match(name)
    return name[shape.end() :] if shape and not name.endswith(SIGNAL) else None


def physical_time(name: str) -> int:
    """The ms since the epoch that a job's file name begins with; 0 when it has not the shape of one."""
    shape = _SHAPE.match(name)
    return int(shape[1]) if shape else 0


def suggests(name: str, stream: str) -> bool:
    """Whether the file might hold a job of this stream."""
    return _names_of(stream).match(name) is not None and not name.endswith(SIGNAL)


def is_clear(name: str, stream: str) -> bool:
    """Whether the name states the stream: it fills all between the timestamp and a 32-digit hex id."""
    return clear_names_of(stream).fullmatch(name) is not None


def clear_stream(name: str) -> str | None:
    """The stream that the name states, None when only the content can tell.

    A name can lie: stream `a` with the id `b-<32 hex digits>` looks like stream `a-b`. It is good for counting and for
    a first choice; who moves a job on asks the content.
    """
    rest = tail(name)
    if rest is None or len(rest) <= CLAIM_PREFIX or rest[-CLAIM_PREFIX] != "-":
        return None
    return rest[:-CLAIM_PREFIX] if _HEX_ID.fullmatch(rest, len(rest) - 32) else None


@functools.lru_cache(maxsize=256)
def _names_of(stream: str) -> re.Pattern[str]:
    return re.compile(f"{_TIMESTAMP}{re.escape(stream)}-", re.ASCII)


@functools.lru_cache(maxsize=256)
def clear_names_of(stream: str) -> re.Pattern[str]:
    """What fully matches the names that state this stream, as `is_clear` has it."""
    return re.compile(f"{_TIMESTAMP}{re.escape(stream)}-[0-9a-f]{{32}}", re.ASCII)


def signal_filename(job_id: str) -> str:
    """The name of a job's signal in done/."""
    return job_id + SIGNAL


def quarantine_signal_filename(name: str) -> str:
    """The name of the signal of a file that could not be read: made from its whole name, never from a guessed id."""
    encoded = name.encode(errors="surrogateescape")
    if len(encoded) + len(SIGNAL) <= MAX_FILE_NAME:
        return name + SIGNAL
    return f"{encoded[:150].decode(errors='surrogateescape')}-{hashlib.sha256(encoded).hexdigest()}{SIGNAL}"


def spare_name(name: str, token: str) -> str:
    """Another name for a file that cannot be read, when its own one is taken; it stays recognisable."""
    encoded = name.encode(errors="surrogateescape")[: MAX_FILE_NAME - len(SIGNAL) - len(token) - 1]
    return f"{encoded.decode(errors='surrogateescape')}.{token}"


def aside_name(name: str, token: str) -> str:
    """Another name for an intent that cannot be read: nobody takes it for one, and it stays recognisable."""
    encoded = f"{ASIDE}{token}-".encode() + name.encode(errors="surrogateescape")
    return encoded[:MAX_FILE_NAME].decode(errors="surrogateescape")


def later_filename(name: str, due_ms: int, *, retry: bool) -> str:
    """The name in later/ of a job that is due at `due_ms`."""
    return f"{max(due_ms, 0):016d}-{'r' if retry else 's'}-{name}"


def split_later(name: str) -> tuple[int, bool, str] | None:
    """`(due ms, whether it is a retry, job file name)` of a name in later/; None when it has another shape."""
    match = _LATER.fullmatch(name)
    return (int(match["due"]), match["kind"] == "r", match["name"]) if match else None


def split_claim(name: str) -> str | None:
    """The job file name inside a newer port's claim name; None when it has another shape."""
    return name[CLAIM_PREFIX:] if _CLAIM.match(name) else None


def dossier_filename(job_id: str) -> str:
    """The name of a job's dossier."""
    return job_id + ".json"


def checkpoint_filename(stream: str, id: str) -> str:
    """The name of a checkpoint. The stream's length, in characters, tells where the id begins."""
    return f"{len(stream)}-{stream}-{id}"


def split_checkpoint(name: str) -> tuple[str, str] | None:
    """`(stream, id)` of a checkpoint's name; None when it has another shape."""
    match = _CHECKPOINT.fullmatch(name)
    if match is None or len(match["length"]) > 3:
        return None
    rest, length = match["rest"], int(match["length"])
    return (rest[:length], rest[length + 1 :]) if rest[length : length + 1] == "-" and rest[length + 1 :] else None
