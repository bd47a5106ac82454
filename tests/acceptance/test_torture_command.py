"""`workerpool torture` as it is typed: handlers of every kind of fault are found out, sound ones are not accused."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import stat
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import psutil
import pytest
from pool import until

COMMAND = os.path.join(sysconfig.get_path("scripts"), "workerpool")
HANDLERS = '''
import asyncio, os, signal, sqlite3, subprocess, sys, tempfile, time
from queuekit import ArtifactRef
from workerpool import Outcome, Retry


def replaces(job, ctx):
    path = "out-" + job.payload.decode()
    with tempfile.NamedTemporaryFile("w", delete=False) as file:
        for number in range(4):
            file.write(f"{number}\\n")
    os.replace(file.name, path)
    ctx.artifact(ArtifactRef.file_path(path))
    ctx.submit("next", job.payload)


def keyed(job):
    with sqlite3.connect(os.environ["INDEX"]) as database:
        database.execute("CREATE TABLE IF NOT EXISTS seen (id TEXT PRIMARY KEY)")
        database.execute("INSERT INTO seen VALUES (?) ON CONFLICT DO NOTHING", (job.id,))


def unkeyed(job):
    with sqlite3.connect(os.environ["INDEX"]) as database:
        database.execute("CREATE TABLE IF NOT EXISTS seen (id TEXT)")
        database.execute("INSERT INTO seen VALUES (?)", (job.id,))
    return None


def appends(job):
    for number in range(3):
        with open("log", "a") as file:
            file.write(f"{number}\\n")
    return None  # killed here


def appends_last(job):
    os.write(os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), b"once\\n")


def writes_half(job):
    if os.path.exists("result"):
        return
    with open("result", "w") as file:
        file.write("the first half, ")
        file.flush()
        file.write("the second half")  # killed here


def misses(job):
    if not os.path.exists("done"):
        open("done", "w").close()
        open("effect", "w").close()  # killed here


def submits_anew(job, ctx):
    ctx.submit("next", os.urandom(4).hex().encode() if os.path.exists("begun") else b"first")
    open("begun", "w").close()


def hangs(job):
    while os.path.exists("lock"):
        time.sleep(0.001)
    open("lock", "w").close()
    os.unlink("lock")  # killed here
    open("done", "w").close()


def leaves(job):
    """Starts a process in another session that would write, if it lived, when the handler runs again."""
    if os.path.exists("begun"):
        open("again", "w").close()
        time.sleep(0.5)
        os.unlink("again")
    code = "import os, time\\nopen('begun', 'w').close()\\nwhile not os.path.exists('again'): time.sleep(0.001)\\n"
    code += "open('late', 'w').close()"
    child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    with open(os.environ["PIDS"], "a") as file:
        file.write(f"{child.pid}\\n")
    while not os.path.exists("begun"):
        time.sleep(0.001)
    return None  # killed here


async def waits(job, *, ctx):
    await asyncio.sleep(0.001)
    with open("log", "a") as file:
        file.write("once\\n")
    await asyncio.sleep(0)  # killed here


def many(jobs, ctx):
    for job in jobs:
        with open(job.id, "w") as file:
            file.write(f"{len(jobs)} {job.payload}")


def attempts(job, ctx):
    with open("attempts", "w") as file:
        file.write(f"{ctx.attempt} {ctx.fence}")
    return None  # killed here


def fails(job):
    raise ValueError("as always")


def unsteady(job):
    with open("time", "w") as file:
        file.write(f"at {time.time_ns()} ns")


def nothing(job):
    return None


def sleeps(job):
    with open("log", "a") as file:
        file.write("once\\n")
    time.sleep(1.0 if job.payload else 0.2)


def has_an_alarm(job):
    signal.signal(signal.SIGALRM, lambda number, frame: None)
    signal.setitimer(signal.ITIMER_REAL, 30)
    sleeps(job)


def slow(job):
    open(os.environ["STARTED"], "w").close()
    time.sleep(0.2)
    open("out", "w").close()
'''


@pytest.fixture
def place(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    (tmp_path / "handlers.py").write_text(HANDLERS)
    (tmp_path / "scratch").mkdir()
    return tmp_path


def start(place: Path, *arguments: str, **environ: str) -> subprocess.Popen[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("WORKERPOOL_")}
    return subprocess.Popen(
        [COMMAND, "torture", *arguments],
        cwd=place,
        env=kept | {"TMPDIR": str(place / "scratch")} | environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def torture(place: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    with start(place, *arguments, **environ) as process:
        out, err = process.communicate(timeout=100)
    assert "--keep" in arguments or list((place / "scratch").iterdir()) == [], "nothing stays"
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def report_of(place: Path, *arguments: str, code: int, **environ: str) -> dict[str, Any]:
    done = torture(place, *arguments, "--json", **environ)
    assert done.returncode == code, done.stderr + done.stdout
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def line_of(handler: str) -> int:
    """The line of a handler that the comment `killed here` marks."""
    lines = HANDLERS.splitlines()
    begin = next(number for number, line in enumerate(lines) if f"def {handler}(" in line)
    return next(number for number, line in enumerate(lines, start=1) if number > begin and "# killed here" in line)


@pytest.mark.parametrize(
    "arguments",
    [
        ("replaces", "--payload", "a", "--payload", "b"),
        ("keyed", "--env", "INDEX={}/index.db"),
        ("many", "--batch"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_handler_that_may_run_twice_has_no_finding(place: Path, arguments: tuple[str, ...]) -> None:
    handler, *rest = arguments
    report = report_of(place, f"handlers:{handler}", *rest, "--points", "25", "--seed", "1", code=0)
    assert (report["tried"], report["seed"], report["findings"]) == (25, 1, [])
    assert report["tried"] - report["not_reached"] >= 10, "lines, the end and the reply are always reached"


@pytest.mark.parametrize(
    ("handler", "fault"),
    [
        ("appends", "double"),
        ("writes_half", "half"),
        ("misses", "missing"),
        ("waits", "double"),
    ],
)
def test_a_fault_is_found_with_the_line_where_it_is_and_can_be_had_again(place: Path, handler: str, fault: str) -> None:
    point = f"handlers.py:{line_of(handler)}#1"
    report = report_of(place, f"handlers:{handler}", "--keep-going", "--points", "14", code=1)
    finding = next(found for found in report["findings"] if found["point"] == point)
    assert (finding["fault"], finding["place"]) == (fault, point)
    assert finding["again"] == f"workerpool torture handlers:{handler} --point '{point}'"
    again = torture(place, f"handlers:{handler}", "--point", point)
    assert again.returncode == 1
    assert f"killed     before handlers.py:{line_of(handler)}, " in again.stdout
    assert f"    >   {line_of(handler):>3}  " in again.stdout.replace("     ", "   ")
    assert "  helps " in again.stdout


def test_the_first_finding_ends_it_and_its_diff_is_shown(place: Path) -> None:
    done = torture(place, "handlers:appends", "--points", "300")
    assert done.returncode == 1
    assert done.stdout.startswith("FINDING: ")
    assert "+++ log (killed, run again)" in done.stdout
    assert done.stdout.count("FINDING") == 1
    assert "1 finding; " in done.stdout.splitlines()[-1]


@pytest.mark.parametrize("point", ["end", "reply"])
def test_after_the_handler_has_returned_its_worker_may_still_die(place: Path, point: str) -> None:
    (finding,) = report_of(place, "handlers:appends_last", "--point", point, code=1)["findings"]
    assert (finding["fault"], finding["point"]) == ("double", point)
    assert finding["diff"][-1] == "+once"


@pytest.mark.parametrize("handler", ["sleeps", "has_an_alarm"])
def test_a_time_may_be_inside_of_a_call(place: Path, handler: str) -> None:
    (finding,) = report_of(place, f"handlers:{handler}", "--payload", "long", "--point", "500ms", code=1)["findings"]
    sleeping = next(number for number, line in enumerate(HANDLERS.splitlines(), start=1) if "time.sleep(1.0" in line)
    assert (finding["fault"], finding["point"]) == ("double", "500ms")
    assert finding["place"] == f"handlers.py:{sleeping}#1"
    assert 500 <= finding["ms"] < 1000


def test_the_alarm_of_a_soft_timeout_does_not_take_that_of_a_time(place: Path) -> None:
    (place / "config.toml").write_text(
        '[store]\nurl = "dir:spool"\n[streams.work]\nhandler = "handlers:sleeps"\ntimeout = "20s"\n'
    )
    (finding,) = report_of(place, "handlers:sleeps", "--point", "100ms", code=1)["findings"]
    assert finding["ms"] == pytest.approx(100)


def test_follow_up_jobs_that_were_sent_are_effects(place: Path) -> None:
    (finding,) = report_of(place, "handlers:submits_anew", "--point", "reply", code=1)["findings"]
    assert finding["names"] == ["the follow-up jobs"]
    assert "'first'" in "".join(finding["diff"])


def test_rows_and_the_output_of_a_command_are_effects(place: Path) -> None:
    index = place / "index.db"
    setup = ("--setup", f"rm -f {index}", "--env", f"INDEX={index}", "--point", "end")
    count = f"{os.path.join(sysconfig.get_path('scripts'), 'python')} -c 'import sqlite3; " + (
        f'print(sqlite3.connect("{index}").execute("SELECT count(*) FROM seen").fetchone())\''
    )
    (finding,) = report_of(place, "handlers:unkeyed", *setup, "--effects-command", count, code=1)["findings"]
    assert finding["diff"][-2:] == ["-(1,)", "+(2,)"]
    (finding,) = report_of(place, "handlers:unkeyed", *setup, "--effects", str(index), code=1)["findings"]
    assert (finding["fault"], finding["names"]) == ("double", [str(index)])
    with sqlite3.connect(index) as database:
        assert database.execute("SELECT count(*) FROM seen").fetchone() == (2,), "where it was said to be"


def test_a_run_that_hangs_is_ended_and_is_a_finding(place: Path) -> None:
    point = f"handlers.py:{line_of('hangs')}"
    (finding,) = report_of(place, "handlers:hangs", "--point", point, "--timeout", "3s", code=1)["findings"]
    assert finding["fault"] == "stuck"
    assert finding["story"] == [
        "its worker was killed",
        "it had not ended within its time; a pool would block it: crashed too often",
    ]


def test_processes_that_a_killed_run_has_started_die_with_it(place: Path) -> None:
    point, pids = f"handlers.py:{line_of('leaves')}", place / "pids"
    report = report_of(place, "handlers:leaves", "--point", point, "--skip", "again", code=0, PIDS=str(pids))
    assert report["not_reached"] == 0
    started = [int(pid) for pid in pids.read_text().split()]
    assert len(started) == 4, "two undisturbed runs, the killed one, and the one after it"
    assert not any(psutil.pid_exists(pid) for pid in started)


def test_a_killed_job_is_delivered_as_a_second_attempt_by_a_later_holder(place: Path) -> None:
    point = f"handlers.py:{line_of('attempts')}"
    (finding,) = report_of(place, "handlers:attempts", "--point", point, code=1)["findings"]
    assert finding["diff"][-2:] == ["-1 1", "+2 2"]


def test_the_configuration_says_where_handlers_are_and_how_their_stream_runs(place: Path) -> None:
    (place / "code").mkdir()
    (place / "handlers.py").rename(place / "code" / "handlers.py")
    (place / "config.toml").write_text(
        '[store]\nurl = "dir:spool"\n[handlers]\npath = ["code"]\n'
        '[streams.other]\nhandler = "handlers:nothing"\n[streams.lots]\nhandler = "handlers:many"\nbatch_size = 50\n'
    )
    (place / "jobs.jsonl").write_text('{"payload": {"n": 1}}\n{"payload": "two", "id": "two"}\n')
    report = report_of(place, "handlers:many", "--jsonl", "jobs.jsonl", "--points", "6", code=0)
    assert (report["jobs"], report["points"]) == (2, 6)
    assert not (place / "spool").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["handlers:fails"],
            "the handler fails undisturbed, so it cannot be told what a kill does\n  ValueError: as alw",
        ),
        (["handlers:unsteady"], "two undisturbed runs do not leave the same"),
        (["handlers:nothing"], "leaves nothing that could be compared"),
        (["handlers:appends", "--effects", "loge"], "an undisturbed run leaves nothing at loge"),
        (["handlers:nothin"], "did you mean 'nothing'?"),
        (["handlers:appends", "--point", "handlers.py:1"], "line 1 of handlers.py is not executed"),
        (["handlers:appends", "--point", "somewhere"], "is no point: write handlers.py:31"),
        (["handlers:appends", "--effects", "/somewhere"], "is outside of the runs' folders: name the --setup command"),
        (["handlers:appends", "--setup", "echo no; exit 7"], "the set-up command failed with exit code 7: no"),
        (["handlers:appends", "--job", "2"], "--job 2: there are 1 sample job"),
        (["handlers:appends", "--mask", "("], "Invalid value for --mask"),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_tried_is_said(place: Path, arguments: list[str], said: str) -> None:
    done = torture(place, *arguments)
    assert said in done.stderr
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


def test_what_differs_from_run_to_run_can_be_masked(place: Path) -> None:
    report_of(place, "handlers:unsteady", "--mask", r"\d+ ns", "--points", "4", code=0)


def test_an_interrupt_tells_what_was_tried_and_leaves_nothing(place: Path) -> None:
    started = place / "started"
    with start(place, "handlers:slow", "--env", f"STARTED={started}", "--json") as process:
        until(started.exists, "the handler runs")
        workers = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert json.loads(out)["interrupted"] is True
    assert not any(worker.is_running() for worker in workers)
    assert list((place / "scratch").iterdir()) == []


def test_the_folder_of_a_finding_can_be_kept(place: Path) -> None:
    (finding,) = report_of(place, "handlers:appends_last", "--point", "end", "--keep", code=1)["findings"]
    assert Path(finding["folder"], "log").read_text() == "once\nonce\n"


@pytest.mark.parametrize("what", [".", "handlers.py", "helper.py"])
def test_a_handler_that_others_can_write_is_not_imported(place: Path, what: str) -> None:
    (place / "helper.py").write_text("open('imported', 'w').close()\n")
    (place / "handlers.py").write_text("import helper\n" + HANDLERS)
    (place / what).chmod((place / what).stat().st_mode | stat.S_IWOTH)
    done = torture(place, "handlers:replaces")
    assert (done.returncode, done.stdout) == (2, "")
    assert "chmod o-w" in done.stderr
    assert not list(place.rglob("imported"))


def test_a_group_that_may_write_a_handler_is_trusted_as_for_a_pool(place: Path) -> None:
    for path in (place, place / "handlers.py"):
        path.chmod(path.stat().st_mode | stat.S_IWGRP)
    report_of(place, "handlers:replaces", "--payload", "a", "--points", "2", code=0)
