"""Where metrics go: to the built-in hooks in the stream process, to a user's hooks in a process of their own.

Built-in hooks never block. A user's hook may hang, leak or die, and shall hurt only itself: stream processes put
metrics into a datagram socket and go on (a full one drops them), and the reporter, forked only when there is such a
hook, takes them out and calls it.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import logging
import operator
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence

from queuekit.telemetry import Hook, Metric, fan_out, log_hook
from workerpool import logs
from workerpool.config import PoolConfig
from workerpool.process import parent_is_alive

_log = logging.getLogger("workerpool.reporter")
_LARGEST = 65536
_PARENT_SECONDS = 5.0
EXIT_NO_HOOK = 78
"""No hook could be imported."""
BUILT_IN = ("log", "prometheus", "opentelemetry")


class Reports:
    """The way of metrics in one pool; made by the master before it forks anything."""

    def __init__(self, hooks: Sequence[str]) -> None:
        self._built_in = [name for name in hooks if name in BUILT_IN]
        self.foreign = [name for name in hooks if name not in BUILT_IN]
        self._out: socket.socket | None = None
        self._in: socket.socket | None = None
        if self.foreign:
            self._in, self._out = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._out.setblocking(False)

    def descriptors(self) -> list[int]:
        """What processes of the pool have to keep open over their fork."""
        return [end.fileno() for end in (self._in, self._out) if end is not None]

    def hook(self) -> Hook | None:
        """The hook for a stream process."""
        hooks: list[Hook] = [_built_in(name) for name in self._built_in]
        if self._out is not None:
            hooks.append(_Sender(self._out))
        return fan_out(hooks) if hooks else None

    def serve(self, pool: PoolConfig) -> int:
        """Be the reporter: call the user's hooks for ever. To be the target of `spawn`; ends by its default signals.

        A hook that cannot be imported is left out, and said; returns `EXIT_NO_HOOK` when there is none left.
        """
        logs.configure(pool.log, "reporter")
        faulthandler.unregister(signal.SIGUSR2)  # the master's: spawn has put the default action in its place
        faulthandler.register(signal.SIGUSR2, all_threads=True)
        sys.path[:0] = pool.handlers.path
        hooks = [hook for name in self.foreign if (hook := _load(name)) is not None]
        if not hooks or self._in is None:
            return EXIT_NO_HOOK
        parent = os.getppid()
        self._in.settimeout(_PARENT_SECONDS)
        while parent_is_alive(parent):
            metric = _receive(self._in)
            if metric is not None:
                _call_all(hooks, metric)
        return 0

    def close(self) -> None:
        """Close both ends: for the master, when the pool has ended."""
        for end in (self._in, self._out):
            if end is not None:
                end.close()


class _Sender:
    """A hook that hands metrics to the reporter, and drops them when it does not keep up."""

    def __init__(self, out: socket.socket) -> None:
        self._out = out

    def __call__(self, metric: Metric) -> None:
        try:
            self._out.send(json.dumps([metric.name, metric.value, dict(metric.tags), metric.ts]).encode())
        except OSError:  # it does not keep up, or nobody is left to hear it
            return


def _built_in(name: str) -> Hook:
    if name == "prometheus":
        from queuekit.telemetry.prometheus import prometheus_hook

        return prometheus_hook()
    if name == "opentelemetry":
        from queuekit.telemetry.opentelemetry import opentelemetry_hook

        return opentelemetry_hook()
    return log_hook()


def _receive(end: socket.socket) -> Metric | None:
    """The next metric; None when there was none for some time."""
    try:
        name, value, tags, at = json.loads(end.recv(_LARGEST))
    except TimeoutError:
        return None
    return Metric(name, value, tags, at)


def _load(spec: str) -> Callable[[Metric], object] | None:
    module, _, attribute = spec.partition(":")
    try:
        hook: Callable[[Metric], object] = operator.attrgetter(attribute)(importlib.import_module(module))
    except Exception as error:  # noqa: BLE001  a user's code: whatever its import raises, the others are served
        _log.error("the telemetry hook %s cannot be imported: %s: %s", spec, type(error).__name__, error)
        return None
    return hook


def _call_all(hooks: Sequence[Callable[[Metric], object]], metric: Metric) -> None:
    for hook in hooks:
        try:
            hook(metric)
        except Exception:  # noqa: BLE001  a user's code: whatever it raises, the next metric is its next chance
            _log.exception("a telemetry hook failed")
