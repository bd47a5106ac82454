"""`prune`: removing the records of jobs that ended long ago, in portions, beside whoever else uses the store.

On some filesystems making a file becomes slow after many were removed (see `queuekit.backends.maildir.creation`). So it
looks before each portion, rests while that is so, and goes slowly where it is to be expected: a store is for those who
send, and records can wait.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Collection, Iterator

import click

from queuekit import ObservationStatus, QueueKit
from queuekit.backends.maildir.creation import CreationCost
from workerpool.cli import words
from workerpool.cli.act import confirm
from workerpool.cli.interrupt import noting_interrupt
from workerpool.cli.main import INTERRUPTED
from workerpool.cli.options import Source, with_source
from workerpool.cli.store import open_queue
from workerpool.cli.telling import tell_deed
from workerpool.locations import store_folder
from workerpool.units import parse_duration

_FIRST_PORTION, _LARGEST_PORTION = 100, 5000
_REST_SECONDS = 8.0
_LINE_SECONDS = 2.0
_NAP_SECONDS = 0.1

Tell = Callable[[int], None]
"""Told how many jobs are removed so far."""


@click.command("prune")
@with_source
@click.option("--older-than", default="7d", show_default=True, metavar="DURATION", help="Ended longer ago than this.")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice((*words.END_STATES, "failed")),
    help="Only what ended so (default: all but blocked).",
)
@click.option("--yes", is_flag=True, help="Do not ask before blocked jobs are removed.")
@click.option("--at-once", is_flag=True, help="Never rest, even if sending becomes slow meanwhile.")
@click.pass_context
def prune_command(
    ctx: click.Context, *, source: Source, older_than: str, states: tuple[str, ...], yes: bool, at_once: bool
) -> None:
    """Remove the records of jobs that ended long ago. Jobs that have not ended stay.

    So do those that ended blocked, with what is known of why: only `--state blocked` removes them, and asks first.

    It may be run beside a pool, and interrupted: what is removed by then is said, and the next run goes on.
    """
    try:
        age = parse_duration(older_than)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--older-than") from None
    statuses = _statuses(states)
    config = source.load_store()
    folder = store_folder(config)
    cost = None if folder is None or at_once else CreationCost(folder)
    removed = 0
    if ObservationStatus.BLOCKED in statuses:
        confirm(f"remove jobs that ended blocked over {older_than} ago, for good", 1, yes)
    with open_queue(config) as queue, noting_interrupt() as interrupted:
        try:
            with _progress() as tell:
                for count in _portions(queue, age, statuses, cost, interrupted):
                    removed += count
                    tell(removed)
        except BaseException:
            click.echo(f"{words.number(removed, 'job')} removed, or a few more", err=True)
            raise
        if interrupted():
            click.echo(f"interrupted: {words.number(removed, 'job')} removed; run it again to go on", err=True)
            ctx.exit(INTERRUPTED)
    tell_deed(f"{words.number(removed, 'job')} removed")


def _statuses(states: Collection[str]) -> set[ObservationStatus]:
    """What may be removed."""
    chosen = {"blocked" if state == "failed" else state for state in states}
    return {ObservationStatus(state) for state in chosen or set(words.END_STATES) - {"blocked"}}


def _portions(
    queue: QueueKit,
    age: float,
    statuses: Collection[ObservationStatus],
    cost: CreationCost | None,
    interrupted: Callable[[], bool],
) -> Iterator[int]:
    """Remove portion after portion, and tell of how many jobs each was.

    The first one is small, and each that does no harm makes the next one larger.
    """
    portion = _FIRST_PORTION
    while not interrupted():
        if cost is not None and cost.has_risen():
            portion = _FIRST_PORTION
            _rest(interrupted)
            continue
        count = queue.backend.prune(age, limit=portion, statuses=statuses)
        yield count
        if count < portion:
            return
        if cost is not None and cost.rises:
            _rest(interrupted)
        else:
            portion = min(_LARGEST_PORTION, portion + _FIRST_PORTION)


def _rest(interrupted: Callable[[], bool]) -> None:
    end = time.monotonic() + _REST_SECONDS
    while time.monotonic() < end and not interrupted():
        time.sleep(_NAP_SECONDS)


@contextlib.contextmanager
def _progress() -> Iterator[Tell]:
    """A bar on a terminal, else a line now and then, on standard error. How many there will be nobody knows yet."""
    if not sys.stderr.isatty():
        yield _Lines().tell
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from workerpool.cli import views

    columns = (TextColumn("removing"), BarColumn(), TextColumn("{task.completed:,.0f} jobs"), TimeElapsedColumn())
    with Progress(*columns, console=views.console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda removed: bar.update(task, completed=removed)


class _Lines:
    """Plain lines, for a removal that takes long."""

    def __init__(self) -> None:
        self._said_at = time.monotonic()

    def tell(self, removed: int) -> None:
        if time.monotonic() - self._said_at >= _LINE_SECONDS:
            self._said_at = time.monotonic()
            click.echo(f"{words.number(removed, 'job')} removed so far", err=True)
