"""Which job somebody means: a whole id, or as much of its beginning as tells it from every other, as git has it.

A whole id goes before a beginning, and whatever is not found here is handed on as it was typed, so that the act itself
says that there is no such job.
"""

from __future__ import annotations

import re

from queuekit import QueueKit
from workerpool.cli import words
from workerpool.cli.main import USAGE, Refusal

SHORTEST = 4
_SHOWN = 4
_WHOLE = re.compile(r"[0-9a-f]{32}")


def id_of(queue: QueueKit, typed: str) -> str:
    """The id that begins with `typed`; `typed` itself where none does, or where it is one.

    Raises `Refusal` when several do, `BackendUnavailable` when the store cannot be read.
    """
    if len(typed) < SHORTEST or _WHOLE.fullmatch(typed):
        return typed
    found = queue.backend.ids_beginning(typed)
    if not found or typed in found:
        return typed
    if len(found) > 1:
        raise Refusal(_ambiguous(typed, found), USAGE)
    return found[0]


def _ambiguous(typed: str, found: list[str]) -> str:
    shown = ", ".join(words.printable(id) for id in found[:_SHOWN])
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"{words.printable(typed)!r} begins the ids of {len(found)} jobs, type more of it: {shown}{more}"
