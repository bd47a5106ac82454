"""What a stream process and its worker say to each other, as frames of a `Channel`.

| frame | way | header | body |
| --- | --- | --- | --- |
| job | to the worker | `t=job`, `id`, `s` session, `a` attempt, `f` fence, `q` unit, `n` size of its batch | job JSON |
| stop | to the worker | `t=stop`: end before the next job | |
| ready | from it | `t=ready`: the handler is imported | |
| failed | from it | `t=failed`, `error`: it could not be; the worker ends | |
| sub | from it | `t=sub`, `id`, `sizes`: follow-up jobs of a job, before its out | their JSON, end to end |
| out | from it | `t=out`, `id`, `ok` (seconds of a plain success) or `r` (a result); `w`: `Out.unread`, if any | |
| dropped | from it | `t=dropped`, `q`: a unit that was called back and is not started | |
| spent | from it | `t=spent`, `reason`: it ends, and another one is to run what it had | |

Jobs sent before are queued in the worker and run one after the other, in order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from queuekit.status import ObservationStatus
from workerpool.outcome import Result, ResultKind
from workerpool.process.channel import Channel, ChannelError, Frame

_SUB_BYTES = 1024 * 1024
_HEADER_BYTES = 4096


# -- the stream's end


def send_job(
    channel: Channel,
    job_id: str,
    data: bytes,
    *,
    session: str,
    attempt: int,
    fence: int,
    together: int = 1,
    number: int = 1,
) -> None:
    """Queue one job (`data`: its file's bytes). Jobs of a batch follow each other; the first one says how many.

    `number`: of the unit, growing: a worker does not start what `Row.recall` has called back.
    """
    header = {"t": "job", "id": job_id, "s": session, "a": attempt, "f": fence, "q": number}
    channel.send({**header, "n": together} if together != 1 else header, data)


def check_fits(channel: Channel, jobs: Iterable[bytes]) -> None:
    """Raise `ChannelError` unless each of these jobs fits into a frame."""
    for data in jobs:
        if len(data) + _HEADER_BYTES > channel.max_frame:
            raise ChannelError(f"a job of {len(data)} bytes is larger than a frame may be")


def send_stop(channel: Channel) -> None:
    """Queue the wish that the worker ends before its next job, with exit code 0."""
    channel.send({"t": "stop"})


@dataclasses.dataclass(frozen=True, slots=True)
class Ready:
    """The worker has imported its handler and waits for jobs."""


@dataclasses.dataclass(frozen=True, slots=True)
class Failed:
    """The worker cannot import its handler and ends. `error`: why, with the traceback."""

    error: str


@dataclasses.dataclass(frozen=True, slots=True)
class Out:
    """How one job's run ended.

    `unread`: when it had (monotonic ns), and how many bytes that were written to standard error were not read yet then;
    None: none were.
    """

    job_id: str
    result: Result
    unread: tuple[int, int] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Dropped:
    """The worker has found a unit called back and will not start it. `number`: the unit's."""

    number: int


@dataclasses.dataclass(frozen=True, slots=True)
class Spent:
    """The worker is of no use any more and ends; what it had without an outcome is to run elsewhere, charging nobody.

    `reason`: what it has no more of, for the log.
    """

    reason: str


Message = Ready | Failed | Out | Dropped | Spent


class WorkerInbox:
    """Reads one worker's frames; keeps follow-up jobs until the outcome that they belong to."""

    def __init__(self) -> None:
        self._submitted: dict[str, list[bytes]] = {}

    def read(self, frames: Iterable[Frame]) -> list[Message]:
        """The messages in these frames. Raises `ChannelError` for what no worker of ours sends: kill it then."""
        try:
            return [message for frame in frames if (message := self._read(frame)) is not None]
        except (LookupError, TypeError, ValueError) as error:
            raise ChannelError(f"the worker sent an impossible frame: {type(error).__name__}: {error}") from error

    def _read(self, frame: Frame) -> Message | None:
        header = frame.header
        match header["t"]:
            case "out":
                return self._read_out(header)
            case "sub":
                self._submitted.setdefault(_text(header["id"]), []).extend(_split(frame.body, header["sizes"]))
                return None
            case "ready":
                return Ready()
            case "failed":
                return Failed(_text(header["error"]))
            case "dropped":
                return Dropped(int(header["q"]))
            case "spent":
                return Spent(_text(header["reason"]))
            case unknown:
                raise ValueError(f"a frame of type {unknown!r}")

    def _read_out(self, header: dict[str, Any]) -> Out:
        job_id = _text(header["id"])
        submitted = tuple(self._submitted.pop(job_id, ()))
        if "ok" in header:
            result = _plain_success(float(header["ok"]))
        else:
            result = Result.from_dict({**header["r"], "submitted": []})
        if submitted and result.kind is ResultKind.SUCCESS:
            result = dataclasses.replace(result, submitted=submitted)
        return Out(job_id, result, _pair(header["w"]) if "w" in header else None)


# -- the worker's end


def send_ready(channel: Channel) -> None:
    """Queue `Ready`."""
    channel.send({"t": "ready"})


def send_failed(channel: Channel, error: str) -> None:
    """Queue `Failed`."""
    channel.send({"t": "failed", "error": error})


def send_dropped(channel: Channel, number: int) -> None:
    """Queue `Dropped`."""
    channel.send({"t": "dropped", "q": number})


def send_spent(channel: Channel, reason: str) -> None:
    """Queue `Spent`; nothing may follow it."""
    channel.send({"t": "spent", "reason": reason})


def send_out(channel: Channel, job_id: str, result: Result, unread: tuple[int, int] | None = None) -> None:
    """Queue `Out`, with its follow-up jobs before it. A result that is too large becomes a failed run that says so."""
    head: dict[str, object] = {"t": "out", "id": job_id}
    if unread is not None:
        head["w"] = unread
    try:
        _send_submitted(channel, job_id, result.submitted)
        _send_result(channel, head, result)
    except ChannelError as error:
        failed = Result.failed(f"its outcome is too large: {error}", run_seconds=result.run_seconds)
        _send_result(channel, head, failed)


def _send_result(channel: Channel, head: dict[str, object], result: Result) -> None:
    if result.status is ObservationStatus.DONE and not result.artifacts:
        channel.send({**head, "ok": round(result.run_seconds, 6)})
    else:
        values = dataclasses.replace(result, submitted=()).to_dict()
        del values["submitted"]
        channel.send({**head, "r": values})


def _send_submitted(channel: Channel, job_id: str, jobs: Sequence[bytes]) -> None:
    for portion in _portions(jobs):
        channel.send({"t": "sub", "id": job_id, "sizes": list(map(len, portion))}, b"".join(portion))


def _portions(jobs: Sequence[bytes]) -> Iterable[list[bytes]]:
    """The jobs in order, about a MiB at a time; a larger one alone."""
    portion: list[bytes] = []
    for job in jobs:
        if portion and sum(map(len, portion)) + len(job) > _SUB_BYTES:
            yield portion
            portion = []
        portion.append(job)
    if portion:
        yield portion


def _split(body: bytes, sizes: Sequence[int]) -> list[bytes]:
    if sum(sizes) != len(body) or any(size < 0 for size in sizes):
        raise ValueError("sizes that do not add up")
    jobs, begin = [], 0
    for size in sizes:
        jobs.append(body[begin : begin + size])
        begin += size
    return jobs


def _plain_success(seconds: float) -> Result:
    return Result(kind=ResultKind.SUCCESS, status=ObservationStatus.DONE, run_seconds=seconds)


def _pair(value: object) -> tuple[int, int]:
    match value:
        case [int(at_ns), int(count)] if count >= 0:
            return at_ns, count
    raise TypeError(f"{value!r} where a time and a number belong")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} where text belongs")
    return value
