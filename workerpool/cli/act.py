"""`retry`, `release`, `cancel`: what a person does to jobs, also beside a running pool.

Each job is taken for itself: what cannot be done to one is said with its reason, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeGuard

import click

from queuekit import JobNotFound, QueueError, QueueKit
from queuekit.contract import JobView, PutAside
from queuekit.errors import IllegalTransition
from queuekit.lifecycle import State
from workerpool.cli import words
from workerpool.cli.jobs import list_jobs
from workerpool.cli.main import FAILED, STORE, USAGE, Refusal, code_of
from workerpool.cli.options import Source, complete_streams, standard_input, with_source_options
from workerpool.cli.record import Record
from workerpool.cli.store import open_queue
from workerpool.cli.which import id_of

_ids = click.argument("ids", nargs=-1, metavar="[ID]…")
_yes = click.option("--yes", is_flag=True, help="Do not ask.")


@click.command("retry")
@_ids
@click.option("--all-blocked", is_flag=True, help="Every job that ended blocked, but for cancelled ones.")
@click.option("--stream", metavar="STREAM", shell_complete=complete_streams, help="Of --all-blocked: only this one's.")
@_yes
@with_source_options
@click.pass_context
def retry_command(
    ctx: click.Context, *, source: Source, ids: tuple[str, ...], all_blocked: bool, stream: str | None, yes: bool
) -> None:
    """Make finished jobs pending again; their failed runs are counted from 0, their earlier end is kept for `show`.

    An ID may be cut short to what no other begins with. Without one, ids are read from standard input, one a line.
    Exit code 1 when one could not be retried.
    """
    if all_blocked and ids:
        raise click.UsageError("name jobs, or --all-blocked, not both")
    if stream is not None and not all_blocked:
        raise click.UsageError("--stream goes with --all-blocked")
    with open_queue(source.load()) as queue:
        if all_blocked:
            blocked = list_jobs(queue, {"blocked"}, stream)
            chosen: list[str] = [view.job.id for view in blocked if _wants_retry(view)]
            _confirm(f"retry {words.number(len(chosen), 'blocked job')}", len(chosen), yes)
        else:
            chosen = _chosen("retry", ids, yes)
        ctx.exit(_each(queue, chosen, queue.retry, "pending again"))


def _wants_retry(view: JobView | PutAside) -> TypeGuard[JobView]:
    """Whether a blocked job may be meant by "all": not one that somebody ended on purpose, and no mere file."""
    return isinstance(view, JobView) and not Record.of(view).cancelled


@click.command("release")
@_ids
@_yes
@with_source_options
@click.pass_context
def release_command(ctx: click.Context, source: Source, ids: tuple[str, ...], yes: bool) -> None:
    """Run deferred jobs now: scheduled ones, and those that wait to be retried.

    An ID may be cut short to what no other begins with. Without one, ids are read from standard input, one a line.
    Exit code 1 when one could not be released.
    """
    with open_queue(source.load()) as queue:
        ctx.exit(_each(queue, _chosen("release", ids, yes), queue.backend.run_now, "pending"))


@click.command("cancel")
@_ids
@_yes
@with_source_options
@click.pass_context
def cancel_command(ctx: click.Context, source: Source, ids: tuple[str, ...], yes: bool) -> None:
    """End jobs that have not started as blocked, without running them. A running job cannot be cancelled.

    An ID may be cut short to what no other begins with. Without one, ids are read from standard input, one a line.
    Exit code 1 when one could not be cancelled.
    """
    with open_queue(source.load()) as queue:
        ctx.exit(_each(queue, _chosen("cancel", ids, yes), queue.cancel, "cancelled"))


# -- which jobs


def _chosen(verb: str, ids: tuple[str, ...], yes: bool) -> list[str]:
    """The ids as arguments; else from standard input, which is asked about, because nobody has typed them."""
    if ids and ids != ("-",):
        return list(ids)
    stdin = standard_input()
    if stdin.isatty() and not ids:
        raise click.UsageError("name at least one job, or pipe ids in")
    read = [line.strip() for line in stdin if line.strip()]
    if len(read) > 1 and not yes:
        raise Refusal(f"to {verb} {words.number(len(read), 'job')} from standard input, add --yes", USAGE)
    return read


def _confirm(what: str, count: int, yes: bool) -> None:
    """Ask before something is done to many; without a terminal to ask, `--yes` must have been given."""
    if yes or not count:
        return
    if not standard_input().isatty():
        raise Refusal(f"to {what}, add --yes", USAGE)
    if not click.confirm(f"{what}?", err=True):
        raise Refusal("nothing was done", FAILED)


# -- doing it


def _each(queue: QueueKit, typed: Iterable[str], act: Callable[[str], None], outcome: str) -> int:
    """Do it to each, saying what came of it; 1 when one could not be done. A trouble of the store ends it at once."""
    code, count = 0, 0
    for id in typed:
        count += 1
        try:
            act(whole := id_of(queue, id))
        except Refusal as refusal:
            click.echo(f"workerpool: {refusal}", err=True)
            code = FAILED
        except QueueError as error:
            if code_of(error) == STORE:
                raise
            click.echo(f"{words.printable(id)}: {_why(error)}", err=True)
            code = FAILED
        else:
            click.echo(f"{words.printable(whole)} {outcome}")
    if not count:
        click.echo("no such jobs")
    return code


def _why(error: QueueError) -> str:
    if isinstance(error, IllegalTransition):
        hint = {
            State.CUR: "wait for its end, or stop its worker",
            State.NEW: "it will run by itself",
            State.LATER: "`workerpool release` runs it now",
            State.DONE: "`workerpool retry` runs it again",
        }
        return f"it is {error.state}{'; ' + hint[State(error.state)] if error.state in set(State) else ''}"
    if isinstance(error, JobNotFound):
        return error.detail or "there is no such job"
    return words.printable(str(error))
