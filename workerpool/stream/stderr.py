"""What a worker writes to its standard error: passed on as it is, and its end kept for the day when the worker dies.

A pipe stands between the worker and our own standard error. When ours is slow (a pager, a full pipe of a service
manager), nothing more is read from the worker, so that it waits as if it wrote there itself, and this loop does not.

Many write to our standard error at once: other workers, other processes of the pool. So whole lines are passed on, as
many as fit into one write that is not torn: 4096 bytes into a pipe or a socket, where a longer line goes in pieces; a
file takes any. The beginning of a line waits for the rest, a moment at most: it may be a question. The last line of a
worker is ended for it.

Jobs follow each other in a worker, and the pipe does not say where one's words end. What was read before a job began
is none of its words; and a worker tells, with a job's outcome, how much then still lay in the pipe.
"""

from __future__ import annotations

import os
import stat
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from workerpool import handlers
from workerpool.process import wait_writable

KEPT_BYTES = 16384
TOLD_BYTES = 2048
INNERMOST_FRAMES = 12
HELD_SECONDS = 0.2
_FRAME = '  File "'
_CALLER = f'"{handlers.__file__}"'
_READS_KNOWN = 256
_CHUNK = 4096  # a pipe that is writable takes this much without blocking, and in one piece (PIPE_BUF)
_LONGEST_LINE = 262_144  # bytes of one line that are kept together in a file


class StderrTap:
    """The standard error of one worker. `target`: the descriptor to pass everything on to; `clock`: monotonic
    seconds."""

    def __init__(self, target: int = 2, clock: Callable[[], float] = time.monotonic) -> None:
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._target = target
        self._clock = clock
        self._most = _LONGEST_LINE if _is_file(target) else _CHUNK
        self._pending = b""
        self._held_since = 0.0
        self.is_stuck = False
        """Whether our standard error does not take now what is to go there."""
        self._tail = b""
        self._total = 0  # bytes that were ever read
        self._reads: deque[tuple[int, int]] = deque(maxlen=_READS_KNOWN)  # when (monotonic ns), and the total then
        self._others = 0  # so many of the total were written by jobs that have ended

    def fileno(self) -> int:
        """Readable when the worker has written something, or is gone."""
        return self._reader

    @property
    def holds(self) -> bool:
        """Whether something was read that is not passed on yet: `pump` again soon, whatever comes."""
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
                self._end_line()
                return not self._push(everything=True)
            if not self._pending:
                self._held_since = self._clock()
            self._pending += data
            self._tail = (self._tail + data)[-KEPT_BYTES:]
            self._total += len(data)
            self._reads.append((time.monotonic_ns(), self._total))
        return True

    def _end_line(self) -> None:
        """Nobody ends the dead one's last line, and what others say would be glued to it."""
        if self._tail and not self._tail.endswith(b"\n"):
            self._tail += b"\n"
            self._pending += b"\n"
            self._total += 1

    def note_end(self, at_ns: int, unread: int) -> None:
        """A job has ended: of what had been written then, `unread` bytes were not read yet at `at_ns` (monotonic)."""
        self._others = max(self._others, self._read_until(at_ns) + unread)

    def note_start(self, at_ns: int) -> None:
        """A job has begun at `at_ns` (monotonic): what was read before is not its."""
        self._others = max(self._others, self._read_until(at_ns))

    def _read_until(self, at_ns: int) -> int:
        """How much was read by then, at least."""
        return next((total for read_ns, total in reversed(self._reads) if read_ns <= at_ns), 0)

    def _push(self, *, everything: bool = False) -> bool:
        """Write what may go now; whether our standard error has taken it all."""
        self.is_stuck = False
        while piece := self._next_piece(everything):
            if not wait_writable(self._target, 0):
                self.is_stuck = True
                return False
            try:
                written = os.write(self._target, piece)
            except BlockingIOError:
                self.is_stuck = True
                return False
            except OSError:  # nobody listens any more: the worker shall not die of that
                written = len(piece)
            self._pending = self._pending[written:]
            self._held_since = self._clock()
        return True

    def _next_piece(self, everything: bool) -> bytes:
        """Whole lines, as many as one write takes; what there is of one that is too long, or held long enough."""
        lines = self._pending[: self._pending.rfind(b"\n", 0, self._most) + 1]
        is_due = everything or len(self._pending) >= self._most or self._clock() - self._held_since >= HELD_SECONDS
        return lines or (self._pending[: self._most] if is_due else b"")

    def last_lines(self) -> str:
        """The end of what the last job wrote, at most about 2 KiB in whole lines; stacks without the pool's frames."""
        own = self._tail[max(0, len(self._tail) - (self._total - self._others)) :]
        lines = list(_without_own_frames(own.decode(errors="backslashreplace").splitlines()))
        text = "\n".join(lines).strip()
        return text if len(text) <= TOLD_BYTES else text[-TOLD_BYTES:].partition("\n")[2] or text[-TOLD_BYTES:]

    def close(self) -> None:
        """Pass on what is held, as far as it is taken now, and close both ends; any number of times."""
        self._end_line()
        self._push(everything=True)
        for fd in (self._reader, self.writer):
            if fd >= 0:
                os.close(fd)
        self._reader = self.writer = -1


def _is_file(fd: int) -> bool:
    try:
        return stat.S_ISREG(os.fstat(fd).st_mode)
    except OSError:  # it is closed: then nothing is written at all
        return False


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
