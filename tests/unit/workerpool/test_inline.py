"""A handler that runs in the stream process itself: what `Inline` says is what a crew of workers would."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from stream_config import make_config

from queuekit import LeaseLost
from queuekit.contract import Lease
from queuekit.ids import SessionID
from queuekit.job import Claimed, Delivery
from queuekit.testing.jobs import make_job
from workerpool.board import Board, Kind
from workerpool.config import StreamConfig
from workerpool.outcome import ResultKind
from workerpool.stream.inline import Inline
from workerpool.stream.state import Slot, Unit
from workerpool.worker.loop import EXIT_BAD_HANDLER
from workerpool.worker.protocol import Failed, Message, Out, Ready

HANDLERS = """
seen = []


def one(job, ctx):
    seen.append((ctx.attempt, ctx.fence, ctx.should_stop))
    if job.payload == b"raise":
        raise ValueError("boom")
    if job.payload == b"close":
        import os
        os.closerange(1, 3)
    if job.payload == b"exit":
        raise SystemExit(3)
    if job.payload == b"follow":
        ctx.submit("dreaming", b"next")
    if job.payload == b"beat":
        import inline_handlers_beats
        assert inline_handlers_beats.beaten.wait(30)


def many(jobs):
    seen.append([job.id for job in jobs])
    if any(job.payload == b"raise" for job in jobs):
        raise ValueError("boom")
"""

CONFIG = make_config(handler="inline_handlers:one", workers=0)


class FakeLease:
    """Two beats are waited for; `error`: what they raise."""

    stream, owner, fence = "encode", "pid-1-us", 3

    def __init__(self) -> None:
        self.beaten = threading.Event()
        self.beats = 0
        self.error: Exception | None = None

    def run_number(self, claims: int, attempt: int) -> int:
        return self.fence << 32 | claims

    def heartbeat(self, now: float | None = None) -> None:
        self.beats += 1
        if self.beats == 2:
            self.beaten.set()
        if self.error is not None:
            raise self.error


@pytest.fixture
def handlers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "inline_handlers.py").write_text(HANDLERS)
    for module in ("inline_handlers", "inline_handlers_beats"):
        monkeypatch.delitem(__import__("sys").modules, module, raising=False)
    return folder


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    made = Board.create(str(tmp_path), 2)
    yield made
    made.remove()


@pytest.fixture
def lease() -> FakeLease:
    return FakeLease()


@pytest.fixture
def make(board: Board, handlers: Path) -> Iterator[Callable[..., Inline]]:
    all_made: list[Inline] = []

    def made(*, stop: bool = False, beat_every: float = 60.0) -> Inline:
        inline = Inline(
            board.row(1),
            handler_path=[str(handlers)],
            max_job_bytes=1000,
            beat_every=beat_every,
            beat=board.row(0).beat,
            stop_is_waiting=lambda: stop,
        )
        all_made.append(inline)
        return inline

    yield made
    for each in all_made:
        each.close()


def unit(*payloads: bytes, attempt: int = 0) -> Unit:
    jobs = [Delivery(attempt=attempt).onto(make_job(f"j{n}", payload=payload)) for n, payload in enumerate(payloads)]
    return Unit([Claimed(job=job, session_id=SessionID("s")) for job in jobs])


def said(inline: Inline) -> list[Message]:
    return [message for _, message in inline.messages()]


def started(inline: Inline, config: StreamConfig = CONFIG) -> Slot:
    slot = Slot(0)
    inline.start(slot, config)
    assert said(inline) == [Ready()]
    return slot


def give(inline: Inline, slot: Slot, lease: FakeLease, one: Unit) -> None:
    inline.give(slot, one, cast("Lease", lease))


def test_it_is_ready_when_the_handler_is_imported(make):
    inline = make()
    assert (len(inline), inline.pending) == (0, False)
    started(inline)
    assert (len(inline), inline.pending) == (1, False)


def test_a_handler_that_cannot_be_imported_ends_it(make):
    inline, slot = make(), Slot(0)
    inline.start(slot, dataclasses.replace(CONFIG, handler="inline_handlers:missing"))
    assert inline.pending
    (message,) = said(inline)
    assert isinstance(message, Failed)
    assert "missing" in message.error
    ((gone, end, _, words),) = inline.reap()
    assert (gone, end.code, words) == (slot, EXIT_BAD_HANDLER, [])
    assert (len(inline), inline.pending, inline.reap()) == (0, False, [])


def test_one_unit_runs_at_a_time_in_their_order(make, lease):
    inline = make()
    slot = started(inline)
    for payload in (b"", b"raise", b"exit"):
        give(inline, slot, lease, unit(payload))
    kinds = []
    while inline.pending:
        (message,) = said(inline)
        assert isinstance(message, Out)
        kinds.append(message.result.kind)
    assert kinds == [ResultKind.SUCCESS, ResultKind.FAILED, ResultKind.FAILED]


def test_the_handler_is_told_its_attempt_its_fence_and_whether_to_stop(make, lease):
    inline = make(stop=True)
    slot = started(inline)
    give(inline, slot, lease, unit(b"", attempt=2))
    give(inline, slot, lease, unit(b""))
    said(inline), said(inline)
    import inline_handlers

    (first, second) = inline_handlers.seen
    assert (first[0], first[2]) == (3, True)
    assert first[1] >> 32 == second[1] >> 32 == 3
    assert first[1] < second[1]


def test_follow_ups_come_with_the_result(make, lease):
    inline = make()
    slot = started(inline)
    give(inline, slot, lease, unit(b"follow"))
    (message,) = said(inline)
    assert isinstance(message, Out)
    assert len(message.result.submitted) == 1


@pytest.mark.parametrize(("payloads", "kind"), [((b"", b""), ResultKind.SUCCESS), ((b"", b"raise"), ResultKind.FAILED)])
def test_a_batch_is_one_run_with_a_result_for_each_job(make, lease, payloads, kind):
    inline = make()
    slot = started(inline, dataclasses.replace(CONFIG, handler="inline_handlers:many", batch_size=5))
    give(inline, slot, lease, unit(*payloads))
    messages = said(inline)
    assert [(m.job_id, m.result.kind) for m in messages if isinstance(m, Out)] == [("j0", kind), ("j1", kind)]
    import inline_handlers

    assert inline_handlers.seen == [["j0", "j1"]]


def test_the_board_names_nothing_between_runs_and_counts_what_ended(make, lease, board):
    inline = make()
    slot = started(inline)
    for payload in (b"", b"raise"):
        give(inline, slot, lease, unit(payload))
        said(inline)
    view = board.view(1)
    assert (view.job, view.jobs_done, view.jobs_failed) == ("", 1, 1)


@pytest.mark.parametrize("error", [None, LeaseLost("encode", "pid-2-other"), OSError(5, "I/O error")])
def test_the_lease_is_renewed_while_a_handler_runs_whatever_comes_of_it(make, board, lease, monkeypatch, error):
    lease.error = error
    board.row(0).take(kind=Kind.STREAM)
    board.row(0).beat(0)
    monkeypatch.setitem(__import__("sys").modules, "inline_handlers_beats", cast("Any", lease))
    inline = make(beat_every=0.001)
    slot = started(inline)
    give(inline, slot, lease, unit(b"beat"))
    (message,) = said(inline)
    assert isinstance(message, Out)
    assert message.result.kind is ResultKind.SUCCESS
    assert lease.beaten.is_set()
    assert board.view(0).heartbeat_ns > 0


def test_what_was_not_run_when_it_is_told_to_end_is_not_said_to_have_run(make, lease):
    inline = make()
    slot = started(inline)
    one = unit(b"")
    slot.give(one, 0.0)
    give(inline, slot, lease, one)
    inline.stop(slot)
    ((gone, end, row, words),) = inline.reap()
    assert (gone, end.code, words, row.runs("j0")) == (slot, 0, [], False)
    assert slot.exited(1.0, blameless=True) == [one]
    assert not inline.pending


def test_it_can_be_started_again(make, lease):
    inline = make()
    started(inline)
    inline.kill_all()
    inline.reap()
    slot = started(inline)
    give(inline, slot, lease, unit(b""))
    assert len(said(inline)) == 1


def test_closing_forgets_what_waits(make, lease):
    inline = make()
    slot = started(inline)
    give(inline, slot, lease, unit(b""))
    inline.close()
    assert (len(inline), inline.pending, said(inline)) == (0, False, [])


def test_descriptors_that_a_handler_has_closed_are_no_other_files_afterwards(make, lease, caplog):
    inline = make()
    slot = started(inline)
    before = [os.fstat(fd).st_ino for fd in range(3)]
    give(inline, slot, lease, unit(b"close"))
    (out,) = said(inline)
    assert [os.fstat(fd).st_ino for fd in range(3)] == before
    assert isinstance(out, Out)
    assert out.result.kind is ResultKind.SUCCESS
    assert "closed descriptors [1, 2]" in caplog.text
