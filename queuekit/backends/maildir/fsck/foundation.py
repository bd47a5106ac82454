"""The root and its folders: whose they are, who can write them, whether they are real folders on one filesystem."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping

from queuekit import lease as leases
from queuekit.backends.maildir import layout
from queuekit.backends.maildir.fsck.finding import Finding, finding
from queuekit.backends.maildir.fsck.look import FOLDERS

ALL_FOLDERS = (*FOLDERS.values(), layout.PRIVATE, leases.FOLDER)


def check(root: str, closed: Mapping[str, str]) -> Iterator[Finding]:
    """Everything that is wrong with the root itself and with its folders. `closed`: those not to be opened, and why."""
    facts = os.stat(root)
    if facts.st_mode & stat.S_IWOTH and not facts.st_mode & stat.S_ISVTX:
        ours = facts.st_uid == os.geteuid()
        yield finding("root-open", ".", "everybody can write the root", repairable=ours)
    if facts.st_uid != os.geteuid():
        yield finding(
            "root-owner", ".", f"the root belongs to uid {facts.st_uid}, and this command runs as uid {os.geteuid()}"
        )
    for folder in sorted(ALL_FOLDERS):
        if folder in closed:
            yield finding("folder-closed", folder, f"{folder}/ cannot be opened: {closed[folder]}")
        else:
            yield from _check_folder(root, folder, facts)
    yield from _check_reserve(root)


def _check_folder(root: str, folder: str, root_facts: os.stat_result) -> Iterator[Finding]:
    try:
        facts = os.stat(os.path.join(root, folder), follow_symlinks=False)
    except FileNotFoundError:
        yield finding("folder-missing", folder, f"there is no folder {folder}/", repairable=True)
        return
    except (NotADirectoryError, PermissionError):  # what is above it is reported
        return
    if stat.S_ISLNK(facts.st_mode):
        yield finding("folder-unfit", folder, f"{folder} is a link, not a folder")
    elif not stat.S_ISDIR(facts.st_mode):
        yield finding("folder-unfit", folder, f"{folder} is not a folder")
    elif facts.st_dev != root_facts.st_dev:
        yield finding("folder-unfit", folder, f"{folder}/ is on another filesystem than the root")
    elif facts.st_uid != root_facts.st_uid:
        yield finding("owner-foreign", folder, f"{folder}/ belongs to uid {facts.st_uid}")
    elif facts.st_mode & 0o700 != 0o700:
        what = f"{folder}/ is closed to its owner: its mode is {stat.S_IMODE(facts.st_mode):04o}"
        yield finding("folder-closed", folder, what)
    elif facts.st_mode & 0o077:
        what = f"{folder}/ has the mode {stat.S_IMODE(facts.st_mode):04o}"
        yield finding("folder-wide", folder, what, repairable=facts.st_uid == os.geteuid())


def _check_reserve(root: str) -> Iterator[Finding]:
    """It may be missing: it was given up, or there was no room for it."""
    try:
        facts = os.stat(os.path.join(root, layout.RESERVE), follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    if not stat.S_ISREG(facts.st_mode):
        yield finding("not-regular", layout.RESERVE, "it is no regular file: no room is kept for when the disk is full")
