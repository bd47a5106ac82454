"""The life of a job as one table: which verb takes it from which state to which. No I/O.

Every backend moves jobs only along these rows, and the diagram in the docs is drawn from them. A verb used from
another state raises `IllegalTransition` and changes nothing.
"""

from __future__ import annotations

import enum

from queuekit.errors import IllegalTransition


class State(enum.StrEnum):
    """Where a job is."""

    NEW = "pending"
    LATER = "deferred"
    CUR = "running"
    DONE = "finished"


class Verb(enum.StrEnum):
    """What can be done to a job that exists."""

    PROMOTE = "promote"
    CLAIM = "claim"
    COMPLETE = "complete"
    RELEASE = "release"
    DEFER = "defer"
    RECLAIM = "reclaim"
    CANCEL = "cancel"
    RETRY = "retry"
    PRUNE = "prune"


TRANSITIONS: dict[tuple[State, Verb], State | None] = {
    (State.LATER, Verb.PROMOTE): State.NEW,
    (State.NEW, Verb.CLAIM): State.CUR,
    (State.CUR, Verb.COMPLETE): State.DONE,
    (State.CUR, Verb.RELEASE): State.NEW,
    (State.CUR, Verb.DEFER): State.LATER,
    (State.CUR, Verb.RECLAIM): State.NEW,
    (State.NEW, Verb.CANCEL): State.DONE,
    (State.LATER, Verb.CANCEL): State.DONE,
    (State.LATER, Verb.RELEASE): State.NEW,
    (State.DONE, Verb.RETRY): State.NEW,
    (State.DONE, Verb.PRUNE): None,
}


def target(state: State, verb: Verb, id: str = "") -> State | None:
    """Where `verb` takes a job that is in `state` (None: it is gone); raises `IllegalTransition` when it may not."""
    try:
        return TRANSITIONS[state, verb]
    except KeyError:
        raise IllegalTransition(verb, state, id) from None
