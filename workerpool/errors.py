"""Errors of the pool: one class per cause under `PoolError`, the facts as attributes, the message built by the class.

What a queue refuses stays a `queuekit.QueueError`; these are about running one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence


class PoolError(Exception):
    """Root of all errors of this package; catch it to catch them all."""


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a configuration, as one line for a person.

    `file`: the file as it was named, `environment`, `command line`, or `config` for one that was handed over as a
    mapping; `line`: counted from 1, None where there is none; `key`: the full key (`streams.encode.workers`), the
    variable's name, or "" when the problem is the file itself; `message`: what is wrong and what to do.
    """

    file: str
    line: int | None
    key: str
    message: str

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return ": ".join(part for part in (place, self.key, self.message) if part)


class ConfigError(PoolError):
    """A configuration cannot be used. Nothing was started; correct every line of the message, they are all there is.

    Attributes: `problems` (`Problem`s in the order of the file, at least one).
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class TooFewDescriptors(PoolError):
    """A pool's processes may not open as many files as they need. Attributes: `needed`, `limit`."""

    def __init__(self, needed: int, limit: int) -> None:
        self.needed, self.limit = needed, limit
        super().__init__(f"a pool of this size needs at least {needed} descriptors; the limit is {limit} (ulimit -n)")
