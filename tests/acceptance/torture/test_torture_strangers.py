"""C73: pids in files that a killed pool has left are strangers' by now, who must never be signalled."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from lengths import short_and_long

PROGRAM = Path(__file__).with_name("acting_strangers.py")
NOBODY = 65534


@pytest.mark.needs("root", "strace", "namespaces")
@pytest.mark.parametrize("uid", [0, NOBODY], ids=["own", "foreign"])
@pytest.mark.parametrize("store", ["folder", "sqlite"])
@pytest.mark.parametrize("rounds", short_and_long(1, 50))
def test_strangers_with_the_pids_of_a_dead_pool_are_left_alone(
    tmp_path: Path, store: str, uid: int, rounds: int
) -> None:
    """C73: every command looks at the dead pool's board and lease, a new pool takes over and is stopped."""
    for number in range(rounds):
        folder = tmp_path / str(number)
        folder.mkdir()
        command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, str(PROGRAM)]
        done = subprocess.run(
            [*command, str(folder), store, str(uid)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    print(f"C73: {rounds} times: {done.stdout.splitlines()[-1]}")
