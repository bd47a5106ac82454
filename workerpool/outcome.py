"""How one run of a handler ended: what handlers say (`Outcome`, `Retry`, `Discard`), what a worker reports (`Result`).

A handler returns None (done), a terminal `ObservationStatus`, or an `Outcome`; it raises to fail. Anything else it
returns is a failed run with a message that says so. `classify` and `classify_error` turn either into a `Result`: the
one value that travels from the worker to its stream process, as JSON values (`to_dict`, `from_dict`). What comes out
of `from_dict` was checked field by field, because a handler shares its process with the pipe.

Nothing here decides what happens to the job; `workerpool.policy` does.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import enum
import errno
import importlib
import math
import os
import traceback
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from queuekit.completion import ArtifactRef, ArtifactType
from queuekit.errors import InvalidTerminalStatus
from queuekit.job import MAX_ERROR_BYTES, clip
from queuekit.status import ObservationStatus, check_terminal

MAX_RETRY_AFTER = 3650 * 86400.0
_MAX_SUMMARY_BYTES = 1024
_MAX_FRAMES = 12
_MAX_MEMBERS = 5
_MAX_CAUSES = 3
_NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})
_OWN_FILES = os.path.dirname(os.path.abspath(__file__)) + os.sep
_IMPORTING = ("<frozen importlib", os.path.dirname(importlib.__file__) + os.sep)


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What a handler returns to end its job with a status and artifacts.

    `status`: a terminal `ObservationStatus` or its word. Raises `InvalidTerminalStatus` for any other, `TypeError` when
    `artifacts` holds something else than `ArtifactRef`s.
    """

    status: ObservationStatus | str
    artifacts: Sequence[ArtifactRef] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "status", check_terminal(self.status))
        object.__setattr__(self, "artifacts", _checked_artifacts(self.artifacts))


class Retry(Exception):
    """Raise it in a handler: this run failed, try again, but not before `after`.

    `after`: seconds or a timedelta, None = the stream's backoff; `reason`: kept as the run's error. It counts as a
    run like any failure, so a job that always retries ends `blocked`. Raises `ValueError` for an `after` that is
    negative, not finite or over ten years, `TypeError` for one that is no number.
    """

    after: float | None = None
    reason: str = ""

    def __init__(self, after: float | datetime.timedelta | None = None, reason: str = "") -> None:
        self.after = None if after is None else _checked_seconds(after)
        self.reason = str(reason)
        super().__init__(self.reason or "the handler asked for another run")


class Discard(Exception):
    """Raise it in a handler: no run of this job can succeed; it ends `blocked` at once, with the reason kept."""

    reason: str = ""

    def __init__(self, reason: str = "") -> None:
        self.reason = str(reason)
        super().__init__(self.reason or "the handler discarded the job")


class ResultKind(enum.StrEnum):
    """The ways in which a run can end that the pool treats differently."""

    SUCCESS = "success"
    FAILED = "failed"
    RETRY = "retry"
    DISCARD = "discard"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How one run of one job ended.

    `status`: the terminal status, of a success only; `error`: valid Unicode of at most 4 KiB, of everything else;
    `retry_after`: seconds, of a retry, None = the stream's backoff; `submitted`: encoded follow-up jobs, of a success
    only, to be made durable before the reply; `run_seconds`: how long the handler ran; `lacked_descriptors`: its error
    came of there being no descriptor left, known only in the process that it was raised in.
    """

    kind: ResultKind
    status: ObservationStatus | None = None
    artifacts: tuple[ArtifactRef, ...] = ()
    error: str = ""
    retry_after: float | None = None
    submitted: tuple[bytes, ...] = ()
    run_seconds: float = 0.0
    lacked_descriptors: bool = False

    def __post_init__(self) -> None:
        if (self.kind is ResultKind.SUCCESS) != (self.status is not None):
            raise ValueError(f"a {self.kind} result {'needs a' if self.status is None else 'has no'} status")
        if self.status is not None:
            check_terminal(self.status)

    @classmethod
    def failed(cls, error: str, *, run_seconds: float = 0.0) -> Result:
        """A failed run that no exception tells of: a timeout, a worker that died."""
        return cls(kind=ResultKind.FAILED, error=clip(error), run_seconds=run_seconds)

    def to_dict(self) -> dict[str, Any]:
        """Itself as JSON values."""
        return {
            "kind": self.kind.value,
            "status": None if self.status is None else self.status.value,
            "artifacts": [[ref.type.value, ref.value] for ref in self.artifacts],
            "error": self.error,
            "retry_after": self.retry_after,
            "submitted": [base64.b64encode(job).decode() for job in self.submitted],
            "run_seconds": self.run_seconds,
        }

    @classmethod
    def from_dict(cls, values: object) -> Result:
        """The inverse of `to_dict`; raises `ValueError` for anything that `to_dict` cannot have made."""
        try:
            return _read_result(values)
        except (LookupError, TypeError, ValueError, OverflowError, InvalidTerminalStatus) as error:
            raise ValueError(f"not a result: {type(error).__name__}: {error}") from error


def classify(
    returned: object,
    *,
    artifacts: Iterable[ArtifactRef] = (),
    submitted: Iterable[bytes] = (),
    run_seconds: float = 0.0,
) -> Result:
    """The result of a run that returned `returned`; never raises for what a handler did.

    `artifacts`, `submitted`: what the handler handed over while it ran; its outcome's artifacts come after them. A
    wrong return value, or an artifact that cannot be written down, is a failed run, and nothing is submitted.
    """
    try:
        status, own = _read_returned(returned)
        return Result(
            kind=ResultKind.SUCCESS,
            status=status,
            artifacts=_checked_artifacts([*artifacts, *own]),
            submitted=tuple(submitted),
            run_seconds=run_seconds,
        )
    except (TypeError, ValueError, InvalidTerminalStatus) as error:
        return Result.failed(str(error), run_seconds=run_seconds)


def classify_error(error: BaseException, *, run_seconds: float = 0.0) -> Result:
    """The result of a run that raised `error`, whatever it is; never raises.

    `SystemExit`, `KeyboardInterrupt` and their like are a failed run as any other: a handler cannot end its worker.
    """
    if isinstance(error, Discard):
        return Result(kind=ResultKind.DISCARD, error=_reason(error), run_seconds=run_seconds)
    if isinstance(error, Retry):
        after = error.after if error.after is None or _is_wait(error.after) else None
        return Result(kind=ResultKind.RETRY, error=_reason(error), retry_after=after, run_seconds=run_seconds)
    return Result(
        kind=ResultKind.FAILED,
        error=describe_error(error),
        run_seconds=run_seconds,
        lacked_descriptors=_came_of(error, _NO_DESCRIPTOR),
    )


def describe_error(error: BaseException) -> str:
    """`Type: message` and below it the innermost lines of its traceback: valid Unicode of at most 4 KiB.

    Never raises: an exception that cannot even be formatted is told by its type alone.
    """
    try:
        told = traceback.TracebackException.from_exception(error)
        head = _summary(told)
        frames = "".join(_innermost(told.stack).format()).rstrip()
    except Exception as failure:  # noqa: BLE001  user code runs in here: __str__, __notes__, attributes of a SyntaxError
        return clip(f"{type(error).__name__} (cannot be shown: {type(failure).__name__})")
    kept = _tail(frames, MAX_ERROR_BYTES - len(head.encode()) - 1)
    return f"{head}\n{kept}" if kept else head


def _read_returned(returned: object) -> tuple[ObservationStatus, Sequence[ArtifactRef]]:
    if returned is None:
        return ObservationStatus.DONE, ()
    if isinstance(returned, Outcome):
        return check_terminal(returned.status), returned.artifacts
    if not isinstance(returned, ObservationStatus):
        raise TypeError(
            f"the handler returned {_article(type(returned).__name__)}: "
            "return None, an ObservationStatus or an Outcome(status, artifacts)"
        )
    if not returned.is_terminal:
        raise ValueError("the handler returned 'running', which is no end of a job: return a terminal status")
    return returned, ()


def _article(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in set('aeiou') else 'a'} {noun}"


def _checked_artifacts(artifacts: Iterable[object]) -> tuple[ArtifactRef, ...]:
    return tuple(_checked_artifact(ref) for ref in artifacts)


def _checked_artifact(ref: object) -> ArtifactRef:
    if not (isinstance(ref, ArtifactRef) and isinstance(ref.type, ArtifactType) and isinstance(ref.value, str)):
        raise TypeError(f"{_article(type(ref).__name__)} is no artifact: use ArtifactRef.file_path(…) or its siblings")
    try:
        ref.value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the artifact {clip(ref.value, 200)!r} is not valid Unicode") from None
    return ref


def _checked_seconds(after: float | datetime.timedelta) -> float:
    seconds = after.total_seconds() if isinstance(after, datetime.timedelta) else after
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"Retry(after=…) takes seconds or a timedelta, not {_article(type(after).__name__)}")
    if not _is_wait(seconds):
        raise ValueError("Retry(after=…) must be between 0 seconds and ten years")
    return float(seconds)


def _is_wait(seconds: object) -> bool:
    return isinstance(seconds, int | float) and 0 <= seconds <= MAX_RETRY_AFTER  # False for NaN


def _came_of(error: BaseException, numbers: Collection[int]) -> bool:
    """Whether it is a system's error with one of these numbers, or was raised from one, or while one was handled."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        if isinstance(each, OSError) and each.errno in numbers:
            return True
        seen.add(id(each))
        waiting += [each.__cause__, each.__context__]
        waiting += each.exceptions if isinstance(each, BaseExceptionGroup) else ()
    return False


def _reason(error: Retry | Discard) -> str:
    """The reason given; without one the exception that it was raised from, else its own text."""
    if error.reason:
        return clip(str(error.reason))
    return describe_error(error if error.__cause__ is None else error.__cause__)


def _innermost(stack: traceback.StackSummary) -> traceback.StackSummary:
    """The last frames, without the pool's own that called the handler, and without those of the import system."""
    frames = [frame for frame in stack if not frame.filename.startswith(_IMPORTING)]
    while frames and frames[0].filename.startswith(_OWN_FILES):
        del frames[0]
    return traceback.StackSummary.from_list(frames[-_MAX_FRAMES:])


def _summary(told: traceback.TracebackException) -> str:
    """What was raised, what it was raised from, and the members of a group; under 3 KiB."""
    lines = [_one_line(told, _MAX_SUMMARY_BYTES)]
    lines += [f"  with {_one_line(member)}" for member in (told.exceptions or ())[:_MAX_MEMBERS]]
    cause = _cause(told)
    while cause is not None and len(lines) <= _MAX_MEMBERS + _MAX_CAUSES:
        lines.append(f"  from {_one_line(cause)}")
        cause = _cause(cause)
    return "\n".join(lines)


def _one_line(told: traceback.TracebackException, limit: int = 160) -> str:
    parts = list(told.format_exception_only())
    named = next((place for place, part in enumerate(parts) if not part.startswith(" ")), 0)
    return clip("".join([parts[named], *parts[:named], *parts[named + 1 :]]).strip(), limit)  # of a SyntaxError too


def _cause(told: traceback.TracebackException) -> traceback.TracebackException | None:
    return told.__cause__ or (None if told.__suppress_context__ else told.__context__)


def _tail(text: str, room: int) -> str:
    """The last whole lines that fit: the innermost frame is at the end."""
    data = clip(text, 16 * len(text)).encode()
    if len(data) <= room:
        return data.decode()
    return data[-room:].decode(errors="ignore").partition("\n")[2]


def _read_result(values: Any) -> Result:
    status = values["status"]
    return Result(
        kind=ResultKind(values["kind"]),
        status=None if status is None else ObservationStatus(status),
        artifacts=_checked_artifacts([ArtifactRef(ArtifactType(kind), value) for kind, value in values["artifacts"]]),
        error=clip(_text(values["error"])),
        retry_after=None if values["retry_after"] is None else _checked_seconds(values["retry_after"]),
        submitted=tuple(base64.b64decode(job, validate=True) for job in values["submitted"]),
        run_seconds=_finite(values["run_seconds"]),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} where text belongs")
    return value


def _finite(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("not a number of seconds")
    return float(value)


__all__ = ["Discard", "Outcome", "Result", "ResultKind", "Retry", "classify", "classify_error", "describe_error"]
