"""One latency window for all stream processes of a pool, in a file that each of them maps.

`SharedLatencyWindowBox(path)` does what `QueueLatencyWindowBox` does, for every process that opens the same path, so
that percentiles and throttles are the estate's. Any of these processes may be killed at any instruction:

* **The lock** is a `flock` on a descriptor of the process's own (opened by path, and again after a fork), so the kernel
  frees it at death. A holder that is stopped keeps it: others wait at most 50 ms, once; then they try without waiting
  until they get it, and meanwhile skip their samples and keep their counts. A drain is never held up by telemetry.
* **The content** is words of 8 bytes, each written whole, in an order in which every prefix makes sense: the sample
  before the position that makes it count, a slot's content before the key that makes it taken. A writer killed half-way
  loses its own sample. Readers check what they read: a position is reduced to the ring, a sample that is negative or no
  finite number is skipped.

    word 0       magic and version              a file with another one is made anew
    word 1       samples ever written           the next goes to word 2 + this % 100
    words 2-101  the samples, doubles (ms)
    then 256 slots of 6 words:
        0-3      SHA-256 of the stream; word 0 is written last, and 0 means free
        4        when a report was last emitted (double, s); NaN: never
        5        jobs claimed since

Slots are found by the first bytes of the hash, then onwards; the whole hash is compared, so two streams never share
one. Slots are not given back: streams beyond 256 are throttled and counted per process. The same is done, with one
warning, when the file cannot be opened any more after a fork.

The space is written when the file is made, so that a full disk shows then and not as a SIGBUS later.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import logging
import math
import mmap
import os
import stat
import struct
import threading
import time
import weakref
from collections.abc import Iterator

from queuekit.errors import WriteFailed
from queuekit.telemetry.window import CAPACITY, QueueLatencyWindowBox, percentile_of, throttle

log = logging.getLogger("queuekit.telemetry")

SLOTS = 256
LOCK_PATIENCE = 0.05
_LOCK_PAUSE = 0.001
_FILL_PATIENCE = 1.0

_MAGIC = int.from_bytes(b"wplatwn1", "little")
_COUNT, _RING, _TABLE = 1, 2, 2 + CAPACITY
_SLOT_WORDS, _EMITTED, _DRAINED = 6, 4, 5
_SIZE = 8 * (_TABLE + SLOTS * _SLOT_WORDS)
_DIGEST = struct.Struct("=4Q")
_MOST = 2**64 - 1


class _Mapped:
    """The file as this process has it: a descriptor of its own to lock, and the words. Raises `OSError`.

    The mapping keeps a descriptor too, and may outlive a fork in a frame that somebody still holds. So it comes from
    another opening of the file than the lock: closing `descriptor` in a child is all that a child has to do.
    """

    def __init__(self, path: str) -> None:
        self.descriptor = _open(path)
        try:
            _fill(self.descriptor)
            self.memory = _map(path, self.descriptor)
        except (OSError, ValueError):
            os.close(self.descriptor)
            raise
        self.words = memoryview(self.memory).cast("Q")
        self.doubles = memoryview(self.memory).cast("d")

    def close(self) -> None:
        """Give everything back."""
        self.words.release()
        self.doubles.release()
        self.memory.close()
        os.close(self.descriptor)

    def lock(self, patience: float) -> bool:
        """Take the lock, waiting at most `patience` seconds; False when somebody else kept it."""
        give_up = time.monotonic() + patience
        while not _try_lock(self.descriptor):
            if time.monotonic() >= give_up:
                return False
            time.sleep(_LOCK_PAUSE)
        self._prepare()
        return True

    def unlock(self) -> None:
        """Give the lock back."""
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    def clear(self) -> None:
        """Forget everything. Under the lock."""
        self.words[0] = 0
        self.memory[:] = bytes(_SIZE)
        self.words[0] = _MAGIC

    def _prepare(self) -> None:
        if self.words[0] != _MAGIC:
            self.clear()

    # -- the ring

    def append(self, ms: float) -> None:
        """Add a sample. Under the lock."""
        if not math.isfinite(ms):
            return
        count = self.words[_COUNT]
        self.doubles[_RING + count % CAPACITY] = ms
        self.words[_COUNT] = count + 1 if count < _MOST else CAPACITY

    def ordered(self) -> list[float]:
        """The samples in ascending order. Also without the lock."""
        filled = min(self.words[_COUNT], CAPACITY)
        samples = self.doubles[_RING : _RING + filled].tolist()
        if min(samples, default=0.0) >= 0 and math.isfinite(sum(samples)):
            return sorted(samples)
        return sorted(ms for ms in samples if 0 <= ms < math.inf)

    # -- the slots

    def slot(self, stream: str) -> int | None:
        """The first word of the stream's slot, which is taken for it when it has none; None: the table is full."""
        key = _key(stream)
        for step in range(SLOTS):
            at = _TABLE + (key[0] + step) % SLOTS * _SLOT_WORDS
            if self.words[at] == 0:
                self._take_slot(at, key)
                return at
            if tuple(self.words[at : at + len(key)]) == key:
                return at
        return None

    def _take_slot(self, at: int, key: tuple[int, ...]) -> None:
        self.doubles[at + _EMITTED] = math.nan
        self.words[at + _DRAINED] = 0
        for part in (3, 2, 1, 0):
            self.words[at + part] = key[part]

    def should_emit(self, at: int, now: float, interval: float) -> bool:
        """Whether a report is due; notes that it was made."""
        before = self.doubles[at + _EMITTED]
        last, due = throttle(before if math.isfinite(before) else None, now, interval)
        self.doubles[at + _EMITTED] = math.nan if last is None else last
        return due

    def add_drained(self, at: int, count: int) -> None:
        """Add to a slot's jobs."""
        self.words[at + _DRAINED] = min(self.words[at + _DRAINED] + count, _MOST)

    def take_drained(self, at: int) -> int:
        """A slot's jobs, which start at 0 again."""
        count = self.words[at + _DRAINED]
        self.words[at + _DRAINED] = 0
        return count


class SharedLatencyWindowBox:
    """The box in the file at `path`, made (0600) when absent; safe for threads, forks and kills.

    Raises `WriteFailed` when the file cannot be made or is not a regular one.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._alone = QueueLatencyWindowBox()  # counts that are owed, streams without a slot, and a lost file
        self._mutex = threading.Lock()
        self._patience = LOCK_PATIENCE
        self._lost = False
        try:
            self._mapped: _Mapped | None = _Mapped(self.path)
        except (OSError, ValueError) as error:
            raise WriteFailed(f"the latency window {self.path!r}", str(error)) from error
        _boxes.add(self)

    def sample(self, ms: float, now: float, interval: float, stream: str = "") -> tuple[float, float, bool]:
        """Add a sample of `ms`; returns (p50, p95, should_emit). See `QueueLatencyWindowBox.sample`.

        When the lock is not to be had in time the sample is skipped: (0, 0, False).
        """
        with self._locked() as mapped:
            if mapped is None:
                return self._alone.sample(ms, now, interval, stream) if self._lost else (0.0, 0.0, False)
            mapped.append(ms)
            at = mapped.slot(stream)
            due = (
                self._alone.sample(ms, now, interval, stream)[2]
                if at is None
                else mapped.should_emit(at, now, interval)
            )
            ordered = mapped.ordered()
        return percentile_of(ordered, 50), percentile_of(ordered, 95), due

    def percentiles(self) -> tuple[float, float]:
        """(p50, p95) in ms, without adding a sample and without the lock."""
        with self._mutex:
            mapped = self._open()
            if mapped is None:
                return self._alone.percentiles()
            ordered = mapped.ordered()
        return percentile_of(ordered, 50), percentile_of(ordered, 95)

    def note_drained(self, stream: str, count: int) -> None:
        """Add `count` to the jobs of `stream` that were claimed since `take_drained`."""
        with self._locked() as mapped:
            at = None if mapped is None else mapped.slot(stream)
            if mapped is None or at is None:
                self._alone.note_drained(stream, count)
            else:
                mapped.add_drained(at, count)

    def take_drained(self, stream: str) -> int:
        """How many that are, by all processes; they are counted no more."""
        with self._locked() as mapped:
            at = None if mapped is None else mapped.slot(stream)
            shared = 0 if mapped is None or at is None else mapped.take_drained(at)
        return shared + self._alone.take_drained(stream)

    def reset(self) -> None:
        """Forget samples, throttles and counts of all processes: for a pool that starts."""
        with self._locked() as mapped:
            if mapped is not None:
                mapped.clear()

    def close(self) -> None:
        """Give the file back; any number of times. It is opened again when the box is used again."""
        with self._mutex:
            mapped, self._mapped = self._mapped, None
            if mapped is not None:
                mapped.close()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[_Mapped | None]:
        """The file under both locks; None when it cannot be had now."""
        with self._mutex:
            mapped = self._open()
            if mapped is None or not self._lock(mapped):
                yield None
                return
            try:
                yield mapped
            finally:
                mapped.unlock()

    def _lock(self, mapped: _Mapped) -> bool:
        locked = mapped.lock(self._patience)
        self._patience = LOCK_PATIENCE if locked else 0.0
        return locked

    def _open(self) -> _Mapped | None:
        if self._mapped is None and not self._lost:
            try:
                self._mapped = _Mapped(self.path)
            except (OSError, ValueError) as error:
                self._lost = True
                log.warning("the shared latency window %s is lost, this process counts alone: %s", self.path, error)
        return self._mapped

    def _forked(self) -> None:
        """In a child: drop what is the parent's, so that its lock ends with it. The first use opens anew."""
        self._mutex = threading.Lock()
        self._alone = QueueLatencyWindowBox()
        self._patience = LOCK_PATIENCE
        mapped, self._mapped = self._mapped, None
        if mapped is not None:
            os.close(mapped.descriptor)


_boxes: weakref.WeakSet[SharedLatencyWindowBox] = weakref.WeakSet()


def _forget_in_child() -> None:
    for box in list(_boxes):
        box._forked()


os.register_at_fork(after_in_child=_forget_in_child)


@functools.lru_cache(maxsize=SLOTS)
def _key(stream: str) -> tuple[int, ...]:
    digest = hashlib.sha256(stream.encode("utf-8", "surrogatepass")).digest()
    first, *others = _DIGEST.unpack(digest)
    return (first or 1, *others)


def _open(path: str) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        if stat.S_IMODE(mode) != 0o600:
            os.fchmod(descriptor, 0o600)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _map(path: str, locked: int) -> mmap.mmap:
    descriptor = _open(path)
    try:
        if not os.path.samestat(os.fstat(descriptor), os.fstat(locked)):
            raise OSError(errno.ESTALE, "replaced while it was opened", path)
        return mmap.mmap(descriptor, _SIZE, mmap.MAP_SHARED)
    finally:
        os.close(descriptor)


def _fill(descriptor: int) -> None:
    """Have the whole length on disk. Under the lock, since another process may just have done so and begun to write."""
    give_up = time.monotonic() + _FILL_PATIENCE
    while os.fstat(descriptor).st_size < _SIZE:
        if _try_lock(descriptor):
            try:
                length = os.fstat(descriptor).st_size
                os.pwrite(descriptor, bytes(max(0, _SIZE - length)), length)
            finally:
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        elif time.monotonic() >= give_up:
            raise OSError(errno.EAGAIN, "somebody else is making it and does not finish")
        else:
            time.sleep(_LOCK_PAUSE)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
