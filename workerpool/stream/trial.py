"""One import of a handler, in a process of its own that ends right after it: can workers be started with this?

For a reload. The workers that run are not touched before the answer is there. The process is like a worker's, with no
place on the board and no job. It speaks once; what it said is read when it has ended.
"""

from __future__ import annotations

import signal
from collections.abc import Collection

from workerpool.process import Channel, ChannelError, Child, Exit, kill_group, spawn
from workerpool.worker.loop import WorkerSettings, trial_main
from workerpool.worker.protocol import Failed, Message, Ready, WorkerInbox


class Trial:
    """Starts at once; raises `OSError` when the system cannot. `keep`: descriptors that the process keeps open."""

    def __init__(self, settings: WorkerSettings, keep: Collection[int]) -> None:
        self._channel, theirs = Channel.pair()
        try:
            self._child: Child = spawn(
                lambda: trial_main(theirs, settings),
                name=f"trial {settings.stream}",
                own_group=True,
                death_signal=signal.SIGKILL,
                keep=(theirs.fileno(), *keep),
            )
        except OSError:
            self._channel.close()
            raise
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        """Its process's."""
        return self._child.pid

    def kill(self) -> None:
        """Kill it, or what it has left in its group."""
        kill_group(self._child.pid, self._child.start, signal.SIGKILL, session=self._child.session)

    def judge(self, end: Exit) -> str:
        """After its end: why the handler cannot be imported, "" when it can."""
        match self._last_word():
            case Ready():
                return ""
            case Failed(error):
                return error
            case _:
                return f"the process that imported it {end.how}"

    def _last_word(self) -> Message | None:
        words: list[Message] = []
        try:
            while frames := self._channel.receive():
                words += WorkerInbox().read(frames)
        except ChannelError:  # its module wrote into the pipe: it has said nothing
            return None
        finally:
            self._channel.close()
        return words[-1] if words else None
