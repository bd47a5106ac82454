"""One walk through all folders: every name, and what is odd about a file as the filesystem sees it."""

from __future__ import annotations

import dataclasses
import os
import stat
from collections.abc import Callable, Iterator

from queuekit.backends.maildir import layout
from queuekit.backends.maildir.fsck.finding import Finding, finding
from queuekit.backends.maildir.fsck.look import FOLDERS, Look, Progress, facts_of, fd_of, path_of
from queuekit.clock import now_ms
from queuekit.errors import BackendUnavailable

Fact = Callable[[os.stat_result], bool]


@dataclasses.dataclass(slots=True)
class Inventory:
    """`names`: the regular files of each folder; the rest: names of those with something odd, by folder."""

    names: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    irregular: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    wide: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    foreign: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    linked: dict[int, list[tuple[str, str]]] = dataclasses.field(default_factory=dict)
    stale: list[str] = dataclasses.field(default_factory=list)
    owner: int = 0


def take(look: Look, progress: Progress | None) -> Inventory:
    """Walk once. Open jobs come before done/, the way they go, so that a job on its way is seen at least once."""
    inventory = Inventory(owner=os.stat(look.root).st_uid)
    for number, attribute in enumerate(FOLDERS):
        if progress is not None:
            progress("listing", number, len(FOLDERS))
        inventory.names[attribute] = list(_walk(look, attribute, inventory)) if look.has(attribute) else []
    return inventory


def _walk(look: Look, attribute: str, inventory: Inventory) -> Iterator[str]:
    try:
        for entry in look.ops.entries(fd_of(look, attribute)):
            try:
                facts = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                yield entry.name  # it has just moved on, and may not be seen there
                continue
            if not stat.S_ISREG(facts.st_mode):
                inventory.irregular.append((attribute, entry.name))
                continue
            _note(attribute, entry.name, facts, inventory)
            yield entry.name
    except OSError as error:
        raise BackendUnavailable(f"cannot list {FOLDERS[attribute]}/: {error.strerror}") from error


def _note(attribute: str, name: str, facts: os.stat_result, inventory: Inventory) -> None:
    if facts.st_mode & 0o077:
        inventory.wide.setdefault(attribute, []).append(name)
    if facts.st_uid != inventory.owner:
        inventory.foreign.setdefault(attribute, []).append(name)
    if facts.st_nlink > 1:
        inventory.linked.setdefault(facts.st_ino, []).append((attribute, name))
    if attribute == layout.TMP and is_stale(facts):
        inventory.stale.append(name)


def is_stale(facts: os.stat_result) -> bool:
    """Whether a file in tmp/ was left by somebody who is dead for sure."""
    return facts.st_mtime < now_ms() / 1000 - layout.STALE_TMP_SECONDS


def check(look: Look, inventory: Inventory) -> Iterator[Finding]:
    """What is odd, looked at a second time."""
    for attribute, name in inventory.irregular:
        facts = facts_of(look, attribute, name)
        if facts is not None and not stat.S_ISREG(facts.st_mode):
            yield finding("not-regular", path_of(attribute, name), f"it is {_type(facts.st_mode)}, not a regular file")
    for attribute, names in inventory.wide.items():
        yield from _many(look, "mode-wide", attribute, names, lambda facts: bool(facts.st_mode & 0o077))
    for attribute, names in inventory.foreign.items():
        yield from _many(look, "owner-foreign", attribute, names, lambda facts: facts.st_uid != inventory.owner)
    yield from _many(look, "tmp-stale", layout.TMP, inventory.stale, is_stale)
    for names_of_one in inventory.linked.values():
        yield from _linked(look, names_of_one)


_WORDS = {
    "mode-wide": "can be read or written by group or others",
    "owner-foreign": "of another user than the root's owner",
    "tmp-stale": "left over in tmp/ for more than five minutes",
}


def _many(look: Look, kind: str, attribute: str, names: list[str], still: Fact) -> Iterator[Finding]:
    """One finding for all files of a folder that share a fault."""
    left = [name for name in names if (facts := facts_of(look, attribute, name)) is not None and still(facts)]
    if left:
        what = f"{number(len(left), 'file')} {_WORDS[kind]}, such as {left[0]!r}"
        yield finding(kind, FOLDERS[attribute], what, repairable=_is_repairable(kind, attribute), count=len(left))


def _is_repairable(kind: str, attribute: str) -> bool:
    """A change of mode changes the ctime, by which a consumer without a lease knows its claims: cur/ is left alone."""
    return kind == "tmp-stale" or (kind == "mode-wide" and attribute != layout.CUR)


def _linked(look: Look, names: list[tuple[str, str]]) -> Iterator[Finding]:
    left = [each for each in names if (facts := facts_of(look, *each)) is not None and facts.st_nlink > 1]
    if not left:
        return
    path = path_of(*left[0])
    if len(left) > 1:
        others = " and ".join(path_of(*each) for each in left[1:])
        yield finding("hard-linked", path, f"it is the same file as {others}", count=len(left))
    else:
        yield finding("hard-linked-outside", path, "the file has another name, outside of the queue's folders")


def _type(mode: int) -> str:
    for test, word in (
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISLNK, "a link"),
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISSOCK, "a socket"),
    ):
        if test(mode):
            return word
    return "a device"


def number(count: int, word: str) -> str:
    """`1 file`, `2,000 files`."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"
