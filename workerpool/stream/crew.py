"""The workers of one stream process: started, fed, listened to, killed. Mechanism only; `state` decides.

A worker is a forked process in a group of its own with one channel. Whatever is left in its group when it ends is
killed while its number is still its own; what left the group is a stray of this subreaper and is killed too.

A worker whose end of the channel is closed is either about to end, or its handler has closed it: in that case it could
never be heard again, and is killed after a moment.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import logging
import os
import selectors
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from queuekit.contract import Lease
from queuekit.job import Delivery
from queuekit.wire import encode_job
from workerpool.board import Row, RowView
from workerpool.config import LogConfig, StreamConfig
from workerpool.process import (
    Channel,
    ChannelError,
    Child,
    Exit,
    become_subreaper,
    frame_limit,
    halts,
    is_running,
    kill_group,
    kill_process,
    kill_strays,
    reap,
    spawn,
)
from workerpool.stream.state import Slot, Unit
from workerpool.stream.stderr import StderrTap
from workerpool.stream.trial import Trial
from workerpool.worker.loop import EXIT_BAD_CHANNEL, WorkerSettings, worker_main
from workerpool.worker.protocol import Message, Out, WorkerInbox, check_fits, send_job, send_stop

_STDERR_SECONDS = 0.05
_EXIT_SECONDS = 0.1
_CLOSED = "the handler had closed its worker's pipe"
_SPOILED = "the handler had written into its worker's pipe"
_log = logging.getLogger("workerpool.stream")


@dataclasses.dataclass(frozen=True, slots=True)
class Death:
    """What is known of a worker's end beside how it exited.

    `last_lines`: the end of what its last job wrote to its standard error; `cause`: why the pool ended it, empty when
    it did not; `unheard`: it had ended a run whose outcome has not come here.
    """

    last_lines: str = ""
    cause: str = ""
    unheard: bool = False


@dataclasses.dataclass(slots=True)
class _Member:
    """One living worker.

    `ended_before`: runs of jobs that its row had counted when it started; `heard`: outcomes of its own;
    `silent_since`: when its end of the channel was found closed; `broken`: why it was given up.
    """

    slot: Slot
    child: Child
    channel: Channel
    inbox: WorkerInbox
    row: Row
    stderr: StderrTap
    ended_before: int
    heard: int = 0
    silent_since: float | None = None
    broken: str = ""
    hears_stderr: bool = False


class Crew:
    """The living workers, by slot index."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        rows: Sequence[Row],
        *,
        handler_path: Sequence[str],
        max_job_bytes: int,
        log: LogConfig | None = None,
        keep: Callable[[], Sequence[int]] = tuple,
    ) -> None:
        self._selector = selector
        self._rows = rows
        self._handler_path = tuple(handler_path)
        self._max_job_bytes = max_job_bytes
        self._log = log
        self._keep = keep
        self._members: dict[int, _Member] = {}
        self._deaths: dict[int, Death] = {}
        self._trial: Trial | None = None
        self._tried: str | None = None
        self._number = 0
        self._claims = 0
        become_subreaper()

    def __len__(self) -> int:
        return len(self._members)

    @property
    def pending(self) -> bool:
        """Whether there is something to do at once; workers speak through the selector, so never."""
        return False

    def start(self, slot: Slot, config: StreamConfig) -> None:
        """Fork a worker for a slot; raises `OSError` when the system cannot, with nothing changed."""
        ours, theirs = Channel.pair(frame_limit(self._max_job_bytes))
        settings = self._settings(config, f"{config.name}-{slot.index + 1}")
        row = self._rows[slot.index]
        row.recall(0)
        ended_before = _ended_by(row.view())
        try:
            stderr = StderrTap()
        except OSError:
            ours.close()
            theirs.close()
            raise
        try:
            child = spawn(
                lambda: _be_worker(theirs, row, settings, stderr),
                name=f"worker {settings.name}",
                own_group=True,
                death_signal=signal.SIGKILL,
                keep=(theirs.fileno(), stderr.writer, *self._keep()),
            )
        except OSError:
            ours.close()
            theirs.close()
            stderr.close()
            raise
        theirs.close()
        stderr.close_writer()
        self._members[slot.index] = _Member(slot, child, ours, WorkerInbox(), row, stderr, ended_before)
        self._selector.register(ours, selectors.EVENT_READ, slot.index)

    def _settings(self, config: StreamConfig, name: str) -> WorkerSettings:
        return WorkerSettings(
            stream=config.name,
            name=name,
            handler=config.handler,
            handler_path=self._handler_path,
            batch=config.batch_size > 1,
            soft_timeout=config.soft_timeout,
            timeout=config.timeout,
            max_memory=config.max_memory,
            max_job_bytes=self._max_job_bytes,
            log=self._log,
        )

    # -- trying

    def try_out(self, config: StreamConfig) -> None:
        """Begin to import a configuration's handler, apart from every worker; one that is tried already is given up.

        Raises `OSError` when the system cannot make the process.
        """
        if self._trial is not None:
            self._trial.kill()
        self._trial = self._tried = None
        self._trial = Trial(self._settings(config, f"{config.name}-trial"), self._keep())

    def tried(self) -> str | None:
        """Once, when a trial has ended: why the handler cannot be imported, "" when it can; else None."""
        told, self._tried = self._tried, None
        return told

    # -- talking

    def give(self, slot: Slot, unit: Unit, lease: Lease) -> None:
        """Queue a unit for a worker; it travels with the next `flush`.

        Raises `WriteFailed` or `ChannelError` when one of its jobs cannot be sent; then none of them is.
        """
        member = self._members[slot.index]
        encoded = [encode_job(claimed.job) for claimed in unit.claims]
        check_fits(member.channel, encoded)
        self._number += 1
        unit.number = self._number
        for position, (claimed, data) in enumerate(zip(unit.claims, encoded, strict=True)):
            self._claims += 1
            attempt = Delivery.of(claimed.job).attempt + 1
            send_job(
                member.channel,
                claimed.job.id,
                data,
                session=claimed.session_id,
                attempt=attempt,
                fence=lease.run_number(self._claims, attempt),
                together=len(unit.claims) if position == 0 else 1,
                number=unit.number,
            )

    def flush(self) -> None:
        """Send what is queued; what a full pipe does not take waits for the selector."""
        for index, member in self._members.items():
            if member.silent_since is not None:
                continue
            member.channel.flush()
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if member.channel.wants_write else 0)
            if self._selector.get_key(member.channel).events != events:
                self._selector.modify(member.channel, events, index)

    def messages(self) -> Iterator[tuple[Slot, Message]]:
        """Everything that workers have said since the last call; their standard error is passed on too."""
        for member in self._members.values():
            self._pass_on_stderr(member)
        for member in list(self._members.values()):
            self._give_up_silent(member)
            yield from ((member.slot, message) for message in self._read(member))

    def _pass_on_stderr(self, member: _Member) -> None:
        hear = member.stderr.pump() and not member.stderr.is_stuck
        if hear != member.hears_stderr:
            member.hears_stderr = hear
            if hear:
                self._selector.register(member.stderr, selectors.EVENT_READ)
            else:
                self._selector.unregister(member.stderr)

    def next(self, now: float) -> float | None:
        """When to try again to pass standard errors on, or to look who is silent and still lives."""
        members = self._members.values()
        times = [now + _STDERR_SECONDS] if any(member.stderr.holds for member in members) else []
        times += [m.silent_since + _EXIT_SECONDS for m in members if m.silent_since is not None and not m.broken]
        return min(times, default=None)

    def death(self, slot: Slot) -> Death:
        """What is known of the end of the slot's last worker, dead by now."""
        return self._deaths.get(slot.index, Death())

    def _read(self, member: _Member) -> list[Message]:
        try:
            messages = member.inbox.read(member.channel.receive()) if not member.broken else []
        except ChannelError as error:
            member.row.say(error=str(error))
            self._give_up(member, _SPOILED)
            return []
        if member.channel.spoiled is not None:
            self._give_up(member, _SPOILED)
        elif member.channel.eof and member.silent_since is None:
            member.silent_since = time.monotonic()
            self._selector.unregister(member.channel)  # it would be readable for ever
        self._note_ends(member, messages)
        return messages

    def _note_ends(self, member: _Member, messages: Sequence[Message]) -> None:
        ends = [message for message in messages if isinstance(message, Out)]
        member.heard += len(ends)
        for end in ends:
            if end.unread is not None:
                member.stderr.note_end(*end.unread)

    def _give_up_silent(self, member: _Member) -> None:
        """One that has not ended soon after it fell silent never will by itself."""
        since, child = member.silent_since, member.child
        if since is None or member.broken or time.monotonic() - since < _EXIT_SECONDS:
            return
        if is_running(child.pid, child.start):
            self._give_up(member, _CLOSED)

    def _give_up(self, member: _Member, why: str) -> None:
        """A worker that cannot be understood or heard is of no use any more."""
        member.broken = member.broken or why
        self._kill(member)

    def recall(self, slot: Slot) -> RowView:
        """Call back every unit that the worker has not started; returns what its row said just before."""
        member = self._members[slot.index]
        view = member.row.view()
        member.row.recall(self._number)
        return view

    def view(self, slot: Slot) -> RowView:
        """What the worker's row says."""
        return self._rows[slot.index].view()

    def stop(self, slot: Slot) -> None:
        """Ask a worker to end before its next job."""
        send_stop(self._members[slot.index].channel)

    def ask_to_stop(self) -> None:
        """Make `ctx.should_stop` true in every worker."""
        for member in self._members.values():
            kill_process(member.child.pid, member.child.start, signal.SIGTERM)

    def tell(self, signal_number: int) -> None:
        """Send a signal to every worker."""
        for member in self._members.values():
            kill_process(member.child.pid, member.child.start, signal_number)

    def ask_where(self, slot: Slot) -> None:
        """Have a worker write the stacks of its threads to its standard error, if it still can."""
        child = self._members[slot.index].child
        kill_process(child.pid, child.start, signal.SIGUSR2)

    # -- ending

    def kill(self, slot: Slot) -> None:
        """Kill a worker and its process group."""
        member = self._members.get(slot.index)
        if member is not None:
            self._kill(member)

    def kill_all(self) -> None:
        """Kill every worker and its process group."""
        for member in self._members.values():
            self._kill(member)
        if self._trial is not None:
            self._trial.kill()

    def _kill(self, member: _Member) -> None:
        kill_group(member.child.pid, member.child.start, signal.SIGKILL, session=member.child.session)

    def reap(self) -> list[tuple[Slot, Exit, RowView, list[Message]]]:
        """The workers that have ended, each with its row and what it still had to say; their groups are killed."""
        by_pid = {member.child.pid: member for member in self._members.values()}
        trial = self._trial

        def sweep_group(pid: int) -> None:
            if pid in by_pid:
                self._kill(by_pid[pid])
            elif trial is not None and pid == trial.pid:
                trial.kill()

        self._tell_halts(by_pid)
        ended = []
        for end in reap(sweep_group):
            if trial is not None and end.pid == trial.pid:
                self._trial, self._tried = None, trial.judge(end)
            member = by_pid.get(end.pid)
            if member is None:
                continue
            last_words = self._last_words(member)
            self._forget(member)
            view = member.row.view()
            self._deaths[member.slot.index] = _tell(member, end, view)
            ended.append((member.slot, end, view, last_words))
        if ended or self._tried is not None:
            kill_strays(self._own_children())
        return ended

    def _own_children(self) -> list[int]:
        workers = [member.child.pid for member in self._members.values()]
        return workers if self._trial is None else [*workers, self._trial.pid]

    def _tell_halts(self, by_pid: Mapping[int, _Member]) -> None:
        """Workers that somebody has stopped: without a timeout their jobs would wait for ever, and nobody know why."""
        for pid, is_stopped in halts():
            if pid in by_pid:
                name = by_pid[pid].row.view().name
                if is_stopped:
                    _log.error("%s was stopped: it does nothing until `kill -CONT %d`", name, pid)
                else:
                    _log.warning("%s goes on", name)

    def _forget(self, member: _Member) -> None:
        member.stderr.pump()
        if member.hears_stderr:
            self._selector.unregister(member.stderr)
        member.stderr.close()
        if member.silent_since is None:
            self._selector.unregister(member.channel)
        member.channel.close()
        del self._members[member.slot.index]

    def _last_words(self, member: _Member) -> list[Message]:
        """What a dead worker had still sent."""
        words: list[Message] = []
        if member.broken:
            return words
        try:
            while frames := member.channel.receive():
                words += member.inbox.read(frames)
        except ChannelError as error:
            member.row.say(error=str(error))
            member.broken = _SPOILED
        self._note_ends(member, words)
        return words

    def close(self) -> None:
        """Kill what is left and wait for it."""
        self.kill_all()
        for member in list(self._members.values()):
            try:
                os.waitpid(member.child.pid, 0)
            except ChildProcessError:
                pass
            self._forget(member)
        kill_strays([])


def _ended_by(row: RowView) -> int:
    return row.jobs_done + row.jobs_failed


def _tell(member: _Member, end: Exit, row: RowView) -> Death:
    if row.job:
        member.stderr.note_start(row.since_ns)
    left_it = end.code == EXIT_BAD_CHANNEL and row.state == "failed"
    return Death(
        last_lines=member.stderr.last_lines(),
        cause=member.broken or (_CLOSED if left_it else ""),
        unheard=_ended_by(row) - member.ended_before > member.heard,
    )


def _be_worker(channel: Channel, row: Row, settings: WorkerSettings, stderr: StderrTap) -> int:
    """In the child: standard error into the tap, with the stack of what kills it, or when asked; then the worker."""
    os.dup2(stderr.writer, 2)
    stderr.close_writer()
    faulthandler.enable()
    faulthandler.unregister(signal.SIGUSR2)  # the stream's
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    return worker_main(channel, row, settings)
