"""The JSON of jobs and signals, byte for byte as every port of the queue writes it. Pure: bytes in, values out.

One job is one object: keys sorted by code point at every level, no white space, no newline at the end, UTF-8 with
nothing escaped but `"`, `\\` and U+0000 to U+001F, the payload as base64url without padding, the node id as the
unsigned view of its 32 bits::

    {"extensions":{…},"id":"…","payload":"…","priority":50,"stream_id":"…",
     "submitted_at":{"logical_count":0,"node_id":1,"physical_time":1747526400000}}        (in one line)
    {"artifacts":[{"type":"…","value":"…"}],"completed_at":{…},"job_id":"…","status":"done"}

**Strict out.** `check_sendable` is for whoever hands over a new job. It holds a job to what every port can read.
`encode_job` holds it to less, since a retry also writes back what came from elsewhere: to what `decode_job` reads back
as the same value. Neither ever writes something that is silently another value than it was given.

**Lenient in.** Unknown keys are ignored, white space and escapes are the writer's choice, missing extensions are `{}`,
integers of up to 4,300 digits and 512 levels of nesting are taken as they come. Padding of base64 may be there, and
bits of its last character that belong to no byte are ignored. What is refused, always as `DecodingFailed`:

* text that is not JSON in strict UTF-8: a byte order mark, NaN, Infinity, a number too large for a float, lone
  surrogates, anything truncated;
* a key that occurs twice in one object, at any depth: ports disagree about which one counts, so no reading is right;
* an envelope field that is missing, of another type (a bool or a float is no integer) or out of range;
* base64 with a foreign character, with wrong padding, or with one character too many.

Identifiers are text here, of any content. Whether they may be part of a file name is the backend's question, on the
way out and on the way in: `check_identifiers`.

Floats keep their value, not their spelling: ports print them differently, and some print `1.0` as `1`.
"""

from __future__ import annotations

import binascii
import io
import json
import math
import re
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any, NoReturn, TypeVar

from queuekit.completion import ArtifactRef, ArtifactType, SignalFile
from queuekit.errors import DecodingFailed, InvalidIdentifier, WriteFailed
from queuekit.hlc import HLC
from queuekit.ids import JobID, StreamID, check_identifier
from queuekit.job import Job
from queuekit.status import ObservationStatus

MAX_DEPTH_SENT = 100
"""Levels of objects and lists in a new job's extensions, the extensions themselves being the first."""
MAX_DEPTH_READ = 512
"""Levels of objects and lists in a whole file."""
MAX_DIGITS_READ = 4300
"""Digits of one integer."""

_T = TypeVar("_T")
_MISSING = object()
_INT32 = (-(2**31), 2**31 - 1)
_INT64 = (-(2**63), 2**63 - 1)
_UINT32 = (0, 2**32 - 1)


# -- rules for what is sent


def check_sendable(job: Job) -> None:
    """Raise unless every port could read this job: call it before a new job touches the store.

    Raises `InvalidIdentifier` for the stream and job id (see `check_identifiers`), `WriteFailed` for anything else,
    naming the field or the path of keys: integers beyond int64 (`logical_count` and `node_id`: int32), a bool or float
    for an integer, a payload that is not `bytes`, and in the extensions values that JSON does not have, keys that are
    not text, floats that are not finite, invalid Unicode, or more than 100 levels. Sizes and file names are not looked
    at.
    """
    check_identifiers(job)
    try:
        _check_envelope(job)
        if job.extensions:
            _check_values(job.extensions, MAX_DEPTH_SENT, any_integer=False)
    except ValueError as error:
        raise WriteFailed(f"job {job.id}", str(error)) from None


def check_identifiers(job: Job) -> None:
    """Raise `InvalidIdentifier` unless the stream and job id may be part of file names in the queue.

    The rule is that of `check_identifier`; besides, neither may end in `.signal`, which marks the other kind of file.
    """
    for identifier in (job.stream_id, job.id):
        if not isinstance(identifier, str):
            raise InvalidIdentifier(repr(identifier), "not text")
        check_identifier(identifier)
        if identifier.endswith(".signal"):
            raise InvalidIdentifier(identifier, "ends in .signal")


def _check_envelope(job: Job) -> None:
    _check_text("id", job.id)
    _check_text("stream_id", job.stream_id)
    _check_integer("priority", job.priority, *_INT64)
    _check_hlc("submitted_at", job.submitted_at)
    if not isinstance(job.payload, bytes):
        raise ValueError(f"payload must be bytes, not {_kind(job.payload)}")
    if not isinstance(job.extensions, Mapping):
        raise ValueError(f"extensions must be a mapping, not {_kind(job.extensions)}")


def _check_hlc(field: str, hlc: HLC) -> None:
    if not isinstance(hlc, HLC):
        raise ValueError(f"{field} must be a timestamp, not {_kind(hlc)}")
    _check_integer("physical_time", hlc.physical_time, *_INT64)
    _check_integer("logical_count", hlc.logical_count, *_INT32)
    _check_integer("node_id", hlc.node_id, *_INT32)


def _check_text(field: str, value: object) -> None:
    if not isinstance(value, str):
        raise ValueError(f"{field} must be text, not {_kind(value)}")


def _check_integer(field: str, value: object, low: int, high: int) -> None:
    if type(value) is not int:
        raise ValueError(f"{field} must be an integer, not {_kind(value)}")
    if not low <= value <= high:
        raise ValueError(f"{field} is out of range ({low} to {high})")


def _check_values(extensions: Mapping[str, Any], max_depth: int, *, any_integer: bool) -> None:
    """Walk the extensions without recursion (a cycle ends at `max_depth`); raises `ValueError` naming the path."""
    waiting: list[tuple[str, Any, int]] = [("extensions", extensions, 1)]
    while waiting:
        path, container, depth = waiting.pop()
        if depth > max_depth:
            raise ValueError(f"{_cut(path)} is nested deeper than {max_depth} levels")
        named = isinstance(container, Mapping)
        for key, value in container.items() if named else enumerate(container):
            if named and (not isinstance(key, str) or not _is_unicode(key)):
                raise ValueError(f"{_cut(path)} has the key {_cut(ascii(key))}, which is not valid text")
            if isinstance(value, (dict, list, tuple)):
                waiting.append((_step(path, key), value, depth + 1))
            elif fault := _fault(value, any_integer):
                raise ValueError(f"{_cut(_step(path, key))} is {fault}")


def _fault(value: object, any_integer: bool) -> str:
    """What keeps a scalar from being sent; empty when nothing does."""
    if isinstance(value, str):
        return "" if _is_unicode(value) else "text that is not valid Unicode (a lone surrogate)"
    if value is None or isinstance(value, bool):
        return ""
    if isinstance(value, int):
        return "" if any_integer or _INT64[0] <= value <= _INT64[1] else "an integer beyond 64 bits"
    if isinstance(value, float):
        return "" if math.isfinite(value) else "a float that is not finite"
    return f"of type {_kind(value)}, which JSON does not have"


def _is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _step(path: str, key: object) -> str:
    return f"{path}.{key}" if isinstance(key, str) else f"{path}[{key}]"


def _cut(text: str) -> str:
    """`text` for a message: printable and short, its end kept, since that names the culprit."""
    shown = text if text.isprintable() else ascii(text)[1:-1]
    return shown if len(shown) <= 200 else "…" + shown[-199:]


def _kind(value: object) -> str:
    return type(value).__name__


# -- writing

_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
_TO_URLSAFE = bytes.maketrans(b"+/", b"-_")


def encode_job(job: Job) -> bytes:
    """The exact content of the job's file.

    Raises `WriteFailed` when the job is not one that `decode_job` would read back with the same values.
    """
    try:
        _check_envelope(job)
        extensions = _encoded_extensions(job.extensions)
        head = f'{{"extensions":{extensions},"id":{_JSON.encode(job.id)},"payload":"'
        stream, submitted = _JSON.encode(job.stream_id), _encoded_hlc(job.submitted_at)
        tail = f'","priority":{job.priority},"stream_id":{stream},"submitted_at":{submitted}}}'
        return b"".join((head.encode(), _encoded_payload(job.payload), tail.encode()))
    except (ValueError, TypeError, RecursionError) as error:
        raise WriteFailed(f"job {_cut(str(job.id))}", str(error)) from None


def encode_signal(signal: SignalFile) -> bytes:
    """The exact content of a signal's file.

    Raises `WriteFailed` when the signal is not one that `decode_signal` would read back with the same values.
    """
    try:
        _check_text("job_id", signal.job_id)
        _check_hlc("completed_at", signal.completed_at)
        artifacts = ",".join(map(_encoded_artifact, signal.artifacts))
        completed, job_id = _encoded_hlc(signal.completed_at), _JSON.encode(signal.job_id)
        status = ObservationStatus(signal.status).value
        return (
            f'{{"artifacts":[{artifacts}],"completed_at":{completed},"job_id":{job_id},"status":"{status}"}}'
        ).encode()
    except (ValueError, TypeError) as error:
        raise WriteFailed(f"the signal of job {_cut(str(signal.job_id))}", str(error)) from None


def _encoded_extensions(extensions: Mapping[str, Any]) -> str:
    if not extensions:
        return "{}"
    _check_values(extensions, MAX_DEPTH_READ - 1, any_integer=True)
    return _JSON.encode(extensions if isinstance(extensions, dict) else dict(extensions))


def _encoded_payload(payload: bytes) -> bytes:
    return binascii.b2a_base64(payload, newline=False).translate(_TO_URLSAFE).rstrip(b"=")


def _encoded_hlc(hlc: HLC) -> str:
    node = hlc.node_id & 0xFFFFFFFF
    return f'{{"logical_count":{hlc.logical_count},"node_id":{node},"physical_time":{hlc.physical_time}}}'


def _encoded_artifact(artifact: ArtifactRef) -> str:
    _check_text("an artifact's value", artifact.value)
    return f'{{"type":"{ArtifactType(artifact.type).value}","value":{_JSON.encode(artifact.value)}}}'


def encode_extensions(extensions: Mapping[str, Any]) -> str:
    """The JSON of a job's extensions alone, for stores that keep them in a column. Raises `WriteFailed`."""
    try:
        return _encoded_extensions(extensions)
    except (ValueError, TypeError, RecursionError) as error:
        raise WriteFailed("the extensions of a job", str(error)) from None


def encode_artifacts(artifacts: Iterable[ArtifactRef]) -> str:
    """The JSON of a signal's artifacts alone. Raises `WriteFailed`."""
    try:
        return f"[{','.join(map(_encoded_artifact, artifacts))}]"
    except (ValueError, TypeError) as error:
        raise WriteFailed("the artifacts of a job", str(error)) from None


# -- reading


def decode_extensions(text: str) -> dict[str, Any]:
    """The extensions that `encode_extensions` (or another port) wrote. Raises `DecodingFailed`."""
    try:
        return _parsed(text.encode())
    except UnicodeEncodeError as error:
        raise _failure(error) from error


def decode_artifacts(text: str) -> tuple[ArtifactRef, ...]:
    """The artifacts that `encode_artifacts` (or another port) wrote. Raises `DecodingFailed`."""
    body = decode_extensions(f'{{"artifacts":{text}}}')
    try:
        return tuple(map(_artifact, _field(body, "artifacts", list)))
    except (ValueError, MemoryError) as error:
        raise _failure(error) from error


def check_read(job: Job) -> Job:
    """A job that was put together from columns, as it is; raises `DecodingFailed` where no file could hold it."""
    try:
        check_identifiers(job)
        _check_envelope(job)
    except (InvalidIdentifier, ValueError) as error:
        raise _failure(error, job.id) from error
    return job


def decode_job(data: bytes) -> Job:
    """The job in a file's content. Raises `DecodingFailed`, and nothing else, when there is none."""
    body = _parsed(data)
    try:
        return Job(
            id=JobID(_field(body, "id", str)),
            stream_id=StreamID(_field(body, "stream_id", str)),
            submitted_at=_hlc(body, "submitted_at"),
            priority=_integer(body, "priority", *_INT64),
            payload=_payload(_field(body, "payload", str)),
            extensions=_field(body, "extensions", dict) if "extensions" in body else {},
        )
    except (ValueError, MemoryError) as error:
        raise _failure(error, body.get("id")) from error


def decode_signal(data: bytes) -> SignalFile:
    """The signal in a file's content. Raises `DecodingFailed`, and nothing else, when there is none.

    An unknown status or type of artifact is a failure; `running` is read, although nothing here writes such a signal.
    """
    body = _parsed(data)
    try:
        return SignalFile(
            job_id=JobID(_field(body, "job_id", str)),
            status=_status(_field(body, "status", str)),
            completed_at=_hlc(body, "completed_at"),
            artifacts=tuple(map(_artifact, _field(body, "artifacts", list))),
        )
    except (ValueError, MemoryError) as error:
        raise _failure(error, body.get("job_id")) from error


def _failure(error: BaseException, job_id: object = None) -> DecodingFailed:
    return DecodingFailed(str(error) or _kind(error), job_id if isinstance(job_id, str) and job_id else None)


def _parsed(data: bytes) -> dict[str, Any]:
    """The object that `data` is the JSON of, with every rule about JSON itself kept."""
    try:
        text = str(data, "utf-8")
        if text.startswith("\ufeff"):
            raise ValueError("it begins with a byte order mark")
        if text.count("[") + text.count("{") > MAX_DEPTH_READ and _depth(bytes(data)) > MAX_DEPTH_READ:
            raise ValueError(f"it is nested deeper than {MAX_DEPTH_READ} levels")
        body = _READER.decode(text)
        if "\\ud" in text or "\\uD" in text:
            _JSON.encode(body).encode()  # only escapes can smuggle in a lone surrogate: this names it
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise _failure(error) from error
    if not isinstance(body, dict):
        raise DecodingFailed(f"it is a JSON {_kind(body)}, not an object")
    return body


# An unfinished string reaches to the end, so that no input makes the search start over.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.?)*+(?:"|\Z)', re.DOTALL)
_NO_BRACKET = bytes(set(range(256)) - set(b"[]{}"))
_LEVEL = tuple(1 if byte in b"[{" else -1 for byte in range(256))


def _depth(data: bytes) -> int:
    """How deep the brackets outside of strings are nested; exact as far as `data` is JSON.

    The parser is not asked, because its answer to deep nesting depends on its version, on the recursion limit and on
    the stack.
    """
    brackets = _STRING.sub(b"", data).translate(None, _NO_BRACKET)
    return max(accumulate(map(_LEVEL.__getitem__, brackets)), default=0)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice in one object")
    return found


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError("a number is too large for a float")
    return value


def _bounded(digits: str) -> int:
    if len(digits) > MAX_DIGITS_READ and len(digits.lstrip("-")) > MAX_DIGITS_READ:
        raise ValueError(f"an integer has more than {MAX_DIGITS_READ} digits")
    return int(digits)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_READER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_float=_finite, parse_int=_bounded, parse_constant=_no_constant
)


def _field(body: Mapping[str, Any], key: str, kind: type[_T]) -> _T:
    """`body[key]`, which must be exactly of type `kind`: a bool is no int."""
    value = body.get(key, _MISSING)
    if type(value) is not kind:
        found = "is missing" if value is _MISSING else f"must be of type {kind.__name__}, not {_kind(value)}"
        raise ValueError(f"{key} {found}")
    return value


def _integer(body: Mapping[str, Any], key: str, low: int, high: int) -> int:
    value = _field(body, key, int)
    if not low <= value <= high:
        raise ValueError(f"{key} is out of range ({low} to {high})")
    return value


def _hlc(body: Mapping[str, Any], key: str) -> HLC:
    stamp = _field(body, key, dict)
    node = _integer(stamp, "node_id", *_UINT32)
    return HLC(
        _integer(stamp, "physical_time", *_INT64),
        _integer(stamp, "logical_count", *_INT32),
        node - 2**32 if node > _INT32[1] else node,
    )


def _status(word: str) -> ObservationStatus:
    try:
        return ObservationStatus(word)
    except ValueError:
        raise ValueError(f"unknown status {_cut(ascii(word))}") from None


def _artifact(body: object) -> ArtifactRef:
    if not isinstance(body, dict):
        raise ValueError(f"an artifact must be an object, not {_kind(body)}")
    word, value = _field(body, "type", str), _field(body, "value", str)
    try:
        return ArtifactRef(ArtifactType(word), value)
    except ValueError:
        raise ValueError(f"unknown type of artifact {_cut(ascii(word))}") from None


# The two characters of plain base64 that are foreign to base64url become one that is foreign to both.
_FROM_URLSAFE = bytes.maketrans(b"-_+/", b"+/!!")
_PORTION = 2**20  # characters; whole groups of four


def _payload(text: str) -> bytes:
    """The bytes of a base64url text, padded fully or not at all; raises `ValueError` when it is anything else.

    A long one is decoded in portions: at once it would be in memory several times more.
    """
    given = len(text[-4:]) - len(text[-4:].rstrip("="))
    length = len(text) - given
    padding = -length % 4
    if padding == 3 or given not in {0, padding}:
        raise ValueError("payload is not base64url: its length or padding is wrong")
    if length <= _PORTION:
        return _plain_bytes(text[:length], padding)
    payload = io.BytesIO()
    for begin in range(0, length, _PORTION):
        end = min(begin + _PORTION, length)
        payload.write(_plain_bytes(text[begin:end], padding if end == length else 0))
    return payload.getvalue()


def _plain_bytes(text: str, padding: int) -> bytes:
    """The bytes of a base64url text without its padding."""
    try:
        return binascii.a2b_base64(text.encode().translate(_FROM_URLSAFE) + b"=" * padding, strict_mode=True)
    except binascii.Error as error:
        raise ValueError("payload is not base64url: it has a foreign character") from error
