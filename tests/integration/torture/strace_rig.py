"""One act of one process under strace: its real system calls counted, made to fail, or made its last ones.

Not a test file. `play` forks an actor, which prepares and then waits; strace is attached to it, it acts, and says how
that went. strace counts the calls of each name from the moment when it is attached, so a *call site* is a name and a
number (`Site`): the 3rd `fsync` of the act. strace makes a call fail by not making it at all. The kernel closes what it
reports an error of closing for, so the actor closes such descriptors itself once strace has let go of it.

The actor speaks through a socket with calls that are never failed here, and is asked to act again when strace has let
go of it, or still watches.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import logging
import os
import re
import shutil
import signal
import socket
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from queuekit.errors import QueueError

# fmt: off
CHANGING = (
    "rename", "renameat", "renameat2", "link", "linkat", "unlink", "unlinkat", "mkdir", "mkdirat", "open", "openat",
    "write", "writev", "pwrite64", "ftruncate", "fallocate", "fsync", "fdatasync", "syncfs", "close", "flock", "chmod",
    "fchmod", "utimensat",
)
LOOKING = (
    "stat", "lstat", "newfstatat", "fstat", "statx", "access", "faccessat", "getdents64", "read", "pread64", "fcntl",
)
# fmt: on
SYNCS = frozenset({"fsync", "fdatasync", "syncfs"})
PATIENCE = 60.0  # seconds for one act, whatever the machine has to do besides
_GO, _TELL, _CLOSE, _END = b"go", b"tell", b"close", b"end"
_CALL = re.compile(r"^(\w+)\((\d*)")
Act = Callable[[], object]


@dataclasses.dataclass(frozen=True, order=True)
class Site:
    """The `nth` call of this name, from 1, since strace was attached."""

    name: str
    nth: int

    def __str__(self) -> str:
        return f"{self.name} {self.nth}"


@dataclasses.dataclass(frozen=True)
class Call:
    """One call as strace tells it. `line`: all of it."""

    site: Site
    line: str

    @property
    def struck(self) -> bool:
        """Whether strace made it fail."""
        return self.line.endswith("(INJECTED)")


@dataclasses.dataclass(frozen=True)
class Said:
    """How an attempt went: `done`, `refused` (a `QueueError`), `crashed` (anything else), `died`, `hung`."""

    how: str
    error: str = ""

    @property
    def kind(self) -> str:
        """The class of the error."""
        return self.error.partition("(")[0]


@dataclasses.dataclass(frozen=True)
class Played:
    """The attempts of an actor, and its calls; those of the first attempt alone unless it was watched on."""

    said: list[Said]
    calls: list[Call]
    trace: str = ""

    @property
    def struck(self) -> list[Call]:
        """The calls that were made to fail."""
        return [call for call in self.calls if call.struck]

    @property
    def sites(self) -> list[Site]:
        """Where it called, in order."""
        return [call.site for call in self.calls]


def kill_at(site: Site) -> list[str]:
    """strace's words: the process dies before this call."""
    return [f"{site.name}:signal=KILL:when={site.nth}"]


def fail_once(site: Site, error: str) -> list[str]:
    """This call fails."""
    return [f"{site.name}:error={error}:when={site.nth}"]


def fail_from(sites: Sequence[Site], start: int, error: str, names: Sequence[str]) -> list[str]:
    """The call at this place of the act fails, and so does every later one of any of these names.

    Of `EINTR` ten in a row: Python repeats most calls until it does not come.
    """
    made = Counter(site.name for site in sites[:start])
    together: dict[int, list[str]] = {}
    for name in names:
        together.setdefault(made[name] + 1, []).append(f"?{name}")
    rest = "..{}" if error == "EINTR" else "+"
    return [f"{','.join(each)}:error={error}:when={nth}{rest.format(nth + 9)}" for nth, each in together.items()]


def play(
    prepare: Callable[[], Act],
    inject: Sequence[str] = (),
    *,
    names: Sequence[str] = (),
    folder: str,
    enough: Callable[[list[Said]], bool] = lambda said: True,
    watch_on: bool = False,
) -> Played:
    """Let an actor act until it has said `enough`, and end it. `watch_on`: strace stays for the later attempts.

    `folder`: for strace's output. Raises `AssertionError` when the story could not be prepared.
    """
    output = os.path.join(folder, "calls")
    with _Actor(prepare) as actor:
        tracer = _attach(actor.pid, inject, names, output)
        said: list[Said] = []
        try:
            while not said or (said[-1].how == "refused" and not enough(said)):
                said.append(actor.ask())
                if said[-1].how in {"died", "hung"}:
                    break
                if tracer and not watch_on:
                    tracer = _detach(tracer)
                    actor.close(_left_open(_read(output)))
                if len(said) > 1:
                    time.sleep(0.002)  # a refusal may name a pause
            tracer = _detach(tracer)
            trace = actor.tell() if said[-1].how == "crashed" else ""
        finally:
            _detach(tracer)
    return Played(said, _read(output), trace)


class _Actor:
    """A forked process that prepares itself, then acts when it is told."""

    def __init__(self, prepare: Callable[[], Act]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            _be_actor(prepare, theirs)
        theirs.close()
        ours.settimeout(PATIENCE)
        self._link = ours

    def __enter__(self) -> _Actor:
        ready = self._link.recv(2**16).decode()
        if ready != "ready":
            self.__exit__()
            raise AssertionError(f"the story could not be prepared: {ready}")
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._link.send(_END)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self._link.close()

    def ask(self) -> Said:
        """Let it act once."""
        self._link.send(_GO)
        try:
            how, _, error = self._link.recv(2**16).decode().partition(" ")
        except TimeoutError:
            return Said("hung")
        return Said(how or "died", error)

    def close(self, descriptors: list[str]) -> None:
        """Let it close these."""
        if descriptors:
            self._link.send(b" ".join([_CLOSE, *map(str.encode, descriptors)]))

    def tell(self) -> str:
        """The traceback of what it has just said."""
        self._link.send(_TELL)
        return self._link.recv(2**16).decode()


def _be_actor(prepare: Callable[[], Act], link: socket.socket) -> None:
    try:
        gc.disable()  # what it would close is no part of the act
        logging.disable()
        try:
            act = prepare()
        except BaseException:
            link.send(traceback.format_exc()[-(2**15) :].encode())
            os._exit(1)
        link.send(b"ready")
        said: BaseException | None = None
        while (order := link.recv(2**16)) not in {_END, b""}:
            if order == _TELL:
                link.send("".join(traceback.format_exception(said))[-(2**15) :].encode())
            elif order == _GO:
                said = _attempt(act)
                how = "done" if said is None else "refused" if isinstance(said, QueueError) else "crashed"
                link.send(f"{how} {said!r}"[: 2**15].encode(errors="replace"))
            else:
                for descriptor in order.split()[1:]:
                    os.close(int(descriptor))
    finally:
        os._exit(0)


def _attempt(act: Act) -> BaseException | None:
    try:
        act()
    except BaseException as error:
        return error
    return None


def _attach(pid: int, inject: Sequence[str], names: Sequence[str], output: str) -> int:
    """strace's pid, once it watches the process."""
    reading, writing = os.pipe()
    words = ["strace", "-y", "-s", "0", "-p", str(pid), "-o", output, "-e", "signal=none"]
    words += ["-e", f"trace={','.join(f'?{name}' for name in names)}"]
    for each in inject:
        words += ["-e", f"inject={each}"]
    tracer = os.posix_spawnp("strace", words, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, writing, 2)])
    os.close(writing)
    heard = b""
    try:
        while b"attached" not in heard:
            part = os.read(reading, 1000)
            if not part:
                os.waitpid(tracer, 0)
                raise AssertionError(f"strace did not attach: {heard.decode()}")
            heard += part
    finally:
        os.close(reading)
    return tracer


def _detach(tracer: int) -> int:
    if tracer:
        os.kill(tracer, signal.SIGTERM)
        os.waitpid(tracer, 0)
    return 0


def _read(output: str) -> list[Call]:
    made: Counter[str] = Counter()
    calls = []
    with open(output, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            found = _CALL.match(line)
            if found:
                made[found[1]] += 1
                calls.append(Call(Site(found[1], made[found[1]]), line.rstrip()))
    return calls


def _left_open(calls: Sequence[Call]) -> list[str]:
    """The descriptors whose `close` was not made."""
    found = [_CALL.match(call.line) for call in calls if call.struck and call.site.name == "close"]
    return [each[2] for each in found if each]


def in_own_child(look: Callable[[], None]) -> str:
    """Run it in a forked process of its own; "" when it went well, else its traceback."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            look()
        except BaseException:
            theirs.sendall(traceback.format_exc()[-3000:].encode())
        finally:
            os._exit(0)
    theirs.close()
    ours.settimeout(PATIENCE)
    told = b""
    try:
        while part := ours.recv(2**16):
            told += part
    except TimeoutError:
        told = b"the look at what was left hung"
        os.kill(pid, signal.SIGKILL)
    ours.close()
    os.waitpid(pid, 0)
    return told.decode()


@contextlib.contextmanager
def scratch() -> Iterator[str]:
    """A folder in memory, where there is one: it is about calls here, and not about what a disk makes of them."""
    base = "/dev/shm" if os.path.isdir("/dev/shm") else None
    import tempfile

    path = tempfile.mkdtemp(prefix="call-sites-", dir=base)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


__all__: list[Any] = ["CHANGING", "LOOKING", "SYNCS", "Call", "Played", "Said", "Site", "play"]
