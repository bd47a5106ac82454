"""More acts, for handlers `acting_cases:act` and `acting_cases:act_together`; what is not here is `acting`'s."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import time
from typing import Any, NoReturn

import acting

from queuekit import Job
from workerpool import JobContext


def act(job: Job, ctx: JobContext) -> object:
    """Do what the payload says."""
    acting.note("start", job.id, ctx.attempt)
    outcome = perform(acting.told(job), job, ctx)
    acting.note("end", job.id, ctx.attempt)
    return outcome


def act_together(jobs: list[Job], ctx: JobContext) -> list[object]:
    """The same for a batch."""
    acting.note("batch", *(job.id for job in jobs))
    return [perform(acting.told(job), job, ctx) for job in jobs]


def perform(told: dict[str, Any], job: Job, ctx: JobContext) -> object:
    """One act."""
    match told.get("do"):
        case "hang in Python":
            hang_in_python()
        case "hang in C":
            hang_in_c()
        case "hang for a child":
            hang_for_a_child()
        case "hang deaf":
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            hang_in_c()
        case "say":
            os.write(2, told["words"].encode() * told["times"])
            if told.get("die"):
                os.kill(os.getpid(), signal.SIGKILL)
        case "log":
            ctx.logger.info("half of it", extra={"part": 1})
            logging.getLogger("mine").warning("a line of the handler's own")
        case "take memory":
            take_memory(told["mib"])
        case "sleep briefly":
            time.sleep(told["seconds"])
        case _:
            return acting.perform(told, job, ctx)
    return None


def hang_in_python() -> NoReturn:
    """For ever, in the interpreter, whatever is raised into it."""
    while True:
        try:
            while True:
                pass
        except Exception:
            continue


def hang_in_c() -> NoReturn:
    """In calls that keep the interpreter to themselves; one that a signal ends is made again."""
    while True:
        try:
            ctypes.PyDLL(None).sleep(60)
        except Exception:
            continue


def hang_for_a_child() -> None:
    """Wait for a process that does not end."""
    child = subprocess.Popen(["sleep", "1000"])
    acting.note("child", child.pid)
    while True:
        try:
            child.wait()
        except Exception:
            continue


def take_memory(mib: int) -> None:
    """Have so much memory resident, and say so."""
    block = bytearray(mib * 2**20)
    for place in range(0, len(block), 4096):
        block[place] = 1
    acting.note("took", mib)
