"""What strangers put into jobs, names, errors and files reaches no terminal raw, and forges no log line.

One pool with a job of every kind is looked at by every command that shows something of it, through a pipe and on a
terminal. What a handler itself prints is not looked at: that is passed on as it is.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from databases import DatabaseEstate
from pool import _COMMAND as COMMAND
from pool import PATIENCE, Estate, Pool, lines_of, until
from staining import EVIL, EVIL_NAME

from queuekit.lifecycle import State
from queuekit.testing.jobs import make_job
from workerpool import pauses
from workerpool.cli.main import cli

HANDLER = {"handler": "staining:stain", "retries": 1}
PAYLOADS = ("tell", "raise", "retry", "discard", "die", "wait", EVIL)
SLOW = 100.0  # seconds: five processes are started by the test, and two more by what it does
OWN_SEQUENCES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
"""What drawing takes: colours, places, the other screen. None of `EVIL`'s begins so but the two that are looked for."""
OF_EVIL = (
    "\x1b]",
    "\x1b[2J\x1b[31mRED",
    "\x9b",
    "\x9d",
    "\u202e",
    "\u2066",
    "\x85",
    "\u2028",
    "\x00",
    "\x07",
    "\ufeff",
)


def ids() -> dict[str, str]:
    """A job's id for each payload: as evil as an id may be."""
    return {payload: f"{payload if payload.isalpha() else 'evil'}-{EVIL_NAME}" for payload in PAYLOADS}


def stain(estate: Estate) -> Pool:
    """A pool with a job in every state, each in the words of a stranger; and files that strangers left."""
    (estate.folder / "broken.py").write_text(f"raise ImportError({EVIL_NAME!r})\n")
    jobs = [make_job(id, "encode", payload=payload.encode(), extensions={EVIL: EVIL}) for payload, id in ids().items()]
    jobs += [make_job(f"unnamed-{EVIL_NAME}", f"no-stream-{EVIL_NAME}"), make_job(f"waits-{EVIL_NAME}", EVIL_NAME)]
    estate.queue.send_batch(jobs)
    place = Path(estate.boards)
    pauses.pause(str(place), EVIL_NAME)
    (pause,) = (place / "pauses").iterdir()
    pause.write_text(json.dumps({**json.loads(pause.read_text()), "user": EVIL}))
    if not isinstance(estate, DatabaseEstate):
        (estate.root / "new" / f"0000000000000001-00000000-0000000001-encode-{bad_file()}").write_text(EVIL)
        (estate.root / "other.drain.lease").write_text(f"pid-1-{EVIL_NAME}\n{time.time() + 1e6}")
    pool = estate.start()
    rest = [job for payload, job in ids().items() if payload not in {"wait", "retry"}]
    until(lambda: all(estate.queue.signal(job) for job in rest), "the ends", SLOW)
    until(lambda: estate.queue.look_up(ids()["retry"]).state is State.LATER, "the deferral", SLOW)  # type: ignore[union-attr]
    until(lambda: any(row.job for row in pool.rows()), "the run", SLOW)
    return pool


def bad_file() -> str:
    """The end of a file's name that no identifier may have, as far as a file's name may."""
    return EVIL.replace("\x00", "").replace("/", "")[:60]


def streams() -> dict[str, dict[str, object]]:
    """By the names that tables may have."""
    return {
        "encode": {**HANDLER, "workers": 2},
        json.dumps(EVIL_NAME): HANDLER,
        "broken": {"handler": "broken:stain"},
        "other": HANDLER,
    }


@pytest.fixture(scope="module", params=["folder", "sqlite"])
def stained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Estate]:
    """An estate whose pool runs, with a log file in JSON."""
    folder = tmp_path_factory.mktemp("stained")
    log = {"file": str(folder / "pool.log"), "format": "json"}
    estate = (
        Estate(folder, streams(), log=log)
        if request.param == "folder"
        else DatabaseEstate(folder, f"sqlite:{folder}/jobs.db", streams(), log=log)
    )
    with estate:
        stain(estate)
        yield estate


def said(estate: Estate, *words: str) -> str:
    """All that a command says through pipes, whatever its exit code."""
    done = CliRunner().invoke(cli, [*words, "--config", str(estate.config)], prog_name="workerpool")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.output_bytes.decode()


def check_plain(text: str) -> None:
    """Nothing but what can be printed, in lines."""
    strange = sorted({each for each in text if each != "\n" and not each.isprintable()})
    assert not strange, f"{strange} in {[line for line in text.split(chr(10)) if not line.isprintable()][:3]}"
    assert not [line for line in text.split("\n") if line.startswith("2026-11-30 00:00:00")]


EACH_JOB = [["show", job] for job in (*ids().values(), f"waits-{EVIL_NAME}", f"unnamed-{EVIL_NAME}")]
COMMANDS = [
    ["status"],
    ["top"],
    ["jobs"],
    ["jobs", "--stream", EVIL_NAME],
    ["jobs", "--stream", f"{EVIL_NAME}x"],
    *EACH_JOB,
    ["show", EVIL.replace("\x00", "")],
    ["doctor"],
    ["check"],
    ["fsck"],
    ["send", f"{EVIL_NAME}x", "payload"],
    ["cancel", ids()["tell"]],
    ["release", ids()["raise"]],
    ["retry", f"waits-{EVIL_NAME}"],
    ["replay", ids()["raise"]],
    ["replay", ids()["discard"]],
    ["pause", f"{EVIL_NAME}x"],
    ["pause", EVIL_NAME],
    ["reload", "--store", f"dir:{EVIL_NAME}"],
    ["status", "--store", f"dir:/nowhere/{EVIL_NAME}"],
    ["status", "--config", f"/nowhere/{EVIL_NAME}"],
    ["systemd"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: f"{words[0]}-{ascii(words[1:])[1:14]}")
def test_a_command_prints_nothing_raw(stained: Estate, words: list[str]) -> None:
    text = said(stained, *words)
    assert text
    check_plain(text)


@pytest.mark.parametrize(
    "words", [["status"], ["jobs"], *EACH_JOB], ids=lambda words: f"{words[0]}-{ascii(words[1:])[:14]}"
)
def test_json_is_plain_text_too(stained: Estate, words: list[str]) -> None:
    """A person may look at it on a terminal."""
    text = said(stained, *words, "--json")
    check_plain(text)
    assert json.loads(text)


def test_the_words_of_strangers_are_shown(stained: Estate) -> None:
    """Else the tests above would pass because nothing is."""
    escaped = EVIL_NAME.encode("unicode_escape").decode()
    assert escaped in said(stained, "status")
    assert said(stained, "jobs").count(escaped) >= len(PAYLOADS)
    assert "RED" in said(stained, "show", ids()["raise"])
    assert "FORGED" in said(stained, "show", f"evil-{EVIL_NAME}")
    assert "FORGED" in said(stained, "show", f"waits-{EVIL_NAME}"), "who paused its stream"


@pytest.mark.parametrize("words", [["status"], ["top"], ["jobs"], EACH_JOB[1]], ids=lambda words: words[0])
def test_a_terminal_gets_nothing_raw(stained: Estate, words: list[str]) -> None:
    text = on_terminal(stained, *words).decode()
    assert "RED" in text or "\\u202e" in text
    for each in OF_EVIL:
        assert each not in text, ascii(text[max(0, text.index(each) - 200) :][:400])
    assert not [line for line in text.splitlines() if line.startswith("2026-11-30 00:00:00")]
    check_plain(OWN_SEQUENCES.sub("", text).replace("\r\n", "\n").replace("\r", ""))


def on_terminal(estate: Estate, *words: str) -> bytes:
    """What a command draws on a terminal until it ends; `top` is interrupted after some frames."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *words, "--config", str(estate.config)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=estate.environment() | {"TERM": "xterm-256color", "COLUMNS": "300", "LINES": "60"},
        start_new_session=True,
    )
    os.close(theirs)
    drawn = b""
    try:
        while select.select([ours], [], [], PATIENCE)[0]:
            with contextlib.suppress(OSError):  # EIO: the last one has closed it
                drawn += (more := os.read(ours, 65536))
                if more:
                    if words[0] == "top" and drawn.count(b"encode") >= 6:
                        process.send_signal(signal.SIGINT)
                    continue
            break
        process.wait(PATIENCE)
    finally:
        process.kill()
        process.wait(PATIENCE)
        os.close(ours)
    return drawn


def test_what_another_program_has_put_into_a_table_stops_no_command(tmp_path: Path) -> None:
    """Not even a stream that can have no lease, nor an id that no port would take."""
    with DatabaseEstate(tmp_path, f"sqlite:{tmp_path}/jobs.db", {"encode": {}}) as estate:
        estate.queue.send_batch([make_job("one"), make_job("two"), make_job("three")])
        with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db")) as other, other:
            other.execute("UPDATE queuekit_jobs SET stream_id = ? WHERE id = 'one'", (f"a/b{EVIL}",))
            other.execute("UPDATE queuekit_jobs SET id = ? WHERE id = 'two'", (f"../two{EVIL}",))
        for words in (
            ["status"],
            ["top"],
            ["jobs"],
            ["jobs", "--json"],
            ["doctor"],
            ["fsck"],
            ["show", f"../two{EVIL}"],
        ):
            check_plain(said(estate, *words))
        told = json.loads(said(estate, "status", "--json"))
        assert {stream["name"] for stream in told["streams"]} == {"encode", f"a/b{EVIL}"}


# -- logs


@pytest.mark.parametrize(("form", "store"), [("json", "sqlite"), ("text", "folder")])
def test_no_log_line_is_forged(tmp_path: Path, form: str, store: str) -> None:
    log = {"file": str(tmp_path / "pool.log"), "format": form, "level": "debug"}
    estate = (
        Estate(tmp_path, streams(), log=log, telemetry={"hooks": ["log"]})
        if store == "folder"
        else DatabaseEstate(tmp_path, f"sqlite:{tmp_path}/jobs.db", streams(), log=log, telemetry={"hooks": ["log"]})
    )
    with estate:
        pool = stain(estate)
        assert pool.stop() == 0
    text = (tmp_path / "pool.log").read_bytes().decode()
    assert len(list(lines_of(text, "RED"))) >= 4
    check_plain(text)
    for line in text.splitlines():
        HAS_FORM[form](line)


def is_json(line: str) -> None:
    told = json.loads(line)
    assert {"time", "level", "process", "pid", "logger", "message"} <= told.keys()
    assert isinstance(told["pid"], int)


def is_text(line: str) -> None:
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (debug|info|warning|error) \S+|    ", line), line


HAS_FORM: dict[str, Callable[[str], None]] = {"json": is_json, "text": is_text}
