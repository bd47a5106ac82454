"""`workerpool migrate FROM TO`: every job of one store into another one. The move itself is `queuekit.transfer`'s.

Here it is asked for and said: which stores, whether streams are paused, how far it is, whether it may be made final,
what was moved, and which line of the configuration is to be changed then. An interrupt takes effect between two
portions, and leaves both stores so that the same command goes on, or `--undo` goes back.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from queuekit import BackendUnavailable, QueueError, QueueKit
from queuekit.lifecycle import State
from queuekit.transfer import Found, Side, move, undo
from workerpool import pauses
from workerpool.cli import words
from workerpool.cli.interrupt import noting_interrupt
from workerpool.cli.main import FAILED, INTERRUPTED, USAGE, Refusal
from workerpool.cli.options import find_source, json_option, print_json, standard_input
from workerpool.cli.store import open_queue
from workerpool.cli.telling import telling_of
from workerpool.config import Durability, PoolConfig
from workerpool.locations import board_directory

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_LINE_SECONDS = 2.0
_SHOWN_LEFT = 20


class _Interrupted(Exception):
    """The user has had enough, and nothing is being done by halves."""


@click.command("migrate")
@click.argument("source_url", metavar="FROM")
@click.argument("target_url", metavar="TO")
@click.option("--yes", is_flag=True, help="Do not ask before jobs are removed from FROM.")
@click.option("--keep", is_flag=True, help="Leave FROM as it is; it must not be used any more then.")
@click.option("--undo", "undoing", is_flag=True, help="Go back from a move that was cut off.")
@click.option("--config", metavar="FILE", help="The configuration (default: WORKERPOOL_CONFIG, else ./config.toml).")
@json_option
@click.pass_context
def migrate_command(
    ctx: click.Context,
    *,
    source_url: str,
    target_url: str,
    yes: bool,
    keep: bool,
    undoing: bool,
    config: str | None,
    as_json: bool,
) -> None:
    """Move every job from the store FROM to the store TO: dir:FOLDER, sqlite:FILE or postgresql://user@host/database.

    Ids, order, attempts, due times, ends and records stay as they are. Stop the pool before, or pause its streams, and
    stop whoever sends. Every job is compared with its copy before it is removed from FROM.

    It may be interrupted or killed at any time: the same command goes on, and until jobs are let into TO, --undo goes
    back. Meanwhile no job can be worked from both stores.

    \b
    Exit codes: 0 moved, 1 refused or declined, 2 usage, or a job that TO cannot take, 3 a store cannot be used,
    130 interrupted
    """
    if keep and undoing:
        raise click.UsageError("--keep and --undo exclude each other")
    if not (yes or keep or undoing or standard_input().isatty()):
        raise Refusal("to remove what was moved from FROM, add --yes; to leave it there, --keep", USAGE)
    one, other = _configuration(config, source_url), _configuration(config, target_url)
    with contextlib.ExitStack() as stack:
        source = _side(one, stack.enter_context(open_queue(one)))
        target = _side(other, stack.enter_context(open_queue(other, create=not undoing)))
        interrupted = stack.enter_context(noting_interrupt())
        progress = _Progress(interrupted)
        stack.callback(progress.close)
        try:
            if undoing:
                undone = undo(source, target, tell=progress.tell)
                with telling_of("the move is undone"):
                    _say_undone(source, target, undone, as_json)
                return
            found = move(source, target, keep=keep, agreed=_asking(source, progress, yes), tell=progress.tell)
        except (_Interrupted, KeyboardInterrupt):
            progress.close()
            click.echo(
                "interrupted: no job is lost; the same command goes on, or --undo back if it still can", err=True
            )
            ctx.exit(INTERRUPTED)
        except QueueError:
            progress.close()
            _say_hidden(source)
            raise
        progress.close()
    if found is None:
        raise Refusal("nothing was moved: both stores are as they were", FAILED)
    line = _line_to_change(config, one, other)
    with telling_of(f"{words.number(found.states.total(), 'job')} moved to {_shown(target)}, and compared"):
        if as_json:
            print_json(_report(source, target, found, keep, line))
        else:
            _say(source, target, found, keep, line)


# -- the stores


def _configuration(option: str | None, url: str) -> PoolConfig:
    """The configuration with this store; what is moved must be on the disk, whatever is done elsewhere."""
    config = find_source(None, option, url).load_store()
    return dataclasses.replace(config, store=dataclasses.replace(config.store, durability=Durability.FULL))


def _side(config: PoolConfig, queue: QueueKit) -> Side:
    directory = board_directory(config)

    def paused(stream: str) -> bool:
        try:
            return pauses.find(directory, stream) is not None
        except OSError as error:
            raise BackendUnavailable(f"cannot see whether {stream} is paused: {error.strerror}") from error

    return Side(name=_name(config), backend=queue.backend, paused=paused)


def _name(config: PoolConfig) -> str:
    """What a store is called: the same however its path was typed, and without a password."""
    scheme, _, rest = config.store.url.partition(":")
    return words.masked(config.store.url) if scheme == "postgresql" else f"{scheme}:{os.path.realpath(rest)}"


# -- asking


def _asking(source: Side, progress: _Progress, yes: bool) -> Callable[[Found], bool]:
    def agreed(found: Found) -> bool:
        count = found.states.total()
        if yes or not count:
            return True
        progress.close()
        try:
            return click.confirm(
                f"{words.number(count, 'job')} copied and compared: remove from {source.name}?", err=True
            )
        except click.Abort:
            return False

    return agreed


# -- saying it


def _report(source: Side, target: Side, found: Found, kept: bool, line: str | None) -> dict[str, object]:
    return {
        "from": source.name,
        "to": target.name,
        "moved": found.moved,
        "pending": found.states[State.NEW],
        "deferred": found.states[State.LATER],
        "ended": found.states[State.DONE],
        "streams": list(found.streams),
        "checkpoints": found.checkpoints,
        "left": [each.name for each in found.left],
        "resumed": found.resumed,
        "kept": kept,
        "change": line,
    }


def _say(source: Side, target: Side, found: Found, kept: bool, line: str | None) -> None:
    states = found.states
    total = states.total()
    parts = f"{states[State.NEW]:,} pending, {states[State.LATER]:,} deferred, {states[State.DONE]:,} ended"
    what = f"{words.number(total, 'job')}: {parts}" if total else "no jobs"
    if found.resumed:
        click.echo(f"the move that was cut off is finished: {words.number(found.moved, 'job')} let in")
    if total or not found.resumed:
        click.echo(f"moved from {_shown(source)} to {_shown(target)}, and compared: {what}")
    if found.checkpoints:
        click.echo(f"{words.number(found.checkpoints, 'checkpoint')} went with them")
    for each in found.left[:_SHOWN_LEFT]:
        click.echo(f"stays in {_shown(source)}, for it cannot be read as a job: {words.printable(each.name)}")
    if len(found.left) > _SHOWN_LEFT:
        click.echo(f"and {len(found.left) - _SHOWN_LEFT:,} more; --json names them all")
    if kept:
        click.echo(f"{_shown(source)} was left as it is: do not use it any more, its jobs are in {_shown(target)} now")
    if line is not None:
        click.echo(f"now change {words.printable(line)}")


def _say_undone(source: Side, target: Side, undone: tuple[int, int], as_json: bool) -> None:
    back, dropped = undone
    if as_json:
        print_json({"from": source.name, "to": target.name, "back": back, "dropped": dropped})
        return
    click.echo(f"{words.number(back, 'job')} back in {_shown(source)}; copies dropped in {_shown(target)}: {dropped:,}")


def _say_hidden(source: Side) -> None:
    """After an error: whether it is of importance for the source that the move goes on."""
    with contextlib.suppress(QueueError):  # the same trouble again, which is said anyway
        if next(iter(source.backend.transfer().leaving()), None) is not None:
            shown = _shown(source)
            click.echo(f"jobs of {shown} are out of sight: the same command goes on, or --undo back", err=True)


def _shown(side: Side) -> str:
    return words.printable(side.name)


def _line_to_change(option: str | None, one: PoolConfig, other: PoolConfig) -> str | None:
    """Which line of the configuration says where the jobs are, and what it says from now on; None when none does."""
    url = words.masked(other.store.url)
    if one.path is None:
        return f'[store] url to "{url}" in every configuration that names the old store'
    from workerpool.config_source import line_of

    configured = find_source(None, option, None).load_store()
    if _name(configured) != _name(one):
        return f'[store] url to "{url}" in every configuration that names the old store'
    number = line_of(one.path, ("store", "url"), lambda value: isinstance(value, str))
    where = f"{os.path.relpath(one.path)}:{number}" if number else f"[store] in {os.path.relpath(one.path)}"
    return f'{where} to   url = "{url}"'


# -- progress, on standard error


class _Progress:
    """A bar on a terminal, plain lines elsewhere. `close` ends the bar; the next step begins another one.

    Raises `_Interrupted` out of the first step that is told of after an interrupt.
    """

    def __init__(self, interrupted: Callable[[], bool]) -> None:
        self._interrupted = interrupted
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._step = ""
        self._said = float("-inf")

    def tell(self, step: str, done: int, total: int) -> None:
        """How far a step is."""
        if sys.stderr.isatty():
            self._draw(step, done, total)
        elif (step != self._step and not total) or time.monotonic() - self._said >= _LINE_SECONDS or 0 < total == done:
            self._said = time.monotonic()
            click.echo(f"{step}: {done:,}" + (f" of {total:,}" if total else ""), err=True)
        self._step = step
        if self._interrupted():
            raise _Interrupted

    def _draw(self, step: str, done: int, total: int) -> None:
        if self._bar is None:
            from rich.progress import Progress

            from workerpool.cli import views

            self._bar = Progress(console=views.console(stderr=True), transient=True)
            self._task = self._bar.add_task("")
            self._bar.start()
        if self._task is not None:
            self._bar.update(self._task, description=step, completed=done, total=total or None)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = self._task = None
