"""What fsck finds, as values: the kinds, how bad each is, why it matters and what is to be done. No I/O."""

from __future__ import annotations

import dataclasses
import enum


class Severity(enum.StrEnum):
    """How bad a finding is.

    `error`: a job is stuck, or jobs are not safe. `warning`: a record is missing or wrong. `note`: nobody needs to act.
    """

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as it should be.

    `kind`: a stable word, see `KINDS`; `path`: below the root; `what`, `why`, `remedy`: sentences for a person;
    `repairable`: `repair` would set it right; `count`: how many files it is about (`path`: their folder, or the first).
    """

    kind: str
    severity: Severity
    path: str
    what: str
    why: str
    remedy: str
    repairable: bool = False
    count: int = 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """What one repair did; `done` is False when it could not be done, and `did` says why."""

    kind: str
    path: str
    did: str
    done: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """What all findings of a kind share. `repair`: what `repair` does, "" when it leaves it alone."""

    severity: Severity
    why: str
    by_hand: str
    repair: str = ""


_E, _W, _N = Severity.ERROR, Severity.WARNING, Severity.NOTE

KINDS = {
    # -- the root
    "root-open": Kind(
        _E,
        "whoever can write the folder can exchange the queue under the pool; for that reason it is not used like this",
        "chmod o-w it, or choose another folder",
        "takes the right to write away from others",
    ),
    "root-owner": Kind(
        _E,
        "a queue belongs to one user; nobody else can mount it",
        "run as the owner, or chown -R the whole root",
    ),
    "folder-unfit": Kind(
        _E,
        "the queue moves jobs by renaming, which needs real folders on one filesystem; it is not used like this",
        "move what is in it into a plain folder of that name on the root's filesystem, with no pool running",
    ),
    "folder-closed": Kind(
        _E,
        "the queue cannot be used like this, and what is in the folder cannot be told: nothing else has been looked at",
        "chmod u+rwx it, or let fsck run as the owner; then run fsck again",
    ),
    "folder-missing": Kind(
        _N,
        "a root that has not been used yet, or only by another program, has not all folders",
        "nothing: the next use makes it",
        "makes it",
    ),
    "mode-wide": Kind(
        _W,
        "jobs may hold secrets; the queue makes files for their owner alone (0600), other programs may not",
        "chmod go= them when nothing is in flight",
        "takes the rights of group and others away",
    ),
    "folder-wide": Kind(
        _W,
        "others could list the jobs, or exchange them; the queue makes its folders for their owner alone (0700)",
        "chmod go= it",
        "takes the rights of group and others away",
    ),
    "owner-foreign": Kind(
        _E,
        "a file of another user may be closed to the pool; a command run as another user made it",
        "chown it to the owner of the root",
    ),
    "not-regular": Kind(
        _W,
        "the queue makes only regular files here, and ignores everything else",
        "look at what it is and move it out of the root",
    ),
    "hard-linked": Kind(
        _W,
        "renaming one name of a file onto another one does nothing and reports success; a program that publishes by "
        "link and unlink and was killed between leaves this",
        "remove the name that should not be there",
    ),
    "hard-linked-outside": Kind(
        _N,
        "a backup made with hard links does this; the queue never writes into a file, so the copy stays as it was",
        "nothing",
    ),
    "tmp-stale": Kind(
        _N,
        "a writer was killed or the power failed before its send or reply was acknowledged; nobody will read it",
        "nothing: the next use of the queue removes it",
        "removes what is older than five minutes",
    ),
    # -- jobs
    "not-a-job": Kind(
        _E,
        "a file that cannot be read as a job cannot be run; a broken copy, a failing disk or another program made it",
        "nothing: the next drain of its stream moves it to done/ with a `blocked` record, its bytes as they are",
        "moves it to done/ with a `blocked` record, its bytes as they are",
    ),
    "misnamed": Kind(
        _E,
        "name and content disagree, so nobody can tell which job this is; the file was renamed or copied by hand",
        "rename it to what its content says, if you know how it came about",
        "moves it to done/ with a `blocked` record, its bytes as they are",
    ),
    "not-a-name": Kind(
        _N,
        "the name has not the shape of a job's, so the queue ignores the file for ever",
        "move it out of the root",
    ),
    "malformed-later": Kind(
        _E,
        "its name does not say when it is due, so it is never run; the file was put there by hand",
        "rename it to new/ to run it now",
    ),
    "malformed-claim": Kind(
        _E,
        "its name is not that of a claim, so nobody brings it home; a program was killed, or it was put there by hand",
        "rename it to new/ to run it",
        "makes the job pending",
    ),
    "unreadable-now": Kind(
        _E,
        "the system reports an error for this file; the disk may be failing",
        "look at the system's log, then run fsck again",
    ),
    "twin": Kind(
        _W,
        "the same job was sent twice, as when a producer repeats a send that it got no answer for",
        "nothing: the later copy is dropped, without running, when it is claimed",
        "drops the later copy, which holds the same bytes",
    ),
    "twin-different": Kind(
        _E,
        "two different files have the name of one job; one of them would be dropped without running",
        "compare them; give the one that should also run an id of its own and send it anew",
    ),
    "twin-unrecorded": Kind(
        _N,
        "a file in done/ without a record of its end does not count, and the job is open: its end replaces that file",
        "nothing",
    ),
    "id-twice": Kind(
        _W,
        "the record of an end is named by the id alone, so the end of one job replaces that of the other",
        "give each job an id of its own; `prune` the older one when both have ended",
    ),
    "name-long": Kind(
        _W,
        "programs that share the queue make longer names from it, which the filesystem may refuse: with more than 236 "
        "bytes it can be run, but not be put off, and ends `blocked` when its run fails",
        "send the job again with a shorter stream or id",
    ),
    "due-far": Kind(
        _N,
        "a due time of over a year from now is mostly a mistake in units or a wrong clock",
        "`workerpool release ID` runs it now, `workerpool cancel ID` ends it",
    ),
    "due-overflow": Kind(
        _W,
        "the due time is more than 64 bits hold: it will never be due, and other programs cannot read it",
        "`workerpool release ID` runs it now, `workerpool cancel ID` ends it",
    ),
    "in-flight-unheld": Kind(
        _N,
        "they were claimed, and nobody holds the stream's lease: their consumer died, or works without a lease",
        "nothing: the next pool that works the stream runs them again",
    ),
    # -- records
    "no-record": Kind(
        _W,
        "nobody knows how it ended, and it is never run again by itself; a prune was killed half-way, or the record "
        "was removed by hand",
        "`workerpool prune` removes it",
        "gives it a `blocked` record that says so; `workerpool retry ID` then runs it again",
    ),
    "signal-alone": Kind(
        _W,
        "the record of an end is there, its job is nowhere: the job's file was removed by hand or lost by the disk",
        "remove the record when it is of no use any more",
    ),
    "signal-unreadable": Kind(
        _E,
        "nobody can tell how the job ended; a power cut on a disk that lies about syncing, or another program, did it",
        "look at the file; then remove it",
        "keeps its bytes in the job's dossier and writes a `blocked` record in its place",
    ),
    "signal-foreign": Kind(
        _W,
        "the record is named for one job and speaks of another; it was renamed or copied by hand",
        "look at both jobs, then rename or remove it",
    ),
    "quarantined": Kind(
        _N,
        "they could not be read as jobs when they were claimed, and were put aside with their bytes",
        "look at them; `workerpool prune` removes them in time",
    ),
    "intent-open": Kind(
        _N,
        "a retry was cut off half-way; the job waits in done/, or is pending already and only the old record is left",
        "nothing: the next pool that works the stream finishes it",
        "finishes the retry",
    ),
    "intent-unreadable": Kind(
        _W,
        "a retry was cut off half-way, and the old record that it kept cannot be read; the job itself can",
        "nothing: the next pool that works the stream finishes the retry, and keeps what there is of the record",
        "finishes the retry, and keeps what there is of the record",
    ),
    "intent-aside": Kind(
        _N,
        "a retry went on without it, so the job is where it should be, and only how it had ended before is not known",
        "look at the file; then remove it",
    ),
    "dossier-unreadable": Kind(
        _W,
        "what was kept about the job (its last error, its earlier ends) cannot be shown",
        "look at the file; the job itself is not touched by it",
    ),
    "dossier-alone": Kind(
        _N,
        "it speaks of a job that is nowhere; a prune was killed just before its last step",
        "remove it when it is of no use any more",
    ),
    # -- checkpoints
    "checkpoint-unreadable": Kind(
        _W,
        "the work that keeps its place there is told so and cannot go on; a failing disk or another program did it",
        "look at the file; then remove it, and the work starts from its beginning",
    ),
    # -- leases and locks
    "lease-unreadable": Kind(
        _W,
        "nobody can tell who holds the stream; a pool takes it after it has seen it unchanged for the lease's ttl",
        "nothing, if a pool is to run; else remove it when no pool of any program runs",
    ),
    "lease-dead": Kind(
        _N,
        "the holder died without giving its lease up",
        "nothing: the next pool takes the stream over",
    ),
    "lease-left": Kind(
        _N,
        "somebody was killed while writing a lease or a counter; nobody reads it",
        "nothing",
        "removes it",
    ),
    "alive-dead": Kind(
        _N,
        "a process that held a lease once died, and no lease names it any more",
        "nothing: the next take-over removes it",
        "removes it",
    ),
    "fence-unreadable": Kind(
        _W,
        "the number of take-overs is not known; the next one counts on from the clock, above anything before",
        "nothing",
    ),
    "lock-held": Kind(
        _W,
        "whoever holds the lock is stopped or stuck; nothing of this stream moves, and it could not be looked at twice",
        "`workerpool status` names the process: continue it (kill -CONT) or end it",
    ),
}


def finding(kind: str, path: str, what: str, *, repairable: bool = False, count: int = 1) -> Finding:
    """A finding of a known kind, with the kind's words."""
    return worded(KINDS[kind], kind, path, what, repairable=repairable, count=count)


def worded(facts: Kind, kind: str, path: str, what: str, *, repairable: bool, count: int) -> Finding:
    """A finding with the words of its kind."""
    return Finding(
        kind=kind,
        severity=facts.severity,
        path=path,
        what=what,
        why=facts.why,
        remedy=f"--repair {facts.repair}" if repairable else facts.by_hand,
        repairable=repairable,
        count=count,
    )


_ORDER = {severity: place for place, severity in enumerate(Severity)}


def by_weight(found: Finding) -> tuple[int, str, str]:
    """A key for sorting: errors first."""
    return _ORDER[found.severity], found.kind, found.path
