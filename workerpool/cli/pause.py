"""`pause` and `resume`: a person's word about one stream, kept beside the store; running pools are told at once."""

from __future__ import annotations

import signal

import click

from queuekit import BackendUnavailable, QueueKit
from queuekit.clock import now_ms
from workerpool import pauses
from workerpool.cli import words
from workerpool.cli.main import USAGE, Refusal
from workerpool.cli.options import Source, complete_streams, with_source_options
from workerpool.cli.pools import Pool, read_pools
from workerpool.cli.store import open_queue
from workerpool.cli.telling import tell_deed
from workerpool.config import PoolConfig
from workerpool.locations import board_directory, make_board_directory
from workerpool.process import kill_process

_ATTENTIVE = {"running", "quiet"}
"""States of a master in which it takes signals, and is not about to end."""


@click.command("pause")
@click.argument("stream", shell_complete=complete_streams)
@with_source_options
def pause_command(source: Source, stream: str) -> None:
    """Claim nothing more of STREAM, until `resume`.

    What was claimed already is run. The pause survives a restart, and can be made while no pool runs.
    `status` says since when. A burst (`run --burst`) does not wait for a paused stream.
    """
    config = source.load_store()
    with open_queue(config) as queue:
        _check_known(source, config, queue, stream)
    directory = make_board_directory(config)
    try:
        pause, is_new = pauses.pause(directory, stream)
    except OSError as error:
        raise BackendUnavailable(f"cannot write the pause: {error.strerror}") from error
    if not is_new:
        by = f" by {words.printable(pause.user)}" if pause.user else ""
        click.echo(
            f"stream {words.printable(stream)} is paused already, since {words.since(pause.since_ms, now_ms())}{by}"
        )
        return
    told = _tell_pools(directory)
    tell_deed(f"stream {stream} is paused: nothing more is claimed; `workerpool resume {stream}` ends it")
    if not told:
        click.echo("there was no running pool to tell; the next one will see it")


@click.command("resume")
@click.argument("stream", shell_complete=complete_streams)
@with_source_options
def resume_command(source: Source, stream: str) -> None:
    """Work STREAM again after a `pause`."""
    config = source.load_store()
    directory = board_directory(config)
    try:
        ended = pauses.resume(directory, stream)
    except OSError as error:
        raise BackendUnavailable(f"cannot remove the pause: {error.strerror}") from error
    if ended is None:
        with open_queue(config) as queue:
            _check_known(source, config, queue, stream)
        click.echo(f"stream {words.printable(stream)} is not paused")
        return
    _tell_pools(directory)
    tell_deed(f"stream {stream} goes on; it was paused since {words.since(ended.since_ms, now_ms())}")


def _check_known(source: Source, config: PoolConfig, queue: QueueKit, stream: str) -> None:
    """Raise `Refusal` for a stream that the configuration does not name; without one, that has no jobs either."""
    known = [each.name for each in config.streams] or sorted(queue.backend.streams())
    if stream in known:
        return
    from workerpool.config_model import did_you_mean

    near = did_you_mean(stream, known) or (f"; there are {', '.join(known)}" if known else "")
    where = source.path or words.masked(config.store.url)
    raise Refusal(f"{where} has no stream {words.printable(stream)!r}{near}", USAGE)


def _tell_pools(directory: str) -> int:
    """Have every pool of the store look at its pauses; returns how many were told, the others look by themselves."""
    pools = [pool for pool in read_pools(directory) if _is_attentive(pool)]
    return sum(kill_process(pool.header.pid, pool.header.start, signal.SIGUSR1) for pool in pools)


def _is_attentive(pool: Pool) -> bool:
    """Whether the signal is safe: a master that is not set up yet would die of it, and looks when it is."""
    return pool.alive and pool.master is not None and pool.master.state in _ATTENTIVE
