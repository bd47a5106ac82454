"""How the command line says things: states in words, ages, sizes, one safe line of foreign text. No I/O.

A job is `pending`, `running`, `scheduled` (put off by a person), `retrying` (put off after a failed run), or ended:
`done`, `done_with_concerns`, `needs_context`, `blocked`; `failed` is accepted for `blocked`.
"""

from __future__ import annotations

import datetime
import re
from urllib.parse import unquote

from queuekit.contract import JobView, PutAside
from queuekit.lifecycle import State

OPEN_STATES = ("pending", "running", "scheduled", "retrying")
END_STATES = ("done", "done_with_concerns", "needs_context", "blocked")
NO_RECORD = "without a record"
"""Of a finished job without a signal: nobody knows how it ended."""
QUARANTINED = "quarantined: it could not be read as a job and was put aside"
"""Of what a pool has moved out of the way."""

_STORED = {  # all other words are of jobs that have ended
    "pending": State.NEW,
    "running": State.CUR,
    "scheduled": State.LATER,
    "retrying": State.LATER,
}
_PARAMETER = re.compile(r"(?<=[?&])([^=&]*)=([^&]*)")
_TENTHS_BELOW = 10.0
_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))


def state_word(view: JobView | PutAside) -> str:
    """Where a job is, in one word; what was put aside is `blocked`."""
    if isinstance(view, PutAside):
        return "blocked"
    if view.state is State.NEW:
        return "pending"
    if view.state is State.CUR:
        return "running"
    if view.state is State.LATER:
        return "retrying" if view.retry else "scheduled"
    return view.signal.status.value if view.signal else NO_RECORD


def stored_state(word: str) -> State:
    """The state in the store of the jobs that a word means."""
    return _STORED.get(word, State.DONE)


def duration(seconds: float) -> str:
    """A length of time, rounded, in at most two units: `3s`, `2m5s`, `4h`; in tenths under ten seconds, else in ms."""
    if seconds < 1:
        return f"{max(0, round(seconds * 1000))}ms"
    if seconds < _TENTHS_BELOW:
        return f"{seconds:.1f}".removesuffix(".0") + "s"
    rest, parts = round(seconds), []
    for unit, size in _UNITS:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
        elif parts:
            break
    return "".join(parts[:2])


def moment(ms: int) -> str:
    """A point in time, ms since the epoch, on this machine's clock; nonsense as it is."""
    try:
        return datetime.datetime.fromtimestamp(ms / 1000).astimezone().isoformat(" ", "seconds")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms since 1970"


def relative(ms: int, now_ms: int) -> str:
    """The same as seen from now: `3s ago`, `in 2m`."""
    if ms > now_ms:
        return f"in {duration((ms - now_ms) / 1000)}"
    return f"{duration((now_ms - ms) / 1000)} ago"


def since(ms: int, now_ms: int) -> str:
    """When something began, both ways: `2026-11-30 15:16:20+00:00 (2m ago)`."""
    return f"{moment(ms)} ({relative(ms, now_ms)})"


def size(count: int) -> str:
    """Bytes for a person: `12 bytes`, `1.5 KiB`."""
    if count < 1024:
        return f"{count} byte{'' if count == 1 else 's'}"
    amount = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        amount /= 1024
        if amount < 1024:
            return f"{amount:.1f} {unit}"
    return f"{amount / 1024:.1f} TiB"


def number(count: int, noun: str) -> str:
    """`1 job`, `2,000 jobs`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def printable(text: str) -> str:
    """Foreign text for a terminal: what is not printable is escaped."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def printable_lines(text: str) -> str:
    """Words of ours around foreign text, for a terminal: as `printable`, but for the line ends."""
    return "\n".join(map(printable, text.split("\n")))


def last_line(text: str, limit: int = 200) -> str:
    """The line of an error that says most, printable and clipped: a traceback's last but for its notes."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = printable(lines[0] if lines and not lines[0].startswith("Traceback") else lines[-1] if lines else "")
    return line if len(line) <= limit else line[: limit - 1] + "…"


def masked(url: str) -> str:
    """A store's URL without its password. Where that is not written as it should be, too little is shown."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    rest = _PARAMETER.sub(_masked_parameter, rest)
    before, at, after = rest.rpartition("@")
    user, colon, _ = before.partition(":")
    return f"{scheme}://{user}:***@{after}" if at and colon else f"{scheme}://{rest}"


def _masked_parameter(match: re.Match[str]) -> str:
    name = unquote(match[1]).lower()
    return f"{match[1]}=***" if "pass" in name or "secret" in name else match[0]
