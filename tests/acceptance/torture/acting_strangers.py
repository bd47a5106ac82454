"""In a pid namespace of its own (C73): a pool is killed, and strangers get the pids that its files still name.

Run as a program with a folder, a store and the strangers' uid; it says what it saw, or fails.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from acting_same_pids import kill_all
from databases import DatabaseEstate
from pool import Estate, until

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
SIGNALLING = "kill,tkill,tgkill,pidfd_open,pidfd_send_signal"
_SIGNALLED = re.compile(r"\b(?:kill|tkill|tgkill|pidfd_open)\((-?\d+)")
_WORKERPOOL = str(Path(sys.executable).with_name("workerpool"))


def main(folder: Path, store: str, uid: int) -> None:
    """A pool that dies, strangers in its place, every command that might take them for it, and the next pool."""
    trace = folder / "trace"
    with an_estate(folder, store) as estate:
        job, gate = estate.send(do="wait", file=str(folder / "gate")), folder / "gate"
        pids = die(estate, job)
        with strangers(pids, uid):
            for words in (["status"], ["stop"], ["stop", "--now"], ["reload"], ["fsck", "--repair"], ["show", job]):
                command(estate, trace, words)
            second = estate.start(before=traced(trace))
            until(lambda: len(estate.runs()[job]) == 2, "the second run")
            gate.touch()
            until(estate.finished(job), "the job")
            assert command(estate, trace, ["stop"]) == 0
            assert second.wait() == 0
        signalled = [int(number) for number in _SIGNALLED.findall(trace.read_text())]
        assert second.pid in signalled, "the stop was not seen: nothing was tested"
        assert not {abs(number) for number in signalled} & set(pids), f"signalled {signalled}, strangers are {pids}"
        estate.check_settled([job])
    sys.stdout.write(f"{len(pids)} strangers, {len(signalled)} signals, none of them to a stranger\n")


def an_estate(folder: Path, store: str) -> Estate:
    """An estate over either store."""
    if store == "folder":
        return Estate(folder, {"encode": {}})
    return DatabaseEstate(folder, f"sqlite:{folder / 'jobs.db'}", {"encode": {}})


def die(estate: Estate, job: str) -> list[int]:
    """A pool is killed, all of it, while it runs the job; its pids, free again."""
    pool = estate.start()
    until(estate.started(job), "the run")
    return kill_all(estate, pool)


@contextlib.contextmanager
def strangers(pids: Sequence[int], uid: int) -> Iterator[None]:
    """Processes with these pids, each the leader of a group and a session; they must outlive the block."""
    made = []
    try:
        for pid in pids:
            LAST_PID.write_text(str(pid - 1))
            made.append(subprocess.Popen(["sleep", "1000"], start_new_session=True, user=uid, cwd="/"))
        assert [each.pid for each in made] == list(pids), "the pids are not the same: nothing was tested"
        yield
        assert [each.poll() for each in made] == [None] * len(pids), "a stranger was killed"
    finally:
        for each in made:
            each.kill()
            each.wait()


def traced(trace: Path) -> list[str]:
    """What executes a command, writes down whom it signals, and keeps it from signalling another user's processes."""
    strace = ["strace", "-D", "-f", "-qq", "-A", "-o", str(trace), "-e", f"trace={SIGNALLING}", "-e", "signal=none"]
    return ["setpriv", "--bounding-set=-kill", *strace]


def command(estate: Estate, trace: Path, words: Sequence[str]) -> int:
    """Type one; returns its exit code, which must not be that of a crash."""
    done = subprocess.run(
        [*traced(trace), _WORKERPOOL, *words, "--config", str(estate.config)],
        env=estate.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    sys.stdout.write(f"{' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}\n")
    assert "Traceback" not in done.stderr
    return done.returncode


if __name__ == "__main__":
    os.umask(0o077)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
