"""`workerpool doctor`: looks at one store and this machine, and says in plain words what it found.

Facts are gathered and judged in `workerpool.cli.diagnosis`; here it is decided what to look at, and said. Nothing is
changed: no store is made, none is migrated, no lease is taken.
"""

from __future__ import annotations

import dataclasses
import enum
import os
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import click

from queuekit import BackendUnavailable, QueueError
from workerpool.cli import words
from workerpool.cli.diagnosis import machine, tenants
from workerpool.cli.diagnosis.finding import Finding, Level, Part, error, exit_code, note
from workerpool.cli.diagnosis.look_machine import look_at_config, look_at_disk, look_at_machine
from workerpool.cli.diagnosis.look_tenants import look_at_lease_files, look_at_pools
from workerpool.cli.options import Source, json_option, print_json, with_source
from workerpool.cli.store import nearest_folder, why_not_makeable
from workerpool.config import PoolConfig
from workerpool.errors import ConfigError
from workerpool.locations import store_folder, store_path

_WIDTH = 100
_INDENT = " " * 21
_WRAPPER = textwrap.TextWrapper(  # what is to be typed, and paths, stay whole
    _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT, break_long_words=False, break_on_hyphens=False
)
_COLORS = {Level.OK: "green", Level.NOTE: "cyan", Level.WARNING: "yellow", Level.ERROR: "red"}
_Seen = tuple[list[Finding], dict[str, Any]]


@click.command("doctor")
@with_source
@json_option
@click.pass_context
def doctor_command(ctx: click.Context, source: Source, as_json: bool) -> None:
    """Look at the store and this machine: what is there, what it means, what to type.

    Nothing is changed, and no store is made; it may be run beside a pool. (On a folder a few files are made in tmp/,
    synced and removed, to see what the filesystem can do and what that costs.)

    \b
    Exit codes: 0 no errors, 1 something does not work, 2 the configuration has mistakes,
                3 the store cannot be used
    """
    config = source.load_store()
    findings, facts = examine(config, problems_of(source))
    if as_json:
        print_json(_report(config, findings, facts))
    else:
        _say(config, findings)
    ctx.exit(exit_code(findings))


def problems_of(source: Source) -> tuple[str, ...]:
    """What is wrong with the configuration, one line each."""
    try:
        source.load()
    except ConfigError as mistakes:
        return tuple(map(str, mistakes.problems))
    return ()


def examine(config: PoolConfig, problems: tuple[str, ...] = ()) -> _Seen:
    """Everything that is found, the store first, and the facts by topic."""
    about_store, facts = _look_at_store(config)
    pool_runs = any(pool["alive"] for pool in facts.get("pools", ()))
    looked, read = look_at_machine(config, pool_runs=pool_runs), look_at_config(config, problems)
    facts |= {"machine": dataclasses.asdict(looked), "config": dataclasses.asdict(read)}
    return [*about_store, *machine.judge_config(read), *machine.judge(looked)], facts


# -- the store


def _look_at_store(config: PoolConfig) -> _Seen:
    path = store_path(config)
    findings: list[Finding] = []
    facts: dict[str, Any] = {}
    try:
        if path is not None and not os.path.exists(path):
            findings.append(_missing(path))
        else:
            findings, facts = _look_at_existing(config)
    except QueueError as failure:
        findings.append(error("store", str(failure), "no pool and no sender can use it", "", Part.STORE))
    except OSError as failure:
        findings.append(_unreadable(failure, config.store.url))
    behind = (
        nearest_folder(path) if path is not None and not os.path.isdir(path) else path or nearest_folder(config.base)
    )
    if path is None:
        findings.append(
            note("disk", "the server's own disk cannot be seen from here", "this is the one with the boards:")
        )
    try:
        disk = look_at_disk(behind)
    except OSError as failure:
        return [*findings, error("disk", f"cannot look at {behind}: {failure.strerror}")], facts
    return [*findings, *machine.judge_disk(disk)], facts | {"disk": dataclasses.asdict(disk)}


def _unreadable(failure: OSError, name: str) -> Finding:
    reason = f"cannot look at {failure.filename or words.masked(name)}: {failure.strerror}"
    return error("store", reason, "no pool and no sender can use it", "", Part.STORE)


def _missing(path: str) -> Finding:
    reason = why_not_makeable(path)
    if reason:
        return error("store", reason, "no pool and no sender can use it", "", Part.STORE)
    return error(
        "store",
        f"there is no queue at {path} yet",
        "the first `workerpool send` or `run` makes it; or the path is mistyped, or its disk is not mounted",
        "look whether the URL names the right place",
        Part.STORE,
    )


def _look_at_existing(config: PoolConfig) -> _Seen:
    root = store_folder(config)
    pools = look_at_pools(config) if root is None or os.path.isdir(root) else ()
    looks = {"dir": _look_at_folder, "sqlite": _look_at_sqlite, "postgresql": _look_at_postgres}
    findings, jobs, leases, facts = looks[config.store.scheme](config, pools)
    if jobs is not None:
        findings += tenants.judge_jobs(jobs)
        facts["jobs"] = dataclasses.asdict(jobs)
    findings += tenants.judge_pools(pools)
    findings += tenants.judge_leases(leases, config.lease.ttl)
    facts["pools"] = [dataclasses.asdict(pool) for pool in pools]
    facts["leases"] = [dataclasses.asdict(lease) for lease in leases]
    return findings, facts


_Looked = tuple[list[Finding], tenants.Jobs | None, tuple[tenants.Lease, ...], dict[str, Any]]


def _look_at_folder(config: PoolConfig, pools: tuple[tenants.Pool, ...]) -> _Looked:
    from workerpool.cli.diagnosis import folder
    from workerpool.cli.diagnosis.look_folder import count_jobs, look_at_folder

    root = store_folder(config) or ""
    seen = look_at_folder(config, root, pool_runs=any(pool.alive for pool in pools))
    findings, facts = list(folder.judge(seen)), {"folder": dataclasses.asdict(seen)}
    if not os.path.isdir(root):
        return findings, None, (), facts
    jobs = None
    try:
        jobs = count_jobs(root, _names(config))
    except OSError as failure:
        findings.append(_unreadable(failure, root))
    return findings, jobs, look_at_lease_files(root), facts


def _look_at_sqlite(config: PoolConfig, pools: tuple[tenants.Pool, ...]) -> _Looked:
    _check_installed("sqlalchemy", "sql")
    from workerpool.cli.diagnosis import sqlite
    from workerpool.cli.diagnosis.look_sqlite import look_at_sqlite

    path = store_path(config) or ""
    leases = look_at_lease_files(os.path.realpath(os.path.dirname(path)))
    alone = not leases and not any(pool.alive for pool in pools)
    seen, jobs = look_at_sqlite(config, path, alone=alone)
    return list(sqlite.judge(seen)), jobs, leases, {"sqlite": dataclasses.asdict(seen)}


def _look_at_postgres(config: PoolConfig, pools: tuple[tenants.Pool, ...]) -> _Looked:
    _check_installed("psycopg", "postgres")
    from workerpool.cli.diagnosis import postgres
    from workerpool.cli.diagnosis.look_postgres import look_at_postgres

    try:
        seen, jobs, leases = look_at_postgres(config, pool_runs=any(pool.alive for pool in pools))
    except ValueError as failure:
        raise BackendUnavailable(str(failure)) from failure
    return list(postgres.judge(seen)), jobs, leases, {"postgresql": dataclasses.asdict(seen)}


def _check_installed(module: str, extra: str) -> None:
    import importlib.util

    for name in ("sqlalchemy", module):
        if importlib.util.find_spec(name) is None:
            raise BackendUnavailable(
                f"this store needs {name}, which is not installed: pip install workerpool[{extra}]"
            )


def _names(config: PoolConfig) -> tuple[str, ...]:
    return tuple(stream.name for stream in config.streams)


# -- saying it


def _report(config: PoolConfig, findings: list[Finding], facts: Mapping[str, Any]) -> dict[str, Any]:
    counts = Counter(each.level for each in findings)
    return {
        "store": words.masked(config.store.url),
        "config": config.path,
        "ok": not counts[Level.ERROR],
        "errors": counts[Level.ERROR],
        "warnings": counts[Level.WARNING],
        "notes": counts[Level.NOTE],
        "findings": [each.to_dict() for each in findings],
        "facts": _plain(facts),
    }


def _plain(value: Any) -> Any:
    """The same as JSON has it."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value.value if isinstance(value, enum.Enum) else value


def _say(config: PoolConfig, findings: list[Finding]) -> None:
    for each in findings:
        for line in _lines(each):
            click.echo(line)
    click.echo(f"{words.printable(words.masked(config.store.url))}: {_summary(findings)}")


def _lines(finding: Finding) -> Iterator[str]:
    level = click.style(f"{finding.level.value:<8}", fg=_COLORS[finding.level])
    yield f"{level} {finding.topic:<11} {words.printable(finding.found)}"
    for text in (_sentence(finding.means), f"To do: {words.printable(finding.to_do)}" if finding.to_do else ""):
        if text:
            yield from _WRAPPER.wrap(text)


def _sentence(text: str) -> str:
    shown = words.printable(text)
    return f"{shown[:1].upper()}{shown[1:]}." if shown else ""


def _summary(findings: list[Finding]) -> str:
    counts = Counter(each.level for each in findings)
    bad = [
        words.number(counts[level], level.value) for level in (Level.ERROR, Level.WARNING, Level.NOTE) if counts[level]
    ]
    return ", ".join(bad) if bad else "nothing is wrong"
