"""A cancel takes the stream's lock, a claim does not: wherever they meet, one has the job and the other is told so."""

from __future__ import annotations

import contextlib
from pathlib import Path

from queuekit import IllegalTransition, JobNotFound
from queuekit.backends.maildir.backend import FilesystemBackend
from queuekit.testing.faults import FaultyOps
from queuekit.testing.jobs import make_job

STREAM = "encode"


def meet(root: Path, number: int) -> tuple[bool, int]:
    """Claim before this call of a cancel: whether it was claimed, and how many calls the cancel made."""
    ops, claimed = FaultyOps(syncing=False), []
    with (
        contextlib.closing(FilesystemBackend(root, ops=ops)) as person,
        contextlib.closing(FilesystemBackend(root)) as consumer,
    ):
        person.write(make_job("a"))
        lease = consumer.lease(STREAM)
        assert lease.try_acquire()

        def claim(_: str, count: int) -> None:
            if count == number:
                ops.disarm()
                claimed.extend(consumer.drain_available(STREAM, lease=lease))

        ops.arm(claim)
        try:
            person.cancel("a")
        except (JobNotFound, IllegalTransition):
            assert claimed, "nobody else had it"
            consumer.complete("a", "done", lease=lease)
        else:
            assert not claimed, "both had it"
        view = person.look_up("a")
        assert view is not None
        assert view.signal is not None
        assert view.signal.status == ("done" if claimed else "blocked")
        assert (view.dossier is None) == bool(claimed), "the dossier speaks of a cancel that was none"
        return bool(claimed), len(ops.calls)


def test_a_cancel_and_a_claim_do_not_both_have_the_job(tmp_path: Path) -> None:
    outcomes = set()
    for number in range(1, 100):
        was_claimed, calls = meet(tmp_path / str(number), number)
        outcomes.add(was_claimed)
        if calls < number:
            break
    assert outcomes == {True, False}
