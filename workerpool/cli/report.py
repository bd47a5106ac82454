"""What `status` tells, gathered into plain values: for the screen and for `--json`, whose keys are these.

Counts of jobs come from the store, everything about processes from the boards. In flight are the jobs that are claimed;
of these run the ones that a worker has begun.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping
from typing import Any

import psutil

from queuekit import BackendUnavailable, QueueKit
from queuekit.clock import now_ms
from queuekit.transfer import unfinished
from workerpool import pauses
from workerpool.board import RowView
from workerpool.cli import words
from workerpool.cli.leases import Holder, holder_of, stopped_in_lock
from workerpool.cli.options import where_option
from workerpool.cli.pools import (
    Pool,
    StreamRows,
    about_elsewhere,
    is_stopped,
    pools_elsewhere,
    read_pools,
    running_for,
)
from workerpool.config import PoolConfig
from workerpool.locations import board_directory, store_folder

Facts = dict[str, Any]
_RECORDS_COUNTED = 100_000


def gather(config: PoolConfig, queue: QueueKit, blocked: Mapping[str, int] | None = None) -> Facts:
    """The status of a store and its pools. `blocked`: what `count_blocked` has said lately, where it is known.

    `ok`: no stream is failing or in trouble, and nothing is held up by a process that is stopped or stuck.
    Raises `BackendUnavailable` when the store cannot be read.
    """
    pools = read_pools(board_directory(config))
    blocked = count_blocked(queue) if blocked is None else blocked
    configured = [stream.name for stream in config.streams]
    others = queue.backend.streams() | _on_boards(pools) | blocked.keys()
    named = [*configured, *sorted(others - {*configured, ""})]
    root = store_folder(config)
    streams = [
        _stream(name, queue, pools, root, known=name in configured)
        | {"blocked": blocked.get(name, 0)}
        | _pause(config, name)
        | _stuck(name, pools, config)
        for name in named
    ]
    for stream in streams:
        _judge_stuck(stream, config.lease.ttl)
    told = [_pool(pool) for pool in pools]
    return {
        "ok": not any(map(_is_held_up, streams)) and not any(pool["stopped"] for pool in told),
        "store": words.masked(config.store.url),
        "config": config.path,
        "running": any(pool.alive for pool in pools),
        "pools": told,
        "streams": streams,
        "warnings": [*map(_about_pool, filter(_is_odd, told)), *_warnings(config, queue, streams, pools)],
    }


def what_holds_up(name: str, config: PoolConfig, queue: QueueKit, pools: list[Pool]) -> list[str]:
    """What `status` says of why a stream does not go on, with what to type, but for a pause; [] when it does.

    Raises `BackendUnavailable` when the store cannot be read.
    """
    stream = _stream(name, queue, pools, store_folder(config), known=True) | _stuck(name, pools, config)
    _judge_stuck(stream, config.lease.ttl)
    return [text.removeprefix(f"stream {name}: ") for text in _about_hindrances(stream, config)]


def _judge_stuck(stream: Facts, ttl: float) -> None:
    stream["stuck"] = stream["stuck"] or _is_late(stream["lease"], ttl)
    if stream["stuck"] and stream["health"] in {"starting", "running", "in trouble"}:
        stream["health"] = "stuck"


def count_blocked(queue: QueueKit) -> dict[str, int]:
    """How many jobs of each stream have ended blocked and are kept: the last 100,000 that ended are looked at.

    Raises `BackendUnavailable` when the store cannot be read.
    """
    return queue.backend.blocked_counts(at_most=_RECORDS_COUNTED)


def _is_held_up(stream: Facts) -> bool:
    stopped = any(worker["state"] == "stopped" for worker in stream["workers"])
    return bool(stream["health"] in {"failing", "in trouble"} or stream["stuck"] or stream["stopped_pid"] or stopped)


def _on_boards(pools: list[Pool]) -> set[str]:
    return {stream.row.stream for pool in pools if pool.alive for stream in pool.streams}


# -- pools


def _pool(pool: Pool) -> Facts:
    seconds = max(0.0, (now_ms() - pool.header.created_ms) / 1000)
    return {
        "pid": pool.header.pid,
        "alive": pool.alive,
        "state": (pool.master.state if pool.master else "starting") if pool.alive else "dead",
        "stopped": pool.alive and is_stopped(pool.header.pid),
        "lost_board": pool.lost,
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
        "claimed": tally.in_flight,
        "running": _running(name, pools, holder, tally.in_flight),
        "retrying": tally.retrying,
        "scheduled": tally.scheduled,
        "next_retry_ms": tally.next_retry_ms,
        "lease": _lease(name, pools, holder, queue.backend.sharers(name)),
        "stopped_pid": stopped_in_lock(root, name) if root else None,
    } | (_process(*shown) if shown else _no_process(pools))


def _running(name: str, pools: list[Pool], holder: Holder | None, claimed: int) -> int:
    """How many jobs workers have begun; of a holder on no board, who runs what it has claimed, all of these."""
    rows = [stream for pool in pools if (stream := pool.stream(name)) is not None]
    if holder is not None and holder.is_valid and all(each.row.name != holder.owner for each in rows):
        return claimed
    workers = (row for each in rows for row in each.workers if row.job and row.owner_is_running())
    return sum(max(1, row.batch) for row in workers)


def _shown(name: str, pools: list[Pool], holder: Holder | None) -> tuple[Pool, StreamRows] | None:
    """The process that a stream is told by: the lease's holder, else a living one, else the one that had it last."""
    found = [(pool, stream) for pool in pools if (stream := pool.stream(name)) is not None]
    living = [each for each in found if each[0].alive]
    held = [each for each in living if holder is not None and each[1].row.name == holder.owner]
    last = sorted(found, key=lambda each: -each[1].row.held_ms)
    return next(iter(held or living or last), None)


def _pause(config: PoolConfig, name: str) -> Facts:
    try:
        found = pauses.find(board_directory(config), name)
    except OSError as error:
        raise BackendUnavailable(f"cannot tell whether {name} is paused: {error.strerror}") from error
    return {"paused_since_ms": found.since_ms if found else None, "paused_by": (found.user or None) if found else None}


def _process(pool: Pool, stream: StreamRows) -> Facts:
    row = stream.row
    in_trouble = bool(row.trouble) and pool.alive and stream.alive
    seconds = max(1.0, (now_ms() - pool.header.created_ms) / 1000)
    ended = row.jobs_done + row.jobs_blocked
    return {
        "health": _health(stream, in_trouble=in_trouble) if pool.alive else "stopped",
        "error": stream.trouble if pool.alive else row.error,
        "cannot_load": pool.alive and stream.cannot_load,
        "trouble": row.trouble if in_trouble else None,
        "trouble_since_ms": row.trouble_ms if in_trouble else None,
        "pid": row.pid if pool.alive and stream.alive else None,
        "restarts": row.restarts,
        "done": row.jobs_done,
        "blocked_by_this_run": row.jobs_blocked,
        "retried": row.jobs_retried,
        "crashes": row.crashes,
        "jobs_per_second": round(ended / seconds, 3) if pool.alive else None,
        "workers": [_worker(each, pool) for each in stream.workers] if pool.alive else [],
    }


def _health(stream: StreamRows, *, in_trouble: bool) -> str:
    health = stream.health
    return "in trouble" if in_trouble and health not in {"failing", "ended"} else health


def _no_process(pools: list[Pool]) -> Facts:
    return {
        "health": "not worked" if any(pool.alive for pool in pools) else "stopped",
        "error": "",
        "cannot_load": False,
        "trouble": None,
        "trouble_since_ms": None,
        "pid": None,
        "restarts": 0,
        "done": 0,
        "blocked_by_this_run": 0,
        "retried": 0,
        "crashes": 0,
        "jobs_per_second": None,
        "workers": [],
    }


def _worker(row: RowView, pool: Pool) -> Facts:
    busy = bool(row.job)
    state = _state_of(row) if pool.alive else row.state
    return {
        "name": row.name,
        "pid": row.pid,
        "state": state,
        "job": row.job or None,
        "jobs_together": row.batch if busy else 0,
        "since_ms": row.since_ms if busy else None,
        "seconds": running_for(row, pool.same_boot) if busy and pool.alive and state != "dead" else None,
        "progress": [row.progress_done, row.progress_total] if busy and row.progress_total else None,
        "restarts": row.restarts,
        "error": row.error,
    }


def _state_of(row: RowView) -> str:
    if not row.owner_is_running():
        return "dead"
    return "stopped" if is_stopped(row.pid) else row.state


# -- leases


def _lease(name: str, pools: list[Pool], holder: Holder | None, sharers: Mapping[str, float]) -> Facts:
    """Who has the stream. `state`: held, fenced, free; left: its holder is dead, or was silent for too long.

    `sharers`: where many share it, each one's owner, seconds since its last heartbeat, whether it is on a board here.
    """
    rows = [stream for pool in pools if pool.alive and (stream := pool.stream(name)) is not None]
    waiting = [stream.row.pid for stream in rows if stream.row.lease == "standby"]
    mine = next((stream for stream in rows if _holds(stream, holder)), None)
    state = "free"
    if mine is not None:
        state = mine.row.lease or "held"
    elif holder is not None:
        state = "held" if holder.is_valid else "left"
    elif sharers:
        state = "held"
    here = {stream.row.name for stream in rows}
    return {
        "state": state,
        "owner": holder.owner if holder else None,
        "pid": holder.pid if holder else mine.row.pid if mine else None,
        "age": holder.age if holder else None,
        "on_board": mine is not None,
        "standby_pids": waiting,
        "sharers": [{"owner": owner, "age": age, "on_board": owner in here} for owner, age in sharers.items()],
    }


def _holds(stream: StreamRows, holder: Holder | None) -> bool:
    """Whether this process has its stream; where many share one and no holder is named, its own word counts."""
    return stream.row.name == holder.owner if holder is not None else stream.row.lease in {"held", "fenced"}


# -- processes that do not go on


def _stuck(name: str, pools: list[Pool], config: PoolConfig) -> Facts:
    """`stuck`: the pid of a pool's process of this stream that was stopped, or has been silent for a ttl, or None.

    A process that runs handlers inline is silent here while it does: only its lease tells.
    """
    stream, ttl = config.stream(name), config.lease.ttl
    inline = stream is not None and stream.workers == 0
    for pool in pools if not inline else ():
        rows = pool.stream(name) if pool.alive and pool.same_boot else None
        if rows is not None and rows.alive and rows.row.heartbeat_ns:
            silent = (time.monotonic_ns() - rows.row.heartbeat_ns) / 1e9
            if silent > ttl or is_stopped(rows.row.pid):
                return {"stuck": rows.row.pid, "silent": silent}
    return {"stuck": None, "silent": None}


def _is_late(lease: Mapping[str, Any], ttl: float) -> int | None:
    """The pid of a lease's living holder when its last heartbeat is over a ttl old, or None."""
    late = lease["state"] == "held" and (lease["age"] or 0) > ttl
    return lease["pid"] if late and lease["pid"] is not None and psutil.pid_exists(lease["pid"]) else None


def _about_stuck(stream: Mapping[str, Any]) -> str:
    pid = stream["stuck"]
    if is_stopped(pid):
        return f"stream {stream['name']}: its process {pid} is stopped; `kill -CONT {pid}` lets it go on"
    ages = [age for age in (stream["silent"], stream["lease"]["age"]) if age is not None]
    silent = f" for {words.duration(max(ages))}" if ages else ""
    text = f"stream {stream['name']}: its process is stuck: pid {pid} gave no sign of life{silent}"
    is_of_a_pool = stream["silent"] is not None or stream["lease"]["on_board"]
    return f"{text}; `kill -KILL {pid}` has another one take over" if is_of_a_pool else text


# -- what a person should know


def _is_odd(pool: Mapping[str, Any]) -> bool:
    return bool(pool["stopped"] or pool["lost_board"])


def _about_pool(pool: Mapping[str, Any]) -> str:
    pid = pool["pid"]
    if pool["stopped"]:
        return (
            f"pool {pid}: its master is stopped and takes no signal, its streams go on; "
            f"`kill -CONT {pid}` lets it go on, `kill -KILL {pid}` ends the pool"
        )
    return f"pool {pid}: its board was removed; it works, and can be steered, and a restart makes another one"


def _warnings(config: PoolConfig, queue: QueueKit, streams: list[Facts], pools: list[Pool]) -> list[str]:
    said = []
    unknown = [stream["name"] for stream in streams if not stream["configured"] and _waits(stream)]
    if config.streams and unknown:
        said.append(f"jobs of streams that the configuration does not name: {', '.join(unknown)}")
    if half_moved := unfinished(queue.backend):
        said.append(words.printable(half_moved))
    said += [text for stream in streams for text in _about_stream(stream, config)]
    here = any(pool.alive for pool in pools)
    elsewhere = () if here else pools_elsewhere(board_directory(config), config.path)
    said += [about_elsewhere(pool, folder) for pool, folder in elsewhere]
    dead = [pool for pool in pools if not pool.alive and not _ended_in_order(pool) and not _is_over(pool, pools)]
    in_flight = _in_flight(queue) if any(row.job for pool in dead for row in pool.workers()) else set()
    running = {row.job for pool in pools if pool.alive for row in pool.workers()}
    taker = f"`workerpool run{where_option(config)}`" if config.path and not here else "a pool that works its streams"
    step = f"; {taker} takes over what it left"
    return said + [_about_dead(pool, in_flight - running, step) for pool in dead]


def _is_over(pool: Pool, pools: list[Pool]) -> bool:
    """Whether nothing is left of a dead pool: nobody of it runs, and each stream that it had was taken over since."""
    return not pool.survivors and all(
        any(other.row.held_ms > stream.row.held_ms for each in pools if (other := each.stream(stream.row.stream)))
        for stream in pool.streams
    )


def _about_stream(stream: Mapping[str, Any], config: PoolConfig) -> Iterator[str]:
    name, where = stream["name"], where_option(config)
    if stream["paused_since_ms"] is not None:
        yield _about_paused(stream, where)
    yield from _about_hindrances(stream, config)
    if stream["blocked"]:
        count = words.number(stream["blocked"], "job")
        yield (
            f"stream {name}: {count} ended blocked or cancelled; `workerpool jobs --state blocked{where}` lists them, "
            f"`workerpool retry --all-blocked --stream {shlex.quote(name)}{where}` runs all but cancelled ones again"
        )


def _about_hindrances(stream: Mapping[str, Any], config: PoolConfig) -> Iterator[str]:
    """What keeps a stream from its work against everybody's will, and what to type."""
    name, lease, pid = stream["name"], stream["lease"], stream["stopped_pid"]
    if stream["trouble"]:
        since = words.duration(max(0, now_ms() - stream["trouble_since_ms"]) / 1000)
        yield f"stream {name}: {stream['trouble']}, since {since}"
    if pid:
        yield (
            f"stream {name}: process {pid} is stopped inside its lock; nothing moves until it goes on "
            f"(`kill -CONT {pid}`) or ends"
        )
    if stream["stuck"]:
        yield _about_stuck(stream)
    elif lease["state"] == "held" and not lease["on_board"] and (lease["age"] or 0) > config.lease.ttl:
        yield f"stream {name}: its lease was last renewed {words.duration(lease['age'])} ago"
    for worker in stream["workers"]:
        if worker["state"] == "stopped":
            yield f"stream {name}: {worker['name']} is stopped; `kill -CONT {worker['pid']}` lets it go on"


def _in_flight(queue: QueueKit) -> set[str]:
    return {str(job.id) for job in queue.in_flight()}


def _about_paused(stream: Mapping[str, Any], where: str) -> str:
    name, by = stream["name"], f" by {stream['paused_by']}" if stream["paused_by"] else ""
    since = words.since(stream["paused_since_ms"], now_ms())
    return f"stream {name}: paused since {since}{by}; `workerpool resume {name}{where}` ends it"


def _waits(stream: Mapping[str, Any]) -> bool:
    return any(stream[state] for state in words.OPEN_STATES)


def _ended_in_order(pool: Pool) -> bool:
    return pool.master is not None and pool.master.state == "ended"


def _about_dead(pool: Pool, left: set[str], step: str) -> str:
    """What became of a pool that did not end in order.

    `left`: the jobs in flight that nobody is known to run; `step`: what to do about it.
    """
    head = f"pool {pool.header.pid}"
    survivors = len(pool.survivors)
    if survivors:
        stay = "es of it still run and end" if survivors > 1 else " of it still runs and ends"
        return f"{head} has lost its master; {survivors} process{stay} when what it does is done"
    again = sum(row.job in left for row in pool.workers())
    text = f"{head} ended without clearing up"
    text += f"; it was running {words.number(again, 'job')}, which will run again" if again else ""
    return text + step


def rates(before: Facts, after: Facts, seconds: float) -> dict[str, float]:
    """Jobs ended per second of each stream between two reports that are `seconds` apart."""
    earlier, ended = _ended(before), _ended(after)
    return {name: max(0.0, (count - earlier.get(name, count)) / seconds) for name, count in ended.items()}


def _ended(facts: Facts) -> dict[str, int]:
    return {stream["name"]: stream["done"] + stream["blocked_by_this_run"] for stream in facts["streams"]}
