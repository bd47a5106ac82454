"""A real worker process, fed over its channel by a test that plays the stream process."""

from __future__ import annotations

import select
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from queuekit.completion import ArtifactRef
from queuekit.hlc import HLC
from queuekit.ids import JobID, StreamID
from queuekit.job import Job
from queuekit.status import ObservationStatus
from queuekit.wire import decode_job, encode_job
from workerpool.board import Board
from workerpool.outcome import Result, ResultKind
from workerpool.process import Channel, Child, Exit, kill_group, kill_process, kill_strays, reap, spawn
from workerpool.worker.loop import EXIT_BAD_CHANNEL, EXIT_BAD_HANDLER, WorkerSettings, worker_main
from workerpool.worker.protocol import (
    Dropped,
    Failed,
    Message,
    Out,
    Ready,
    Spent,
    WorkerInbox,
    send_job,
    send_stop,
)

PATIENCE = 30.0

HANDLERS = '''
import asyncio, os, signal, sys, time
from queuekit.completion import ArtifactRef
from queuekit.status import ObservationStatus
from workerpool.outcome import Discard, Outcome, Retry

KEPT = []


def by_payload(job, ctx):
    """Does what its payload says."""
    word, _, rest = job.payload.decode().partition(" ")
    if word == "raise":
        raise ValueError(rest)
    if word == "exit":
        sys.exit(3)
    if word == "interrupt":
        raise KeyboardInterrupt
    if word == "vanish":
        os._exit(0)
    if word == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "wait":  # for a file
        while not os.path.exists(rest):
            pass
    if word == "until-stop":
        open(rest, "w").close()
        while not ctx.should_stop:
            pass
        raise Retry(after=1.5, reason="stopping")
    if word == "hang":
        while True:
            pass
    if word == "limit":
        import resource
        limit = 2 * max(map(int, os.listdir("/dev/fd"))) + int(rest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    if word == "leak":  # descriptors, until so many are left; "none" raises
        import resource
        last = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - (0 if rest == "none" else int(rest))
        while not KEPT or KEPT[-1].fileno() + 1 < last or rest == "none":
            KEPT.append(open("/dev/null"))
    if word == "need":  # so many, for a moment; what it raises hides the system's error
        needed = []
        try:
            needed.extend(open("/dev/null") for _ in range(int(rest)))
        except OSError:
            raise LookupError("cannot work") from None
    if word == "close-standard":
        os.closerange(0, 3)
    if word == "close":
        os.closerange(3, 1000)
    if word == "grow":
        KEPT.append(bytearray(b"x") * (int(rest) << 20))
    if word == "fork-and-return":
        os.fork()
    if word == "fork-and-terminate":
        if (child := os.fork()) == 0:
            while True:
                signal.pause()
        os.kill(child, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    if word == "daemon":  # leaves a process in a session of its own, whose parent is gone
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.setsid()
            if (pid := os.fork()) > 0:
                os.write(writer, b"%d" % pid)
                os._exit(0)
            while True:
                signal.pause()
        daemon = os.read(reader, 20).decode()
        return Outcome("done", [ArtifactRef.commit_hash(daemon)])
    if word == "children":
        import multiprocessing, subprocess
        started = [subprocess.Popen(["sleep", "600"]).pid for _ in range(2)]
        process = multiprocessing.Process(target=time.sleep, args=(600,))
        process.start()
        return Outcome("done", [ArtifactRef.commit_hash(str(pid)) for pid in [*started, process.pid]])
    if word == "helper":
        return Outcome("done", [ArtifactRef.commit_hash(str(HELPER.pid))])
    if word == "fill":
        return Outcome("done", [ArtifactRef.file_path("x" * int(rest))])
    if word == "progress":
        ctx.progress(3, 7)
        while not os.path.exists(rest):
            pass
    if word == "submit":
        for number in range(int(rest)):
            ctx.submit("next", bytes(200_000), extensions={"n": number})
    if word == "facts":
        facts = [ctx.attempt, ctx.fence, ctx.deadline is not None]
        return Outcome("done_with_concerns", [ArtifactRef.commit_hash(repr(facts))])
    if word == "mask":
        import subprocess
        told = subprocess.run([sys.executable, "-S", "-c", CHILD], capture_output=True, text=True).stdout.strip()
        return Outcome("done", [ArtifactRef.commit_hash(told)])


CHILD = """
import signal
print(len(signal.pthread_sigmask(signal.SIG_BLOCK, [])), signal.getsignal(signal.SIGTERM).name)
"""


if os.environ.get("WP_TEST_HELPER"):
    import subprocess
    HELPER = subprocess.Popen(["sleep", "600"])


async def concurrent(job):
    await asyncio.gather(*(asyncio.sleep(0) for _ in range(3)))
    return ObservationStatus.NEEDS_CONTEXT


def batch(jobs):
    if any(job.payload == b"bad" for job in jobs):
        raise ValueError("one of them is bad")
    return [Outcome("done", [ArtifactRef.commit_hash(str(len(jobs)))]) for job in jobs]
'''


class Stream:
    """The other side: one worker, its row, and what it has said."""

    def __init__(self, folder: Path, name: str, **settings: object) -> None:
        self.strangers = {child.pid for child in psutil.Process().children()}  # such as the tests' database server
        folder.chmod(0o755)
        handlers = folder / "wp_worker_handlers.py"
        handlers.write_text(HANDLERS)
        handlers.chmod(0o644)
        values = {"stream": "encode", "name": "worker", "handler": f"wp_worker_handlers:{name}", **settings}
        self.board = Board.create(str(folder), 1)
        self.channel, end = Channel.pair()
        work = WorkerSettings(handler_path=(str(folder),), **values)  # type: ignore[arg-type]
        self.child: Child = spawn(
            lambda: worker_main(end, self.board.row(0), work),
            name="worker",
            own_group=True,
            death_signal=signal.SIGKILL,
            keep=[end.fileno()],
        )
        end.close()
        self.inbox = WorkerInbox()
        self.heard: list[Message] = []

    def give(self, *payloads: str, together: bool = False, attempt: int = 1) -> list[str]:
        """Send one job per payload; their ids are `<payload's first word>-<place>`."""
        jobs = [
            Job(id=JobID(f"{payload.split()[0]}-{place}"), stream_id=StreamID("encode"), submitted_at=HLC(1, place, 2),
                payload=payload.encode())
            for place, payload in enumerate(payloads)
        ]  # fmt: skip
        for place, job in enumerate(jobs):
            count = len(jobs) if together and place == 0 else 1
            data = encode_job(job)
            send_job(
                self.channel, job.id, data, session="s", attempt=attempt, fence=8, together=count, number=place + 1
            )
        self.channel.flush_blocking()
        return [job.id for job in jobs]

    def until(self, fact: Callable[[], object]) -> None:
        """Listen until something is true."""
        deadline = time.monotonic() + PATIENCE
        while not fact():
            assert time.monotonic() < deadline, f"never came true; heard {self.heard}"
            self.channel.flush()
            ready = select.select([self.channel], [], [], 0.005)[0] if not self.channel.eof else []
            if ready:
                self.heard += self.inbox.read(self.channel.receive())

    def outcomes(self, count: int) -> dict[str, Result]:
        """The first `count` outcomes by job."""
        self.until(lambda: len([m for m in self.heard if isinstance(m, Out)]) >= count)
        return {message.job_id: message.result for message in self.heard if isinstance(message, Out)}

    def outcome(self, payload: str) -> Result:
        """The outcome of the first job."""
        (id,) = self.give(payload)
        return self.outcomes(1)[id]

    def exit(self) -> Exit:
        """Listen until the worker has ended, and to what it had said."""
        exits: list[Exit] = []
        self.until(lambda: (exits.extend(e for e in reap() if e.pid == self.child.pid), exits)[1])
        self.until(lambda: self.channel.eof)
        return exits[0]

    def running(self) -> str:
        """The job that the board shows."""
        return self.board.view(0).job

    def close(self) -> None:
        kill_group(self.child.pid, self.child.start, signal.SIGKILL)
        kill_strays(self.strangers)
        psutil.wait_procs([child for child in psutil.Process().children() if child.pid not in self.strangers])
        reap()
        self.channel.close()
        self.board.remove()


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[Callable[..., Stream]]:
    made: list[Stream] = []

    def make(name: str = "by_payload", **settings: object) -> Stream:
        made.append(Stream(tmp_path, name, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_it_says_ready_runs_in_order_and_stops_when_told(stream: Callable[..., Stream]) -> None:
    worker = stream()
    ids = worker.give(*["ok"] * 40)
    outcomes = worker.outcomes(40)
    send_stop(worker.channel)
    assert worker.exit().code == 0
    assert worker.heard[0] == Ready()
    assert list(outcomes) == ids
    assert {result.status for result in outcomes.values()} == {ObservationStatus.DONE}
    view = worker.board.view(0)
    assert (view.jobs_done, view.jobs_failed, view.job, view.state) == (40, 0, "", "ended")
    assert view.rss > 1_000_000


def test_failures_do_not_end_it(stream: Callable[..., Stream]) -> None:
    worker = stream()
    worker.give("raise first", "exit", "interrupt", "ok")
    outcomes = list(worker.outcomes(4).values())
    assert [result.kind for result in outcomes] == [ResultKind.FAILED] * 3 + [ResultKind.SUCCESS]
    assert "ValueError: first" in outcomes[0].error
    assert "SystemExit" in outcomes[1].error
    view = worker.board.view(0)
    assert (view.jobs_done, view.jobs_failed) == (1, 3)
    assert "KeyboardInterrupt" in view.error


@pytest.mark.parametrize(("word", "code", "number"), [("vanish", 0, None), ("kill", None, signal.SIGKILL)])
def test_a_worker_that_dies_takes_one_job_with_it(
    stream: Callable[..., Stream], word: str, code: int | None, number: int | None
) -> None:
    worker = stream()
    worker.give("ok", "ok", word, "ok", "ok")
    exit = worker.exit()
    assert (exit.code, exit.signal) == (code, number)
    assert list(worker.outcomes(2)) == ["ok-0", "ok-1"]
    assert worker.running() == f"{word}-2"
    assert not worker.board.view(0).owner_is_running()


def test_the_board_shows_the_job_and_its_progress_while_it_runs(stream: Callable[..., Stream], tmp_path: Path) -> None:
    worker = stream()
    gate = tmp_path / "gate"
    before = time.monotonic_ns()
    worker.give("ok", f"progress {gate}")
    worker.until(lambda: worker.board.view(0).progress_done)
    view = worker.board.view(0)
    assert (view.job, view.progress_done, view.progress_total) == ("progress-1", 3, 7)
    assert before < view.since_ns < time.monotonic_ns()
    assert list(worker.outcomes(1)) == ["ok-0"]  # not held back by the one that runs
    gate.touch()
    worker.outcomes(2)
    assert worker.running() == ""


def test_units_that_were_called_back_are_not_started(stream: Callable[..., Stream], tmp_path: Path) -> None:
    worker = stream()
    gate = tmp_path / "gate"
    worker.give(f"wait {gate}", "ok", "ok", "ok")
    worker.until(lambda: worker.running() == "wait-0")
    worker.board.row(0).recall(3)
    gate.touch()
    assert list(worker.outcomes(2)) == ["wait-0", "ok-3"]
    assert [message for message in worker.heard if isinstance(message, Dropped)] == [Dropped(2), Dropped(3)]


def test_stop_lets_the_running_job_end_and_starts_no_other(stream: Callable[..., Stream], tmp_path: Path) -> None:
    worker = stream()
    gate = tmp_path / "gate"
    worker.give(f"wait {gate}", "ok")
    worker.until(lambda: worker.running() == "wait-0")
    send_stop(worker.channel)
    worker.channel.flush_blocking()
    gate.touch()
    assert worker.exit().code == 0
    assert list(worker.outcomes(1)) == ["wait-0"]


def test_term_only_tells_the_handler_and_int_does_nothing(stream: Callable[..., Stream], tmp_path: Path) -> None:
    worker = stream()
    started = tmp_path / "started"
    worker.give(f"until-stop {started}")
    worker.until(started.exists)
    kill_process(worker.child.pid, worker.child.start, signal.SIGINT)
    kill_process(worker.child.pid, worker.child.start, signal.SIGTERM)
    result = worker.outcomes(1)["until-stop-0"]
    assert (result.kind, result.retry_after, result.error) == (ResultKind.RETRY, 1.5, "stopping")
    worker.give("ok")
    assert worker.outcomes(2)["ok-0"].kind is ResultKind.SUCCESS


def test_the_end_of_the_channel_ends_it_before_the_next_job(stream: Callable[..., Stream], tmp_path: Path) -> None:
    worker = stream()
    gate, second = tmp_path / "gate", tmp_path / "second"
    worker.give(f"wait {gate}", f"until-stop {second}")
    worker.until(lambda: worker.running() == "wait-0")
    worker.channel.close()
    worker.channel.eof = True
    gate.touch()
    assert worker.exit().code == 0
    assert not second.exists()


def test_the_soft_limit_and_the_deadline(stream: Callable[..., Stream]) -> None:
    worker = stream(soft_timeout=0.05, timeout=60.0)
    assert "soft timeout of 0.05 s" in worker.outcome("hang").error
    worker.give("facts", attempt=3)
    facts = worker.outcomes(2)["facts-0"]
    assert facts.artifacts == (ArtifactRef.commit_hash("[3, 8, True]"),)


def test_follow_ups_come_with_the_outcome_and_in_order(stream: Callable[..., Stream]) -> None:
    result = stream().outcome("submit 20")  # 20 × 267 KB: several frames
    jobs = [decode_job(data) for data in result.submitted]
    assert [job.extensions["n"] for job in jobs] == list(range(20))
    assert {len(job.payload) for job in jobs} == {200_000}
    assert len({job.id for job in jobs}) == 20


def test_an_outcome_that_is_too_large_is_a_failed_run(stream: Callable[..., Stream]) -> None:
    worker = stream()
    worker.give("fill 120000000", "fill 20000000")
    too_large, large = worker.outcomes(2).values()
    assert (too_large.kind, large.kind) == (ResultKind.FAILED, ResultKind.SUCCESS)
    assert "too large" in too_large.error
    assert len(large.artifacts[0].value) == 20_000_000


def test_a_large_payload_arrives_whole(stream: Callable[..., Stream]) -> None:
    worker = stream()
    worker.give("raise " + "x" * 8_000_000, "ok")
    first, second = worker.outcomes(2).values()
    assert "ValueError: xxx" in first.error
    assert second.kind is ResultKind.SUCCESS


def test_async_handlers(stream: Callable[..., Stream]) -> None:
    worker = stream("concurrent")
    worker.give("ok", "ok")
    assert {result.status for result in worker.outcomes(2).values()} == {ObservationStatus.NEEDS_CONTEXT}
    send_stop(worker.channel)
    assert worker.exit().code == 0


def test_batches_run_together(stream: Callable[..., Stream]) -> None:
    worker = stream("batch", batch=True)
    worker.give("good", "good", "good", together=True)
    worker.give("lone", together=True)
    outcomes = worker.outcomes(4)
    sizes = [result.artifacts[0].value for result in outcomes.values()]
    assert sizes == ["3", "3", "3", "1"]
    worker.give("fine", "bad", together=True)
    outcomes = worker.outcomes(6)
    assert {outcomes[id].kind for id in ("fine-0", "bad-1")} == {ResultKind.FAILED}
    assert worker.board.view(0).jobs_failed == 2


def test_a_handler_that_cannot_be_imported_is_reported(stream: Callable[..., Stream]) -> None:
    worker = stream("absent")
    assert worker.exit().code == EXIT_BAD_HANDLER
    (message,) = worker.heard
    assert isinstance(message, Failed)
    assert "has no 'absent'" in message.error
    assert worker.board.view(0).state == "failed"


def test_nonsense_from_the_stream_process_ends_it(stream: Callable[..., Stream]) -> None:
    worker = stream()
    worker.channel.send({"t": "what"})
    assert worker.exit().code == EXIT_BAD_CHANNEL


def test_a_job_that_cannot_be_read_fails_alone(stream: Callable[..., Stream]) -> None:
    worker = stream()
    send_job(worker.channel, "broken", b"{}", session="s", attempt=1, fence=1)
    worker.give("ok")
    outcomes = worker.outcomes(2)
    assert "could not read the job" in outcomes["broken"].error
    assert outcomes["ok-0"].kind is ResultKind.SUCCESS


def test_a_handler_that_forks_does_not_make_a_second_worker(stream: Callable[..., Stream]) -> None:
    worker = stream()
    worker.give("fork-and-return", "ok", "ok")
    worker.outcomes(3)
    send_stop(worker.channel)
    worker.exit()
    assert len([message for message in worker.heard if isinstance(message, Out)]) == 3
    assert worker.board.view(0).jobs_done == 3


@pytest.mark.parametrize("payload", ["daemon", "children"])
def test_nothing_that_a_job_started_outlives_it(stream: Callable[..., Stream], payload: str) -> None:
    left = [int(artifact.value) for artifact in stream().outcome(payload).artifacts]
    assert left
    assert not [pid for pid in left if psutil.pid_exists(pid)]


def test_what_the_handlers_module_started_stays(stream: Callable[..., Stream], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WP_TEST_HELPER", "1")
    worker = stream()
    worker.give("children", "helper")
    helper = int(worker.outcomes(2)["helper-1"].artifacts[0].value)
    assert psutil.Process(helper).status() != psutil.STATUS_ZOMBIE


def test_processes_forked_by_a_handler_can_be_terminated(stream: Callable[..., Stream]) -> None:
    assert stream().outcome("fork-and-terminate").kind is ResultKind.SUCCESS


def test_programs_started_by_a_handler_get_a_clean_mask_and_default_signals(stream: Callable[..., Stream]) -> None:
    assert stream().outcome("mask").artifacts == (ArtifactRef.commit_hash("0 SIG_DFL"),)


def test_an_idle_worker_ends_with_its_channel(stream: Callable[..., Stream]) -> None:
    worker = stream()
    worker.until(lambda: Ready() in worker.heard)
    worker.channel.close()
    worker.channel.eof = True
    assert worker.exit().code == 0


# -- a worker that is of no use any more


def test_a_run_for_which_earlier_jobs_have_left_no_descriptors_has_no_outcome_and_the_worker_ends(
    stream: Callable[..., Stream],
) -> None:
    worker = stream()
    limit, leak, innocent, _ = worker.give("limit 40", "leak 10", "need 20", "ok")
    assert (worker.exit().code, worker.running()) == (0, "")
    assert worker.heard[-1] == Spent("it has no descriptors left after 3 jobs")
    assert {out.job_id: out.result.status for out in worker.heard if isinstance(out, Out)} == {
        limit: ObservationStatus.DONE,
        leak: ObservationStatus.DONE,
    }, innocent


def test_who_leaves_no_descriptor_at_all_is_found_when_the_next_one_fails(stream: Callable[..., Stream]) -> None:
    worker = stream()
    worker.give("limit 40", "leak none", "raise never at fault")
    assert worker.exit().code == 0
    assert isinstance(worker.heard[-1], Spent)
    assert [out.job_id for out in worker.heard if isinstance(out, Out)] == ["limit-0"]


def test_a_job_that_needs_too_many_descriptors_has_failed_and_its_worker_goes_on(stream: Callable[..., Stream]) -> None:
    worker = stream()
    _, greedy, after = worker.give("limit 40", "need 1000", "ok")
    outcomes = worker.outcomes(3)
    assert (outcomes[greedy].kind, outcomes[after].kind) == (ResultKind.FAILED, ResultKind.SUCCESS)


def test_in_its_first_run_a_worker_has_taken_all_its_descriptors_itself(stream: Callable[..., Stream]) -> None:
    worker = stream()
    (only,) = worker.give("leak none")
    assert worker.exit().code == 0
    assert worker.outcomes(1)[only].kind is ResultKind.FAILED
    assert worker.heard[-1] == Spent("it has no descriptors left after 1 job")


def test_a_handler_that_closes_the_channel_leaves_its_job_on_the_board(stream: Callable[..., Stream]) -> None:
    worker = stream()
    _, guilty, _ = worker.give("ok", "close", "ok")
    assert worker.exit().code == EXIT_BAD_CHANNEL
    assert worker.running() == guilty
    assert (worker.board.view(0).state, worker.board.view(0).error) == ("failed", "the handler has closed it")


def test_who_closes_the_standard_descriptors_has_ended_and_the_next_job_runs_elsewhere(
    stream: Callable[..., Stream],
) -> None:
    worker = stream()
    guilty, _ = worker.give("close-standard", "ok")
    assert worker.exit().code == 0
    assert worker.outcomes(1)[guilty].kind is ResultKind.SUCCESS
    assert worker.heard[-1] == Spent("a job has closed its standard input, output or error after 1 job")
    assert len(worker.heard) == 3


def test_a_worker_that_grows_far_beyond_its_limit_ends_at_once(stream: Callable[..., Stream]) -> None:
    worker = stream(max_memory=2**20)
    worker.give("ok", "grow 200", "grow 100", "ok")
    assert worker.exit().code == 0
    assert [out.job_id for out in worker.heard if isinstance(out, Out)] == ["ok-0", "grow-1", "grow-2"]
    assert isinstance(worker.heard[-1], Spent)
    assert worker.heard[-1].reason.startswith("it has grown by 30")
