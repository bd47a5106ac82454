"""With REQUIRE_ALL=1, as CI sets it, a skipped test is a failed one: what is missing there is noticed.

An expected failure is no skip.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return refuse_skip((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return refuse_skip((yield))


def refuse_skip(report: Any) -> Any:
    """The report itself, turned into a failure when it is a skip and nothing may be skipped."""
    if os.environ.get("REQUIRE_ALL") == "1" and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped although REQUIRE_ALL=1: {report.longrepr}"
    return report
