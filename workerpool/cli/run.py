"""`workerpool run`: the pool in the foreground. The work is `workerpool.assemble.run`'s."""

from __future__ import annotations

import os
import sys

import click

from workerpool.cli.interrupt import end_at_an_interrupt
from workerpool.cli.main import USAGE, ClosedOutput, Refusal
from workerpool.cli.options import Source, complete_streams, with_source


@click.command("run")
@with_source
@click.option("--only", multiple=True, metavar="STREAM", shell_complete=complete_streams, help="Work only this stream.")
@click.option("--burst", is_flag=True, help="End when nothing is pending, running or waiting for a retry.")
@click.option("--no-standby", is_flag=True, help="End with 4, instead of waiting, where another pool works a stream.")
@click.pass_context
def run_command(ctx: click.Context, source: Source, only: tuple[str, ...], burst: bool, no_standby: bool) -> None:
    """Run the pool in the foreground.

    TERM or INT (Ctrl-C) stops it: what runs may finish, what was not started is given back; a second INT kills the
    workers, whose jobs will run again; a third kills everything. HUP reads the configuration anew; started at a
    terminal, HUP ends it like TERM.

    \b
    Exit codes:
      0 ended in order            4 another pool runs here, with --no-standby
      1 failed at run time        5 stopped with jobs given up; they will run again
      2 configuration, or no      6 --burst ended with jobs that this run blocked
        handler could be imported
      3 the store cannot be used
    """
    if source.path is None:
        raise Refusal("run needs a configuration: `workerpool init DIR` writes one", USAGE)
    end_at_an_interrupt()  # until the master listens
    config = source.load()
    from workerpool.assemble import run
    from workerpool.process.title import set_title

    set_title("master")
    if isinstance(sys.stdout, ClosedOutput):  # as a daemon is started; a handler that prints is not to fail for that
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  open for as long as the process
    ctx.exit(run(config, reload=source.load, burst=burst, only=only, standby=not no_standby))
