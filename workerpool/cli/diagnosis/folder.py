"""A store that is a folder: what was seen of it and of the filesystem below, and what that means. No I/O."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator

from queuekit.watch import is_silent
from workerpool.cli import words
from workerpool.cli.diagnosis.finding import Finding, Part, error, note, ok, warning

ORDERED = frozenset(["ext3", "ext4", "xfs", "btrfs", "apfs"])
"""A rename's addition is on disk no later than its removal there."""
IN_MEMORY = frozenset(["tmpfs", "ramfs", "devtmpfs"])
_WITHOUT_MODES = frozenset(["vfat", "msdos", "exfat", "ntfs", "ntfs3", "fuseblk"])
_SLOW_MS, _NOTHING_MS = 30.0, 0.02
_SHOWN = 3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What a file in tmp/ has shown. `exclusive`: a rename can refuse to replace; `locks`: flock keeps a second one
    out; `sync_ms`: each sync; `event_ms`: after which time a new file was announced, None: it was not; `refusal`: why
    there are no events."""

    exclusive: bool
    locks: bool
    sync_ms: tuple[float, ...]
    means: str
    event_ms: float | None
    refusal: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Inotify:
    """This user's use of it, as far as it can be seen, and the limits."""

    instances: int
    max_instances: int
    watches: int
    max_watches: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """`others`: what is in the root beside a queue's folders, while these are missing; `trouble`: why it cannot be
    used, "" when it can; `loose`: paths with more than 0700/0600 and their modes; `probe`: None: not tried."""

    root: str
    filesystem: str
    missing: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    trouble: tuple[str, ...] = ()
    loose: tuple[tuple[str, int], ...] = ()
    no_journal: bool = False
    reserve: bool = True
    pool_runs: bool = False
    streams: int = 0
    probe: Probe | None = None
    inotify: Inotify | None = None


def judge(folder: Folder) -> Iterator[Finding]:
    """What the facts mean."""
    yield from _judge_root(folder)
    yield from _judge_filesystem(folder)
    if folder.probe is not None:
        yield from _judge_probe(folder.probe, folder.filesystem)
    if folder.inotify is not None:
        yield _judge_inotify(folder.inotify, 0 if folder.pool_runs else folder.streams)
    if not folder.missing and not folder.trouble:
        yield _judge_reserve(folder)


def _judge_root(folder: Folder) -> Iterator[Finding]:
    for trouble in folder.trouble:
        yield error("store", trouble, "no pool and no sender can use it", "", Part.STORE)
    if folder.trouble:
        return
    if folder.others:
        named = ", ".join(words.printable(name) for name in folder.others[:_SHOWN])
        yield warning(
            "store",
            f"{folder.root} is no queue yet, and holds other things: {named}",
            "the first send or run would make a queue of it",
            "look whether the URL names the right folder",
        )
    elif folder.missing:
        yield note(
            "store", f"{folder.root} lacks {', '.join(folder.missing)}", "the next send or run makes what is missing"
        )
    else:
        yield ok("store", f"{folder.root} is a queue in a folder")
    if folder.loose:
        named = ", ".join(f"{words.printable(path)} ({mode:04o})" for path, mode in folder.loose[:_SHOWN])
        yield note(
            "modes", f"others may look into {named}", "jobs' payloads can be read", f"chmod -R go= {folder.root}"
        )


def _judge_filesystem(folder: Folder) -> Iterator[Finding]:
    kind = folder.filesystem
    plain = kind.lower().partition(".")[0]
    if plain in ORDERED:
        yield ok("filesystem", f"{kind} keeps the order that renames need to survive a power cut")
    elif plain in IN_MEMORY:
        yield warning(
            "filesystem", f"{kind} is memory", "jobs survive kill -9, and are gone after a reboot or power cut"
        )
    elif plain in _WITHOUT_MODES:
        yield warning(
            "filesystem", f"{kind} keeps no modes, and no order", "a power cut may lose jobs", "use ext4 or xfs"
        )
    elif is_silent(kind):
        yield warning(
            "filesystem",
            f"{kind} is a network, layered or shared filesystem",
            "locks hold on one machine at most, a power cut may lose jobs, and arrivals are looked for by polling",
            "use a local disk; for several machines PostgreSQL (`workerpool migrate`)",
        )
    else:
        yield note(
            "filesystem",
            f"{kind or 'its type cannot be told'}",
            "whether a power cut between two renames can lose a job there is unknown; ext4, xfs, btrfs, apfs are safe",
        )
    if folder.no_journal:
        yield note(
            "filesystem",
            "this ext4 has no journal",
            "making files is slow for a minute after many were removed, so removing goes slowly here; and a power cut "
            "may need an fsck of the disk",
        )


def _judge_probe(probe: Probe, filesystem: str) -> Iterator[Finding]:
    if probe.exclusive:
        yield ok("filesystem", "a rename can refuse to replace")
    else:
        yield note(
            "filesystem", "a rename cannot refuse to replace here", "a look under the stream's lock does it instead"
        )
    if not probe.locks:
        yield error(
            "filesystem",
            "flock does not keep a second one out here",
            "two pools could work one stream, and jobs could be lost or run twice",
            "use a local filesystem",
            Part.STORE,
        )
    yield from _judge_syncs(probe.sync_ms, filesystem)
    yield _judge_events(probe)


def _judge_syncs(sync_ms: tuple[float, ...], filesystem: str) -> Iterator[Finding]:
    if not sync_ms:
        return
    median = statistics.median(sync_ms)
    found = f"a sync takes {median:.2f} ms, at worst {max(sync_ms):.2f} ms of {len(sync_ms)}"
    if median > _SLOW_MS:
        yield warning("sync", found, "every single send waits for two", "send in batches (`send --jsonl`, send_batch)")
    elif median < _NOTHING_MS and filesystem not in IN_MEMORY:
        yield note(
            "sync", found, "faster than disks are: perhaps the disk or the virtual machine only says that it is done"
        )
    else:
        yield ok("sync", found)


def _judge_events(probe: Probe) -> Finding:
    if probe.refusal:
        return note(
            "events", f"polling: {probe.refusal}", "an idle pool notices a job within [watch] poll, not at once"
        )
    if probe.event_ms is None:
        return warning(
            "events",
            f"{probe.means} took a watch here and did not announce a new file within a second",
            "an idle pool may notice a job only at its slow look ([watch] scan)",
            "use a local filesystem",
        )
    return ok("events", f"{probe.means}: a new file is announced after {probe.event_ms:.2f} ms")


def _judge_inotify(inotify: Inotify, streams: int) -> Finding:
    found = (
        f"inotify: {inotify.instances:,} of {inotify.max_instances:,} instances and "
        f"{inotify.watches:,} of {inotify.max_watches:,} watches are used by this user"
    )
    short = [
        f"fs.inotify.{name}"
        for name, used, limit in (
            ("max_user_instances", inotify.instances, inotify.max_instances),
            ("max_user_watches", inotify.watches, inotify.max_watches),
        )
        if used + streams > limit
    ]
    if not short:
        return ok("events", found)
    raise_them = "; ".join(f"sysctl {name}={2 * max(inotify.instances, inotify.watches, 512)}" for name in short)
    return warning("events", found, f"{words.number(streams, 'stream')} of this pool may have to poll", raise_them)


def _judge_reserve(folder: Folder) -> Finding:
    if folder.reserve:
        return ok("reserve", "1 MiB is kept for when the disk is full")
    if folder.pool_runs:
        return warning(
            "reserve",
            "a pool runs, and the reserve for a full disk is missing",
            "the disk is (or was just) full, or never had room for it",
            "make room; the pool makes the reserve again",
        )
    return note("reserve", "no room is kept for a full disk yet", "the next pool does that")
