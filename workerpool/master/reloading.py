"""Reading the configuration anew: streams that are new start, removed ones end, the others replace their workers.

These try the new handler first (`stream.reloading`), and keep what they have when it cannot be imported.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection

from workerpool.config import PoolConfig, StreamConfig
from workerpool.errors import ConfigError
from workerpool.master.desk import Desk, Member
from workerpool.master.service import Service
from workerpool.master.streams import Streams

_log = logging.getLogger("workerpool.master")


class Reloading:
    """What can be changed in a running pool, and saying what cannot."""

    def __init__(self, desk: Desk, streams: Streams, service: Service) -> None:
        self._desk = desk
        self._streams = streams
        self._service = service

    def reload(self) -> None:
        """Take the configuration as it is now; one that is wrong changes nothing, and every problem is said."""
        read = self._desk.place.reload
        if read is None or self._desk.is_ending:
            return
        with self._service.reloading():
            self._read(read)

    def _read(self, read: Callable[[], PoolConfig]) -> None:
        try:
            fresh = read()
        except ConfigError as error:
            for problem in error.problems:
                _log.error("%s", problem)
            _log.error("the configuration stays as it was")
            return
        self._apply(fresh)

    def _apply(self, fresh: PoolConfig) -> None:
        desk = self._desk
        if dataclasses.replace(fresh, streams=desk.pool.streams) != desk.pool:
            _log.warning("only [streams] and [defaults] can be reloaded; the other changes need a restart")
        self._dismiss_all_but({config.name for config in fresh.streams})
        for config in fresh.streams:
            member = desk.members.get(config.name)
            if member is None:
                self._add(config)
            else:
                self._change(member, config)
        desk.pool = dataclasses.replace(desk.pool, streams=fresh.streams)
        _log.info("configuration read anew")

    def _dismiss_all_but(self, wanted: Collection[str]) -> None:
        for name, member in self._desk.members.items():
            if name not in wanted and not member.state.dismissed:
                member.state.dismissed = member.state.told_to_end = True
                if member.channel is not None:
                    member.channel.send({"t": "stop"})

    def _add(self, config: StreamConfig) -> None:
        if self._streams.has_room_for(config):
            self._streams.add(config)
        else:
            _log.error(
                "no room on the board for stream %s: reload again once a removed stream has ended, or restart the pool",
                config.name,
            )

    def _change(self, member: Member, config: StreamConfig) -> None:
        if config.workers > member.rows - 1 or (config.workers == 0) != (member.config.workers == 0):
            _log.error("stream %s: so many workers need a restart of the pool", config.name)
            return
        member.state.dismissed = False
        if member.channel is not None and not member.state.told_to_end:
            member.asked = config
            member.channel.send({"t": "reload", "stream": config.to_dict()})
        else:
            member.config = config
