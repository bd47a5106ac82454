"""`workerpool fsck`: what is not as it should be in a store, and setting right what may be.

The looking and the repairs are `queuekit.backends.maildir.fsck`'s and `queuekit.backends.sql.fsck`'s; here they are
asked for and said.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import click

from queuekit import BackendUnavailable
from queuekit.backends.maildir.fsck import Finding, Repaired, Severity, examine, repair
from queuekit.backends.maildir.fsck.foundation import ALL_FOLDERS
from queuekit.backends.maildir.fsck.look import Progress
from workerpool.cli import words
from workerpool.cli.main import FAILED
from workerpool.cli.options import Source, json_option, print_json, with_source
from workerpool.cli.telling import telling_of
from workerpool.config import PoolConfig
from workerpool.locations import store_folder, store_path

_WIDTH = 100
_COLORS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}


@click.command("fsck")
@with_source
@click.option("--repair", "repairing", is_flag=True, help="Set right what is surely right to be set right.")
@click.option("--deep", is_flag=True, help="Read every job that has ended, too.")
@json_option
@click.pass_context
def fsck_command(ctx: click.Context, source: Source, repairing: bool, deep: bool, as_json: bool) -> None:
    """Check the store: every job in one place, every end with its record, nothing that blocks or endangers.

    It may be run beside a pool. Without --repair nothing is changed. A repair deletes no job: what cannot be read is
    put aside, and a copy goes only when the one that stays holds the same.

    \b
    Exit codes: 0 nothing but notes, 1 errors or warnings are left, 3 the store cannot be read
    """
    config = source.load_store()
    store = _store(config)
    repaired: list[Repaired] = []
    with _progress() as progress:
        found = store.examine(deep, progress)
        if repairing and any(each.repairable for each in found):
            repaired = store.repair(found, progress)
            found = store.examine(deep, progress)
    done = sum(each.done for each in repaired)
    with telling_of(f"{words.printable(store.name)}: {done:,} repaired") if done else contextlib.nullcontext():
        if as_json:
            print_json(_report(store.name, found, repaired))
        else:
            _say(store.name, found, repaired, offer=not repairing)
    ctx.exit(FAILED if _is_left(found) else 0)


@dataclasses.dataclass(frozen=True)
class _Store:
    """What is checked. `name`: as it is told; `examine(deep, progress)`, `repair(findings, progress)`."""

    name: str
    examine: Callable[[bool, Progress], list[Finding]]
    repair: Callable[[Sequence[Finding], Progress], list[Repaired]]


def _store(config: PoolConfig) -> _Store:
    """The store of a configuration. Raises `BackendUnavailable` when it cannot be looked at."""
    root = store_folder(config)
    return _database(config) if root is None else _folder(config, root)


def _folder(config: PoolConfig, root: str) -> _Store:
    _check_readable(root)
    limit, ttl = config.store.max_job_bytes, config.lease.ttl
    return _Store(
        root,
        lambda deep, progress: examine(root, max_job_bytes=limit, ttl=ttl, deep=deep, progress=progress),
        lambda found, progress: repair(root, found, max_job_bytes=limit, ttl=ttl, progress=progress),
    )


def _database(config: PoolConfig) -> _Store:
    try:
        from queuekit.backends.sql import fsck  # SQLAlchemy is an extra
    except ModuleNotFoundError as error:
        raise BackendUnavailable(f"{error.name} is not installed: pip install 'workerpool[sql]'") from error
    url, ttl = config.store.url, config.lease.ttl
    return _Store(
        store_path(config) or words.masked(url),
        lambda deep, progress: fsck.examine(url, ttl=ttl, deep=deep, progress=progress),
        lambda found, progress: fsck.repair(url, found, progress=progress),
    )


def _check_readable(root: str) -> None:
    """Raise `BackendUnavailable` unless what is there can be listed: a folder unread is no folder without faults."""
    for folder in ("", *sorted(ALL_FOLDERS)):
        path = os.path.join(root, folder)
        try:
            os.scandir(path).close()
        except (FileNotFoundError, NotADirectoryError):  # a finding, or no queue at all: both are said by the look
            continue
        except OSError as error:
            raise BackendUnavailable(f"cannot read {path.rstrip('/')}: {error.strerror}") from error


def _is_left(found: Sequence[Finding]) -> bool:
    return any(each.severity is not Severity.NOTE for each in found)


# -- saying it


def _report(root: str, found: Sequence[Finding], repaired: Sequence[Repaired]) -> dict[str, object]:
    counts = Counter(each.severity.value for each in found)
    return {
        "store": root,
        "ok": not _is_left(found),
        "findings": [dataclasses.asdict(each) for each in found],
        "repaired": [dataclasses.asdict(each) for each in repaired],
        **{f"{severity.value}s": counts[severity.value] for severity in Severity},
        "repairable": sum(each.repairable for each in found),
    }


def _say(root: str, found: Sequence[Finding], repaired: Sequence[Repaired], *, offer: bool) -> None:
    for done in repaired:
        head = click.style("repaired" if done.done else "not repaired", fg="green" if done.done else "red")
        click.echo(f"{head} {done.kind}: {_path(done.path)}")
        click.echo(_indented(done.did))
        click.echo()
    for each in found:
        click.echo(f"{click.style(each.severity.value, fg=_COLORS[each.severity])} {each.kind}: {_path(each.path)}")
        click.echo(_indented(f"{_sentence(each.what)} {_sentence(each.why)}"))
        click.echo(_indented(f"To do: {_sentence(each.remedy, capital=False)}"))
        click.echo()
    click.echo(_summary(root, found, offer=offer))


def _summary(root: str, found: Sequence[Finding], *, offer: bool) -> str:
    if not found:
        return f"{words.printable(root)}: nothing found"
    counts = Counter(each.severity for each in found)
    text = ", ".join(words.number(counts[severity], severity.value) for severity in Severity if counts[severity])
    repairable = sum(each.repairable for each in found)
    rest = f"; --repair can set {repairable:,} of them right" if repairable and offer else ""
    return f"{words.printable(root)}: {text}{rest}"


def _path(path: str) -> str:
    return words.printable(path)


def _sentence(text: str, *, capital: bool = True) -> str:
    shown = words.printable(text)
    first = shown[:1].upper() if capital else shown[:1]
    return f"{first}{shown[1:]}."


def _indented(text: str) -> str:
    return click.wrap_text(words.printable(text), width=_WIDTH, initial_indent="  ", subsequent_indent="  ")


# -- progress, on standard error


@contextlib.contextmanager
def _progress() -> Iterator[Progress]:
    """A bar on a terminal, else a line for each step that takes long enough to be told of more than once."""
    if not sys.stderr.isatty():
        yield _Lines().tell
        return
    from rich.progress import Progress as Bar

    from workerpool.cli import views

    with Bar(console=views.console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def tell(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        yield tell


class _Lines:
    """Plain lines: one each time that another quarter of a long step is done."""

    _LONG = 20_000

    def __init__(self) -> None:
        self._said = ("", 0)

    def tell(self, what: str, done: int, total: int) -> None:
        quarter = 4 * done // total if total >= self._LONG else 0
        if quarter and (what, quarter) != self._said:
            self._said = (what, quarter)
            click.echo(f"{what}: {done:,} of {total:,}", err=True)
