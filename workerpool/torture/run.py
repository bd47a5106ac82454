"""One run: a fresh folder, the job delivered until it has ended, then its effects.

    prepare → deliver, until the pool's policy says that the job has ended → read the effects

What is decided after each delivery is a pool's own decision (`workerpool.policy`); only the backoff is not waited for.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping

from queuekit.job import Delivery, Job
from queuekit.status import ObservationStatus
from queuekit.wire import decode_job
from workerpool.config import StreamConfig
from workerpool.errors import PoolError
from workerpool.outcome import ResultKind
from workerpool.policy import Block, Reply, RetryAt, settle, settle_crash
from workerpool.torture.effects import Watched
from workerpool.torture.points import Place, Point, PointKind
from workerpool.torture.rig import Cut, Delivered, Rig, Surrounding

MOST_DELIVERIES = 30
HOW_IT_ENDED = "how the job ended"
FOLLOW_UPS = "the follow-up jobs"
_OUTPUT_BYTES = 4096


class CannotSetUp(PoolError):
    """A run cannot be made: its command failed, or the handler cannot be imported. Attribute: `reason`."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What every run starts from.

    `copied`: files and folders, absolute, that are copied into its folder; `command`: a shell command that is run there
    then, "" = none; `environ`: set for it, the handler and the commands of `watched`, with `{}` for the folder.
    """

    watched: Watched
    copied: tuple[str, ...] = ()
    command: str = ""
    environ: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A run. `effects`: what it left, how the job ended and its follow-up jobs included; `completed`: whether it ended
    otherwise than blocked; `deliveries`: each one; `story`: the same in words; `error`: the last run's, "" = none;
    `printed`: the end of what the handler printed; `folder`: where it worked."""

    effects: dict[str, str]
    completed: bool
    deliveries: tuple[Delivered, ...]
    story: tuple[str, ...]
    error: str
    printed: str
    folder: str

    @property
    def counts(self) -> Mapping[Place, int]:
        """The lines of the first delivery."""
        return self.deliveries[0].counts


class Runner:
    """Makes runs, one after the other. `home`: a folder for theirs."""

    def __init__(self, rig: Rig, stream: StreamConfig, setting: Setting, home: str) -> None:
        self._rig = rig
        self._stream = dataclasses.replace(
            stream, retries=max(1, stream.retries), max_crashes=max(2, stream.max_crashes)
        )  # less than that would never run a killed job again
        self._setting = setting
        self._home = home
        self._number = 0

    def run(self, job: Job, *, limit: float, point: Point | None = None, count: bool = False) -> Ran:
        """Deliver the job until it has ended; its first delivery is killed at `point`, or has its lines counted.

        `limit`: seconds for each delivery. Raises `CannotSetUp`; `OSError` when the system does not give what it needs.
        The folder stays until `forget`.
        """
        at = self._prepare()
        journey = _Journey(job, self._stream)
        while journey.decision is None:
            first = not journey.deliveries
            journey.note(
                self._rig.deliver(
                    journey.job,
                    at,
                    attempt=journey.delivery.attempt + 1,
                    fence=len(journey.deliveries) + 1,
                    limit=limit,
                    point=point if first else None,
                    count=count and first,
                ),
                point if first else None,
            )
        effects = self._setting.watched.read(at.folder, at.environ)
        return journey.told({**effects, **journey.own_effects()}, at)

    def absent(self, ran: Ran) -> list[str]:
        """The paths that were to be compared, and that a run has left nothing at."""
        return self._setting.watched.absent(ran.effects)

    def forget(self, ran: Ran) -> None:
        """Remove a run's folder."""
        shutil.rmtree(os.path.dirname(ran.folder), ignore_errors=True)

    def _prepare(self) -> Surrounding:
        self._number += 1
        base = os.path.join(self._home, f"{self._number:04d}")
        folder, temporary = os.path.join(base, "folder"), os.path.join(base, "tmp")
        os.mkdir(base, 0o700)
        os.mkdir(folder)
        os.mkdir(temporary)
        for source in self._setting.copied:
            _copy(source, os.path.join(folder, os.path.basename(source)))
        environ = {name: value.replace("{}", folder) for name, value in self._setting.environ.items()}
        if self._setting.command:
            self._set_up(self._setting.command, folder, environ, os.path.join(base, "setup"))
        return Surrounding(folder=folder, temporary=temporary, environ=environ, output=os.path.join(base, "output"))

    def _set_up(self, command: str, folder: str, environ: Mapping[str, str], output: str) -> None:
        with open(output, "w+b") as file:
            done = subprocess.run(
                ["sh", "-c", command],
                cwd=folder,
                env={**os.environ, **environ},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                check=False,
            )
        if done.returncode:
            raise CannotSetUp(f"the set-up command failed with exit code {done.returncode}: {_tail(output)}")


class _Journey:
    """A job from its first delivery to its end."""

    def __init__(self, job: Job, stream: StreamConfig) -> None:
        self._first = job
        self._stream = stream
        self._follow_ups: dict[bytes, None] = {}
        self._error = ""
        self.delivery = Delivery()
        self.deliveries: list[Delivered] = []
        self.story: list[str] = []
        self.decision: Reply | Block | None = None

    @property
    def job(self) -> Job:
        """The job as it is delivered next."""
        return self.delivery.onto(self._first)

    def note(self, delivered: Delivered, point: Point | None) -> None:
        """What came of a delivery, and with it what becomes of the job."""
        self.deliveries.append(delivered)
        if delivered.cut is Cut.UNLOADED:
            raise CannotSetUp(delivered.why)
        if len(self.deliveries) > MOST_DELIVERIES:
            raise CannotSetUp(f"each of {MOST_DELIVERIES} workers in turn was spent before the job had ended")
        self._error = delivered.why if delivered.result is None else delivered.result.error
        if delivered.result is not None and delivered.result.kind is ResultKind.SUCCESS:
            self._follow_ups.update(dict.fromkeys(delivered.result.submitted))
        lost = delivered.killed and point is not None and point.kind is PointKind.REPLY
        decision = None if lost or delivered.cut is Cut.SPENT else self._decide(delivered)
        if isinstance(decision, RetryAt):
            self.delivery = self.delivery.failed(decision.error, crashed=decision.crashed)
        elif decision is not None:
            self.decision = decision
        self.story.append(_told(delivered, decision, lost))

    def _decide(self, delivered: Delivered) -> Reply | RetryAt | Block:
        if delivered.result is not None:
            return settle(delivered.result, self.delivery, self._stream, 0, 0.0)
        return settle_crash(self.delivery, delivered.why, self._stream, 0, 0.0)

    def own_effects(self) -> dict[str, str]:
        """What the queue would have of it: how it ended, and every follow-up job that was sent."""
        decision = self.decision
        artifacts = decision.artifacts if isinstance(decision, Reply) else ()
        status = decision.status if isinstance(decision, Reply) else ObservationStatus.BLOCKED
        own = {HOW_IT_ENDED: "".join([f"{status}\n", *(f"{ref.type}: {ref.value}\n" for ref in artifacts)])}
        if self._follow_ups:
            own[FOLLOW_UPS] = "".join(sorted(map(_follow_up_line, self._follow_ups)))
        return own

    def told(self, effects: dict[str, str], at: Surrounding) -> Ran:
        """All of it."""
        return Ran(
            effects=effects,
            completed=isinstance(self.decision, Reply) and self.decision.status is not ObservationStatus.BLOCKED,
            deliveries=tuple(self.deliveries),
            story=tuple(self.story),
            error=self._error,
            printed=_tail(at.output),
            folder=at.folder,
        )


def _told(delivered: Delivered, decision: Reply | RetryAt | Block | None, lost: bool) -> str:
    if lost:
        return "it succeeded, and its stream process died before that was recorded"
    match decision:
        case Reply(status=status):
            return f"it ended {status}"
        case Block(cause=cause, error=error):
            return f"{_first_line(error)}; a pool would block it: {cause.value}"
        case RetryAt(error=error):
            return _first_line(error) if delivered.cut is None else delivered.why
        case None:
            return delivered.why


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _follow_up_line(data: bytes) -> str:
    job = decode_job(data)
    payload = job.payload.decode(errors="backslashreplace")
    return f"{job.stream_id} {job.id} priority {job.priority} {payload!r} {dict(job.extensions) or ''}".rstrip() + "\n"


def _copy(source: str, target: str) -> None:
    copy: Callable[[str, str], object] = shutil.copytree if os.path.isdir(source) else shutil.copy2
    copy(source, target)


def _tail(path: str) -> str:
    """The end of a file's text; "" when there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _OUTPUT_BYTES))
            return file.read().decode(errors="backslashreplace").strip()
    except FileNotFoundError:
        return ""
