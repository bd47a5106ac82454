"""`workerpool torture MODULE:HANDLER`: is a handler safe to run twice?

What is asked is judged here, and what was found is said; the runs are `workerpool.torture`'s. No store is opened, and
of a configuration only the handlers' folders and the settings of the handler's stream are taken.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
import tempfile
import time
from typing import Any

import click
from click.core import ParameterSource

from workerpool.cli import words
from workerpool.cli.main import FAILED, INTERRUPTED, USAGE, Refusal
from workerpool.cli.options import DEFAULT_CONFIG, VARIABLE, json_option, print_json
from workerpool.cli.torturing.order import Order, judged
from workerpool.cli.torturing.report import Report
from workerpool.torture.campaign import Campaign, Incomparable, Reference, find_point, points_for
from workerpool.torture.points import Point
from workerpool.torture.rig import Rig
from workerpool.torture.run import CannotSetUp, Runner

_SEEDS = 2**32
_BETWEEN_SECONDS, _BETWEEN_LINES_SECONDS = 0.1, 5.0
_NOT_REPEATED = {"points", "seed", "points_named", "job_number", "as_json", "keep", "keep_going"}


@click.command("torture")
@click.argument("handler", metavar="MODULE:HANDLER")
@click.option("--payload", "payloads", multiple=True, metavar="TEXT|@FILE", help="A sample job's payload; repeatable.")
@click.option("--jsonl", metavar="FILE", help='Sample jobs, {"payload": …} a line, as of `send --jsonl`.')
@click.option("--effects", "paths", multiple=True, metavar="PATH", help="What is compared; default: the run's folder.")
@click.option("--effects-command", "commands", multiple=True, metavar="CMD", help="A command whose output is compared.")
@click.option("--skip", multiple=True, metavar="GLOB", help="Files that are not compared.")
@click.option("--mask", multiple=True, metavar="REGEX", help="Text that differs from run to run, left out.")
@click.option("--copy", "copied", multiple=True, metavar="PATH", help="Copied into each run's folder before it.")
@click.option(
    "--env", "environ", multiple=True, metavar="NAME=VALUE", help="Set for the handler; {} is the run's folder."
)
@click.option("--setup", metavar="CMD", help="A command that is run before each run, in its folder.")
@click.option(
    "--points",
    type=click.IntRange(1, 1_000_000),
    default=300,
    show_default=True,
    metavar="N",
    help="So many are tried.",
)
@click.option("--seed", type=click.IntRange(0, _SEEDS - 1), metavar="N", help="Of what is drawn at random.")
@click.option(
    "--point", "points_named", multiple=True, metavar="POINT", help="This one: handlers.py:31#2, 13.4ms, end, reply."
)
@click.option("--job", "job_number", type=click.IntRange(1), metavar="N", help="Only the N-th sample job.")
@click.option(
    "--timeout", metavar="DURATION", help="What a run may take. Default: the stream's, else 20 undisturbed ones."
)
@click.option("--batch", is_flag=True, help="The handler takes a list of jobs: it gets one of one.")
@click.option("--path", "folders", multiple=True, metavar="DIR", help="Where the handler is imported from.")
@click.option("--config", metavar="FILE", help=f"For path and stream (default: {VARIABLE}, else ./{DEFAULT_CONFIG}).")
@click.option(
    "--stream", metavar="NAME", help="The stream of it that the handler works (default: the one that names it)."
)
@click.option("--keep", is_flag=True, help="Leave the folder of a run with a finding.")
@click.option("--keep-going", is_flag=True, help="Try all points, not only up to the first finding.")
@json_option
@click.pass_context
def torture_command(ctx: click.Context, /, **given: Any) -> None:
    """Is a handler safe to run twice? Kill it at hundreds of points, run it again, compare what it leaves.

    Each run has a fresh folder, which is the handler's current one, and its own folder for temporary files. First the
    handler runs undisturbed, then once for each point: its worker is killed there (SIGKILL, and whatever it has
    started), and the job is delivered again, as a pool does it, until it has ended. What is there then must be what an
    undisturbed run leaves: files, the output of a command (a SELECT), follow-up jobs, how the job ended.

    The points: before each line of your own files, then before the second, the last and other executions of lines,
    after the end, and moments drawn at random. The effects are real: what lies outside of the run's folder needs a
    --setup that puts it back before each run. No store is touched.

    \b
    Exit codes: 0 no finding, 1 a finding, 2 nothing could be tried as asked, 130 interrupted
    """
    order = Order(**given)
    seed = order.seed if order.seed is not None else int.from_bytes(os.urandom(4), "big")
    report = Report(order.handler, seed, _again(ctx), order.keep)
    progress = _Progress()
    home = tempfile.mkdtemp(prefix="workerpool-torture-")
    try:
        _work(order, seed, home, report, progress)
    except KeyboardInterrupt:
        report.interrupted = True
    except (CannotSetUp, Incomparable) as error:
        progress.close()
        raise Refusal(str(error), USAGE) from error
    finally:
        progress.close()
        if not (order.keep and report.findings):
            shutil.rmtree(home, ignore_errors=True)
    if order.as_json:
        print_json(report.to_dict())
    else:
        for line in report.lines(order.folders):
            click.echo(line)
    ctx.exit(FAILED if report.findings else INTERRUPTED if report.interrupted else 0)


def _again(ctx: click.Context) -> str:
    """The command as it was typed, without what says which points."""
    parts = ["workerpool", "torture", shlex.quote(ctx.params["handler"])]
    for parameter in ctx.command.params:
        name = parameter.name or ""
        if name in _NOT_REPEATED or not isinstance(parameter, click.Option):
            continue
        if ctx.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        value = ctx.params[name]
        option = parameter.opts[0]
        if parameter.is_flag:
            parts.append(option)
        else:
            parts += [f"{option} {shlex.quote(str(each))}" for each in (value if parameter.multiple else [value])]
    return " ".join(parts)


# -- the work


def _work(order: Order, seed: int, home: str, report: Report, progress: _Progress) -> None:
    control = os.path.join(home, "control")
    os.mkdir(control, 0o700)
    rig = Rig(order.stream, order.folders, order.max_job_bytes, control)
    with contextlib.closing(rig):
        campaign = Campaign(Runner(rig, order.stream, order.setting, home), order.timeout)
        for place, number in enumerate(order.numbers):
            progress.tell(f"job {number}: undisturbed", report)
            reference = campaign.reference(number, order.jobs[number - 1])
            points = _points(order, reference, seed, place)
            report.begin(reference, points)
            with contextlib.closing(campaign.tries(reference, points, fitted=not order.named)) as tries:
                for tried in tries:
                    report.add(tried)
                    progress.tell(f"job {number}: killed and run again", report)
                    if report.findings and not order.keep_going:
                        return


def _points(order: Order, reference: Reference, seed: int, place: int) -> list[Point]:
    if order.named:
        return [judged(lambda _, point=point: find_point(reference, point), "", "--point") for point in order.named]
    share, rest = divmod(order.points, len(order.numbers))
    count = share + (place < rest)
    return points_for(reference, count, seed) if count else []


class _Progress:
    """Says on standard error how far it is: one line that is written over on a terminal, else a line now and then."""

    def __init__(self) -> None:
        self._terminal = sys.stderr is not None and sys.stderr.isatty()
        self._at = 0.0
        self._drawn = False

    def tell(self, what: str, report: Report) -> None:
        """How much of it is done."""
        now = time.monotonic()
        if now - self._at < (_BETWEEN_SECONDS if self._terminal else _BETWEEN_LINES_SECONDS):
            return
        self._at, self._drawn = now, True
        found = words.number(len(report.findings), "finding")
        text = (
            f"{what}; {report.tried:,} of {words.number(report.planned, 'point')}, {found}" if report.planned else what
        )
        click.echo(f"\r\x1b[K{text}" if self._terminal else text, nl=not self._terminal, err=True)

    def close(self) -> None:
        """Take the line away."""
        if self._terminal and self._drawn:
            click.echo("\r\x1b[K", nl=False, err=True)
        self._drawn = False
