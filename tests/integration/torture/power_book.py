"""What every job may be after a power cut: the oracle of the power cuts.

Not a test file. Each act says before it begins what it would make of each job (a *fate*: `open 2`, `ended done`, …),
and afterwards that it was acknowledged. A job that an acknowledged act was about is exactly that; one that the cut
caught in an act is what it was before or what it was to be, and nothing else. `observed` walks the store itself.

A job follows from its id alone, so whatever is found can be compared to the last byte.
"""

from __future__ import annotations

import dataclasses
import os
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from queuekit import QueueKit, decode_job, decode_signal, job_filename
from queuekit.backends.maildir import layout
from queuekit.contract import JobView
from queuekit.hlc import HLC
from queuekit.ids import JobID, StreamID
from queuekit.job import Delivery, Job
from queuekit.lifecycle import State
from queuekit.testing.jobs import EPOCH_MS, FAR_MS

STREAM = "encode"
ABSENT = "absent"
SIZES = (0, 1, 300, 4095, 4096, 10_000, 70_000)
FOLDERS = ("new", "cur", "later", "claim", "done")
CHECKPOINT = "checkpoint of the import"
DUE_MS = {"j": None, "p": EPOCH_MS, "f": FAR_MS}
"""When a job is due, by the first letter of its id: at once, long ago, never."""


def job_of(id: str) -> Job:
    """The job with this id, the same each time."""
    dice = random.Random(id)
    return Job(
        id=JobID(id),
        stream_id=StreamID(STREAM),
        submitted_at=HLC(EPOCH_MS + int(id[1:]), 0, 1),
        payload=dice.randbytes(dice.choice(SIZES)),
        extensions={"of": id},
    )


def as_sent(job: Job) -> Job:
    """The job without what the queue has written into it."""
    return Delivery().onto(job)


def open_fate(job: Job) -> str:
    return f"open {Delivery.of(job).attempt}"


@dataclasses.dataclass(frozen=True)
class Act:
    """One act. `to`: what it makes of each job; `sure`: whether that survives a power cut once it is acknowledged;
    `whole`: the jobs of a batch, of which a cut leaves a prefix, in a database all or none."""

    name: str
    to: Mapping[str, str] = dataclasses.field(default_factory=dict)
    sure: bool = True
    whole: tuple[str, ...] = ()


class Book:
    """What is known. `may_be`: the fates that each job can have, one alone where that is certain."""

    def __init__(self) -> None:
        self.may_be: dict[str, set[str]] = {}
        self.unacknowledged: set[str] = set()
        self.fence = 0
        self.under_way: Act | None = None

    def begin(self, act: Act) -> None:
        self.under_way = act
        for id, fate in act.to.items():
            if act.name.startswith("send"):
                self.unacknowledged.add(id)
            self.may_be.setdefault(id, {ABSENT}).add(fate)

    def acknowledge(self, act: Act) -> None:
        assert act == self.under_way
        self.under_way = None
        if not act.sure:
            return
        for id, fate in act.to.items():
            self.may_be[id] = {fate}
            self.unacknowledged.discard(id)

    def certain(self, *beginnings: str) -> list[str]:
        """The jobs whose fate is known and begins so."""
        return [id for id, fates in self.may_be.items() if len(fates) == 1 and next(iter(fates)).startswith(beginnings)]

    def check_delivery(self, job: Job) -> None:
        """Fail when a job is handed out that has ended, or whose bytes are others."""
        assert as_sent(job) == job_of(job.id), f"{job.id} is delivered with other bytes"
        assert open_fate(job) in self.may_be[job.id], f"{job.id}, {open_fate(job)}, is delivered: {self.may_be[job.id]}"

    def look(self, found: Mapping[str, set[str]], *, prefix: bool) -> None:
        """Fail unless everything is what it may be; from now on it is what was found. `prefix`: see `Act.whole`."""
        for id in found.keys() - self.may_be.keys():
            raise AssertionError(f"nobody has sent {id}")
        for id, fates in self.may_be.items():
            seen = found.get(id, {ABSENT}) & fates
            assert seen, f"{id} is {found.get(id, ABSENT)}, and can only be {fates}"
            self.may_be[id] = seen
        if self.under_way and self.under_way.whole:
            there = [self.may_be[id] != {ABSENT} for id in self.under_way.whole]
            assert there == sorted(there, reverse=True), f"{there}: not a prefix of {self.under_way}"
            assert prefix or all(there) or not any(there), f"{there}: half of {self.under_way}"
        self.under_way = None


def observed(url: str) -> dict[str, set[str]]:
    """The fates that each job in a store shows. Fails for whatever holds no whole job, or is in two places."""
    kind, _, path = url.partition(":")
    if not os.path.exists(path):
        return {}
    found = _in_folder(path) if kind == "dir" else _in_database(url)
    with QueueKit.open(url) as queue:
        kept = queue.checkpoints.read(CHECKPOINT, STREAM)
    return found if kept is None else found | {CHECKPOINT: {kept.decode()}}


def left_over(url: str) -> int:
    """How many unfinished files a cut has left in tmp/."""
    kind, _, path = url.partition(":")
    return len(names_in(path, "tmp")) if kind == "dir" else 0


def names_in(root: str, folder: str) -> list[str]:
    path = os.path.join(root, folder)
    return sorted(os.listdir(path)) if os.path.isdir(path) else []


def _in_folder(root: str) -> dict[str, set[str]]:
    places: dict[str, dict[str, Job]] = {folder: _jobs_in(root, folder) for folder in FOLDERS}
    intents = names_in(root, layout.INTENTS)
    found: dict[str, set[str]] = {}
    for folder in ("new", "cur", "later", "claim"):
        for id, job in places[folder].items():
            assert id not in found, f"{id} is in two folders"
            found[id] = {open_fate(job)}
    for id, job in places["done"].items():
        signal = os.path.join(root, "done", f"{id}.signal")
        if os.path.exists(signal):
            assert id not in found, f"{id} has ended, and is in {folder} too"
            found[id] = _ended(signal, os.path.join(root, layout.DOSSIERS, f"{id}.json"))
        elif job_filename(job) in intents:
            found[id] = {"open 0"}
    return found


def _jobs_in(root: str, folder: str) -> dict[str, Job]:
    jobs: dict[str, Job] = {}
    for file in names_in(root, folder):
        if file.endswith(".signal"):
            continue
        content = _content(os.path.join(root, folder, file))
        job = decode_job(content)
        later, claim = layout.split_later(file), layout.split_claim(file)
        assert job_filename(job) == (later[2] if later else claim or file)
        assert as_sent(job) == job_of(job.id), f"{folder}/{file} has other bytes"
        jobs[job.id] = job
    return jobs


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _ended(signal: str, dossier: str) -> set[str]:
    import json

    record = decode_signal(_content(signal))
    facts = json.loads(_content(dossier)) if os.path.exists(dossier) else {}
    return ended_fates(record.status.value, facts)


def ended_fates(status: str, dossier: Mapping[str, Any] | None) -> set[str]:
    """What an end with this record can be: which of two ends wrote the record's words, it does not say."""
    if status != "blocked":
        return {f"ended {status}"}
    facts = dossier or {}
    return {f"ended blocked, {facts[name]}" for name in ("error", "ended") if name in facts}


def _in_database(url: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    with QueueKit.open(url) as queue:
        for view in queue.jobs():
            assert isinstance(view, JobView), f"{view} is no job"
            job = view.job
            assert as_sent(job) == job_of(job.id), f"{job.id} has other bytes"
            assert job.id not in found
            if view.state is State.DONE:
                assert view.signal is not None
                found[job.id] = ended_fates(view.signal.status.value, view.dossier)
            else:
                found[job.id] = {open_fate(job)}
    return found


def tally(fates: Iterable[set[str]]) -> Counter[str]:
    """How many jobs have which kind of fate, for the figures."""
    return Counter(next(iter(each)).split()[0] for each in fates)
