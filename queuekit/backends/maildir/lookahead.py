"""Which pending names are known, oldest first: so that a claim need not list the folder each time. No I/O.

A listing is taken once for the oldest names and kept. Names that a watcher reports afterwards join it, as long as
nothing older can be missing: when the listing left some out (`more`), a name behind its last one is forgotten again,
for the next listing will find it. What is here is a hint; whoever claims a name may find it gone.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

SIZE = 32_768  # some MB; a listing of a million names costs what a thousand jobs do
_END = "\U0010ffff"  # no name is behind it


class Lookahead:
    """The oldest known names of one stream."""

    def __init__(self, size: int = SIZE) -> None:
        self._size = size
        self._heap: list[str] = []
        self._known: set[str] = set()
        self._last = ""
        self.horizon = _END  # while it is refilled: a name behind this one need not be offered
        self.more = True  # whether the folder may hold names that are not known here

    def __len__(self) -> int:
        return len(self._heap)

    def refill(self, names: Iterable[str]) -> None:
        """Replace what is known by a listing's oldest names."""
        self.horizon = _END
        oldest: list[str] = []
        for name in names:
            oldest.append(name)
            if len(oldest) > 2 * self._size:
                self._shorten(oldest)
        self.more = self._shorten(oldest) or self.horizon != _END
        self._heap = oldest
        self._last = self._heap[-1] if self._heap else ""
        self._known = set(self._heap)

    def _shorten(self, names: list[str]) -> bool:
        """Sort, and drop what is too much; returns whether something was."""
        names.sort()
        if len(names) <= self._size:
            return False
        del names[self._size :]
        self.horizon = names[-1]
        return True

    def add(self, name: str) -> None:
        """Note a name that has just arrived."""
        if name in self._known:
            return
        if self.more and name > self._last:
            return
        if len(self._heap) >= 2 * self._size:
            self.more = True
            self._last = max(self._heap)
            return
        heapq.heappush(self._heap, name)
        self._known.add(name)

    def take(self) -> Iterator[str]:
        """The names, oldest first; each one is forgotten as it is handed out."""
        while self._heap:
            name = heapq.heappop(self._heap)
            self._known.discard(name)
            yield name

    def doubt(self) -> None:
        """There may be names that nobody has told of: what arrives is noted where it is older than what is known."""
        self.more = True
        self._last = max(self._heap, default="")

    def put_back(self, name: str) -> None:
        """A name that was taken and is still pending."""
        if name not in self._known:
            heapq.heappush(self._heap, name)
            self._known.add(name)
