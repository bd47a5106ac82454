"""Tables for people. What comes from jobs and handlers is text here, never markup; its control codes are escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from queuekit.clock import now_ms
from queuekit.contract import JobView, PutAside
from workerpool.cli import words
from workerpool.cli.record import Record

MENDING = "mend it, then `workerpool check` and `workerpool reload`"
_WIDTH_WITHOUT_TERMINAL = 200
_STYLES = {
    "running": "green",
    "done": "green",
    "failing": "bold red",
    "in trouble": "bold red",
    "stopped": "red",
    "stuck": "bold red",
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


def whole(value: object) -> Text:
    """A cell of foreign text that is never cut, such as an id: it goes on in the next line instead."""
    return Text(words.printable(str(value)), overflow="fold")


class Fitted:
    """A table without lines that leaves lesser columns out where there is no room for all.

    The first column holds what names a row and is never cut. `right`: columns of numbers; `lesser`: what to leave out,
    the first first; `elastic`: a column that may be cut, down to a few words.
    """

    _GAP = 2
    _SHORTEST = 16

    def __init__(self, *columns: str, right: Iterable[str] = (), lesser: Sequence[str] = (), elastic: str = "") -> None:
        self._columns = columns
        self._right = set(right)
        self._lesser = lesser
        self._elastic = elastic
        self._rows: list[Sequence[Text]] = []

    def add(self, *cells: Text) -> None:
        """One row, a cell for each column."""
        self._rows.append(cells)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table for a console of this width."""
        made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, self._GAP, 0, 0))
        shown = self._fitting(options.max_width)
        for place, width in shown.items():
            name = self._columns[place]
            justify: JustifyMethod = "right" if name in self._right else "left"
            made.add_column(name, justify=justify, no_wrap=place > 0, width=width)
        for row in self._rows:
            made.add_row(*(row[place] for place in shown))
        yield made

    def _fitting(self, room: int) -> dict[int, int]:
        """The columns to show by their places, and how wide each is; what is over goes to the elastic one."""
        natural = [self._width(place) for place in range(len(self._columns))]
        widths = dict(enumerate(natural))
        stretched = self._columns.index(self._elastic) if self._elastic else 0
        if self._elastic:
            widths[stretched] = min(natural[stretched], self._SHORTEST)
        for name in sorted(self._lesser, key=self._says_something):
            if self._taken(widths) <= room:
                break
            del widths[self._columns.index(name)]
        if stretched in widths:
            left = room - self._taken(widths)
            widths[stretched] = min(natural[stretched], widths[stretched] + max(0, left))
        return widths | {0: min(widths[0], room)}

    def _says_something(self, name: str) -> bool:
        place = self._columns.index(name)
        return any(row[place].plain for row in self._rows)

    def _taken(self, widths: Mapping[int, int]) -> int:
        return sum(widths.values()) + self._GAP * (len(widths) - 1)

    def _width(self, place: int) -> int:
        return max([len(self._columns[place]), *(row[place].cell_len for row in self._rows)])


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
    lines = [whole(f"store  {facts['store']}")]
    alive = [pool for pool in facts["pools"] if pool["alive"]]
    for pool in alive:
        age = words.duration(pool["seconds"])
        lines.append(whole(f"pool   pid {pool['pid']}, {pool['state']}, up {age}, {pool['config'] or 'no file'}"))
    if not alive:
        lines.append(whole("pool   none runs; `workerpool run` starts one"))
    return lines


def _streams(streams: Sequence[Mapping[str, Any]], rates: Mapping[str, float]) -> Fitted:
    counts = ("pending", "claimed", "running", "retrying", "scheduled", "done", "blocked")
    drawn = Fitted(
        *("stream", "state", *counts, "jobs/s", "restarts", "lease"),
        right=(*counts, "jobs/s", "restarts"),
        lesser=("restarts", "jobs/s", "lease", "claimed", *counts[3:5], "running", "done", "blocked", "state"),
        elastic="lease",
    )
    for stream in streams:
        rate = rates.get(stream["name"], stream["jobs_per_second"])
        drawn.add(
            whole(stream["name"]),
            styled(_state(stream)),
            *(text(f"{stream[count]:,}") for count in counts),
            text("" if rate is None else f"{rate:,.1f}"),
            text(stream["restarts"]),
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
    elif lease["sharers"]:
        said = _sharing_words(lease["sharers"])
    else:
        whom = f"pid {lease['pid']}" if lease["pid"] is not None else lease["owner"]
        word = "left by the dead or silent" if lease["state"] == "left" else f"{lease['state']} by"
        said = f"{lease['state']} ({whom})" if lease["on_board"] and lease["state"] != "held" else f"{word} {whom}"
        if not lease["on_board"] and lease["age"] is not None:
            said += f", renewed {words.duration(lease['age'])} ago"
    waiting = ", ".join(f"pid {pid}" for pid in lease["standby_pids"])
    return f"{said}; standby: {waiting}" if waiting else said


def _sharing_words(sharers: Sequence[Mapping[str, Any]]) -> str:
    """How many share a stream, and how many of them are on boards here: the pids of other machines say nothing."""
    return f"shared by {len(sharers)}, {sum(each['on_board'] for each in sharers)} of them here"


def _workers(workers: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> Fitted:
    drawn = Fitted(
        *("job", "for", "progress", "worker", "pid", "state", "restarts"),
        right=("pid", "restarts"),
        lesser=("restarts", "state", "progress", "pid", "worker", "for"),
    )
    for _, worker in workers:
        more = f" +{worker['jobs_together'] - 1}" if worker["jobs_together"] > 1 else ""
        progress = worker["progress"]
        drawn.add(
            whole(f"{worker['job']}{more}" if worker["job"] else "idle"),
            text(words.duration(worker["seconds"]) if worker["seconds"] is not None else ""),
            text(f"{progress[0]:,}/{progress[1]:,}" if progress else ""),
            text(worker["name"]),
            text(worker["pid"]),
            styled(worker["state"]),
            text(worker["restarts"]),
        )
    return drawn


def _trouble(stream: Mapping[str, Any]) -> Text:
    said = f"! {words.printable(stream['name'])}: {words.last_line(stream['error'])}"
    return Text(f"{said}; {MENDING}" if stream["cannot_load"] else said, style="red")


# -- jobs


def jobs(views: Iterable[JobView | PutAside]) -> RenderableType:
    """The list of `jobs`."""
    drawn = Fitted(
        *("id", "stream", "state", "sent", "due / ended", "failed runs", "last error"),
        right=("failed runs",),
        lesser=("sent", "due / ended", "failed runs", "last error", "stream", "state"),
        elastic="last error",
    )
    now = now_ms()
    for view in views:
        drawn.add(*(_of_file(view, now) if isinstance(view, PutAside) else _of_job(view, now)))
    return drawn


def _of_job(view: JobView, now: int) -> list[Text]:
    record = Record.of(view)
    said = "cancelled" if record.cancelled else words.last_line(record.last_error, 80)
    return [
        whole(view.job.id),
        text(view.job.stream_id),
        styled(words.state_word(view)),
        text(words.relative(view.job.submitted_at.physical_time, now)),
        text(_when(view, now)),
        text(record.attempts or ""),
        text(said),
    ]


def _of_file(aside: PutAside, now: int) -> list[Text]:
    ended = text(words.relative(aside.ended_ms, now))
    return [
        whole(aside.name),
        text(aside.stream),
        styled("blocked"),
        text(""),
        ended,
        text(""),
        text(words.QUARANTINED),
    ]


def _when(view: JobView, now: int) -> str:
    if view.signal:
        return words.relative(view.signal.completed_at.physical_time, now)
    return words.relative(view.due_ms, now) if view.due_ms is not None else ""
