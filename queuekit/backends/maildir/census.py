"""Counting and reading jobs without touching them. By names where they tell. Zero is asked twice."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

from queuekit.backends.maildir import layout
from queuekit.backends.maildir.keep import Keeper
from queuekit.backends.maildir.mount import Mount
from queuekit.backends.maildir.ownership import Ownership
from queuekit.backends.maildir.settle import Settler
from queuekit.completion import SignalFile
from queuekit.contract import JobView, Tally
from queuekit.errors import BackendUnavailable, DecodingFailed
from queuekit.ids import check_identifier
from queuekit.job import Job
from queuekit.lifecycle import State
from queuekit.wire import decode_signal

_SIGNAL_BYTES = 2**20
_PORTION = 10_000  # names, which take some 10 ms


class Census:
    """The reading side of one mount."""

    def __init__(self, mount: Mount, ownership: Ownership, keeper: Keeper, settler: Settler) -> None:
        self._mount = mount
        self._ownership = ownership
        self._keeper = keeper
        self._settler = settler

    def pending_count(self, stream: str | None) -> int:
        """Regular files in new/ that are jobs of the stream, as far as can be told."""
        return max(self.pending_portions(stream))

    def pending_portions(self, stream: str | None) -> Iterator[int]:
        """The same, counted bit by bit: how many there are so far."""
        new, count = self._mount.new, 0
        names = self._mount.each_name(new)
        while portion := list(itertools.islice(names, _PORTION)):
            count += self._ownership.count(new, portion, stream)
            yield count
        yield count

    def in_flight_count(self, stream: str | None) -> int:
        """Jobs in cur/, and those on their way there by a newer port's claim."""
        return len(self._in_flight(stream))

    def tally(self, stream: str | None) -> Tally:
        """How many jobs are where. A job that moves while we look may be missed: so nothing is believed twice."""
        tally = self._count(stream)
        return tally if tally.outstanding else self._count(stream)

    def _count(self, stream: str | None) -> Tally:
        retries, scheduled = self._deferred(stream)
        return Tally(
            pending=self.pending_count(stream),
            in_flight=self.in_flight_count(stream),
            retrying=len(retries),
            scheduled=scheduled,
            next_retry_ms=min(retries, default=None),
        )

    def _deferred(self, stream: str | None) -> tuple[list[int], int]:
        later = self._mount.later
        retries, scheduled = [], 0
        for file in self._mount.names(later):
            split = layout.split_later(file)
            if split is None or not self._ownership.belongs(later, file, stream, job_name=split[2]):
                continue
            if split[1]:
                retries.append(split[0])
            else:
                scheduled += 1
        return retries, scheduled

    def _in_flight(self, stream: str | None) -> list[tuple[int, str, str]]:
        mount = self._mount
        files = [(mount.cur, name, name) for name in mount.names(mount.cur)]
        for file in mount.names(mount.claim):
            name = layout.split_claim(file)
            if name is not None:
                files.append((mount.claim, file, name))
        return [each for each in files if self._ownership.belongs(each[0], each[1], stream, job_name=each[2])]

    def in_flight(self, stream: str | None) -> list[Job]:
        """The jobs in flight, in HLC order."""
        return self._jobs(self._in_flight(stream))

    def completed(self, stream: str | None) -> list[Job]:
        """The jobs in done/ that have a signal, in HLC order."""
        done = self._mount.done
        names = set(self._mount.names(done))
        jobs = self._jobs(
            [(done, name, name) for name in names if self._ownership.belongs(done, name, stream)],
        )
        return [job for job in jobs if layout.signal_filename(job.id) in names]

    def _jobs(self, files: list[tuple[int, str, str]]) -> list[Job]:
        jobs = []
        for folder, file, name in files:
            with contextlib.suppress(DecodingFailed):
                job = self._mount.look_into(folder, file, name)
                if job is not None:
                    jobs.append(job)
        return sorted(jobs, key=lambda job: job.submitted_at)

    def signal(self, job_id: str) -> SignalFile | None:
        """How a job ended."""
        check_identifier(job_id)
        try:
            data, _ = self._mount.ops.read(self._mount.done, layout.signal_filename(job_id), _SIGNAL_BYTES)
            return decode_signal(data)
        except (FileNotFoundError, DecodingFailed):
            return None
        except OSError as error:
            raise BackendUnavailable(f"cannot read the signal of {job_id}: {error.strerror}") from error

    def look_up(self, job_id: str) -> JobView | None:
        """One job, wherever it is."""
        found = self._keeper.locate(job_id)
        if found is None:
            return None
        state, folder, file, name = found
        job = self._mount.look_into(folder, file, name)
        if job is None:  # it has just moved on
            return self.look_up(job_id)
        split = layout.split_later(file) if state is State.LATER else None
        return JobView(
            job=job,
            state=state,
            due_ms=split[0] if split else None,
            retry=bool(split and split[1]),
            signal=self.signal(job_id) if state is State.DONE else None,
            dossier=self._settler.dossier(job_id),
        )

    def streams(self, at_most: int | None) -> set[str]:
        """Streams of jobs that have not ended, as far as the names of so many files in each folder state them."""
        mount = self._mount
        names = [itertools.islice(mount.each_name(folder), at_most) for folder in (mount.new, mount.cur)]
        later = map(layout.split_later, itertools.islice(mount.each_name(mount.later), at_most))
        every = itertools.chain(*names, (split[2] for split in later if split))
        return {stream for name in every if (stream := layout.clear_stream(name)) is not None}
