"""`workerpool status` and `top`: one screen about a store and its pools. Both work with no pool running."""

from __future__ import annotations

import time
from collections.abc import Mapping

import click

from queuekit import QueueKit
from workerpool.cli.main import FAILED
from workerpool.cli.options import Source, json_option, print_json, with_source
from workerpool.cli.report import Facts, gather, rates
from workerpool.cli.store import open_queue
from workerpool.config import PoolConfig

_FRAMES_PER_SECOND = 2
_COUNT_SECONDS = 5.0  # between two counts of blocked jobs, which are dearer than the rest


@click.command("status")
@with_source
@json_option
@click.pass_context
def status_command(ctx: click.Context, source: Source, as_json: bool) -> None:
    """Show the pool and its streams on one screen: what waits, what runs, who works it, what is wrong.

    `claimed` is what the pool has taken to work on, `running` what workers have begun of it. `done` counts what the
    present run has ended well; without one, the last. `blocked` counts what is kept of jobs that ended so (of the
    100,000 that ended last). A stream is failing when its handler cannot be loaded or its processes die again and
    again, and in trouble while something, such as a full disk, keeps it from its work.

    \b
    Exit codes: 0 nothing is wrong (also when no pool runs), 1 a stream is failing or in trouble, or a process is
    stopped or stuck, 3 the store cannot be read
    """
    config = source.load_store()
    with open_queue(config) as queue:
        facts = gather(config, queue)
    if as_json:
        print_json(facts)
    else:
        from workerpool.cli import views

        views.show(views.status(facts))
    ctx.exit(0 if facts["ok"] else FAILED)


@click.command("top")
@with_source
def top_command(source: Source) -> None:
    """The screen of `status`, drawn anew twice a second, with the jobs per second of the last moments. Ctrl-C ends it.

    Without a terminal it is drawn once.
    """
    config = source.load_store()
    with open_queue(config) as queue:
        _draw_until_interrupted(config, queue)


def _draw_until_interrupted(config: PoolConfig, queue: QueueKit) -> None:
    from rich.live import Live

    from workerpool.cli import views

    console = views.console()
    facts, at = gather(config, queue), time.monotonic()
    counted_at = at
    if not console.is_terminal:
        console.print(views.status(facts))
        return
    try:
        with Live(views.status(facts), console=console, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(1 / _FRAMES_PER_SECOND)
                blocked = None
                if time.monotonic() - counted_at < _COUNT_SECONDS:
                    blocked = {stream["name"]: stream["blocked"] for stream in facts["streams"]}
                else:
                    counted_at = time.monotonic()
                facts, at, per_second = _next_frame(config, queue, facts, at, blocked)
                live.update(views.status(facts, per_second), refresh=True)
    except KeyboardInterrupt:
        return


def _next_frame(
    config: PoolConfig, queue: QueueKit, before: Facts, at: float, blocked: Mapping[str, int] | None
) -> tuple[Facts, float, dict[str, float]]:
    facts, now = gather(config, queue, blocked), time.monotonic()
    return facts, now, rates(before, facts, now - at)
