"""T3, T6, T8: every act of the queue is killed before, and failed at, each system call that it makes.

The acts are the stories of `queue_stories`, over a folder and over SQLite in either journal mode; strace does it to
real calls of real processes. The long form goes to every call site, the short one to some, chosen by the seed.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import pytest
from lengths import short_and_long
from queue_stories import (
    BARRIER_FROM,
    FOLDER_LIFE_STORIES,
    FOLDER_STORIES,
    IN_A_DATABASE_TOO,
    LIFE_STORIES,
    MAY_FIND_IT_DONE,
    SAYS_DONE,
    STORIES,
    Act,
    File,
    Folder,
    Store,
    Story,
    check,
)
from sqlalchemy import Engine
from strace_rig import (
    CHANGING,
    LOOKING,
    SYNCS,
    Call,
    Played,
    Said,
    Site,
    fail_from,
    fail_once,
    in_own_child,
    kill_at,
    play,
    scratch,
)

from queuekit.backends.maildir import mount
from queuekit.backends.sql import database
from queuekit.backends.sql.sqlite import SqliteDatabase
from queuekit.locks import forget_all

pytestmark = pytest.mark.needs("linux", "root", "strace")

ERRORS = ("ENOSPC", "EIO", "EDQUOT", "EROFS", "EMFILE", "ENFILE", "EACCES", "EINTR", "ENOENT", "ESTALE")
SYNC_ERRORS = ("EIO", "ENOSPC", "EDQUOT")
ALL = (*CHANGING, *LOOKING)
LOOKING_ERRORS = ("EIO", "EACCES", "EINTR", "ENOENT", "ESTALE")
"""Those that a call can give which changes nothing."""
REPEATS_LEFT_TO_FSCK = {"no-record", "signal-alone", "twin"}
ENOUGH_TRIES = 400


@dataclasses.dataclass(frozen=True)
class Setting:
    """A story, and where it is told."""

    story: Story
    kind: str

    def store(self, root: str) -> Store:
        """The store in this folder, which need not be there yet."""
        return Folder(root) if self.kind == "folder" else File(root, "" if self.kind == "sqlite" else "delete")

    def __str__(self) -> str:
        return f"{self.kind}: {self.story.name}"


SETTINGS = [
    *(Setting(story, "folder") for story in (*STORIES, *FOLDER_STORIES, *LIFE_STORIES, *FOLDER_LIFE_STORIES)),
    *(Setting(story, "sqlite") for story in (*STORIES, *LIFE_STORIES)),
    *(Setting(story, "sqlite in delete mode") for story in (*STORIES, *LIFE_STORIES) if story.name != "make"),
]


class Stage:
    """Plays one setting again and again, each time in a new store."""

    def __init__(self, setting: Setting, folder: str) -> None:
        self.setting = setting
        self.folder = folder
        self._number = 0
        self.faults: list[str] = []
        self._template = self.setting.store(os.path.join(folder, "template"))
        if in_own_child(lambda: self._template.open().close()):
            raise AssertionError("no empty store can be made")

    def play(self, inject: Sequence[str], names: Sequence[str], *, watch_on: bool = False) -> tuple[Played, Store]:
        """One performance; the store is as it was left."""
        self._number += 1
        store = self.setting.store(os.path.join(self.folder, str(self._number)))
        shutil.copytree(self._template.root, store.root)
        played = play(
            lambda: self._prepare(store),
            inject,
            names=names,
            folder=self.folder,
            enough=self._enough,
            watch_on=watch_on,
        )
        return played, store

    def _prepare(self, store: Store) -> Act:
        return self.setting.story.prepare(store.open())

    def _enough(self, said: list[Said]) -> bool:
        """Whether a refused act need not be tried again: it is done, or cannot be told apart from that."""
        if len(said) == 1:
            return False
        return said[0].kind == "LeaseLost" or self._found_done(said[-1]) or len(said) > ENOUGH_TRIES

    def _found_done(self, said: Said) -> bool:
        known = MAY_FIND_IT_DONE if self.setting.kind == "folder" else IN_A_DATABASE_TOO
        return self.setting.story.name in known and said.kind in {each.__name__ for each in SAYS_DONE}

    def judge(self, where: str, played: Played, store: Store) -> None:
        """Note what is wrong with how it went and with what was left, and remove that."""
        last = played.said[-1]
        wrong = []
        if last.how in {"crashed", "hung"}:
            wrong.append(f"{last.how}: {last.error}\n{played.trace}")
        elif last.how == "refused" and not (played.said[0].kind == "LeaseLost" or self._found_done(last)):
            wrong.append(f"it never succeeds again, {len(played.said)} tries: {last.error}")
        wrong += [each for each in [in_own_child(lambda: self._look(store, last.how == "done"))] if each]
        self.faults += [f"{self.setting}, {where}: {played.said[:3]}: {each}" for each in wrong]
        shutil.rmtree(os.path.join(self.folder, str(self._number)), ignore_errors=True)

    def _look(self, store: Store, acknowledged: bool) -> None:
        check(store, self.setting.story, acknowledged=acknowledged)
        left = store.complaints() - (REPEATS_LEFT_TO_FSCK if self.setting.story.does == "prune" else set())
        assert not left, f"fsck finds {left}"

    def plain(self, names: Sequence[str]) -> Played:
        """The act without a fault."""
        played, store = self.play((), names)
        self.judge("undisturbed", played, store)
        return played


@pytest.fixture(scope="module", autouse=True)
def _rehearsed() -> Iterator[None]:
    """An actor's first act must not be the first of its kind in the process that it is forked from: what is imported
    and compiled then is no part of it. (Forks are cheaper, too, when there is less to do after them.)"""
    with pytest.MonkeyPatch.context() as patch, scratch() as folder:
        patch.setattr(mount, "_SYNC_EACH", BARRIER_FROM)
        patch.setattr(database, "_FIRST_PAUSE", 0.001)
        patch.setattr(database, "_LONGEST_PAUSE", 0.005)
        patch.setattr(SqliteDatabase, "_make_engine", one_engine_for_all(SqliteDatabase._make_engine))
        for number, setting in enumerate(SETTINGS):
            store = setting.store(os.path.join(folder, str(number)))
            setting.story.prepare(store.open())()
            forget_all()
            check(store, setting.story, acknowledged=True)
            store.complaints()
        gc.collect()
        gc.freeze()
        yield
        gc.unfreeze()


def one_engine_for_all(make: Callable[[SqliteDatabase], Engine]) -> Callable[[SqliteDatabase], Engine]:
    """`make`, but the statements are compiled once for all databases."""
    made: list[Engine] = []

    def make_like_the_first(self: SqliteDatabase) -> Engine:
        engine = make(self)
        made[1:] = []
        made.append(engine)
        engine.dialect, engine._compiled_cache = made[0].dialect, made[0]._compiled_cache
        return engine

    return make_like_the_first


@pytest.fixture(params=SETTINGS, ids=str)
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    with scratch() as folder:
        yield Stage(request.param, folder)


class Ledger(Counter[str]):
    """The figures of a row, over all its tests of this process."""


LEDGERS = {row: Ledger() for row in ("T3", "T6", "T8")}


@pytest.fixture(scope="module", autouse=True)
def _figures_in_the_end() -> Iterator[None]:
    yield
    for row, ledger in LEDGERS.items():
        if ledger:
            print(f"\n{row} in all: " + ", ".join(f"{count} {what}" for what, count in ledger.items()))


def told(row: str, stage: Stage, **figures: int) -> None:
    """Print the figures of one test, add them up, and fail with what was found."""
    LEDGERS[row].update({what.replace("_", " "): count for what, count in figures.items()})
    LEDGERS[row]["faults"] += len(stage.faults)
    print(
        f"{row} {stage.setting}: " + ", ".join(f"{count} {what.replace('_', ' ')}" for what, count in figures.items())
    )
    assert not stage.faults, f"{len(stage.faults)} faults:\n" + "\n".join(stage.faults[:12])


def some(dice: random.Random, share: float, of: Sequence[object]) -> list[int]:
    """The places of a share of these, at least two."""
    count = min(len(of), max(2, round(share * len(of))))
    return sorted(dice.sample(range(len(of)), count))


@pytest.mark.parametrize("share", short_and_long(0.15, 1.0))
def test_killed_before_any_call(stage: Stage, share: float, dice: random.Random) -> None:
    """T3: a death before each call that changes something, until none is left; the next holder finds a clean state."""
    sites = stage.plain(CHANGING).sites
    chosen = [sites[place] for place in some(dice, share, sites)]
    killed = 0
    for site in chosen:
        played = reach(
            stage, kill_at(site), CHANGING, lambda played: played.said[-1].how == "died", f"killed at {site}"
        )
        killed += played
    beyond = run_beyond(stage, sites) if share == 1.0 else 0
    told("T3", stage, call_sites=len(sites) + beyond, killed_at=killed + beyond)
    assert killed == len(chosen), "some call was not reached again"


def reach(
    stage: Stage, inject: Sequence[str], names: Sequence[str], struck: Callable[[Played], bool], where: str
) -> bool:
    """Play until the fault strikes, for an act may call once more or less; whether it did."""
    for _ in range(4):
        played, store = stage.play(inject, names)
        stage.judge(where, played, store)
        if struck(played):
            return True
    return False


def run_beyond(stage: Stage, sites: Sequence[Site]) -> int:
    """Go on past the last call of each name until nothing is struck; how many more there were."""
    more = 0
    for name, count in sorted(Counter(site.name for site in sites).items()):
        nth = count + 1
        while True:
            site = Site(name, nth)
            played, store = stage.play(kill_at(site), CHANGING)
            stage.judge(f"killed at {site}", played, store)
            if played.said[-1].how != "died":
                break
            more, nth = more + 1, nth + 1
    return more


@pytest.mark.parametrize("share", short_and_long(0.006, 1.0, timeout=14_400))
def test_an_error_at_any_call(stage: Stage, share: float, dice: random.Random) -> None:
    """T6: each error, once and from then on, at each call: a `QueueError` or success, nothing lost or doubled, no run
    charged, no success that is not durable; and the act succeeds when the fault is gone."""
    sites = stage.plain(ALL).sites
    points = [
        (place, error, lasting)
        for place, site in enumerate(sites)
        for error in ERRORS
        for lasting in (False, True)
        if lasting or site.name in CHANGING or error in LOOKING_ERRORS
    ]
    struck = 0
    for chosen in some(dice, share, points):
        place, error, lasting = points[chosen]
        site = sites[place]
        inject = fail_from(sites, place, error, ALL) if lasting else fail_once(site, error)
        where = f"{error} {'from' if lasting else 'at'} {site}"
        struck += fail(stage, inject, where)
    told("T6", stage, call_sites=len(sites), errors=struck)


def fail(stage: Stage, inject: Sequence[str], where: str) -> bool:
    for _ in range(4):
        played, store = stage.play(inject, ALL)
        first = played.said[0]
        lost = [call.site.name for call in played.struck if call.site.name in SYNCS and "EINTR" not in call.line]
        if first.how == "done" and lost:
            stage.faults.append(f"{stage.setting}, {where}: success after a failed {lost}")
        if first.how == "refused" and not played.struck:
            stage.faults.append(f"{stage.setting}, {where}: {first.error} without a fault")
        stage.judge(where, played, store)
        if played.struck:
            return True
    return False


@pytest.mark.parametrize("share", short_and_long(0.1, 1.0))
def test_a_failed_sync(stage: Stage, share: float, dice: random.Random) -> None:
    """T8: no act whose sync failed is acknowledged, and none of its files is synced again or put in place; when it is
    repeated, it starts from new files."""
    sites = [site for site in stage.plain(ALL).sites if site.name in SYNCS]
    points = [(site, error) for site in sites for error in SYNC_ERRORS]
    acknowledged = again = folders = 0
    for chosen in some(dice, share, points) if points else []:
        site, error = points[chosen]
        played, store = stage.play(fail_once(site, error), ALL, watch_on=True)
        where = f"{error} at {site}"
        files = synced_after_failure(played.calls)
        again += len(files)
        folders += sum(os.path.isdir(each) for each in files)
        stage.faults += [f"{stage.setting}, {where}: used again: {each}" for each in files if not os.path.isdir(each)]
        if played.said[0].how == "done":
            acknowledged += 1
            stage.faults.append(f"{stage.setting}, {where}: acknowledged")
        stage.judge(where, played, store)
    told("T8", stage, syncs=len(sites), failed=len(points), acknowledged=acknowledged, folders_synced_again=folders)


_SYNCED = re.compile(r"^\w+\((\d+)<(.*)>\)")


def synced_after_failure(calls: Sequence[Call]) -> list[str]:
    """The paths that were synced on a descriptor whose sync had failed."""
    failed: set[tuple[str, str]] = set()
    again = []
    for call in calls:
        found = _SYNCED.match(call.line)
        if found is None or call.site.name not in {*SYNCS, "close"}:
            continue
        descriptor = (found[1], found[2])
        if call.site.name == "close":
            failed.discard(descriptor)
        elif call.struck:
            failed.add(descriptor)
        elif descriptor in failed:
            again.append(found[2])
    return again
