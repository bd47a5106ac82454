"""SQLite: one file, one machine, any number of processes.

**Which journal.** SQLite 3.7.0 to 3.51.2 can corrupt a database in WAL mode that has several connections (fixed in
3.51.3, and in 3.50.7 and 3.44.6 of the older lines). So a database is made in WAL mode, with synchronous=FULL, only by
a library that is fixed, Python's own or that of the package `pysqlite3`; by any other in DELETE mode, with
synchronous=EXTRA, which is as durable and slower. An existing file keeps the mode it has, since connections of other
processes would not notice a change; but one in WAL mode met by a library that is not fixed is switched to DELETE, and
refused when that cannot be because somebody has it open.

**Files.** The database is made complete under another name, mode 0600, and then linked to its own, so that nobody sees
half of it. Afterwards nothing here ever opens the file beside SQLite: closing such a descriptor would drop the locks
that SQLite holds for this process.

**Two libraries.** Two copies of SQLite in one process do not know of each other: when one closes the file, the kernel
drops the locks of the other, in the middle of a transaction. So whoever opens the file in a process that has the queue
open uses the same library; a connection of another one is refused where it is handed over.

**Forks.** SQLite keeps tables of its locks in memory, which a forked child would take for its own. So before a fork
the forking thread keeps other threads from beginning transactions, waits for those under way (they are short: waiting
for a lock happens between them), and closes all connections; both sides open new ones when they need them. Where that
cannot be, because the forking thread is itself inside a transaction, the child may never use that database.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import importlib
import os
import stat
import sys
import threading
from collections.abc import Collection, Iterator
from typing import Any
from urllib.parse import quote

import sqlalchemy
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from queuekit.backends.sql.database import Database, Failed, Held, Trouble
from queuekit.backends.sql.schema import DamagedText
from queuekit.contract import Watcher
from queuekit.errors import BackendUnavailable
from queuekit.private import make_folders
from queuekit.watch import filesystem_type

Version = tuple[int, int, int]

OLDEST: Version = (3, 35, 0)  # RETURNING
_FIXED_LINES = {(3, 44): 6, (3, 50): 7, (3, 51): 3}
_NETWORK = frozenset(
    [
        "9p",
        "afpfs",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "davfs",
        "davfs2",
        "drvfs",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "prl_fs",
        "rclone",
        "s3fs",
        "smb2",
        "smb3",
        "smbfs",
        "sshfs",
        "vboxsf",
        "virtiofs",
        "vmhgfs",
        "webdav",
    ]
)
_WAL_PAGES, _WAL_BYTES = 1000, 16 * 2**20
_BUSY_SECONDS = 0.1  # how long SQLite itself waits for a lock; a fork waits for that too
_POLL_SECONDS = 0.05

_BUSY, _LOCKED = 5, 6
_LOST = frozenset({8, 10, 11, 14, 26})
"""READONLY, IOERR, CORRUPT, CANTOPEN, NOTADB. Read-only may be the connection alone, and for ever: SQLite opens a file
so when it may not open it for writing at that moment, for want of descriptors, too."""


def is_fixed(version: Version) -> bool:
    """Whether this SQLite can be trusted with a WAL database that has several connections."""
    if version >= (3, 51, 3):
        return True
    patch = _FIXED_LINES.get(version[:2])
    return patch is not None and version[2] >= patch


class Library:
    """A DB-API module for SQLite, and what its SQLite can do. `name`: the package it comes in."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.name = str(module.__name__).partition(".")[0]
        self.version: Version = tuple(module.sqlite_version_info[:3])

    @property
    def fixed(self) -> bool:
        """Whether WAL is safe with it."""
        return is_fixed(self.version)

    def __str__(self) -> str:
        return f"SQLite {'.'.join(map(str, self.version))} of {self.name}"


def choose(libraries: Collection[Library]) -> Library:
    """The first that is fixed, else the newest. Raises `BackendUnavailable` when even that is too old."""
    best = next((each for each in libraries if each.fixed), None) or max(libraries, key=lambda each: each.version)
    if best.version < OLDEST:
        raise BackendUnavailable(f"{best} is too old: it takes 3.35, or the package pysqlite3")
    return best


@functools.cache
def library() -> Library:
    """The one that this process uses."""
    found = []
    for name in ("pysqlite3.dbapi2", "sqlite3.dbapi2"):
        with contextlib.suppress(ImportError):
            found.append(Library(importlib.import_module(name)))
    if not found:
        raise BackendUnavailable("this Python has no SQLite: install the package pysqlite3")
    return choose(found)


class SqliteDatabase(Database):
    """The database in the file `path`, which is made when it is absent, as is its folder.

    `folder`: the file's. `durability`: `full` and `batch` are the same here. See `Database` for the rest.

    Raises `BackendUnavailable` when it cannot be made or must not be used: it is a link, a folder or no database,
    others can write it, it is on a network filesystem, or SQLite is too old.
    """

    scheme = "sqlite"
    now_ms = sqlalchemy.literal_column(
        "CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)", sqlalchemy.BigInteger
    )

    def __init__(self, path: str | os.PathLike[str], *, durability: str = "full", patience: float = 10.0) -> None:
        given = os.path.abspath(os.fspath(path))
        self.folder = os.path.realpath(os.path.dirname(given))
        self.path = os.path.join(self.folder, os.path.basename(given))
        self._library = library()
        self._mode = ""
        self._refused = False
        super().__init__(self.path, durability=durability, patience=patience)
        self._provide()

    @property
    def journal_reason(self) -> str:
        """One sentence: the journal mode of this database, and why it is that one.

        Raises `BackendUnavailable` when it cannot be opened.
        """
        if not self._mode:
            self.run(lambda connection: connection.exec_driver_sql("SELECT 1").scalar(), write=False)
        if self._mode == "wal":
            return f"WAL with synchronous={self._synchronous()}, because {self._library} is free of the WAL fault"
        why = "the file was made in it" if self._library.fixed else f"{self._library} can corrupt a WAL database"
        return f"{self._mode.upper()} with synchronous={self._synchronous()}, because {why}"

    def notify(self, streams: Collection[str]) -> None:
        """Touch the file: whoever watches it looks then. (What was committed was not to be seen before.)"""
        if streams:
            with contextlib.suppress(OSError):  # it was moved away or became read-only: the next transaction says so
                os.utime(self.path, follow_symlinks=False)

    def notify_within(self, connection: sqlalchemy.Connection, streams: Collection[str]) -> None:
        """Nothing: watchers see the commit itself, if a little later."""

    def check_theirs(self, connection: sqlalchemy.Connection) -> None:
        """One of another SQLite library is refused, too: see *Two libraries* above."""
        super().check_theirs(connection)
        theirs: Any = connection.dialect.dbapi
        name = Library(getattr(theirs, "sqlite", theirs)).name  # an asynchronous driver wraps a library
        if name != self._library.name:
            raise ValueError(
                f"the connection is of {name}, and this process opens {self.path} with {self._library.name}: two"
                f" SQLite libraries drop each other's locks; use create_engine(..., module={self._library.name}.dbapi2)"
            )

    def watcher(self, poll: float | None = None) -> Watcher:
        """See `watch`."""
        from queuekit.backends.sql.watch import watch_sqlite

        return watch_sqlite(self.path, _POLL_SECONDS if poll is None else poll, wal=self._mode != "delete")

    # -- the file

    def _provide(self) -> None:
        """Make the folder and the file unless they are there; refuse what must not be used."""
        try:
            make_folders(self.folder)
            self._check_filesystem()
            if refusal := self._refusal_of_folder():
                raise BackendUnavailable(refusal)
            if not os.path.lexists(self.path):
                self._make()
            refusal = self._refusal()
        except OSError as error:
            raise BackendUnavailable(f"{self.path}: {error.strerror or error}") from error
        if refusal:
            raise BackendUnavailable(refusal)

    def _check_filesystem(self) -> None:
        kind = filesystem_type(self.folder)
        if _NETWORK.intersection(kind.lower().split(".")):
            raise BackendUnavailable(
                f"{self.path} is on {kind}, where SQLite's locks cannot be trusted: use a local disk, or PostgreSQL"
            )

    def _refusal(self) -> str:
        """Why the file must not be used; "" when it may."""
        file = os.lstat(self.path)
        if stat.S_ISLNK(file.st_mode):
            return f"{self.path} is a link: name the file that it leads to"
        if not stat.S_ISREG(file.st_mode):
            return f"{self.path} is not a file"
        if file.st_uid != os.geteuid():
            return f"{self.path} belongs to uid {file.st_uid} and this is uid {os.geteuid()}: one user a queue"
        if file.st_mode & stat.S_IWOTH:
            return f"{self.path} can be written by others: chmod o-w it, or choose another file"
        return self._refusal_of_folder()

    def _refusal_of_folder(self) -> str:
        """Whoever may write the folder could put a journal there that SQLite would replay; a sticky bit is no help."""
        facts = os.stat(self.folder)
        if facts.st_uid not in {os.geteuid(), 0}:
            return f"{self.folder} belongs to uid {facts.st_uid}, who could change the database: choose another folder"
        if facts.st_mode & stat.S_IWOTH:
            return f"{self.folder} can be written by others: chmod o-w it, or choose another folder"
        return ""

    def _make(self) -> None:
        for left in (f"{self.path}-wal", f"{self.path}-journal"):
            if os.path.lexists(left):
                raise BackendUnavailable(f"{left} is of a database that is gone: restore that, or remove what is left")
        temporary = f"{self.path}.{os.urandom(8).hex()}.tmp"
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.fchmod(descriptor, 0o600)
            os.close(descriptor)
            self._write_header(temporary)
            if self.durability != "none":
                _sync(temporary)
            with contextlib.suppress(FileExistsError):  # another process made it: one is as good as the other
                os.link(temporary, self.path)
        finally:
            os.unlink(temporary)
        if self.durability != "none":
            _sync(self.folder)

    def _write_header(self, path: str) -> None:
        """Make an empty file a database in the mode that this library may use."""
        mode = "WAL" if self._library.fixed else "DELETE"
        error = self._library.module.Error
        try:
            connection = self._library.module.connect(path, isolation_level=None)
            try:
                connection.execute(f"PRAGMA journal_mode={mode}")
                connection.execute("VACUUM")
            finally:
                connection.close()
        except error as failure:
            raise BackendUnavailable(f"{self.path} cannot be made: {failure}") from failure

    # -- connections

    def _make_engine(self) -> sqlalchemy.Engine:
        engine = sqlalchemy.create_engine(
            "sqlite://", module=self._library.module, creator=self._open, poolclass=NullPool
        )

        def refuse_after_fork(connection: sqlalchemy.Connection, *_: object) -> None:
            if connection.info["pid"] != os.getpid():
                raise RuntimeError(f"{self.path}: a transaction cannot be used on the other side of a fork")

        event.listen(engine, "before_cursor_execute", refuse_after_fork)
        return engine

    def _open(self) -> Any:
        """A connection of the driver, set up. Raises `Failed` when this database must not be used."""
        try:
            refusal = self._refusal()
        except OSError as error:
            raise Failed(f"{self.path}: {error.strerror or error}") from error
        if refusal:
            raise Failed(refusal)
        connection = self._library.module.connect(
            f"file:{quote(self.path)}?mode=rw",
            uri=True,
            timeout=min(_BUSY_SECONDS, self.patience),
            isolation_level=None,
            check_same_thread=False,
        )
        connection.text_factory = _text
        try:
            self._set_up(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _set_up(self, connection: Any) -> None:
        def ask(pragma: str) -> Any:
            return connection.execute(f"PRAGMA {pragma}").fetchone()

        mode = str(ask("journal_mode")[0]).lower()
        if mode == "wal" and not self._library.fixed:
            mode = self._leave_wal(ask)
        self._mode = mode
        ask(f"synchronous={self._synchronous()}")
        if sys.platform == "darwin" and self.durability != "none":
            ask("fullfsync=1")
        if mode == "wal":
            ask(f"wal_autocheckpoint={_WAL_PAGES}")
            ask(f"journal_size_limit={_WAL_BYTES}")

    def _leave_wal(self, ask: Any) -> str:
        refusal = (
            f"{self.path} is in WAL mode and open elsewhere, and {self._library} can corrupt it:"
            " install the package pysqlite3 here, or stop the other process first"
        )
        try:
            mode = str(ask("journal_mode=DELETE")[0]).lower()
        except self._library.module.OperationalError as error:
            if _code(error) in (_BUSY, _LOCKED):
                raise Failed(refusal) from error
            raise
        if mode == "wal":
            raise Failed(refusal)
        return mode

    def _synchronous(self) -> str:
        if self.durability == "none":
            return "OFF"
        return "FULL" if self._mode == "wal" else "EXTRA"

    def _begin(self, connection: sqlalchemy.Connection, write: bool) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    def _connect(self) -> Held:
        held = super()._connect()
        held.connection.info["pid"] = held.pid
        held.place = self._identity()
        return held

    def _still_right(self, held: Held) -> bool:
        return bool(held.place == self._identity())

    def _identity(self) -> tuple[int, int] | None:
        try:
            facts = os.lstat(self.path)
        except OSError:
            return None
        return facts.st_dev, facts.st_ino

    def _trouble(self, error: DBAPIError) -> Trouble:
        code = _code(error.orig)
        if code in (_BUSY, _LOCKED):
            return Trouble.AGAIN
        return Trouble.LOST if code in _LOST else Trouble.OTHER

    def _sentence(self, error: DBAPIError) -> str:
        if self._trouble(error) is Trouble.AGAIN:
            return f"{self.path} is locked by somebody else for {self.patience:g} s"
        return super()._sentence(error)

    # -- forks

    @contextlib.contextmanager
    def _transaction_allowed(self) -> Iterator[None]:
        with _gate.inside():
            if self._refused or _gate.crossed:
                raise Failed(
                    f"{self.path}: this process was forked inside a transaction, so it cannot use the database"
                )
            yield

    def _before_fork(self) -> None:
        for held in list(self._held.values()):
            if not held.busy:
                self._drop(held)

    def _forget(self, held: Held) -> None:
        """This one was in use at the fork. It is made immortal: closing it would undo the parent's transaction."""
        self._refused = True
        for each in (held.connection, held.driver):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))


class _Gate:
    """Who is inside a transaction, in this process; forks wait until nobody else is, and nobody enters meanwhile."""

    def __init__(self) -> None:
        self.crossed = False
        self._inside: dict[int, int] = {}
        self.reset()

    def reset(self) -> None:
        """Nobody is inside. `crossed`: other threads of the parent were, at the fork that made this process."""
        self.crossed = self.crossed or bool(self._inside.keys() - {threading.get_ident()})
        self._changed = threading.Condition(threading.Lock())
        self._inside = {}
        self._forks = 0

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Around a transaction; a thread that is inside already may enter again."""
        me = threading.get_ident()
        with self._changed:
            while self._forks and me not in self._inside:
                self._changed.wait()
            self._inside[me] = self._inside.get(me, 0) + 1
        gate = self._changed
        try:
            yield
        finally:
            with self._changed:
                if gate is self._changed:  # else this is a child, forked in there
                    self._leave(me)

    def _leave(self, me: int) -> None:
        self._inside[me] -= 1
        if not self._inside[me]:
            del self._inside[me]
            self._changed.notify_all()

    def shut(self) -> None:
        """Wait until no other thread is inside, but not for ever: what is open then is never used by the child."""
        me = threading.get_ident()
        with self._changed:
            self._forks += 1
            self._changed.wait_for(lambda: not self._inside.keys() - {me}, timeout=_FORK_SECONDS)

    def open(self) -> None:
        """In the parent, after the fork."""
        with self._changed:
            self._forks -= 1
            self._changed.notify_all()


def _text(content: bytes) -> str | DamagedText:
    """A text as it is read. The driver would raise for a damaged one, and so nobody could get past its row."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return DamagedText(content)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a folder, on some filesystems
            raise
    finally:
        os.close(descriptor)


def _code(error: BaseException | None) -> int:
    """SQLite's primary result code; 0 when the error is none of SQLite's."""
    return int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


_FORK_SECONDS = 10.0
_gate = _Gate()
# registered after `database`'s, so it runs before that before a fork, and after it afterwards
os.register_at_fork(before=_gate.shut, after_in_parent=_gate.open, after_in_child=_gate.reset)
