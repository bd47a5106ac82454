"""What systemd is told, heard by a socket of our own; and the unit file, judged by systemd itself where it is there."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from workerpool.systemd import Notifier, unit_file


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(5)
        yield listener


def environment(manager: socket.socket, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": manager.getsockname(), **more}


def test_each_message_is_the_line_that_systemd_knows(manager: socket.socket) -> None:
    notifier = Notifier(environment(manager))
    notifier.ready()
    notifier.status("2 streams,\n1 failing")
    notifier.feed()
    notifier.stopping()
    assert [manager.recv(200) for _ in range(4)] == [
        b"READY=1",
        b"STATUS=2 streams, 1 failing",
        b"WATCHDOG=1",
        b"STOPPING=1",
    ]


@pytest.mark.parametrize("nasty", ["x\nMAINPID=1", "\x1b[2J\0\x7f\u202e", "\udcff", "x" * 10_000_000])
def test_what_a_handler_says_adds_no_message_and_no_terminal_sequence(manager: socket.socket, nasty: str) -> None:
    Notifier(environment(manager)).status(f"stream encode: {nasty}")
    told = manager.recv(100_000).decode()
    assert told.startswith("STATUS=stream encode: ")
    assert told.isprintable()
    assert len(told) <= 1100


def test_a_reload_carries_the_time_that_tells_it_from_an_older_one(manager: socket.socket) -> None:
    Notifier(environment(manager)).reloading()
    first, second = manager.recv(200).decode().splitlines()
    assert first == "RELOADING=1"
    assert int(second.removeprefix("MONOTONIC_USEC=")) > 0


def test_an_abstract_socket_is_reached() -> None:
    name = f"workerpool-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0" + name)
        listener.settimeout(5)
        Notifier({"NOTIFY_SOCKET": "@" + name}).ready()
        assert listener.recv(100) == b"READY=1"


@pytest.mark.parametrize("variables", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "/nowhere/at/all"}])
def test_without_a_manager_nothing_is_wrong(variables: dict[str, str]) -> None:
    Notifier(variables).ready()


@pytest.mark.parametrize(
    ("more", "interval"),
    [
        ({"WATCHDOG_USEC": "60000000"}, 30.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}, 1.5),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_fed_twice_as_often_as_it_waits(
    manager: socket.socket, more: dict[str, str], interval: float | None
) -> None:
    assert Notifier(environment(manager, **more)).watchdog_interval == interval


def test_a_watchdog_without_a_socket_cannot_be_fed() -> None:
    assert Notifier({"WATCHDOG_USEC": "60000000"}).watchdog_interval is None


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("systemd-analyze is not on this machine")
    odd = tmp_path / "a folder, 100 % odd"
    odd.mkdir()
    config = odd / "config.toml"
    config.touch()
    unit = tmp_path / "workerpool-test.service"
    unit.write_text(unit_file("/bin/true", str(config), user="root", hard_seconds=25))
    judged = subprocess.run([verify, "verify", str(unit)], capture_output=True, text=True, timeout=60, check=False)
    assert (judged.returncode, judged.stderr) == (0, "")


def test_systemd_waits_longer_than_the_pool_itself() -> None:
    unit = unit_file("/usr/bin/workerpool", "/etc/pool/config.toml", user="worker", hard_seconds=90)
    assert "TimeoutStopSec=95" in unit.splitlines()
    assert "WorkingDirectory=/etc/pool" in unit.splitlines()
    assert "ExecStart=/usr/bin/workerpool run /etc/pool/config.toml" in unit.splitlines()
