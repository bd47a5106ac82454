# ruff: noqa: S101  these are tests
"""Checkpoints: compare and swap, and that they are no jobs."""

from __future__ import annotations

import threading

import pytest

from queuekit.contract import QueueBackend
from queuekit.errors import BackendUnavailable, InvalidIdentifier, JobNotFound, WriteFailed
from queuekit.lifecycle import State
from queuekit.testing.contract.base import Contract, Opener, counts
from queuekit.testing.jobs import ids_of, make_job

ID, STREAM = "place", "encode"


class CheckpointContract(Contract):
    """`checkpoints`: `read`, `compare_and_swap`, `delete`, `list`, `streams`."""

    def test_what_was_written_is_read_by_everybody(self, backend: QueueBackend, peer: QueueBackend) -> None:
        payload = bytes(range(256))
        assert backend.checkpoints.read(ID, STREAM) is None
        assert backend.checkpoints.compare_and_swap(ID, STREAM, None, payload)
        assert [each.checkpoints.read(ID, STREAM) for each in (backend, peer)] == [payload, payload]

    def test_an_empty_payload_is_not_an_absent_one(self, backend: QueueBackend) -> None:
        store = backend.checkpoints
        assert not store.compare_and_swap(ID, STREAM, b"", b"x")
        assert store.compare_and_swap(ID, STREAM, None, b"")
        assert store.read(ID, STREAM) == b""
        assert not store.compare_and_swap(ID, STREAM, None, b"x")
        assert store.compare_and_swap(ID, STREAM, b"", b"x")

    def test_only_who_knows_what_is_there_may_replace_it(self, backend: QueueBackend, peer: QueueBackend) -> None:
        assert backend.checkpoints.compare_and_swap(ID, STREAM, None, b"1")
        for wrong in (None, b"", b"0", b"11"):
            assert not peer.checkpoints.compare_and_swap(ID, STREAM, wrong, b"2")
        assert peer.checkpoints.read(ID, STREAM) == b"1"
        assert peer.checkpoints.compare_and_swap(ID, STREAM, b"1", b"2")
        assert not backend.checkpoints.compare_and_swap(ID, STREAM, b"1", b"3")
        assert backend.checkpoints.read(ID, STREAM) == b"2"

    def test_a_deleted_one_is_absent_for_everybody(self, backend: QueueBackend, peer: QueueBackend) -> None:
        assert backend.checkpoints.compare_and_swap(ID, STREAM, None, b"1")
        assert peer.checkpoints.delete(ID, STREAM)
        assert not backend.checkpoints.delete(ID, STREAM)
        assert backend.checkpoints.read(ID, STREAM) is None
        assert not backend.checkpoints.compare_and_swap(ID, STREAM, b"1", b"2")
        assert backend.checkpoints.compare_and_swap(ID, STREAM, None, b"2")

    def test_a_stream_has_its_own(self, backend: QueueBackend) -> None:
        store = backend.checkpoints
        written = [("b-c", "a", b"1"), ("c", "a-b", b"2"), ("d", "a-b", b"3"), ("-", "-", b"4"), ("ü 1", "ü", b"5")]
        assert (store.streams(), store.list("a")) == (set(), {})
        for id, stream, payload in written:
            assert store.compare_and_swap(id, stream, None, payload)
        assert store.streams() == {"a", "a-b", "-", "ü"}
        assert store.list("a") == {"b-c": b"1"}
        assert store.list("a-b") == {"c": b"2", "d": b"3"}
        assert (store.list("-"), store.list("ü"), store.list("none")) == ({"-": b"4"}, {"ü 1": b"5"}, {})
        assert store.read("c", "a") is None
        assert not store.delete("c", "a")
        assert store.delete("b-c", "a")
        assert store.streams() == {"a-b", "-", "ü"}

    def test_of_many_that_count_none_is_lost(self, open_backend: Opener) -> None:
        def count(backend: QueueBackend) -> None:
            for _ in range(5):
                while True:
                    seen = backend.checkpoints.read(ID, STREAM)
                    if backend.checkpoints.compare_and_swap(ID, STREAM, seen, b"%d" % (int(seen or 0) + 1)):
                        break

        backends = [open_backend() for _ in range(4)]
        threads = [threading.Thread(target=count, args=[backend]) for backend in backends]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert backends[0].checkpoints.read(ID, STREAM) == b"20"

    @pytest.mark.parametrize("bad", ["", ".", "..", "a/b", "a\x00", "a\ud800", "x" * 300])
    def test_names_that_fit_no_store_are_refused_by_every_verb(self, backend: QueueBackend, bad: str) -> None:
        store = backend.checkpoints
        for id, stream in ((bad, STREAM), (ID, bad)):
            with pytest.raises(InvalidIdentifier):
                store.compare_and_swap(id, stream, None, b"1")
            with pytest.raises(InvalidIdentifier):
                store.read(id, stream)
            with pytest.raises(InvalidIdentifier):
                store.delete(id, stream)
        assert store.streams() == set()

    def test_a_payload_beyond_the_limit_is_refused_and_changes_nothing(self, open_backend: Opener) -> None:
        store = open_backend(max_job_bytes=4).checkpoints
        assert store.compare_and_swap(ID, STREAM, None, b"1234")
        with pytest.raises(WriteFailed):
            store.compare_and_swap(ID, STREAM, b"1234", b"12345")
        assert store.read(ID, STREAM) == b"1234"

    def test_a_checkpoint_is_no_job(self, backend: QueueBackend) -> None:
        assert backend.checkpoints.compare_and_swap(ID, STREAM, None, b"1")
        assert counts(backend) == counts(backend, STREAM) == (0, 0, 0, 0)
        assert backend.drain_available() == backend.drain_available(STREAM) == []
        assert (list(backend.jobs(set(State))), backend.in_flight(), backend.completed()) == ([], [], [])
        assert backend.streams() == set()
        assert (backend.look_up(ID), backend.signal(ID), backend.put_aside(ID)) == (None, None, None)
        assert backend.ids_beginning("") == []
        for verb in (backend.cancel, backend.retry, backend.run_now, backend.release):
            with pytest.raises(JobNotFound):
                verb(ID)
        with pytest.raises(JobNotFound):
            backend.complete(ID, "done")

    def test_no_housekeeping_removes_one(self, backend: QueueBackend) -> None:
        assert backend.checkpoints.compare_and_swap(ID, STREAM, None, b"1")
        backend.write(make_job("j"))
        backend.drain_available()
        backend.complete("j", "done")
        assert backend.prune(0) == 1
        assert (backend.reclaim_in_flight(STREAM), backend.finish_intents(STREAM)) == (0, 0)
        assert backend.checkpoints.list(STREAM) == {ID: b"1"}

    def test_an_id_that_is_in_use_is_refused_where_there_is_room_for_one(self, backend: QueueBackend) -> None:
        if not self.ids_are_unique:
            return
        store = backend.checkpoints
        backend.write(make_job("j"))
        for expected in (None, b""):
            with pytest.raises(WriteFailed, match="taken by a job"):
                store.compare_and_swap("j", STREAM, expected, b"1")
        assert (store.read("j", STREAM), store.delete("j", STREAM), store.list(STREAM)) == (None, False, {})
        assert store.compare_and_swap(ID, STREAM, None, b"1")
        with pytest.raises(WriteFailed, match="taken by a checkpoint of stream 'encode'"):
            store.compare_and_swap(ID, "other", None, b"2")
        with pytest.raises(WriteFailed, match="taken by a checkpoint of stream 'encode'"):
            backend.write(make_job(ID))
        assert ids_of(backend.drain_available()) == ["j"]

    def test_a_closed_store_has_none(self, backend: QueueBackend) -> None:
        store = backend.checkpoints
        backend.close()
        for verb in (store.read, store.delete):
            with pytest.raises(BackendUnavailable):
                verb(ID, STREAM)
        with pytest.raises(BackendUnavailable):
            store.compare_and_swap(ID, STREAM, None, b"1")
        with pytest.raises(BackendUnavailable):
            store.streams()
