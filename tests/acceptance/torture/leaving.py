"""Handlers that leave processes behind, in every way that a program has."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import acting

from queuekit import Job
from workerpool import JobContext

SHELL = "trap '' TERM HUP INT; while :; do sleep 100; done"
FLIGHT = (
    "import os, time\nfor _ in range(1000):\n    if os.fork(): os._exit(0)\n    os.setsid()\n    time.sleep(0.002)\n"
)


def leave(job: Job, ctx: JobContext) -> None:
    """Leave something in the way that the payload names, and end, hang or die as it says."""
    told = json.loads(job.payload)
    acting.note("start", job.id, ctx.attempt)
    WAYS[told["way"]]()
    if ctx.attempt == 1:
        end(told["end"])
    acting.note("end", job.id, ctx.attempt)


def end(how: str) -> None:
    """The ways in which a first run ends."""
    match how:
        case "return":
            return
        case "raise":
            raise ValueError("no luck")
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            time.sleep(1000)


def in_the_group() -> None:
    """A child that nobody waits for."""
    subprocess.Popen(["sleep", "1000"])


def dead_child() -> None:
    """A child that ends, and that nobody waits for."""
    if os.fork() == 0:
        os._exit(0)


def own_group() -> None:
    """A child in a group of its own."""
    subprocess.Popen(["sleep", "1000"], process_group=0)


def own_session() -> None:
    """A child in a session of its own."""
    subprocess.Popen(["sleep", "1000"], start_new_session=True)


def deaf() -> None:
    """A shell that hears no TERM, with children, in a session of its own."""
    subprocess.Popen(["sh", "-c", SHELL], start_new_session=True)


def daemon() -> None:
    """A daemon by the book: fork, setsid, fork, and nothing of the parent's."""
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")
    os.closerange(0, 256)
    os.execvp("sleep", ["sleep", "1000"])


def tree() -> None:
    """Three generations, each in a session of its own."""
    for _ in range(3):
        if os.fork():
            return
        os.setsid()
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", "1000"])
    time.sleep(1000)


def twice() -> None:
    """A child that comes back from the handler, as if it were the worker."""
    os.fork()


def flight() -> None:
    """One that forks and ends, again and again: whoever looks sees another process each time."""
    subprocess.Popen([sys.executable, "-S", "-c", FLIGHT], start_new_session=True)


WAYS: dict[str, Callable[[], None]] = {
    way.__name__: way for way in (in_the_group, dead_child, own_group, own_session, deaf, daemon, tree, twice, flight)
}
ENDS = ("return", "raise", "die", "hang")
