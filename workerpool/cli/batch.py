"""A file of jobs for `send --jsonl`: one JSON object a line, all of it judged before the first job is sent.

    {"payload": "text, sent as it is in UTF-8"}
    {"payload": {"any": "JSON"}, "priority": 10, "extensions": {"source": "import"}, "id": "file-17"}

Refused, with the line's number: what is not UTF-8 or not one JSON object, a byte order mark, NaN and infinities, a key
that stands twice or is unknown, and whatever `prepare` would refuse when the job is sent. Blank lines are skipped.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from typing import IO, Any, NoReturn

from queuekit import QueueError
from queuekit.backends.admission import prepare
from queuekit.clock import ProcessClock
from queuekit.ids import JobID, StreamID
from queuekit.job import DELIVERY, Job
from workerpool.cli import words
from workerpool.cli.options import standard_input

SHOWN_MISTAKES = 5
_KEYS = ("payload", "priority", "extensions", "id")
_ESCAPE_GROWTH = 6  # one byte of payload may be written as \u0000
_ENVELOPE_BYTES = 2**20
_BOM = b"\xef\xbb\xbf"


@dataclasses.dataclass(frozen=True, slots=True)
class Defaults:
    """What a job gets where its line does not say: from the command line."""

    stream: str
    priority: int
    extensions: Mapping[str, Any]
    max_job_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Mistake:
    """What is wrong with one line."""

    line: int
    reason: str


def open_seekable(path: str) -> IO[bytes]:
    """The file (`-`: standard input) for reading twice; what is no regular file is copied first. Raises `OSError`."""
    if path == "-":
        return _copied(standard_input().buffer)
    file = open(path, "rb")  # noqa: SIM115  closed by who asked for it
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    with file:
        return _copied(file)


def _copied(source: IO[bytes]) -> IO[bytes]:
    copy = tempfile.TemporaryFile()  # noqa: SIM115  closed by who asked for it
    shutil.copyfileobj(source, copy)
    copy.seek(0)
    return copy


def judge(file: IO[bytes], defaults: Defaults) -> tuple[int, list[Mistake]]:
    """Read all of it: how many good jobs there are, and the first mistakes. The file is back at its start then."""
    clock = ProcessClock()
    count, mistakes, ids = 0, [], dict[str, int]()
    for number, line in lines(file, defaults.max_job_bytes):
        try:
            job = read_job(line, defaults, clock, default_id=_ANY_ID)
            _check_unique(job, number, ids)
            prepare(job, defaults.max_job_bytes)
        except (QueueError, ValueError) as error:
            mistakes.append(Mistake(number, _reason(error)))
            if len(mistakes) == SHOWN_MISTAKES:
                break
        else:
            count += 1
    file.seek(0)
    return count, mistakes


def jobs(file: IO[bytes], defaults: Defaults) -> Iterator[tuple[int, Job]]:
    """`(line, job)` for each line, with fresh ids where it names none. Raises `ValueError` naming a bad line."""
    clock = ProcessClock()
    for number, line in lines(file, defaults.max_job_bytes):
        try:
            job = read_job(line, defaults, clock)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
        yield number, job


def lines(file: IO[bytes], max_job_bytes: int) -> Iterator[tuple[int, bytes]]:
    """`(number, content)` of the lines that are not blank; one that no job can fill is cut, and so is refused."""
    limit = _ESCAPE_GROWTH * max_job_bytes + _ENVELOPE_BYTES
    number = 0
    while line := file.readline(limit + 1):
        number += 1
        if len(line) > limit and not line.endswith(b"\n"):
            _skip_line(file)
        if line.strip():
            yield number, line


def _skip_line(file: IO[bytes]) -> None:
    while (rest := file.readline(2**20)) and not rest.endswith(b"\n"):
        pass


# -- one line

_ANY_ID = "0" * 32


def read_job(line: bytes, defaults: Defaults, clock: ProcessClock, default_id: str | None = None) -> Job:
    """The job of one line; raises `ValueError` with what is wrong."""
    values = _object(line, defaults.max_job_bytes)
    _check_keys(values)
    if "payload" not in values:
        raise ValueError('there is no "payload"')
    id = values.get("id", default_id or JobID.generate())
    extensions = values.get("extensions", {})
    if not isinstance(id, str):
        raise ValueError('"id" must be text')
    if not isinstance(extensions, dict):
        raise ValueError('"extensions" must be an object')
    return Job(
        id=JobID(id),
        stream_id=StreamID(defaults.stream),
        submitted_at=clock.send(),
        priority=values.get("priority", defaults.priority),
        payload=_payload(values["payload"]),
        extensions=checked_extensions({**defaults.extensions, **extensions}),
    )


def _object(line: bytes, max_job_bytes: int) -> dict[str, Any]:
    if len(line) > _ESCAPE_GROWTH * max_job_bytes + _ENVELOPE_BYTES:
        raise ValueError(f"is longer than any job can be whose payload has {max_job_bytes} bytes at most")
    if line.startswith(_BOM):
        raise ValueError("begins with a byte order mark: save the file as UTF-8 without one")
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 (byte {error.start + 1})") from None
    values = parse_json(text.rstrip("\r\n"))
    if not isinstance(values, dict):
        raise ValueError('must be an object: {"payload": …}')
    return values


def parse_json(text: str) -> Any:
    """Strict JSON; raises `ValueError` with a reason for a person."""
    try:
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_unique_keys)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error.msg} (column {error.colno})") from None
    except RecursionError:
        raise ValueError("nests too deeply") from None


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} stands twice")
    return values


def _check_keys(values: Mapping[str, Any]) -> None:
    unknown = next((key for key in values if key not in _KEYS), None)
    if unknown is not None:
        from workerpool.config_model import did_you_mean

        near = did_you_mean(unknown, _KEYS)
        raise ValueError(f"unknown key {unknown!r}{near or '; there are ' + ', '.join(_KEYS)}")


def _payload(value: Any) -> bytes:
    """Text as it is, everything else as compact JSON."""
    try:
        if isinstance(value, str):
            return value.encode()
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except UnicodeEncodeError:
        raise ValueError('"payload" is not valid Unicode') from None
    except ValueError:
        raise ValueError('"payload" has a number that is not finite') from None
    except RecursionError:
        raise ValueError('"payload" nests too deeply') from None


def checked_extensions(extensions: dict[str, Any]) -> dict[str, Any]:
    """The extensions; raises `ValueError` for the one that is not the sender's."""
    if DELIVERY in extensions:
        raise ValueError(f"the extension {DELIVERY!r} is the queue's own")
    return extensions


def _check_unique(job: Job, number: int, seen: dict[str, int]) -> None:
    if job.id == _ANY_ID:
        return
    first = seen.setdefault(job.id, number)
    if first != number:
        raise ValueError(f"has the id of line {first}, {job.id!r}")


def _reason(error: Exception) -> str:
    """What is wrong, without the id that a job has only for being judged."""
    return words.printable(str(error)).replace(f"could not write job {_ANY_ID}: ", "")
