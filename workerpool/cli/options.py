"""What commands have in common: which configuration, which store, JSON or not.

    @click.command("status")
    @with_source
    @json_option
    def status_command(source: Source, as_json: bool) -> None: ...

The configuration is the argument [CONFIG] or --config FILE, else WORKERPOOL_CONFIG, else ./config.toml. `--store URL`
overrides `[store] url`; where there is no configuration, it does without.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shlex
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click

from workerpool.cli.main import USAGE, Refusal

if TYPE_CHECKING:
    from workerpool.config import PoolConfig

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_CONFIG = "config.toml"
VARIABLE = "WORKERPOOL_CONFIG"
_FOR_LOOKING = ("store", "lease")


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """Where the configuration comes from. `path`: its file; None: there is none, `store` alone says where jobs are."""

    path: str | None
    store: str | None

    def load(self) -> PoolConfig:
        """The configuration; raises `ConfigError` with everything that is wrong with it.

        Without a file, one of defaults, the environment and `store`, without streams.
        """
        from workerpool.config_file import load_config

        overrides = {} if self.store is None else {"store.url": self.store}
        if self.path is None:
            return load_config({}, overrides=overrides, streams_required=False)
        return load_config(self.path, overrides=overrides)

    def load_store(self) -> PoolConfig:
        """The same for who works no stream: of a file with mistakes only what it says of its store and leases counts.

        The mistakes are said on standard error. Raises `ConfigError` when the store cannot be told for sure.
        """
        from workerpool.cli.words import masked, printable, printable_lines
        from workerpool.errors import ConfigError

        try:
            return self.load()
        except ConfigError as error:
            if self.path is None:
                raise
            config = self._with_mistakes()
            click.echo(printable_lines(str(error)), err=True)
            if config is None:
                raise Refusal("--store URL does without this configuration", USAGE) from error
        store = printable(masked(config.store.url))
        click.echo(f"workerpool: these mistakes aside, this is about its store, {store}", err=True)
        return config

    def _with_mistakes(self) -> PoolConfig | None:
        from workerpool.config_file import load_config
        from workerpool.config_source import readable_tables
        from workerpool.errors import ConfigError

        path = os.path.abspath(self.path or "")
        tables = readable_tables(path, _FOR_LOOKING) if self.store is None else {}
        overrides = {} if self.store is None else {"store.url": self.store}
        if tables is None:
            return None
        try:
            found = load_config(tables, overrides=overrides, base=os.path.dirname(path), streams_required=False)
        except ConfigError:
            return None
        return dataclasses.replace(found, path=path)


def find_source(argument: str | None, option: str | None, store: str | None) -> Source:
    """The source that the user named; raises `click.UsageError` when two files were."""
    if argument and option and argument != option:
        raise click.UsageError(f"two configurations: the argument {argument!r} and --config {option!r}")
    named = argument or option or os.environ.get(VARIABLE)
    if not named and store is not None and not os.path.lexists(DEFAULT_CONFIG):
        return Source(None, store)
    return Source(named or DEFAULT_CONFIG, store)


def with_source(command: F) -> F:
    """Give a command `[CONFIG]`, `--config` and `--store`, and pass it a `source: Source`."""
    return _adding_source(command, argument=True)


def with_source_options(command: F) -> F:
    """The same without the argument, for commands whose arguments are a list."""
    return _adding_source(command, argument=False)


def _adding_source(command: F, *, argument: bool) -> F:
    @functools.wraps(command)
    def adapted(*args: Any, config: str | None, store: str | None, **kwargs: Any) -> Any:
        source = find_source(kwargs.pop("config_argument", None), config, store)
        return command(*args, source=source, **kwargs)

    wrapped: Any = click.option(
        "--store", metavar="URL", help="The store, instead of the configuration's: dir:FOLDER, or a plain path."
    )(adapted)
    wrapped = click.option(
        "--config", metavar="FILE", help=f"The configuration (default: {VARIABLE}, else ./{DEFAULT_CONFIG})."
    )(wrapped)
    if argument:
        wrapped = click.argument("config_argument", metavar="[CONFIG]", required=False)(wrapped)
    result: F = wrapped
    return result


def where_option(config: PoolConfig) -> str:
    """How to name the configuration in a command to type, with a space before it; "" when it is the default one."""
    if config.path is None:
        from workerpool.cli.words import masked

        return f" --store {shlex.quote(masked(config.store.url))}"
    if config.path == os.path.abspath(DEFAULT_CONFIG):
        return ""
    return f" --config {shlex.quote(os.path.relpath(config.path))}"


def json_option(command: F) -> F:
    """Give a command `--json`, passed as `as_json`."""
    return click.option(
        "--json", "as_json", is_flag=True, help="One JSON object instead of text; its keys are stable."
    )(command)


def print_json(value: object) -> None:
    """Print one JSON object on one line; what is no valid Unicode is escaped."""
    click.echo(json.dumps(value, allow_nan=False))


def standard_input() -> TextIO:
    """Standard input; raises `click.UsageError` when the process was started without one."""
    if sys.stdin is None:
        raise click.UsageError("there is no standard input to read from")
    return sys.stdin


def complete_streams(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """For a shell's completion: the streams of the configuration, as far as it can be read."""
    import tomllib

    path = ctx.params.get("config") or os.environ.get(VARIABLE) or DEFAULT_CONFIG
    try:
        with open(path, "rb") as file:
            streams = tomllib.load(file).get("streams", {})
    except (OSError, ValueError):  # nothing to offer
        return []
    return [name for name in streams if name.startswith(incomplete)] if isinstance(streams, dict) else []
