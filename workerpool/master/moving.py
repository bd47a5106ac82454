"""A root that is moved away or removed while a pool works it, and made anew: the pool starts anew on what is there.

A root that is only gone is waited for: its streams say so, keep what they have, and go on when it is back. One that is
another folder by now holds no lease of theirs and no board of this pool: then every stream process is ended (what it
was running belongs to the old root, where it stays in flight), a new board is made, and all are started again.
"""

from __future__ import annotations

import dataclasses
import logging
import os

from queuekit import QueueError
from workerpool.board import Kind
from workerpool.master.desk import Desk
from workerpool.trouble import Trouble

_log = logging.getLogger("workerpool.master")


class Moving:
    """Keeps `Desk.moving`: no stream is started meanwhile."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._trouble = Trouble("starting anew on the store", _log)

    def look(self) -> None:
        """A stream has won or lost its lease: see whether that is because the root is another one."""
        desk = self._desk
        board = desk.place.board
        if desk.is_ending or desk.moving or board.is_in_place():
            return
        root = os.path.dirname(os.path.dirname(board.path))
        _log.error("%s is another folder than this pool was started on: every stream starts anew there", root)
        desk.moving = True
        for member in desk.members.values():
            member.state.told_to_end = True
        desk.tell({"t": "kill"})

    def act(self, now: float) -> None:
        """Move on, once every stream process is gone."""
        if not self._is_due() or self._trouble.blocks(now):
            return
        desk = self._desk
        try:
            board = desk.place.move_on()
        except (QueueError, OSError) as error:
            self._trouble.met(error, now)
            return
        self._trouble.over(now)
        desk.place = dataclasses.replace(desk.place, board=board)
        board.row(0).take(kind=Kind.MASTER, name="master", state="quiet" if desk.quiet else "running")
        desk.moving = False

    def next(self) -> float | None:
        """When it is to be tried (again)."""
        return self._trouble.until if self._is_due() else None

    def _is_due(self) -> bool:
        desk = self._desk
        if not desk.moving or desk.is_ending:
            return False
        return all(member.child is None for member in desk.members.values())
