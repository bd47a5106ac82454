"""Handlers for the tests of a running pool: each does what its job's payload says, and says so in a history file.

A payload is a JSON object, `{"do": "sleep", "seconds": 0.2}`; `{}` is a job that does nothing. The history is a file
that every process appends to, `ACTING_HISTORY` in the environment: a line when a run starts, one when it has ended.
"""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from queuekit import ArtifactRef, Job
from workerpool import Discard, JobContext, Outcome, Retry


def act(job: Job, ctx: JobContext) -> object:
    """Do what the payload says."""
    note("start", job.id, ctx.attempt)
    outcome = perform(told(job), job, ctx)
    note("end", job.id, ctx.attempt)
    return outcome


async def act_async(job: Job, ctx: JobContext) -> object:
    """The same in a coroutine, after it has waited for another one."""
    await asyncio.sleep(0)
    return act(job, ctx)


def act_together(jobs: list[Job], ctx: JobContext) -> list[object]:
    """The same for a batch: what one of them raises, all of them have raised."""
    note("batch", *(job.id for job in jobs))
    return [perform(told(job), job, ctx) for job in jobs]


def act_fast(job: Job) -> None:
    """Note the run, with two lines, and that is all: for jobs by the thousand."""
    note("start", job.id, 1)
    note("end", job.id, 1)


def told(job: Job) -> dict[str, Any]:
    """What the payload says; one that is no JSON object is only looked at."""
    return json.loads(job.payload) if job.payload.startswith(b"{") else {"do": "hash"}


def note(what: str, *facts: object) -> None:
    """Append one line to the history, in one write: `what pid monotonic-seconds facts…`."""
    line = " ".join(map(str, (what, os.getpid(), time.monotonic(), *facts))) + "\n"
    file = os.open(os.environ["ACTING_HISTORY"], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def perform(told: dict[str, Any], job: Job, ctx: JobContext) -> object:
    """One act. `until` is a failing act's number of failing runs; after them the job succeeds."""
    if ctx.attempt > told.get("until", sys.maxsize):
        return None
    os.write(2, told.get("say", "").encode())
    match told.get("do", "nothing"):
        case "nothing":
            return None
        case "sleep":
            time.sleep(told["seconds"])
        case "wait":
            wait_for(Path(os.path.expandvars(told["file"])))
        case "wait to be stopped":
            while not ctx.should_stop:
                time.sleep(0.005)
        case "hang":
            hang()
        case "raise":
            raise ValueError(told.get("text", "no luck"))
        case "raise oddly":
            raise Odd
        case "raise base":
            raise BaseOfItsOwn("not even an Exception")
        case "retry":
            raise Retry(after=told["after"])
        case "discard":
            raise Discard("never again")
        case "system exit":
            raise SystemExit(3)
        case "keyboard interrupt":
            raise KeyboardInterrupt
        case "generator exit":
            raise GeneratorExit
        case "exit":
            os._exit(told.get("code", 0))
        case "crash":
            ctypes.string_at(0)
        case "be killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "status":
            return Outcome(told["status"])
        case "return":
            return {"nothing": object(), "much": "x" * 50_000_000}[told["what"]]
        case "artifact":
            ctx.artifact(ArtifactRef.file_path(told["path"]))
        case "submit":
            for number in range(told["count"]):
                ctx.submit(told["into"], b"{}", extensions={"number": number})
            if told.get("then"):
                perform(told["then"], job, ctx)
        case "spawn":
            spawn(told)
        case "hash":
            note("hash", job.id, hashlib.sha256(job.payload).hexdigest())
        case unknown:
            raise AssertionError(f"no such act: {unknown}")
    return None


def wait_for(file: Path) -> None:
    """Until the test lets it go on, by making a file."""
    while not file.exists():
        time.sleep(0.005)


def hang() -> NoReturn:
    """For ever, whatever is raised into it."""
    while True:
        try:
            time.sleep(60)
        except Exception:
            continue


def spawn(told: dict[str, Any]) -> None:
    """Leave a process behind: in the worker's group, or (`daemon`) in a session of its own; then do what is next."""
    child = subprocess.Popen(["sleep", "1000"], start_new_session=told.get("daemon", False))
    note("child", child.pid)
    if told.get("then") == "hang":
        hang()


class Odd(Exception):
    """Cannot even be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class BaseOfItsOwn(BaseException):
    """What `except Exception` does not catch."""
