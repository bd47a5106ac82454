"""How the effects of two runs differ, in words and as a diff, and what usually helps against it. No I/O.

Effects are text by name: of a file its path, of a command's output the command, of the job's end what it is.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
from collections.abc import Iterator, Mapping

Effects = Mapping[str, str]
_CONTEXT_LINES = 2
_MOST_LINES = 40
_LONGEST_LINE = 200


class Fault(enum.Enum):
    """What is wrong with the effects after a kill and another run; the value is the end of a sentence: there is …"""

    DOUBLE = "a double effect"
    SURPLUS = "an effect too many"
    MISSING = "a missing effect"
    HALF = "half an effect"
    OTHER = "a different effect"
    STUCK = "a job that never completes"


_HELP = {
    Fault.DOUBLE: "make the effect one that can be repeated: the job's id as the key (INSERT … ON CONFLICT DO NOTHING, "
    "a file named by job.id), replacing instead of appending, ctx.submit for follow-up jobs",
    Fault.SURPLUS: "have the next run replace what a killed one has left: names made of job.id instead of random ones, "
    "a folder that is emptied first; what is temporary belongs into tempfile's folder",
    Fault.MISSING: "note that something is done together with it (one transaction), or after it, never before",
    Fault.HALF: "write a file under another name, and os.replace it over the right one when it is whole",
    Fault.OTHER: "compute the result anew from the job in each run and replace the old one (os.replace, one "
    "transaction) instead of changing what is there; let a name or row appear only when it is whole",
    Fault.STUCK: "expect what a killed run has left: a lock file, a folder that is there already (exist_ok=True), half "
    "a file",
}
_ALWAYS = "where another system has to refuse a run that was given up, pass it ctx.fence"


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """`fault`, what is affected (`names`), and a unified diff of it (`lines`), clipped."""

    fault: Fault
    names: tuple[str, ...]
    lines: tuple[str, ...]


def compare(expected: Effects, found: Effects, title: str = "killed, run again") -> Difference | None:
    """How `found`, of a run that `title` tells of, differs from what an undisturbed run leaves; None: it does not."""
    names = tuple(name for name in sorted({*expected, *found}) if expected.get(name) != found.get(name))
    if not names:
        return None
    faults = {_fault(expected.get(name), found.get(name)) for name in names}
    fault = faults.pop() if len(faults) == 1 else Fault.OTHER
    lines = [line for name in names for line in _diff(name, title, expected.get(name), found.get(name))]
    if len(lines) > _MOST_LINES:
        lines = [*lines[:_MOST_LINES], f"… and {len(lines) - _MOST_LINES} lines more"]
    return Difference(fault, names, tuple(lines))


def help_against(fault: Fault) -> tuple[str, ...]:
    """What usually helps, each a sentence without its point."""
    return _HELP[fault], _ALWAYS


def _fault(expected: str | None, found: str | None) -> Fault:
    if found is None:
        return Fault.MISSING
    if expected is None:
        return Fault.SURPLUS
    old, new = expected.splitlines(), found.splitlines()
    added = _beyond(new, old)
    removed = _beyond(old, new)
    if found.startswith(expected) and found[len(expected) :] in expected:
        return Fault.DOUBLE
    if added and not removed:
        return Fault.DOUBLE if all(line in old for line in added) else Fault.SURPLUS
    if expected.startswith(found) and not found.endswith("\n"):
        return Fault.HALF
    return Fault.MISSING if removed and not added else Fault.OTHER


def _beyond(lines: list[str], other: list[str]) -> list[str]:
    """The lines that `other` has not, or not so often."""
    left = list(other)
    more = []
    for line in lines:
        if line in left:
            left.remove(line)
        else:
            more.append(line)
    return more


def _diff(name: str, title: str, expected: str | None, found: str | None) -> Iterator[str]:
    old, new = _lines(expected), _lines(found)
    titles = f"{name} (undisturbed)", f"{name} ({title})"
    for line in difflib.unified_diff(old, new, *titles, lineterm="", n=_CONTEXT_LINES):
        yield line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}…"
    if old == new:
        yield f"{name}: the ends of lines differ"


def _lines(text: str | None) -> list[str]:
    if text is None:
        return ["(not there)"]
    return text.splitlines() or ["(empty)"]
