"""The judgement of a storm sees what it is for: a second run without need, however close the kills are."""

from __future__ import annotations

from pathlib import Path

import pytest
from pool import Estate, Run
from witness import Kill, Ledger, Repeats, judge_repeats, quantile

CUT, AGAIN, OTHER = Run("a", 10, 1.0, None), Run("a", 11, 3.0, 3.5), Run("b", 20, 1.0, 1.2)
STREAM_OF = {"a": "encode", "b": "dreaming"}


def kill(target: str, pid: int, stream: str | None = None, at: float = 2.0) -> Kill:
    return Kill(target, at, at + 0.01, pid, stream, frozenset())


@pytest.mark.parametrize("cause", [kill("worker", 10, "encode"), kill("stream", 9, "encode"), kill("all", 1)])
def test_a_run_that_a_kill_cut_off_may_be_repeated(cause: Kill) -> None:
    assert judge_repeats({"a": [CUT, AGAIN], "b": [OTHER]}, STREAM_OF, [cause]).cut_off == 1


@pytest.mark.parametrize(
    "cause",
    [
        kill("worker", 12, "encode"),
        kill("stream", 9, "dreaming"),
        kill("master", 1),
        kill("all", 1, at=0.5),
        kill("all", 1, at=3.2),
    ],
)
def test_a_kill_of_something_else_or_at_another_time_is_no_reason(cause: Kill) -> None:
    with pytest.raises(AssertionError, match="no kill could have cut it off"):
        judge_repeats({"a": [CUT, AGAIN]}, STREAM_OF, [kill("worker", 99, at=0.1), cause, kill("worker", 99, at=9)])


def test_a_run_that_said_that_it_had_failed_may_be_repeated() -> None:
    runs = {"a": [Run("a", 10, 1.0, 1.5, failed=True), AGAIN]}
    assert judge_repeats(runs, STREAM_OF, [kill("master", 1)]) == Repeats(failed=1, cut_off=0, in_flight=0)


@pytest.mark.needs("linux")
def test_the_ledger_sees_a_job_that_ends_twice_one_that_goes_and_one_that_runs_after_its_end(tmp_path: Path) -> None:
    name = "0000000000000001-00000000-0000000001-encode-" + "a" * 32
    with Estate(tmp_path, {"encode": {}}) as estate:
        done = estate.root / "done"
        assert estate.queue  # opening it makes the folders
        ledger = Ledger(estate)
        (done / f"{name}.signal").touch()
        (estate.root / "new" / name).touch()
        (estate.root / "new" / name).rename(done / name)
        assert ledger.read() == ["a" * 32]
        assert ledger.read() == []
        ended = ledger.ended["a" * 32]
        ledger.judge({"a" * 32: [Run("a" * 32, 1, ended - 1, ended)]})
        with pytest.raises(AssertionError, match="ran after they had ended"):
            ledger.judge({"a" * 32: [Run("a" * 32, 1, ended + 1, None)]})
        (estate.root / "new" / name).touch()
        (estate.root / "new" / name).rename(done / name)
        assert ledger.read() == []
        with pytest.raises(AssertionError, match="ended twice"):
            ledger.judge({})
        ledger.doubled.clear()
        (done / name).unlink()
        ledger.read()
        with pytest.raises(AssertionError, match="not in done/ any more"):
            ledger.judge({})
        ledger.close()


def test_a_quantile_is_the_value_that_the_share_does_not_exceed() -> None:
    values = [float(number) for number in range(100, 0, -1)]
    assert [quantile(values, share) for share in (0.5, 0.99, 1.0)] == [50.0, 99.0, 100.0]
    assert quantile([7.0], 0.99) == 7.0
