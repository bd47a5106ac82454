"""The stream processes: started when they are due, buried when they have ended, killed with all their workers."""

from __future__ import annotations

import logging
import os
import selectors
import signal
from collections.abc import Callable

from workerpool.board import DIED, Kind
from workerpool.config import StreamConfig
from workerpool.master.desk import Desk, Member, rows_of
from workerpool.master.state import StreamState
from workerpool.process import Channel, Child, Exit, kill_group, kill_process, spawn
from workerpool.trouble import Trouble

_log = logging.getLogger("workerpool.master")


class Streams:
    """One process for each stream. `listen`: takes what a process has said."""

    def __init__(self, desk: Desk, listen: Callable[[Member], None]) -> None:
        self._desk = desk
        self._listen = listen
        self._next_row = 1

    def has_room_for(self, config: StreamConfig) -> bool:
        """Whether the board has rows for one more stream: new ones, or those of one that was removed and has ended."""
        return self._has_new_rows(config) or self._replaceable(config) is not None

    def add(self, config: StreamConfig) -> None:
        """Work this stream too, from the next `act` on. The board must have room for it."""
        rows, first = rows_of(config), self._next_row
        former = None if self._has_new_rows(config) else self._replaceable(config)
        if former is None:
            self._next_row += rows
        else:
            rows, first = former.rows, former.first_row
            self._remove(former)
        starting = Trouble(f"starting stream {config.name}", _log)
        self._desk.members[config.name] = Member(config, StreamState(config.name), first, rows, starting)

    def _has_new_rows(self, config: StreamConfig) -> bool:
        return self._next_row + rows_of(config) <= self._desk.place.board.header.rows

    def _replaceable(self, config: StreamConfig) -> Member | None:
        """One that is worked no more, with rows enough."""
        gone = (member for member in self._desk.members.values() if member.state.dismissed and member.child is None)
        return next((member for member in gone if member.rows >= rows_of(config)), None)

    def _remove(self, member: Member) -> None:
        """Nothing but its counts is kept."""
        (done, blocked, retried), more = self._desk.former_counts, member.counts
        self._desk.former_counts = done + more[0], blocked + more[1], retried + more[2]
        del self._desk.members[member.config.name]
        for row in range(member.first_row, member.first_row + member.rows):
            self._desk.place.board.row(row).clear()

    # -- starting

    def act(self, now: float) -> None:
        """Start what is due."""
        if self._desk.is_ending or self._desk.moving:
            return
        for member in self._desk.members.values():
            if member.child is None and member.state.to_start(now):
                self._start(member, now)

    def next(self) -> float | None:
        """When the next one is due."""
        if self._desk.is_ending or self._desk.moving:
            return None
        waiting = (m.state for m in self._desk.members.values() if m.child is None and not m.state.dismissed)
        return min((state.start_at for state in waiting), default=None)

    def _start(self, member: Member, now: float) -> None:
        try:
            member.child, member.channel = self._fork(member)
        except OSError as error:
            member.starting.met(error, now)
            member.state.put_off(member.starting.until)
            return
        member.starting.over(now)
        member.state.began(now)
        self._desk.selector.register(member.channel, selectors.EVENT_READ)
        if self._desk.quiet:
            member.channel.send({"t": "quiet", "on": True})

    def _fork(self, member: Member) -> tuple[Child, Channel]:
        ours, theirs = Channel.pair()
        config, place = member.config, self._desk.place
        try:
            child = spawn(
                lambda: place.be_stream(config, theirs, member.first_row, member.rows),
                name=f"stream {config.name}",
                own_group=False,
                ignore_int=True,
                keep=(theirs.fileno(), *place.keep),
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        return child, ours

    # -- ending

    def bury(self, member: Member, end: Exit, now: float) -> None:
        """A stream process is gone: its last words, its workers, its next start."""
        self._listen(member)
        self._forget(member)
        if member.asked is not None and not self._desk.is_ending:
            _log.error("stream %s ended before it took its new configuration on: reload again", member.config.name)
            member.asked = None
        self._kill_workers_of(member)
        if self._desk.is_ending:
            member.state.ended(now)
        elif member.state.told_to_end:
            member.state.ended(now)
            _log.info("stream %s has ended", member.config.name)
        else:
            self._note_death(member, end, now)
        member.dying, member.lacks_store = "", False

    def _note_death(self, member: Member, end: Exit, now: float) -> None:
        """It died untold: how, for the board and the log, and when it is started again."""
        row, board = member.first_row, self._desk.place.board
        how = f"{end.how}: {member.dying}" if member.dying else end.how
        board.row(row).say(state=DIED, error=how)  # nobody else writes there now
        view = board.view(row)
        settled = view.jobs_done + view.jobs_retried + view.jobs_blocked
        member.state.died(now, settled, for_want_of_store=member.lacks_store)
        wait = max(0.0, member.state.start_at - now)
        _log.error("stream %s %s; started again in %.1f s", member.config.name, how, wait)

    def _forget(self, member: Member) -> None:
        if member.channel is not None:
            if not member.channel.eof:
                self._desk.selector.unregister(member.channel)
            member.channel.close()
        member.child, member.channel = None, None
        member.base = member.counts
        member.done = member.blocked = member.retried = 0

    def tell_halt(self, member: Member, *, is_stopped: bool) -> None:
        """Its process was stopped by somebody, or goes on."""
        pid = member.child.pid if member.child is not None else 0
        if is_stopped:
            _log.error("stream %s was stopped: nothing of it moves until `kill -CONT %d`", member.config.name, pid)
        else:
            _log.warning("stream %s goes on", member.config.name)

    def kill_all(self) -> None:
        """Kill every stream process and its workers."""
        for member in self._desk.members.values():
            if member.child is not None:
                kill_process(member.child.pid, member.child.start, signal.SIGKILL)
                self._kill_workers_of(member)

    def _kill_workers_of(self, member: Member) -> None:
        for index in range(member.first_row + 1, member.first_row + member.rows):
            row = self._desk.place.board.view(index)
            if row.kind is Kind.WORKER and row.state != "ended" and row.pid != os.getpid():
                kill_group(row.pid, row.start, signal.SIGKILL, session=row.session)

    def show_stacks(self) -> None:
        """Every process prints its own; one that is not on the board yet is not set up, and would die of the signal."""
        for member in self._desk.members.values():
            child, row = member.child, self._desk.place.board.view(member.first_row)
            if child is not None and (row.pid, row.start) == (child.pid, child.start):
                kill_process(child.pid, child.start, signal.SIGUSR2)
        self._desk.tell({"t": "stacks"})
