"""The master: forks one process per stream, starts again those that die, passes on what it is told, and ends them all.

It is single-threaded, imports no user code, opens no store while it runs and never claims a job. It waits for signals
and for what stream processes say on their channels, and for nothing else: an idle pool's master sleeps.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import logging
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Sequence

from workerpool import logs
from workerpool.board import Board, Kind
from workerpool.config import PoolConfig, StreamConfig
from workerpool.errors import ConfigError
from workerpool.master.state import (
    LIVED_LONG_SECONDS,
    NEXT_WORDS,
    Burst,
    Condition,
    Ending,
    StreamState,
    all_failed_at_start,
    next_ending,
)
from workerpool.policy import respawn_delay
from workerpool.process import Channel, Child, SignalPipe, kill_group, kill_process, reap, spawn

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_OTHER_POOL, EXIT_GAVE_UP, EXIT_BLOCKED = 0, 1, 2, 4, 5, 6
SPARE_ROWS = 4
_GRACE_SECONDS = 2.0
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


@dataclasses.dataclass(slots=True)
class Member:
    """One stream and its process. `first_row`, `rows`: its place on the board."""

    config: StreamConfig
    state: StreamState
    first_row: int
    rows: int
    child: Child | None = None
    channel: Channel | None = None
    done: int = 0
    blocked: int = 0
    retried: int = 0
    base: tuple[int, int, int] = (0, 0, 0)  # counts of processes of this stream that have ended


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """What the master needs of the outside: how to be a stream process or the reporter, and how to read the config."""

    board: Board
    be_stream: Callable[[StreamConfig, Channel, int, int], int]
    be_reporter: Callable[[], int] | None
    reload: Callable[[], PoolConfig] | None
    keep: Sequence[int]


class Master:
    """A running pool."""

    def __init__(
        self, pool: PoolConfig, streams: Sequence[StreamConfig], place: Workplace, *, burst: bool, standby: bool
    ) -> None:
        self._pool = pool
        self._place = place
        self._standby = standby
        self._burst = Burst() if burst else None
        self._members: dict[str, Member] = {}
        self._next_row = 1
        self._selector = selectors.DefaultSelector()
        self._signals = SignalPipe()
        self._terminal = sys.stdin is not None and sys.stdin.isatty()
        self._ending = Ending.NOT
        self._kill_at = 0.0
        self._code = EXIT_OK
        self._quiet = False
        self._reporter: Child | None = None
        self._reporter_at = self._reporter_began = 0.0
        self._reporter_failures = 0
        for config in streams:
            self._add(config)

    @property
    def counts(self) -> tuple[int, int, int]:
        """Jobs done, blocked and retried by this run."""
        members = self._members.values()
        return (
            sum(each.base[0] + each.done for each in members),
            sum(each.base[1] + each.blocked for each in members),
            sum(each.base[2] + each.retried for each in members),
        )

    def run(self) -> int:
        """Run the pool until it is told to end, or a burst is over; returns the exit code."""
        self._signals.install(_SIGNALS)
        faulthandler.register(signal.SIGUSR2, all_threads=True, chain=True)  # its own stack, then the loop's part
        self._selector.register(self._signals, selectors.EVENT_READ)
        self._place.board.row(0).take(kind=Kind.MASTER, name="master", state="running")
        try:
            while not self._is_over():
                self._start(time.monotonic())
                self._selector.select(self._patience())
                self._turn(time.monotonic())
        finally:
            self._kill_everything()
            self._bury_reporter()
            faulthandler.unregister(signal.SIGUSR2)
            self._signals.close()
            self._selector.close()
        self._place.board.row(0).say(state="ended")
        return self._exit_code()

    def _turn(self, now: float) -> None:
        for number in self._signals.take():
            self._on_signal(number, now)
        for member in list(self._members.values()):
            self._listen(member)
        self._reap(now)
        self._judge_burst(now)
        if self._ending is Ending.NOT and all_failed_at_start(m.state for m in self._members.values()):
            _log.error("no stream could import its handler")
            self._code = EXIT_USAGE
            self._end(Ending.GRACEFUL, now)
        if self._kill_at and now >= self._kill_at and self._ending is not Ending.KILL_ALL:
            _log.error("the time for stopping is over")
            self._code = self._code or EXIT_GAVE_UP
            self._end(Ending.KILL_ALL, now)
        for member in self._members.values():
            if member.channel is not None:
                member.channel.flush()

    def _patience(self) -> float | None:
        times = [m.state.start_at for m in self._members.values() if m.child is None and not m.state.dismissed]
        times = times if self._ending is Ending.NOT else []
        if self._kill_at and self._ending is not Ending.KILL_ALL:
            times.append(self._kill_at)
        if self._place.be_reporter is not None and self._reporter is None and self._ending is Ending.NOT:
            times.append(self._reporter_at)
        return max(0.0, min(times) - time.monotonic()) if times else None

    # -- starting

    def _add(self, config: StreamConfig) -> None:
        rows = rows_of(config)
        self._members[config.name] = Member(config, StreamState(config.name), self._next_row, rows)
        self._next_row += rows

    def _start(self, now: float) -> None:
        if self._ending is not Ending.NOT:
            return
        if self._place.be_reporter is not None and self._reporter is None and now >= self._reporter_at:
            self._start_reporter(now)
        for member in self._members.values():
            if member.child is None and member.state.to_start(now):
                self._start_stream(member, now)

    def _start_stream(self, member: Member, now: float) -> None:
        try:
            member.child, member.channel = self._fork_stream(member)
        except OSError as error:
            _log.error("cannot start stream %s: %s", member.config.name, error.strerror)
            member.state.died(now)
            return
        member.state.began(now)
        self._selector.register(member.channel, selectors.EVENT_READ)
        if self._quiet:
            member.channel.send({"t": "quiet", "on": True})

    def _fork_stream(self, member: Member) -> tuple[Child, Channel]:
        ours, theirs = Channel.pair()
        config, place = member.config, self._place
        try:
            child = spawn(
                lambda: place.be_stream(config, theirs, member.first_row, member.rows),
                name=config.name,
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

    def _start_reporter(self, now: float) -> None:
        serve = self._place.be_reporter
        if serve is None:
            return
        try:
            self._reporter = spawn(serve, name="reporter", own_group=True, ignore_int=True, keep=self._place.keep)
            self._reporter_began = now
        except OSError as error:
            _log.error("cannot start the reporter: %s", error.strerror)
            self._reporter_failed(now)

    def _reporter_failed(self, now: float) -> None:
        """It is gone; it is started again ever more slowly, unless it had lived for long."""
        lived_long = self._reporter is not None and now - self._reporter_began >= LIVED_LONG_SECONDS
        self._reporter = None
        self._reporter_failures = 1 if lived_long else self._reporter_failures + 1
        self._reporter_at = now + respawn_delay(self._reporter_failures, ever_ready=False)

    # -- listening

    def _listen(self, member: Member) -> None:
        channel = member.channel
        if channel is None or channel.eof:
            return
        frames = channel.receive()
        if channel.eof:
            self._selector.unregister(channel)  # it would be readable for ever
        for frame in frames:
            match frame.header:
                case {"t": "ready"}:
                    member.state.became_ready()
                case {"t": "failed", "error": str(error)}:
                    _log.error("stream %s cannot import its handler: %s", member.config.name, error)
                    member.state.failed()
                case {"t": "standby", "holder": str(holder)}:
                    self._on_standby(member, holder)
                case {"t": "counts", "done": int(done), "blocked": int(blocked), "retried": int(retried)}:
                    member.done, member.blocked, member.retried = done, blocked, retried
                case {"t": "idle", "handled": int(handled), "n": question} if self._burst is not None:
                    self._burst.said_idle(member.state, handled, question)

    def _on_standby(self, member: Member, holder: str) -> None:
        member.state.standby = holder
        if not self._standby and self._ending is Ending.NOT:
            pid = holder.split("-")[1] if holder.startswith("pid-") else holder
            _log.error("stream %s is worked by another pool (pid %s)", member.config.name, pid)
            self._code = EXIT_OTHER_POOL
            self._end(Ending.GRACEFUL, time.monotonic())

    def _judge_burst(self, now: float) -> None:
        burst = self._burst
        if burst is None or self._ending is not Ending.NOT:
            return
        states = [member.state for member in self._members.values()]
        question = burst.next_question(states)
        if question is not None:
            self._tell({"t": "confirm", "n": question})
        elif burst.question and burst.is_over(states):
            failing = [state.name for state in states if state.condition is Condition.FAILING]
            if failing:
                _log.error("not worked, the handler cannot be imported: %s", ", ".join(failing))
                self._code = EXIT_FAILED
            self._end(Ending.GRACEFUL, now)

    def _tell(self, words: dict[str, object]) -> None:
        for member in self._members.values():
            if member.channel is not None:
                member.channel.send(words)

    # -- signals

    def _on_signal(self, number: int, now: float) -> None:
        match number:
            case signal.SIGTERM | signal.SIGINT:
                self._end(next_ending(self._ending, interrupt=number == signal.SIGINT), now)
            case signal.SIGHUP if self._terminal:
                self._end(next_ending(self._ending, interrupt=False), now)
            case signal.SIGHUP:
                self._reload()
            case signal.SIGTSTP | signal.SIGCONT:
                self._set_quiet(number == signal.SIGTSTP)
            case signal.SIGUSR1:
                logs.reopen()
                _log.info("log file reopened")
            case signal.SIGUSR2:
                self._show_stacks()

    def _show_stacks(self) -> None:
        """Every process prints its own; one that is not on the board yet is not set up, and would die of the signal."""
        for member in self._members.values():
            child, row = member.child, self._place.board.view(member.first_row)
            if child is not None and (row.pid, row.start) == (child.pid, child.start):
                kill_process(child.pid, child.start, signal.SIGUSR2)
        self._tell({"t": "stacks"})

    def _set_quiet(self, quiet: bool) -> None:
        if quiet != self._quiet:
            self._quiet = quiet
            _log.info("quiet: nothing is claimed until CONT" if quiet else "claiming again")
            self._place.board.row(0).say(state="quiet" if quiet else "running")
            self._tell({"t": "quiet", "on": quiet})

    def _end(self, ending: Ending, now: float) -> None:
        if ending <= self._ending:
            return
        self._ending = ending
        shutdown = self._pool.shutdown
        if self._burst is None or ending is not Ending.GRACEFUL:
            _log.warning(NEXT_WORDS[ending].format(soft=shutdown.soft))
        self._place.board.row(0).say(state="stopping")
        match ending:
            case Ending.GRACEFUL:
                self._tell({"t": "stop"})
                self._kill_at = now + shutdown.hard + _GRACE_SECONDS / 2
            case Ending.KILL_WORKERS:
                self._tell({"t": "kill"})
                self._kill_at = min(self._kill_at or now + _GRACE_SECONDS, now + _GRACE_SECONDS)
            case Ending.KILL_ALL:
                if self._code == EXIT_OK:
                    self._code = EXIT_GAVE_UP
                self._kill_everything()

    # -- reloading

    def _reload(self) -> None:
        if self._place.reload is None or self._ending is not Ending.NOT:
            return
        try:
            fresh = self._place.reload()
        except ConfigError as error:
            for problem in error.problems:
                _log.error("%s", problem)
            _log.error("the configuration stays as it was")
            return
        self._apply(fresh)

    def _apply(self, fresh: PoolConfig) -> None:
        if dataclasses.replace(fresh, streams=self._pool.streams) != self._pool:
            _log.warning("only [streams] and [defaults] can be reloaded; the other changes need a restart")
        wanted = {config.name: config for config in fresh.streams}
        for name, member in self._members.items():
            if name not in wanted and not member.state.dismissed:
                member.state.dismissed = member.state.told_to_end = True
                if member.channel is not None:
                    member.channel.send({"t": "stop"})
        for name, config in wanted.items():
            self._apply_stream(name, config)
        self._pool = dataclasses.replace(self._pool, streams=fresh.streams)
        _log.info("configuration reloaded")

    def _apply_stream(self, name: str, config: StreamConfig) -> None:
        member = self._members.get(name)
        if member is None:
            if self._next_row + rows_of(config) > self._place.board.header.rows:
                _log.error("no room on the board for stream %s: restart the pool to start it", name)
                return
            self._add(config)
            return
        if config.workers > member.rows - 1 or (config.workers == 0) != (member.config.workers == 0):
            _log.error("stream %s: so many workers need a restart of the pool", name)
            return
        member.state.dismissed = False
        member.config = config
        if member.channel is not None and not member.state.told_to_end:
            member.channel.send({"t": "reload", "stream": config.to_dict()})

    # -- ending

    def _reap(self, now: float) -> None:
        members = {m.child.pid: m for m in self._members.values() if m.child is not None}
        for end in reap():
            if self._reporter is not None and end.pid == self._reporter.pid:
                self._reporter_failed(now)
            member = members.get(end.pid)
            if member is not None:
                self._buried(member, end.code, end.signal, now)

    def _buried(self, member: Member, code: int | None, number: int | None, now: float) -> None:
        """A stream process is gone: its last words, its workers, its next start."""
        self._listen(member)
        if member.channel is not None:
            if not member.channel.eof:
                self._selector.unregister(member.channel)
            member.channel.close()
        member.child, member.channel = None, None
        base = member.base
        member.base = (base[0] + member.done, base[1] + member.blocked, base[2] + member.retried)
        member.done = member.blocked = member.retried = 0
        self._kill_workers_of(member)
        if self._ending is not Ending.NOT:
            member.state.ended(now)
            self._note_end(code)
            return
        if member.state.told_to_end:
            member.state.ended(now)
            _log.info("stream %s has ended", member.config.name)
            return
        member.state.died(now)
        how = f"killed by {signal.Signals(number).name}" if number is not None else f"exited with {code}"
        wait = max(0.0, member.state.start_at - now)
        _log.error("stream %s %s; started again in %.1f s", member.config.name, how, wait)

    def _note_end(self, code: int | None) -> None:
        """What a stream process's end means for ours: a reason that is known already stays."""
        if self._code == EXIT_OK and code != EXIT_OK:
            self._code = EXIT_GAVE_UP if code in {None, EXIT_GAVE_UP} else EXIT_FAILED

    def _kill_workers_of(self, member: Member) -> None:
        for index in range(member.first_row + 1, member.first_row + member.rows):
            row = self._place.board.view(index)
            if row.kind is Kind.WORKER and row.state != "ended" and row.pid != os.getpid():
                kill_group(row.pid, row.start, signal.SIGKILL, session=row.session)

    def _kill_everything(self) -> None:
        for member in self._members.values():
            if member.child is not None:
                kill_process(member.child.pid, member.child.start, signal.SIGKILL)
                self._kill_workers_of(member)
        if self._reporter is not None:
            kill_group(self._reporter.pid, self._reporter.start, signal.SIGKILL, session=self._reporter.session)

    def _bury_reporter(self) -> None:
        if self._reporter is not None:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._reporter.pid, 0)
            self._reporter = None

    def _is_over(self) -> bool:
        alive = any(member.child is not None for member in self._members.values())
        return self._ending is not Ending.NOT and not alive

    def _exit_code(self) -> int:
        if self._code == EXIT_OK and self._burst is not None and self.counts[1]:
            return EXIT_BLOCKED
        return self._code


def rows_of(config: StreamConfig) -> int:
    """How many rows of the board a stream gets: its own, its workers', and some for a reload that wants more."""
    return 1 + max(1, config.workers) + max(SPARE_ROWS, config.workers)
