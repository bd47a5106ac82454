"""The command as a user types it, in processes of its own, with a real pool where one is needed."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from workerpool.cli.main import COMMANDS

BIN = sysconfig.get_path("scripts")
HANDLERS = """
import time
from queuekit import Job

def work(job: Job) -> None:
    word = job.payload.decode()
    if word == "raise":
        raise ValueError("on purpose")
    while word == "hang":
        time.sleep(0.05)
"""
CONFIG = """
[streams.work]
handler = "handlers:work"
retries = 0
[shutdown]
soft = "1s"
hard = "2s"
"""


def environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("WORKERPOOL_")}
    return kept | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}


class Place:
    """A folder with a configuration, and the command run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "config.toml").write_text(CONFIG)
        (folder / "handlers.py").write_text(HANDLERS)
        self.pools: list[subprocess.Popen[bytes]] = []

    def run(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["workerpool", *arguments],
            cwd=self.folder,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            **({"stdin": subprocess.DEVNULL} | options),
        )

    def start_pool(self) -> subprocess.Popen[bytes]:
        with open(self.folder / "pool.log", "ab") as log:
            pool = subprocess.Popen(
                ["workerpool", "run"], cwd=self.folder, env=environment(), stdin=subprocess.DEVNULL, stderr=log
            )
        self.pools.append(pool)
        return pool

    def status(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.run("status", "--json").stdout)
        return told

    def stream(self) -> dict[str, Any]:
        stream: dict[str, Any] = self.status()["streams"][0]
        return stream

    def wait_for(self, fact: Callable[[], object]) -> None:
        deadline = time.monotonic() + 30
        while not fact():
            assert time.monotonic() < deadline, (self.folder / "pool.log").read_text()
            time.sleep(0.05)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    (tmp_path / "spool").mkdir(mode=0o700)
    yield made
    for pool in made.pools:
        if pool.poll() is None:
            pool.terminate()
        pool.wait(timeout=30)


def test_help_is_there_and_imports_nothing_slow() -> None:
    code = (
        "import sys\n"
        "from workerpool.cli.main import cli\n"
        "cli(['--help'], standalone_mode=False)\n"
        "print(sorted({'pydantic', 'sqlalchemy', 'rich', 'pythonjsonlogger'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment())
    assert "send" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_explains_itself(place: Place, command: str) -> None:
    done = place.run(command, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"Usage: workerpool {command}")


def test_what_init_says_to_type_next_works(tmp_path: Path) -> None:
    made = subprocess.run(
        ["workerpool", "init", "my start"], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True
    )
    steps = [line.strip() for line in made.stdout.splitlines() if line.startswith("  ")]
    assert steps[0] == f"cd {shlex.quote('my start')}"
    done = subprocess.run(
        ["sh", "-ec", "\n".join(steps)], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "1 jobs in" in done.stdout or "1 job in" in done.stdout
    assert done.stdout.rstrip().splitlines()[-1].split()[1:3] == ["hello", "done"]


def test_a_usage_error_is_exit_2_and_no_traceback(place: Place) -> None:
    for arguments in (
        ["nothing"],
        ["send"],
        ["run", "absent.toml"],
        ["run", "--only", "other"],
        ["jobs", "--state", "x"],
    ):
        done = place.run(*arguments)
        assert done.returncode == 2, arguments
        assert "Traceback" not in done.stderr


def test_a_closed_pipe_is_quiet(place: Place) -> None:
    place.run("send", "work", "--jsonl", "-", stdin=None, input='{"payload":"x"}\n' * 3000)
    done = subprocess.run(
        ["sh", "-c", "workerpool jobs --limit 0 | head -n 1"],
        cwd=place.folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""


def test_a_burst_works_everything_and_tells_of_blocked_jobs(place: Place) -> None:
    good, bad = (place.run("send", "work", word).stdout.strip() for word in ("ok", "raise"))
    done = place.run("run", "--burst")
    assert done.returncode == 6, done.stderr
    assert "done" in place.run("show", good).stdout
    told = place.run("show", bad).stdout
    for part in ("blocked", "retries exhausted", "ValueError: on purpose", f"workerpool retry {bad}"):
        assert part in told


def test_sending_and_waiting_while_a_pool_runs(place: Place) -> None:
    place.start_pool()
    place.wait_for(lambda: place.stream()["health"] == "running")
    good = place.run("send", "work", "ok", "--wait")
    assert (good.returncode, good.stdout.split()[-1], good.stderr) == (0, "done", "")
    bad = place.run("send", "work", "raise", "--wait")
    assert (bad.returncode, bad.stdout.split()[-1]) == (1, "blocked")
    assert "ValueError: on purpose" in bad.stderr
    stream = place.stream()
    assert (stream["done"], stream["blocked"], stream["lease"]["state"]) == (1, 1, "held")


def test_a_running_job_is_seen_and_left_alone_and_its_pool_is_stopped_at_once(place: Place) -> None:
    pool = place.start_pool()
    id = place.run("send", "work", "hang").stdout.strip()
    place.wait_for(lambda: [worker["job"] for worker in place.stream()["workers"]] == [id])
    assert f"pid {place.stream()['pid']}" in place.run("status").stdout
    assert "running in work-1" in place.run("show", id).stdout
    for command in ("retry", "release", "cancel"):
        done = place.run(command, id)
        assert (done.returncode, "it is running" in done.stderr) == (1, True)
    assert place.run("stop", "--now").returncode == 0
    assert pool.wait(timeout=30) == 5
    assert place.run("stop").returncode == 1
    assert (
        f"was running in work-1 when pool {pool.pid} ended; the next pool runs it again" in place.run("show", id).stdout
    )


def test_stop_ends_an_idle_pool_in_order(place: Place) -> None:
    pool = place.start_pool()
    place.wait_for(lambda: place.stream()["health"] == "running")
    assert place.run("reload").returncode == 0
    assert place.run("stop").returncode == 0
    assert pool.wait(timeout=30) == 0
    assert place.status()["running"] is False


def test_a_handler_that_exits_at_its_import_is_never_shown_as_well(place: Place) -> None:
    """CASES C92, C77."""
    (place.folder / "config.toml").write_text(f'{CONFIG}[streams.fine]\nhandler = "fine:handle"\n')
    (place.folder / "handlers.py").write_text("import os\nos._exit(3)\n")
    (place.folder / "fine.py").write_text("def handle(job): pass\n")
    place.start_pool()
    seen: list[dict[str, Any]] = []

    def looked_often() -> bool:
        told = place.status()
        if told["running"]:
            seen.append(next(each for each in told["streams"] if each["name"] == "work"))
        return len(seen) >= 10 and seen[-1]["health"] == "failing"

    place.wait_for(looked_often)
    assert {each["health"] for each in seen} <= {"not worked", "starting", "failing"}
    assert seen[-1]["error"]
    assert place.run("status").returncode == 1


def test_an_interrupted_wait_is_130(place: Place) -> None:
    sender = subprocess.Popen(
        ["workerpool", "send", "work", "ok", "--wait"],
        cwd=place.folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert sender.stdout is not None
    assert sender.stdout.readline().strip()
    sender.send_signal(signal.SIGINT)
    _, said = sender.communicate(timeout=30)
    assert sender.returncode == 130
    assert "Traceback" not in said


def test_what_a_burst_has_done_is_still_told_when_it_has_ended(place: Place) -> None:
    for word in ("fine", "fine", "raise"):
        assert place.run("send", "work", word).returncode == 0
    assert place.run("run", "--burst").returncode == 6
    assert place.run("send", "work", "fine").returncode == 0
    [stream] = place.status()["streams"]
    assert (stream["done"], stream["blocked"], stream["pending"]) == (2, 1, 1)
    assert place.run("run", "--burst").returncode == 0
    [stream] = place.status()["streams"]
    assert (stream["done"], stream["blocked"], stream["pending"]) == (1, 1, 0)  # what is kept, not what this run did


def test_a_burst_that_could_not_begin_counts_no_jobs(place: Place) -> None:
    (place.folder / "handlers.py").write_text("raise ValueError('no')\n")
    ended = place.run("run", "--burst")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "ValueError: no" in ended.stderr


# -- output that cannot be written, limits that are too low


def lines_of(place: Place, line: str) -> tuple[int, list[str]]:
    """The exit code and the lines on standard error of a shell's line."""
    made = subprocess.run(
        ["sh", "-c", line],
        cwd=place.folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    return made.returncode, made.stderr.splitlines()


needs_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")


@needs_full
@pytest.mark.parametrize("command", ["status", "jobs", "jobs --json", "check", "--help", "jobs --help"])
def test_output_that_cannot_be_written_is_one_line(place: Place, command: str) -> None:
    place.run("send", "work", "fine")
    code, said = lines_of(place, f"workerpool {command} > /dev/full")
    assert (code, said) == (1, ["workerpool: the output cannot be written: No space left on device"])


@needs_full
def test_a_job_whose_id_cannot_be_written_is_told_all_the_same(place: Place) -> None:
    code, said = lines_of(place, "workerpool send work fine > /dev/full")
    [job] = json.loads(place.run("jobs", "--json").stdout)["jobs"]
    assert (code, len(said)) == (1, 1)
    assert f"{job['id']} accepted" in said[0]


@needs_full
@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("cancel ID", "ID cancelled"),
        ("release ID", "ID pending"),
        ("pause work", "stream work is paused"),
        ("migrate dir:./spool dir:./other --keep", "1 job moved to dir:"),
        ("prune --older-than 0", "0 jobs removed"),
    ],
)
def test_a_deed_that_cannot_be_told_on_standard_output_is_told_as_done(place: Place, command: str, told: str) -> None:
    id = place.run("send", "work", "fine", "--delay", "1h").stdout.strip()
    code, said = lines_of(place, f"workerpool {command.replace('ID', id)} > /dev/full")
    line = f"workerpool: {told.replace('ID', id)}"
    assert code == 1
    assert said[-1].startswith(line)
    assert said[-1].endswith("but what is not printed was lost: No space left on device")


@pytest.mark.parametrize("command", ["status", "jobs --json", "--help"])
def test_who_has_closed_standard_output_learns_that_it_was_needed(place: Place, command: str) -> None:
    code, said = lines_of(place, f"workerpool {command} >&-")
    assert (code, said) == (1, ["workerpool: the output cannot be written: Bad file descriptor"])


def test_a_handler_may_print_although_standard_output_was_closed(place: Place) -> None:
    (place.folder / "handlers.py").write_text("def work(job): print('x' * 100_000, flush=True)\n")
    place.run("send", "work", "fine")
    code, _ = lines_of(place, "workerpool run --burst >&-")
    assert (code, place.status()["streams"][0]["done"]) == (0, 1)


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "<&- >&-"])
def test_a_burst_without_standard_output_ends_as_its_jobs_do(place: Place, closed: str) -> None:
    place.run("send", "work", "fine")
    code, said = lines_of(place, f"workerpool run --burst {closed}")
    assert code == 0
    assert not [line for line in said if "Traceback" in line]
    assert place.status()["streams"][0]["done"] == 1


@needs_full
def test_a_summary_that_cannot_be_written_is_logged(place: Place) -> None:
    place.run("send", "work", "fine")
    code, said = lines_of(place, "workerpool run --burst > /dev/full")
    assert code == 0
    assert "1 job in" in said[-1]


def test_a_limit_on_descriptors_that_is_too_low_is_told_before_anything_starts(place: Place) -> None:
    code, said = lines_of(place, "ulimit -n 30; workerpool run --burst")
    assert (code, len(said)) == (1, 1)
    needed = int(said[0].partition("at least ")[2].split()[0])
    assert "the limit is 30 (ulimit -n)" in said[0]
    place.run("send", "work", "fine")
    code, said = lines_of(place, f"ulimit -n {needed}; workerpool run --burst")
    assert (code, [line for line in said if '"error"' in line]) == (0, [])
