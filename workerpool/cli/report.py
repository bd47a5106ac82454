"""What `status` tells, gathered into plain values: for the screen and for `--json`, whose keys are these.

Counts of waiting jobs come from the store, everything about processes from the boards.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import psutil

from queuekit import BackendUnavailable, QueueKit
from queuekit.clock import now_ms
from workerpool import pauses
from workerpool.board import RowView
from workerpool.cli import words
from workerpool.cli.leases import Holder, holder_of, stopped_in_lock
from workerpool.cli.pools import Pool, StreamRows, read_pools, running_for
from workerpool.config import PoolConfig
from workerpool.locations import board_directory, store_folder

Facts = dict[str, Any]


def gather(config: PoolConfig, queue: QueueKit) -> Facts:
    """The status of a store and its pools.

    `ok`: no stream is failing, and none is held up by a process that is stopped or stuck.
    Raises `BackendUnavailable` when the store cannot be read.
    """
    pools = read_pools(board_directory(config))
    configured = [stream.name for stream in config.streams]
    named = [*configured, *sorted((queue.backend.streams() | _on_boards(pools)) - set(configured))]
    root = store_folder(config)
    ttl = config.lease.ttl
    streams = [
        _stream(name, queue, pools, root, known=name in configured) | _pause(config, name) | _stuck(name, pools, config)
        for name in named
    ]
    for stream in streams:
        stream["stuck"] = stream["stuck"] or _is_late(stream["lease"], ttl)
    return {
        "ok": not any(stream["health"] == "failing" or stream["stuck"] or stream["stopped_pid"] for stream in streams),
        "store": words.masked(config.store.url),
        "config": config.path,
        "running": any(pool.alive for pool in pools),
        "pools": [_pool(pool) for pool in pools],
        "streams": streams,
        "warnings": list(_warnings(config, queue, streams, pools)),
    }


def _on_boards(pools: list[Pool]) -> set[str]:
    return {stream.row.stream for pool in pools if pool.alive for stream in pool.streams}


# -- pools


def _pool(pool: Pool) -> Facts:
    seconds = max(0.0, (now_ms() - pool.header.created_ms) / 1000)
    return {
        "pid": pool.header.pid,
        "alive": pool.alive,
        "state": (pool.master.state if pool.master else "starting") if pool.alive else "dead",
        "config": pool.header.config or None,
        "started_ms": pool.header.created_ms,
        "seconds": seconds if pool.alive else None,
        "was_running": [] if pool.alive else [_worker(row, pool) for row in pool.workers() if row.job],
    }


# -- streams


def _stream(name: str, queue: QueueKit, pools: list[Pool], root: str | None, *, known: bool) -> Facts:
    tally = queue.tally(name)
    holder = holder_of(queue, root, name)
    shown = _shown(name, pools, holder)
    return {
        "name": name,
        "configured": known,
        "pending": tally.pending,
        "running": tally.in_flight,
        "retrying": tally.retrying,
        "scheduled": tally.scheduled,
        "next_retry_ms": tally.next_retry_ms,
        "lease": _lease(name, pools, holder),
        "stopped_pid": stopped_in_lock(root, name) if root else None,
    } | (_process(*shown) if shown else _no_process(pools))


def _shown(name: str, pools: list[Pool], holder: Holder | None) -> tuple[Pool, StreamRows] | None:
    """The process that a stream is told by: the lease's holder, else a living one, else the last dead one's."""
    found = [(pool, stream) for pool in pools if (stream := pool.stream(name)) is not None]
    living = [each for each in found if each[0].alive]
    held = [each for each in living if holder is not None and each[1].row.name == holder.owner]
    return next(iter(held or living or found), None)


def _pause(config: PoolConfig, name: str) -> Facts:
    try:
        found = pauses.find(board_directory(config), name)
    except OSError as error:
        raise BackendUnavailable(f"cannot tell whether {name} is paused: {error.strerror}") from error
    return {"paused_since_ms": found.since_ms if found else None, "paused_by": (found.user or None) if found else None}


def _process(pool: Pool, stream: StreamRows) -> Facts:
    row = stream.row
    seconds = max(1.0, (now_ms() - pool.header.created_ms) / 1000)
    ended = row.jobs_done + row.jobs_blocked
    return {
        "health": stream.health if pool.alive else "stopped",
        "error": stream.trouble if pool.alive else row.error,
        "pid": row.pid if pool.alive and stream.alive else None,
        "restarts": row.restarts,
        "done": row.jobs_done,
        "blocked": row.jobs_blocked,
        "retried": row.jobs_retried,
        "crashes": row.crashes,
        "jobs_per_second": round(ended / seconds, 3) if pool.alive else None,
        "workers": [_worker(each, pool) for each in stream.workers] if pool.alive else [],
    }


def _no_process(pools: list[Pool]) -> Facts:
    return {
        "health": "not worked" if any(pool.alive for pool in pools) else "stopped",
        "error": "",
        "pid": None,
        "restarts": 0,
        "done": 0,
        "blocked": 0,
        "retried": 0,
        "crashes": 0,
        "jobs_per_second": None,
        "workers": [],
    }


def _worker(row: RowView, pool: Pool) -> Facts:
    busy = bool(row.job)
    return {
        "name": row.name,
        "pid": row.pid,
        "state": row.state if not pool.alive or row.owner_is_running() else "dead",
        "job": row.job or None,
        "jobs_together": row.batch if busy else 0,
        "since_ms": row.since_ms if busy else None,
        "seconds": running_for(row, pool.same_boot) if busy and pool.alive else None,
        "progress": [row.progress_done, row.progress_total] if busy and row.progress_total else None,
        "restarts": row.restarts,
        "error": row.error,
    }


# -- leases


def _lease(name: str, pools: list[Pool], holder: Holder | None) -> Facts:
    """Who has the stream. `state`: held, standby (somebody waits for a holder that is on no board), fenced or free."""
    rows = [stream for pool in pools if pool.alive and (stream := pool.stream(name)) is not None]
    waiting = [stream.row.pid for stream in rows if stream.row.lease == "standby"]
    mine = next((stream for stream in rows if _holds(stream, holder)), None)
    state = "free"
    if mine is not None:
        state = mine.row.lease or "held"
    elif holder is not None:
        state = "held"
    return {
        "state": state,
        "owner": holder.owner if holder else None,
        "pid": holder.pid if holder else None,
        "age": holder.age if holder else None,
        "on_board": mine is not None,
        "standby_pids": waiting,
    }


def _holds(stream: StreamRows, holder: Holder | None) -> bool:
    """Whether this process has its stream; where many share one and no holder is named, its own word counts."""
    return stream.row.name == holder.owner if holder is not None else stream.row.lease in {"held", "fenced"}


# -- processes that do not go on


def _stuck(name: str, pools: list[Pool], config: PoolConfig) -> Facts:
    """`stuck`: the pid of a living pool's process of this stream that has given no sign of life for a ttl, or None.

    A process that runs handlers inline is silent here while it does: only its lease tells.
    """
    stream, ttl = config.stream(name), config.lease.ttl
    inline = stream is not None and stream.workers == 0
    for pool in pools if not inline else ():
        rows = pool.stream(name) if pool.alive and pool.same_boot else None
        if rows is not None and rows.alive and rows.row.heartbeat_ns:
            silent = (time.monotonic_ns() - rows.row.heartbeat_ns) / 1e9
            if silent > ttl:
                return {"stuck": rows.row.pid, "silent": silent}
    return {"stuck": None, "silent": None}


def _is_late(lease: Mapping[str, Any], ttl: float) -> int | None:
    """The pid of a lease's living holder when its last heartbeat is over a ttl old, or None."""
    late = lease["state"] == "held" and (lease["age"] or 0) > ttl
    return lease["pid"] if late and lease["pid"] is not None and psutil.pid_exists(lease["pid"]) else None


def _about_stuck(stream: Mapping[str, Any]) -> str:
    ages = [age for age in (stream["silent"], stream["lease"]["age"]) if age is not None]
    return (
        f"stream {stream['name']}: its process is stopped or stuck: pid {stream['stuck']} gave no sign of life for "
        f"{words.duration(max(ages))}"
    )


# -- what a person should know


def _warnings(config: PoolConfig, queue: QueueKit, streams: list[Facts], pools: list[Pool]) -> list[str]:
    said = []
    unknown = [stream["name"] for stream in streams if not stream["configured"] and _waits(stream)]
    if config.streams and unknown:
        said.append(f"jobs of streams that the configuration does not name: {', '.join(unknown)}")
    for stream in streams:
        if stream["paused_since_ms"] is not None:
            said.append(_about_paused(stream))
        if stream["stopped_pid"]:
            said.append(
                f"stream {stream['name']}: process {stream['stopped_pid']} is stopped inside its lock; nothing moves "
                f"until it goes on (kill -CONT {stream['stopped_pid']}) or ends"
            )
        lease = stream["lease"]
        if stream["stuck"]:
            said.append(_about_stuck(stream))
        elif lease["state"] == "held" and not lease["on_board"] and (lease["age"] or 0) > config.lease.ttl:
            said.append(f"stream {stream['name']}: its lease was last renewed {words.duration(lease['age'])} ago")
    dead = [pool for pool in pools if not pool.alive and not _ended_in_order(pool)]
    in_flight = _in_flight(queue) if any(row.job for pool in dead for row in pool.workers()) else set()
    running = {row.job for pool in pools if pool.alive for row in pool.workers()}
    return said + [_about_dead(pool, in_flight - running) for pool in dead]


def _in_flight(queue: QueueKit) -> set[str]:
    return {str(job.id) for job in queue.in_flight()}


def _about_paused(stream: Mapping[str, Any]) -> str:
    name, by = stream["name"], f" by {stream['paused_by']}" if stream["paused_by"] else ""
    since = words.since(stream["paused_since_ms"], now_ms())
    return f"stream {name}: paused since {since}{by}; `workerpool resume {name}` ends it"


def _waits(stream: Mapping[str, Any]) -> bool:
    return any(stream[state] for state in words.OPEN_STATES)


def _ended_in_order(pool: Pool) -> bool:
    return pool.master is not None and pool.master.state == "ended"


def _about_dead(pool: Pool, left: set[str]) -> str:
    """What became of a pool that did not end in order. `left`: the jobs in flight that nobody is known to run."""
    head = f"pool {pool.header.pid}"
    survivors = len(pool.survivors)
    if survivors:
        stay = "es of it still run and end" if survivors > 1 else " of it still runs and ends"
        return f"{head} has lost its master; {survivors} process{stay} when what it does is done"
    again = sum(row.job in left for row in pool.workers())
    text = f"{head} ended without clearing up"
    return f"{text}; it was running {words.number(again, 'job')}, which will run again" if again else text


def rates(before: Facts, after: Facts, seconds: float) -> dict[str, float]:
    """Jobs ended per second of each stream between two reports that are `seconds` apart."""
    earlier = {stream["name"]: stream["done"] + stream["blocked"] for stream in before["streams"]}
    ended = {stream["name"]: stream["done"] + stream["blocked"] for stream in after["streams"]}
    return {name: max(0.0, (count - earlier.get(name, count)) / seconds) for name, count in ended.items()}
