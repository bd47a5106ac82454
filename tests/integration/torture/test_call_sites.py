"""T3, T6, T8: every act of the queue is killed before, and failed at, each system call that it makes.

The acts are the stories of `queue_stories`, over a folder and over SQLite in either journal mode; strace does it to
real calls of real processes. The long form goes to every call site, the short one to some, chosen by the seed.
"""

from __future__ import annotations

import dataclasses
import functools
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
    Actor,
    Call,
    Played,
    Said,
    Site,
    fail_from,
    fail_once,
    in_own_child,
    kill_at,
    scratch,
)

from queuekit.backends.maildir import deferred, drain, mount
from queuekit.backends.sql import database
from queuekit.backends.sql.sqlite import SqliteDatabase
from queuekit.locks import forget_all

pytestmark = pytest.mark.needs("linux", "root", "strace")

ERRORS = ("ENOSPC", "EIO", "EDQUOT", "EROFS", "EMFILE", "ENFILE", "EACCES", "EINTR", "ENOENT", "ESTALE")
SYNC_ERRORS = ("EIO", "ENOSPC", "EDQUOT")
ALL = (*CHANGING, *LOOKING)
LOCKING = ("fcntl",)
"""SQLite's locks. It takes every error for somebody else's lock and waits, so these fail once each."""
ANSWERING = "sendto"
"""What an actor says how it went with."""
LOOKING_ERRORS = ("EIO", "EACCES", "EINTR", "ENOENT", "ESTALE")
"""Those that a call can give which changes nothing."""
LEFT_BY_PRUNING = {"no-record", "signal-alone", "twin"}
ENOUGH_TRIES = 20
TRIES = 12
ACTS_EACH = 25
"""So many acts has one actor, where it lives."""


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

SYNCING = [each for each in SETTINGS if each.kind == "folder" or each.story.name != "make"]
"""Not looked at: syncs of a database that is being made, before it has its name; SQLite goes on after some of them."""


class Stage:
    """Plays one setting again and again, each time in a new store, and looks at what was left of some at a time."""

    def __init__(self, setting: Setting, folder: str) -> None:
        self.setting = setting
        self.faults: list[str] = []
        self._folder = folder
        self._number = 0
        self._actor: Actor | None = None
        self._waiting: list[tuple[str, Played, int]] = []
        self._template = self.setting.store(os.path.join(folder, "template"))
        self._report("the empty store", in_own_child([lambda: self._template.open().close()]))

    def play(self, where: str, inject: Sequence[str], names: Sequence[str], *, watch_on: bool = False) -> Played:
        """One performance, to be judged later. `where`: what is done to it."""
        self._number += 1
        if self._actor is None or not self._actor.alive or self._number % ACTS_EACH == 0:
            self._end_actor()
            self._actor = Actor(self._prepare, self._folder)
        played = self._actor.play(self._number, inject, names, self._enough, watch_on=watch_on)
        self._waiting.append((where, played, self._number))
        if len(self._waiting) >= ACTS_EACH:
            self.judge()
        return played

    def judge(self) -> None:
        """Note what is wrong with how it went and with what was left, of all that have been played, and remove that."""
        self._end_actor()
        waiting, self._waiting = self._waiting, []
        looks = [
            functools.partial(self._look, number, played.said[-1].how == "done", not where.startswith("ENOENT"))
            for where, played, number in waiting
        ]
        for (where, played, number), told in zip(waiting, in_own_child(looks), strict=True):
            heading = f"{where}: {played.said[:3]}"
            last = played.said[-1]
            if last.how in {"crashed", "hung"}:
                self._report(heading, [f"{last.how}: {last.error}\n{played.trace}"])
            elif last.how == "refused" and not (played.said[0].kind == "LeaseLost" or self._found_done(last)):
                self._report(heading, [f"it never succeeds again, {len(played.said)} tries: {last.error}"])
            self._report(heading, [told])
            shutil.rmtree(self._store(number).root, ignore_errors=True)

    def close(self) -> None:
        """End the actor."""
        self._end_actor()

    def fault(self, where: str, what: str) -> None:
        """Note one."""
        self._report(where, [what])

    def _report(self, where: str, told: Sequence[str]) -> None:
        self.faults += [f"{self.setting}, {where}: {each}" for each in told if each]

    def _end_actor(self) -> None:
        if self._actor is not None:
            self._actor.end()
            self._actor = None

    def _store(self, number: int) -> Store:
        return self.setting.store(os.path.join(self._folder, str(number)))

    def _prepare(self, number: int) -> Act:
        store = self._store(number)
        shutil.copytree(self._template.root, store.root)
        return self.setting.story.prepare(store.open())

    def _enough(self, said: list[Said]) -> bool:
        """Whether a refused act need not be tried again: it is done, or cannot be told apart from that."""
        if len(said) == 1:
            return False
        return said[0].kind == "LeaseLost" or self._found_done(said[-1]) or len(said) > ENOUGH_TRIES

    def _found_done(self, said: Said) -> bool:
        known = MAY_FIND_IT_DONE if self.setting.kind == "folder" else IN_A_DATABASE_TOO
        return self.setting.story.name in known and said.kind in {each.__name__ for each in SAYS_DONE}

    def _look(self, number: int, acknowledged: bool, at_once: bool) -> None:
        """The promise. `at_once`: nobody was told that a lease is not there while it was (then it runs out)."""
        store, story = self._store(number), self.setting.story
        check(store, story, acknowledged=acknowledged, at_once=at_once)
        left = store.complaints() - (LEFT_BY_PRUNING if story.does == "prune" else set())
        assert not left, f"fsck finds {left}"


@pytest.fixture(scope="module", autouse=True)
def _rehearsed() -> Iterator[None]:
    """An actor's first act must not be the first of its kind in the process that it is forked from: what is imported
    and compiled then is no part of it. (Forks are cheaper, too, when there is less to do after them.)"""
    with pytest.MonkeyPatch.context() as patch, scratch() as folder:
        patch.setattr(mount, "_SYNC_EACH", BARRIER_FROM)
        patch.setattr(drain, "_LISTING_SHARE", 0)  # that a listing was slow shall not spare the next one
        patch.setattr(deferred, "_LISTING_SHARE", 0)
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
        stage = Stage(request.param, folder)
        yield stage
        stage.close()


@pytest.fixture
def dice() -> random.Random:
    """The same in each run, so that a failure of a short form is a change's, and not the sample's.

    `ACTING_SEED` takes another one.
    """
    seed = int(os.environ.get("ACTING_SEED", "1"))
    print(f"ACTING_SEED={seed}")
    return random.Random(seed)


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
    """Judge what was played, print the figures of one test, add them up, and fail with what was found."""
    stage.judge()
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
    sites = stage.play("undisturbed", (), CHANGING).sites
    chosen = [sites[place] for place in some(dice, share, sites)]
    killed = sum(kill(stage, site) for site in chosen)
    beyond = kill_beyond(stage, sites) if share == 1.0 else 0
    told("T3", stage, call_sites=len(sites) + beyond, killed_at=killed + beyond)
    assert killed == len(chosen), "some call was not reached again"


def kill(stage: Stage, site: Site) -> bool:
    """Whether the act died there; it is tried again, for an act may call once more or less."""
    return any(stage.play(f"dead at {site}", kill_at(site), CHANGING).said[-1].how == "died" for _ in range(TRIES))


def kill_beyond(stage: Stage, sites: Sequence[Site]) -> int:
    """Go on past the last call of each name until nothing is struck; how many more there were."""
    more = 0
    for name, count in sorted(Counter(site.name for site in sites).items()):
        site = Site(name, count + 1)
        while stage.play(f"dead at {site}", kill_at(site), CHANGING).said[-1].how == "died":
            more, site = more + 1, Site(name, site.nth + 1)
    return more


@pytest.mark.parametrize("share", short_and_long(0.006, 1.0, timeout=14_400))
def test_an_error_at_any_call(stage: Stage, share: float, dice: random.Random) -> None:
    """T6: each error, once and from then on, at each call: a `QueueError` or success, nothing lost or doubled, no run
    charged, no success that is not durable; and the act succeeds when the fault is gone."""
    calls = [call for call in stage.play("undisturbed", (), (*ALL, *LOCKING)).calls if not call.unlocks]
    sites = [call.site for call in calls]
    points = [
        (place, error, lasting)
        for place, site in enumerate(sites)
        for error in ERRORS
        for lasting in ((False,) if site.name in LOCKING else (False, True))
        if lasting or site.name in CHANGING or error in LOOKING_ERRORS
    ]
    struck = 0
    for chosen in some(dice, share, points):
        place, error, lasting = points[chosen]
        inject = fail_from(sites, place, error, ALL) if lasting else fail_once(sites[place], error)
        struck += fail(stage, f"{error} {'from' if lasting else 'at'} {sites[place]}", inject)
    told("T6", stage, call_sites=len(sites), errors=struck)


def fail(stage: Stage, where: str, inject: Sequence[str]) -> bool:
    """Whether the fault struck; it is tried again, for an act may call once more or less."""
    for _ in range(TRIES):
        played = stage.play(where, inject, (*ALL, *LOCKING))
        first = played.said[0]
        syncs = [call.line for call in played.struck if call.site.name in SYNCS and "EINTR" not in call.line]
        counted = [line for line in syncs if stage.setting.kind == "folder" or not is_of_folder(line)]
        if first.how == "done" and counted and stage.setting in SYNCING:  # what SQLite passes over is T8's to count
            stage.fault(where, f"success after a failed {counted}")
        if first.how == "refused" and not played.struck:
            stage.fault(where, f"{first.error} without a fault")
        if played.struck:
            return True
    return False


@pytest.mark.parametrize("stage", SYNCING, indirect=True, ids=str)
@pytest.mark.parametrize("share", short_and_long(0.1, 1.0))
def test_a_failed_sync(stage: Stage, share: float, dice: random.Random) -> None:
    """T8: no act whose sync failed is acknowledged, and no file whose sync failed is synced again as it is, or put in
    place. Two things are counted: folders that are synced again when the act is repeated, and syncs of the database's
    folder, whose errors SQLite passes over."""
    sites = [site for site in stage.play("undisturbed", (), ALL).sites if site.name in SYNCS]
    points = [(site, error) for site in sites for error in SYNC_ERRORS]
    counted: Counter[str] = Counter(syncs=len(sites))
    for chosen in some(dice, share, points) if points else []:
        site, error = points[chosen]
        where = f"{error} at {site}"
        played = stage.play(where, fail_once(site, error), (*ALL, ANSWERING), watch_on=True)
        counted["failed"] += bool(played.struck)
        of_sqlites_folder = stage.setting.kind != "folder" and any(is_of_folder(call.line) for call in played.struck)
        if of_sqlites_folder:
            counted["passed_over_by_sqlite"] += 1
        elif played.said[0].how == "done":
            counted["acknowledged"] += 1
            stage.fault(where, "acknowledged")
        for call in used_after_failure(played.calls):
            if is_of_folder(call.line):
                counted["folders_synced_again"] += 1
            else:
                counted["files_used_again"] += 1
                stage.fault(where, f"used again: {call.line}")
    told("T8", stage, **counted)


_ON_DESCRIPTOR = re.compile(r"^\w+\((\d+)<(.*?)>")
_RENAMED = re.compile(r'^rename\w*\(\d+<(.*?)>, "(.*?)"')
_WRITING = {"write", "writev", "pwrite64", "ftruncate"}


def is_of_folder(line: str) -> bool:
    """Whether a call's descriptor is a folder's; asked before that is removed."""
    on = _ON_DESCRIPTOR.match(line)
    return on is not None and os.path.isdir(on[2])


def used_after_failure(calls: Sequence[Call]) -> list[Call]:
    """The calls that used what could not be synced: renamed it, or synced it again as it was, in a later attempt.

    (SQLite syncs its log once more when it closes the connection of the act that failed, for the sake of acts before.)
    """
    failed: dict[str, str] = {}  # by descriptor, its path
    ever: set[str] = set()
    again = []
    is_later = False
    for call in calls:
        is_later |= call.site.name == ANSWERING
        on, renamed = _ON_DESCRIPTOR.match(call.line), _RENAMED.match(call.line)
        if call.site.name in SYNCS and on:
            if call.struck:
                failed[on[1]] = on[2]
                ever.add(on[2])
            elif is_later and failed.get(on[1]) == on[2]:
                again.append(call)
        elif call.site.name in {"close", *_WRITING} and on:
            failed.pop(on[1], None)
        elif renamed and f"{renamed[1]}/{renamed[2]}" in ever:
            again.append(call)
    return again
