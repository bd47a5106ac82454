"""One act of one process under strace: its real system calls counted, made to fail, or made its last ones.

Not a test file. An `Actor` is a forked process that prepares and then waits; strace is attached to it, it acts, and
says how that went. strace counts the calls of each name from the moment when it is attached, so a *call site* is a name
and a number (`Site`): the 3rd `fsync` of the act. strace makes a call fail by not making it at all. The kernel closes
what it reports an error of closing for, so the actor closes such descriptors itself once strace has let go of it.

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

from queuekit.errors import QueueError
from queuekit.locks import forget_all

# fmt: off
CHANGING = (
    "rename", "renameat", "renameat2", "link", "linkat", "unlink", "unlinkat", "mkdir", "mkdirat", "open", "openat",
    "write", "writev", "pwrite64", "ftruncate", "fallocate", "fsync", "fdatasync", "syncfs", "close", "flock", "chmod",
    "fchmod", "utimensat",
)
LOOKING = (
    "stat", "lstat", "newfstatat", "fstat", "statx", "access", "faccessat", "getdents64", "read", "pread64",
)
# fmt: on
SYNCS = frozenset({"fsync", "fdatasync", "syncfs"})
PATIENCE = 100.0  # seconds for one act, whatever the machine has to do besides
_PREPARE, _ACT, _TELL, _CLOSE = "prepare", "act", "tell", "close"
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
    def unlocks(self) -> bool:
        """Whether it gives up a lock of a part of a file, which the kernel never refuses."""
        return "F_UNLCK" in self.line

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
    together: dict[str, list[str]] = {}
    for name in names:
        first = made[name] + 1
        rest = f"..{first + 9}" if error == "EINTR" else "+"
        together.setdefault(f"{first}{rest}", []).append(f"?{name}")
    return [f"{','.join(each)}:error={error}:when={which}" for which, each in together.items()]


class Actor:
    """A forked process that prepares one act after the other, and acts when it is told.

    `prepare(number)`: the act of that number, its state of the queue made. What the act before held is dropped as its
    death would drop it.
    """

    def __init__(self, prepare: Callable[[int], Act], folder: str) -> None:
        self.alive = True
        self._output = os.path.join(folder, "calls")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._pid = os.fork()
        if self._pid == 0:
            ours.close()
            _be_actor(prepare, theirs)
        theirs.close()
        ours.settimeout(PATIENCE)
        self._link = ours

    def play(
        self,
        number: int,
        inject: Sequence[str],
        names: Sequence[str],
        enough: Callable[[list[Said]], bool],
        *,
        watch_on: bool,
    ) -> Played:
        """Let it do the act of this number, again and again while it is refused and that is not `enough`.

        `names`: the calls that strace tells; `watch_on`: also those of the later attempts. Raises `AssertionError` when
        the act could not be prepared.
        """
        ready = self._ask(f"{_PREPARE} {number}")
        if ready != "ready":
            raise AssertionError(f"the act could not be prepared: {ready}")
        tracer = _attach(self._pid, inject, names, self._output)
        said: list[Said] = []
        try:
            while not said or (said[-1].how == "refused" and not enough(said)):
                said.append(self._act())
                if not self.alive:
                    break
                if tracer and not watch_on:
                    tracer = _detach(tracer)
                    self._close_what_was_left_open()
                if len(said) > 1:
                    time.sleep(0.002)  # a refusal may name a pause
        finally:
            _detach(tracer)
        trace = self._ask(_TELL) if said[-1].how == "crashed" else ""
        return Played(said, _read(self._output), trace)

    def end(self) -> None:
        """As a kill would end it."""
        self.alive = False
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0
            self._link.close()

    def _act(self) -> Said:
        try:
            how, _, error = self._ask(_ACT).partition(" ")
        except TimeoutError:
            how, error = "hung", ""
        self.alive = how not in {"", "hung"}
        return Said(how or "died", error)

    def _ask(self, order: str) -> str:
        self._link.send(order.encode())
        return self._link.recv(2**16).decode()

    def _close_what_was_left_open(self) -> None:
        found = [_CALL.match(call.line) for call in _read(self._output) if call.struck and call.site.name == "close"]
        if found:
            self._ask(" ".join([_CLOSE, *(each[2] for each in found if each)]))


def _be_actor(prepare: Callable[[int], Act], link: socket.socket) -> None:
    gc.disable()  # what it would close is no part of an act
    logging.disable()
    act: Act = list
    said: BaseException | None = None
    try:
        while True:
            order, *words = link.recv(2**16).decode().split()
            answer = "ready"
            if order == _PREPARE:
                forget_all()
                said = _attempt(lambda: None)
                try:
                    act = prepare(int(words[0]))
                except BaseException:
                    answer = traceback.format_exc()[-(2**15) :]
            elif order == _ACT:
                said = _attempt(act)
                how = "done" if said is None else "refused" if isinstance(said, QueueError) else "crashed"
                answer = f"{how} {said!r}"[: 2**15]
            elif order == _TELL:
                answer = "".join(traceback.format_exception(said))[-(2**15) :]
            else:
                for descriptor in words:
                    os.close(int(descriptor))
            link.send(answer.encode(errors="replace"))
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


def in_own_child(looks: Sequence[Callable[[], None]]) -> list[str]:
    """Do all of this in one forked process; for each "" when it went well, else its traceback."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        try:
            for look in looks:
                failure = _attempt(look)
                told = "" if failure is None else "".join(traceback.format_exception(failure))[-3000:]
                forget_all()
                theirs.send(f"-{told}".encode())
        finally:
            os._exit(0)
    theirs.close()
    ours.settimeout(PATIENCE)
    told = []
    with contextlib.suppress(TimeoutError):
        while part := ours.recv(2**16):
            told.append(part.decode()[1:])
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    ours.close()
    return told + ["a look at what was left did not come to an end"] * (len(looks) - len(told))


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
