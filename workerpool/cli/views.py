"""Tables for people. What comes from jobs and handlers is text here, never markup; its control codes are escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from queuekit.clock import now_ms
from queuekit.contract import JobView
from queuekit.job import Delivery
from workerpool.cli import words

_WIDTH_WITHOUT_TERMINAL = 200
_STYLES = {
    "running": "green",
    "done": "green",
    "failing": "bold red",
    "blocked": "red",
    "retrying": "yellow",
    "stopping": "yellow",
    "not worked": "yellow",
    "paused": "yellow",
    "starting": "cyan",
    "dead": "red",
}


def console(*, stderr: bool = False) -> Console:
    """Where to draw: as wide as the terminal, wide and without colour where there is none."""
    made = Console(stderr=stderr, highlight=False)  # honours NO_COLOR
    return made if made.is_terminal else Console(stderr=stderr, highlight=False, width=_WIDTH_WITHOUT_TERMINAL)


def show(view: RenderableType) -> None:
    """Draw it on standard output."""
    console().print(view)


def text(value: object, style: str = "") -> Text:
    """A cell of foreign text."""
    return Text(words.printable(str(value)), style=style, overflow="ellipsis", no_wrap=True)


def styled(word: str) -> Text:
    """A state in its colour."""
    return text(word, _STYLES.get(word, ""))


def table(*columns: str, right: Iterable[str] = ()) -> Table:
    """A table without lines; the columns in `right` hold numbers."""
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column, justify="right" if column in set(right) else "left", no_wrap=True)
    return made


# -- status


def status(facts: Mapping[str, Any], rates: Mapping[str, float] | None = None) -> Group:
    """The screen of `status`. `rates`: jobs per second by stream, where they are better known than the average."""
    parts: list[RenderableType] = [*_head(facts), Text(), _streams(facts["streams"], rates or {})]
    workers = [(stream, worker) for stream in facts["streams"] for worker in stream["workers"]]
    if workers:
        parts += [Text(), _workers(workers)]
    parts += [Text(f"! {words.printable(warning)}", style="yellow") for warning in facts["warnings"]]
    parts += [_trouble(stream) for stream in facts["streams"] if stream["error"]]
    return Group(*parts)


def _head(facts: Mapping[str, Any]) -> list[Text]:
    lines = [text(f"store  {facts['store']}")]
    alive = [pool for pool in facts["pools"] if pool["alive"]]
    for pool in alive:
        age = words.duration(pool["seconds"])
        lines.append(text(f"pool   pid {pool['pid']}, {pool['state']}, up {age}, {pool['config'] or 'no file'}"))
    if not alive:
        lines.append(text("pool   none runs; `workerpool run` starts one"))
    return lines


def _streams(streams: Sequence[Mapping[str, Any]], rates: Mapping[str, float]) -> Table:
    counts = ("pending", "running", "retrying", "scheduled", "done", "blocked")
    drawn = table("stream", "state", *counts, "jobs/s", "restarts", "lease", right=(*counts, "jobs/s", "restarts"))
    for stream in streams:
        rate = rates.get(stream["name"], stream["jobs_per_second"])
        drawn.add_row(
            text(stream["name"]),
            styled(_state(stream)),
            *(f"{stream[count]:,}" for count in counts),
            "" if rate is None else f"{rate:,.1f}",
            f"{stream['restarts']}",
            text(lease_words(stream["lease"])),
        )
    return drawn


def _state(stream: Mapping[str, Any]) -> str:
    """A stream in one word: how it is, unless it is well and told to rest."""
    rests = stream["paused_since_ms"] is not None and stream["health"] == "running"
    return "paused" if rests else str(stream["health"])


def lease_words(lease: Mapping[str, Any]) -> str:
    """Who has a stream, and who waits for it."""
    if lease["state"] == "free":
        said = "free"
    else:
        whom = f"pid {lease['pid']}" if lease["pid"] is not None else lease["owner"]
        said = f"{lease['state']} by {whom}" if lease["state"] == "held" else f"{lease['state']} ({whom})"
        if not lease["on_board"]:
            said += f", renewed {words.duration(lease['age'])} ago"
    waiting = ", ".join(f"pid {pid}" for pid in lease["standby_pids"])
    return f"{said}; standby: {waiting}" if waiting else said


def _workers(workers: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> Table:
    drawn = table("worker", "pid", "state", "job", "for", "progress", "restarts", right=("pid", "restarts"))
    for _, worker in workers:
        more = f" +{worker['jobs_together'] - 1}" if worker["jobs_together"] > 1 else ""
        progress = worker["progress"]
        drawn.add_row(
            text(worker["name"]),
            f"{worker['pid']}",
            styled(worker["state"]),
            text(f"{worker['job']}{more}" if worker["job"] else "idle"),
            words.duration(worker["seconds"]) if worker["seconds"] is not None else "",
            f"{progress[0]:,}/{progress[1]:,}" if progress else "",
            f"{worker['restarts']}",
        )
    return drawn


def _trouble(stream: Mapping[str, Any]) -> Text:
    return Text(f"! {words.printable(stream['name'])}: {words.last_line(stream['error'])}", style="red")


# -- jobs


def jobs(views: Iterable[JobView]) -> Table:
    """The list of `jobs`."""
    drawn = table("id", "stream", "state", "sent", "due / ended", "failed runs", "last error", right=("failed runs",))
    now = now_ms()
    for view in views:
        delivery = Delivery.of(view.job)
        drawn.add_row(
            Text(words.printable(view.job.id), no_wrap=True, overflow="fold"),
            text(view.job.stream_id),
            styled(words.state_word(view)),
            words.relative(view.job.submitted_at.physical_time, now),
            _when(view, now),
            f"{delivery.attempt or ''}",
            text(words.last_line(last_error(view), 80)),
        )
    return drawn


def _when(view: JobView, now: int) -> str:
    if view.signal:
        return words.relative(view.signal.completed_at.physical_time, now)
    return words.relative(view.due_ms, now) if view.due_ms is not None else ""


def last_error(view: JobView) -> str:
    """The newest error that a job's records have; "" when there is none."""
    said = (view.dossier or {}).get("error")
    errors = Delivery.of(view.job).errors
    return said if isinstance(said, str) else errors[-1] if errors else ""
