"""A new configuration: its handler is tried first, and only one that can be imported replaces the workers that run.

    asked ──nothing that works──▶ applied
      └────▶ tried ──imported──▶ applied: the workers are replaced one by one
               └────cannot be──▶ all stays as it was, and that is said

What comes of it is told to the master, which starts this stream's process again with what it last worked with.
"""

from __future__ import annotations

import logging

from workerpool.config import StreamConfig
from workerpool.stream.arrivals import Arrivals
from workerpool.stream.desk import Desk
from workerpool.stream.state import SlotState

_log = logging.getLogger("workerpool.stream")


class Reloading:
    """The newest wish counts: one that comes while another is tried takes its place."""

    def __init__(self, desk: Desk, arrivals: Arrivals) -> None:
        self._desk = desk
        self._arrivals = arrivals
        self._wanted: StreamConfig | None = None

    def ask(self, config: StreamConfig) -> None:
        """The configuration is to be this one."""
        self._wanted = config
        if not any(slot.state is SlotState.READY or slot.ever_ready for slot in self._desk.roster.slots):
            self._settle("")
            return
        try:
            self._desk.crew.try_out(config)
        except OSError as error:
            self._settle(f"it cannot be tried: {error.strerror or error}")

    def act(self) -> None:
        """Go on when the trial has ended."""
        error = self._desk.crew.tried()
        if error is not None:
            self._settle(error)

    def _settle(self, error: str) -> None:
        config, self._wanted = self._wanted, None
        if config is None:
            return
        if error:
            _log.error("stream %s goes on with what it has; %s: %s", config.name, config.handler, error)
        else:
            self._apply(config)
        self._desk.master.send({"t": "reloaded", "stream": self._desk.config.to_dict()})

    def _apply(self, config: StreamConfig) -> None:
        _log.info("stream %s: new configuration, workers are replaced one by one", config.name)
        self._desk.config = self._desk.journey.config = config
        self._desk.roster.resize(config)
        self._arrivals.hungry = True
