"""Talking to systemd, and the unit file that makes it listen: sd_notify(3), systemd.service(5), systemd.exec(5).

A service of `Type=notify` tells when it is ready, reloading or stopping, and feeds a watchdog. The messages are lines
in one datagram to the socket named in `NOTIFY_SOCKET`; without that variable nothing is sent and nothing is wrong.
"""

from __future__ import annotations

import os
import shlex
import socket
import time
from collections.abc import Mapping

from workerpool.logs import one_line

_WATCHDOG_SECONDS = 60
_LONGEST_STATUS = 1000


class Notifier:
    """The way to the service manager that started this process, if one did.

    `environ`: where its variables are. Messages are sent without waiting; one that cannot be sent is dropped, for a
    pool does not stop because nobody listens. `is_heard`: whether there is a manager at all.
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        variables = os.environ if environ is None else environ
        self._address = _address(variables.get("NOTIFY_SOCKET", ""))
        self.is_heard = bool(self._address)
        self.watchdog_interval = self._watchdog(variables)

    def _watchdog(self, environ: Mapping[str, str]) -> float | None:
        """Seconds between two feedings, half of what systemd waits for; None when it waits for none of ours."""
        try:
            microseconds = int(environ.get("WATCHDOG_USEC", "0"))
            for_us = int(environ.get("WATCHDOG_PID", os.getpid())) == os.getpid()
        except ValueError:
            return None
        return microseconds / 2_000_000 if self._address and for_us and microseconds > 0 else None

    def ready(self) -> None:
        """Start-up, or a reload, is over."""
        self._send("READY=1")

    def reloading(self) -> None:
        """A reload begins; `ready` ends it."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """The pool is ending."""
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """One line for `systemctl status`."""
        self._send("STATUS=" + one_line(" ".join(text.split()))[:_LONGEST_STATUS])

    def feed(self) -> None:
        """All is well: the watchdog waits anew."""
        self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            try:
                sender.sendto(message.encode(), self._address)
            except OSError:
                return


def _address(name: str) -> str:
    """A path, or with a leading `@` a name in the abstract namespace; other kinds of sockets are not ours."""
    if name.startswith("@"):
        return "\0" + name[1:]
    return name if name.startswith("/") else ""


def unit_file(command: str, config: str, *, user: str, hard_seconds: float, description: str = "") -> str:
    """A unit for one pool. `command`: the absolute path of `workerpool`; `config`: of its config.toml; `hard_seconds`:
    its `[shutdown] hard`, after which systemd waits a little longer before it kills what is left.
    """
    run = " ".join(_quoted(word) for word in (command, "run", config))
    return f"""\
[Unit]
Description={_escaped(description or f"workerpool {config}")}
After=local-fs.target

[Service]
Type=notify
NotifyAccess=main
ExecStart={run}
ExecReload=/bin/kill -HUP $MAINPID
User={user}
WorkingDirectory={_escaped(os.path.dirname(config))}
KillMode=mixed
TimeoutStopSec={int(hard_seconds) + 5}
WatchdogSec={_WATCHDOG_SECONDS}
Restart=on-failure
RestartPreventExitStatus=2
UMask=0077

[Install]
WantedBy=multi-user.target
"""


def _quoted(word: str) -> str:
    return _escaped(word) if shlex.quote(word) == word else '"' + _escaped(word).replace('"', '\\"') + '"'


def _escaped(text: str) -> str:
    """`%` starts a specifier, `$` a variable in command lines; a line break would start a new setting."""
    return text.replace("\\", "\\\\").replace("%", "%%").replace("$", "$$").replace("\n", " ")
