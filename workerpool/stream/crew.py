"""The workers of one stream process: started, fed, listened to, killed. Mechanism only; `state` decides.

A worker is a forked process in a group of its own with one channel. Whatever is left in its group when it ends is
killed while its number is still its own; what left the group is a stray of this subreaper and is killed too.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import os
import selectors
import signal
from collections.abc import Callable, Iterator, Sequence

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
    kill_group,
    kill_process,
    kill_strays,
    reap,
    spawn,
)
from workerpool.stream.state import Slot, Unit
from workerpool.stream.stderr import StderrTap
from workerpool.worker.loop import WorkerSettings, worker_main
from workerpool.worker.protocol import Message, WorkerInbox, check_fits, send_job, send_stop

FENCE_BITS = 32
_STDERR_SECONDS = 0.05


@dataclasses.dataclass(slots=True)
class _Member:
    """One living worker."""

    slot: Slot
    child: Child
    channel: Channel
    inbox: WorkerInbox
    row: Row
    stderr: StderrTap
    broken: bool = False
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
        self._last_lines: dict[int, str] = {}
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
        settings = WorkerSettings(
            stream=config.name,
            name=f"{config.name}-{slot.index + 1}",
            handler=config.handler,
            handler_path=self._handler_path,
            batch=config.batch_size > 1,
            soft_timeout=config.soft_timeout,
            timeout=config.timeout,
            max_job_bytes=self._max_job_bytes,
            log=self._log,
        )
        row = self._rows[slot.index]
        row.recall(0)
        try:
            stderr = StderrTap()
        except OSError:
            ours.close()
            theirs.close()
            raise
        try:
            child = spawn(
                lambda: _be_worker(theirs, row, settings, stderr),
                name=settings.name,
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
        self._members[slot.index] = _Member(slot, child, ours, WorkerInbox(), row, stderr)
        self._selector.register(ours, selectors.EVENT_READ, slot.index)

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
            send_job(
                member.channel,
                claimed.job.id,
                data,
                session=claimed.session_id,
                attempt=Delivery.of(claimed.job).attempt + 1,
                fence=lease.fence << FENCE_BITS | self._claims,
                together=len(unit.claims) if position == 0 else 1,
                number=unit.number,
            )

    def flush(self) -> None:
        """Send what is queued; what a full pipe does not take waits for the selector."""
        for index, member in self._members.items():
            member.channel.flush()
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if member.channel.wants_write else 0)
            if self._selector.get_key(member.channel).events != events:
                self._selector.modify(member.channel, events, index)

    def messages(self) -> Iterator[tuple[Slot, Message]]:
        """Everything that workers have said since the last call; their standard error is passed on too."""
        for member in self._members.values():
            self._pass_on_stderr(member)
        for member in list(self._members.values()):
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
        """When to try again to write what our standard error did not take."""
        return now + _STDERR_SECONDS if any(member.stderr.is_stuck for member in self._members.values()) else None

    def last_lines(self, slot: Slot) -> str:
        """The end of what the slot's last worker, dead by now, wrote to its standard error."""
        return self._last_lines.get(slot.index, "")

    def _read(self, member: _Member) -> list[Message]:
        try:
            messages = member.inbox.read(member.channel.receive()) if not member.broken else []
        except ChannelError as error:
            member.row.say(error=str(error))
            self._give_up(member)
            return []
        if member.channel.eof:
            self._give_up(member)
        return messages

    def _give_up(self, member: _Member) -> None:
        """A worker that cannot be understood, or has closed its end, is of no use any more."""
        if not member.broken:
            member.broken = True
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

    def _kill(self, member: _Member) -> None:
        kill_group(member.child.pid, member.child.start, signal.SIGKILL, session=member.child.session)

    def reap(self) -> list[tuple[Slot, Exit, RowView, list[Message]]]:
        """The workers that have ended, each with its row and what it still had to say; their groups are killed."""
        by_pid = {member.child.pid: member for member in self._members.values()}

        def sweep_group(pid: int) -> None:
            if pid in by_pid:
                self._kill(by_pid[pid])

        ended = []
        for end in reap(sweep_group):
            member = by_pid.get(end.pid)
            if member is None:
                continue
            last_words = self._last_words(member)
            self._forget(member)
            ended.append((member.slot, end, member.row.view(), last_words))
        if ended:
            kill_strays([member.child.pid for member in self._members.values()])
        return ended

    def _forget(self, member: _Member) -> None:
        member.stderr.pump()
        self._last_lines[member.slot.index] = member.stderr.last_lines()
        if member.hears_stderr:
            self._selector.unregister(member.stderr)
        member.stderr.close()
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


def _be_worker(channel: Channel, row: Row, settings: WorkerSettings, stderr: StderrTap) -> int:
    """In the child: standard error into the tap, with the stack of what kills it, or when asked; then the worker."""
    os.dup2(stderr.writer, 2)
    stderr.close_writer()
    faulthandler.enable()
    faulthandler.unregister(signal.SIGUSR2)  # the stream's
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    return worker_main(channel, row, settings)
