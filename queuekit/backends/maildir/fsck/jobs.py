"""Jobs that have not ended: can each be read, is each in one place only, will each be run one day.

What is suspected from a listing is looked at again under the lock of the job's stream. A claim takes no lock, so places
are looked at against the way that jobs go: where it may have gone to first, then where it came from.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import defaultdict
from collections.abc import Iterator

from queuekit.backends.admission import same_job
from queuekit.backends.maildir import layout
from queuekit.backends.maildir.fsck.finding import Finding, finding
from queuekit.backends.maildir.fsck.inventory import Inventory, number
from queuekit.backends.maildir.fsck.look import (
    OPEN,
    Look,
    Progress,
    content,
    fd_of,
    guarded,
    in_portions,
    leased,
    listed,
    locked,
    path_of,
    plain,
    present,
    suggested,
)
from queuekit.backends.maildir.mount import Mount
from queuekit.clock import now_ms
from queuekit.errors import BackendUnavailable, DecodingFailed
from queuekit.job import Job

_YEAR_MS = 366 * 86_400_000
_LARGEST_DUE = 2**63 - 1
_AGAINST_THE_WAY = (layout.CUR, layout.LATER, layout.CLAIM, layout.NEW)
Place = tuple[str, str]
"""A folder and a file's name in it."""


@dataclasses.dataclass(slots=True)
class OpenJobs:
    """What reading the open jobs has shown. `places`: by job name; `in_flight`: by stream; the rest: files."""

    places: dict[str, list[Place]] = dataclasses.field(default_factory=lambda: defaultdict(list))
    in_flight: dict[str, list[Place]] = dataclasses.field(default_factory=lambda: defaultdict(list))
    unreadable: list[Place] = dataclasses.field(default_factory=list)
    odd: list[Place] = dataclasses.field(default_factory=list)


def read(look: Look, inventory: Inventory, progress: Progress | None) -> OpenJobs:
    """Read every job that has not ended."""
    jobs = OpenJobs()
    for attribute in OPEN:
        names = inventory.names[attribute]
        for file in in_portions(names, len(names), f"reading {attribute}/", progress):
            _read_one(look, attribute, file, jobs)
    return jobs


def _read_one(look: Look, attribute: str, file: str, jobs: OpenJobs) -> None:
    name = plain(attribute, file)
    if name is None or layout.tail(name) is None:
        jobs.odd.append((attribute, file))
        return
    jobs.places[name].append((attribute, file))
    try:
        job = look.look_into(fd_of(look, attribute), file, name)
    except (DecodingFailed, BackendUnavailable):
        jobs.unreadable.append((attribute, file))
        return
    if job is not None and attribute in {layout.CUR, layout.CLAIM}:
        jobs.in_flight[job.stream_id].append((attribute, file))


def check(look: Look, inventory: Inventory, jobs: OpenJobs, ttl: float) -> Iterator[Finding]:
    """Everything that is wrong with open jobs."""
    for place in jobs.unreadable:
        yield from _unreadable(look, place, ttl)
    for place in jobs.odd:
        yield from _odd(look, place)
    done = set(inventory.names[layout.DONE])
    for name, places in jobs.places.items():
        if len(places) + (name in done) > 1:
            yield from _twins(look, name, places, ttl)
    for stream, places in jobs.in_flight.items():
        yield from _unheld(look, stream, places, ttl)
    for file in inventory.names[layout.LATER]:
        yield from _due(look, file)
    yield from _long_names(look, jobs)
    yield from _ids(look, inventory, jobs)


# -- files that hold no job, or have no name


def _unreadable(look: Look, place: Place, ttl: float) -> Iterator[Finding]:
    with guarded_or_said(look, place) as said:
        yield from said
        if said:
            return
        kind, reason = judge(look, place)
        if kind:
            yield finding(
                kind, path_of(*place), reason, repairable=kind != "unreadable-now" and is_free(look, place, ttl)
            )


def judge(mount: Mount, place: Place) -> tuple[str, str]:
    """`(kind, what)` of a file that cannot be read as the job that its name says; two empty texts when it can."""
    attribute, file = place
    try:
        mount.look_into(fd_of(mount, attribute), file, plain(attribute, file))
    except BackendUnavailable as error:
        return "unreadable-now", str(error)
    except DecodingFailed as error:
        job = content(mount, *place)
        if job is None:
            return "not-a-job", f"it cannot be read as a job: {error.reason}"
        return "misnamed", f"it holds {shown(job)}, whose file is called {layout.job_filename(job)!r}: {error.reason}"
    return "", ""


def shown(job: Job) -> str:
    """A job in words."""
    return f"job {str(job.id)!r} of stream {str(job.stream_id)!r}"


def is_free(mount: Mount, place: Place, ttl: float) -> bool:
    """Whether no holder of a lease that its name suggests will look at the file by itself, or is looking just now."""
    return not any(leased(mount, stream, ttl) for stream in suggested(plain(*place) or place[1]))


def _odd(look: Look, place: Place) -> Iterator[Finding]:
    """A file whose name is none: a job in it is never run."""
    with guarded_or_said(look, place) as said:
        yield from said
        if said or not present(look, *place):
            return
        job = content(look, *place)
        attribute = place[0]
        if job is None:
            yield finding("not-a-name", path_of(*place), "its name is not that of a job, and it holds none")
        elif attribute == layout.CLAIM:
            free = is_alone(look, job)
            yield finding(
                "malformed-claim", path_of(*place), f"it holds {shown(job)} under no claim's name", repairable=free
            )
        elif attribute == layout.LATER:
            yield finding("malformed-later", path_of(*place), f"it holds {shown(job)} and does not say when it is due")
        else:
            what = f"it holds {shown(job)}, whose file is called {layout.job_filename(job)!r}, and is ignored"
            yield finding("misnamed", path_of(*place), what)


def is_alone(mount: Mount, job: Job) -> bool:
    """Whether no folder has the job under its proper name, and it may have one."""
    name = layout.job_filename(job)
    if layout.tail(name) is None or "/" in name or "\0" in name:
        return False
    return not copies_of(mount, name) and not present(mount, layout.DONE, name)


# -- one job, two files


def copies_of(mount: Mount, name: str) -> list[Place]:
    """The places of the job's open copies now, looked at against the way that jobs go. Under the stream's lock."""
    found: list[Place] = []
    for attribute in _AGAINST_THE_WAY:
        if attribute in {layout.LATER, layout.CLAIM}:
            found += sorted((attribute, file) for file in listed(mount, attribute) if plain(attribute, file) == name)
        elif present(mount, attribute, name):
            found.append((attribute, name))
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class Twins:
    """Two copies of one job under its stream's lock. `keep`: the one that counts; `drop`: the later ones."""

    job: Job
    keep: Place
    drop: list[Place]
    same: bool


def twins_of(mount: Mount, name: str) -> Twins | None:
    """The copies of a job, if there are two that can be read; which counts is the claim's and the promotion's rule."""
    copies = copies_of(mount, name)
    rank = (layout.CUR, layout.CLAIM, layout.NEW, layout.LATER)
    copies.sort(key=lambda place: (rank.index(place[0]), place[1]))
    if _ended(mount, name):
        copies.insert(0, (layout.DONE, name))
    found = [(place, job) for place in copies if (job := _job(mount, place)) is not None]
    if len(found) < 2:
        return None
    (keep, first), *rest = found
    return Twins(first, keep, [place for place, _ in rest], all(same_job(first, job) for _, job in rest))


def _ended(mount: Mount, name: str) -> bool:
    job = _job(mount, (layout.DONE, name))
    return job is not None and present(mount, layout.DONE, layout.signal_filename(job.id))


def _job(mount: Mount, place: Place) -> Job | None:
    try:
        return mount.look_into(fd_of(mount, place[0]), place[1], plain(*place))
    except (DecodingFailed, BackendUnavailable):
        return None


def may_drop(mount: Mount, twins: Twins, ttl: float) -> bool:
    """Whether the later copies may go: they hold the same, and nobody can have one of them in work."""
    in_work = any(place[0] in {layout.CUR, layout.CLAIM} for place in twins.drop)
    return twins.same and not (in_work and leased(mount, twins.job.stream_id, ttl))


def _twins(look: Look, name: str, places: list[Place], ttl: float) -> Iterator[Finding]:
    with guarded_or_said(look, places[0]) as said:
        yield from said
        if said:
            return
        twins = twins_of(look, name)
        if twins is None:
            yield from _unrecorded(look, name)
            return
        path = path_of(*twins.drop[0])
        where = " and ".join(path_of(*place) for place in (twins.keep, *twins.drop))
        what = f"{shown(twins.job)} is in {len(twins.drop) + 1} places: {where}"
        if twins.same:
            yield finding("twin", path, what, repairable=may_drop(look, twins, ttl), count=len(twins.drop))
        else:
            yield finding("twin-different", path, f"{what}, and they do not hold the same", count=len(twins.drop))


def _unrecorded(look: Look, name: str) -> Iterator[Finding]:
    copies = copies_of(look, name)
    if _ended(look, name):
        return
    if copies and present(look, layout.DONE, name) and not present(look, "intents", name):
        what = f"the job is in {path_of(*copies[0])}, and a file without a record of its end has its name in done/"
        yield finding("twin-unrecorded", path_of(layout.DONE, name), what)


# -- in flight, due, names, ids


def _unheld(look: Look, stream: str, places: list[Place], ttl: float) -> Iterator[Finding]:
    try:
        with locked(look, stream):
            if leased(look, stream, ttl):
                return
            left = [place for place in places if present(look, *place)]
            if left:
                what = f"{number(len(left), 'job')} of stream {stream!r} in flight, and nobody holds its lease"
                yield finding("in-flight-unheld", path_of(*left[0]), what, count=len(left))
    except BackendUnavailable as error:
        yield lock_held(stream, error)


def _due(look: Look, file: str) -> Iterator[Finding]:
    split = layout.split_later(file)
    if split is None or split[0] <= now_ms() + _YEAR_MS or not present(look, layout.LATER, file):
        return
    due, path = split[0], path_of(layout.LATER, file)
    if due > _LARGEST_DUE:
        yield finding("due-overflow", path, f"it is due {due} ms after 1970")
    else:
        years = (due - now_ms()) / (365.25 * 86_400_000)
        yield finding("due-far", path, f"it is due in {years:,.0f} years")


def _long_names(look: Look, jobs: OpenJobs) -> Iterator[Finding]:
    for name, places in jobs.places.items():
        size = len(name.encode(errors="surrogateescape"))
        if size > layout.MAX_JOB_NAME and present(look, *places[0]):
            yield finding(
                "name-long", path_of(*places[0]), f"its name takes {size} bytes, {layout.MAX_JOB_NAME} at most"
            )


def _ids(look: Look, inventory: Inventory, jobs: OpenJobs) -> Iterator[Finding]:
    """Different jobs with one id: suspected by the end of their names, decided by what is in them."""
    by_end: dict[str, set[str]] = defaultdict(set)
    for name in (*jobs.places, *inventory.names[layout.DONE]):
        rest = layout.tail(name)
        if rest is not None:
            by_end[rest[-32:] if layout.clear_stream(name) else rest].add(name)
    for names in by_end.values():
        if len(names) > 1:
            yield from _same_id(look, sorted(names))


def _same_id(look: Look, names: list[str]) -> Iterator[Finding]:
    by_id: dict[str, list[Place]] = defaultdict(list)
    for name in names:
        places = [*copies_of(look, name), (layout.DONE, name)]
        job, place = next(((job, place) for place in places if (job := _found(look, place))), (None, places[0]))
        if job is not None:
            by_id[job.id].append(place)
    for id, found in by_id.items():
        if len(found) > 1:
            where = " and ".join(path_of(*place) for place in found)
            yield finding(
                "id-twice", path_of(*found[0]), f"{len(found)} jobs have the id {id!r}: {where}", count=len(found)
            )


def _found(look: Look, place: Place) -> Job | None:
    return _job(look, place) if present(look, *place) else None


# -- locks that are not to be had


@contextlib.contextmanager
def guarded_or_said(look: Look, place: Place) -> Iterator[list[Finding]]:
    """Hold the lock of a file's stream; the list is empty then, else it says that the lock is not to be had."""
    with contextlib.ExitStack() as stack:
        said: list[Finding] = []
        try:
            stack.enter_context(guarded(look, *place))
        except BackendUnavailable as error:
            said = [lock_held(path_of(*place), error)]
        yield said


def lock_held(path: str, error: BackendUnavailable) -> Finding:
    """The finding that stands for what could not be looked at."""
    return finding("lock-held", path, str(error))
