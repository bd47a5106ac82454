"""What a stream process is told: by its master over their channel, by signals, and by the master's death.

Everything becomes an order, a frame's header such as `{"t": "stop"}`: SIGTERM and the end of the channel are stops too.
A handler that runs inline may ask whether a stop waits; what is read for that is kept for the loop.
"""

from __future__ import annotations

import logging
import selectors
import signal
from typing import Any

from workerpool.process import Channel, SignalPipe

STOP = {"t": "stop"}
_log = logging.getLogger("workerpool.stream")


class Orders:
    """The orders that have come and are not taken yet."""

    def __init__(self, selector: selectors.BaseSelector, master: Channel, signals: SignalPipe) -> None:
        self._selector = selector
        self._master = master
        self._signals = signals
        self._waiting: list[dict[str, Any]] = []
        self._ended = False
        signals.install([signal.SIGTERM, signal.SIGCHLD])
        selector.register(signals, selectors.EVENT_READ)
        selector.register(master, selectors.EVENT_READ)

    def take(self) -> list[dict[str, Any]]:
        """Everything that was ordered since the last call."""
        self._read()
        taken, self._waiting = self._waiting, []
        return taken

    def stop_is_waiting(self) -> bool:
        """Whether an order to stop has come."""
        self._read()
        return any(order.get("t") in {"stop", "kill"} for order in self._waiting)

    def _read(self) -> None:
        self._waiting += [STOP for number in self._signals.take() if number == signal.SIGTERM]
        self._waiting += [frame.header for frame in self._master.receive()]
        if self._master.eof and not self._ended:
            self._ended = True
            self._selector.unregister(self._master)  # it would be readable for ever
            _log.warning("the master is gone: finishing what runs")
            self._waiting.append(STOP)
