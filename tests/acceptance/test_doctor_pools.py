"""`workerpool doctor` beside a pool that works, and after one that was killed, on every kind of store."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from databases import DatabaseEstate
from pool import Estate, is_dead, until

from workerpool.cli.main import cli


def told(estate: Estate, topic: str) -> list[str]:
    result = CliRunner().invoke(cli, ["doctor", "--json", str(estate.config)])
    assert result.exit_code == 0, result.output
    findings: list[dict[str, Any]] = json.loads(result.stdout)["findings"]
    return [f"{each['level']}: {each['found']}" for each in findings if each["topic"] == topic]


def check(estate: Estate) -> None:
    pool = estate.start()
    until(pool.is_working(), "the stream")
    holder = pool.stream_pid()
    assert told(estate, "pool") == [f"ok: pool {pool.pid} runs here by {estate.config}: encode"]
    (lease,) = told(estate, "lease")
    assert lease.startswith(f"ok: stream encode is held by pid {holder}")
    assert lease.endswith("it lives")
    pool.signal_tree(signal.SIGKILL)
    pool.wait()
    until(lambda: is_dead(holder), "the stream's end")
    assert told(estate, "pool") == ["ok: no pool runs here", f"note: pool {pool.pid} ended without clearing up"]
    (lease,) = told(estate, "lease")
    assert lease.startswith(f"note: stream encode is held by pid {holder}")
    assert lease.endswith("who is dead")


def test_a_folder(make_estate: Callable[..., Estate]) -> None:
    check(make_estate())


@pytest.mark.parametrize("scheme", ["sqlite", "postgresql"])
def test_a_database(tmp_path: Path, scheme: str, request: pytest.FixtureRequest) -> None:
    url = f"sqlite:{tmp_path}/jobs.db" if scheme == "sqlite" else request.getfixturevalue("postgres_url")
    with DatabaseEstate(tmp_path, url, {"encode": {}}) as estate:
        check(estate)


def test_it_disturbs_no_pool(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate()
    pool = estate.start()
    until(pool.is_working(), "the pool")
    sent = [estate.send() for _ in range(200)]
    while not estate.finished(*sent)():
        assert told(estate, "pool")[0].startswith(f"ok: pool {pool.pid} runs here")
    assert pool.stop() == 0
    estate.check_settled(sent)
    assert not [name for name in os.listdir(estate.root / "tmp") if name.startswith("doctor")]
    assert "error" not in pool.log.lower()
