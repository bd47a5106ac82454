"""The job: what a producer hands over and a consumer gets, and the delivery record that travels inside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from queuekit.hlc import HLC
from queuekit.ids import JobID, SessionID, StreamID

DELIVERY = "delivery"
MAX_ERRORS = 5
MAX_ERROR_BYTES = 4096


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One unit of work. Values are kept as given; a backend checks them on `send`.

    `id` and `stream_id`: text that fits into a file name; `submitted_at`: the producer's timestamp; `priority`: an
    int64 that is carried and never orders anything; `payload`: bytes, never looked into; `extensions`: JSON values by
    key, carried unchanged (the key `delivery` is reserved).
    """

    id: JobID
    stream_id: StreamID
    submitted_at: HLC
    priority: int = 50
    payload: bytes = b""
    extensions: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        # Plain text gets its meaning; anything else stays as it is, for `send` to refuse (`str(None)` is no identity).
        if type(self.id) is not JobID and isinstance(self.id, str):
            object.__setattr__(self, "id", JobID(self.id))
        if type(self.stream_id) is not StreamID and isinstance(self.stream_id, str):
            object.__setattr__(self, "stream_id", StreamID(self.stream_id))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A job that this consumer has, and the session of the drain call that claimed it."""

    job: Job
    session_id: SessionID


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What happened to a job so far: runs that failed, workers it took with it, and the last errors (newest last)."""

    attempt: int = 0
    crashes: int = 0
    errors: tuple[str, ...] = ()

    @classmethod
    def of(cls, job: Job) -> Delivery:
        """The record inside the job; a missing or malformed one counts as a fresh one."""
        record = job.extensions.get(DELIVERY)
        if not isinstance(record, Mapping):
            return cls()
        attempt, crashes, errors = record.get("attempt", 0), record.get("crashes", 0), record.get("errors", [])
        if not (_is_count(attempt) and _is_count(crashes) and isinstance(errors, list)):
            return cls()
        if not all(isinstance(error, str) for error in errors):
            return cls()
        return cls(attempt=attempt, crashes=crashes, errors=tuple(errors[-MAX_ERRORS:]))

    def failed(self, error: str, *, crashed: bool = False) -> Delivery:
        """The record after one more failed run; an empty `error` adds nothing to the list."""
        return Delivery(
            attempt=self.attempt + 1,
            crashes=self.crashes + crashed,
            errors=(*self.errors, clip(error))[-MAX_ERRORS:] if error else self.errors,
        )

    def onto(self, job: Job) -> Job:
        """The job with this record in place of its own; everything else in `extensions` stays."""
        extensions = dict(job.extensions)
        if self == Delivery():
            extensions.pop(DELIVERY, None)
        else:
            extensions[DELIVERY] = {"attempt": self.attempt, "crashes": self.crashes, "errors": list(self.errors)}
        return dataclasses.replace(job, extensions=extensions)


def clip(text: str, limit: int = MAX_ERROR_BYTES) -> str:
    """`text` as valid Unicode of at most `limit` bytes of UTF-8: control characters and lone surrogates are escaped."""
    kept = text if len(text) <= limit else text[:limit]
    safe = "".join(
        c if c in "\n\t" or c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in kept
    )
    data = safe.encode()
    return safe if len(data) <= limit else data[:limit].decode(errors="ignore")


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**31
