"""In a pid namespace of its own (C84): a pool is killed in the middle of a job, and the next one gets the same pids.

Run as a program with a folder; it says `same pids` at the end, or fails.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from pool import Estate, Pool, until

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")


def kill_all(estate: Estate, pool: Pool) -> list[int]:
    """Kill a pool, all of it, as the init of its namespace; its pids, master first, which are free again."""
    pids = pool.tree()
    for pid in pids:
        estate.kill(pid)
    pool.wait()
    for pid in pids[1:]:  # orphans, and this is their init
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
    return pids


def main(folder: str) -> None:
    """Two pools, one after the other, with the same numbers."""
    with Estate(Path(folder), {"encode": {}}) as estate:
        gate = estate.folder / "gate"
        job = estate.send(do="wait", file=str(gate))
        first = estate.start()
        until(estate.started(job), "the run")
        pids = sorted(kill_all(estate, first))
        LAST_PID.write_text(str(pids[0] - 1))
        second = estate.start()
        until(lambda: len(estate.runs()[job]) == 2, "the second run", patience=10)
        assert sorted(second.tree()) == pids, "the pids are not the same: nothing was tested"
        gate.touch()
        until(estate.finished(job), "the job")
        assert second.stop() == 0
        assert estate.check_repeats() == 1
        estate.check_settled([job])
    sys.stdout.write(f"same pids: {pids}\n")


if __name__ == "__main__":
    os.umask(0o077)
    main(sys.argv[1])
