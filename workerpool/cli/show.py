"""`workerpool show ID`: a job's whole story in plain words, and what to type next."""

from __future__ import annotations

import base64
import os
import shlex
from typing import Any

import click

from queuekit import BackendUnavailable, JobNotFound, QueueKit
from queuekit.backends.maildir import layout
from queuekit.clock import now_ms
from queuekit.contract import JobView, PutAside
from queuekit.lifecycle import State
from workerpool import pauses
from workerpool.board import RowView
from workerpool.cli import words
from workerpool.cli.jobs import brief
from workerpool.cli.options import Source, json_option, print_json, where_option, with_source
from workerpool.cli.pools import Pool, read_pools, who_runs
from workerpool.cli.record import Record
from workerpool.cli.report import what_holds_up
from workerpool.cli.store import open_queue
from workerpool.cli.story import Scene, payload_text, tell, why_waiting
from workerpool.cli.which import id_of
from workerpool.config import PoolConfig
from workerpool.locations import board_directory, store_folder


@click.command("show")
@click.argument("job_id", metavar="ID")
@with_source
@json_option
def show_command(source: Source, job_id: str, as_json: bool) -> None:
    """Tell the whole story of a job: sent when, each failed run with its error, where it is now and why, how it ended,
    and what to type next.

    Exit code 1 when there is no such job.
    """
    config = source.load_store()
    with open_queue(config) as queue:
        view = _find(queue, id_of(queue, job_id))
        if isinstance(view, PutAside):
            _tell_of_file(view, config, as_json=as_json)
            return
        scene = _scene(view, config, queue)
    if as_json:
        print_json(details(view, scene))
        return
    heading = f"job {view.job.id} of stream {view.job.stream_id}: {words.state_word(view)}"
    click.echo(words.printable(heading))
    for label, said in tell(view, scene):
        click.echo(f"  {label:<9} {said}")
    for step in next_steps(view, scene):
        click.echo(f"  {'next':<9} {step}")


def _find(queue: QueueKit, job_id: str) -> JobView | PutAside:
    """The job, or what was put aside under that name (or with that id in its name). Raises `JobNotFound`."""
    found = queue.look_up(job_id) or queue.backend.put_aside(job_id)
    if found is None:
        raise JobNotFound(job_id, "it was never sent here, or its record has been pruned")
    return found


def _tell_of_file(aside: PutAside, config: PoolConfig, *, as_json: bool) -> None:
    """What there is to say of what is no job."""
    if as_json:
        print_json(brief(aside))
        return
    folder = store_folder(config)
    kind = "row" if folder is None else "file"
    stream = f" of stream {words.printable(aside.stream)}" if aside.stream else ""
    click.echo(f"{kind} {words.printable(aside.name)}{stream}: blocked (quarantined)")
    place = "it" if folder is None else shlex.quote(os.path.join(folder, "done", aside.name))
    for label, said in (
        ("ended", f"put aside {words.since(aside.ended_ms, now_ms())}"),
        ("because", "it could not be read as a job; nobody has run it, and nobody will"),
        ("payload", f"unknown; the {kind} has {words.size(aside.size)}, as it was found"),
        ("next", f"look into {words.printable(place)}, and send what it should have been as a new job"),
    ):
        click.echo(f"  {label:<9} {said}")


def _scene(view: JobView, config: PoolConfig, queue: QueueKit) -> Scene:
    directory = board_directory(config)
    try:
        pause = pauses.find(directory, view.job.stream_id)
    except OSError as error:
        raise BackendUnavailable(f"cannot tell whether the stream is paused: {error.strerror}") from error
    pools = read_pools(directory)
    return Scene(
        pools=pools,
        pause=pause,
        config=config,
        now_ms=now_ms(),
        held_up=() if view.state is State.DONE else tuple(what_holds_up(view.job.stream_id, config, queue, pools)),
        retry_cut_off=_is_cut_off(view, config),
    )


def _is_cut_off(view: JobView, config: PoolConfig) -> bool:
    """Whether a retry has taken the job's end away, in a folder, and has not made it pending yet."""
    folder = store_folder(config)
    if folder is None or view.state is not State.DONE or view.signal is not None:
        return False
    return os.path.lexists(os.path.join(folder, layout.INTENTS, layout.job_filename(view.job)))


# -- what to type


def next_steps(view: JobView, scene: Scene) -> list[str]:
    """What to type, for a job that is where it is."""
    where = where_option(scene.config)
    id, stream = words.printable(view.job.id), view.job.stream_id
    if view.state is State.DONE:
        return _after_its_end(view, id, where, scene)
    steps = _to_work(stream, where, scene)
    if view.state is State.CUR:
        return steps or [f"workerpool status{where}"]
    if view.state is State.LATER:
        steps.append(f"workerpool release {id}{where}   (makes it due now)")
    return [*steps, f"workerpool cancel {id}{where}   (ends it without running it)"]


def _to_work(stream: str, where: str, scene: Scene) -> list[str]:
    """What it takes for the stream's jobs to run at all."""
    steps = []
    if scene.pause is not None:
        steps.append(f"workerpool resume {words.printable(shlex.quote(stream))}{where}   (its stream is paused)")
    rows = scene.worked(stream)
    if rows is None:
        steps.append(f"workerpool run{where}   (no pool works its stream now)")
    elif rows.cannot_load:
        steps.append(
            f"workerpool check{where}, when it is mended, then workerpool reload{where}   (its stream is failing)"
        )
    elif rows.trouble:
        steps.append(f"workerpool status{where}   (its stream is failing)")
    return steps


def _after_its_end(view: JobView, id: str, where: str, scene: Scene) -> list[str]:
    to_work = _to_work(view.job.stream_id, where, scene)
    if scene.retry_cut_off:
        return [f"workerpool retry {id}{where}   (finishes the retry)", *to_work]
    if view.signal is None or view.signal.status == "done":
        return []
    retry = f"workerpool retry {id}{where}   (once the cause is gone; its runs are counted from 0)"
    return [f"workerpool replay {id}{where}   (runs its handler here, settling nothing)", retry, *to_work]


def after_success(view: JobView, config: PoolConfig) -> list[str]:
    """What to type for a finished job whose handler is known to succeed now."""
    ended_well = view.signal is None or view.signal.status == "done"
    return [] if ended_well else [f"workerpool retry {words.printable(view.job.id)}{where_option(config)}"]


# -- the same for programs


def details(view: JobView, scene: Scene) -> dict[str, Any]:
    """The job as `show --json` has it: what `jobs --json` has, and the rest."""
    record = Record.of(view)
    found = who_runs(scene.pools, view.job.id) if view.state is State.CUR else None
    return brief(view) | {
        "failed_runs": record.attempts,
        "crashes": record.crashes,
        "errors": record.errors,
        "runs": [
            {"run": run.number, "error": run.error, "ended_ms": run.ended_ms, "seconds": run.seconds}
            for run in record.runs
        ],
        "cause": record.ending.get("cause") or record.ending.get("ended"),
        "waits_because": why_waiting(view.job, scene) if view.state is State.NEW else None,
        "retry_cut_off": scene.retry_cut_off,
        "paused_since_ms": scene.pause.since_ms if scene.pause else None,
        "earlier_ends": [{"status": end.status, "ended_ms": end.ended_ms} for end in record.earlier_ends],
        "payload": payload_text(view.job.payload),
        "payload_base64": base64.b64encode(view.job.payload).decode(),
        "extensions": dict(view.job.extensions),
        "artifacts": [
            {"type": artifact.type.value, "value": artifact.value}
            for artifact in (view.signal.artifacts if view.signal else ())
        ],
        "dossier": dict(view.dossier) if view.dossier else None,
        "worker": _worker(*found) if found else None,
    }


def _worker(pool: Pool, row: RowView) -> dict[str, Any]:
    return {"name": row.name, "pid": row.pid, "alive": pool.alive, "since_ms": row.since_ms}
