"""What people and service managers do to a running pool: pausing streams, stopping by hand, running it as a service."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pool import PATIENCE, Estate, Pool, is_dead, lines_of, prepare, until

from queuekit.job import Delivery

COMMAND = str(Path(sys.executable).with_name("workerpool"))
STREAMS = ("encode", "dreaming")


def command(estate: Estate, *words: str) -> str:
    """Run a command on the estate's configuration; returns what it prints."""
    done = subprocess.run(
        [COMMAND, *words, "--config", str(estate.config)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env=estate.environment(),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def paused_since(estate: Estate, stream: str) -> int | None:
    told = json.loads(command(estate, "status", "--json"))
    since: int | None = next(each for each in told["streams"] if each["name"] == stream)["paused_since_ms"]
    return since


def gate_of(estate: Estate) -> str:
    return str(estate.folder / "gate")


def open_gate(estate: Estate) -> None:
    (estate.folder / "gate").touch()


def is_worked_by_another(pool: Pool, pid: int) -> Callable[[], bool]:
    """A fact to wait for: the stream is worked, and not by that process."""
    return lambda: pool.is_working()() and pool.stream_pid() != pid


def death_of(pid: int) -> Callable[[], bool]:
    """A fact to wait for."""
    return lambda: is_dead(pid)


# -- pause and resume


def test_what_runs_is_finished_and_nothing_more_is_claimed_until_resume(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate({name: {} for name in STREAMS}, watch={"scan": "1h"})
    pool = estate.start()
    running = estate.send(do="wait", file=gate_of(estate))
    until(estate.started(running), "the run")
    command(estate, "pause", "encode")
    until(lambda: any(lines_of(pool.log, "stream encode is paused")), "the pause")
    behind = [estate.send() for _ in range(5)]
    open_gate(estate)
    until(estate.finished(running), "the end of what ran")
    other = estate.send("dreaming")
    until(estate.finished(other), "the other stream's job")
    assert (estate.count("new"), estate.count("cur")) == (5, 0)
    command(estate, "resume", "encode")
    until(estate.finished(*behind), "the rest, at once", patience=5)
    assert pool.stop() == 0
    estate.check_settled([running, *behind, other])
    estate.check_repeats()


def test_a_pause_survives_restarts_and_is_seen_in_status(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate({name: {} for name in STREAMS})
    assert estate.queue.pending_count() == 0
    command(estate, "pause", "encode")
    since = paused_since(estate, "encode")
    assert since is not None
    waiting = estate.send()
    for ending in ("stop", "kill the stream", "kill the pool"):
        pool = estate.start()
        until(pool.is_working(*STREAMS), "the pool")
        if ending == "kill the stream":
            victim = pool.stream_pid()
            estate.kill(victim)
            until(is_worked_by_another(pool, victim), "another one")
        done = estate.send("dreaming")
        until(estate.finished(done), "the other stream's job")
        assert (paused_since(estate, "encode"), paused_since(estate, "dreaming")) == (since, None)
        if ending == "kill the pool":
            tree = pool.tree()
            pool.signal_tree(signal.SIGKILL)
            for pid in tree:
                until(death_of(pid), "the death of the pool")
            pool.wait()
        else:
            assert pool.stop() == 0
        assert estate.runs().get(waiting) is None
    command(estate, "resume", "encode")
    assert estate.run("--burst").code == 0
    assert len(estate.runs()[waiting]) == 1


def test_pausing_while_a_pool_starts_and_ends_hurts_no_pool(make_estate: Callable[..., Estate]) -> None:
    """The signal that a pause is told by would kill a master that is not set up for it."""
    estate = make_estate()
    job = estate.send()
    estate.run("--burst")
    for _ in range(3):
        pool = estate.start()
        until(pool.rows, "the board")
        command(estate, "pause", "encode")
        command(estate, "resume", "encode")
        until(pool.is_working(), "the pool")
        pool.tell(signal.SIGTERM)
        command(estate, "pause", "encode")
        command(estate, "resume", "encode")
        assert pool.wait() == 0
    estate.check_settled([job])


def test_a_burst_does_not_wait_for_a_paused_stream_and_says_what_is_left(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate({name: {} for name in STREAMS})
    jobs = estate.send_many(20, STREAMS)
    command(estate, "pause", "dreaming")
    pool = estate.run("--burst")
    assert pool.code == 0
    assert any(lines_of(pool.log, "stream dreaming is paused", "jobs left: 10"))
    assert estate.check(jobs) == {"done": 10, "new": 10}
    command(estate, "resume", "dreaming")
    assert estate.run("--burst").code == 0
    estate.check_settled(jobs)


def test_a_burst_goes_on_when_its_last_stream_is_resumed(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate({name: {} for name in STREAMS})
    held = estate.send("encode", do="wait", file=gate_of(estate))
    waiting = estate.send("dreaming")
    command(estate, "pause", "dreaming")
    pool = estate.start("--burst")
    until(estate.started(held), "the run")
    command(estate, "resume", "dreaming")
    until(estate.finished(waiting), "the resumed stream's job")
    open_gate(estate)
    assert pool.wait() == 0
    assert "jobs left" not in pool.log
    estate.check_settled([held, waiting])


# -- interrupts, as a person sees them


@contextlib.contextmanager
def at_a_terminal(estate: Estate) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], str]]]:
    """A pool whose standard error is a terminal, and what that shows."""
    screen, terminal = pty.openpty()
    os.set_blocking(screen, False)
    shown: list[bytes] = []

    def read() -> str:
        with contextlib.suppress(OSError):  # nothing new, or nobody is there any more
            shown.append(os.read(screen, 65536))
        return b"".join(shown).decode()

    process = subprocess.Popen(
        [COMMAND, "run", str(estate.config)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=terminal,
        env=estate.environment(),
        cwd=estate.folder,
        preexec_fn=prepare,  # noqa: PLW1509  no thread of this process holds a lock that it needs
        start_new_session=True,
    )
    os.close(terminal)
    try:
        yield process, read
    finally:
        process.kill()
        process.wait(PATIENCE)
        os.close(screen)


WORDS = (
    "stopping: what runs may finish within 25 s; interrupt again to kill it, it will run again",
    "killing the workers: their jobs will run again; interrupt again to kill everything at once",
    "killing everything at once",
)


def said(text: Callable[[], str], word: str) -> Callable[[], bool]:
    """A fact to wait for: the word is in the text."""
    return lambda: word in text()


@pytest.mark.parametrize(
    "log", [{}, {"level": "error"}, {"file": "pool.log"}, {"format": "json"}], ids=["text", "errors", "file", "json"]
)
def test_a_terminal_shows_what_the_next_interrupt_will_do(
    make_estate: Callable[..., Estate], log: dict[str, str]
) -> None:
    """Also when the log goes to a file, or holds errors only; once in any case."""
    estate = make_estate({"encode": {"workers": 0}}, log=log)
    hanging = estate.send(do="hang")
    with at_a_terminal(estate) as (process, screen):
        until(estate.started(hanging), "the run")
        for word in WORDS:
            process.send_signal(signal.SIGINT)
            until(said(screen, word), word)
        assert process.wait(PATIENCE) == 5
        assert [screen().count(word) for word in WORDS] == [1, 1, 1]
    if "file" in log:
        assert [(estate.folder / "pool.log").read_text().count(word) for word in WORDS] == [1, 1, 1]
    assert estate.check([hanging]) == {"cur": 1}


@pytest.mark.parametrize("flags", [(), ("--burst",)], ids=["pool", "burst"])
def test_a_log_in_json_has_each_answer_as_a_message(make_estate: Callable[..., Estate], flags: tuple[str, ...]) -> None:
    estate = make_estate({"encode": {"workers": 0}})
    hanging = estate.send(do="hang")
    pool = estate.start(*flags)
    until(estate.started(hanging), "the run")
    for word in WORDS:
        pool.tell(signal.SIGINT)
        until(said(lambda: pool.log, word), word)
    assert pool.wait() == 5
    lines = [json.loads(line) for line in pool.log.splitlines() if line.startswith("{")]
    answers = [line["message"] for line in lines if line["process"] == "master" and line["level"] == "warning"]
    assert answers[: len(WORDS)] == list(WORDS)


# -- as a service


class Manager:
    """What a service manager hears."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.heard: list[str] = []

    def listen(self) -> list[str]:
        with contextlib.suppress(BlockingIOError):
            while True:
                self.heard.append(self._listener.recv(4096).decode())
        return self.heard

    def has(self, start: str, times: int = 1) -> Callable[[], bool]:
        """A fact to wait for: so many messages began so."""
        return lambda: sum(message.startswith(start) for message in self.listen()) >= times


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    with tempfile.TemporaryDirectory(prefix="wp-") as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(f"{folder}/notify")
        ear.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", f"{folder}/notify")
        yield Manager(ear)


def test_a_service_says_ready_reloads_and_says_that_it_stops(
    make_estate: Callable[..., Estate], manager: Manager
) -> None:
    estate = make_estate({name: {} for name in STREAMS})
    pool = estate.start()
    until(manager.has("READY=1"), "its being ready")
    assert pool.is_working(*STREAMS)()
    assert any(message.startswith("STATUS=2 streams") for message in manager.listen())
    pool.tell(signal.SIGHUP)
    until(manager.has("READY=1", 2), "the reload")
    assert [m.split("=")[0] for m in manager.heard if not m.startswith("STATUS")] == ["READY", "RELOADING", "READY"]
    assert pool.stop() == 0
    manager.listen()
    assert manager.heard.count("STOPPING=1") == 1
    assert manager.heard[-1].startswith("STATUS=stopping")
    assert not any(message.startswith("WATCHDOG") for message in manager.heard)


def test_a_service_whose_handlers_all_fail_is_never_ready(make_estate: Callable[..., Estate], manager: Manager) -> None:
    estate = make_estate({"encode": {"handler": "nowhere:act"}})
    assert estate.run().code == 2
    assert "READY=1" not in manager.listen()


def test_a_service_with_one_bad_handler_is_ready_and_says_which(
    make_estate: Callable[..., Estate], manager: Manager
) -> None:
    estate = make_estate({"encode": {}, "dreaming": {"handler": "nowhere:act"}})
    pool = estate.start()
    until(manager.has("READY=1"), "its being ready")
    until(lambda: any("failing: dreaming" in message for message in manager.listen()), "the status line")
    assert pool.stop() == 0


def watched(estate: Estate, manager: Manager, monkeypatch: pytest.MonkeyPatch) -> Pool:
    monkeypatch.setenv("WATCHDOG_USEC", "400000")
    pool = estate.start()
    until(pool.is_working(), "the pool")
    until(manager.has("WATCHDOG=1", 3), "the feeding")
    return pool


def test_the_watchdog_is_fed_while_the_stream_lives_and_not_while_it_is_stopped(
    make_estate: Callable[..., Estate], manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    estate = make_estate(lease={"ttl": "1s"})
    pool = watched(estate, manager, monkeypatch)
    stream = pool.stream_pid()
    os.kill(stream, signal.SIGSTOP)
    until(lambda: any(lines_of(pool.log, "the watchdog is not fed", "encode")), "the noticing")
    fed = manager.listen().count("WATCHDOG=1")
    beat = pool.rows()[1].heartbeat_ns
    job = estate.send()
    os.kill(stream, signal.SIGCONT)
    until(lambda: pool.rows()[1].heartbeat_ns > beat, "a sign of life")
    until(manager.has("WATCHDOG=1", fed + 1), "the feeding again")
    until(estate.finished(job), "a job")
    assert pool.stop() == 0


def test_a_long_inline_handler_starves_no_watchdog(
    make_estate: Callable[..., Estate], manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    estate = make_estate({"encode": {"workers": 0}}, lease={"ttl": "1s"})
    pool = watched(estate, manager, monkeypatch)
    job = estate.send(do="wait", file=gate_of(estate))
    until(estate.started(job), "the run")
    fed = manager.listen().count("WATCHDOG=1")
    until(manager.has("WATCHDOG=1", fed + 12), "two seconds of feeding, twice the ttl")
    assert "the watchdog is not fed" not in pool.log
    open_gate(estate)
    until(estate.finished(job), "the job")
    assert pool.stop() == 0
    assert {Delivery.of(each).crashes for each in estate.queue.completed()} == {0}
