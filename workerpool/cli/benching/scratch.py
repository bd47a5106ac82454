"""A fresh store to measure, beside the one that is meant: on the same disk or server, and nobody's jobs are touched.

* a folder `spool`: the folder `spool.bench-<time>` beside it, with a queue, a configuration and handlers in it;
* a file `jobs.db`: the folder `jobs.db.bench-<time>` beside it, likewise;
* PostgreSQL: a schema `queuekit_bench_<time>` in the same database, dropped at the end. The configuration is in a
  temporary folder, which is removed.

What is a folder stays: on ext4 removing many files slows down the making of others for minutes, which would harm the
next measurement, or the store beside it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from urllib.parse import quote, unquote

from queuekit import BackendUnavailable
from workerpool.cli.main import USAGE, Refusal
from workerpool.config import PoolConfig
from workerpool.locations import store_folder, store_path


@dataclasses.dataclass(frozen=True, slots=True)
class Scratch:
    """`url`: of a store that is not there yet; `folder`: for the pool's configuration, private; `boards`: where that
    pool's board will be; `left`: what stays afterwards, None = nothing; `name`: what it is called."""

    url: str
    folder: str
    boards: str
    left: str | None
    name: str


@contextlib.contextmanager
def scratch_for(config: PoolConfig, directory: str | None) -> Iterator[Scratch]:
    """A place for one run. `directory`: measure a folder store in there, whatever the configuration says.

    Raises `Refusal` where it cannot be like the store that is meant, `BackendUnavailable` when it cannot be made.
    """
    stamp = f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}"
    if directory is None and config.store.scheme == "postgresql":
        with _schema(config.store.url, f"queuekit_bench_{stamp.replace('-', '_').lower()}") as scratch:
            yield scratch
        return
    folder = (
        _beside(config, stamp) if directory is None else os.path.join(os.path.realpath(directory), f"bench-{stamp}")
    )
    try:
        os.mkdir(folder, 0o700)
    except OSError as error:
        raise BackendUnavailable(f"cannot make {folder}: {error.strerror}") from error
    if directory is None and config.store.scheme == "sqlite":
        url, boards = f"sqlite:{folder}/jobs.db", f"{folder}/.workerpool"
    else:
        url, boards = f"dir:{folder}/spool", f"{folder}/spool/.workerpool"
    yield Scratch(url, folder, boards, folder, folder)


def _beside(config: PoolConfig, stamp: str) -> str:
    path = store_folder(config) or os.path.realpath(store_path(config) or "")
    if os.path.ismount(path):
        raise Refusal(
            f"{path} is where a disk is mounted, and what is beside it is on another one: "
            "make a folder on that disk, and measure there with --scratch",
            USAGE,
        )
    return f"{path}.bench-{stamp}"


@contextlib.contextmanager
def _schema(url: str, name: str) -> Iterator[Scratch]:
    _administer(url, f"CREATE SCHEMA {name}")
    try:
        folder = tempfile.mkdtemp(prefix="workerpool-bench-")
        try:
            yield Scratch(with_search_path(url, name), folder, f"{folder}/.workerpool", None, f"the schema {name}")
        finally:
            shutil.rmtree(folder)
    finally:
        _administer(url, f"DROP SCHEMA {name} CASCADE")


def _administer(url: str, statement: str) -> None:
    try:
        import psycopg
    except ImportError as error:
        raise BackendUnavailable("this store needs psycopg: pip install workerpool[postgres]") from error
    try:
        with psycopg.connect(url, autocommit=True, connect_timeout=5) as connection:
            connection.execute(statement.encode())
    except psycopg.Error as error:
        said = str(error).strip().splitlines()
        raise BackendUnavailable(f"{statement}: {said[0] if said else type(error).__name__}") from error


def with_search_path(url: str, schema: str) -> str:
    """The same database, where names without a schema are in this one."""
    base, _, query = url.partition("?")
    given = [each for each in query.split("&") if each]
    old = [unquote(each.removeprefix("options=")) for each in given if each.startswith("options=")]
    options = quote(" ".join([*old, f"-csearch_path={schema}"]))
    return f"{base}?{'&'.join([*(each for each in given if not each.startswith('options=')), f'options={options}'])}"
