"""Checkpoints in memory: a dict, with the meaning that they have on a disk."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from queuekit.backends.admission import check_checkpoint, prepare
from queuekit.checkpoints import Checkpoints, checkpoint_job
from queuekit.hlc import HLC
from queuekit.ids import check_identifier


class MemoryCheckpoints(Checkpoints):
    """`kept`: the payloads by stream and id; `opened`: holds the store's lock while entered, and raises when closed."""

    def __init__(
        self,
        kept: dict[tuple[str, str], bytes],
        opened: Callable[[], AbstractContextManager[object]],
        max_job_bytes: int,
    ) -> None:
        self._kept = kept
        self._opened = opened
        self._max_job_bytes = max_job_bytes

    def read(self, id: str, stream: str) -> bytes | None:
        """The payload; None when there is none."""
        check_checkpoint(id, stream)
        with self._opened():
            return self._kept.get((stream, id))

    def compare_and_swap(self, id: str, stream: str, expected: bytes | None, payload: bytes) -> bool:
        """Replace what is there if it is `expected`."""
        prepare(checkpoint_job(id, stream, payload, HLC(0, 0, 0)), self._max_job_bytes)
        with self._opened():
            if self._kept.get((stream, id)) != expected:
                return False
            self._kept[stream, id] = payload
            return True

    def delete(self, id: str, stream: str) -> bool:
        """Remove it; whether it was there."""
        check_checkpoint(id, stream)
        with self._opened():
            return self._kept.pop((stream, id), None) is not None

    def list(self, stream: str) -> dict[str, bytes]:
        """The payloads of a stream, by id."""
        check_identifier(stream)
        with self._opened():
            return {id: payload for (of, id), payload in self._kept.items() if of == stream}

    def streams(self) -> set[str]:
        """The streams that have any."""
        with self._opened():
            return {stream for stream, _ in self._kept}
