"""For how long others have not renewed what they hold, as one who looks now and then can tell. No I/O.

The database's clock stamps each renewal, so the age of a stamp says how long ago it was; but a clock can be set, and
one who could not look himself (the server was away, the machine stood still) cannot blame others for what he has not
seen. So ages are believed only as far as the looker's own monotonic clock bears them out:

* at the first look of all an age is believed;
* later, a new stamp cannot be older than the last look;
* after a pause in looking, everybody has a whole ttl again, from now on.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable


@dataclasses.dataclass(frozen=True, slots=True)
class Stamp:
    """A renewal. `beat`: as it was written; `age`: seconds ago by the clock that stamped it, negative when that was
    set back."""

    holder: str
    beat: int
    age: float


@dataclasses.dataclass(frozen=True, slots=True)
class Silence:
    """For how many seconds one has not renewed: `told` as both clocks bear out, `watched` as the looker alone knows."""

    told: float
    watched: float


@dataclasses.dataclass(frozen=True, slots=True)
class _Sighting:
    """On the looker's clock: when the stamp was made, and since when it is seen unchanged."""

    beat: int
    made: float
    seen: float


class Sightings:
    """What one looker has seen. `pause`: seconds between two looks after which he may have missed renewals; `clock`:
    monotonic seconds."""

    def __init__(self, pause: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._pause = pause
        self._clock = clock
        self._last: float | None = None
        self._seen: dict[str, _Sighting] = {}

    def silences(self, stamps: Iterable[Stamp]) -> dict[str, Silence]:
        """How silent each holder is. Who is not listed any more is forgotten."""
        now = self._clock()
        since = None if self._last is None else now - self._last
        self._seen = {each.holder: self._judge(each, now, since) for each in stamps}
        self._last = now
        return {holder: Silence(now - each.made, now - each.seen) for holder, each in self._seen.items()}

    def _judge(self, stamp: Stamp, now: float, since: float | None) -> _Sighting:
        known = self._seen.get(stamp.holder)
        if known is None or known.beat != stamp.beat:
            oldest = stamp.age if since is None else since
            return _Sighting(stamp.beat, now - max(0.0, min(stamp.age, oldest)), now)
        if since is not None and since > self._pause:
            return _Sighting(stamp.beat, now, now)
        return known
