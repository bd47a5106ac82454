"""Reads a config.toml, judges it, and makes a `PoolConfig` of it. Nothing is started before it is wholly good.

`load_config` collects every problem it can see and raises one `ConfigError` with all of them, each a line with file,
line, key and, where a word is near a known one, "did you mean". A problem that only follows from another is left out.

Precedence: flags (`overrides`), then the environment (`WORKERPOOL_<SECTION>_<KEY>`, a stream's key as
`WORKERPOOL_STREAMS_<NAME>_<KEY>` with everything but letters and digits as `_`), then the file, then the default. A
list is separated by commas there. Paths in the file are relative to the file, those of flags and environment to the
current folder. `WORKERPOOL_CONFIG` is the command line's and not read here. Other variables that begin like a section
are errors, because a mistyped one would silently do nothing; those that container platforms set for services are not.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from queuekit.errors import InvalidIdentifier
from queuekit.ids import check_identifier, safe_stream
from workerpool import config_model as model
from workerpool.config import (
    Durability,
    HandlersConfig,
    HttpConfig,
    LeaseConfig,
    LogConfig,
    LogFormat,
    LogLevel,
    PoolConfig,
    RetentionConfig,
    ShutdownConfig,
    StoreConfig,
    StreamConfig,
    TelemetryConfig,
    WatchConfig,
)
from workerpool.config_lines import KeyPath
from workerpool.config_model import config_schema, schema_text
from workerpool.config_source import Document, read_document
from workerpool.errors import ConfigError, Problem
from workerpool.trust import why_unimportable, why_unusable
from workerpool.units import format_duration

MAX_STREAM_BYTES = 152  # a job's file name holds 222 bytes, of which time, node and a 32-digit id take 70
PREFIX = "WORKERPOOL_"
ENVIRONMENT = "environment"
COMMAND_LINE = "command line"

_RESERVED = {"WORKERPOOL_CONFIG"}
_SERVICE_LINK = re.compile(r".*_(?:SERVICE_(?:HOST|PORT)|PORT)(?:_.*)?")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_HANDLER_PATH: KeyPath = ("handlers", "path")

Values = dict[str, Any]


def load_config(
    source: str | os.PathLike[str] | Mapping[str, Any],
    *,
    overrides: Mapping[str, str] | None = None,
    environ: Mapping[str, str] = os.environ,
    base: str | os.PathLike[str] | None = None,
    streams_required: bool = True,
) -> PoolConfig:
    """The configuration in `source`: the path of a TOML file, or its content as a mapping.

    `overrides`: text by full key (`store.url`, `streams.encode.workers`), as flags give it; `base`: the folder that
    paths in `source` are relative to (by default the file's; the current one for a mapping); `streams_required`:
    False for a use that works no stream, such as sending to a store that only a flag names. Raises `ConfigError`.
    """
    document = read_document(source, base)
    judge = _Judge(document)
    _apply_environment(judge, environ)
    _apply_overrides(judge, overrides or {})
    sections = _judge_sections(judge, streams_required)
    streams = _judge_streams(judge, sections)
    _judge_together(judge, sections)
    if streams:
        _judge_handler_folders(judge, sections["handlers"])
    judge.raise_problems()
    return _build(judge, sections, streams)


# -- judging


class _Judge:
    """What is being judged, where each key came from, and the problems found so far."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.values = {key: dict(value) if isinstance(value, dict) else value for key, value in document.values.items()}
        self.problems = list(document.problems)
        self._places: dict[KeyPath, tuple[str, str]] = {}

    def put(self, path: KeyPath, text: str, file: str, key: str) -> None:
        """Set one key from outside the document; `file` and `key` name where it came from."""
        table = self.values
        for depth, name in enumerate(path[:-1], start=1):
            if name not in table:
                self._places[path[:depth]] = (file, key)
            table[name] = dict(below) if isinstance(below := table.get(name, {}), dict) else below
            if not isinstance(table[name], dict):
                return  # reported as no table
            table = table[name]
        table[path[-1]] = _coerced(path, text)
        self._places[path] = (file, key)

    def is_from_outside(self, path: KeyPath) -> bool:
        """Whether a flag or a variable gave this key."""
        return path in self._places

    def resolved(self, path: KeyPath, text: str) -> str:
        """The absolute form of a file path that key `path` holds."""
        base = os.getcwd() if self.is_from_outside(path) else self.document.base
        return _absolute(text, base)

    def add(self, path: KeyPath, message: str, *, item: int | None = None) -> None:
        """Note a problem with a key (or one item of its list)."""
        name = _key_text(path) + ("" if item is None else f"[{item}]")
        for depth in range(len(path), 0, -1):
            if path[:depth] in self._places:
                file, key = self._places[path[:depth]]
                return self.note(Problem(file, None, key, message))
            if path[:depth] in self.document.lines:
                return self.note(Problem(self.document.label, self.document.lines[path[:depth]], name, message))
        return self.note(Problem(self.document.label, None, name, message))

    def note(self, problem: Problem) -> None:
        """Note a problem unless it is known."""
        if problem not in self.problems:
            self.problems.append(problem)

    def raise_problems(self) -> None:
        """Raise `ConfigError` with what was found, in the order of the file, other sources last."""
        if self.problems:
            here = self.document.label
            raise ConfigError(sorted(self.problems, key=lambda each: (each.file != here, each.line or 0)))


def _key_text(path: KeyPath) -> str:
    return ".".join(part if _BARE_KEY.fullmatch(part) else _quoted(part) for part in path)


def _quoted(part: str) -> str:
    shown = part if len(part) <= 80 else part[:77] + "..."
    return '"' + "".join(c if c.isprintable() and c not in '"\\' else ascii(c)[1:-1] for c in shown) + '"'


def _absolute(text: str, base: str) -> str:
    return os.path.abspath(os.path.join(base, os.path.expanduser(text)))


# -- flags and environment


def _apply_overrides(judge: _Judge, overrides: Mapping[str, str]) -> None:
    for key, text in overrides.items():
        path = _override_path(key)
        if path[0] == model.STREAMS and path[1:2] and path[1] not in _stream_names(judge):
            judge.note(Problem(COMMAND_LINE, None, key, "there is no such stream in the configuration"))
        else:
            judge.put(path, text, COMMAND_LINE, key)


def _override_path(key: str) -> KeyPath:
    section, _, rest = key.partition(".")
    if section != model.STREAMS:
        return (section, rest) if rest else (section,)
    name, _, last = rest.rpartition(".")
    return (section, name, last)


def _apply_environment(judge: _Judge, environ: Mapping[str, str]) -> None:
    known = _variables(_stream_names(judge))
    for name, text in sorted(environ.items()):
        if not name.startswith(PREFIX) or name in _RESERVED:
            continue
        paths = known.get(name, [])
        if len(paths) == 1:
            judge.put(paths[0], text, ENVIRONMENT, name)
        elif paths:
            meant = " or ".join(_key_text(path) for path in paths)
            judge.note(Problem(ENVIRONMENT, None, name, f"may mean {meant}: set it in the file"))
        elif _looks_mistyped(name, known):
            judge.note(Problem(ENVIRONMENT, None, name, f"unknown variable{model.did_you_mean(name, known)}"))


def _variables(streams: Iterable[str]) -> dict[str, list[KeyPath]]:
    """Every variable that means something, and the keys that it may mean."""
    known: dict[str, list[KeyPath]] = {}
    for section, table in model.SECTIONS.items():
        for key in table.model_fields:
            known.setdefault(f"{PREFIX}{section}_{key}".upper(), []).append((section, key))
    for stream in streams:
        for key in model.Stream.model_fields:
            name = f"{PREFIX}{model.STREAMS}_{re.sub('[^A-Za-z0-9]', '_', stream)}_{key}".upper()
            known.setdefault(name, []).append((model.STREAMS, stream, key))
    return known


def _looks_mistyped(name: str, known: Iterable[str]) -> bool:
    sections = tuple(f"{PREFIX}{section}_".upper() for section in (*model.SECTIONS, model.STREAMS))
    if _SERVICE_LINK.fullmatch(name):
        return False
    return name.startswith(sections) or model.suggestion(name, known, cutoff=0.85) is not None


def _stream_names(judge: _Judge) -> list[str]:
    streams = judge.values.get(model.STREAMS)
    return list(streams) if isinstance(streams, dict) else []


def _coerced(path: KeyPath, text: str) -> object:
    """Text as the value that its key takes; what does not fit stays text, and is refused later."""
    section, key = path[0], path[-1]
    known = section in model.SECTIONS or section == model.STREAMS
    if not known or key not in (table := model.table_of(section)).model_fields:
        return text
    kind = model.json_type(table, key)
    if kind == "integer" and re.fullmatch(r"-?[0-9]{1,18}", text):
        return int(text)
    if kind == "boolean":
        return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
    return [each.strip() for each in text.split(",") if each.strip()] if kind == "array" else text


# -- tables and keys


def _judge_sections(judge: _Judge, streams_required: bool) -> dict[str, Values]:
    """The good values of each section; whatever is wrong is noted and left out."""
    unknown = [name for name in judge.values if name not in (*model.SECTIONS, model.STREAMS)]
    meant = {_judge_unknown_section(judge, name) for name in unknown}
    if streams_required and model.STREAMS not in meant and judge.values.get(model.STREAMS, {}) == {}:
        judge.add((model.STREAMS,), 'no stream is configured: add [streams.NAME] with handler = "module:callable"')
    return {
        name: _judge_table(judge, table, judge.values.get(name, {}), (name,)) for name, table in model.SECTIONS.items()
    }


def _judge_unknown_section(judge: _Judge, name: str) -> str | None:
    """Note a name that no table has; the section that was probably meant."""
    value = judge.values[name]
    near = model.suggestion(name, (*model.SECTIONS, model.STREAMS))
    kind = "table" if isinstance(value, dict | list) else "key"
    if kind == "key" and model.homes(name):
        judge.add((name,), f"stands outside of its table: it belongs into {_either(model.homes(name))}")
    elif near:
        judge.add((name,), f"unknown {kind} {model.shown(name)}, did you mean '{near}'?")
        return near
    elif isinstance(value, dict) and "handler" in value:
        judge.add((name,), f"unknown table {model.shown(name)}, did you mean [{_key_text((model.STREAMS, name))}]?")
        return model.STREAMS
    else:
        known = ", ".join((*model.SECTIONS, model.STREAMS))
        judge.add((name,), f"unknown {kind} {model.shown(name)}; the tables are {known}")
    return None


def _judge_table(judge: _Judge, table: type[model.Table], written: object, path: KeyPath) -> Values:
    """The good values of a table, defaults included; wrong keys, and keys that were probably meant, are left out."""
    if not isinstance(written, dict):
        judge.add(path, f"must be a table, [{_key_text(path)}], not {model.shown(written)}")
        return {}
    try:
        return dict(table.model_validate(written))
    except ValidationError as invalid:
        errors = invalid.errors(include_url=False)
    bad = {
        key for each in errors if each["type"] == "extra_forbidden" for key in _unknown_key(judge, table, each, path)
    }
    for each in errors:
        if each["type"] != "extra_forbidden" and not (each["type"] == "missing" and each["loc"][0] in bad):
            item = each["loc"][1] if len(each["loc"]) > 1 and isinstance(each["loc"][1], int) else None
            judge.add((*path, str(each["loc"][0])), _message(each), item=item)
        bad.add(str(each["loc"][0]))
    good = {key: value for key, value in written.items() if key not in bad}
    filled = {key: "left:out" for key, field in table.model_fields.items() if field.is_required() and key in bad}
    return {key: value for key, value in table.model_validate(good | filled) if key not in bad}


def _unknown_key(judge: _Judge, table: type[model.Table], error: Any, path: KeyPath) -> set[str]:
    """Note a key that its table does not have; the keys of the table that it makes doubtful."""
    key = str(error["loc"][0])
    where = (*path, key)
    if path[0] == model.STREAMS and isinstance(error["input"], dict) and key not in model.SECTIONS:
        judge.add(
            where, f"a stream holds no tables; a name with a dot is quoted: [streams.{_quoted(f'{path[1]}.{key}')}]"
        )
        return {"handler"}
    if key in model.SECTIONS and isinstance(error["input"], dict):
        judge.add(where, f"stands in another table: it is written [{key}]")
    elif model.homes(key):
        judge.add(where, f"does not belong here, but into {_either(model.homes(key))}")
    elif near := model.suggestion(key, table.model_fields):
        judge.add(where, f"unknown key, did you mean '{near}'?")
        return {near}
    else:
        judge.add(where, f"unknown key; this table has {', '.join(table.model_fields)}")
    return set()


def _either(words: list[str]) -> str:
    return " or ".join(words)


def _message(error: Any) -> str:
    """What pydantic found, in the words of a person who writes TOML."""
    kind, value, facts = error["type"], error.get("input"), error.get("ctx", {})
    if kind == "value_error":
        return str(facts["error"])
    if kind == "missing":
        return 'is missing: name it as "package.module:callable"'
    if kind == "literal_error":
        words = re.findall(r"'([^']*)'", facts["expected"])
        near = model.did_you_mean(value, words) if isinstance(value, str) else ""
        return f"must be {facts['expected']}, not {model.shown(value)}{near}"
    if kind in {"greater_than_equal", "less_than_equal"}:
        bound = facts["ge"] if "ge" in facts else facts["le"]
        shown = format_duration(bound) if isinstance(bound, float) else bound
        return f"must be {'at least' if 'ge' in facts else 'at most'} {shown}"
    if kind in {"too_short", "string_too_short"}:
        return "must not be empty"
    expected = _EXPECTED.get(kind)
    return f"must be {expected}, not {model.shown(value)}" if expected else str(error["msg"])


_EXPECTED = {
    "string_type": "text in quotes",
    "string_unicode": "valid Unicode",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "list_type": "a list",
}


# -- streams


def _judge_streams(judge: _Judge, sections: dict[str, Values]) -> list[Values]:
    """The good values of each stream with the defaults applied, in the order of the file."""
    streams = judge.values.get(model.STREAMS, {})
    if not isinstance(streams, dict):
        judge.add((model.STREAMS,), "must be a table of streams, each written as [streams.NAME]")
        return []
    _judge_names(judge, streams)
    return [_judge_stream(judge, name, written, sections) for name, written in streams.items()]


def _judge_names(judge: _Judge, names: Iterable[str]) -> None:
    taken: dict[str, str] = {}
    for name in names:
        path = (model.STREAMS, name)
        with _noting_bad_name(judge, path):
            check_identifier(name)
        if name.endswith(".signal"):
            judge.add(path, "a stream's name cannot end in .signal, which marks how a job ended")
        if len(name.encode(errors="replace")) > MAX_STREAM_BYTES:
            judge.add(path, f"a stream's name takes at most {MAX_STREAM_BYTES} bytes")
        first = taken.setdefault(safe_stream(name), name)
        if first != name:
            judge.add(path, f"has the same lease file as stream {_quoted(first)} ({safe_stream(name)}): rename one")


@contextlib.contextmanager
def _noting_bad_name(judge: _Judge, path: KeyPath) -> Iterator[None]:
    try:
        yield
    except InvalidIdentifier as error:
        judge.add(path, f"cannot name a stream: {error.reason}")


def _judge_stream(judge: _Judge, name: str, written: object, sections: dict[str, Values]) -> Values:
    """The good values of one stream: its own, then those of [defaults]. A key in doubt is in neither."""
    own = _judge_table(judge, model.Stream, written, (model.STREAMS, name))
    set_here = written.keys() if isinstance(written, dict) else set()
    usable = {key for key in own if key in set_here or key in sections["defaults"]}
    values = {key: own[key] if key in set_here else sections["defaults"][key] for key in usable}
    blame = _Blame(judge, name, set_here)
    _judge_timeouts(blame, values)
    _judge_backoff(blame, values)
    _judge_exclusive(blame, values, sections["store"].get("url"))
    return values | {"name": name}


class _Blame:
    """Where to report a rule that a stream's keys break: where the stream sets one, else where [defaults] does."""

    def __init__(self, judge: _Judge, stream: str, set_here: Collection[str]) -> None:
        self._judge = judge
        self._stream = stream
        self._set_here = set_here

    def on(self, keys: tuple[str, ...], message: str) -> None:
        """Note that `keys` break a rule; the first of them is the likelier culprit."""
        defaults = self._judge.values.get("defaults") or {}
        here: list[KeyPath] = [(model.STREAMS, self._stream, key) for key in keys if key in self._set_here]
        shared: list[KeyPath] = [("defaults", key) for key in keys if key in defaults]
        self._judge.add([*here, *shared][0], message)


def _judge_timeouts(blame: _Blame, values: Values) -> None:
    """Soft before hard; a soft timeout of 0 becomes 90 % of the hard one."""
    if not {"timeout", "soft_timeout"} <= values.keys():
        return
    soft, hard = values["soft_timeout"], values["timeout"]
    if 0 < hard < soft:
        blame.on(
            ("soft_timeout", "timeout"),
            f"soft_timeout ({format_duration(soft)}) is longer than timeout ({format_duration(hard)})",
        )
    values["soft_timeout"] = soft or 0.9 * hard


def _judge_backoff(blame: _Blame, values: Values) -> None:
    if not {"backoff", "max_backoff"} <= values.keys():
        return
    first, longest = values["backoff"], values["max_backoff"]
    if longest < first:
        blame.on(
            ("max_backoff", "backoff"),
            f"max_backoff ({format_duration(longest)}) is shorter than backoff ({format_duration(first)})",
        )


def _judge_exclusive(blame: _Blame, values: Values, url: str | None) -> None:
    if url and not values.get("exclusive", True) and model.split_store_url(url)[0] != "postgresql":
        blame.on(("exclusive",), "false needs a postgresql: store; on others a stream has one consumer")


def _judge_together(judge: _Judge, sections: dict[str, Values]) -> None:
    shutdown = sections["shutdown"]
    if {"soft", "hard"} <= shutdown.keys() and shutdown["hard"] < shutdown["soft"]:
        written = judge.values.get("shutdown") or {}
        path = ("shutdown", "hard" if "hard" in written else "soft")
        times = f"hard ({format_duration(shutdown['hard'])}) is shorter than soft ({format_duration(shutdown['soft'])})"
        judge.add(path, times)


def _judge_handler_folders(judge: _Judge, handlers: Values) -> None:
    for index, folder in enumerate(judge.resolved(_HANDLER_PATH, each) for each in handlers.get("path", ["."])):
        is_said = folder in judge.document.folders and why_unusable(folder) is not None
        reason = None if is_said else why_unimportable(folder)
        if reason:
            judge.add(_HANDLER_PATH, f"{folder} {reason}", item=index)


# -- building


def _build(judge: _Judge, sections: dict[str, Values], streams: list[Values]) -> PoolConfig:
    store, log, telemetry = sections["store"], sections["log"], sections["telemetry"]
    return PoolConfig(
        path=judge.document.path,
        base=judge.document.base,
        store=StoreConfig(
            url=_resolved_url(judge, store["url"]),
            estate=store["estate"],
            durability=Durability(store["durability"]),
            max_job_bytes=store["max_job_bytes"],
        ),
        handlers=HandlersConfig(
            path=tuple(judge.resolved(_HANDLER_PATH, folder) for folder in sections["handlers"]["path"])
        ),
        streams=tuple(StreamConfig(**stream) for stream in streams),
        lease=LeaseConfig(**sections["lease"]),
        watch=WatchConfig(**sections["watch"]),
        shutdown=ShutdownConfig(**sections["shutdown"]),
        retention=RetentionConfig(**sections["retention"]),
        telemetry=TelemetryConfig(hooks=tuple(telemetry["hooks"]), interval=telemetry["interval"]),
        http=HttpConfig(**sections["http"]),
        log=LogConfig(
            format=LogFormat(log["format"]),
            level=LogLevel(log["level"]),
            file=judge.resolved(("log", "file"), log["file"]) if log["file"] else "",
        ),
    )


def _resolved_url(judge: _Judge, url: str) -> str:
    scheme, rest = model.split_store_url(url)
    return url if scheme == "postgresql" else f"{scheme}:{judge.resolved(('store', 'url'), rest)}"


__all__ = ["config_schema", "load_config", "schema_text"]
