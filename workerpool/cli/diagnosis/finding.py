"""One thing that was found: how bad it is, what it means, what to type. No I/O."""

from __future__ import annotations

import dataclasses
import enum


class Level(enum.StrEnum):
    """How bad. OK: as it should be; NOTE: good to know; WARNING: harm is possible; ERROR: something does not work."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


class Part(enum.Enum):
    """What an error keeps from working; its value is the exit code that says so."""

    SOMETHING = 1
    CONFIG = 2
    STORE = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """`topic`: one word; `found`: what was seen; `means`: what follows from it; `to_do`: what to do, "" = nothing.

    `part`: of an error, what does not work.
    """

    level: Level
    topic: str
    found: str
    means: str = ""
    to_do: str = ""
    part: Part = Part.SOMETHING

    def to_dict(self) -> dict[str, str]:
        """For `--json`."""
        return {
            "level": self.level.value,
            "topic": self.topic,
            "found": self.found,
            "means": self.means,
            "to_do": self.to_do,
        }


def ok(topic: str, found: str) -> Finding:
    """As it should be."""
    return Finding(Level.OK, topic, found)


def note(topic: str, found: str, means: str = "", to_do: str = "") -> Finding:
    """Good to know."""
    return Finding(Level.NOTE, topic, found, means, to_do)


def warning(topic: str, found: str, means: str, to_do: str = "") -> Finding:
    """Harm is possible."""
    return Finding(Level.WARNING, topic, found, means, to_do)


def error(topic: str, found: str, means: str = "", to_do: str = "", part: Part = Part.SOMETHING) -> Finding:
    """Something does not work."""
    return Finding(Level.ERROR, topic, found, means, to_do, part)


def exit_code(findings: list[Finding]) -> int:
    """0 without errors; else 3 when the store cannot be used, 2 for the configuration, 1 for the rest."""
    return max((each.part.value for each in findings if each.level is Level.ERROR), default=0)
