"""Damaged configurations, boards, pauses and dossiers (T14): read and shown, or refused with a documented error."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutations import COUNTS, try_all

from queuekit.completion import SignalFile
from queuekit.contract import JobView
from queuekit.hlc import HLC
from queuekit.job import Delivery
from queuekit.lifecycle import State
from queuekit.status import ObservationStatus
from queuekit.testing.jobs import make_job
from queuekit.testing.strategies import json_values
from workerpool import pauses
from workerpool.board import Board, BoardError, Kind, find_boards
from workerpool.cli.pools import read_pools
from workerpool.cli.show import details
from workerpool.cli.story import Scene, tell
from workerpool.config_file import load_config
from workerpool.config_source import readable_tables
from workerpool.errors import ConfigError

CONFIGS = [path.read_bytes() for path in sorted((Path(__file__).parents[3] / "config").glob("*.toml"))]
CONFIG = load_config({"store": {"url": "dir:/x"}, "streams": {"encode": {"handler": "h:f", "retries": 3}}})
NOW = 1_800_000_000_000
EARLIER = '{"status": "blocked", "completed_at": {"physical_time": 5, "logical_count": 0, "node_id": 1}}'
DOSSIERS = [
    json.dumps(each).encode()
    for each in (
        {"blocked_at_ms": NOW, "error": "Traceback\nValueError: no", "reason": "retries", "attempts": 2, "crashes": 0},
        {
            **{"blocked_at_ms": NOW, "attempts": 2, "crashes": 1, "errors": ["one", "two"], "earlier_ends": [EARLIER]},
            "runs": [{"run": 1, "ended_ms": NOW, "seconds": 1.5}, {"run": 2, "ended_ms": NOW, "halved_from": 8}],
        },
        {"ended": "cancelled", "at_ms": NOW, "by": "me"},
    )
]


def test_there_is_something_to_damage() -> None:
    assert len(CONFIGS) >= 3
    for each in DOSSIERS:
        assert isinstance(json.loads(each), dict)


@pytest.mark.parametrize("count", COUNTS)
def test_damaged_configurations(count: int, tmp_path: Path) -> None:
    """Read as a whole, and as `status` reads one with mistakes."""
    path = tmp_path / "config.toml"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        with contextlib.suppress(ConfigError):
            load_config(path, environ={})
        readable_tables(str(path), ("store", "streams", "handlers"))

    try_all("config", CONFIGS, count, read)


@pytest.mark.parametrize("count", COUNTS)
def test_damaged_boards(count: int, tmp_path: Path) -> None:
    """Also by who finds, sweeps and shows them."""
    made = Board.create(str(tmp_path), 3, "/some/config.toml")
    row = made.row(0)
    row.take(kind=Kind.STREAM, stream="encode")
    good = Path(made.path).read_bytes()
    made.close()
    path = Path(made.path)

    def read(data: bytes) -> None:
        path.write_bytes(data)
        with contextlib.suppress(BoardError, OSError):
            board = Board.attach(str(path))
            try:
                for each in board.rows():
                    each.owner_is_running()
            finally:
                board.close()
        find_boards(str(tmp_path))

    try_all("board", [good], count, read)
    for pool in read_pools(str(tmp_path)):
        assert not pool.alive


@pytest.mark.parametrize("count", COUNTS)
def test_damaged_pauses(count: int, tmp_path: Path) -> None:
    pauses.pause(str(tmp_path), "encode")
    path = tmp_path / "pauses" / "encode"

    def read(data: bytes) -> None:
        """Whatever it says, the stream is paused; and its time is one that can be shown."""
        path.write_bytes(data)
        found = pauses.find(str(tmp_path), "encode")
        assert found is not None
        assert 0 <= found.since_ms <= 10**14

    try_all("pause", [path.read_bytes()], count, read)


@pytest.mark.parametrize("count", COUNTS)
def test_damaged_dossiers(count: int) -> None:
    """`show` tells of the job all the same, in lines for a terminal and as JSON."""

    def read(data: bytes) -> None:
        try:
            dossier = json.loads(data)
        except (ValueError, RecursionError):
            return
        show(dossier)

    try_all("dossier", DOSSIERS, count, read)


KEYS = ["blocked_at_ms", "at_ms", "error", "reason", "cause", "ended", "attempts", "crashes", "errors", "runs", "by"]
RUN_KEYS = ["run", "ended_ms", "seconds", "halved_from"]
ANYTHING = st.one_of(json_values(), st.integers(), st.floats(), st.sampled_from([True, 10**400, "\x1b[2J\n"]))
RUNS = st.lists(st.dictionaries(st.sampled_from(RUN_KEYS), ANYTHING | st.integers(0, 3)), max_size=4)


@given(st.fixed_dictionaries({}, optional={**dict.fromkeys(KEYS, ANYTHING), "runs": RUNS | ANYTHING}))
def test_dossiers_with_anything_in_them(dossier: dict[str, object]) -> None:
    show(dossier)


@pytest.mark.parametrize(
    "end", ["[" * 20_000, '{"status": "x", "completed_at": {"physical_time": 1e999}}', "\x1b[2J\n"]
)
def test_earlier_ends_that_cannot_be_read(end: str) -> None:
    show({"earlier_ends": [end]})


@pytest.mark.parametrize(
    "run",
    [
        {"run": 1, "seconds": 10**400},
        {"run": 1, "seconds": float("nan"), "ended_ms": 10**30},
        {"run": 2, "ended_ms": -(10**30), "seconds": float("inf")},
    ],
)
def test_runs_with_impossible_times(run: dict[str, object]) -> None:
    show({"blocked_at_ms": NOW, "attempts": 2, "crashes": 0, "errors": ["one", "two"], "runs": [run]})


def show(dossier: object) -> None:
    """As `show` and `show --json` do, for a job that is blocked."""
    job = Delivery(attempt=2, errors=("one", "two")).onto(make_job("j", "encode"))
    signal = SignalFile(job_id=job.id, status=ObservationStatus.BLOCKED, completed_at=HLC(NOW, 0, 1))
    kept = dossier if isinstance(dossier, dict) else None
    view = JobView(job=job, state=State.DONE, signal=signal, dossier=kept)
    scene = Scene(config=CONFIG, pools=[], pause=None, now_ms=NOW)
    told = [text for _, text in tell(view, scene)]
    assert all(line.isprintable() for text in told for line in text.split("\n"))
    json.dumps(details(view, scene))
