"""The configuration as frozen values: what the pool runs by once everything was read and judged. No I/O.

`workerpool.config_file` makes these from a config.toml; nobody else should need to. Durations are float seconds,
sizes int bytes, 0 means "none" or "no limit" as the key's line in `config/full.toml` says. Every path is absolute.
A `StreamConfig` travels between processes as a plain dict (`to_dict`, `from_dict`).
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any


class Durability(enum.StrEnum):
    """What a send waits for: everything on disk, one barrier at the end of a batch, or nothing."""

    FULL = "full"
    BATCH = "batch"
    NONE = "none"


class LogFormat(enum.StrEnum):
    """How log lines look; `AUTO` is text on a terminal and JSON otherwise."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"


class LogLevel(enum.StrEnum):
    """The least severe lines that are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """`[store]`. `url`: `dir:` or `sqlite:` with an absolute path, or `postgresql://…`."""

    url: str
    estate: str
    durability: Durability
    max_job_bytes: int

    @property
    def scheme(self) -> str:
        """`dir`, `sqlite` or `postgresql`."""
        return self.url.partition(":")[0]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HandlersConfig:
    """`[handlers]`. `path`: the absolute folders that handlers are imported from, first match wins."""

    path: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """One `[streams.NAME]` with `[defaults]` applied.

    `soft_timeout` is the effective one (90 % of `timeout` when it was left at 0); 0 only when there is no limit.
    """

    name: str
    handler: str
    workers: int
    batch_size: int
    batch_wait: float
    timeout: float
    soft_timeout: float
    retries: int
    backoff: float
    max_backoff: float
    max_crashes: int
    max_jobs: int
    max_memory: int
    exclusive: bool

    def to_dict(self) -> dict[str, Any]:
        """Itself as JSON values, for another process."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> StreamConfig:
        """The inverse of `to_dict`; raises `TypeError` when a key is missing or unknown."""
        return cls(**values)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LeaseConfig:
    """`[lease]`. `ttl`: seconds after which a silent holder is given up."""

    ttl: float

    @property
    def heartbeat(self) -> float:
        """Seconds between two renewals: a third of the ttl."""
        return self.ttl / 3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WatchConfig:
    """`[watch]`. Seconds between two polls where events cannot be had, and between two looks without an event."""

    poll: float
    scan: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownConfig:
    """`[shutdown]`. Seconds from the signal until jobs are asked to stop, and until their workers are killed."""

    soft: float
    hard: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RetentionConfig:
    """`[retention]`. Seconds that finished jobs are kept, by how they ended; 0 = for ever."""

    done: float
    blocked: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryConfig:
    """`[telemetry]`. `hooks`: built-in names or `package.module:callable`; `interval`: seconds between two reports."""

    hooks: tuple[str, ...]
    interval: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """`[http]`. `listen`: `host:port`, an IPv6 host in brackets; "" = no page."""

    listen: str

    @property
    def address(self) -> tuple[str, int] | None:
        """Host (without brackets) and port; None when nothing is to be served."""
        if not self.listen:
            return None
        host, _, port = self.listen.rpartition(":")
        return host.removeprefix("[").removesuffix("]"), int(port)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """`[log]`. `file`: absolute; "" = standard error."""

    format: LogFormat
    level: LogLevel
    file: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """A whole configuration. `path`: its file, absolute, or None; `base`: the folder that it is relative to."""

    path: str | None
    base: str
    store: StoreConfig
    handlers: HandlersConfig
    streams: tuple[StreamConfig, ...]
    lease: LeaseConfig
    watch: WatchConfig
    shutdown: ShutdownConfig
    retention: RetentionConfig
    telemetry: TelemetryConfig
    http: HttpConfig
    log: LogConfig

    def stream(self, name: str) -> StreamConfig | None:
        """The stream of this name; None when there is none."""
        return next((stream for stream in self.streams if stream.name == name), None)

    def to_dict(self) -> dict[str, Any]:
        """Itself as JSON values, `streams` by name: the effective configuration, for people and tools to look at."""
        body = {key: _plain(value) for key, value in dataclasses.asdict(self).items()}
        body["streams"] = {stream["name"]: stream for stream in body["streams"]}
        return body


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, tuple) else value
