"""Every error that queuekit raises: one class per cause, the facts as attributes.

All derive from `QueueError`. An error of the operating system is kept as ``__cause__``. The message is built by the
class, so that the same fault always reads the same; the docstring says what a caller should do about it.
"""

from __future__ import annotations

import os


class QueueError(Exception):
    """Root of all errors of this package; catch it to catch them all.

    The message is always valid Unicode, also when it names a file whose name is not: it can be logged and sent on.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(message.encode(errors="backslashreplace").decode())


class DirectoryCreationFailed(QueueError):
    """A folder of the queue cannot be made or opened. Look at its parent's permissions and at the disk, then try again.

    Attributes: `path`.
    """

    def __init__(self, path: str | os.PathLike[str], reason: str = "") -> None:
        self.path = os.fspath(path)
        self.reason = reason
        super().__init__(f"cannot use the queue folder {self.path!r}" + (f": {reason}" if reason else ""))


class WriteFailed(QueueError):
    """A job or signal could not be made durable. Nothing was accepted: send it again once the cause is gone.

    Its `__cause__` is the error of the system or the database; None: its values are refused, now and ever.
    Attributes: `what` (the file or job), `reason`.
    """

    def __init__(self, what: str, reason: str) -> None:
        self.what = what
        self.reason = reason
        super().__init__(f"could not write {what}: {reason}")


class RenameFailed(QueueError):
    """A move between two folders of the queue failed; the file is still where it was. Try again later.

    Attributes: `source`, `destination`, `reason`.
    """

    def __init__(self, source: str, destination: str, reason: str) -> None:
        self.source = source
        self.destination = destination
        self.reason = reason
        super().__init__(f"could not move {source} to {destination}: {reason}")


class DecodingFailed(QueueError):
    """Bytes are not a valid job or signal. A drain never raises it: it quarantines the file instead.

    Attributes: `job_id` (None when it could not be read), `reason`.
    """

    def __init__(self, reason: str, job_id: str | None = None) -> None:
        self.job_id = job_id
        self.reason = reason
        super().__init__(f"cannot decode {'job ' + repr(job_id)[:100] if job_id else 'these bytes'}: {reason}")


class UnknownTool(QueueError):
    """A tool is not on the caller's allow-list. Attributes: `name`."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"unknown tool {name!r}")


class JobNotFound(QueueError):
    """No job with this id is in a state from which the verb can act (a reply: it is not in flight).

    For a worker this means that somebody else has the job now: drop the outcome. Attributes: `id`.
    """

    def __init__(self, id: str, detail: str = "") -> None:
        self.id = id
        self.detail = detail
        super().__init__(f"job {id!r} not found" + (f": {detail}" if detail else ""))


class WatcherFailed(QueueError):
    """Waiting for changes of the queue failed in a way that polling cannot replace. Attributes: `detail`."""

    def __init__(self, detail: str) -> None:
        self.detail = detail
        super().__init__(f"cannot watch the queue: {detail}")


class StaleTmpFile(QueueError):
    """A file in tmp/ is older than a write can take. Attributes: `path`, `age` (seconds)."""

    def __init__(self, path: str, age: float) -> None:
        self.path = path
        self.age = age
        super().__init__(f"{path} was left behind {age:.0f} s ago")


class BackendUnavailable(QueueError):
    """The store cannot be read or locked right now. Nothing was changed: wait and try again. Attributes: `detail`."""

    def __init__(self, detail: str) -> None:
        self.detail = detail
        super().__init__(f"the queue is not available: {detail}")


class InvalidTerminalStatus(QueueError):
    """A job cannot end with this status (`running` is not an end). Attributes: `status`."""

    def __init__(self, status: str) -> None:
        self.status = status
        super().__init__(f"{status!r} is not a terminal status: use done, done_with_concerns, needs_context or blocked")


class IllegalTransition(QueueError):
    """A verb was used on a job in a state that does not allow it; nothing changed. Attributes: `verb`, `state`."""

    def __init__(self, verb: str, state: str, id: str = "") -> None:
        self.verb = verb
        self.state = state
        self.id = id
        super().__init__(f"cannot {verb} {'job ' + repr(id) if id else 'a job'} that is {state}")


class DrainTimeout(QueueError):
    """No progress was seen for the whole timeout of `await_drain`.

    A non-zero `in_flight` means a stalled worker, a non-zero `pending` that nobody claims.
    Attributes: `pending`, `in_flight` (jobs, as last observed).
    """

    def __init__(self, pending: int, in_flight: int) -> None:
        self.pending = pending
        self.in_flight = in_flight
        super().__init__(f"the queue made no progress: {pending} pending, {in_flight} in flight")


class InvalidIdentifier(QueueError):
    """A stream or job id cannot be part of a file name, or a job cannot be sent as it is.

    Attributes: `id`, `reason` (`empty`, `dot component`, `path separator`, `control character`, …).
    """

    def __init__(self, id: str, reason: str) -> None:
        self.id = id
        self.reason = reason
        shown = id if len(id) <= 80 else id[:77] + "..."
        super().__init__(f"invalid identifier {shown!r}: {reason}")


class LeaseLost(QueueError):
    """The stream is leased to somebody else (or nobody). Stop claiming and replying, and drop every claim you had.

    Attributes: `stream`, `holder` (the owner found in the lease, None when there is none).
    """

    def __init__(self, stream: str, holder: str | None) -> None:
        self.stream = stream
        self.holder = holder
        super().__init__(f"the lease of stream {stream!r} is held by {holder or 'nobody'}")


def system_error(error: BaseException) -> OSError | None:
    """The error of the operating system that this one is, or that it was raised for; None when there is none."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return cause if isinstance(cause, OSError) else None
