"""The command `workerpool`: its group, what every command shares about errors, and who loads what when.

Commands live in modules that are imported when they are called, so that `workerpool --help` stays fast. Mistakes of
the user and troubles of the store become one line on standard error and an exit code, never a traceback:

    1 failed at run time    2 usage, configuration, data    3 store unreachable or unwritable    130 interrupted

`run` has more; see its help.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from queuekit.errors import (
    BackendUnavailable,
    DecodingFailed,
    DirectoryCreationFailed,
    InvalidIdentifier,
    InvalidTerminalStatus,
    QueueError,
    RenameFailed,
    WatcherFailed,
    WriteFailed,
)
from workerpool.errors import ConfigError, PoolError

FAILED, USAGE, STORE, INTERRUPTED = 1, 2, 3, 130

COMMANDS = {  # name: (module below workerpool.cli, what it does)
    "init": ("init", "Make a runnable start: config.toml, handlers.py, spool."),
    "check": ("check", "Read the configuration, import the handlers, try the store."),
    "run": ("run", "Run the pool in the foreground."),
    "send": ("send", "Send a job, or a file of jobs; print the ids."),
    "status": ("status", "Show the pool and its streams on one screen."),
    "top": ("status", "The same, live."),
    "jobs": ("jobs", "List jobs."),
    "show": ("show", "Tell the whole story of a job."),
    "retry": ("act", "Make finished jobs pending again."),
    "release": ("act", "Run deferred jobs now."),
    "cancel": ("act", "End jobs that have not started, without running them."),
    "replay": ("replay", "Run the handler on a stored job here, settling nothing."),
    "prune": ("prune", "Remove the records of jobs that ended long ago."),
    "fsck": ("fsck", "Check the store, and set right what may be."),
    "migrate": ("migrate", "Move every job to another store."),
    "doctor": ("doctor", "Look at the store and the machine: what is wrong, what to type."),
    "bench": ("bench", "Measure this store, on a fresh one beside it."),
    "torture": ("torture", "Kill a handler at hundreds of points, and compare what it leaves."),
    "pause": ("pause", "Claim nothing more of a stream, until it is resumed."),
    "resume": ("pause", "Work a paused stream again."),
    "reload": ("steer", "Have this configuration's running pool read it anew."),
    "stop": ("steer", "Stop this configuration's running pool."),
    "systemd": ("systemd", "Print a unit file for this configuration's pool."),
}

_EPILOG = """\b
Completion:
  bash   eval "$(_WORKERPOOL_COMPLETE=bash_source workerpool)"
  zsh    eval "$(_WORKERPOOL_COMPLETE=zsh_source workerpool)"
  fish   _WORKERPOOL_COMPLETE=fish_source workerpool | source
"""


class Refusal(Exception):
    """What a command could not do, as one line, and the exit code that says so. Attributes: `code`."""

    def __init__(self, message: str, code: int) -> None:
        self.code = code
        super().__init__(message)


class ClosedOutput(io.TextIOWrapper):
    """Standard output where the caller has closed it: whoever writes learns that nobody can read it."""

    def write(self, _text: str) -> int:
        """Raises `OSError`, as writing to the closed descriptor would."""
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


class Commands(click.Group):
    """The group: commands are loaded when they are used, and errors become messages."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The commands in the order of a day's work."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module; None when there is no such command."""
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        module = importlib.import_module(f"workerpool.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it, but a mistyped command is told the one that was probably meant."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            if near and not ctx.resilient_parsing:
                ctx.fail(f"No such command {args[0]!r}, did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The list of commands, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, help) for name, (_, help) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command and translate what it raises."""
        if "NO_COLOR" in os.environ:
            ctx.color = False
        try:
            return super().invoke(ctx)
        except Refusal as refusal:
            code = _say(str(refusal), refusal.code)
        except click.UsageError as error:  # click itself tells of it
            raise click.UsageError(_printable(error.format_message()), error.ctx) from error
        except ConfigError as error:
            click.echo(_printable(str(error)), err=True)  # each of its lines says where it is
            code = USAGE
        except QueueError as error:
            code = _say(str(error), code_of(error))
        except PoolError as error:
            code = _say(str(error), FAILED)
        except OSError as error:
            if error.errno == errno.EPIPE or error.filename is not None:
                raise  # the first is click's to end quietly; the others are no matter of the output
            code = _cannot_write(error)
        except KeyboardInterrupt:
            code = INTERRUPTED
        raise click.exceptions.Exit(code)


def _say(message: str, code: int) -> int:
    click.echo(f"workerpool: {_printable(message)}", err=True)
    return code


def _printable(message: str) -> str:
    from workerpool.cli.words import printable_lines

    return printable_lines(message)


def _cannot_write(error: OSError) -> int:
    """Say that the output is lost."""
    click.echo(f"workerpool: the output cannot be written: {error.strerror}", err=True)
    drop_output()
    return FAILED


def drop_output() -> None:
    """Let nothing more come of standard output: the interpreter would try to write it once more at its end."""
    os.dup2(nowhere := os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), 1)
    os.close(nowhere)


def code_of(error: QueueError) -> int:
    """The exit code of a queue's error: 3 for the store, 2 for what was asked of it, 1 for the rest."""
    if isinstance(error, BackendUnavailable | DirectoryCreationFailed | RenameFailed | WatcherFailed):
        return STORE
    if isinstance(error, WriteFailed):  # of the system, or the values of a job that cannot be sent
        return USAGE if error.__cause__ is None else STORE
    if isinstance(error, InvalidIdentifier | DecodingFailed | InvalidTerminalStatus):
        return USAGE
    return FAILED


@click.group(
    cls=Commands,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="workerpool", prog_name="workerpool", message="%(prog)s %(version)s")
def cli() -> None:
    """A durable job queue and worker pool that needs no server.

    The configuration is ./config.toml, or WORKERPOOL_CONFIG, or what a command is told. `workerpool COMMAND --help`
    explains each.
    """


def main() -> None:
    """The entry point of the command; ends the process with the exit code."""
    _open_standard_streams()
    _hide_passwords(sys.argv)
    try:
        cli(prog_name="workerpool")
    except OSError as error:  # of a help text: commands tell of theirs themselves
        if error.filename is not None:
            raise
        sys.exit(_cannot_write(error))
    finally:
        _write_out()


def _hide_passwords(words: Sequence[str]) -> None:
    """`ps` shows a command line to everybody: from now on without the password of a `--store`."""
    if not any("://" in word for word in words):
        return
    from workerpool.cli.words import masked
    from workerpool.process.title import show_as

    shown = [masked(word) for word in words]
    if shown != list(words):
        show_as(" ".join(shown))


def _write_out() -> None:
    """What is still in the buffer goes out now, when there is somebody to say that it cannot."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        if error.errno != errno.EPIPE:
            sys.exit(_cannot_write(error))


def _open_standard_streams() -> None:
    """Where the caller has closed one of the first three descriptors, put /dev/null there: a file of ours that got its
    number would be written into by whoever prints."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
        if fd == 1 and sys.stdout is None:
            sys.stdout = ClosedOutput(open(fd, "wb", closefd=False))  # noqa: SIM115  open for as long as the process
        if fd == 2 and sys.stderr is None:
            sys.stderr = open(fd, "w", closefd=False)  # noqa: SIM115
    os.close(fd)


if __name__ == "__main__":
    main()
