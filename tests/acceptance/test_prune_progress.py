"""`prune` at a terminal: a bar while it removes, an interrupt is obeyed, and what is kept stays whole."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from pool import Estate, until

from queuekit import Completion, JobID, ObservationStatus, QueueKit

COMMAND = str(Path(sys.executable).with_name("workerpool"))
JOBS = 3000


def end_all(queue: QueueKit) -> None:
    """Work everything off."""
    while claimed := queue.drain(limit=1000):
        queue.reply_batch([Completion(JobID(each.job.id), ObservationStatus.DONE) for each in claimed])


def test_an_interrupt_at_a_terminal_leaves_whole_records_and_the_next_run_goes_on(
    make_estate: Callable[..., Estate],
) -> None:
    estate = make_estate()
    estate.send_many(JOBS)
    end_all(estate.queue)
    terminal, theirs = pty.openpty()
    command = [COMMAND, "prune", "--older-than", "0", "--at-once", "--config", str(estate.config)]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    until(lambda: len(estate.files("done")) < 2 * JOBS, "the first removal")
    process.send_signal(signal.SIGINT)
    said = everything(terminal)
    assert process.wait(30) == 130
    assert "removing" in said
    kept = len(estate.queue.completed())
    assert f"interrupted: {JOBS - kept:,} jobs removed" in said
    assert 0 < kept < JOBS
    assert len(estate.files("done")) == 2 * kept
    again = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert again.stdout == f"{kept:,} jobs removed\n"
    assert estate.files("done") == []


def everything(terminal: int) -> str:
    """What is written to a terminal until nobody has it open any more."""
    parts = []
    try:
        while part := os.read(terminal, 65536):
            parts.append(part)
    except OSError:  # EIO: the other end is closed
        pass
    finally:
        os.close(terminal)
    return b"".join(parts).decode()
