"""The master: forks one process per stream, starts again those that die, passes on what it is told, and ends them all.

It is single-threaded, imports no user code, opens no store while it runs and never claims a job. It waits for signals
and for what stream processes say on their channels, and for nothing else: an idle pool's master sleeps. Its duties are
parts with a module of their own, around one `Desk`.
"""

from __future__ import annotations

import faulthandler
import logging
import selectors
import signal
import sys
import time
from collections.abc import Sequence

from workerpool import logs
from workerpool.board import KILLED, Kind
from workerpool.config import PoolConfig, StreamConfig
from workerpool.master.bursting import Bursting
from workerpool.master.desk import EXIT_USAGE, Desk, Workplace
from workerpool.master.hearing import Hearing
from workerpool.master.moving import Moving
from workerpool.master.reloading import Reloading
from workerpool.master.reporter import Reporter
from workerpool.master.service import Service
from workerpool.master.state import Burst, Ending, all_failed_at_start, next_ending
from workerpool.master.stopping import Stopping
from workerpool.master.strays import Strays
from workerpool.master.streams import Streams
from workerpool.process import SignalPipe, halts, reap

_SIGNALS = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGCHLD,
    signal.SIGTSTP,
    signal.SIGCONT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_log = logging.getLogger("workerpool.master")


class Master:
    """A running pool."""

    def __init__(
        self, pool: PoolConfig, streams: Sequence[StreamConfig], place: Workplace, *, burst: bool, standby: bool
    ) -> None:
        selector = selectors.DefaultSelector()
        self._desk = desk = Desk(pool=pool, place=place, selector=selector, burst=Burst() if burst else None)
        self._signals = SignalPipe()
        self._terminal = sys.stdin is not None and sys.stdin.isatty()
        self._reporter = Reporter(desk)
        self._strays = Strays(self._own_children)
        self._stopping = Stopping(desk, self._kill_everything)
        self._moving = Moving(desk)
        self._hearing = Hearing(desk, self._stopping, self._moving, standby=standby)
        self._service = Service(desk)
        self._bursting = Bursting(desk, self._stopping)
        self._streams = Streams(desk, self._hearing.listen)
        self._reloading = Reloading(desk, self._streams, self._service)
        for config in streams:
            self._streams.add(config)

    @property
    def counts(self) -> tuple[int, int, int]:
        """Jobs done, blocked and retried by this run."""
        return self._desk.counts

    def run(self) -> int:
        """Run the pool until it is told to end, or a burst is over; returns the exit code."""
        self._signals.install(_SIGNALS)
        faulthandler.register(signal.SIGUSR2, all_threads=True, chain=True)  # its own stack, then the loop's part
        self._desk.selector.register(self._signals, selectors.EVENT_READ)
        self._desk.place.board.row(0).take(kind=Kind.MASTER, name="master", state="running")
        self._strays.adopt()
        try:
            while not self._stopping.is_over():
                self._start(time.monotonic())
                self._desk.selector.select(self._patience())
                self._turn(time.monotonic())
        finally:
            self._kill_everything()
            self._reporter.bury()
            self._strays.kill_all()
            self._strays.let_go()
            faulthandler.unregister(signal.SIGUSR2)
            self._signals.close()
            self._desk.selector.close()
        if self._desk.place.board.view(0).state != KILLED:
            self._desk.place.board.row(0).say(state="ended")
        return self._stopping.exit_code()

    def _start(self, now: float) -> None:
        self._reporter.act(now)
        self._moving.act(now)
        self._streams.act(now)

    def _turn(self, now: float) -> None:
        for number in self._signals.take():
            self._on_signal(number, now)
        self._hearing.act()
        self._reap(now)
        self._judge_start(now)
        self._bursting.act(now)
        self._stopping.act(now)
        self._service.act(now)
        for member in self._desk.members.values():
            if member.channel is not None:
                member.channel.flush()

    def _patience(self) -> float | None:
        times = [part.next() for part in (self._reporter, self._moving, self._streams, self._stopping, self._service)]
        first = min((each for each in times if each is not None), default=None)
        return None if first is None else max(0.0, first - time.monotonic())

    def _judge_start(self, now: float) -> None:
        if not self._desk.is_ending and all_failed_at_start(self._desk.states):
            _log.error("no stream could import its handler")
            self._desk.code = EXIT_USAGE
            self._stopping.begin(Ending.GRACEFUL, now)

    def _reap(self, now: float) -> None:
        members = {m.child.pid: m for m in self._desk.members.values() if m.child is not None}
        for pid, is_stopped in halts():
            if pid in members:
                self._streams.tell_halt(members[pid], is_stopped=is_stopped)
        ended = reap()
        for end in ended:
            self._reporter.ended(end.pid, now)
            if end.pid in members:
                self._streams.bury(members[end.pid], end, now)
                self._stopping.note_end(end.code)
        if ended:
            self._strays.kill()

    def _own_children(self) -> set[int]:
        streams = {member.child.pid for member in self._desk.members.values() if member.child is not None}
        return streams if self._reporter.pid is None else streams | {self._reporter.pid}

    def _kill_everything(self) -> None:
        """Streams first, with their workers; what those leave behind falls to us and is killed as it does."""
        if self._own_children():
            self._desk.place.board.row(0).say(state=KILLED)
        self._streams.kill_all()
        self._reporter.kill()

    # -- signals

    def _on_signal(self, number: int, now: float) -> None:
        match number:
            case signal.SIGTERM | signal.SIGINT:
                interrupt = number == signal.SIGINT
                self._stopping.begin(next_ending(self._desk.ending, interrupt=interrupt), now, asked=True)
            case signal.SIGHUP if self._terminal:
                self._stopping.begin(next_ending(self._desk.ending, interrupt=False), now, asked=True)
            case signal.SIGHUP:
                self._reloading.reload()
            case signal.SIGTSTP | signal.SIGCONT:
                self._set_quiet(number == signal.SIGTSTP)
            case signal.SIGUSR1:
                self._look_anew()
            case signal.SIGUSR2:
                self._streams.show_stacks()

    def _look_anew(self) -> None:
        """The log file may have been moved, a stream paused."""
        logs.reopen()
        if self._desk.pool.log.file:
            _log.info("log file reopened")
        self._desk.tell({"t": "look"})

    def _set_quiet(self, quiet: bool) -> None:
        desk = self._desk
        if quiet != desk.quiet:
            desk.quiet = quiet
            _log.info("quiet: nothing is claimed until CONT" if quiet else "claiming again")
            desk.place.board.row(0).say(state="quiet" if quiet else "running")
            desk.tell({"t": "quiet", "on": quiet})
