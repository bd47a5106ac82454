"""Waking by PostgreSQL's LISTEN: a watcher with a session of its own, which is never blocked by the network.

It is a small machine that `read()` moves on by what its socket can do just now:

    apart -> connecting -> asking (LISTEN was sent) -> listening
      ^---------- whatever breaks, with a growing pause ------'

`fileno()` is that of a selector with the socket in it, so it stays the same while sockets come and go. While it is not
listening, and beside it, `timeout()` says when to look without an event; after each (re)connection `read()` is called,
and every `read()` means "look". Only looking up a host's name can block.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import selectors
import time
import weakref
from collections.abc import Callable

import psycopg
from psycopg import pq

from queuekit.backends.sql.postgres import CHANNEL, silence
from queuekit.watch.base import ARRIVED_UNNAMED

log = logging.getLogger("queuekit.watch")

_ATTACH_SECONDS = 5.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0


class Stage(enum.Enum):
    """How far it is."""

    APART = "apart"
    CONNECTING = "connecting"
    ASKING = "asking"
    LISTENING = "listening"


class NotifyWatcher:
    """Watches the channel of the database that `conninfo` leads to, which messages call `name`.

    `poll`: seconds between looks without an event. It is listening when this returns, unless the server could not be
    reached within five seconds: then it polls, and goes on trying.
    """

    kind = "notify"

    def __init__(
        self, conninfo: str, name: str, *, poll: float = 2.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._conninfo = conninfo.encode()
        self._name = name
        self._poll = poll
        self._clock = clock
        self._pid = os.getpid()
        self._selector = selectors.DefaultSelector()
        self._pgconn: pq.abc.PGconn | None = None
        self._stage = Stage.APART
        self._failures = 0
        self._due = clock()  # apart: the next try; connecting and asking: when to give this one up
        self._complained = False
        self._closed = False
        _watchers.add(self)
        self._attach()

    def fileno(self) -> int:
        """The selector's; readable when the session has something to say."""
        return int(self._selector.fileno())

    def timeout(self) -> float | None:
        """Seconds until the next look, or until the next step towards listening."""
        if self._stage is Stage.LISTENING:
            return self._poll
        return min(self._poll, max(0.0, self._due - self._clock()))

    def read(self) -> tuple[str, ...]:
        """Take what came, or go on connecting, without blocking; always `()`: look."""
        self._go_on()
        return ARRIVED_UNNAMED

    def check(self) -> bool:
        """Whether it is listening; it goes on trying when not."""
        if self._stage is not Stage.LISTENING:
            self._go_on()
            return False
        return True

    def close(self) -> None:
        """End the session and give the descriptors back; any number of times."""
        if self._closed:
            return
        self._closed = True
        if self._pid == os.getpid():
            self._part()
        self._selector.close()

    # -- the machine

    def _attach(self) -> None:
        """Go on until it is listening, or has failed, or takes too long."""
        give_up = self._clock() + _ATTACH_SECONDS
        self._go_on()
        while self._stage not in (Stage.LISTENING, Stage.APART) and self._clock() < give_up:
            self._selector.select(give_up - self._clock())
            self._go_on()

    def _go_on(self) -> None:
        if self._closed or self._pid != os.getpid():
            return
        try:
            self._step()
        except psycopg.Error as error:
            self._broke(str(error))

    def _step(self) -> None:
        if self._stage is Stage.APART:
            if self._clock() >= self._due:
                self._begin()
        elif self._selector.select(0):
            if self._stage is Stage.CONNECTING:
                self._connect_on()
            else:
                self._take()
        elif self._stage is not Stage.LISTENING and self._clock() >= self._due:
            self._broke("the server does not answer")

    def _begin(self) -> None:
        self._pgconn = pq.PGconn.connect_start(self._conninfo)
        self._stage, self._due = Stage.CONNECTING, self._clock() + _ATTACH_SECONDS
        if self._pgconn.status == pq.ConnStatus.BAD:
            self._broke(self._said())
        else:
            self._wait_for(selectors.EVENT_WRITE)

    def _connect_on(self) -> None:
        session = self._session()
        self._selector.unregister(next(iter(self._selector.get_map().values())).fileobj)
        status = session.connect_poll()
        if status == pq.PollingStatus.READING:
            self._wait_for(selectors.EVENT_READ)
        elif status == pq.PollingStatus.WRITING:
            self._wait_for(selectors.EVENT_WRITE)
        elif status == pq.PollingStatus.OK:
            self._ask()
        else:
            self._broke(self._said())

    def _ask(self) -> None:
        session = self._session()
        session.nonblocking = 1
        self._wait_for(selectors.EVENT_READ)
        session.send_query(f"LISTEN {CHANNEL}".encode())
        session.flush()
        self._stage = Stage.ASKING

    def _take(self) -> None:
        session = self._session()
        session.consume_input()
        if self._stage is Stage.ASKING and not session.is_busy():
            self._hear_answer()
        while session.notifies():
            pass

    def _hear_answer(self) -> None:
        session = self._session()
        while result := session.get_result():
            if result.status != pq.ExecStatus.COMMAND_OK:
                self._broke(self._said())
                return
        self._stage, self._failures = Stage.LISTENING, 0
        if self._complained:
            log.info("%s: listening again", self._name)
            self._complained = False

    def _wait_for(self, events: int) -> None:
        self._selector.register(self._session().socket, events)

    def _session(self) -> pq.abc.PGconn:
        if self._pgconn is None:
            raise psycopg.OperationalError("the session is gone")
        return self._pgconn

    def _said(self) -> str:
        return self._pgconn.get_error_message() if self._pgconn else ""

    def _broke(self, reason: str) -> None:
        self._part()
        self._due = self._clock() + min(_FIRST_PAUSE * 2**self._failures, _LONGEST_PAUSE)
        self._failures = min(self._failures + 1, 10)
        if not self._complained:
            lines = reason.strip().splitlines()
            log.warning("%s: not listening, polling until it can be again: %s", self._name, lines[0] if lines else "")
            self._complained = True

    def _part(self) -> None:
        """Close the session, taken out of the selector before: a forked child may keep its socket open."""
        for key in list(self._selector.get_map().values()):
            self._selector.unregister(key.fileobj)
        if self._pgconn is not None:
            self._pgconn.finish()
        self._pgconn, self._stage = None, Stage.APART

    def _forget(self) -> None:
        """In a forked child: it is the parent's."""
        if self._pgconn is not None:
            silence(self._pgconn)


_watchers: weakref.WeakSet[NotifyWatcher] = weakref.WeakSet()


def _forget_all() -> None:
    for watcher in list(_watchers):
        with contextlib.suppress(OSError):
            watcher._forget()


os.register_at_fork(after_in_child=_forget_all)
