"""`workerpool init DIR`: a runnable start that a newcomer reads in a minute. Nothing that is there is overwritten."""

from __future__ import annotations

import os
import shlex

import click

from queuekit import QueueKit
from workerpool.cli.main import USAGE, Refusal

CONFIG = """\
# A pool: its queue, and one stream with its handler. Every other key has its default; `workerpool check` prints them.

[store]
url = "dir:./spool"          # relative to this file

[streams.hello]
handler = "handlers:hello"   # handlers.py beside this file, its function hello
workers = 2                  # processes
retries = 3                  # runs after a failed first one, ever later; then the job ends blocked
timeout = "1m"               # a longer run is killed, and counts as failed

[retention]
done = "7d"                  # how long finished jobs are kept; blocked ones stay until you retry or prune them
"""

HANDLERS = '''\
"""What the pool does with jobs: one function per stream, named in config.toml."""

from queuekit import Job
from workerpool import JobContext


def hello(job: Job, ctx: JobContext) -> None:
    """Returning ends the job as done; raising is a failed run, which is tried again later.

    A job may run a second time after a crash: write handlers so that this does no harm.
    """
    ctx.logger.info("hello, %s", job.payload.decode())
'''


@click.command("init")
@click.argument("directory", metavar="DIR")
def init_command(directory: str) -> None:
    """Make a runnable start in DIR: config.toml, handlers.py and the queue's folder spool.

    DIR is made when it is not there. Nothing is overwritten: where one of the files exists, nothing is written.
    """
    config, handlers = (os.path.join(directory, name) for name in ("config.toml", "handlers.py"))
    present = [path for path in (config, handlers) if os.path.lexists(path)]
    if present:
        raise Refusal(f"{' and '.join(present)} exist{'s' * (len(present) == 1)} already: nothing was written", USAGE)
    try:
        os.makedirs(directory, mode=0o755, exist_ok=True)
        _write_new(handlers, HANDLERS)
        _write_new(config, CONFIG)
    except OSError as error:
        raise Refusal(f"cannot write {error.filename or directory}: {error.strerror}", USAGE) from error
    QueueKit(os.path.join(directory, "spool")).close()
    click.echo(f"Wrote {config} and {handlers}. Next:\n")
    for line in next_steps(directory):
        click.echo(f"  {line}")


def next_steps(directory: str) -> list[str]:
    """What to type after an `init`, in a shell."""
    enter = [] if os.path.samefile(directory, os.curdir) else [f"cd {shlex.quote(directory)}"]
    return [
        *enter,
        "workerpool check",
        "workerpool send hello world",
        "workerpool run --burst",
        "workerpool jobs --state done",
    ]


def _write_new(path: str, text: str) -> None:
    """Write a file that must not be there; readable by others, writable by its owner only, under any umask."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    with open(fd, "w", encoding="utf-8") as file:
        file.write(text)
