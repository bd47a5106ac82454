"""`systemd`: the unit file of this configuration's pool, for `systemctl` to start it at boot and watch it."""

from __future__ import annotations

import os
import pwd
import shutil
import sys

import click

from workerpool.cli.main import USAGE, Refusal
from workerpool.cli.options import Source, with_source
from workerpool.config import PoolConfig
from workerpool.locations import store_path
from workerpool.systemd import unit_file


@click.command("systemd")
@with_source
@click.option("--user", metavar="NAME", help="Who runs the pool (default: the owner of the store, else you).")
def systemd_command(source: Source, user: str | None) -> None:
    """Print a unit file for this configuration's pool.

    \b
      workerpool systemd config.toml | sudo tee /etc/systemd/system/NAME.service
      sudo systemctl daemon-reload && sudo systemctl enable --now NAME

    The unit restarts the pool when it fails or gives no sign of life; `systemctl reload` reads the configuration anew.
    """
    if source.path is None:
        raise Refusal("a unit needs a configuration: `workerpool init DIR` writes one", USAGE)
    config = source.load()
    unit = unit_file(
        _command(),
        os.path.abspath(source.path),
        user=user or _owner(config),
        hard_seconds=config.shutdown.hard,
    )
    click.echo(unit, nl=False)


def _command() -> str:
    """The absolute path of the command: as it was called, else beside the interpreter, else the first in PATH."""
    beside = os.path.join(os.path.dirname(sys.executable), "workerpool")
    called = sys.argv[0] if os.path.basename(sys.argv[0]) == "workerpool" else ""
    for candidate in (called, beside, "workerpool"):
        if candidate and (found := shutil.which(candidate)):
            return os.path.abspath(found)
    raise Refusal("the command workerpool is not installed where a unit could start it", USAGE)


def _owner(config: PoolConfig) -> str:
    """The user of the store: one queue belongs to one user id."""
    path = store_path(config)
    uid = os.stat(path).st_uid if path is not None and os.path.exists(path) else os.getuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # a uid without a name: systemd takes the number
        return str(uid)
