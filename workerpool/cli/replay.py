"""`workerpool replay ID`: the handler run here, in the foreground, on the payload of any known job, settling nothing.

The store is only read, and closed before the handler starts: the job stays where it is, nothing is claimed, no outcome
is written, no follow-up job sent. The run itself is a worker's: the same import, the same call (a list of one job in a
stream with batches), the soft timeout raised inside it, what it left running killed afterwards. Only the hard timeout
kills nobody here, and Ctrl-C reaches the handler.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import os
import resource
import sys
import traceback
from collections.abc import Iterator
from types import TracebackType

import click

import workerpool
from queuekit import Job, QueueKit, decode_job
from queuekit.contract import JobView
from queuekit.job import Delivery
from queuekit.lifecycle import State
from queuekit.status import ObservationStatus
from workerpool import logs
from workerpool.cli import words
from workerpool.cli.main import FAILED, USAGE, Refusal
from workerpool.cli.options import Source, with_source
from workerpool.cli.pools import read_pools, who_runs
from workerpool.cli.show import after_success
from workerpool.cli.store import open_queue
from workerpool.cli.which import id_of
from workerpool.config import LogFormat, PoolConfig, StreamConfig
from workerpool.handlers import Handler, HandlerError, load_handler
from workerpool.locations import board_directory
from workerpool.outcome import Result, ResultKind
from workerpool.process import become_subreaper, child_pids, end_left_overs
from workerpool.worker.context import Surroundings
from workerpool.worker.loop import resource_tracker
from workerpool.worker.run import Limits, WorkItem, run_batch, run_job

_LONGEST_VALUE = 2000
_KIB = 1024
_OWN_FILES = os.path.dirname(os.path.abspath(workerpool.__file__)) + os.sep


@click.command("replay")
@click.argument("job_id", metavar="ID")
@with_source
@click.option("--pdb", "debug", is_flag=True, help="Drop into the debugger where the handler raised.")
@click.pass_context
def replay_command(ctx: click.Context, source: Source, job_id: str, debug: bool) -> None:
    """Run the handler here on the stored payload of a job, whatever its state. Nothing is settled: the job stays where
    it is, and the follow-up jobs that it would have sent are only told.

    The handler's side effects are real. A handler that kills its process ends this command as it would a worker.

    \b
    Exit codes: 0 the run would have succeeded, 1 it would have failed or ended the job blocked, 2 nothing was run
    """
    config = source.load()
    with open_queue(config) as queue:
        view = _find(queue, id_of(queue, job_id))
    stream = _stream_of(view.job, config)
    _warn_if_running(view, config)
    replay = Replay(view.job, stream, config)
    ended = replay.run()
    for label, said in ended.story(stream):
        click.echo(f"  {label:<10} {said}")
    click.echo("nothing was settled: for the queue this run has not happened")
    if ended.well and view.state is State.DONE:
        for step in after_success(view, config):
            click.echo(f"  {'next':<10} {step}")
    if debug and ended.error is not None:
        _debug(ended.error)
    ctx.exit(0 if ended.well else FAILED)


def _find(queue: QueueKit, job_id: str) -> JobView:
    """The job; raises `Refusal` for one that is not there, or is no job."""
    view = queue.look_up(job_id)
    if view is not None:
        return view
    if queue.backend.put_aside(job_id) is not None:
        raise Refusal("this could not be read as a job: there is no payload to run a handler on", USAGE)
    raise Refusal(f"no job {words.printable(job_id)}: it was never sent here, or its record has been pruned", USAGE)


def _stream_of(job: Job, config: PoolConfig) -> StreamConfig:
    if config.path is None:
        raise Refusal("replay needs a configuration: it says which handler the stream has", USAGE)
    stream = config.stream(job.stream_id)
    if stream is None:
        name = words.printable(job.stream_id)
        raise Refusal(f"{config.path} has no stream {name}, so there is no handler for this job", USAGE)
    return stream


def _warn_if_running(view: JobView, config: PoolConfig) -> None:
    """A handler that runs twice at a time on one job is what a pool never does."""
    found = who_runs(read_pools(board_directory(config)), view.job.id) if view.state is State.CUR else None
    if found is not None and found[0].alive:
        name = words.printable(found[1].name)
        click.echo(f"note: it is running in {name} (pid {found[1].pid}) now; this run is beside that one", err=True)


def _debug(error: BaseException) -> None:
    import pdb

    if error.__traceback__ is not None:
        pdb.post_mortem(error.__traceback__)


# -- the run


class Replay:
    """One run of a stream's handler on one job, in this process."""

    def __init__(self, job: Job, stream: StreamConfig, config: PoolConfig) -> None:
        """Imports the handler; raises `Refusal` when it cannot be."""
        self._job = job
        self._stream = stream
        self._progress = _Progress()
        self._surroundings = Surroundings(
            stop=lambda: False, progress=self._progress.show, max_job_bytes=config.store.max_job_bytes
        )
        log = dataclasses.replace(config.log, file="")
        logs.configure(dataclasses.replace(log, format=LogFormat.TEXT), "replay")
        faulthandler.enable()
        become_subreaper()
        try:
            self._handler = load_handler(stream.handler, config.handlers.path)
        except HandlerError as error:
            raise Refusal(str(error), USAGE) from error
        self._helpers = child_pids()

    def run(self) -> Ended:
        """Call the handler once and say how that ended."""
        attempt = Delivery.of(self._job).attempt + 1
        click.echo(f"run {attempt} of job {words.printable(self._job.id)}, by {self._stream.handler}")
        watched, pid = _Watched(self._handler), os.getpid()
        result = self._call(watched, WorkItem(job=self._job, attempt=attempt))
        if os.getpid() != pid:  # the handler has forked, and its child has come back here
            os._exit(0)
        if watched.error is not None:
            watched.error.__traceback__ = _without_own_frames(watched.error.__traceback__)
        left = end_left_overs(self._helpers | resource_tracker())
        self._progress.end()
        self._handler.close()
        return Ended(result, watched.returned, watched.error, len(left), peak_memory())

    def _call(self, watched: _Watched, item: WorkItem) -> Result:
        limits = Limits(soft=self._stream.soft_timeout, hard=self._stream.timeout)
        if self._stream.batch_size > 1:
            return run_batch(watched, [item], self._surroundings, limits)[0]
        return run_job(watched, item, self._surroundings, limits)


class _Watched:
    """A handler whose last call is kept: a `Result` has only a summary of it."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.is_async = handler.is_async
        self.returned: object = None
        self.error: BaseException | None = None

    def call(self, argument: object, ctx: object, soft_timeout: float = 0.0) -> object:
        try:
            self.returned = self._handler.call(argument, ctx, soft_timeout)
        except BaseException as error:
            self.error = error
            raise
        return self.returned


def _without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """A traceback from the handler's own code on; all of it when there is no such frame."""
    first = trace
    while first is not None and first.tb_frame.f_code.co_filename.startswith(_OWN_FILES):
        first = first.tb_next
    return first or trace


class _Progress:
    """`ctx.progress` on standard error: one line that is written over on a terminal, else a line for each percent."""

    def __init__(self) -> None:
        self._said: object = None
        self._over = sys.stderr is not None and sys.stderr.isatty()

    def show(self, done: int, total: int) -> None:
        step = done * 100 // total if total > 0 else done
        if step == self._said:
            return
        self._said = step
        text = f"progress {done:,} of {total:,}"
        click.echo(f"\r\x1b[K{text}" if self._over else text, nl=not self._over, err=True)

    def end(self) -> None:
        if self._over and self._said is not None:
            click.echo(err=True)


def peak_memory() -> tuple[int, int]:
    """The most memory that this process has had resident, and the most that one of its children has had; bytes."""
    unit = 1 if sys.platform == "darwin" else _KIB
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:  # not what a parent had before exec
            own = next(int(line.split()[1]) * _KIB for line in file if line.startswith("VmHWM"))
    except (FileNotFoundError, StopIteration):
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return own, children


# -- telling


@dataclasses.dataclass(frozen=True, slots=True)
class Ended:
    """How the run ended. `left`: how many processes it left running; `memory`: see `peak_memory`."""

    result: Result
    returned: object
    error: BaseException | None
    left: int
    memory: tuple[int, int]

    @property
    def well(self) -> bool:
        """Whether a pool would have taken it for a success."""
        return self.result.kind is ResultKind.SUCCESS and self.result.status is not ObservationStatus.BLOCKED

    def story(self, stream: StreamConfig) -> Iterator[tuple[str, str]]:
        """It as lines of `(label, text)`; all text is fit for a terminal."""
        yield from self._end()
        for artifact in self.result.artifacts:
            yield "artifact", f"{artifact.type}: {words.printable(artifact.value)}"
        for data in self.result.submitted:
            job = decode_job(data)
            to = f"to {words.printable(job.stream_id)}: {job.id}, {words.size(len(job.payload))}"
            yield "would send", f"{to}, priority {job.priority}"
        yield "took", f"{words.duration(self.result.run_seconds)}{self._over(stream)}"
        own, children = self.memory
        yield "memory", f"at most {words.size(own)}{f', a child of it {words.size(children)}' if children else ''}"
        if self.left:
            yield "left", f"running: {self.left}, killed by now, as a pool does it"

    def _end(self) -> Iterator[tuple[str, str]]:
        if self.error is not None:
            lines = "".join(traceback.format_exception(self.error)).rstrip().splitlines()
            yield "raised", words.printable(lines[-1] if lines else type(self.error).__name__)
            for line in lines:
                yield "", words.printable(line)
        else:
            yield "returned", _clipped(self.returned)
        if self.result.status is not None:
            yield "outcome", f"{self.result.status}"
            return
        words_of_it = {ResultKind.DISCARD: "discarded: a pool would block it at once"}
        yield "outcome", words_of_it.get(self.result.kind, "a failed run")
        if self.error is None:
            for line in self.result.error.splitlines():
                yield "", words.printable(line)
        elif self.result.retry_after is not None:
            yield "", f"it asks for another run after {words.duration(self.result.retry_after)}"

    def _over(self, stream: StreamConfig) -> str:
        if not stream.timeout or self.result.run_seconds <= stream.timeout:
            return ""
        return f"; a pool would have killed it after {stream.timeout:g} s (timeout)"


def _clipped(value: object) -> str:
    """`repr`, as far as it works and is not too long."""
    try:
        said = repr(value)
    except Exception as error:  # noqa: BLE001  a foreign __repr__ may raise anything
        said = f"<{type(value).__name__}, whose repr raises {type(error).__name__}>"
    said = words.printable(said[: _LONGEST_VALUE + 1])
    return said if len(said) <= _LONGEST_VALUE else f"{said[:_LONGEST_VALUE]}…"
