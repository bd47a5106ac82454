"""What a worker writes to its standard error: passed on as it is, and its end kept for the day when the worker dies.

A pipe stands between the worker and our own standard error. When ours is slow (a pager, a full pipe of a service
manager), nothing more is read from the worker, so that it waits as if it wrote there itself, and this loop does not.

Jobs follow each other in a worker, and the pipe does not say where one's words end. What was read before a job began
is none of its words; and a worker tells, with a job's outcome, how much then still lay in the pipe.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable, Iterator

from workerpool import handlers
from workerpool.process import wait_writable

KEPT_BYTES = 16384
TOLD_BYTES = 2048
INNERMOST_FRAMES = 12
_FRAME = '  File "'
_CALLER = f'"{handlers.__file__}"'
_READS_KNOWN = 256
_CHUNK = 4096  # a pipe that is writable takes this much without blocking (PIPE_BUF)


class StderrTap:
    """The standard error of one worker. `target`: the descriptor to pass everything on to."""

    def __init__(self, target: int = 2) -> None:
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._target = target
        self._pending = b""
        self._tail = b""
        self._total = 0  # bytes that were ever read
        self._reads: deque[tuple[int, int]] = deque(maxlen=_READS_KNOWN)  # when (monotonic ns), and the total then
        self._others = 0  # so many of the total were written by jobs that have ended

    def fileno(self) -> int:
        """Readable when the worker has written something, or is gone."""
        return self._reader

    @property
    def is_stuck(self) -> bool:
        """Whether something waits that our standard error does not take now."""
        return bool(self._pending)

    def close_writer(self) -> None:
        """In the parent, after the fork: only the worker and its children hold the other end."""
        os.close(self.writer)
        self.writer = -1

    def pump(self) -> bool:
        """Pass on what is there, without waiting; False when the other end is closed and nothing is left."""
        while self._push():
            try:
                data = os.read(self._reader, _CHUNK)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._tail = (self._tail + data)[-KEPT_BYTES:]
            self._pending = data
            self._total += len(data)
            self._reads.append((time.monotonic_ns(), self._total))
        return True

    def note_end(self, at_ns: int, unread: int) -> None:
        """A job has ended: of what had been written then, `unread` bytes were not read yet at `at_ns` (monotonic)."""
        self._others = max(self._others, self._read_until(at_ns) + unread)

    def note_start(self, at_ns: int) -> None:
        """A job has begun at `at_ns` (monotonic): what was read before is not its."""
        self._others = max(self._others, self._read_until(at_ns))

    def _read_until(self, at_ns: int) -> int:
        """How much was read by then, at least."""
        return next((total for read_ns, total in reversed(self._reads) if read_ns <= at_ns), 0)

    def _push(self) -> bool:
        """Write what waits; whether nothing waits any more."""
        while self._pending:
            if not wait_writable(self._target, 0):
                return False
            try:
                written = os.write(self._target, self._pending)
            except BlockingIOError:
                return False
            except OSError:  # nobody listens any more: the worker shall not die of that
                written = len(self._pending)
            self._pending = self._pending[written:]
        return True

    def last_lines(self) -> str:
        """The end of what the last job wrote, at most about 2 KiB in whole lines; stacks without the pool's frames."""
        own = self._tail[max(0, len(self._tail) - (self._total - self._others)) :]
        lines = list(_without_own_frames(own.decode(errors="backslashreplace").splitlines()))
        text = "\n".join(lines).strip()
        return text if len(text) <= TOLD_BYTES else text[-TOLD_BYTES:].partition("\n")[2] or text[-TOLD_BYTES:]

    def close(self) -> None:
        """Close both ends; any number of times."""
        for fd in (self._reader, self.writer):
            if fd >= 0:
                os.close(fd)
        self._reader = self.writer = -1


def _without_own_frames(lines: Iterable[str]) -> Iterator[str]:
    """A stack's innermost frames, without those from the one on that called the handler: every stack has them."""
    own, frames = False, 0
    for line in lines:
        is_frame = line.startswith(_FRAME)
        own = is_frame and (own or _CALLER in line)
        frames = frames + 1 if is_frame and not own else frames
        if not is_frame or own:
            if frames > INNERMOST_FRAMES:
                yield f"  … and {frames - INNERMOST_FRAMES} more frames"
            frames = 0
        if not own and frames <= INNERMOST_FRAMES:
            yield line
