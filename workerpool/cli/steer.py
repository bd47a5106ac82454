"""`stop` and `reload`: a signal to the running pool of this configuration, found by its board, never to a stranger."""

from __future__ import annotations

import os
import signal
import time

import click
import psutil

from workerpool.cli.check import bad_imports
from workerpool.cli.main import FAILED, USAGE, Refusal
from workerpool.cli.options import Source, with_source
from workerpool.cli.pools import Pool, is_stopped, pools_elsewhere, read_pools
from workerpool.cli.telling import tell_deed
from workerpool.config import PoolConfig
from workerpool.locations import board_directory
from workerpool.process import NOT_THERE, kill_process

_PATIENCE_SECONDS = 5.0


@click.command("stop")
@with_source
@click.option("--now", is_flag=True, help="Kill the workers at once; what they were doing runs again.")
def stop_command(source: Source, now: bool) -> None:
    """Stop this configuration's running pool.

    What runs may finish ([shutdown] soft and hard), what was not started is given back. Returns at once.
    Exit code 1 when no pool runs.
    """
    config = source.load_store()
    for pool in running_pools(config):
        if now:
            _interrupt_twice(pool, config)
            tell_deed(f"killing the workers of pool {pool.header.pid}: their jobs will run again")
        else:
            _signal(pool, signal.SIGTERM)
            tell_deed(f"pool {pool.header.pid} is stopping: what runs may finish")


@click.command("reload")
@with_source
def reload_command(source: Source) -> None:
    """Have this configuration's running pool read it anew.

    Workers are replaced one by one. The handlers are imported here first: with a bad configuration, or with one that
    does not import, the pool is not touched, and the exit code is 2; it is 1 when no pool runs.
    """
    config = source.load()
    pools = running_pools(config)
    for pool in pools:
        if _has_terminal(pool.header.pid):
            raise Refusal(
                f"pool {pool.header.pid} was started at a terminal, where the signal to reload ends it: "
                "stop it and start it again",
                FAILED,
            )
    problems = [finding.text for finding in bad_imports(config)]
    if problems:
        raise Refusal("\n".join(["not reloaded, the pool goes on as it is:", *problems]), USAGE)
    for pool in pools:
        _signal(pool, signal.SIGHUP)
        tell_deed(f"pool {pool.header.pid} reads its configuration anew")


def running_pools(config: PoolConfig) -> list[Pool]:
    """The living pools of this configuration; where none was started from its file, those of its store.

    Where none works this store, those of the configuration whose store was moved away. Raises `Refusal` when there is
    none.
    """
    alive = _living(config)
    if not alive:
        raise Refusal("no pool runs here", FAILED)
    return [pool for pool in alive if pool.header.config == config.path] or alive


def _living(config: PoolConfig) -> list[Pool]:
    directory = board_directory(config)
    here = [pool for pool in read_pools(directory) if pool.alive]
    return here or [pool for pool, _ in pools_elsewhere(directory, config.path)]


def _signal(pool: Pool, number: int) -> None:
    """Send it; raises `Refusal` when the pool is gone, or is stopped: then it hears it only once it goes on."""
    _refuse_stopped(pool)
    if not kill_process(pool.header.pid, pool.header.start, number):
        raise Refusal(f"pool {pool.header.pid} has just ended, or is another user's", FAILED)


def _refuse_stopped(pool: Pool) -> None:
    pid = pool.header.pid
    if is_stopped(pid):
        raise Refusal(
            f"pool {pid} is stopped itself (SIGSTOP or a debugger) and takes no signal: "
            f"`kill -CONT {pid}` lets it go on; `kill -KILL {pid}` ends it, and its streams with it",
            FAILED,
        )


def _interrupt_twice(pool: Pool, config: PoolConfig) -> None:
    """The second interrupt counts only when the first was taken: it is waited for on the board."""
    if _state(pool, config) != "stopping":
        _signal(pool, signal.SIGINT)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while _state(pool, config) not in {"stopping", "ended", ""}:
        if time.monotonic() > deadline:
            _refuse_stopped(pool)
            pid = pool.header.pid
            raise Refusal(f"pool {pid} does not react: `kill -KILL {pid}` ends it, and its streams with it", FAILED)
        time.sleep(0.01)
    kill_process(pool.header.pid, pool.header.start, signal.SIGINT)  # it may have ended by now: so much the better


def _state(pool: Pool, config: PoolConfig) -> str:
    """What the pool's master says now; "" when it is gone."""
    for each in _living(config):
        if each.header == pool.header:
            return each.master.state if each.master else "starting"
    return ""


def _has_terminal(pid: int) -> bool:
    """Whether its standard input is a terminal's, which is what a pool looks at when it starts."""
    try:
        if psutil.Process(pid).terminal() is None:
            return False
    except NOT_THERE:
        return False
    try:
        return os.readlink(f"/proc/{pid}/fd/0").startswith(("/dev/pts/", "/dev/tty", "/dev/console"))
    except OSError:  # no such list here: a process with a terminal is taken to read from it
        return True
