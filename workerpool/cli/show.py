"""`workerpool show ID`: a job's whole story in plain words, and what to type next."""

from __future__ import annotations

import base64
import json
import os
import shlex
from collections.abc import Iterator
from typing import Any

import click

from queuekit import JobNotFound, QueueKit
from queuekit.clock import now_ms
from queuekit.contract import JobView
from queuekit.job import DELIVERY, Delivery, Job
from queuekit.lifecycle import State
from workerpool.board import RowView
from workerpool.cli import words
from workerpool.cli.jobs import brief
from workerpool.cli.options import DEFAULT_CONFIG, Source, json_option, print_json, with_source
from workerpool.cli.pools import Pool, read_pools, running_for, who_runs
from workerpool.cli.store import board_directory, open_queue
from workerpool.config import PoolConfig

_PREVIEW = 500
Lines = Iterator[tuple[str, str]]


@click.command("show")
@click.argument("job_id", metavar="ID")
@with_source
@json_option
def show_command(source: Source, job_id: str, as_json: bool) -> None:
    """Tell the whole story of a job: sent when, each failed run with its error, where it is now, how it ended, and
    what to type next.

    Exit code 1 when there is no such job.
    """
    config = source.load()
    with open_queue(config) as queue:
        view = _find(queue, job_id)
    pools = read_pools(board_directory(config))
    if as_json:
        print_json(details(view, pools))
        return
    heading = f"job {view.job.id} of stream {view.job.stream_id}: {words.state_word(view)}"
    click.echo(words.printable(heading))
    for label, said in story(view, pools, config):
        click.echo(f"  {label:<9} {said}")


def _find(queue: QueueKit, job_id: str) -> JobView:
    """The job; raises `JobNotFound`, which says so when a file of that name was put aside as no job."""
    view = queue.look_up(job_id)
    if view is not None:
        return view
    if queue.signal(job_id) is not None:
        raise JobNotFound(job_id, "a file of this name could not be read as a job and was put aside in done/, blocked")
    raise JobNotFound(job_id, "it was never sent here, or its record has been pruned")


# -- the story


def story(view: JobView, pools: list[Pool], config: PoolConfig) -> Lines:
    """The story as lines of `(label, text)`; all text is fit for a terminal."""
    now = now_ms()
    job = view.job
    sent = job.submitted_at.physical_time
    yield "sent", f"{words.moment(sent)} ({words.relative(sent, now)}), priority {job.priority}"
    yield from _runs(view)
    yield from _now(view, pools, now)
    yield from _dossier(view)
    yield from _contents(job)
    for step in next_steps(view, pools, config):
        yield "next", step


def _runs(view: JobView) -> Lines:
    """The failed runs so far, as far as their errors are kept."""
    attempts, crashes, errors = _record(view)
    if not attempts:
        return
    crashed = f", {crashes} of them took the worker with them" if crashes else ""
    yield "failed", f"{words.number(attempts, 'run')}{crashed}"
    for number, error in enumerate(errors, start=attempts - len(errors) + 1):
        first, *rest = words_of(error)
        yield f"  run {number}", first
        for line in rest:
            yield "", line


def _record(view: JobView) -> tuple[int, int, list[str]]:
    """Failed runs, crashes and errors: of a blocked job from its dossier, where the last run is counted in."""
    delivery = Delivery.of(view.job)
    dossier = view.dossier or {}
    errors = dossier.get("errors")
    attempts, crashes = dossier.get("attempts"), dossier.get("crashes")
    if (
        view.state is State.DONE
        and isinstance(errors, list)
        and isinstance(attempts, int)
        and isinstance(crashes, int)
        and attempts >= delivery.attempt
    ):
        return attempts, crashes, [str(error) for error in errors]
    return delivery.attempt, delivery.crashes, list(delivery.errors)


def words_of(error: str) -> list[str]:
    """An error's lines for a terminal; at least one."""
    return [words.printable(line) for line in error.rstrip().splitlines()] or ["(no message)"]


def _now(view: JobView, pools: list[Pool], now: int) -> Lines:
    if view.state is State.NEW:
        yield "now", "pending: waits to be claimed"
    elif view.state is State.LATER and view.due_ms is not None:
        why = "to run again after a failed run" if view.retry else "as its sender wished"
        due = "due" if view.due_ms > now else "due since"
        yield "now", f"put off {why}; {due} {words.moment(view.due_ms)} ({words.relative(view.due_ms, now)})"
    elif view.state is State.CUR:
        yield "now", _running(who_runs(pools, view.job.id))
    elif view.signal is not None:
        ended = view.signal.completed_at.physical_time
        took = words.duration(max(0, ended - view.job.submitted_at.physical_time) / 1000)
        yield (
            "ended",
            f"{view.signal.status} {words.moment(ended)} ({words.relative(ended, now)}), {took} after it was sent",
        )
        for artifact in view.signal.artifacts:
            yield "artifact", f"{artifact.type}: {words.printable(artifact.value)}"
    else:
        yield "ended", "its file lies among the finished ones, without a record of how it ended: it will not run again"


def _running(found: tuple[Pool, RowView] | None) -> str:
    if found is None:
        return "claimed, but not started yet; if whoever claimed it is gone, the next pool runs it again"
    pool, row = found
    since = words.duration(running_for(row, pool.same_boot))
    if not pool.alive:
        return (
            f"was running in {words.printable(row.name)} when pool {pool.header.pid} ended; the next pool runs it again"
        )
    progress = f", {row.progress_done:,} of {row.progress_total:,}" if row.progress_total else ""
    return f"running in {words.printable(row.name)} (pid {row.pid}) for {since}{progress}"


def _dossier(view: JobView) -> Lines:
    """What is kept beside a job that ended badly, or more than once."""
    dossier = dict(view.dossier or {})
    if view.state is State.DONE:
        cause = dossier.get("cause") or dossier.get("ended")
        if cause:
            yield "because", words.printable(str(cause))
        if isinstance(dossier.get("was"), str):
            yield "", f"it was {words.printable(dossier['was'])} then"
    for end in _earlier_ends(dossier):
        yield "earlier", f"ended {end}, and was retried"
    known = {
        "cause",
        "ended",
        "was",
        "at_ms",
        "error",
        "errors",
        "attempts",
        "crashes",
        "blocked_at_ms",
        "earlier_ends",
    }
    for key in sorted(dossier.keys() - known):
        yield words.printable(str(key))[:9], words.printable(json.dumps(dossier[key], ensure_ascii=False))[:_PREVIEW]


def _earlier_ends(dossier: dict[str, Any]) -> Iterator[str]:
    ends = dossier.get("earlier_ends")
    for text in ends if isinstance(ends, list) else []:
        try:
            end = json.loads(text)
            yield f"{words.printable(str(end['status']))} {words.moment(end['completed_at']['physical_time'])}"
        except (TypeError, ValueError, KeyError):  # kept as it was found
            yield words.printable(str(text))[:_PREVIEW]


def _contents(job: Job) -> Lines:
    said = words.size(len(job.payload))
    preview = payload_text(job.payload)
    if preview:
        more = "…" if len(preview) > _PREVIEW else ""
        said += f": {words.printable(preview[:_PREVIEW])}{more}"
    elif job.payload:
        said += ", not text"
    yield "payload", said
    carried = {key: value for key, value in job.extensions.items() if key != DELIVERY}
    if carried:
        shown = words.printable(json.dumps(carried, ensure_ascii=False, sort_keys=True))
        yield "carries", shown if len(shown) <= _PREVIEW else f"{shown[:_PREVIEW]}…"


def payload_text(payload: bytes) -> str | None:
    """The payload as text; None when it is none."""
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return None


def next_steps(view: JobView, pools: list[Pool], config: PoolConfig) -> list[str]:
    """What to type, for a job that is where it is."""
    where = _where(config)
    id = words.printable(view.job.id)
    worked = any(pool.alive and pool.stream(view.job.stream_id) for pool in pools)
    run = [] if worked else [f"workerpool run{where}   (no pool works its stream now)"]
    match view.state:
        case State.NEW:
            return [*run, f"workerpool cancel {id}{where}   (ends it without running it)"]
        case State.LATER:
            return [
                *run,
                f"workerpool release {id}{where}   (runs it now)",
                f"workerpool cancel {id}{where}   (ends it without running it)",
            ]
        case State.CUR:
            return run or [f"workerpool status{where}"]
        case State.DONE if view.signal is not None and view.signal.status != "done":
            return [f"workerpool retry {id}{where}   (once the cause is gone; its runs are counted from 0)", *run]
    return []


def _where(config: PoolConfig) -> str:
    """How to name the configuration again; nothing when it is the default one."""
    if config.path is None:
        return f" --store {shlex.quote(words.masked(config.store.url))}"
    if config.path == os.path.abspath(DEFAULT_CONFIG):
        return ""
    return f" --config {shlex.quote(os.path.relpath(config.path))}"


# -- the same for programs


def details(view: JobView, pools: list[Pool]) -> dict[str, Any]:
    """The job as `show --json` has it: what `jobs --json` has, and the rest."""
    attempts, crashes, errors = _record(view)
    found = who_runs(pools, view.job.id) if view.state is State.CUR else None
    return brief(view) | {
        "failed_runs": attempts,
        "crashes": crashes,
        "errors": errors,
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
