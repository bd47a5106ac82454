"""The ground floor of the SQL stores: a database that runs one piece of work in one transaction, whole or not at all.

`Database.run` is the only door. It finds this thread's connection (there is one per process and thread, opened when it
is first needed), begins, calls the work, commits. What can go wrong then has one of three answers:

* *again*: somebody else's lock, a serialization failure, a deadlock. Nothing happened, so the whole work is run again,
  after random growing pauses, until the patience is used up.
* *lost*: the connection is of no use any more. It is dropped. A connection from earlier that turns out to be dead
  before COMMIT was sent is replaced once, on the spot. Once COMMIT was sent nobody knows the outcome: that is an error,
  and the caller has to look. When connecting fails too, every further try waits 0.1 s growing to 5 s, and in between
  `run` fails at once: callers never pile up before a dead server.
* *other*: an error. Rolled back and told.

Every error of the driver comes out as a `QueueError` of the caller's choice, with the driver's as its cause (or ours,
where the driver was not asked; never none: that is how a refused value differs). What the work itself raises comes out
as it is. Both leave nothing of the transaction behind.

A connection never crosses a fork: see `_before_fork` and `_forget` of each database.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import enum
import functools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator
from typing import Any, ClassVar, TypeVar

import sqlalchemy
from sqlalchemy.exc import DBAPIError
from tenacity import Retrying, retry_if_exception_type, stop_before_delay, wait_random_exponential

from queuekit.contract import Watcher
from queuekit.errors import BackendUnavailable, QueueError

T = TypeVar("T")
log = logging.getLogger("queuekit.sql")

DURABILITIES = ("full", "batch", "none")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_RETRY_PAUSE = wait_random_exponential(multiplier=0.004, max=0.1)


class Trouble(enum.Enum):
    """What an error of the driver means for the work that met it."""

    AGAIN = "again"  # nothing happened: run the whole work again
    LOST = "lost"  # the connection is of no use any more
    OTHER = "other"


class Failed(Exception):
    """A transaction that did not happen, or nobody knows. `sentence` says so; the driver's error is its cause."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence


class Again(Failed):
    """One that certainly did not happen and may succeed when it is run again."""


class Database(abc.ABC):
    """One database, as one process sees it. Safe to use from several threads, and on both sides of a fork.

    `name`: what it is called in messages (never with a password). `patience`: seconds for which locks of others are
    waited for. `durability`: `full` or `batch` (a commit survives a power cut) or `none`.

    Rows are locked with SQLAlchemy's `select(...).with_for_update(...)`, which writes nothing on SQLite: there a
    writing transaction is alone from its beginning.
    """

    scheme: ClassVar[str]
    now_ms: ClassVar[sqlalchemy.ColumnElement[int]]
    _lock: threading.RLock
    _held: dict[threading.Thread, Held]
    _engine: sqlalchemy.Engine | None
    _reach: Reach

    def __init__(self, name: str, *, durability: str = "full", patience: float = 10.0) -> None:
        if durability not in DURABILITIES:
            raise ValueError(f"durability is one of {', '.join(DURABILITIES)}, not {durability!r}")
        self.name = name
        self.durability = durability
        self.patience = patience
        self._closed = False
        self._start_anew()
        with _all_lock:
            _all.add(self)

    def run(
        self,
        work: Callable[[sqlalchemy.Connection], T],
        *,
        write: bool = True,
        failure: Callable[[str], QueueError] = BackendUnavailable,
    ) -> T:
        """What `work(connection)` answers, run in one transaction of its own; durable when this returns.

        `work` may be called several times, so it must do nothing but use the connection. `write=False`: it only reads,
        and waits for no writer. `failure` makes the error that is raised, from one sentence, when the database is the
        reason: nothing was changed then, except that a connection lost while committing leaves that unknown. A
        `QueueError` or anything else that `work` raises is passed on after rolling back.

        Raises `BackendUnavailable` when it is closed, `RuntimeError` when this thread is inside `run` already.
        """
        if self._closed:
            raise BackendUnavailable("it is closed")
        attempt = functools.partial(self._attempt, work, write)
        began = time.monotonic()
        try:
            try:
                return attempt()
            except Again:
                if time.monotonic() - began >= self.patience:
                    raise
                return self._patiently(attempt, began)
        except Failed as failed:
            raise failure(failed.sentence) from failed.__cause__ or failed

    @abc.abstractmethod
    def notify(self, streams: Collection[str]) -> None:
        """After a commit: wake whoever waits for arrivals in these streams. It never fails; a wake may be lost."""

    @abc.abstractmethod
    def notify_within(self, connection: sqlalchemy.Connection, streams: Collection[str]) -> None:
        """The same as a part of the transaction of `connection`, which may be anybody's: it wakes when that commits.

        Raises what the driver raises.
        """

    def check_theirs(self, connection: sqlalchemy.Connection) -> None:
        """Raise `ValueError` when somebody else's connection cannot be one to this database, or must not be."""
        if connection.dialect.name != self.scheme:
            raise ValueError(f"the connection is to {connection.dialect.name}, and the queue is in {self.name}")

    @abc.abstractmethod
    def watcher(self, poll: float | None = None) -> Watcher:
        """A new watcher of arrivals, attached. `poll`: seconds between looks where (or while) there are no events."""

    def close(self) -> None:
        """Close this process's connections, those in use when they are done; any number of times."""
        self._closed = True
        with self._lock:
            for held in list(self._held.values()):
                if not held.busy:
                    self._drop(held)

    # -- what a dialect adds

    @abc.abstractmethod
    def _make_engine(self) -> sqlalchemy.Engine:
        """An engine without a pool of its own."""

    @abc.abstractmethod
    def _begin(self, connection: sqlalchemy.Connection, write: bool) -> None:
        """Do what a transaction needs at its beginning; the driver's errors pass."""

    @abc.abstractmethod
    def _trouble(self, error: DBAPIError) -> Trouble:
        """What this error means."""

    @contextlib.contextmanager
    def _transaction_allowed(self) -> Iterator[None]:
        """Around every transaction. Raises `Failed` when this process must not begin one."""
        yield

    def _still_right(self, held: Held) -> bool:  # noqa: ARG002
        """Whether an idle connection still leads to the right place."""
        return True

    def _before_fork(self) -> None:  # noqa: B027
        """In the forking thread, before every fork of this process."""

    def _forget(self, held: Held) -> None:  # noqa: B027
        """In a forked child: make sure that its copy of a connection can never be used or closed properly."""

    # -- one attempt

    def _attempt(self, work: Callable[[sqlalchemy.Connection], T], write: bool) -> T:
        with self._transaction_allowed(), self._in_use() as held:
            committing = False
            try:
                transaction = held.connection.begin()
                self._begin(held.connection, write)
                value = work(held.connection)
                self._refuse_after_fork(held)
                committing = True
                transaction.commit()
            except DBAPIError as error:
                raise self._failed(error, held, committing) from error.orig
            finally:
                self._end(held)
            held.fresh = False
            self._reach.succeeded()
            return value

    def _patiently(self, attempt: Callable[[], T], began: float) -> T:
        retrying = Retrying(
            retry=retry_if_exception_type(Again),
            wait=_RETRY_PAUSE,
            stop=stop_before_delay(began + self.patience - time.monotonic()),
            reraise=True,
        )
        return retrying(attempt)

    def _failed(self, error: DBAPIError, held: Held, committing: bool) -> Failed:
        trouble = self._trouble(error)
        if trouble is Trouble.AGAIN:
            return Again(self._sentence(error))
        if trouble is Trouble.LOST:
            held.broken = True
            self._reach.lost(held.opened)
            if committing:
                return Failed(f"{self._sentence(error)}: lost while committing, so what was done is unknown")
            if not held.fresh:
                return Again(self._sentence(error))
        return Failed(self._sentence(error))

    def _sentence(self, error: DBAPIError) -> str:
        said = str(error.orig).strip().splitlines()
        return f"{self.name}: {said[0] if said else type(error.orig).__name__}"

    def _end(self, held: Held) -> None:
        """Leave no transaction behind, whatever happened."""
        if held.pid != os.getpid():
            return
        transaction = held.connection.get_transaction()
        if transaction is None or held.broken:
            return
        try:
            transaction.rollback()
        except DBAPIError as error:
            log.debug("%s: could not roll back, dropping the connection: %s", self.name, error.orig)
            held.broken = True

    def _refuse_after_fork(self, held: Held) -> None:
        if held.pid != os.getpid():
            raise RuntimeError(f"{self.name}: a process that was forked inside a transaction cannot go on with it")

    # -- connections

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[Held]:
        held = self._connection()
        held.busy = True
        try:
            yield held
        finally:
            held.busy = False
            if held.pid == os.getpid() and (held.broken or self._closed):
                with self._lock:
                    self._drop(held)

    def _connection(self) -> Held:
        """This thread's connection, opened when there is none that still is of use."""
        held = self._held.get(threading.current_thread())
        if held is not None:
            if held.busy:
                raise RuntimeError(f"{self.name}: a transaction inside a transaction of the same thread")
            if self._still_right(held):
                return held
            with self._lock:
                self._drop(held)
        return self._connect()

    def _connect(self) -> Held:
        began = self._reach.may_try(self.name)
        with self._lock:
            if self._engine is None:
                self._engine = self._make_engine()
            engine = self._engine
        try:
            connection = engine.connect()
        except DBAPIError as error:
            if self._trouble(error) is Trouble.AGAIN:
                raise Again(self._sentence(error)) from error.orig
            self._reach.refused(began, self._sentence(error))
            raise Failed(self._sentence(error)) from error.orig
        held = Held(connection, connection.connection.driver_connection, opened=began)
        with self._lock:
            self._drop_those_of_dead_threads()
            self._held[threading.current_thread()] = held
        return held

    def _drop(self, held: Held) -> None:
        """Close and forget one; the lock is held."""
        for thread, each in list(self._held.items()):
            if each is held:
                del self._held[thread]
        try:
            if held.broken:
                held.connection.invalidate()
            held.connection.close()
        except DBAPIError as error:
            log.debug("%s: a connection did not close well: %s", self.name, error.orig)

    def _drop_those_of_dead_threads(self) -> None:
        for thread, held in list(self._held.items()):
            if not thread.is_alive():
                self._drop(held)

    # -- forks

    def _start_anew(self) -> None:
        """No connections, no engine, nobody waiting: at first, and in a forked child."""
        self._lock = threading.RLock()
        self._held = {}
        self._engine = None
        self._reach = Reach()

    def _start_anew_in_child(self) -> None:
        for held in self._held.values():
            self._forget(held)
            _inherited.append(held)
        if self._engine is not None:
            _inherited.append(self._engine)
        self._start_anew()


@dataclasses.dataclass(eq=False)
class Held:
    """A connection of one thread. `opened`: when connecting began (monotonic seconds); `fresh`: nothing committed yet;
    `driver`: the driver's own object; `place`: what it led to when it was opened, where that can change."""

    connection: sqlalchemy.Connection
    driver: Any
    opened: float
    pid: int = dataclasses.field(default_factory=os.getpid)
    busy: bool = False
    broken: bool = False
    fresh: bool = True
    place: Any = None


class Reach:
    """Whether it makes sense to connect now: the growing pause between tries. Times are monotonic seconds.

    A trouble counts once, however many threads meet it: only what began after the last one was counted is news.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures = 0
        self._last = float("-inf")
        self._next_try = float("-inf")
        self._reason = ""

    def may_try(self, name: str) -> float:
        """Now. Raises `Failed` while the pause lasts."""
        now = self._clock()
        if now < self._next_try:
            raise Failed(f"{self._reason or name}; trying again in {self._next_try - now:.1f} s")
        return now

    def lost(self, opened: float) -> None:
        """A connection broke. The first time the next one is tried at once."""
        if opened >= self._last:
            self._count(0.0 if self._failures == 0 else self._pause(), "the connection was lost")

    def refused(self, began: float, reason: str) -> None:
        """Connecting failed."""
        if began >= self._last:
            self._count(self._pause(), reason)

    def succeeded(self) -> None:
        """A transaction was committed."""
        self._failures = 0

    def _pause(self) -> float:
        return float(min(_FIRST_PAUSE * 2**self._failures, _LONGEST_PAUSE))

    def _count(self, pause: float, reason: str) -> None:
        self._failures = min(self._failures + 1, 10)
        self._last = self._clock()
        self._next_try = self._last + pause
        self._reason = reason


_all: weakref.WeakSet[Database] = weakref.WeakSet()
_all_lock = threading.Lock()
_inherited: list[object] = []  # a child's copies of its parent's connections: never closed, so never collected


def _before_fork() -> None:
    _all_lock.acquire()
    for database in _all:
        database._before_fork()


def _after_fork_in_child() -> None:
    for database in _all:
        database._start_anew_in_child()
    _all_lock.release()


os.register_at_fork(before=_before_fork, after_in_parent=_all_lock.release, after_in_child=_after_fork_in_child)
