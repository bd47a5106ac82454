"""What the command line of `torture` asks for, judged completely before the first run."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import click

from queuekit import QueueError
from queuekit.backends.admission import prepare
from queuekit.clock import ProcessClock
from queuekit.job import Job
from workerpool.cli import words
from workerpool.cli.batch import Defaults, lines, open_seekable, read_job
from workerpool.cli.main import USAGE, Refusal
from workerpool.cli.options import DEFAULT_CONFIG, VARIABLE
from workerpool.cli.send import read_payload
from workerpool.config import PoolConfig, StreamConfig
from workerpool.config_file import load_config
from workerpool.torture.effects import Watched
from workerpool.torture.points import Point
from workerpool.torture.run import Setting
from workerpool.units import parse_duration

_STREAM = "torture"


class Order:
    """What the command line asks for, judged; raises `click.UsageError` or `Refusal`."""

    def __init__(
        self,
        *,
        handler: str,
        payloads: tuple[str, ...],
        jsonl: str | None,
        paths: tuple[str, ...],
        commands: tuple[str, ...],
        skip: tuple[str, ...],
        mask: tuple[str, ...],
        copied: tuple[str, ...],
        environ: tuple[str, ...],
        setup: str | None,
        points: int,
        seed: int | None,
        points_named: tuple[str, ...],
        job_number: int | None,
        timeout: str | None,
        batch: bool,
        folders: tuple[str, ...],
        config: str | None,
        stream: str | None,
        keep: bool,
        keep_going: bool,
        as_json: bool,
    ) -> None:
        self.handler, self.points, self.seed = handler, points, seed
        self.keep, self.keep_going, self.as_json = keep, keep_going, as_json
        self.named = [judged(Point.parse, text, "--point") for text in points_named]
        pool = _pool_config(handler, config)
        self.stream = _stream_of(pool, handler, stream, batch)
        self.folders = tuple(os.path.abspath(folder) for folder in folders) or pool.handlers.path
        self.max_job_bytes = pool.store.max_job_bytes
        self.timeout = judged(parse_duration, timeout, "--timeout") if timeout is not None else self.stream.timeout
        self.setting = Setting(
            watched=Watched(
                paths=paths or (() if commands else (".",)),
                commands=commands,
                skip=skip,
                mask=tuple(judged(re.compile, text, "--mask") for text in mask),
            ),
            copied=tuple(_existing(path) for path in copied),
            command=setup or "",
            environ=dict(_variable(text) for text in environ),
        )
        outside = next((path for path in paths if os.path.isabs(path) or ".." in path.split(os.sep)), None)
        if outside is not None and not setup:
            raise click.UsageError(
                f"{outside} is outside of the runs' folders: name the --setup command that puts it back before each run"
            )
        self.jobs = _sample_jobs(payloads, jsonl, self.stream.name, self.max_job_bytes)
        if job_number is not None and job_number > len(self.jobs):
            raise click.UsageError(f"--job {job_number}: there are {words.number(len(self.jobs), 'sample job')}")
        self.numbers = range(1, len(self.jobs) + 1) if job_number is None else (job_number,)


def judged(judge: Any, text: str, option: str) -> Any:
    """What `judge` makes of an option's text; raises `click.BadParameter` for what it refuses by `ValueError`."""
    try:
        return judge(text)
    except (ValueError, re.error) as error:
        raise click.BadParameter(str(error), param_hint=option) from None


def _existing(path: str) -> str:
    if not os.path.exists(path):
        raise click.BadParameter(f"there is no {path}", param_hint="--copy")
    return os.path.abspath(path)


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--env")
    return name, value


def _pool_config(handler: str, named: str | None) -> PoolConfig:
    """The configuration; where there is none, the defaults, with handlers in the current folder."""
    path = named or os.environ.get(VARIABLE) or (DEFAULT_CONFIG if os.path.lexists(DEFAULT_CONFIG) else None)
    if path is not None:
        return load_config(path)
    tables = {"store": {"url": "dir:./spool"}, "streams": {_STREAM: {"handler": handler}}}
    return load_config(tables, environ={})


def _stream_of(config: PoolConfig, handler: str, named: str | None, batch: bool) -> StreamConfig:
    """The stream whose settings the handler runs under."""
    if named is not None and config.stream(named) is None:
        raise Refusal(f"{config.path or 'no configuration'} has no stream {words.printable(named)}", USAGE)
    with_it = [stream for stream in config.streams if named in (None, stream.name) and stream.handler == handler]
    found = with_it[0] if with_it else config.stream(named or "")
    if found is None:
        defaults = {"streams": {_STREAM: {"handler": handler}}, "store": {"url": "dir:./spool"}}
        found = load_config(defaults, environ={}).streams[0]
    return dataclasses.replace(found, handler=handler, batch_size=2 if batch else found.batch_size)


def _sample_jobs(payloads: Sequence[str], jsonl: str | None, stream: str, limit: int) -> list[Job]:
    """The jobs, always with the same ids for the same samples; without any sample one with an empty payload."""
    clock, defaults = ProcessClock(), Defaults(stream, 50, {}, limit)
    jobs = [
        dataclasses.replace(
            read_job(b'{"payload":""}', defaults, clock, _id(number)), payload=read_payload(text, limit)
        )
        for number, text in enumerate(payloads or (() if jsonl else ("",)), start=1)
    ]
    if jsonl is not None:
        jobs += _jobs_of_file(jsonl, defaults, clock, len(jobs))
    if not jobs:
        raise Refusal(f"{words.printable(jsonl or '')} holds no jobs", USAGE)
    for number, job in enumerate(jobs, start=1):
        try:
            prepare(job, limit)
        except QueueError as error:
            raise Refusal(f"sample job {number}: {error}", USAGE) from error
    return jobs


def _jobs_of_file(path: str, defaults: Defaults, clock: ProcessClock, before: int) -> Iterator[Job]:
    shown = "standard input" if path == "-" else words.printable(path)
    try:
        with open_seekable(path) as file:
            for number, (line, text) in enumerate(lines(file, defaults.max_job_bytes), start=before + 1):
                try:
                    yield read_job(text, defaults, clock, _id(number))
                except ValueError as error:
                    raise Refusal(f"{shown}:{line}: {error}", USAGE) from error
    except OSError as error:
        raise Refusal(f"cannot read {shown}: {error.strerror}", USAGE) from error


def _id(number: int) -> str:
    return hashlib.sha256(f"torture/{number}".encode()).hexdigest()[:32]
