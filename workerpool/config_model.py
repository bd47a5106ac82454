"""The tables of a config.toml as pydantic models: each key, its type, its default, and what it is for.

The one description that everything is made from: the validation of a file, the JSON Schema that editors complete it
with, and the list of known keys behind "did you mean". What can be judged by looking at one value alone is judged
here; what needs two keys, the file's place or the machine is judged in `workerpool.config_file`, the only importer
(pydantic takes 40 ms to import). Each `ValueError` below is the message that a person reads.
"""

from __future__ import annotations

import difflib
import json
import keyword
import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from workerpool.units import DURATION_PATTERN, SIZE_PATTERN, parse_duration, parse_size

BUILT_IN_HOOKS = ("log", "prometheus", "opentelemetry")
STORE_SCHEMES = ("dir", "sqlite", "postgresql")

_HOST = r"(?:\[[^@/?#\[\]]*\]|[^@/?#:,\[\]]*)(?::[0-9]*)?"
_POSTGRESQL = re.compile(
    rf"(?!.*%(?![0-9A-Fa-f]{{2}}))//(?:[^@/?#\[\]]*@)?{_HOST}(?:,{_HOST})*(?:/[^@/?#]*)?(?:\?[^#]*)?"
)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")
_LISTEN = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")


def suggestion(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known word that `word` most likely was meant to be; None when nothing is near."""
    by_folded = {each.casefold(): each for each in known}
    near = difflib.get_close_matches(word[:80].casefold(), by_folded, n=1, cutoff=cutoff)
    return by_folded[near[0]] if near else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`, did you mean '…'?`, or nothing when no known word is near."""
    near = suggestion(word, known)
    return f", did you mean '{near}'?" if near else ""


def _duration(value: Any) -> float:
    return parse_duration(_quoted(value, "s", "5s"))


def _size(value: Any) -> int:
    return parse_size(_quoted(value, "MiB", "64MiB"))


def _quoted(value: Any, unit: str, example: str) -> str:
    """The text; a bare number or a truth value is refused with the spelling that was probably meant."""
    if isinstance(value, str):
        return value
    plain_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 10**9
    meant = f"{value}{unit}" if plain_number else example
    raise ValueError(f'must be text with a unit, e.g. "{meant}", not {shown(value)}')


def shown(value: Any) -> str:
    """A value as TOML has it, short enough for a message."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, int) and abs(value) >= 10**20:
        return "a number of over 20 digits"
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _store_url(text: str) -> str:
    scheme, rest = split_store_url(text)
    if scheme not in STORE_SCHEMES:
        near = did_you_mean(scheme, STORE_SCHEMES)
        raise ValueError(
            f"unknown store '{scheme[:40]}:'{near or ': use dir:PATH, sqlite:PATH or postgresql://user@host/database'}"
        )
    if scheme == "postgresql" and not rest.startswith("//"):
        raise ValueError("a PostgreSQL store is written postgresql://user@host/database")
    if scheme == "postgresql" and not _POSTGRESQL.fullmatch(rest):
        raise ValueError(
            "is no PostgreSQL URL: write postgresql://user@host/database, in which the special characters of a password"
            " are encoded: %40 for @, %2F for /, %25 for %"
        )
    if scheme != "postgresql" and re.match(r"//(?!/)", rest):
        raise ValueError(f"write {scheme}:PATH, without a host")
    if not rest.strip("/") and rest != "/":
        raise ValueError("must name the store, e.g. dir:./spool")
    if scheme == "sqlite" and rest == ":memory:":
        raise ValueError("an SQLite store must be a file: processes cannot share one in memory")
    return text


def split_store_url(text: str) -> tuple[str, str]:
    """Scheme and rest; a plain path is a `dir`."""
    match = _SCHEME.match(text)
    return (match[1], text[match.end() :]) if match else ("dir", text)


def _reference(text: str) -> str:
    module, colon, name = text.partition(":")
    words = [*module.split("."), *name.split(".")]
    if not all(word.isidentifier() and not keyword.iskeyword(word) for word in words if word or colon):
        raise ValueError(f'must be "package.module:callable", not {shown(text)}')
    if not colon:
        before, dot, last = text.rpartition(".")
        near = f", did you mean '{before}:{last}'?" if dot and before and last else ""
        raise ValueError(f'must be "package.module:callable", not {shown(text)}{near}')
    return text


def _hook(text: str) -> str:
    if text in BUILT_IN_HOOKS or ":" in text:
        return text if text in BUILT_IN_HOOKS else _reference(text)
    near = did_you_mean(text, BUILT_IN_HOOKS)
    raise ValueError(
        f"unknown hook {shown(text)}{near or ': use ' + _listed([*BUILT_IN_HOOKS, 'package.module:callable'])}"
    )


def _listen(text: str) -> str:
    match = _LISTEN.fullmatch(text)
    if text and (match is None or int(match[1]) > 65535):
        raise ValueError(
            f'must be "host:port", e.g. "127.0.0.1:9191" (every address: "0.0.0.0:9191"), not {shown(text)}'
        )
    return text


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("a path cannot hold a NUL character")
    return text


def _listed(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


Duration = Annotated[
    float,
    BeforeValidator(_duration),
    WithJsonSchema({"type": "string", "pattern": f"^(?:0|{DURATION_PATTERN})$"}),
]
Size = Annotated[int, BeforeValidator(_size), WithJsonSchema({"type": "string", "pattern": f"^(?:0|{SIZE_PATTERN})$"})]
Path = Annotated[str, AfterValidator(_no_nul)]
StoreUrl = Annotated[str, AfterValidator(_no_nul), AfterValidator(_store_url)]
Reference = Annotated[str, AfterValidator(_reference)]
Hook = Annotated[str, AfterValidator(_hook)]
Listen = Annotated[str, AfterValidator(_listen)]


class Table(BaseModel):
    """A table: unknown keys are errors, nothing is converted silently, defaults are read like written values."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)


def _written(*, default: str, description: str, ge: float | None = None) -> Any:
    """A key whose default is written as a person would write it, although its value is a number."""
    return Field(default=default, description=description, ge=ge)


class Store(Table):
    """Where the jobs are."""

    url: StoreUrl = Field(
        default="dir:./spool",
        description="dir:PATH, sqlite:PATH or postgresql://user@host/database; paths relative to this file",
    )
    estate: str = Field(default="unknown", min_length=1, description="the tag on every metric")
    durability: Literal["full", "batch", "none"] = Field(
        default="full", description="full: on disk when send returns; batch: one barrier per batch; none: no sync"
    )
    max_job_bytes: Size = _written(default="64MiB", ge=1, description="the largest payload that is accepted")


class Handlers(Table):
    """Where handlers are imported from."""

    path: list[Path] = Field(
        default=["."], min_length=1, description="folders relative to this file; never the current folder by accident"
    )


class Defaults(Table):
    """What every stream inherits."""

    workers: int = Field(default=1, ge=0, le=10_000, description="worker processes; 0 = inline in the stream process")
    batch_size: int = Field(default=1, ge=1, le=100_000, description="over 1, the handler takes a list of jobs")
    batch_wait: Duration = _written(default="0s", description="how long a batch waits to become full")
    timeout: Duration = _written(default="0s", description="then the worker's process group is killed; 0 = no limit")
    soft_timeout: Duration = _written(default="0s", description="raised inside the handler; 0 = 90 % of timeout")
    retries: int = Field(default=3, ge=0, le=1_000_000, description="runs after a failed first one")
    backoff: Duration = _written(default="1s", description="wait before a second run; doubles, with jitter")
    max_backoff: Duration = _written(default="5m", description="the longest wait between two runs")
    max_crashes: int = Field(default=2, ge=1, le=1_000_000, description="worker deaths before a job is blocked")
    max_jobs: int = Field(default=0, ge=0, le=10**15, description="recycle a worker after so many; 0 = never")
    max_memory: Size = _written(
        default="0", description="recycle a worker grown by so much over its first job; 0 = never"
    )
    exclusive: bool = Field(default=True, description="PostgreSQL only: false = many machines on one stream")


class Stream(Defaults):
    """One workload: its handler, and what differs from [defaults]."""

    handler: Reference = Field(description="package.module:callable, imported from [handlers] path")


class Lease(Table):
    """Who drains a stream."""

    ttl: Duration = _written(
        default="15s", ge=1.0, description="a silent holder loses its stream after it; heartbeat = a third"
    )


class Watch(Table):
    """How new jobs are noticed."""

    poll: Duration = _written(default="200ms", ge=0.01, description="between two looks where events cannot be had")
    scan: Duration = _written(default="30s", ge=0.1, description="a look without an event, always")


class Shutdown(Table):
    """How the pool stops, counted from the signal."""

    soft: Duration = _written(default="20s", description="running jobs may finish until then")
    hard: Duration = _written(default="25s", description="workers are killed then; their jobs run again")


class Retention(Table):
    """How long finished jobs are kept."""

    done: Duration = _written(default="0", description="those that ended well; 0 = for ever")
    blocked: Duration = _written(default="0", description="those that ended blocked; 0 = for ever")


class Telemetry(Table):
    """Where measurements go."""

    hooks: list[Hook] = Field(default=["log"], description="log, prometheus, opentelemetry, or package.module:callable")
    interval: Duration = _written(default="30s", description="between two reports of a stream")


class Http(Table):
    """The status page."""

    listen: Listen = Field(
        default="", description="host:port for the status page, /metrics, /healthz, /readyz; empty = off"
    )


class Log(Table):
    """The log."""

    format: Literal["auto", "text", "json"] = Field(
        default="auto", description="auto: text on a terminal, JSON otherwise"
    )
    level: Literal["debug", "info", "warning", "error", "critical"] = Field(
        default="info", description="the least severe lines that are written"
    )
    file: Path = Field(default="", description="relative to this file; empty = standard error")


class Config(Table):
    """A whole config.toml."""

    store: Store = Store()
    handlers: Handlers = Handlers()
    defaults: Defaults = Defaults()
    streams: dict[str, Stream] = Field(min_length=1, description="one table per workload: [streams.NAME]")
    lease: Lease = Lease()
    watch: Watch = Watch()
    shutdown: Shutdown = Shutdown()
    retention: Retention = Retention()
    telemetry: Telemetry = Telemetry()
    http: Http = Http()
    log: Log = Log()


STREAMS = "streams"
SECTIONS: dict[str, type[Table]] = {
    "store": Store,
    "handlers": Handlers,
    "defaults": Defaults,
    "lease": Lease,
    "watch": Watch,
    "shutdown": Shutdown,
    "retention": Retention,
    "telemetry": Telemetry,
    "http": Http,
    "log": Log,
}
"""Every table but the streams, in the order of the documentation."""


def table_of(section: str) -> type[Table]:
    """The model of a section; of `streams`, that of each stream."""
    return Stream if section == STREAMS else SECTIONS[section]


def homes(key: str) -> list[str]:
    """The tables that have this key, as they are written in a file."""
    found = [f"[{section}]" for section, model in SECTIONS.items() if key in model.model_fields]
    return [*found, "[streams.NAME]"] if key in Stream.model_fields else found


def json_type(model: type[Table], key: str) -> str:
    """What a key is written as: `string`, `integer`, `boolean` or `array`."""
    return str(model.model_json_schema()["properties"][key]["type"])


def config_schema() -> dict[str, Any]:
    """The JSON Schema of a config.toml."""
    schema = Config.model_json_schema()
    for definition in schema["$defs"].values():
        _drop_titles(definition)
    _drop_titles(schema)
    for section in SECTIONS:
        del schema["properties"][section]["default"]
    for key in Defaults.model_fields:  # a stream's default is what [defaults] says
        del schema["$defs"]["Stream"]["properties"][key]["default"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def schema_text() -> str:
    """The schema as it ships in `workerpool/config.schema.json`."""
    return json.dumps(config_schema(), indent=2, ensure_ascii=False) + "\n"


def _drop_titles(definition: dict[str, Any]) -> None:
    for each in definition["properties"].values():
        each.pop("title", None)
