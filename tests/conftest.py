"""No lease outlives its test; and with REQUIRE_ALL=1, as CI sets it, a skipped test is a failed one.

What is missing on CI's machine is noticed that way.
An expected failure is no skip.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from queuekit.locks import forget_all


@pytest.fixture(autouse=True)
def _no_lease_outlives_its_test() -> Iterator[None]:
    """Most tests drop their leases as a death would: then their files stay locked, one descriptor each."""
    yield
    forget_all()


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
