"""Real forks: signals in the fork window, death of a parent, pids that are another's by now, groups and strays."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from workerpool.board import Board, Kind, find_boards
from workerpool.process import (
    Child,
    Exit,
    SignalPipe,
    become_subreaper,
    child_pids,
    end_left_overs,
    is_running,
    kill_group,
    kill_process,
    kill_strays,
    parent_is_alive,
    reap,
    spawn,
    start_identity,
)
from workerpool.process.spawn import EXIT_ORPHANED

LINUX = sys.platform == "linux"
PATIENCE = 30.0


def until(fact: Callable[[], object], what: str) -> None:
    """Wait for a fact, and fail naming it when it does not become true."""
    deadline = time.monotonic() + PATIENCE
    while not fact():
        assert time.monotonic() < deadline, f"never came true: {what}"
        select.select([], [], [], 0.002)


def wait_for(*children: Child) -> dict[int, Exit]:
    """The exits of these children."""
    exits: dict[int, Exit] = {}
    until(lambda: (exits.update({e.pid: e for e in reap()}), all(c.pid in exits for c in children))[1], "children end")
    return exits


def exit_of(child: Child) -> Exit:
    return wait_for(child)[child.pid]


class Pipe:
    """A pipe for what children tell; `told` waits for one line."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        os.set_inheritable(self.writer, True)
        self._rest = b""

    def tell(self, *words: object) -> None:
        os.write(self.writer, (" ".join(map(str, words)) + "\n").encode())

    def told(self) -> list[str]:
        while b"\n" not in self._rest:
            assert select.select([self.reader], [], [], PATIENCE)[0], "nobody told anything"
            data = os.read(self.reader, 65536)
            assert data, "everybody who could tell is gone"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode().split()

    def close(self) -> None:
        os.close(self.reader)
        os.close(self.writer)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def strangers() -> Iterator[set[int]]:
    """The children that this process has already, such as the tests' database server. All others end with the test."""
    before = {child.pid for child in psutil.Process().children()}
    yield before
    children = [child for child in psutil.Process().children() if child.pid not in before]
    left = [each for child in children for each in [child, *child.children(recursive=True)]]
    for process in left:
        process.kill()
    psutil.wait_procs(left)
    reap()


def hang() -> int:
    while True:
        signal.pause()


# -- spawn


def test_a_child_runs_its_target_and_its_code_comes_back() -> None:
    exit = exit_of(spawn(lambda: 7, name="seven", own_group=False))
    assert (exit.code, exit.signal) == (7, None)
    assert exit.max_rss > 1_000_000


def test_how_a_target_ends_is_the_exit_code(capfd: pytest.CaptureFixture[str]) -> None:
    def raising(error: BaseException) -> Callable[[], int]:
        def target() -> int:
            raise error

        return target

    errors = [SystemExit(5), SystemExit(None), SystemExit("bye"), KeyboardInterrupt(), ValueError("broken \ud800")]
    children = [spawn(raising(error), name="raises", own_group=False) for error in errors]
    exits = wait_for(*children)
    assert [exits[child.pid].code for child in children] == [5, 0, 1, 130, 1]
    told = capfd.readouterr().err
    assert "bye" in told
    assert "ValueError: broken" in told
    assert told.count("Traceback") == 1


def test_what_was_printed_on_either_side_is_flushed_once() -> None:
    script = (
        "import os\n"
        "from workerpool.process import spawn\n"
        "print('from the parent')\n"
        "child = spawn(lambda: print('from the child') or 0, name='prints', own_group=False)\n"
        "os.waitpid(child.pid, 0)\n"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert told.stdout.splitlines() == ["from the parent", "from the child"]
    assert told.stderr == ""


def test_a_child_starts_with_default_signals_a_clean_mask_and_no_wakeup_fd(pipe: Pipe) -> None:
    signals = SignalPipe()
    signals.install([signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGINT])
    old = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])

    def target() -> int:
        handlers = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGINT)]
        default = all(handler is signal.SIG_DFL for handler in handlers)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        pipe.tell(default, len(mask), signal.set_wakeup_fd(-1))
        return 0

    child = spawn(target, name="clean", own_group=True, keep=[pipe.writer])
    try:
        assert pipe.told() == ["True", "0", "-1"]
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == {*old, signal.SIGUSR1}
    finally:
        signals.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
    exit_of(child)


def test_ignore_int(pipe: Pipe) -> None:
    def target() -> int:
        pipe.tell(signal.getsignal(signal.SIGINT).name)  # type: ignore[union-attr]
        return 0

    spawn(target, name="ignores", own_group=False, ignore_int=True, keep=[pipe.writer])
    assert pipe.told() == ["SIG_IGN"]
    exit_of(spawn(target, name="does not", own_group=False, keep=[pipe.writer]))
    assert pipe.told() == ["SIG_DFL"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_in_the_fork_window_ends_the_child_and_never_runs_the_parents_handler_there(
    pipe: Pipe, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child sends itself the signal at the first moment of its life, long before it is set up."""
    signals = SignalPipe()
    signals.install([number])
    real_fork = os.fork

    def fork() -> int:
        pid = real_fork()
        if pid == 0:
            os.kill(os.getpid(), number)
        return pid

    monkeypatch.setattr(os, "fork", fork)
    exit = exit_of(spawn(lambda: (pipe.tell("ran"), 0)[1], name="struck", own_group=True, keep=[pipe.writer]))
    noted = signals.take()
    signals.close()
    assert exit.signal == number
    assert noted == []


def test_a_signal_to_the_parent_in_the_fork_window_is_noted_by_the_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    signals = SignalPipe()
    signals.install([signal.SIGTERM])
    real_fork = os.fork

    def fork() -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        return real_fork()

    monkeypatch.setattr(os, "fork", fork)
    exit = exit_of(spawn(lambda: 3, name="spared", own_group=True))
    noted = signals.take()
    signals.close()
    assert exit.code == 3
    assert noted == [signal.SIGTERM]


def test_no_descriptor_is_inherited_but_those_to_keep(pipe: Pipe, tmp_path: Path) -> None:
    secret = os.open(tmp_path / "secret", os.O_RDWR | os.O_CREAT)
    os.write(secret, b"secret")

    def target() -> int:
        pipe.tell(os.pread(secret, 10, 0) or "parked", os.read(0, 1) or "empty")
        os.close(secret)
        return 0

    exit = exit_of(spawn(target, name="curious", own_group=True, keep=[pipe.writer]))
    assert pipe.told() == ["parked", "empty"]
    assert exit.code == 0
    os.close(secret)


def test_a_lock_of_the_parent_is_not_kept_alive_by_its_child(tmp_path: Path) -> None:
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    ready = Pipe()
    child = spawn(lambda: (ready.tell("set up"), hang())[1], name="heir", own_group=True, keep=[ready.writer])
    ready.told()
    os.close(lock)
    other = os.open(tmp_path / "lock", os.O_RDWR)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises when somebody holds it
    os.close(other)
    ready.close()
    assert kill_group(child.pid, child.start, signal.SIGKILL)
    assert exit_of(child).signal == signal.SIGKILL


def test_a_group_of_its_own_or_the_parents() -> None:
    own = spawn(hang, name="own", own_group=True)
    shared = spawn(hang, name="shared", own_group=False)
    assert (own.group, os.getpgid(own.pid)) == (own.pid, own.pid)
    assert (shared.group, os.getpgid(shared.pid)) == (os.getpgrp(), os.getpgrp())
    for child in (own, shared):
        assert kill_process(child.pid, child.start, signal.SIGKILL)
    wait_for(own, shared)


# -- parents


@pytest.mark.skipif(not LINUX, reason="only Linux tells a child of its parent's death")
@pytest.mark.parametrize("death_signal", [signal.SIGTERM, signal.SIGKILL])
def test_a_child_does_not_outlive_a_killed_parent(pipe: Pipe, death_signal: int) -> None:
    def middle() -> int:
        leaf = spawn(hang, name="leaf", own_group=True, death_signal=death_signal)
        pipe.tell(leaf.pid, leaf.start)
        return hang()

    child = spawn(middle, name="middle", own_group=True, keep=[pipe.writer])
    pid, start = pipe.told()
    assert is_running(int(pid), start)
    kill_process(child.pid, child.start, signal.SIGKILL)
    wait_for(child)
    until(lambda: not is_running(int(pid), start), "the leaf is gone")


def test_a_child_whose_parent_died_before_its_set_up_does_not_begin(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The middle process dies at the fork; its child waits for that before it goes on to set itself up."""
    become_subreaper()
    real_fork = os.fork

    def fork() -> int:
        before = os.getpid()
        pid = real_fork()
        if pid:
            os._exit(0)
        while os.getppid() == before:
            select.select([], [], [], 0.001)
        pipe.tell(os.getpid())
        return 0

    def middle() -> int:
        monkeypatch.setattr(os, "fork", fork)
        spawn(lambda: (pipe.tell("ran"), 0)[1], name="late", own_group=True, keep=[pipe.writer])
        return 1

    exits = wait_for(spawn(middle, name="middle", own_group=True, keep=[pipe.writer]))
    late = int(pipe.told()[0])
    if LINUX:  # elsewhere init adopts it, and keeps its exit code to itself
        until(lambda: (exits.update({e.pid: e for e in reap()}), late in exits)[1], "the orphan ends")
        assert exits[late].code == EXIT_ORPHANED
    assert not select.select([pipe.reader], [], [], 0)[0]


def test_parent_is_alive() -> None:
    assert parent_is_alive(os.getppid())
    assert not parent_is_alive(os.getpid())


# -- identity and kill


def test_an_identity_tells_a_process_from_its_successors() -> None:
    child = spawn(hang, name="one", own_group=True)
    assert start_identity(child.pid) == child.start
    assert is_running(child.pid, child.start)
    assert not is_running(child.pid, "1@another-boot")
    kill_process(child.pid, child.start, signal.SIGKILL)
    until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE, "a zombie")
    assert start_identity(child.pid) == child.start
    assert not is_running(child.pid, child.start)
    exit_of(child)
    assert start_identity(child.pid) is None


def test_a_stranger_with_a_recorded_pid_is_never_signalled() -> None:
    stranger = spawn(hang, name="stranger", own_group=True)
    for recorded in ("", "1@another-boot", f"0{stranger.start}", start_identity(os.getpid()) or ""):
        assert not kill_process(stranger.pid, recorded, signal.SIGKILL)
        assert not kill_group(stranger.pid, recorded, signal.SIGKILL)
    assert is_running(stranger.pid, stranger.start)


def test_neither_everybody_nor_init_nor_ourselves_can_be_hit_by_mistake() -> None:
    """Process 1 is a pool's master where that is the first one of a container: only its identity tells."""
    for pid in (-1, 0):
        assert not kill_process(pid, start_identity(1) or "", 0)
    for pid in (-1, 0, 1):
        assert not kill_group(pid, start_identity(1) or "", 0)
    for recorded in ("", "1@another-boot"):
        assert not kill_process(1, recorded, 0)
    assert not kill_group(os.getpgrp(), start_identity(os.getpgrp()) or "", 0)


def test_a_group_is_killed_with_its_grandchildren(pipe: Pipe) -> None:
    def target() -> int:
        sleeper = subprocess.Popen(["sleep", "1000"])
        pipe.tell(sleeper.pid, start_identity(sleeper.pid))
        return hang()

    child = spawn(target, name="parent of a program", own_group=True, keep=[pipe.writer])
    pid, start = pipe.told()
    assert kill_group(child.pid, child.start, signal.SIGKILL)
    wait_for(child)
    until(lambda: not is_running(int(pid), start), "the grandchild is gone")


def test_the_group_of_a_dead_leader_is_killed_while_it_is_still_a_zombie(pipe: Pipe) -> None:
    def target() -> int:
        sleeper = subprocess.Popen(["sleep", "1000"])
        pipe.tell(sleeper.pid, start_identity(sleeper.pid))
        return 0

    child = spawn(target, name="leaves one", own_group=True, keep=[pipe.writer])
    pid, start = pipe.told()
    asked: list[int] = []

    def before(ended: int) -> None:
        asked.append(ended)
        kill_group(child.pid, child.start, signal.SIGKILL)

    until(lambda: any(exit.pid == child.pid for exit in reap(before)), "the leader is reaped")
    assert child.pid in asked
    until(lambda: not is_running(int(pid), start), "what it left is gone")


def test_the_group_of_a_leader_that_was_reaped_is_recognised_by_age_and_session(pipe: Pipe) -> None:
    def target() -> int:
        sleeper = subprocess.Popen(["sleep", "1000"])
        pipe.tell(sleeper.pid, start_identity(sleeper.pid))
        return 0

    child = spawn(target, name="leaves one", own_group=True, keep=[pipe.writer])
    pid, start = pipe.told()
    exit_of(child)
    assert not kill_group(child.pid, child.start, signal.SIGKILL, session=1)
    assert not kill_group(child.pid, "99999999999999@another-boot", signal.SIGKILL)
    assert is_running(int(pid), start)
    assert kill_group(child.pid, child.start, signal.SIGKILL, session=child.session)
    until(lambda: not is_running(int(pid), start), "what it left is gone")


@pytest.mark.skipif(not LINUX, reason="there is no subreaper elsewhere")
def test_strays_that_left_the_group_are_killed_and_known_children_live(pipe: Pipe, strangers: set[int]) -> None:
    assert become_subreaper()
    daemon = "import os,sys,time\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\n"
    daemon += f"os.write({pipe.writer}, f'{{os.getpid()}}\\n'.encode())\ntime.sleep(1000)\n"

    def target() -> int:
        return subprocess.call([sys.executable, "-c", daemon], pass_fds=[pipe.writer])

    known = spawn(hang, name="known", own_group=True)
    worker = spawn(target, name="daemonises", own_group=True, keep=[pipe.writer])
    stray = int(pipe.told()[0])
    exit_of(worker)
    until(lambda: os.getpid() == psutil.Process(stray).ppid(), "the stray is ours")
    assert stray in kill_strays([known.pid, *strangers])
    until(lambda: any(exit.pid == stray for exit in reap()), "the stray is reaped")
    assert is_running(known.pid, known.start)


@pytest.mark.skipif(not LINUX, reason="there is no subreaper elsewhere")
def test_one_that_forks_and_ends_again_and_again_does_not_get_away(pipe: Pipe, strangers: set[int]) -> None:
    """Whoever looks for it at leisure finds another process each time; and each of them leaves us a zombie."""
    assert become_subreaper()
    flight = f"import os, time\nos.write({pipe.writer}, b'away\\n')\nfor _ in range(3000):\n    time.sleep(0.002)\n"
    flight += "    if os.fork(): os._exit(0)\n    os.setsid()\n"
    subprocess.Popen([sys.executable, "-S", "-c", flight], pass_fds=[pipe.writer], start_new_session=True)
    pipe.told()
    assert end_left_overs(strangers)
    assert child_pids() <= strangers


def test_a_pid_that_changes_hands_in_the_midst_of_a_look_hides_no_stray(
    monkeypatch: pytest.MonkeyPatch, strangers: set[int]
) -> None:
    """Where few pids are free, psutil finds no file of a process that there is a moment later, and says so."""
    stray = spawn(hang, name="stray", own_group=True)
    look, looks = psutil.Process.children, []

    def children(self: psutil.Process, recursive: bool = False) -> list[psutil.Process]:
        looks.append(self.pid)
        if len(looks) == 1:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", "/proc/17/stat")
        return look(self, recursive=recursive)

    monkeypatch.setattr(psutil.Process, "children", children)
    assert kill_strays(strangers) == [stray.pid]
    assert exit_of(stray).signal == signal.SIGKILL


def test_every_ended_child_is_reaped_in_one_call_and_none_is_waited_for() -> None:
    living = spawn(hang, name="living", own_group=True)
    ending = [spawn(lambda: 0, name="ending", own_group=True) for _ in range(5)]
    until(lambda: all(psutil.Process(c.pid).status() == psutil.STATUS_ZOMBIE for c in ending), "five zombies")
    assert {exit.pid for exit in reap()} == {child.pid for child in ending}
    assert reap() == []
    assert is_running(living.pid, living.start)


def test_no_children_no_exits(strangers: set[int]) -> None:
    until(lambda: {child.pid for child in psutil.Process().children()} <= strangers, "no children")
    assert reap() == []
    assert reap(lambda pid: None) == []


# -- signals


def test_signals_are_noted_in_order_and_taken_once() -> None:
    signals = SignalPipe()
    signals.install([signal.SIGHUP, signal.SIGUSR1])
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGHUP):
        os.kill(os.getpid(), number)
    assert select.select([signals], [], [], PATIENCE)[0]
    assert signals.take() == [signal.SIGHUP, signal.SIGUSR1, signal.SIGHUP]
    assert signals.take() == []
    signals.close()


def test_closing_puts_everything_back() -> None:
    before = [signal.getsignal(signal.SIGHUP), signal.getsignal(signal.SIGINT)]
    signals = SignalPipe()
    signals.install([signal.SIGHUP])
    signals.install([signal.SIGHUP, signal.SIGINT])
    signals.close()
    signals.close()
    assert [signal.getsignal(signal.SIGHUP), signal.getsignal(signal.SIGINT)] == before
    assert signal.set_wakeup_fd(-1) == -1


def test_a_childs_end_wakes_the_loop() -> None:
    signals = SignalPipe()
    signals.install([signal.SIGCHLD])
    child = spawn(lambda: 0, name="ends", own_group=True)
    assert select.select([signals], [], [], PATIENCE)[0]
    assert signal.SIGCHLD in signals.take()
    assert [exit.pid for exit in reap()] == [child.pid]
    signals.close()


def test_a_signal_storm_neither_blocks_nor_raises() -> None:
    signals = SignalPipe()
    signals.install([signal.SIGUSR1])
    for _ in range(70_000):  # more than the pipe holds
        signal.raise_signal(signal.SIGUSR1)
    assert set(signals.take()) == {signal.SIGUSR1}
    signals.close()


# -- the board over processes


def test_after_a_kill_the_board_shows_which_job_ran(tmp_path: Path, pipe: Pipe) -> None:
    board = Board.create(str(tmp_path), 3)

    def target() -> int:
        row = board.row(1)
        row.take(kind=Kind.WORKER, stream="encode")
        row.start_job("job-1")
        row.end_job(done=1)
        row.start_job("job-2")
        pipe.tell("running")
        return hang()

    child = spawn(target, name="worker", own_group=True, keep=[pipe.writer])
    pipe.told()
    assert Board.attach(board.path).view(1).owner_is_running()
    kill_group(child.pid, child.start, signal.SIGKILL)
    exit_of(child)
    row = Board.attach(board.path).view(1)
    assert (row.pid, row.start, row.group) == (child.pid, child.start, child.group)
    assert (row.job, row.jobs_done, row.torn) == ("job-2", 1, False)
    assert not row.owner_is_running()
    board.remove()


def test_a_board_dies_with_its_master_although_a_child_lives(tmp_path: Path, pipe: Pipe) -> None:
    def master() -> int:
        board = Board.create(str(tmp_path), 2)
        heir = spawn(hang, name="heir", own_group=True, death_signal=signal.SIGWINCH)  # one that does nothing
        board.row(0).take(kind=Kind.MASTER)
        pipe.tell(heir.pid, heir.start)
        return hang()

    child = spawn(master, name="master", own_group=True, keep=[pipe.writer])
    heir, start = pipe.told()
    ((path, alive),) = find_boards(str(tmp_path))
    assert alive
    kill_process(child.pid, child.start, signal.SIGKILL)
    exit_of(child)
    assert is_running(int(heir), start)
    deadline = time.monotonic() + PATIENCE
    while find_boards(str(tmp_path)) != [(path, False)]:  # until the heir has let go of what it inherited
        assert time.monotonic() < deadline
    assert is_running(int(heir), start)
    kill_process(int(heir), start, signal.SIGKILL)


def test_readers_never_see_half_a_write(tmp_path: Path) -> None:
    board = Board.create(str(tmp_path), 1)

    def writer() -> int:
        row = board.row(0)
        row.take(kind=Kind.WORKER)
        number = 0
        while True:
            number += 1
            row.set(jobs_done=number, jobs_failed=-number)

    child = spawn(writer, name="writer", own_group=True)
    reader = Board.attach(board.path)
    until(lambda: reader.view(0).jobs_done > 0, "the writer writes")
    whole = [view for _ in range(2000) if not (view := reader.view(0)).torn]
    assert all(view.jobs_done == -view.jobs_failed for view in whole)
    assert len({view.jobs_done for view in whole}) > 1
    kill_process(child.pid, child.start, signal.SIGKILL)
    exit_of(child)
    board.remove()
