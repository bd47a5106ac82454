"""`workerpool jobs`: a list of jobs by state and stream."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import click

from queuekit import QueueKit
from queuekit.contract import JobView, PutAside
from workerpool.cli import words
from workerpool.cli.options import Source, complete_streams, json_option, print_json, with_source
from workerpool.cli.record import Record
from workerpool.cli.store import open_queue
from workerpool.config import PoolConfig

_STATES = (*words.OPEN_STATES, *words.END_STATES, "failed")


@click.command("jobs")
@with_source
@click.option("--state", "states", multiple=True, type=click.Choice(_STATES), help="Only these (default: all).")
@click.option("--stream", metavar="STREAM", shell_complete=complete_streams, help="Only this stream's.")
@click.option("--limit", type=click.IntRange(min=0), default=50, show_default=True, help="At most so many; 0 = all.")
@json_option
def jobs_command(source: Source, states: tuple[str, ...], stream: str | None, limit: int, as_json: bool) -> None:
    """List jobs: those that wait or run first, oldest first, then those that have ended, newest first.

    `failed` is another word for blocked. `workerpool show ID` tells a job's story.
    """
    config = source.load_store()
    _check_stream(config, stream)
    with open_queue(config) as queue:
        found = list_jobs(queue, set(states) or {*_STATES, words.NO_RECORD}, stream)
        shown = list(itertools.islice(found, limit or None))
        more = next(found, None) is not None
        if as_json:
            print_json({"jobs": [brief(view) for view in shown], "more": more})
            return
        _draw(shown, more)


def _check_stream(config: PoolConfig, stream: str | None) -> None:
    """A name that is nearly a configured one is a slip; any other may be one that had jobs once."""
    if stream is None or config.stream(stream) is not None or not config.streams:
        return
    from workerpool.config_model import did_you_mean

    near = did_you_mean(stream, [each.name for each in config.streams])
    click.echo(
        f"workerpool: the configuration has no stream {words.printable(stream)!r}{words.printable(near)}", err=True
    )


def list_jobs(queue: QueueKit, states: set[str], stream: str | None) -> Iterator[JobView | PutAside]:
    """The jobs in these states (words), of one stream or of all, lazily, in the order of `QueueKit.jobs`."""
    wanted = {"blocked" if state == "failed" else state for state in states}
    found = queue.jobs({words.stored_state(state) for state in wanted}, stream)
    return (view for view in found if words.state_word(view) in wanted)


def brief(view: JobView | PutAside) -> dict[str, object]:
    """A job as `jobs --json` has it; what was put aside has the same keys, and its file's name for an id."""
    if isinstance(view, PutAside):
        return _brief_of_file(view)
    record = Record.of(view)
    return {
        "id": view.job.id,
        "stream": view.job.stream_id,
        "state": words.state_word(view),
        "sent_ms": view.job.submitted_at.physical_time,
        "due_ms": view.due_ms,
        "ended_ms": view.signal.completed_at.physical_time if view.signal else None,
        "priority": view.job.priority,
        "payload_bytes": len(view.job.payload),
        "failed_runs": record.attempts,
        "crashes": record.crashes,
        "errors": record.errors,
        "error": record.last_error,
        "cancelled": record.cancelled,
        "quarantined": False,
    }


def _brief_of_file(aside: PutAside) -> dict[str, object]:
    return {
        "id": aside.name,
        "stream": aside.stream or None,
        "state": "blocked",
        "sent_ms": None,
        "due_ms": None,
        "ended_ms": aside.ended_ms,
        "priority": None,
        "payload_bytes": None,
        "failed_runs": 0,
        "crashes": 0,
        "errors": [],
        "error": words.QUARANTINED,
        "cancelled": False,
        "quarantined": True,
    }


def _draw(shown: list[JobView | PutAside], more: bool) -> None:
    if not shown:
        click.echo("no such jobs")
        return
    from workerpool.cli import views

    views.show(views.jobs(shown))
    if more:
        click.echo(f"… and more than these {len(shown)}: --limit 0 shows all")
