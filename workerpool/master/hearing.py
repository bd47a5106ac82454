"""What stream processes say to their master: ready, failing, standing by, what became of jobs, idle in a burst."""

from __future__ import annotations

import logging
import time

from workerpool.config import StreamConfig
from workerpool.master.desk import EXIT_OTHER_POOL, Desk, Member
from workerpool.master.moving import Moving
from workerpool.master.state import Ending
from workerpool.master.stopping import Stopping

_log = logging.getLogger("workerpool.master")


class Hearing:
    """`standby`: whether a stream that another pool works is waited for."""

    def __init__(self, desk: Desk, stopping: Stopping, moving: Moving, *, standby: bool) -> None:
        self._desk = desk
        self._moving = moving
        self._stopping = stopping
        self._standby = standby

    def act(self) -> None:
        """Take what was said since the last turn."""
        for member in list(self._desk.members.values()):
            self.listen(member)

    def listen(self, member: Member) -> None:
        """Take what one process has said; also the last words of a dead one."""
        channel = member.channel
        if channel is None or channel.eof:
            return
        frames = channel.receive()
        if channel.eof:
            self._desk.selector.unregister(channel)  # it would be readable for ever
        for frame in frames:
            self._take(member, frame.header)

    def _take(self, member: Member, words: dict[str, object]) -> None:
        match words:
            case {"t": "ready"}:
                member.state.became_ready()
            case {"t": "failed", "error": str(error)}:
                _log.error("stream %s cannot import its handler: %s", member.config.name, error)
                member.state.failed()
            case {"t": "dying", "error": str(error), "store": bool(lacks_store)}:
                member.dying, member.lacks_store = error, lacks_store
            case {"t": "standby", "holder": str(holder)}:
                self._on_standby(member, holder)
            case {"t": "reloaded", "stream": dict(values)}:
                member.config, member.asked = StreamConfig.from_dict(values), None
            case {"t": "lease moved"}:
                self._moving.look()
            case {"t": "counts", "done": int(done), "blocked": int(blocked), "retried": int(retried)}:
                member.done, member.blocked, member.retried = done, blocked, retried
            case {"t": "idle", "handled": int(handled), "n": int() | None as question, **more}:
                left = more.get("left")
                member.left = left if isinstance(left, int) else 0
                if self._desk.burst is not None:
                    self._desk.burst.said_idle(member.state, handled, question)

    def _on_standby(self, member: Member, holder: str) -> None:
        member.state.standby = holder
        if not self._standby and not self._desk.is_ending:
            pid = holder.split("-")[1] if holder.startswith("pid-") else holder
            _log.error("stream %s is worked by another pool (pid %s)", member.config.name, pid)
            self._desk.code = EXIT_OTHER_POOL
            self._stopping.begin(Ending.GRACEFUL, time.monotonic())
