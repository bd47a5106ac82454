"""`retry`, `release`, `cancel`: what a person does to jobs, also beside a running pool.

Each job is taken for itself: what cannot be done to one is said with its reason, and the others go on.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from typing import TypeGuard

import click

from queuekit import JobNotFound, QueueError, QueueKit
from queuekit.contract import JobView, PutAside
from queuekit.errors import IllegalTransition
from queuekit.lifecycle import State
from workerpool.cli import words
from workerpool.cli.jobs import list_jobs
from workerpool.cli.leases import holder_of
from workerpool.cli.main import FAILED, STORE, USAGE, Refusal, code_of
from workerpool.cli.options import Source, complete_streams, standard_input, where_option, with_source_options
from workerpool.cli.pools import read_pools, who_runs
from workerpool.cli.record import Record
from workerpool.cli.store import open_queue
from workerpool.cli.telling import tell_deed
from workerpool.cli.which import id_of
from workerpool.config import PoolConfig
from workerpool.locations import board_directory, store_folder

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
    config = source.load_store()
    with open_queue(config) as queue:
        if all_blocked:
            blocked = list_jobs(queue, {"blocked"}, stream)
            chosen: list[str] = [view.job.id for view in blocked if _wants_retry(view)]
            confirm(f"retry {words.number(len(chosen), 'blocked job')}", len(chosen), yes)
        else:
            chosen = _chosen("retry", ids, yes)
        ctx.exit(_each(config, queue, chosen, queue.retry, "pending again"))


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
    config = source.load_store()
    with open_queue(config) as queue:
        ctx.exit(_each(config, queue, _chosen("release", ids, yes), queue.backend.run_now, "pending"))


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
    config = source.load_store()
    with open_queue(config) as queue:
        ctx.exit(_each(config, queue, _chosen("cancel", ids, yes), queue.cancel, "cancelled"))


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


def confirm(what: str, count: int, yes: bool) -> None:
    """Ask before something is done to many; without a terminal to ask, `--yes` must have been given."""
    if yes or not count:
        return
    if not standard_input().isatty():
        raise Refusal(f"to {what}, add --yes", USAGE)
    if not click.confirm(f"{what}?", err=True):
        raise Refusal("nothing was done", FAILED)


# -- doing it


def _each(config: PoolConfig, queue: QueueKit, typed: Iterable[str], act: Callable[[str], None], outcome: str) -> int:
    """Do it to each, saying what came of it; 1 when one could not be done. A trouble of the store ends it at once."""
    code, count = 0, 0
    for id in typed:
        count += 1
        whole = id
        try:
            act(whole := id_of(queue, id))
        except Refusal as refusal:
            click.echo(f"workerpool: {words.printable_lines(str(refusal))}", err=True)
            code = FAILED
        except QueueError as error:
            if code_of(error) == STORE:
                raise
            click.echo(f"{words.printable(id)}: {_why(config, queue, whole, error)}", err=True)
            code = FAILED
        else:
            tell_deed(f"{words.printable(whole)} {outcome}")
    if not count:
        click.echo("no such jobs")
    return code


def _why(config: PoolConfig, queue: QueueKit, id: str, error: QueueError) -> str:
    """Why it could not be done, and what can be."""
    if isinstance(error, IllegalTransition | JobNotFound) and queue.backend.put_aside(id) is not None:
        return f"{words.QUARANTINED}; nothing can run it, `workerpool show {words.printable(id)}` says what to do"
    if isinstance(error, JobNotFound):
        return error.detail or "there is no such job"
    if not isinstance(error, IllegalTransition):
        return words.printable(str(error))
    if error.state == State.CUR:
        return _about_claimed(config, queue, id)
    where = where_option(config)
    steps = {
        State.NEW: "it will run by itself",
        State.LATER: f"`workerpool release {words.printable(id)}{where}` runs it now",
        State.DONE: f"`workerpool retry {words.printable(id)}{where}` runs it again",
    }
    step = steps.get(State(error.state)) if error.state in set(State) else None
    return f"it is {error.state}; {step}" if step else f"it is {error.state}"


def _about_claimed(config: PoolConfig, queue: QueueKit, id: str) -> str:
    """Of a job in flight: who has it, and until when it cannot be acted on."""
    pools = read_pools(board_directory(config))
    found = who_runs([pool for pool in pools if pool.alive], id)
    if found is not None:
        return f"it is running in {found[1].name} (pid {found[1].pid}); wait for its end"
    view = queue.look_up(id)
    stream = "" if view is None else str(view.job.stream_id)
    if any(pool.alive and pool.stream(stream) is not None for pool in pools):
        return "a pool has claimed it, and runs it as soon as a worker is free; wait for its end"
    holder = holder_of(queue, store_folder(config), stream) if stream else None
    if holder is not None and holder.is_valid:
        return f"it is in flight, claimed by {words.printable(holder.owner)}; wait for its end"
    name, where = words.printable(shlex.quote(stream)), where_option(config)
    return (
        "it is in flight, left there by somebody who is gone: the next `workerpool run` makes it pending again "
        f"(and runs it, unless `workerpool pause {name}{where}` comes first)"
    )
