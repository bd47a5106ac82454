"""What `bench` makes of what it measured, and where it measures."""

from __future__ import annotations

from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from workerpool.cli.benching import scratch
from workerpool.cli.benching.figures import Figure, percentile, table
from workerpool.cli.main import Refusal
from workerpool.config import PoolConfig
from workerpool.config_file import load_config


def config_of(url: str) -> PoolConfig:
    return load_config({}, overrides={"store.url": url}, streams_required=False)


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(number) for number in range(100, 0, -1)]
    assert (percentile(values, 0), percentile(values, 50), percentile(values, 99)) == (1.0, 50.0, 99.0)
    assert percentile([7.0], 99) == 7.0
    assert percentile([], 50) is None


def test_a_figure_with_a_time_has_rates() -> None:
    figure = Figure(key="k", what="w", jobs=500, seconds=2.0, each_ms=(3.0, 1.0, 2.0))
    assert figure.to_dict() == {
        "jobs": 500,
        "seconds": 2.0,
        "jobs_per_second": 250.0,
        "us_per_job": 4000.0,
        "p50_ms": 2.0,
        "p99_ms": 2.0,
    }


def test_the_table_has_units_and_leaves_out_what_was_not_taken() -> None:
    batch = Figure(key="a", what="in batches", jobs=1000, seconds=0.5)
    alone = Figure(key="b", what="one by one", jobs=3, seconds=None, each_ms=(1.25,))
    head, first, second = table([batch, alone])
    assert head.split() == ["jobs", "jobs/s", "µs/job", "p50", "ms", "p99", "ms"]
    assert first.split() == ["in", "batches", "1,000", "2,000", "500"]
    assert second.split() == ["one", "by", "one", "3", "1.25", "1.25"]


def test_a_figure_of_nothing_is_written_too() -> None:
    (_, line) = table([Figure(key="a", what="nothing", jobs=0, seconds=1.0)])
    assert line.split() == ["nothing", "0"]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://me@h/db", {"user": "me", "host": "h", "dbname": "db"}),
        ("postgresql://me:p%40ss@h:6/db?sslmode=disable", {"password": "p@ss", "port": "6", "sslmode": "disable"}),
        ("postgresql:///db?host=/run/a%20b", {"host": "/run/a b", "dbname": "db"}),
        ("postgresql://h/db?password=a+b", {"password": "a+b"}),
    ],
)
def test_the_schema_is_added_to_an_url_as_it_is(url: str, expected: dict[str, str]) -> None:
    told = conninfo_to_dict(scratch.with_search_path(url, "mine"))
    assert told.pop("options") == "-csearch_path=mine"
    assert expected.items() <= told.items()


def test_other_options_of_an_url_stay() -> None:
    url = scratch.with_search_path("postgresql://h/db?options=-cwork_mem%3D1MB", "mine")
    assert conninfo_to_dict(url)["options"] == "-cwork_mem=1MB -csearch_path=mine"


def test_a_scratch_store_is_beside_the_one_that_is_meant(tmp_path: Path) -> None:
    for url in (f"dir:{tmp_path}/spool", f"sqlite:{tmp_path}/jobs.db"):
        with scratch.scratch_for(config_of(url), None) as place:
            folder = Path(place.folder)
            assert folder.parent == tmp_path
            assert folder.name.startswith(url.rpartition("/")[2] + ".bench-")
            assert folder.stat().st_mode & 0o777 == 0o700
            assert place.url.startswith(url.partition(":")[0] + f":{folder}/")
        assert place.left == str(folder)
        assert folder.is_dir()
    assert not (tmp_path / "spool").exists()


def test_beside_a_mounted_disk_is_not_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.path.ismount", lambda path: path == str(tmp_path / "spool"))
    with pytest.raises(Refusal, match="--scratch"), scratch.scratch_for(config_of(f"dir:{tmp_path}/spool"), None):
        pass
    assert list(tmp_path.iterdir()) == []
