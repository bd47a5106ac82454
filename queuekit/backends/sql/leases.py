"""Leases in a database: who may drain a stream, decided and checked in the transaction of the act itself.

* `RowLease` (PostgreSQL): a row for each stream. Its clock is the database's. A holder on this host that died is known
  dead by its alive file and followed at once; one on another host is waited for, a ttl long. A holder on this host that
  lives loses it only to somebody who has watched it unrenewed for a ttl; nobody loses it to one who could not look
  himself (`sightings`).
* `FileAndRowLease` (SQLite): the lease file beside the database decides who takes over, as on a maildir, so that other
  ports see it and a clock step harms nobody; the row makes check and act one transaction. It is written at take-overs
  only, so heartbeats wait for no writer of the database.
* `SharedLease` (PostgreSQL, `exclusive=False`): many consumers of one stream, each with a session row that it renews.
  Whoever finds one dead or unrenewed for a ttl removes it and makes its claims pending again, in one transaction; the
  stopped one that comes back finds its session gone and settles nothing. One that was cut off itself blames nobody for
  a ttl (`sightings`): after an outage of the server all are late, and none is dead.

`check(connection)` is what every act under a lease calls first: it raises `LeaseLost` unless the lease is this one's,
and keeps it so until the transaction ends.
"""

from __future__ import annotations

import abc
import os
import stat
import tempfile
from typing import Any

import sqlalchemy as sa

from queuekit.backends.sql import schema
from queuekit.backends.sql.database import Database
from queuekit.backends.sql.schema import jobs, leases, sessions
from queuekit.backends.sql.sightings import Sightings, Stamp
from queuekit.errors import LeaseLost, WriteFailed
from queuekit.ids import check_identifier
from queuekit.lease import (
    DEFAULT_TTL,
    FENCE_BITS,
    HEARTBEAT_FRACTION,
    DrainLease,
    Record,
    Verdict,
    judge,
    leased_streams,
)
from queuekit.locks import AliveFile, Life, life_of, sweep_dead

_MISSED = 2 / HEARTBEAT_FRACTION  # of a ttl: one who could not look for so long may have missed a renewal
_STANDBY_PAUSE = 3.0  # seconds: who waits for a lease need not look more often


class SqlLease(abc.ABC):
    """What all three share. `ttl` in seconds; `now` arguments of the contract go unused: the database has the clock."""

    def __init__(self, database: Database, stream: str, ttl: float, owner: str) -> None:
        check_identifier(stream)
        self.stream = stream
        self.ttl = ttl
        self.owner = owner
        self.fence = 0
        self._database = database

    @abc.abstractmethod
    def try_acquire(self, now: float | None = None) -> bool:
        """Take it when it is free, stale or already ours; True when it is ours now."""

    @abc.abstractmethod
    def heartbeat(self, now: float | None = None) -> None:
        """Renew it; raises `LeaseLost` when it is another's or gone."""

    @abc.abstractmethod
    def is_held_by_other(self, now: float | None = None) -> bool:
        """Whether somebody else has it and is not stale. Changes nothing."""

    @abc.abstractmethod
    def holder(self) -> str | None:
        """Whom the lease names, stale or not: whoever wins it next follows that one. None: nobody."""

    @abc.abstractmethod
    def release(self) -> None:
        """Give it up, so that a successor starts at once. Does nothing when it is not ours."""

    @property
    def tag(self) -> str:
        """What is written beside a claim made under it: its owner, and which of its take-overs this is."""
        return f"{self.owner}.{self.fence}"

    def run_number(self, claims: int, attempt: int) -> int:  # noqa: ARG002
        """The number of the take-over, then of the claim."""
        return self.fence << FENCE_BITS | claims

    @property
    def heartbeat_interval(self) -> float:
        """Seconds between two heartbeats of a holder: a third of the ttl."""
        return self.ttl / HEARTBEAT_FRACTION

    def verify(self) -> None:
        """Raise `LeaseLost` unless it is ours."""
        self._database.run(lambda connection: self.check(connection, keep=False), write=False)

    @abc.abstractmethod
    def check(self, connection: sa.Connection, *, keep: bool = True) -> None:
        """Raise `LeaseLost` unless it is ours, and (`keep`) stays so until this transaction ends."""

    def abandoned(self, connection: sa.Connection) -> sa.ColumnElement[bool]:  # noqa: ARG002
        """Which jobs in flight of the stream belong to nobody else who lives: under an exclusive lease, all."""
        return sa.true()

    def may_adopt(self, connection: sa.Connection, claimed_by: str | None) -> bool:  # noqa: ARG002
        """Whether the one that claimed a job so is known not to work on it any more."""
        return True


class ServerLease(SqlLease):
    """What the two in PostgreSQL share: how they look at others. `folder`: where alive files of this host are."""

    def __init__(self, database: Database, stream: str, ttl: float, folder: str) -> None:
        super().__init__(database, stream, ttl, f"pid-{os.getpid()}-{os.urandom(8).hex()}")
        self._folder = folder
        self._alive = AliveFile(_alive_path(folder, self.owner))
        self._holders = Sightings(max(_MISSED * ttl, _STANDBY_PAUSE))
        self._sharers = Sightings(max(_MISSED * ttl, _STANDBY_PAUSE))

    def _judge(self, row: Any) -> Verdict:
        """What the stream's exclusive lease is to this one."""
        if row.owner is None:
            return Verdict.FREE
        stamp = Stamp(row.owner, row.beat, (row.now - row.beat) / 1000)
        silence = self._holders.silences([stamp])[row.owner]
        beat = row.beat / 1000
        return judge(
            Record(row.owner, beat).encode(),
            owner=self.owner,
            now=beat + silence.told,
            ttl=self.ttl,
            life=_life(self._folder, row.owner) if row.owner != self.owner else Life.UNKNOWN,
            unchanged=silence.watched,
        )

    def _tidy_before(self, fence: int) -> None:
        """Whoever wins anew, under a number that it did not have, removes what the dead have left."""
        if fence != self.fence:
            sweep_dead(self._folder)

    def _others(self, connection: sa.Connection) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
        """`(id, beat)` of the others' sessions: of those who live, and of those who died or did not beat for a ttl."""
        age = (self._database.now_ms - sessions.c.beat).label("age")
        others = sa.select(sessions.c.id, sessions.c.owner, sessions.c.beat, age).where(
            sessions.c.stream_id == self.stream, sessions.c.id != self.tag
        )
        rows = connection.execute(others).all()
        silences = self._sharers.silences(Stamp(row.id, row.beat, row.age / 1000) for row in rows)
        living, over = list[tuple[str, int]](), list[tuple[str, int]]()
        for row in rows:
            is_over = silences[row.id].told > self.ttl or _life(self._folder, row.owner) is Life.DEAD
            (over if is_over else living).append((row.id, row.beat))
        return living, over


class RowLease(ServerLease):
    """The lease of one stream, as one would-be holder sees it."""

    def try_acquire(self, now: float | None = None) -> bool:  # noqa: ARG002
        """Take the lease when it is free, stale or ours; True when it is ours now."""
        fence = self._database.run(self._take)
        if fence:
            self._tidy_before(fence)
            self.fence = fence
        return bool(fence)

    def _take(self, connection: sa.Connection) -> int:
        """The number of the take-over; 0 when somebody else has it."""
        row = _locked_row(self._database, connection, self.stream)
        verdict = self._judge(row)
        if verdict is Verdict.FRESH or self._is_shared(connection):
            return 0
        if verdict is not Verdict.OURS:
            connection.execute(sa.delete(sessions).where(sessions.c.stream_id == self.stream))
        _hold(self._alive)
        kept = verdict is Verdict.OURS and self.fence
        fence = int(row.fence) + (0 if kept else 1)
        _write(connection, self.stream, owner=self.owner, beat=self._database.now_ms, fence=fence)
        return fence

    def heartbeat(self, now: float | None = None) -> None:  # noqa: ARG002
        """Renew it; raises `LeaseLost` when it is another's or free."""
        self._database.run(self._renew)

    def _renew(self, connection: sa.Connection) -> None:
        self.check(connection)
        _write(connection, self.stream, beat=self._database.now_ms)

    def check(self, connection: sa.Connection, *, keep: bool = True) -> None:
        _check_owner(connection, self.stream, self.owner, keep)

    def holder(self) -> str | None:
        """The owner that the lease names, stale or not; None when it is free."""
        return self._database.run(lambda connection: _owner(connection, self.stream), write=False)

    def is_held_by_other(self, now: float | None = None) -> bool:  # noqa: ARG002
        """Whether somebody else has it and is not stale. Changes nothing."""
        return self._database.run(self._is_held, write=False)

    def _is_held(self, connection: sa.Connection) -> bool:
        row = _row(self._database, connection, self.stream)
        fresh = row is not None and self._judge(row) is Verdict.FRESH
        return fresh or self._is_shared(connection)

    def _is_shared(self, connection: sa.Connection) -> bool:
        """Whether somebody shares the stream who lives."""
        living, _ = self._others(connection)
        return bool(living)

    def release(self) -> None:
        """Give it up if it is ours, so that a successor starts at once."""
        self._database.run(lambda connection: _free(connection, self.stream, self.owner))
        self._alive.drop()
        self.fence = 0


class FileAndRowLease(SqlLease):
    """The lease file of the stream beside an SQLite database, and its row. `folder`: the database's."""

    def __init__(self, database: Database, stream: str, ttl: float, folder: str, patience: float) -> None:
        self._file = DrainLease(folder, stream, os.urandom(8).hex(), ttl, patience=patience)
        super().__init__(database, stream, ttl, self._file.owner)

    def try_acquire(self, now: float | None = None) -> bool:
        """Take the lease when it is free, stale or ours; True when it is ours now. `now`: epoch seconds."""
        if not self._file.try_acquire(now):
            return False
        try:
            self._database.run(self._write_row)
        except LeaseLost:
            return False
        self.fence = self._file.fence
        return True

    def _write_row(self, connection: sa.Connection) -> None:
        """Raises `LeaseLost` when the file is another's by now: whoever takes it after this look writes after us."""
        self._file.verify()
        row = _locked_row(self._database, connection, self.stream)
        if (row.owner, row.fence) != (self.owner, self._file.fence):
            beat = self._database.now_ms
            _write(connection, self.stream, owner=self.owner, beat=beat, fence=self._file.fence)

    def heartbeat(self, now: float | None = None) -> None:
        """Renew the file; raises `LeaseLost` when it is another's or gone. The row is looked at in each act."""
        self._file.heartbeat(now)

    def verify(self) -> None:
        self._file.verify()
        super().verify()

    def check(self, connection: sa.Connection, *, keep: bool = True) -> None:
        _check_owner(connection, self.stream, self.owner, keep)

    def holder(self) -> str | None:
        """The owner that the lease file names, stale or not; None when there is none."""
        return self._file.holder()

    def is_held_by_other(self, now: float | None = None) -> bool:
        """Whether somebody else has it and is not stale. Changes nothing."""
        return self._file.is_held_by_other(now)

    def release(self) -> None:
        """Give it up if it is ours: the row first, so that whoever takes the file finds it free."""
        self._database.run(lambda connection: _free(connection, self.stream, self.owner))
        self._file.release()
        self.fence = 0


class SharedLease(ServerLease):
    """One of many consumers of a stream.

    The stream's fence grows when somebody joins, leaves or is given up. `fence` is what it was when this one joined;
    what it was when it last claimed is greater than all that one who was given up has seen.
    """

    def __init__(self, database: Database, stream: str, ttl: float, folder: str) -> None:
        super().__init__(database, stream, ttl, folder)
        self._sharers = Sightings(_MISSED * ttl)  # looked at with each heartbeat
        self._last_fence = 0

    def run_number(self, claims: int, attempt: int) -> int:  # noqa: ARG002
        """The stream's fence at the last claim, then the attempt."""
        return self._last_fence << FENCE_BITS | attempt

    def try_acquire(self, now: float | None = None) -> bool:  # noqa: ARG002
        """Join the stream; False while somebody holds it exclusively."""
        fence = self._database.run(self._join)
        if fence:
            self._tidy_before(fence)
        self.fence = fence
        return bool(fence)

    def _join(self, connection: sa.Connection) -> int:
        row = _locked_row(self._database, connection, self.stream)
        if self.fence and connection.scalar(sa.select(sessions.c.id).where(sessions.c.id == self.tag)):
            return self.fence
        if self._judge(row) is Verdict.FRESH:
            return 0
        _hold(self._alive)
        fence, beat = int(row.fence) + 1, self._database.now_ms
        _write(connection, self.stream, owner=None, beat=beat, fence=fence)
        tag = f"{self.owner}.{fence}"
        connection.execute(sa.insert(sessions).values(id=tag, stream_id=self.stream, owner=self.owner, beat=beat))
        return fence

    def heartbeat(self, now: float | None = None) -> None:  # noqa: ARG002
        """Renew the session, and bring home what those left that do not renew theirs. Raises `LeaseLost`."""
        if self._database.run(self._beat):
            self._database.notify({self.stream})

    def _beat(self, connection: sa.Connection) -> int:
        mine = sa.update(sessions).where(sessions.c.id == self.tag).values(beat=self._database.now_ms)
        if not connection.execute(mine).rowcount:
            raise LeaseLost(self.stream, None)
        _, over = self._others(connection)
        if not over:
            return 0
        _locked_row(self._database, connection, self.stream)
        self._give_up(connection, over)
        home = (
            sa.update(jobs)
            .where(jobs.c.stream_id == self.stream, schema.is_status(schema.CUR), self._nobodys())
            .values(status=schema.NEW, session_id=None, claimed_by=None)
        )
        return connection.execute(home).rowcount

    def check(self, connection: sa.Connection, *, keep: bool = True) -> None:
        mine = sa.select(sessions.c.id).where(sessions.c.id == self.tag)
        if not self.fence or connection.scalar(mine.with_for_update(read=True) if keep else mine) is None:
            raise LeaseLost(self.stream, None)

    def saw_fence(self, fence: int) -> None:
        """What the stream's fence was at the moment when jobs were claimed under this lease: `check` was before that,
        and who had them may have been given up in between."""
        self._last_fence = fence

    def abandoned(self, connection: sa.Connection) -> sa.ColumnElement[bool]:
        """See `SqlLease`. Until the transaction ends nobody joins: who has no session now cannot have claimed since.

        What bears our own tag is among it: a claim whose answer was lost on the way is one that we do not know of.
        """
        _locked_row(self._database, connection, self.stream)
        _, over = self._others(connection)
        self._give_up(connection, over)
        return sa.or_(self._nobodys(), jobs.c.claimed_by == self.tag)

    def _give_up(self, connection: sa.Connection, over: list[tuple[str, int]]) -> None:
        """Remove sessions, given with their last beat, unless they were renewed meanwhile or are just being used.

        Whoever claims afterwards what they had has a greater number. The stream's row is locked.
        """
        if over:
            still = sa.select(sessions.c.id).where(sa.tuple_(sessions.c.id, sessions.c.beat).in_(over))
            idle = still.with_for_update(skip_locked=True).cte("idle")
            connection.execute(sa.delete(sessions).where(sessions.c.id.in_(sa.select(idle.c.id))))
            _write(connection, self.stream, fence=leases.c.fence + 1)

    def may_adopt(self, connection: sa.Connection, claimed_by: str | None) -> bool:
        owner = connection.scalar(sa.select(sessions.c.owner).where(sessions.c.id == claimed_by))
        return owner is None or _life(self._folder, owner) is Life.DEAD

    def _nobodys(self) -> sa.ColumnElement[bool]:
        living = sa.select(sessions.c.id).where(sessions.c.stream_id == self.stream)
        return sa.or_(jobs.c.claimed_by.is_(None), jobs.c.claimed_by.not_in(living))

    def holder(self) -> str | None:
        """A consumer of this stream on this host that died and left its session: whoever joins next follows it."""
        mine = sa.select(sessions.c.owner).where(sessions.c.stream_id == self.stream, sessions.c.id != self.tag)
        owners = self._database.run(lambda connection: connection.scalars(mine).all(), write=False)
        return next((owner for owner in owners if _life(self._folder, owner) is Life.DEAD), None)

    def is_held_by_other(self, now: float | None = None) -> bool:  # noqa: ARG002
        """Whether somebody holds the stream exclusively. Changes nothing."""
        row = self._database.run(lambda connection: _row(self._database, connection, self.stream), write=False)
        return row is not None and self._judge(row) is Verdict.FRESH

    def release(self) -> None:
        """Leave. Claims that are still ours are anybody's from now on."""
        self._database.run(self._leave)
        self._alive.drop()
        self.fence = 0

    def _leave(self, connection: sa.Connection) -> None:
        if connection.execute(sa.delete(sessions).where(sessions.c.id == self.tag)).rowcount:
            _write(connection, self.stream, fence=leases.c.fence + 1)


def sharers(database: Database, stream: str) -> dict[str, float]:
    """Who shares a stream, and for how many seconds each has not renewed its session, by the database's clock."""
    age = (database.now_ms - sessions.c.beat).label("age")
    wanted = sa.select(sessions.c.owner, age).where(sessions.c.stream_id == stream).order_by(sessions.c.id)
    rows = database.run(lambda connection: connection.execute(wanted).all(), write=False)
    return {row.owner: max(0.0, row.age / 1000) for row in rows}


def refuse_if_leased(database: Database, stream: str | None, folder: str) -> None:
    """Raise `LeaseLost` while somebody holds the stream (any stream: None): what a drain without a lease asks first."""

    def held(connection: sa.Connection) -> tuple[str, str] | None:
        exclusive = sa.select(leases.c.stream_id, leases.c.owner, (database.now_ms - leases.c.beat).label("age")).where(
            leases.c.owner.is_not(None)
        )
        shared = sa.select(sessions.c.stream_id, sessions.c.owner, (database.now_ms - sessions.c.beat).label("age"))
        if stream is not None:
            exclusive, shared = (
                exclusive.where(leases.c.stream_id == stream),
                shared.where(sessions.c.stream_id == stream),
            )
        for row in connection.execute(sa.union_all(exclusive, shared)):
            life = _life(folder, row.owner)
            if life is Life.HELD or (life is Life.UNKNOWN and row.age <= DEFAULT_TTL * 1000):
                return row.stream_id, row.owner
        return None

    found = database.run(held, write=False)
    if found is not None:
        raise LeaseLost(*found)


def refuse_if_leased_by_file(stream: str | None, folder: str) -> None:
    """The same where lease files decide."""
    for each in leased_streams(folder) if stream is None else [stream]:
        look = DrainLease(folder, each, "look")
        if look.is_held_by_other():
            raise LeaseLost(each, look.holder())


def alive_folder() -> str:
    """Where the processes of this user on this host prove to each other that they live; made if absent.

    Raises `WriteFailed` when it cannot be made, or belongs to somebody else.
    """
    folder = os.path.join(tempfile.gettempdir(), f"queuekit-{os.getuid()}")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        facts = os.lstat(folder)
    except OSError as error:
        raise WriteFailed(folder, error.strerror or str(error)) from error
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o077:
        whose = "of this user" if facts.st_uid == os.getuid() else f"of uid {facts.st_uid}"
        raise WriteFailed(
            folder,
            f"it is {stat.filemode(facts.st_mode)} and {whose}, and must be a private folder of uid {os.getuid()}: "
            "have it removed, or set TMPDIR to a folder of your own, the same for every pool of this user here",
        )
    return folder


def _alive_path(folder: str, owner: str) -> str:
    return os.path.join(folder, f"{owner}.alive")


def _life(folder: str, owner: str) -> Life:
    try:
        return life_of(_alive_path(folder, owner))
    except OSError:
        return Life.UNKNOWN


def _hold(alive: AliveFile) -> None:
    try:
        alive.hold()
    except OSError as error:
        raise WriteFailed("the alive file of a lease", error.strerror or str(error)) from error


def _row(database: Database, connection: sa.Connection, stream: str, *, lock: bool = False) -> Any:
    wanted = sa.select(leases.c.owner, leases.c.beat, leases.c.fence, database.now_ms.label("now")).where(
        leases.c.stream_id == stream
    )
    return connection.execute(wanted.with_for_update() if lock else wanted).one_or_none()


def _locked_row(database: Database, connection: sa.Connection, stream: str) -> Any:
    """The stream's row, made if absent, nobody else's to change until this transaction ends."""
    row = _row(database, connection, stream, lock=True)
    if row is None:
        first = schema.insert_if_absent(connection, leases)
        connection.execute(first.values(stream_id=stream, owner=None, beat=0, fence=0))
        row = _row(database, connection, stream, lock=True)
    return row


def _write(connection: sa.Connection, stream: str, **values: Any) -> None:
    connection.execute(sa.update(leases).where(leases.c.stream_id == stream).values(**values))


def _free(connection: sa.Connection, stream: str, owner: str) -> None:
    mine = (leases.c.stream_id == stream) & (leases.c.owner == owner)
    connection.execute(sa.update(leases).where(mine).values(owner=None))


def _owner(connection: sa.Connection, stream: str) -> str | None:
    return connection.scalar(sa.select(leases.c.owner).where(leases.c.stream_id == stream))


def _check_owner(connection: sa.Connection, stream: str, owner: str, keep: bool) -> None:
    found = connection.scalar(_OWNER_KEPT if keep else _OWNER, {"stream": stream})
    if found != owner:
        raise LeaseLost(stream, found)


_OWNER = sa.select(leases.c.owner).where(leases.c.stream_id == sa.bindparam("stream"))  # asked with each act: made once
_OWNER_KEPT = _OWNER.with_for_update(read=True)
