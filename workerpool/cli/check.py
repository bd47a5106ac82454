"""`workerpool check`: everything that a pool needs, tried without running one; every problem is reported at once.

Handlers are imported in forked children, one each, as the pool's workers do it: what a module does at its import, be it
to exit, to hang or to print, cannot harm the others or this command.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import click

from queuekit import QueueError
from workerpool.cli import words
from workerpool.cli.main import STORE, USAGE, code_of
from workerpool.cli.options import Source, json_option, print_json, with_source
from workerpool.cli.store import nearest_folder, open_queue, why_not_makeable
from workerpool.config import PoolConfig
from workerpool.config_file import load_config
from workerpool.config_lines import KeyPath
from workerpool.config_source import line_of, readable_tables
from workerpool.errors import ConfigError, Problem
from workerpool.handlers import HandlerError, load_callable, load_handler
from workerpool.locations import board_directory, store_folder, store_path
from workerpool.logs import why_unfit
from workerpool.process import Child, kill_group, spawn, wait_readable
from workerpool.units import format_duration, format_size

IMPORT_SECONDS = 60.0
_SIZES = {"max_job_bytes", "max_memory"}


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One problem, and the exit code that it stands for."""

    text: str
    code: int


@click.command("check")
@with_source
@json_option
@click.pass_context
def check_command(ctx: click.Context, source: Source, as_json: bool) -> None:
    """Read the configuration, import the handlers and hooks, try the store; when all is well, print the configuration
    as it counts, defaults included.

    Every problem is reported at once, on standard error. Handlers and hooks are imported, so their modules' code runs.

    \b
    Exit codes: 0 all is well, 2 the configuration or a handler is not, 3 the store cannot be used
    """
    try:
        config = source.load()
    except ConfigError as error:
        problems = [*map(str, error.problems), *(each.text for each in _bad_imports_beside_mistakes(source))]
        if as_json:
            print_json({"ok": False, "problems": problems, "config": None})
        else:
            click.echo(words.printable_lines("\n".join(problems)), err=True)
        ctx.exit(USAGE)
    findings = [*_unsupported(config), *bad_imports(config), *_bad_log(config), *_bad_store(config)]
    if as_json:
        shown = effective(config)
        print_json({"ok": not findings, "problems": [each.text for each in findings], "config": shown})
    else:
        _say(config, findings)
    ctx.exit(min((each.code for each in findings), default=0))


def _say(config: PoolConfig, findings: list[Finding]) -> None:
    for finding in findings:
        click.echo(words.printable_lines(finding.text), err=True)
    if not findings:
        click.echo(to_toml(effective(config)), nl=False)
        streams = words.number(len(config.streams), "stream")
        click.echo(f"# all is well: {streams}, {words.printable(words.masked(config.store.url))}")


# -- what is tried


def _unsupported(config: PoolConfig) -> Iterator[Finding]:
    """What the configuration may say and this version cannot do."""
    from workerpool.assemble import refuse_unsupported

    try:
        refuse_unsupported(config)
    except ConfigError as error:
        for problem in error.problems:
            yield Finding(str(problem), USAGE)


def bad_imports(config: PoolConfig) -> Iterator[Finding]:
    """The handlers and hooks that cannot be imported, each with its place in the file."""
    for stream in config.streams:
        reason = why_not_importable(stream.handler, config.handlers.path)
        if reason is not None:
            yield Finding(_placed(config, ("streams", stream.name, "handler"), stream.handler, reason), USAGE)
    for hook in config.telemetry.hooks:
        reason = why_not_importable(hook, config.handlers.path, load=load_callable) if ":" in hook else None
        if reason is not None:
            yield Finding(_placed(config, ("telemetry", "hooks"), hook, reason), USAGE)


def _bad_imports_beside_mistakes(source: Source) -> Iterator[Finding]:
    """The same for a file with mistakes, as far as it tells of handlers: every problem is reported at once."""
    path = os.path.abspath(source.path) if source.path is not None else None
    tables = readable_tables(path, ("handlers", "streams")) if path is not None else None
    for name, stream in (tables or {}).get("streams", {}).items():
        written = stream.get("handler") if isinstance(stream, dict) else None
        alone = {"handlers": (tables or {}).get("handlers", {}), "streams": {name: {"handler": written}}}
        try:
            config = load_config(alone, base=os.path.dirname(path or ""))
        except ConfigError:  # it is told already what is wrong with it
            continue
        yield from bad_imports(dataclasses.replace(config, path=path))


def _placed(config: PoolConfig, key: KeyPath, spec: str, reason: str) -> str:
    line = line_of(config.path, key, lambda written: written == spec or (isinstance(written, list) and spec in written))
    return str(Problem(config.path or "config", line, ".".join(key), f"{spec!r}: {reason}"))


def _bad_store(config: PoolConfig) -> Iterator[Finding]:
    """What is not there yet is not made for a check; whether it could be is looked at."""
    folder, path, beside = store_folder(config), store_path(config), board_directory(config)
    if folder is None and not os.path.lexists(beside) and (reason := _why_not_makeable(beside)):
        yield Finding(f"store: {reason}", STORE)
    try:
        if path is not None and not os.path.lexists(path):
            if reason := _why_not_makeable(path):
                yield Finding(f"store: {reason}", STORE)
            return
        with open_queue(config) as queue:
            queue.tally()
        if folder is not None:
            _write_something(folder)
    except QueueError as error:
        yield Finding(f"store: {error}", code_of(error))
    except OSError as error:
        yield Finding(f"store: cannot write to {folder}: {error.strerror}", STORE)


def _why_not_makeable(path: str) -> str | None:
    """Why nothing can be made at a path: what is there of the way to it is tried, with a folder that stays empty."""
    reason = why_not_makeable(path)
    if reason is not None:
        return reason
    probe = os.path.join(nearest_folder(path), f".check-{os.getpid()}-{time.monotonic_ns()}")
    try:
        os.mkdir(probe, 0o700)
        os.rmdir(probe)
    except OSError as error:
        return f"cannot make {path}: {error.strerror}"
    return None


def _bad_log(config: PoolConfig) -> Iterator[Finding]:
    """A log file that could not be written: a pool would log to standard error instead."""
    path = config.log.file
    if not path:
        return
    if os.path.lexists(path):
        reason = None if os.access(path, os.W_OK) else f"{path} cannot be written"
        if unfit := why_unfit(os.lstat(path)):
            reason = f"{path} cannot be used: {unfit}"
    elif not os.path.lexists(os.path.dirname(path)):
        reason = f"there is no folder {os.path.dirname(path)}"
    else:
        reason = _why_not_makeable(path)
    if reason is not None:
        line = line_of(config.path, ("log", "file"), lambda _: True)
        yield Finding(str(Problem(config.path or "config", line, "log.file", reason)), USAGE)


def _write_something(folder: str) -> None:
    """Make a file where jobs are written first, as a send does, and remove it."""
    path = os.path.join(folder, "tmp", f"check-{os.getpid()}-{time.monotonic_ns()}")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, b"check")
    finally:
        os.close(fd)
        os.unlink(path)


# -- importing a handler in a child


def why_not_importable(
    spec: str,
    path: tuple[str, ...],
    seconds: float = IMPORT_SECONDS,
    load: Callable[[str, tuple[str, ...]], object] = load_handler,
) -> str | None:
    """Why a handler (or what else `load` loads) cannot be; None when it can. `seconds`: of patience with its import."""
    reader, writer = os.pipe()
    try:
        child = spawn(lambda: _import(spec, path, load, writer), name="check", own_group=True, keep=(writer,))
    except OSError as error:
        os.close(reader)
        return f"cannot be tried: {error.strerror}"
    finally:
        os.close(writer)
    try:
        said = _hear(reader, seconds)
    finally:
        os.close(reader)
        code = _end(child)
    if said is not None:
        return said or None
    if code is None:
        return f"its import takes longer than {seconds:g} s"
    return f"importing it ended the process ({code})"


def _import(spec: str, path: tuple[str, ...], load: Callable[[str, tuple[str, ...]], object], writer: int) -> int:
    """In the child: say "" for what loads, else the reason. Prints of the module go to standard error."""
    os.dup2(2, 1)
    sys.stdout = sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace")
    try:
        load(spec, path)
        reason = ""
    except HandlerError as error:
        reason = error.reason
    os.write(writer, json.dumps(reason).encode() + b"\n")
    return 0


def _hear(reader: int, seconds: float) -> str | None:
    """What the child says in one line; None when it ends or the time does before."""
    heard, deadline = b"", time.monotonic() + seconds
    while not heard.endswith(b"\n"):
        readable = wait_readable(reader, deadline - time.monotonic())
        data = os.read(reader, 65536) if readable else b""
        if not data:
            return None
        heard += data
    said = json.loads(heard)
    return said if isinstance(said, str) else None


def _end(child: Child) -> str | None:
    """Kill what is left of the child's group; how the child ended by itself, None when it had to be killed."""
    kill_group(child.pid, child.start, signal.SIGKILL, session=child.session)
    code = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
    if code == -signal.SIGKILL:
        return None
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


# -- the effective configuration


def effective(config: PoolConfig) -> dict[str, Any]:
    """The configuration as it counts, in the form of a config.toml: durations and sizes as text, no password."""
    values = config.to_dict()
    values["store"]["url"] = words.masked(config.store.url)
    streams = values.pop("streams")
    sections = {name: _section(section) for name, section in values.items() if isinstance(section, dict)}
    for stream in streams.values():
        del stream["name"]
    return sections | {"streams": {name: _section(stream) for name, stream in streams.items()}}


def _section(values: dict[str, Any]) -> dict[str, Any]:
    return {key: _written(key, value) for key, value in values.items()}


def _written(key: str, value: Any) -> Any:
    if isinstance(value, float):
        return format_duration(value)
    return format_size(value) if key in _SIZES else value


def to_toml(sections: dict[str, Any]) -> str:
    """The text of a config.toml with these sections; every stream is written out in full."""
    streams = {f"streams.{_quoted(name)}": values for name, values in sections["streams"].items()}
    tables = {name: values for name, values in sections.items() if name != "streams"} | streams
    return "".join(f"[{name}]\n{_keys(values)}\n" for name, values in tables.items())


def _keys(values: dict[str, Any]) -> str:
    return "".join(f"{key} = {_value(value)}\n" for key, value in values.items())


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return str(value) if isinstance(value, int) else _quoted(str(value))


def _quoted(text: str) -> str:
    """A TOML string, of which a terminal may be shown everything. JSON's escapes are TOML's, so far as they go."""
    return "".join(map(_printable, json.dumps(text, ensure_ascii=False)))


def _printable(character: str) -> str:
    return character if character.isprintable() else f"\\U{ord(character):08X}"
