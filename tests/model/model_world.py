"""The world of the model: one job in one stream, the folders it can be in, and what a power cut leaves of them.

Not a test file. A place holds 0 (nothing) or a number for the file there; two places with one number are two names of
one file. `UNSYNCED` is added to a file whose content has not been synced; a power cut makes that `RUINED`. While cuts
can still come, `base` is what the disk has for sure and `pending` the changes of folders since: in each folder they
reach the disk in their order, the folders are independent of each other, and of one rename the addition comes no later
than the removal. That is all that the design asks of a filesystem.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Iterator

A, B, DEAD = 1, 2, 3  # who a lease names
PERSON, PRUNER = 3, 4  # who else can hold the stream's lock
CANCELLED = 3  # a signal's author that is no drainer
UNSYNCED, RUINED, IMPOSTOR = 50, -1, -2
BEGUN, TOLD = 1, 2  # a wish: begun, and its caller was told that it is granted
PLACES = ("new", "cur", "later", "done", "signal", "intent")
JOB_PLACES = PLACES[:4]
FOLDER_OF = {"new": "new", "cur": "cur", "later": "later", "done": "done", "signal": "done", "intent": "intents"}


@dataclasses.dataclass(frozen=True)
class Change:
    """One change of a folder that is not on disk for sure. `value` 0: a removal, which waits for change `after`."""

    place: str
    value: int
    after: int | None = None


@dataclasses.dataclass(slots=True)
class Drainer:
    """A stream process. `hold`: what its book says of the job; `old`: claimed before the lease was lost and won
    again; `replied`: a reply was begun and not acknowledged."""

    at: str = "standby"
    hold: str = ""
    old: bool = False
    replied: bool = False

    def key(self) -> tuple[str, str, bool, bool]:
        return self.at, self.hold, self.old, self.replied

    def die(self) -> None:
        """It is started again at once; its memory is gone."""
        self.at, self.hold, self.old, self.replied = "standby", "", False, False


@dataclasses.dataclass(slots=True)
class World:
    """A state. The last groups are what the oracle remembers and what may still go wrong."""

    new: int = 0
    cur: int = 0
    later: int = 0
    done: int = 0
    signal: int = 0
    intent: int = 0
    base: tuple[int, ...] = ()
    pending: tuple[Change, ...] = ()
    lease: int = 0
    lock: int = 0
    producer: str = "send"
    person: str = ""
    target: str = ""
    pruner: str = ""
    # the oracle
    accepted: bool = False  # send has returned
    started: bool = False
    cause: bool = False  # something happened that lets the job run again
    acknowledged: bool = False  # its end was, and nobody has retried it since
    owed: int = TOLD  # it was sent or retried, and has not started since
    pruned: bool = False
    # budgets
    kills: int = 0
    stales: int = 0
    fails: int = 0
    cuts: int = 0
    resends: int = 0
    retries: int = 0
    cancels: int = 0
    prunes: int = 0
    stops: int = 0
    errors: int = 0
    steps: int = 0
    beats: int = 0
    impostors: int = 0
    drainers: list[Drainer] = dataclasses.field(default_factory=list)
    # not part of the state
    wrong: str = ""

    def copy(self) -> World:
        other = World.__new__(World)
        for name in _COPIED:
            setattr(other, name, getattr(self, name))
        other.drainers = [_copy(each) for each in self.drainers]
        other.wrong = ""
        return other

    def key(self) -> tuple[object, ...]:
        """The same for states that differ only in the numbers of files, or in who of the two drainers is who."""
        own = tuple([each.key() for each in self.drainers])
        swapped = own[::-1]
        if own < swapped:
            return self._key(own, False)
        if own > swapped:
            return self._key(swapped, True)
        return min(self._key(own, False), self._key(own, True))

    def _key(self, drainers: tuple[object, ...], swap: bool) -> tuple[object, ...]:
        who = _SWAPPED if swap else _SAME
        return (drainers, who[self.lease], who[self.lock], self._files(swap), *_plain(self))

    def _files(self, swap: bool) -> tuple[object, ...]:
        names: dict[int, int] = {}

        def job(value: int) -> int:
            if value <= 0:
                return value
            file, unsynced = value % UNSYNCED, value - value % UNSYNCED
            return names.setdefault(file, len(names) + 1) + unsynced

        def at(place: str, value: int) -> int:
            return _signal(value, swap) if place == "signal" else value if place == "intent" else job(value)

        return (
            *[at(place, getattr(self, place)) for place in PLACES],
            *[at(place, value) for place, value in zip(PLACES, self.base, strict=False)],
            *[
                (each.place, at(each.place, each.value), -1 if each.after is None else each.after)
                for each in self.pending
            ],
        )

    # -- the disk

    def fresh(self) -> int:
        """The number of a file that was just written."""
        used = {getattr(self, place) % UNSYNCED for place in JOB_PLACES if getattr(self, place) > 0}
        used |= {value % UNSYNCED for value in self.base[:4] if value > 0}
        used |= {each.value % UNSYNCED for each in self.pending if each.value > 0}
        return next(number for number in itertools.count(1) if number not in used)

    def put(self, place: str, value: int) -> None:
        """A file from tmp/ appears at a place, replacing what is there."""
        setattr(self, place, value)
        if self.cuts:
            self.pending += (Change(place, value),)

    def move(self, source: str, target: str, value: int | None = None) -> None:
        """rename(2): nothing happens when both names are one file. `value`: what a signal is as an intent."""
        file = getattr(self, source)
        if file == getattr(self, target) and target in JOB_PLACES:
            return
        moved = file if value is None else value
        setattr(self, target, moved)
        setattr(self, source, 0)
        if self.cuts:
            self.pending += (Change(target, moved), Change(source, 0, len(self.pending)))

    def remove(self, place: str) -> None:
        """unlink(2)"""
        setattr(self, place, 0)
        if self.cuts:
            self.pending += (Change(place, 0),)

    def sync(self, *folders: str) -> None:
        """fsync(2) of folders: their changes are on disk, and the additions that these wait for."""
        if not self.pending:
            return
        wanted = {index for index, each in enumerate(self.pending) if FOLDER_OF[each.place] in folders}
        while True:
            more = {self.pending[index].after for index in wanted} - {None}
            more |= {
                index
                for index, each in enumerate(self.pending)
                for other in wanted
                if index < other and FOLDER_OF[each.place] == FOLDER_OF[self.pending[other].place]
            }
            if more <= wanted:
                break
            wanted |= more  # type: ignore[arg-type]
        self._settle(wanted)

    def _settle(self, wanted: set[int]) -> None:
        disk = dict(zip(PLACES, self.base, strict=True))
        disk |= {self.pending[index].place: self.pending[index].value for index in sorted(wanted)}
        self.base = tuple(disk.values())
        left = [index for index in range(len(self.pending)) if index not in wanted]
        place_of = {index: number for number, index in enumerate(left)}
        self.pending = tuple(
            dataclasses.replace(self.pending[index], after=place_of.get(self.pending[index].after))  # type: ignore[arg-type]
            for index in left
        )

    def disks(self) -> Iterator[tuple[int, ...]]:
        """What a power cut can leave."""
        by_folder: dict[str, list[int]] = {}
        for index, each in enumerate(self.pending):
            by_folder.setdefault(FOLDER_OF[each.place], []).append(index)
        prefixes = [[indices[:count] for count in range(len(indices) + 1)] for indices in by_folder.values()]
        seen: set[tuple[int, ...]] = set()
        for choice in itertools.product(*prefixes):
            there = {index for prefix in choice for index in prefix}
            if any(self.pending[index].after not in {None, *there} for index in there):
                continue
            disk = dict(zip(PLACES, self.base, strict=True))
            disk |= {self.pending[index].place: self.pending[index].value for index in sorted(there)}
            left = tuple(RUINED if value >= UNSYNCED else value for value in disk.values())
            if left not in seen:
                seen.add(left)
                yield left

    def lose_power(self, disk: tuple[int, ...]) -> None:
        """Every process is dead, the disk is this one, and what a lease says has to be waited out."""
        for place, value in zip(PLACES, disk, strict=True):
            setattr(self, place, value)
        self.cuts -= 1
        self.base, self.pending = (disk if self.cuts else ()), ()
        self.lock, self.lease = 0, DEAD if self.lease else 0
        self.person = self.target = self.pruner = ""
        self.producer = "told" if self.accepted else "unknown"
        self.cause = True
        self.owed = self.owed if self.owed == TOLD else 0
        for each in self.drainers:
            each.die()

    # -- what can be seen

    @property
    def has_ended(self) -> bool:
        return bool(self.done and self.signal)

    @property
    def has_settled(self) -> bool:
        """Nothing is left to be done for the job."""
        if self.new or self.cur or self.later or self.intent:
            return False
        return self.has_ended or self.pruned or not self.accepted

    def verdict(self) -> str:
        """What is wrong with this state; empty when nothing is."""
        if self.wrong:
            return self.wrong
        if self.accepted and not self.pruned and not any(getattr(self, place) > 0 for place in JOB_PLACES):
            return "the job is lost: it was accepted and is nowhere"
        if self.acknowledged and not self.pruned and not (self.done > 0 and self.signal > 0):
            return "the record of an acknowledged end is lost"
        if self.accepted and self.owed and not self.pruned and self.has_settled:
            return "the job counts as ended, and has not run since it was sent or retried"
        return ""


_SAME = (0, 1, 2, 3, 4)
_SWAPPED = (0, 2, 1, 3, 4)
_COPIED = tuple(each.name for each in dataclasses.fields(World) if each.name not in {"drainers", "wrong"})
_plain = operator.attrgetter(
    *[name for name in _COPIED if name not in {*PLACES, "base", "pending", "lease", "lock"}],
)


def _copy(drainer: Drainer) -> Drainer:
    return Drainer(drainer.at, drainer.hold, drainer.old, drainer.replied)


def _signal(value: int, swap: bool) -> int:
    if not swap or value <= 0:
        return value
    return _SWAPPED[value % UNSYNCED] + value - value % UNSYNCED
