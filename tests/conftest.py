"""No lease outlives its test; and with REQUIRE_ALL=1, as CI sets it, a skipped test is a failed one.

What is missing on CI's machine is noticed that way.
An expected failure is no skip.
A test that asks for a PostgreSQL gets one, or fails: it is never skipped.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from needs import skip_without

from queuekit.locks import forget_all

if TYPE_CHECKING:
    from postgres import Server


def pytest_configure() -> None:
    """Forget PGPORT, PGOPTIONS and their like: they would speak to every PostgreSQL client of the tests."""
    for name in [name for name in os.environ if name.startswith("PG")]:
        del os.environ[name]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs more than this machine has."""
    for mark in item.iter_markers("needs"):
        skip_without(mark.args)


@pytest.fixture
def dice() -> random.Random:
    """Random numbers whose seed is printed; `ACTING_SEED` rolls the same ones again."""
    seed = int(os.environ.get("ACTING_SEED") or random.SystemRandom().randrange(2**32))
    print(f"ACTING_SEED={seed}")
    return random.Random(seed)


@pytest.fixture(autouse=True)
def _no_lease_outlives_its_test() -> Iterator[None]:
    """Most tests drop their leases as a death would: then their files stay locked, one descriptor each."""
    yield
    forget_all()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """A PostgreSQL that serves the whole run, one for each process of it: to be used, not to be stopped."""
    from postgres import Server

    server = Server()
    yield server
    server.remove()


_database_numbers = itertools.count(1)


@pytest.fixture
def postgres_url(postgres_server: Server) -> Iterator[str]:
    """An empty database for this test alone, gone after it."""
    with postgres_server.database(f"test_{next(_database_numbers)}") as url:
        yield url


@pytest.fixture
def own_postgres() -> Iterator[Callable[..., Server]]:
    """Make a PostgreSQL (keywords as of `Server`) that the test may stop, kill, freeze and restart; gone after it."""
    from postgres import Server

    with ExitStack() as stack:

        def make(**keywords: Any) -> Server:
            server = Server(**keywords)
            stack.callback(server.remove)
            return server

        yield make


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return printable(refuse_skip((yield)))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return refuse_skip((yield))


def refuse_skip(report: Any) -> Any:
    """The report itself, turned into a failure when it is a skip and nothing may be skipped."""
    if os.environ.get("REQUIRE_ALL") == "1" and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped although REQUIRE_ALL=1: {report.longrepr}"
    return report


def printable(report: pytest.TestReport) -> pytest.TestReport:
    """The report with captured output that can be sent to another process: some tests handle names that are no text."""
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report
