"""`workerpool send`: one job from the command line, a file or standard input, or a whole file of jobs.

Nothing is sent before everything was judged, and the store is not even opened until then. An interrupt takes effect
between two chunks of a batch, so that the number of jobs it reports is right.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

import click

from queuekit import QueueKit
from queuekit.backends.admission import prepare
from queuekit.clock import ProcessClock, now_ms
from queuekit.ids import JobID, StreamID
from queuekit.job import Job
from queuekit.status import ObservationStatus
from workerpool.cli import words
from workerpool.cli.batch import Defaults, checked_extensions, jobs, judge, open_seekable, parse_json
from workerpool.cli.interrupt import noting_interrupt
from workerpool.cli.main import FAILED, INTERRUPTED, USAGE, Refusal
from workerpool.cli.options import Source, complete_streams, find_source, standard_input
from workerpool.cli.pools import read_pools
from workerpool.cli.store import open_queue
from workerpool.cli.telling import telling_of
from workerpool.config import PoolConfig
from workerpool.locations import board_directory
from workerpool.units import parse_duration

_FIRST_PAUSE, _LONGEST_PAUSE, _LOOK_UP_SECONDS = 0.02, 0.2, 5.0
_LINE_SECONDS = 1.0
_CHUNK = 2000  # jobs sent between two looks at an interrupt


@click.command("send")
@click.argument("stream", shell_complete=complete_streams)
@click.argument("payload", required=False, metavar="[PAYLOAD|@FILE|-]")
@click.argument("rest", metavar="[CONFIG]", nargs=-1)
@click.option("--jsonl", metavar="FILE", help='A batch: {"payload": …} a line, "-" for standard input.')
@click.option("--delay", metavar="DURATION", help="Not before so long from now: 5m, 1h30m.")
@click.option("--at", metavar="TIME", help="Not before then: 2026-12-01T03:00+01:00, with its zone.")
@click.option("--priority", type=int, default=50, show_default=True, help="Carried along; it orders nothing.")
@click.option("--ext", "extensions", multiple=True, metavar="K=JSON", help="A value to carry along; repeatable.")
@click.option("--id", "job_id", metavar="ID", help="The job's id (default: a random one); refused when it is there.")
@click.option("--wait", is_flag=True, help="Wait for the end and print it; exit code 1 if a job ends blocked.")
@click.option("--config", metavar="FILE", help="The configuration (default: WORKERPOOL_CONFIG, else ./config.toml).")
@click.option("--store", metavar="URL", help="The store, instead of the configuration's: dir:FOLDER, or a plain path.")
@click.pass_context
def send_command(
    ctx: click.Context,
    *,
    stream: str,
    payload: str | None,
    rest: tuple[str, ...],
    jsonl: str | None,
    delay: str | None,
    at: str | None,
    priority: int,
    extensions: tuple[str, ...],
    job_id: str | None,
    wait: bool,
    config: str | None,
    store: str | None,
) -> None:
    """Send a job to STREAM and print its id; when it is printed, the job is safe.

    PAYLOAD is text, @FILE the content of a file, - standard input; without it the payload is empty. A text that begins
    with @ is sent through -.

    --id names the job, so that it cannot be sent twice: while a job of that id is kept here, waiting or ended, it is
    refused with exit code 2 and nothing is sent, even if all else is the same. `workerpool show ID` tells what became
    of that one.

    --jsonl sends a file of jobs, one JSON object a line with "payload" (text or JSON) and, as you like, "priority",
    "extensions", "id". The whole file is judged first: with a mistake in it nothing is sent.

    \b
    Exit codes: 0 accepted (--wait: and ended well), 1 --wait: a job ended blocked, 2 nothing was sent because of what
    was asked, 3 the store cannot be used, 130 interrupted
    """
    if jsonl is not None and payload is not None:
        rest, payload = (*rest, payload), None
    config_argument = _only_config(rest, payload)
    if jsonl is not None and job_id is not None:
        raise click.UsageError('--id is for one job; in a batch each line may have an "id"')
    settings = find_source(config_argument, config, store)
    order = _Order(
        source=settings,
        config=settings.load(),
        stream=stream,
        due_ms=_due(delay, at),
        priority=priority,
        extensions=_extensions(extensions),
        wait=wait,
    )
    ctx.exit(order.send_file(jsonl) if jsonl is not None else order.send_one(payload, job_id))


# -- reading what was asked


def _only_config(rest: Sequence[str], payload: str | None) -> str | None:
    """The configuration among the arguments; words of a payload without quotes are told apart from one."""
    if payload is not None and rest and not rest[0].endswith(".toml") and not os.path.lexists(rest[0]):
        shown = words.printable(" ".join((payload, *rest)))
        raise click.UsageError(
            f"one payload was expected, and {words.printable(rest[0])!r} is no configuration file: "
            f"text with spaces needs quotes, such as '{shown}'"
        )
    if len(rest) > 1:
        raise click.UsageError(f"there are too many arguments: {words.printable(' '.join(rest[1:]))}")
    return rest[0] if rest else None


def _due(delay: str | None, at: str | None) -> int | None:
    """When the job is due, ms since the epoch; None: now."""
    if delay is not None and at is not None:
        raise click.UsageError("--delay and --at exclude each other")
    try:
        if delay is not None:
            wait = parse_duration(delay)
            return now_ms() + round(wait * 1000) if wait else None
        return _moment(at) if at is not None else None
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--delay" if delay is not None else "--at") from None


def _moment(text: str) -> int | None:
    example = "write a time with its zone, such as 2026-12-01T03:00+01:00"
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time: {example}") from None
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no zone: {example}")
    due = round(moment.timestamp() * 1000)
    return due if due > now_ms() else None


def _extensions(options: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for option in options:
        key, equals, text = option.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{option!r} is not K=JSON", param_hint="--ext")
        if key in values:
            raise click.BadParameter(f"{key!r} is given twice", param_hint="--ext")
        try:
            values[key] = parse_json(text)
            checked_extensions(values)
        except ValueError as error:
            hint = f"; a text is written {key}='\"…\"'" if "not JSON" in str(error) else ""
            raise click.BadParameter(f"{key}: {error}{hint}", param_hint="--ext") from None
    return values


def read_payload(text: str | None, limit: int) -> bytes:
    """The bytes that the argument means, one more than `limit` at most."""
    if text is None:
        return b""
    if text == "-":
        return standard_input().buffer.read(limit + 1)
    if not text.startswith("@"):
        return os.fsencode(text)
    try:
        with open(text[1:], "rb") as file:
            return file.read(limit + 1)
    except (OSError, ValueError) as error:
        raise Refusal(f"cannot read {words.printable(text[1:])}: {_why(error)}", USAGE) from error


def _why(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


# -- sending


class _Order:
    """What to send, with everything that the command line said about it."""

    def __init__(
        self,
        *,
        source: Source,
        config: PoolConfig,
        stream: str,
        due_ms: int | None,
        priority: int,
        extensions: dict[str, Any],
        wait: bool,
    ) -> None:
        self._config = config
        self._due_ms = due_ms
        self._wait = wait
        self._defaults = Defaults(stream, priority, extensions, config.store.max_job_bytes)
        self._check_stream(source)

    def _check_stream(self, source: Source) -> None:
        stream = self._defaults.stream
        if source.path is None or self._config.stream(stream) is not None:
            return
        from workerpool.config_model import did_you_mean

        known = [each.name for each in self._config.streams]
        near = did_you_mean(stream, known) or f"; there are {', '.join(known)}"
        raise Refusal(f"{source.path} has no stream {words.printable(stream)!r}{near}", USAGE)

    def send_one(self, payload: str | None, job_id: str | None) -> int:
        """Send one job; returns the exit code."""
        limit = self._defaults.max_job_bytes
        job = Job(
            id=JobID(job_id) if job_id is not None else JobID.generate(),
            stream_id=StreamID(self._defaults.stream),
            submitted_at=ProcessClock().send(),
            priority=self._defaults.priority,
            payload=read_payload(payload, limit),
            extensions=self._defaults.extensions,
        )
        if len(job.payload) > limit:
            raise Refusal(f"the payload has over {limit} bytes, [store] max_job_bytes", USAGE)
        prepare(job, limit)
        with open_queue(self._config, create=True) as queue:
            if job_id is not None and queue.look_up(job_id) is not None:
                raise Refusal(f"there is a job {words.printable(job_id)!r} already: workerpool show {job_id}", USAGE)
            self._send_chunk(queue, [job])
            _tell_ids([job.id], words.printable(job.id))
            return self._await(queue, [job.id]) if self._wait else 0

    def send_file(self, path: str) -> int:
        """Judge a file, then send all of it in chunks; returns the exit code."""
        shown = "standard input" if path == "-" else words.printable(path)
        try:
            file = open_seekable(path)
        except (OSError, ValueError) as error:
            raise Refusal(f"cannot read {shown}: {_why(error)}", USAGE) from error
        with file:
            try:
                count, mistakes = judge(file, self._defaults)
            except OSError as error:
                raise Refusal(f"cannot read {shown}: {_why(error)}", USAGE) from error
            for mistake in mistakes:
                click.echo(f"{shown}:{mistake.line}: {words.printable(mistake.reason)}", err=True)
            if mistakes:
                return USAGE
            if not count:
                raise Refusal(f"{shown} holds no jobs", USAGE)
            with open_queue(self._config, create=True) as queue:
                return self._send_all(queue, file, count, shown)

    def _send_all(self, queue: QueueKit, file: IO[bytes], count: int, shown: str) -> int:
        ids: list[str] = []
        line = 0
        with _progress(count) as tell, noting_interrupt() as interrupted:
            try:
                for chunk in _chunks(jobs(file, self._defaults)):
                    if interrupted():
                        break
                    self._send_chunk(queue, [job for _, job in chunk])
                    line = chunk[-1][0]
                    ids += [job.id for _, job in chunk]
                    _tell_ids([job.id for _, job in chunk], words.number(len(ids), "job"))
                    tell(len(ids))
            except BaseException as error:
                stopped = f"{words.number(len(ids), 'job')} of {shown} accepted, up to line {line}, or a few more"
                click.echo(stopped, err=True)
                if isinstance(error, ValueError):
                    raise Refusal(f"{shown} changed while it was read: {error}", FAILED) from error
                raise
        if len(ids) < count:
            click.echo(
                f"interrupted: {words.number(len(ids), 'job')} of {count:,} accepted; go on with line {line + 1}",
                err=True,
            )
            return INTERRUPTED
        return self._await(queue, ids) if self._wait else 0

    def _send_chunk(self, queue: QueueKit, chunk: list[Job]) -> None:
        if self._due_ms is None:
            queue.send_batch(chunk)
            return
        for job in chunk:
            queue.backend.write(job, due_ms=self._due_ms)

    # -- waiting

    def _await(self, queue: QueueKit, ids: list[str]) -> int:
        """Wait for the end of every job and print it; 1 when one ended blocked (or is not known any more)."""
        if not any(pool.alive for pool in read_pools(board_directory(self._config))):
            click.echo("no pool runs now; waiting until one has worked this", err=True)
        return max(_await_one(queue, id) for id in ids)


def _tell_ids(ids: list[str], whom: str) -> None:
    """Print ids of accepted jobs. Raises `Refusal` when that cannot be: then nothing may be sent again blindly."""
    with telling_of(f"{whom} accepted"):
        click.echo("\n".join(map(_shown, ids)))


def _shown(id: str) -> str:
    """An id for whoever reads it: another program gets it as it is, to hand it on."""
    return words.printable(id) if sys.stdout is not None and sys.stdout.isatty() else id


def _await_one(queue: QueueKit, id: str) -> int:
    pause, next_look = _FIRST_PAUSE, time.monotonic() + _LOOK_UP_SECONDS
    while (signal := queue.signal(id)) is None:
        time.sleep(pause)
        pause = min(_LONGEST_PAUSE, pause * 1.5)
        if time.monotonic() >= next_look:
            next_look = time.monotonic() + _LOOK_UP_SECONDS
            if queue.look_up(id) is None and queue.signal(id) is None:
                click.echo(f"{_shown(id)} is not in the store any more", err=True)
                return FAILED
    click.echo(f"{_shown(id)} {signal.status}")
    if signal.status is not ObservationStatus.BLOCKED:
        return 0
    click.echo(f"{_shown(id)}: {_last_error(queue, id)}", err=True)
    return FAILED


def _last_error(queue: QueueKit, id: str) -> str:
    view = queue.look_up(id)
    error = (view.dossier or {}).get("error") if view else None
    return words.last_line(error) if isinstance(error, str) else f"blocked; workerpool show {id} tells more"


def _chunks(numbered: Iterator[tuple[int, Job]]) -> Iterator[list[tuple[int, Job]]]:
    while chunk := list(itertools.islice(numbered, _CHUNK)):
        yield chunk


# -- telling how far it is


@contextlib.contextmanager
def _progress(count: int) -> Iterator[Callable[[int], None]]:
    """How to tell of the jobs accepted so far: a bar on a terminal, now and then a line elsewhere."""
    if sys.stderr.isatty():
        with _bar(count) as tell:
            yield tell
    else:
        yield _lines(count)


@contextlib.contextmanager
def _bar(count: int) -> Iterator[Callable[[int], None]]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from workerpool.cli import views

    columns = (TextColumn("sending"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = views.console(stderr=True)
    with Progress(*columns, console=console, redirect_stdout=sys.stdout.isatty(), transient=True) as bar:
        task = bar.add_task("", total=count)
        yield lambda accepted: bar.update(task, completed=accepted)
    click.echo(f"{bar.tasks[0].completed:,.0f} of {words.number(count, 'job')} sent", err=True)


def _lines(count: int) -> Callable[[int], None]:
    said = time.monotonic()

    def tell(accepted: int) -> None:
        nonlocal said
        if accepted == count or time.monotonic() - said >= _LINE_SECONDS:
            said = time.monotonic()
            click.echo(f"{accepted:,} of {words.number(count, 'job')} sent", err=True)

    return tell
