"""A clock that is set while something waits: what waits goes by the time that passes (C32, T2)."""

from __future__ import annotations

import itertools
import random
import subprocess
import time
from pathlib import Path

import pytest
from lengths import short_and_long
from pool import Estate, until
from shifted_clock import ShiftedClock

HERE = Path(__file__).parent
HOUR, DAY = 3600.0, 86_400.0
RETRY_SECONDS = 10.0
LATE_SECONDS = 10.0  # for a machine that is loaded; an hour it is not
LONGEST_PAUSE = 30.0  # between two starts of what never got ready


class Producer:
    """Sends jobs from another process, which goes by the shifted clock."""

    def __init__(self, estate: Estate, clock: ShiftedClock, stream: str) -> None:
        self._process = subprocess.Popen(
            [*clock.before, str(HERE / "sending_at_will.py"), str(estate.root), stream],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.stamps: list[tuple[int, int]] = []
        self.ids: list[str] = []

    def send(self, payload: str = "{}") -> str:
        """One job; its id."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(payload, file=self._process.stdin, flush=True)
        job_id, physical, logical = self._process.stdout.readline().split()
        self.ids.append(job_id)
        self.stamps.append((int(physical), int(logical)))
        return job_id

    def close(self) -> None:
        """Let it end."""
        self._process.communicate(timeout=30)
        assert self._process.returncode == 0


@pytest.mark.parametrize("rounds", short_and_long(1, 10))
def test_a_clock_set_back_delays_no_restart_and_no_retry(tmp_path: Path, rounds: int, dice: random.Random) -> None:
    """C32: set back while one stream is in crash back-off, another one's job waits, and a third's after its crash."""
    late = []
    for number in range(rounds):
        folder = tmp_path / str(number)
        folder.mkdir()
        with _estate(folder) as estate:
            late.append(set_back(estate, dice.choice((HOUR, DAY))))
    print(f"C32: {rounds} rounds; the latest retry came {max(late):.2f} s late, in real seconds")


def _estate(folder: Path) -> Estate:
    return Estate(
        folder,
        {"encode": {}, "dreaming": {"handler": "fragile:act"}, "import": {"max_crashes": 50}},
        handlers={"path": [str(HERE), str(HERE.parent)]},
        defaults={"retries": 50, "backoff": f"{RETRY_SECONDS:g}s", "max_backoff": f"{RETRY_SECONDS:g}s"},
    )


def set_back(estate: Estate, step: float) -> float:
    """One round, with a step of so many seconds; how many seconds late the retry was."""
    clock = ShiftedClock(estate.folder / "clock")
    producer = Producer(estate, clock, "encode")
    pool = estate.start(before=clock.before)
    until(pool.is_working("encode", "import"), "the streams")
    until(lambda: len(estate.notes("import")) >= 3, "the back-off of the one that cannot start")
    for _ in range(3):  # and one that could, and dies again and again
        pid = pool.stream_pid("import")
        estate.kill(pid)
        until(lambda pid=pid: pool.stream_pid("import") != pid, "its restart")
    estate.kill(pool.stream_pid("import"))
    before = [producer.send() for _ in range(5)]
    retried = producer.send(f'{{"do": "retry", "after": {RETRY_SECONDS}, "until": 1}}')
    until(lambda: len(estate.files("later")) == 1, "the retry's waiting")
    tries = len(estate.notes("import"))
    clock.step(-step)
    after = [producer.send() for _ in range(5)]
    stepped = time.monotonic()
    until(pool.is_working("import"), "the restart of the one that died", patience=2 + LATE_SECONDS)
    until(lambda: len(estate.notes("import")) > tries, "the next try", patience=2 * LONGEST_PAUSE)
    (estate.folder / "mended").touch()
    dreamt = estate.send("dreaming")
    until(estate.finished(retried), "the retry", patience=RETRY_SECONDS + LATE_SECONDS)
    until(estate.finished(*before, *after), "the other jobs")
    until(estate.finished(dreamt), "a job of the one that was mended", patience=2 * LONGEST_PAUSE)
    producer.close()
    assert pool.stop() == 0
    assert "Traceback" not in pool.log
    first, second = estate.runs()[retried]
    assert first.end is None
    waited = second.start - first.start
    assert RETRY_SECONDS - 0.1 <= waited <= RETRY_SECONDS + LATE_SECONDS
    assert stepped < second.start
    assert len(set(producer.ids)) == len(producer.ids)
    assert all(earlier < later for earlier, later in itertools.pairwise(producer.stamps)), producer.stamps
    estate.check_settled([*producer.ids, dreamt])
    return max(0.0, waited - RETRY_SECONDS)
