"""A job's story as lines of `(label, text)`: sent, each failed run, where it is and why, how it ended, what it holds.

All text is fit for a terminal. Read in order it answers what somebody asks who did not write the handler: what happened
to this job, when, and what is it waiting for?
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from queuekit.contract import JobView
from queuekit.job import DELIVERY, Job
from queuekit.lifecycle import State
from workerpool.board import RowView
from workerpool.cli import words
from workerpool.cli.pools import Pool, StreamRows, running_for, who_runs
from workerpool.cli.record import EarlierEnd, FailedRun, Record
from workerpool.config import PoolConfig, StreamConfig
from workerpool.pauses import Pause
from workerpool.policy import BlockCause

Lines = Iterator[tuple[str, str]]
_PREVIEW = 500
_TOLD = {"cause", "ended", "was", "at_ms", "error", "errors", "attempts", "crashes", "blocked_at_ms", "runs"}
_STATUS = {
    "done_with_concerns": "that is what its handler returned; it is never tried again by itself",
    "needs_context": "that is what its handler returned; it is never tried again by itself",
    "blocked": "that is what its handler returned, or whoever replied for it",
}

_CAUSES = {
    BlockCause.EXHAUSTED.value: "retries exhausted: every run failed, and no more are allowed",
    BlockCause.CRASHED.value: "crashed too often: its runs killed their workers, and it is not let near another",
    BlockCause.DISCARDED.value: "discarded by its handler: it said that no run can succeed",
    BlockCause.UNDEFERRABLE.value: "its run failed, and the store can never keep it for another one: "
    "another program has given it too long a name, or something in it that cannot be written",
    "cancelled": "cancelled by a person before it ran",
    "unknown": "unknown: its record was damaged, and fsck has put this one in its place",
}
_ALLOWED = {BlockCause.EXHAUSTED.value: "retries", BlockCause.CRASHED.value: "max_crashes"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What surrounds a job: the pools, its stream's pause if there is one, the configuration, the time (ms).

    `held_up`: what else keeps its stream from its work, as `status` says it; `retry_cut_off`: a person's retry of the
    job has begun and did not come to its end.
    """

    pools: list[Pool]
    pause: Pause | None
    config: PoolConfig
    now_ms: int
    held_up: tuple[str, ...] = ()
    retry_cut_off: bool = False

    def worked(self, stream: str) -> StreamRows | None:
        """The process of a living pool that works a stream, one that holds its lease first."""
        found = [rows for pool in self.pools if pool.alive and (rows := pool.stream(stream)) is not None]
        return next(iter(sorted(found, key=lambda rows: rows.row.lease != "held")), None)


def tell(view: JobView, scene: Scene) -> Lines:
    """The story but for what to type next."""
    record = Record.of(view)
    sent = view.job.submitted_at.physical_time
    yield "sent", f"{words.since(sent, scene.now_ms)}, priority {view.job.priority}"
    yield from _earlier(record)
    yield from _runs(record)
    yield from _now(view, record, scene)
    yield from _because(view, record, scene.config.stream(view.job.stream_id))
    yield from _more(record.ending)
    yield from _contents(view.job)


# -- the past


def _earlier(record: Record) -> Lines:
    """Ends that a person has undone; the latest one with what is kept of it."""
    for place, end in enumerate(record.earlier_ends, start=1):
        yield "earlier", f"it ended {_earlier_words(end)}, and a person had it retried"
        if place == len(record.earlier_ends) and record.before:
            error, attempts = record.before.get("error"), record.before.get("attempts")
            runs = f"; {words.number(attempts, 'failed run')}" if isinstance(attempts, int) else ""
            yield "", f"{_cause_words(record.before) or 'for a reason not kept'}{runs}"
            if isinstance(error, str):
                yield "", words.last_line(error)


def _earlier_words(end: EarlierEnd) -> str:
    if end.text:
        return f"with a record that cannot be read: {words.printable(end.text)[:_PREVIEW]}"
    return f"{words.printable(end.status)} {words.moment(end.ended_ms)}"


def _runs(record: Record) -> Lines:
    """The failed runs, as far as their errors are kept."""
    if not record.attempts:
        return
    crashed = _crashed(record.attempts, record.crashes)
    lost = record.attempts - len(record.runs)
    kept = f"; of the first {lost} no more is kept" if lost else ""
    yield "failed", f"{words.number(record.attempts, 'run')}{crashed}{kept}"
    seen: dict[str, int] = {}
    for run in record.runs:
        first = seen.setdefault(run.error, run.number)
        lines = words_of(run.error)
        if first != run.number:
            lines = [f"as run {first}: {lines[0]}"]
        yield f"  run {run.number}", f"{_when(run)}{lines[0]}"
        for line in lines[1:]:
            yield "", line
        if run.halved_from:
            yield "", f"(a batch of {run.halved_from} jobs failed and was halved until this one stood alone)"


def _crashed(attempts: int, crashes: int) -> str:
    """How many of the failed runs died; what died with them, their errors tell."""
    if not crashes:
        return ""
    if attempts == crashes == 1:
        return ", charged as a crash"
    return f", {crashes} of them charged as {'a crash' if crashes == 1 else 'crashes'}"


def _when(run: FailedRun) -> str:
    if run.ended_ms is None:
        return ""
    after = "" if run.seconds is None else f" after {words.duration(run.seconds)}"
    return f"{words.moment(run.ended_ms)}{after}: "


def words_of(error: str) -> list[str]:
    """An error's lines for a terminal; at least one."""
    return [words.printable(line) for line in error.rstrip().splitlines() if line.strip()] or ["(no message)"]


# -- the present


def _now(view: JobView, record: Record, scene: Scene) -> Lines:
    stream = scene.config.stream(view.job.stream_id)
    if view.state is State.NEW:
        yield "now", f"pending{_which_run(record, stream)}"
        yield "", why_waiting(view.job, scene)
    elif view.state is State.LATER and view.due_ms is not None:
        why = f"waits for {_nth_run(record, stream)}" if view.retry else "put off as its sender wished"
        due = "due" if view.due_ms > scene.now_ms else "due since"
        yield "now", f"{why}; {due} {words.since(view.due_ms, scene.now_ms)}"
        if scene.worked(view.job.stream_id) is None or scene.pause is not None:
            yield "", f"it will not be run then as things are: {why_waiting(view.job, scene)}"
        else:
            yield from (("", f"its stream is held up: {reason}") for reason in scene.held_up)
    elif view.state is State.CUR:
        yield "now", _running(who_runs(scene.pools, view.job.id), view.job, record, scene)
        yield from (("", f"its stream is held up: {reason}") for reason in scene.held_up)
    elif view.signal is not None:
        yield from _ended(view, scene)
    elif scene.retry_cut_off:
        yield (
            "now",
            "a retry of it was cut off; a running pool or `workerpool fsck --repair` finishes it, and it runs then",
        )
    else:
        yield "ended", "its file lies among the finished ones, without a record of how it ended: it will not run again"


def _nth_run(record: Record, stream: StreamConfig | None) -> str:
    of = f" of at most {stream.retries + 1}" if stream is not None else ""
    return f"run {record.attempts + 1}{of}"


def _which_run(record: Record, stream: StreamConfig | None) -> str:
    return f", for {_nth_run(record, stream)}" if record.attempts else ""


def why_waiting(job: Job, scene: Scene) -> str:
    """Why a pending job does not run yet."""
    rows = scene.worked(job.stream_id)
    if scene.pause is not None:
        by = f" by {words.printable(scene.pause.user)}" if scene.pause.user else ""
        return f"its stream is paused{by} since {words.since(scene.pause.since_ms, scene.now_ms)}"
    if rows is None:
        runs = any(pool.alive for pool in scene.pools)
        return "a pool runs here, but does not work this stream" if runs else "no pool works its stream now"
    return _why_unclaimed(rows, scene.held_up)


def _why_unclaimed(rows: StreamRows, held_up: Sequence[str]) -> str:
    """The same of a stream that a pool works."""
    if rows.trouble:
        return f"its stream is failing: {words.last_line(rows.trouble)}"
    if held_up:
        return f"its stream is held up: {'; '.join(held_up)}"
    if rows.row.lease == "standby":
        return "the pool here stands by: another process works its stream, `workerpool status` says which"
    if rows.row.state != "running":
        return f"its stream's process is {words.printable(rows.row.state)}"
    busy = [row for row in rows.workers if row.job and row.owner_is_running()]
    if busy:
        return f"{len(busy)} of {words.number(len(rows.workers), 'worker')} busy with older jobs"
    return "about to be claimed"


def _running(found: tuple[Pool, RowView] | None, job: Job, record: Record, scene: Scene) -> str:
    stream = scene.config.stream(job.stream_id)
    if found is None:
        rows = scene.worked(job.stream_id)
        if rows is not None and rows.alive:
            return f"claimed by its stream's process (pid {rows.row.pid}), and waits for a worker"
        return "claimed, but not started yet; whoever claimed it is gone or not on a board: the next pool runs it again"
    pool, row = found
    name = words.printable(row.name)
    if not pool.alive and row.owner_is_running():
        return f"still running in {name} (pid {row.pid}), although the master of pool {pool.header.pid} is gone"
    if not pool.alive:
        return f"was running in {name} when pool {pool.header.pid} ended; the next pool runs it again"
    said = f"running in {name} (pid {row.pid}) for {words.duration(running_for(row, pool.same_boot))}"
    said += f", {_nth_run(record, stream)}" if record.attempts else ""
    said += f", in a batch of {row.batch}" if row.batch > 1 else ""
    said += f", {row.progress_done:,} of {row.progress_total:,}" if row.progress_total else ""
    if stream is not None and stream.timeout:
        said += f"; it may take {words.duration(stream.timeout)}"
    return said


def _ended(view: JobView, scene: Scene) -> Lines:
    if view.signal is None:
        return
    ended = view.signal.completed_at.physical_time
    took = words.duration(max(0, ended - view.job.submitted_at.physical_time) / 1000)
    yield "ended", f"{view.signal.status} {words.since(ended, scene.now_ms)}, {took} after it was sent"
    for artifact in view.signal.artifacts:
        yield "artifact", f"{artifact.type}: {words.printable(artifact.value)}"


# -- the reasons


def _because(view: JobView, record: Record, stream: StreamConfig | None) -> Lines:
    if view.state is not State.DONE or view.signal is None:
        return
    cause = _cause_words(record.ending, stream)
    if cause:
        yield "because", cause
        error = record.ending.get("error")
        if isinstance(error, str) and not record.runs:
            yield from (("", line) for line in words_of(error))
    elif view.signal.status.value in _STATUS:
        yield "because", _STATUS[view.signal.status.value]


def _cause_words(facts: Mapping[str, Any], stream: StreamConfig | None = None) -> str:
    """Why a job ended blocked, in a sentence, with the limit of its stream; "" when nobody has written it down."""
    cause = facts.get("cause") or facts.get("ended") or ""
    allowed = _ALLOWED.get(cause) if stream is not None else None
    said = _CAUSES.get(cause, words.printable(str(cause)))
    if cause == "cancelled" and isinstance(facts.get("was"), str):
        said += f"; it was {words.printable(facts['was'])}"
    return said if allowed is None else f"{said} ({allowed} = {getattr(stream, allowed)})"


def _more(facts: Mapping[str, Any]) -> Lines:
    """What somebody else has put into the dossier."""
    for key in sorted(facts.keys() - _TOLD):
        yield words.printable(str(key))[:9], words.printable(json.dumps(facts[key], ensure_ascii=False))[:_PREVIEW]


# -- what it holds


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
