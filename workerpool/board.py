"""The board: one mapped file per pool in which every process says what it does, and which anyone may read at no cost.

    board-<pid>-<start>
    +--------+-------+-------+-----+
    | header | row 0 | row 1 | …   |      row 0: the master; each stream: 1 + (its most workers) rows in turn,
    +--------+-------+-------+-----+      the stream's own row first. Who gets which is the master's word.

The file outlives the processes. After a `kill -9` its rows tell which jobs were running: a worker names the job in its
row *before* the handler starts and takes it back after it ended, with plain stores into shared memory, no system call.
The master holds a `flock` on the file for its life; a board that can be locked is a dead pool's, and stays readable
until somebody sweeps it.

Each row has one writer, its owner. A write makes the row's sequence number odd, changes fields, and makes it even
again; a reader that sees an odd or changed number tries again, and after some tries takes what is there and says `torn`
(the writer died inside, or was stopped there). The job of a torn row is right all the same: it is the last thing that
is set at a start (its length in one store) and the first that is cleared at an end.

Numbers are native: a board is read on the machine that wrote it. `monotonic_ns` times are comparable between processes
of one boot; the header has the boot's id.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import errno
import fcntl
import hashlib
import mmap
import os
import struct
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from queuekit.job import clip
from workerpool.process.identity import boot_id, is_running, start_identity

MAGIC = b"WPBOARD2"
HEADER_BYTES = 4096
ROW_BYTES = 2048
MAX_BATCH_KNOWN = 64
"""So many jobs of a running batch can be recognised in a row; the others are not."""

_HEADER = struct.Struct("@8sIIqq64s64sH")  # magic, row size, rows, pid, created ms, start, boot, length of config path
_MAX_PATH = HEADER_BYTES - _HEADER.size
_TRIES = 200
_NONE: Mapping[str, int] = {}


class Kind(enum.IntEnum):
    """What a row's owner is. FREE: the row was never taken."""

    FREE = 0
    MASTER = 1
    STREAM = 2
    WORKER = 3


_KINDS = frozenset(Kind)
KILLED = "killed"
"""The state of a master's row when it has killed its processes itself: nobody is charged for what they were running."""


DIED = "died"
"""The state of a stream's row when its process has ended untold; `error` says how. Its master writes that."""


class BoardError(Exception):
    """A file that is not a board of this version. Attributes: `path`, `reason`."""

    def __init__(self, path: str, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"{path}: {reason}")


# -- the layout of a row: offsets in bytes; every number is aligned, so each is one store

# the first word is the sequence number
_JOB_LENGTH = 8  # 0 = nothing runs
_COUNTERS_AT = {
    name: 16 + 8 * place
    for place, name in enumerate(
        (
            "since_ns",
            "since_ms",
            "progress_done",
            "progress_total",
            "batch",
            "heartbeat_ns",
            "jobs_done",
            "jobs_failed",
            "jobs_retried",
            "jobs_blocked",
            "crashes",
            "restarts",
            "rss",
            "max_rss",
            "kind",
            "pid",
            "group",
            "session",
            "held_ms",
            "trouble_ms",
        )
    )
}
_TEXTS_AT = {  # name: (offset, room); two bytes of length, then UTF-8
    "state": (192, 32),
    "lease": (224, 32),
    "start": (256, 80),
    "name": (336, 176),
    "stream": (512, 226),
    "job": (738, 226),
    "error": (964, 400),
    "trouble": (1364, 160),
}
_AS_IT_IS = {"stream"}  # compared with names of jobs, leases and pauses; whoever shows it escapes it
_DIGESTS_AT = ROW_BYTES - 8 * MAX_BATCH_KNOWN
_RECALL_AT = _DIGESTS_AT - 8  # written by the worker's stream process, read by the worker
_WORD = struct.Struct("@q")
_STARTED = struct.Struct("@qqqqq")  # since_ns … batch, side by side
_LENGTH = struct.Struct("@H")
_KEPT = ("jobs_done", "jobs_failed", "jobs_retried", "jobs_blocked", "crashes", "held_ms")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RowView:
    """What a row said at one moment. Times `…_ns` are monotonic, `since_ms` is ms since the epoch; memory is in bytes.

    `job`: the id of the running job (the first of a batch), empty when nothing runs; `batch`: how many run together.
    `since_…`: when the running job started, else when the last one ended. `torn`: it was read in the middle of a write.
    Of a stream: `held_ms` is when it was last taken over in this place (0: never), `trouble` what keeps it from its
    work now, since `trouble_ms` (both ms since the epoch), "" when nothing does.
    """

    index: int
    torn: bool
    kind: Kind
    state: str
    lease: str
    start: str
    name: str
    stream: str
    job: str
    error: str
    trouble: str
    since_ns: int
    since_ms: int
    progress_done: int
    progress_total: int
    batch: int
    heartbeat_ns: int
    jobs_done: int
    jobs_failed: int
    jobs_retried: int
    jobs_blocked: int
    crashes: int
    restarts: int
    rss: int
    max_rss: int
    pid: int
    group: int
    session: int
    held_ms: int
    trouble_ms: int
    digests: frozenset[bytes]

    def runs(self, job_id: str) -> bool:
        """Whether the owner was running this job (alone, or as one of a batch)."""
        return bool(self.job) and (self.job == job_id or (self.batch > 1 and _digest(job_id) in self.digests))

    def owner_is_running(self) -> bool:
        """Whether the process that owns the row still runs (looks at the process table)."""
        return self.kind is not Kind.FREE and is_running(self.pid, self.start)


class Row:
    """A row of a board as its owner writes it. One process has it at a time, one thread writes."""

    def __init__(self, board: Board, index: int) -> None:
        self.board = board
        self.index = index
        self._map = board.mapping
        self._base = HEADER_BYTES + index * ROW_BYTES
        self._job_at = self._base + _TEXTS_AT["job"][0]

    def take(self, *, kind: Kind, stream: str = "", name: str = "", state: str = "starting") -> None:
        """Become the owner: everything is reset, but the counters of an earlier owner go on, and `restarts` grows."""
        before = self.view()
        with self._writing():
            self._map[self._base + 8 : self._base + ROW_BYTES] = bytes(ROW_BYTES - 8)
            for counter in _KEPT:
                self._put(counter, getattr(before, counter))
            self._put("restarts", before.restarts + (before.kind is not Kind.FREE))
            self._put("kind", kind)
            self._put_identity(os.getpid())
            self._put_text("stream", stream)
            self._put_text("name", name)
            self._put_text("state", state)
            self._put("heartbeat_ns", time.monotonic_ns())
            self._put_clock()

    def clear(self) -> None:
        """Give the row back: it reads as free, and its counters are forgotten."""
        with self._writing():
            self._map[self._base + 8 : self._base + ROW_BYTES] = bytes(ROW_BYTES - 8)

    def start_job(self, job_id: str, now_ns: int | None = None) -> None:
        """Say that this job runs from now on; before the handler is called. `now_ns`: monotonic."""
        data = job_id.encode(errors="replace")[:224]
        begin = self._job_at + 2
        self._begin()
        self._map[begin : begin + len(data)] = data
        now = time.monotonic_ns() if now_ns is None else now_ns
        _STARTED.pack_into(self._map, self._base + 16, now, time.time_ns() // 1_000_000, 0, 0, 1)
        _WORD.pack_into(self._map, self._base + _JOB_LENGTH, len(data))
        self._finish()

    def start_batch(self, job_ids: Sequence[str], now_ns: int | None = None) -> None:
        """The same for jobs that run together; the first gives the name."""
        known = b"".join(map(_digest, job_ids[:MAX_BATCH_KNOWN])).ljust(8 * MAX_BATCH_KNOWN, b"\0")
        with self._writing():
            self._map[self._base + _DIGESTS_AT : self._base + ROW_BYTES] = known
        self.start_job(job_ids[0], now_ns)
        with self._writing():
            self._put("batch", len(job_ids))

    def end_job(self, *, done: int = 0, failed: int = 0) -> None:
        """Say that nothing runs any more, and count what ended."""
        _WORD.pack_into(self._map, self._base + _JOB_LENGTH, 0)
        self._begin()
        self._put_clock()
        if done:
            self._put("jobs_done", self._get("jobs_done") + done)
        if failed:
            self._put("jobs_failed", self._get("jobs_failed") + failed)
        self._finish()

    def progress(self, done: int, total: int) -> None:
        """How far the running job is (any unit)."""
        with self._writing():
            self._put("progress_done", _int64(done))
            self._put("progress_total", _int64(total))

    def recall(self, number: int) -> None:
        """For the stream process: units sent with a number up to this one are not to be started any more.

        One store. It holds for sure for whatever the worker has not started when it is seen, a moment *later*, still in
        the run that it was in before.
        """
        _WORD.pack_into(self._map, self._base + _RECALL_AT, number)

    def recalled(self) -> int:
        """For the worker: up to which number units were called back."""
        return int(_WORD.unpack_from(self._map, self._base + _RECALL_AT)[0])

    def beat(self, now_ns: int | None = None) -> None:
        """A sign of life; monotonic."""
        self.set(heartbeat_ns=time.monotonic_ns() if now_ns is None else now_ns)

    def set(self, **numbers: int) -> None:
        """Set numbers by their names in `RowView`, in one write. Raises `KeyError` for an unknown name."""
        places = [(_COUNTERS_AT[name], value) for name, value in numbers.items()]
        with self._writing():
            for place, value in places:
                _WORD.pack_into(self._map, self._base + place, _int64(value))

    def add(self, **numbers: int) -> None:
        """Add to numbers by their names in `RowView`, in one write. Raises `KeyError` for an unknown name."""
        self.set(**{name: self._get(name) + value for name, value in numbers.items()})

    def say(self, **texts: str) -> None:
        """Set texts by their names in `RowView`, clipped to their room. Raises `KeyError` for an unknown name."""
        for name in texts:
            _TEXTS_AT[name]
        with self._writing():
            for name, text in texts.items():
                self._put_text(name, text)

    def adopt(self, pid: int, start: str) -> None:
        """For a parent that takes the row on behalf of a child it just forked."""
        with self._writing():
            self._put("pid", pid)
            self._put_text("start", start)

    def view(self) -> RowView:
        """What the row says now."""
        return _view(self._map, self.index)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        self._begin()
        try:
            yield
        finally:
            self._finish()

    def _begin(self) -> None:
        """Odd from here on; it already is when an earlier owner died inside a write."""
        _WORD.pack_into(self._map, self._base, _WORD.unpack_from(self._map, self._base)[0] | 1)

    def _finish(self) -> None:
        _WORD.pack_into(self._map, self._base, (_WORD.unpack_from(self._map, self._base)[0] | 1) + 1)

    def _get(self, name: str) -> int:
        return int(_WORD.unpack_from(self._map, self._base + _COUNTERS_AT[name])[0])

    def _put(self, name: str, value: int) -> None:
        _WORD.pack_into(self._map, self._base + _COUNTERS_AT[name], value)

    def _put_text(self, name: str, text: str) -> None:
        offset, room = _TEXTS_AT[name]
        data = text.encode()[: room - 2] if name in _AS_IT_IS else clip(text, room - 2).encode()
        begin = self._base + offset
        self._map[begin + 2 : begin + 2 + len(data)] = data
        _LENGTH.pack_into(self._map, begin, len(data))

    def _put_identity(self, pid: int) -> None:
        self._put("pid", pid)
        self._put("group", os.getpgid(pid))
        self._put("session", os.getsid(pid))
        self._put_text("start", start_identity(pid) or "")

    def _put_clock(self) -> None:
        self._put("since_ns", time.monotonic_ns())
        self._put("since_ms", time.time_ns() // 1_000_000)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BoardHeader:
    """Whose board it is. `created_ms`: ms since the epoch; `boot`: the id of the boot that its times belong to."""

    pid: int
    start: str
    boot: str
    config: str
    created_ms: int
    rows: int


class Board:
    """A mapped board. Make one with `create` (the master) or `attach` (readers)."""

    def __init__(self, path: str, mapping: mmap.mmap, lock_fd: int | None) -> None:
        self.path = path
        self.mapping = mapping
        self._lock_fd = lock_fd
        self.header = _read_header(path, mapping)

    @classmethod
    def create(cls, directory: str, rows: int, config: str = "") -> Board:
        """Make this process's board with `rows` rows and hold its lock until `close` or death.

        `rows` cannot grow later: ask for spare ones. Raises `OSError` when the file cannot be made or has no room.
        """
        start = start_identity(os.getpid()) or ""
        path = os.path.join(directory, f"board-{os.getpid()}-{start.partition('@')[0]}")
        draft = os.path.join(directory, f".{os.path.basename(path)}")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)
        lock_fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(lock_fd, 0o600)
            fcntl.flock(lock_fd, fcntl.LOCK_EX)
            _reserve(lock_fd, HEADER_BYTES + rows * ROW_BYTES)
            os.pwrite(lock_fd, _encode_header(rows, start, config), 0)
            mapping = _map(draft, writable=True)
            os.rename(draft, path)  # it appears locked and whole, so that nobody takes it for a dead one
        except BaseException:
            os.close(lock_fd)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft)
            raise
        return cls(path, mapping, lock_fd)

    @classmethod
    def attach(cls, path: str, *, follow: bool = False) -> Board:
        """A board for reading. Raises `BoardError` when it is not one of this version, `OSError` if unreadable.

        `follow`: the path may be a link, as those of `find_lost` are.
        """
        try:
            return cls(path, _map(path, writable=False, follow=follow), None)
        except ValueError as error:
            raise BoardError(path, f"not a board: {error}") from error

    def row(self, index: int) -> Row:
        """The row of that number, to write; only its owner may. Raises `IndexError` beyond the last."""
        if not 0 <= index < self.header.rows:
            raise IndexError(f"the board has {self.header.rows} rows, not {index + 1}")
        return Row(self, index)

    def view(self, index: int) -> RowView:
        """What one row says now. Raises `IndexError` beyond the last."""
        if not 0 <= index < self.header.rows:
            raise IndexError(f"the board has {self.header.rows} rows, not {index + 1}")
        return _view(self.mapping, index)

    def rows(self) -> list[RowView]:
        """Every row that was ever taken, in order."""
        return [view for view in (_view(self.mapping, index) for index in range(self.header.rows)) if view.kind]

    def is_in_place(self) -> bool:
        """Whether its file is still at its path; asked by who has made it."""
        try:
            there = os.stat(self.path, follow_symlinks=False)
        except OSError:
            return False
        return self._lock_fd is not None and os.path.samestat(os.fstat(self._lock_fd), there)

    def sweep_predecessors(self) -> list[str]:
        """Delete the dead boards every stream of which was taken over on this one, a living one; returns their paths.

        Whoever has just taken one over does it, so that pools that are killed again and again leave no heap that each
        of the next has to look through. Kept is what `sweep` keeps. Raises `OSError` when they may not be deleted.
        """
        taken_over = {row.stream: row.held_ms for row in self.rows() if row.kind is Kind.STREAM}
        return _remove_dead(os.path.dirname(self.path), [self.path], taken_over)

    def close(self) -> None:
        """Unmap and unlock it; the file stays."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None
        self.mapping.close()

    def remove(self) -> None:
        """Close it and delete the file: for one that nobody shall read any more."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        self.close()


def find_boards(directory: str) -> list[tuple[str, bool]]:
    """The boards in a directory, oldest first, each with whether its master lives (holds the lock)."""
    paths = _listed(directory, "board-")
    found = [(path, alive) for path in paths if (alive := _locked(path)) is not None]
    return sorted(found, key=lambda board: (_created_ms(board[0]), board[0]))


def find_lost(directory: str) -> list[str]:
    """Boards that were removed from a directory while their masters live, as paths that they can be read at.

    Their masters have them open still, and Linux shows what a process has open; elsewhere none is found.
    """
    begin, end = os.path.join(directory, "board-"), " (deleted)"
    return [path for path, target in _opened_boards() if target.startswith(begin) and target.endswith(end)]


def find_elsewhere(directory: str, config: str) -> list[tuple[str, str]]:
    """Boards of living masters that run with the configuration file `config`, but are in another folder than this.

    That is so when the folder was moved away under a pool, or when the file names another store since. Each as a path
    that it can be read at, and where its file is now. Found on Linux only, as by `find_lost`.
    """
    found = []
    for path, target in _opened_boards():
        if os.path.dirname(target) != directory:
            with contextlib.suppress(BoardError, OSError):
                board = Board.attach(path, follow=True)
                board.close()
                if board.header.config == config:
                    found.append((path, target))
    return found


def _opened_boards() -> list[tuple[str, str]]:
    """Every locked board that a process has open, as the path of its descriptor, and the path that its file has."""
    found: dict[tuple[int, int], tuple[str, str]] = {}  # by inode: a mapping, and whoever looks, has a descriptor too
    for pid in filter(str.isdecimal, _listed_names("/proc")):
        for fd in _listed_names(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(path := f"/proc/{pid}/fd/{fd}")
                if os.path.basename(target).startswith("board-") and _locked(path, follow=True):
                    facts = os.stat(path)
                    found.setdefault((facts.st_dev, facts.st_ino), (path, target))
    return list(found.values())


def sweep(directory: str, *, keep: Collection[str] = (), taken_over: Mapping[str, int] = _NONE) -> list[str]:
    """Delete dead boards, and drafts of creators that died; returns their paths. Raises `OSError` when it may not.

    Kept are the paths in `keep`, boards with a process that still runs, and those which tell of a stream that nobody
    has taken over since: what it was running is not charged yet. `taken_over`: when each stream was, ms since the
    epoch.
    """
    drafts = [path for path in _listed(directory, ".board-") if _locked(path) is False]
    _remove(drafts)
    return _remove_dead(directory, keep, taken_over) + drafts


def _remove_dead(directory: str, keep: Collection[str], taken_over: Mapping[str, int]) -> list[str]:
    dead = [path for path, alive in find_boards(directory) if not alive and path not in keep]
    removed = [path for path in dead if _is_over(path, taken_over)]
    _remove(removed)
    return removed


def _remove(paths: Sequence[str]) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


# -- below: bytes and system calls


def _view(mapping: mmap.mmap, index: int) -> RowView:
    base = HEADER_BYTES + index * ROW_BYTES
    torn = True
    data = b""
    for _ in range(_TRIES):
        sequence = _WORD.unpack_from(mapping, base)[0]
        data = mapping[base : base + ROW_BYTES]
        if sequence % 2 == 0 and _WORD.unpack_from(mapping, base)[0] == sequence:
            torn = False
            break
    numbers: dict[str, Any] = {name: _WORD.unpack_from(data, place)[0] for name, place in _COUNTERS_AT.items()}
    texts: dict[str, Any] = {name: _text(data, offset) for name, (offset, _) in _TEXTS_AT.items() if name != "job"}
    return RowView(
        index=index,
        torn=torn,
        kind=_kind(numbers.pop("kind")),
        job=_job(data),
        digests=_digests(data, numbers["batch"]),
        **texts,
        **numbers,
    )


def _kind(number: int) -> Kind:
    """FREE also for what no owner writes: a damaged row is shown as none."""
    return Kind(number) if number in _KINDS else Kind.FREE


def _text(data: bytes, offset: int) -> str:
    length = _LENGTH.unpack_from(data, offset)[0]
    return data[offset + 2 : offset + 2 + length].decode(errors="replace")


def _job(data: bytes) -> str:
    begin = _TEXTS_AT["job"][0] + 2
    return data[begin : begin + _WORD.unpack_from(data, _JOB_LENGTH)[0]].decode(errors="replace")


def _digests(data: bytes, batch: int) -> frozenset[bytes]:
    known = min(batch, MAX_BATCH_KNOWN) if batch > 1 else 0
    return frozenset(data[_DIGESTS_AT + 8 * place : _DIGESTS_AT + 8 * place + 8] for place in range(known))


def _digest(job_id: str) -> bytes:
    return hashlib.blake2b(job_id.encode(errors="replace"), digest_size=8).digest()


def _int64(value: int) -> int:
    return max(-(2**63), min(2**63 - 1, int(value)))


def _encode_header(rows: int, start: str, config: str) -> bytes:
    path = config.encode(errors="surrogateescape")[:_MAX_PATH]
    created = time.time_ns() // 1_000_000
    packed = _HEADER.pack(MAGIC, ROW_BYTES, rows, os.getpid(), created, start.encode(), boot_id().encode(), len(path))
    return (packed + path).ljust(HEADER_BYTES, b"\0")


def _read_header(path: str, mapping: mmap.mmap) -> BoardHeader:
    if len(mapping) < HEADER_BYTES:
        raise BoardError(path, "not a board: too short")
    magic, row_bytes, rows, pid, created, start, boot, length = _HEADER.unpack_from(mapping, 0)
    if magic != MAGIC or row_bytes != ROW_BYTES or len(mapping) < HEADER_BYTES + rows * ROW_BYTES:
        raise BoardError(path, "not a board of this version")
    config = mapping[_HEADER.size : _HEADER.size + length].decode(errors="surrogateescape")
    return BoardHeader(pid=pid, start=_word(start), boot=_word(boot), config=config, created_ms=created, rows=rows)


def _word(data: bytes) -> str:
    return data.rstrip(b"\0").decode(errors="replace")


def _map(path: str, *, writable: bool, follow: bool = False) -> mmap.mmap:
    """Map the file through a descriptor of its own: a mapping keeps a duplicate, which must not keep the lock alive."""
    flags = (os.O_RDWR if writable else os.O_RDONLY) | (0 if follow else os.O_NOFOLLOW) | os.O_CLOEXEC
    fd = os.open(path, flags)
    try:
        _check_owner(fd, path)
        return mmap.mmap(fd, 0, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
    finally:
        os.close(fd)


def _reserve(fd: int, size: int) -> None:
    """Give the file its blocks now: a store into a mapped hole on a full disk would kill the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
    else:
        os.truncate(fd, size)


def _listed(directory: str, prefix: str) -> list[str]:
    try:
        return [os.path.join(directory, name) for name in os.listdir(directory) if name.startswith(prefix)]
    except FileNotFoundError:
        return []


def _listed_names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:  # another user's process, or gone; or a system that has no such list
        return []


def _locked(path: str, *, follow: bool = False) -> bool | None:
    """Whether somebody holds the file's lock; None when it is no regular file of ours to open."""
    try:
        fd = os.open(path, os.O_RDONLY | (0 if follow else os.O_NOFOLLOW) | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        _check_owner(fd, path)
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared, so that two who look do not see each other
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(fd)
    return False


def _check_owner(fd: int, path: str) -> None:
    """Another user's board is believed by root only: it names processes that are to be signalled."""
    if os.fstat(fd).st_uid != os.geteuid() != 0:
        raise PermissionError(errno.EPERM, "it is another user's", path)


def _is_over(path: str, taken_over: Mapping[str, int]) -> bool:
    """Whether nobody needs the board any more; a file that is no board of ours is left alone."""
    try:
        board = Board.attach(path)
    except (BoardError, OSError):
        return False
    try:
        rows = board.rows()
    finally:
        board.close()
    is_news = any(row.held_ms > taken_over.get(row.stream, 0) for row in rows if row.kind is Kind.STREAM)
    return not is_news and not any(row.owner_is_running() for row in rows)


def _created_ms(path: str) -> int:
    try:
        board = Board.attach(path)
    except (BoardError, OSError):
        return 0
    board.close()
    return board.header.created_ms
