"""Metrics on their way to a user's hooks, in a process of their own: whatever those do, nobody waits for them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from queuekit.telemetry import Metric
from queuekit.testing.jobs import wait_until
from workerpool.config import PoolConfig
from workerpool.config_file import load_config
from workerpool.process import Child, Exit, is_running, kill_group, reap, spawn
from workerpool.reporting import EXIT_NO_HOOK, Reports

HOOKS = """
import json, os, signal


def write(metric):
    with open(os.environ["METRICS"], "a") as file:
        file.write(json.dumps([metric.name, metric.value, dict(metric.tags), metric.ts]) + "\\n")


def hang(metric):
    write(metric)
    while True:
        signal.pause()


def raise_(metric):
    raise RuntimeError("a hook failed")


def die(metric):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def metric(name: str = "queue.depth", value: float = 3.0) -> Metric:
    return Metric(name, value, {"stream": "encode"}, 12.5)


@pytest.fixture
def metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "metrics"
    file.touch()
    monkeypatch.setenv("METRICS", str(file))
    return file


@pytest.fixture
def pool(tmp_path: Path) -> PoolConfig:
    (tmp_path / "reporting_hooks.py").write_text(HOOKS)
    return load_config(
        {
            "store": {"url": f"dir:{tmp_path}/spool"},
            "handlers": {"path": [str(tmp_path)]},
            "log": {"file": str(tmp_path / "log")},
            "streams": {"encode": {"handler": "h:f"}},
        }
    )


@pytest.fixture
def report(pool: PoolConfig) -> Iterator[Callable[..., tuple[Reports, Child]]]:
    """Start a reporter with these hooks."""
    started: list[tuple[Reports, Child]] = []

    def start(*hooks: str) -> tuple[Reports, Child]:
        reports = Reports([f"reporting_hooks:{hook}" for hook in hooks])
        child = spawn(lambda: reports.serve(pool), name="reporter", own_group=True, keep=reports.descriptors())
        started.append((reports, child))
        return reports, child

    yield start
    for reports, child in started:
        kill_group(child.pid, child.start, signal.SIGKILL)
        reports.close()
    wait_until(lambda: not any(is_running(child.pid, child.start) for _, child in started))
    reap()


def lines(file: Path) -> list[list[object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def end_of(child: Child) -> Exit:
    ends: list[Exit] = []

    def gone() -> bool:
        ends.extend(end for end in reap() if end.pid == child.pid)
        return bool(ends)

    wait_until(gone)
    return ends[0]


def test_a_metric_arrives_as_it_was_sent(report, metrics):
    reports, _ = report("write")
    reports.hook()(metric())
    wait_until(lambda: lines(metrics))
    assert lines(metrics) == [["queue.depth", 3.0, {"stream": "encode"}, 12.5]]


def test_a_hook_that_hangs_makes_nobody_wait(report, metrics):
    reports, child = report("hang")
    hook = reports.hook()
    hook(metric())
    wait_until(lambda: lines(metrics))
    for _ in range(20_000):  # many times what the socket holds
        hook(metric())
    assert len(lines(metrics)) == 1
    assert is_running(child.pid, child.start)


def test_a_hook_that_dies_makes_nobody_fail_and_a_new_reporter_goes_on(report, metrics, pool):
    reports, child = report("die", "write")
    hook = reports.hook()
    hook(metric("first"))
    assert end_of(child).signal == signal.SIGKILL
    hook(metric("second"))
    healthy = Reports(["reporting_hooks:write"])
    healthy._in, healthy._out = reports._in, reports._out  # the same way, other hooks
    successor = spawn(lambda: healthy.serve(pool), name="reporter", own_group=True, keep=reports.descriptors())
    wait_until(lambda: lines(metrics))
    assert [line[0] for line in lines(metrics)] == ["second"]
    kill_group(successor.pid, successor.start, signal.SIGKILL)
    end_of(successor)


def test_a_hook_that_raises_is_called_again_and_keeps_nothing_from_the_others(report, metrics, tmp_path):
    reports, _ = report("raise_", "write")
    reports.hook()(metric("first"))
    reports.hook()(metric("second"))
    wait_until(lambda: len(lines(metrics)) == 2)
    assert (tmp_path / "log").read_text().count("RuntimeError") >= 2


def test_a_hook_that_cannot_be_imported_is_said_and_left_out(report, metrics, tmp_path):
    reports, _ = report("missing", "write")
    reports.hook()(metric())
    wait_until(lambda: lines(metrics))
    assert "reporting_hooks:missing cannot be imported" in (tmp_path / "log").read_text()


def test_with_no_hook_left_the_reporter_ends(report):
    _, child = report("missing")
    assert end_of(child).code == EXIT_NO_HOOK


def test_it_ends_by_a_term(report):
    _, child = report("write")
    os.kill(child.pid, signal.SIGTERM)
    assert end_of(child).signal == signal.SIGTERM


def test_built_in_hooks_need_no_reporter_and_no_socket(caplog):
    reports = Reports(["log"])
    assert (reports.foreign, reports.descriptors()) == ([], [])
    with caplog.at_level("INFO", logger="queuekit.telemetry"):
        reports.hook()(metric())
    assert "stream=encode depth=3" in caplog.text


def test_without_hooks_there_is_nothing_to_call():
    assert Reports([]).hook() is None


def test_a_socket_that_is_gone_hurts_no_drain():
    reports = Reports(["reporting_hooks:write"])
    hook = reports.hook()
    reports.close()
    hook(metric())  # raises nothing
    assert reports.foreign == ["reporting_hooks:write"]
