"""Whether making a file has become slow, as it does on some filesystems when many were removed lately.

An ext4 without a journal passes over every inode that was removed in the last minute or so, one by one, when a file is
made in the same block group: 0.14 µs each, up to 8,192 of them. So whoever removes many files looks now and then what
making one costs, and rests while that has risen. What is seen is only the way to the first inode that may be used: once
it has risen, many more may lie behind that one, so from then on he goes slowly. Elsewhere it never rises, and nobody
has to rest.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

_TRIES = 3  # the least of them is what the filesystem needs, the others had to wait for somebody
_RISE_SECONDS = 0.0002
_LOOKS = 2  # a rise that is gone at the next look was somebody else's doing
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


class CreationCost:
    """What it costs to make a file in `<root>/tmp`. `clock`: seconds, of high resolution.

    `rises`: whether this filesystem is one of those where it rises, as far as is known: two looks have seen it.
    """

    def __init__(self, root: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self._folder = os.path.join(root, "tmp")
        self._clock = clock
        self._least: float | None = None
        self._risen_looks = 0
        self.rises = False

    def has_risen(self) -> bool:
        """Whether it is well above the least that it was at any look: by 0.2 ms, and to twice as much.

        Makes a few empty files and removes them. Where none can be made the answer is no: then nobody is held up, and
        that files are removed can only help.
        """
        try:
            cost = min(self._make_one() for _ in range(_TRIES))
        except OSError:
            return False
        self._least = cost if self._least is None else min(cost, self._least)
        risen = cost > max(self._least + _RISE_SECONDS, 2 * self._least)
        self._risen_looks = self._risen_looks + 1 if risen else 0
        self.rises |= self._risen_looks >= _LOOKS
        return risen

    def _make_one(self) -> float:
        path = os.path.join(self._folder, f"probe-{os.getpid()}-{os.urandom(6).hex()}")
        begun = self._clock()
        fd = os.open(path, _FLAGS, 0o600)
        seconds = self._clock() - begun
        os.close(fd)
        os.unlink(path)
        return seconds
