"""The records of what has ended: signals in done/, intents of retries, dossiers.

Which signal belongs to which job is told by names wherever they can tell: a job's name ends in its id, behind a hyphen.
A job without a record is looked at again under the lock of its stream. A record without a job has no stream: it is
looked for again in all folders, in the order in which jobs go through them, before it is reported.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator

from queuekit.backends.maildir import layout
from queuekit.backends.maildir.fsck.finding import Finding, finding
from queuekit.backends.maildir.fsck.inventory import Inventory, number
from queuekit.backends.maildir.fsck.jobs import OpenJobs, guarded_or_said, judge, shown
from queuekit.backends.maildir.fsck.look import (
    OPEN,
    Look,
    Progress,
    fd_of,
    in_portions,
    listed,
    path_of,
    plain,
    present,
    suffixes,
)
from queuekit.backends.maildir.mount import Mount
from queuekit.completion import SignalFile
from queuekit.errors import DecodingFailed
from queuekit.job import Job
from queuekit.wire import decode_signal

SIGNAL_BYTES = 2**20
DOSSIER_BYTES = 2**24
_LOOKS = 3


def check(
    look: Look, inventory: Inventory, jobs: OpenJobs, *, deep: bool, progress: Progress | None
) -> Iterator[Finding]:
    """Everything that is wrong with records. `deep`: also read every job in done/."""
    names = inventory.names[layout.DONE]
    signals = {name.removesuffix(layout.SIGNAL) for name in names if name.endswith(layout.SIGNAL)}
    files = [name for name in names if not name.endswith(layout.SIGNAL)]
    put_aside = [name for name in files if _quarantine_key(name) in signals]
    ended = _Ended(signals, files)
    for name in ended.doubtful:
        yield from _unrecorded(look, name, jobs)
    yield from _shapeless(look, files, set(put_aside))
    yield from _put_aside(look, put_aside)
    yield from _signals(look, signals, ended.by_signal, progress)
    yield from _alone(look, signals, inventory, jobs)
    for name in inventory.names["intents"]:
        yield from _intent(look, name)
    yield from _dossiers(look, inventory, progress)
    if deep:
        yield from _deep(look, sorted(ended.by_signal.values()), progress)


def _quarantine_key(name: str) -> str:
    return layout.quarantine_signal_filename(name).removesuffix(layout.SIGNAL)


class _Ended:
    """Jobs in done/ matched with signals. `by_signal`: the job of each; `doubtful`: jobs whose names cannot tell."""

    def __init__(self, signals: set[str], files: list[str]) -> None:
        self.by_signal: dict[str, str] = {}
        self.doubtful: list[str] = []
        shared = Counter(id for name in files for id in suffixes(name) if id in signals)
        for name in files:
            if _quarantine_key(name) in signals or layout.tail(name) is None:
                continue
            ids = [id for id in suffixes(name) if id in signals]
            if len(ids) == 1:
                self.by_signal[ids[0]] = name
            if len(ids) != 1 or shared[ids[0]] > 1:
                self.doubtful.append(name)


# -- jobs without a record


def _unrecorded(look: Look, name: str, jobs: OpenJobs) -> Iterator[Finding]:
    place = (layout.DONE, name)
    with guarded_or_said(look, place) as said:
        yield from said
        if said:
            return
        kind, what = judge(look, place)
        if kind == "unreadable-now":
            yield finding(kind, path_of(*place), what)
            return
        if not lacks_record(look, name):
            return
        if any(present(look, *place) for place in (*jobs.places.get(name, ()), (layout.CUR, name), (layout.NEW, name))):
            return  # an open copy: reported with the twins
        job = job_in_done(look, name)
        what = f"{shown(job)} is in done/" if job else "the file in done/ holds no job,"
        yield finding("no-record", path_of(layout.DONE, name), f"{what} without a record of its end", repairable=True)


def lacks_record(mount: Mount, name: str) -> bool:
    """Whether a file in done/ has neither a signal nor an intent. Under the stream's lock."""
    if not present(mount, layout.DONE, name) or present(mount, "intents", name):
        return False
    return not present(mount, layout.DONE, record_name(job_in_done(mount, name), name))


def record_name(job: Job | None, name: str) -> str:
    """The name of the signal of a file in done/."""
    return layout.signal_filename(job.id) if job else layout.quarantine_signal_filename(name)


def job_in_done(mount: Mount, name: str) -> Job | None:
    """The job in a file in done/; None when it holds none, or is gone. `BackendUnavailable` when it cannot be read."""
    try:
        return mount.look_into(fd_of(mount, layout.DONE), name)
    except DecodingFailed:
        return None


def _shapeless(look: Look, files: list[str], put_aside: set[str]) -> Iterator[Finding]:
    for name in files:
        if layout.tail(name) is None and name not in put_aside and present(look, layout.DONE, name):
            yield finding("not-a-name", path_of(layout.DONE, name), "its name is not that of a job, nor of a record")


def _put_aside(look: Look, names: list[str]) -> Iterator[Finding]:
    left = [name for name in names if present(look, layout.DONE, name)]
    if left:
        what = f"{number(len(left), 'file')} that held no job put aside, such as {left[0]!r}"
        yield finding("quarantined", path_of(layout.DONE, left[0]), what, count=len(left))


# -- signals


def _signals(look: Look, bases: set[str], jobs: dict[str, str], progress: Progress | None) -> Iterator[Finding]:
    for base in in_portions(sorted(bases), len(bases), "reading records", progress):
        fault = signal_fault(look, base)
        if fault is None:
            continue
        name = jobs.get(base)
        if name is None:
            yield from _bad_signal(look, base, repairable=False)
            continue
        with guarded_or_said(look, (layout.DONE, name)) as said:
            yield from said
            if not said:
                readable = judge(look, (layout.DONE, name))[0] == ""
                yield from _bad_signal(look, base, repairable=readable and name.endswith(f"-{base}"))


def _bad_signal(look: Look, base: str, *, repairable: bool) -> Iterator[Finding]:
    """What is wrong with a signal, at a second look."""
    fault = signal_fault(look, base)
    if fault is not None:
        kind, what = fault
        path = path_of(layout.DONE, base + layout.SIGNAL)
        yield finding(kind, path, what, repairable=repairable and kind == "signal-unreadable")


def signal_fault(mount: Mount, base: str) -> tuple[str, str] | None:
    """`(kind, what)` of what is wrong with the signal of this name; None when nothing is, or it is gone."""
    try:
        data = _content(mount, base + layout.SIGNAL)
        signal = decode_signal(data)
    except FileNotFoundError:
        return None
    except OSError as error:
        return "unreadable-now", f"the record cannot be read: {error.strerror}"
    except DecodingFailed as error:
        return "signal-unreadable", f"the record {'is empty' if not data else f'cannot be read: {error.reason}'}"
    return _foreign(base, signal)


def _content(mount: Mount, name: str) -> bytes:
    return mount.ops.read(fd_of(mount, layout.DONE), name, SIGNAL_BYTES)[0]


def _foreign(base: str, signal: SignalFile) -> tuple[str, str] | None:
    if signal.job_id == base or layout.tail(base) is not None:  # a quarantined file's record holds its escaped name
        return None
    return "signal-foreign", f"the record is named for {base!r} and speaks of job {str(signal.job_id)!r}"


def _alone(look: Look, signals: set[str], inventory: Inventory, jobs: OpenJobs) -> Iterator[Finding]:
    files = [name for name in inventory.names[layout.DONE] if not name.endswith(layout.SIGNAL)]
    alone = signals - matched(files, signals)
    alone -= matched(jobs.places, alone)
    alone -= {base for base in alone for place in jobs.unreadable if _is_spare(base, plain(*place) or place[1])}
    for base in sorted(_still_alone(look, alone)):
        name = base + layout.SIGNAL
        if present(look, layout.DONE, name):
            yield finding(
                "signal-alone", path_of(layout.DONE, name), f"no folder has the job {base!r} that it is about"
            )


def _is_spare(base: str, name: str) -> bool:
    """Whether a signal is that of a file which is just being put aside, and whose own name is taken in done/."""
    return base == layout.spare_name(name, base.rpartition(".")[2])


def matched(names: Iterable[str], wanted: set[str]) -> set[str]:
    """Those of the wanted ids (or whole names) that a job's file name may be about."""
    found: set[str] = set()
    if wanted:
        for name in names:
            found.update(id for id in (_quarantine_key(name), *suffixes(name)) if id in wanted)
    return found


def _still_alone(look: Look, ids: set[str]) -> set[str]:
    """Those whose job is nowhere in repeated looks, each of which goes through the folders the way that jobs go."""
    for _ in range(_LOOKS):
        for attribute in (layout.DONE, *OPEN, layout.DONE):
            if not ids:
                return ids
            names = (
                plain(attribute, file) or file for file in listed(look, attribute) if not file.endswith(layout.SIGNAL)
            )
            ids = ids - matched(names, ids)
    return ids


# -- intents


def _intent(look: Look, name: str) -> Iterator[Finding]:
    if layout.tail(name) is None:
        if present(look, "intents", name):
            yield _no_intent(name)
        return
    with guarded_or_said(look, (layout.DONE, name) if present(look, layout.DONE, name) else ("intents", name)) as said:
        yield from said
        if said or not present(look, "intents", name):
            return
        path = path_of("intents", name)
        record = intent_of(look, name)
        if record is None:
            yield finding(
                "intent-unreadable", path, "the record that a retry set aside cannot be read", repairable=True
            )
        else:
            yield finding("intent-open", path, f"the retry of job {str(record.job_id)!r} was cut off", repairable=True)


def _no_intent(name: str) -> Finding:
    path = path_of("intents", name)
    if name.startswith(layout.ASIDE):
        return finding(
            "intent-aside", path, "the record that a retry had set aside could not be read, and is kept here"
        )
    return finding("not-a-name", path, "its name is not that of a job")


def intent_of(mount: Mount, name: str) -> SignalFile | None:
    """The record that a retry has set aside; None when it cannot be read, or is not that of the job it is named for."""
    try:
        signal = decode_signal(mount.ops.read(fd_of(mount, "intents"), name, SIGNAL_BYTES)[0])
    except (OSError, DecodingFailed):
        return None
    return signal if signal.job_id in suffixes(name) else None


# -- dossiers


def _dossiers(look: Look, inventory: Inventory, progress: Progress | None) -> Iterator[Finding]:
    names = inventory.names["dossiers"]
    ids = {name.removesuffix(".json") for name in names if name.endswith(".json")}
    for name in in_portions(names, len(names), "reading dossiers", progress):
        if not _is_dossier(look, name) and not _is_dossier(look, name):
            yield finding("dossier-unreadable", path_of("dossiers", name), "it is not the JSON of an object")
    for folder in (layout.DONE, *OPEN):
        ids -= matched((plain(folder, file) or file for file in inventory.names[folder]), ids)
    for id in sorted(_still_alone(look, ids)):
        if present(look, "dossiers", layout.dossier_filename(id)):
            path = path_of("dossiers", layout.dossier_filename(id))
            yield finding("dossier-alone", path, f"no folder has the job {id!r} that it is about")


def _is_dossier(look: Look, name: str) -> bool:
    try:
        return isinstance(json.loads(look.ops.read(fd_of(look, "dossiers"), name, DOSSIER_BYTES)[0]), dict)
    except FileNotFoundError:
        return True
    except (OSError, ValueError, RecursionError):
        return False


# -- all of it


def _deep(look: Look, files: list[str], progress: Progress | None) -> Iterator[Finding]:
    """Read every job that has ended: its end is known, but its bytes may not be what they were."""
    for name in in_portions(files, len(files), "reading done/", progress):
        place = (layout.DONE, name)
        if not judge(look, place)[0]:
            continue
        with guarded_or_said(look, place) as said:
            yield from said
            kind, what = ("", "") if said else judge(look, place)
            if kind:
                yield finding(kind, path_of(*place), f"the job has ended, but {what}")
