"""`workerpool bench`: what this store costs and gives, measured on a fresh one beside it.

Where that is, and why it stays, is `benching.scratch`'s; what is measured, `benching.phases` and `benching.pool`'s.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Generator
from typing import Any

import click

from queuekit import QueueKit
from workerpool.cli import words
from workerpool.cli.benching.figures import Figure, table
from workerpool.cli.benching.phases import measure_library
from workerpool.cli.benching.pool import IdlePool, measure_pool
from workerpool.cli.benching.scratch import Scratch, scratch_for
from workerpool.cli.main import INTERRUPTED, USAGE, Refusal
from workerpool.cli.options import Source, json_option, print_json, with_source
from workerpool.config import PoolConfig

_LEAST_STARTS, _MOST_STARTS = 20, 200
_BETWEEN_SECONDS = 0.2  # between two drawings of the progress


@click.command("bench")
@with_source
@click.option("--scratch", metavar="DIR", help="Measure a store that is a folder, made in DIR; needs no configuration.")
@click.option("--jobs", "count", type=click.IntRange(1, 10_000_000), default=2_000, show_default=True, metavar="N")
@json_option
@click.pass_context
def bench_command(ctx: click.Context, *, source: Source, scratch: str | None, count: int, as_json: bool) -> None:
    """Measure this store: sending, claiming and replying, and a pool whose handlers do nothing.

    Your jobs are not touched: a fresh store is made beside yours (a folder, or a schema in the same database), on the
    same disk or server, with the same durability. A schema is dropped at the end; a folder stays, and it is said where.
    Each figure of single jobs takes ten seconds at most, with as many jobs as fit.

    The figures are this machine's now, with whatever else it does. Ctrl-C ends it, and tells what was measured so far.
    """
    if scratch is not None and source.store is not None:
        raise click.UsageError("--store and --scratch exclude each other")
    if scratch is not None and not os.path.isdir(scratch):
        raise Refusal(f"there is no folder {scratch}", USAGE)
    config = (Source(None, f"dir:{scratch}") if scratch is not None else source).load_store()
    progress, figures = _Progress(), list[Figure]()
    interrupted = False
    with scratch_for(config, scratch) as place:
        try:
            with contextlib.closing(_measure(place, config.store.durability.value, count, progress)) as measured:
                for figure in measured:
                    figures.append(figure)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            progress.close()
    if as_json:
        print_json(_report(config, place, count, figures, interrupted))
    else:
        _say(config, place, figures, interrupted)
    ctx.exit(INTERRUPTED if interrupted else 0)


def _measure(place: Scratch, durability: str, count: int, progress: _Progress) -> Generator[Figure, None, None]:
    with QueueKit.open(place.url, durability=durability) as queue:
        yield from measure_library(queue, count, progress.tell)
        progress.tell("a pool starts", 0, 0)
        pool = IdlePool(place, durability)
        try:
            starts = max(min(count, _LEAST_STARTS), min(count // 10, _MOST_STARTS))
            yield from measure_pool(queue, pool, count, starts, progress.tell)
        finally:
            progress.tell("the pool stops", 0, 0)
            pool.stop()


# -- saying it


def _report(config: PoolConfig, place: Scratch, count: int, figures: list[Figure], interrupted: bool) -> dict[str, Any]:
    return {
        "store": words.masked(config.store.url),
        "scratch": place.name,
        "left": place.left,
        "jobs": count,
        "durability": config.store.durability.value,
        "interrupted": interrupted,
        "figures": {figure.key: figure.to_dict() for figure in figures},
    }


def _say(config: PoolConfig, place: Scratch, figures: list[Figure], interrupted: bool) -> None:
    about = words.printable(f"{place.name}, like {words.masked(config.store.url)}")
    click.echo(f"{about}; durability {config.store.durability.value}\n")
    for line in table(figures):
        click.echo(line)
    if interrupted:
        click.echo("\ninterrupted: the rest was not measured")
    if place.left:
        click.echo(f"\nWhat was measured stays in {words.printable(place.left)}. Remove it when nothing is to be")
        click.echo("measured or worked there for some minutes: on ext4 removing many files slows down making others.")


class _Progress:
    """Says on standard error how far it is: in one line on a terminal, else once for each thing that is measured."""

    def __init__(self) -> None:
        self._terminal = sys.stderr is not None and sys.stderr.isatty()
        self._what = ""
        self._drawn = 0.0
        self._width = 0

    def tell(self, what: str, done: int, of: int) -> None:
        """That so much of it is done; `of` 0: that cannot be told."""
        now = time.monotonic()
        news = what != self._what
        if not news and (not self._terminal or now - self._drawn < _BETWEEN_SECONDS):
            return
        self._what, self._drawn = what, now
        if not self._terminal:
            click.echo(f"{what} …", err=True)
            return
        text = f"{what}: {done:,} of {of:,}" if of else f"{what} …"
        click.echo(f"\r{text:<{self._width}}", err=True, nl=False)
        self._width = len(text)

    def close(self) -> None:
        """Take the line away."""
        if self._terminal and self._width:
            click.echo(f"\r{'':{self._width}}\r", err=True, nl=False)
