"""Telling of a deed that is done: output that cannot be written must not look like a deed that failed."""

from __future__ import annotations

import contextlib
import errno
import sys
from collections.abc import Iterator

import click

from workerpool.cli.main import FAILED, Refusal, drop_output
from workerpool.cli.words import printable_lines


@contextlib.contextmanager
def telling_of(deed: str) -> Iterator[None]:
    """Within it is printed what tells of a deed that is done. `deed`: what must not be lost, in a sentence.

    Raises `Refusal` with the deed when that cannot be written. A reader that has gone away is no trouble: `OSError`
    with EPIPE goes on to whoever ends the command quietly.
    """
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        if error.errno == errno.EPIPE or error.filename is not None:
            raise
        drop_output()
        raise Refusal(f"{deed}, but what is not printed was lost: {error.strerror}", FAILED) from error


def tell_deed(line: str) -> None:
    """Print a line about a deed that is done; what is raised is that of `telling_of`."""
    with telling_of(line):
        click.echo(printable_lines(line))
