"""Who works a store: its jobs, pools and leases as facts, and what they mean. No I/O."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from queuekit.locks import Life
from workerpool.cli import words
from workerpool.cli.diagnosis.finding import Finding, note, ok, warning

_AHEAD_SECONDS = 5.0
_SHOWN = 8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """How many there are. `at_least`: counting was broken off, so there are more; `streams`: those that have jobs which
    have not ended, as far as is known; `configured`: those of the configuration."""

    streams: tuple[str, ...]
    configured: tuple[str, ...]
    pending: int
    claimed: int
    later: int
    ended: int
    at_least: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A pool that has a board here. `in_order`: it has ended by itself."""

    pid: int
    alive: bool
    in_order: bool
    config: str
    streams: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """`stream`: as the lease names it; `age`: seconds since it was renewed, negative when that is still to come, None
    when it cannot be told; `shared`: one of many consumers."""

    stream: str
    owner: str
    pid: int | None
    age: float | None
    life: Life
    shared: bool = False


def judge_jobs(jobs: Jobs) -> Iterator[Finding]:
    """How full it is, and whether jobs wait that nobody here works."""
    streams, more = words.number(len(jobs.streams), "stream"), "at least " if jobs.at_least else ""
    counts = f"{jobs.pending:,} pending, {jobs.claimed:,} claimed, {jobs.later:,} put off, {jobs.ended:,} ended"
    yield ok("jobs", f"{streams} with jobs to do: {more}{counts}")
    strangers = [name for name in jobs.streams if name not in jobs.configured]
    if jobs.configured and strangers:
        named = _listed(strangers)
        yield note("jobs", f"the configuration does not name {named}", "this pool does not work them")


def judge_pools(pools: Sequence[Pool]) -> Iterator[Finding]:
    """Who runs."""
    living = [pool for pool in pools if pool.alive]
    for pool in living:
        by = f" by {pool.config}" if pool.config else ""
        yield ok("pool", f"pool {pool.pid} runs here{by}: {_listed(pool.streams) or 'no stream yet'}")
    if not living:
        yield ok("pool", "no pool runs here")
    for pool in pools:
        if not pool.alive and not pool.in_order and not living:
            yield note(
                "pool",
                f"pool {pool.pid} ended without clearing up",
                "what it had claimed is waiting for the next pool, and runs again then",
                "`workerpool run`",
            )


def judge_leases(leases: Sequence[Lease], ttl: float) -> Iterator[Finding]:
    """Who holds which stream. `ttl`: seconds."""
    if not leases:
        yield ok("lease", "no stream is held")
    for lease in leases:
        yield _judge_lease(lease, ttl)


def _judge_lease(lease: Lease, ttl: float) -> Finding:
    who = f"pid {lease.pid}" if lease.pid is not None else words.printable(lease.owner)
    seen = "" if lease.age is None else f", renewed {words.duration(lease.age)} ago"
    found = f"stream {words.printable(lease.stream)} is {'shared' if lease.shared else 'held'} by {who}{seen}"
    if lease.age is not None and lease.age < -_AHEAD_SECONDS:
        found = found.replace(seen, f", renewed {words.duration(-lease.age)} in the future")
        return warning(
            "lease", found, "a clock was set back, or another machine's is ahead", "have the clocks kept by NTP"
        )
    silent = lease.age is not None and lease.age > ttl
    if lease.life is Life.DEAD:
        return note("lease", f"{found}, who is dead", "the next pool takes it over at once")
    if lease.life is Life.HELD and silent:
        return warning(
            "lease", f"{found}; it lives", "it is stopped or stuck", "`workerpool status` tells what to type"
        )
    if lease.life is Life.HELD:
        return ok("lease", f"{found}; it lives")
    if silent:
        return note("lease", f"{found}", "its holder was silent for a ttl: whoever wants it takes it")
    return note("lease", f"{found}", "of a program that shows no sign of life here, perhaps on another machine")


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(words.printable(name) for name in names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
