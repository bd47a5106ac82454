"""Whether making a file has become slow, as it does on some filesystems when many were removed lately.

An ext4 without a journal passes over every inode that was removed in the last minute or so, one by one, when a file is
made in the same block group: 0.14 µs each, up to 8,192 of them. It is felt late, when new files come to the group where
the removed ones were. So whoever removes many files goes slowly where that is known (`rises`), looks now and then what
making one costs, rests while that has risen, and goes slowly from then on. Elsewhere nobody has to rest.
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

    `rises`: whether it rises on this filesystem, as far as is known: by what it is, or as two looks have seen.
    """

    def __init__(self, root: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self._folder = os.path.join(root, "tmp")
        self._clock = clock
        self._least: float | None = None
        self._risen_looks = 0
        self.rises = has_no_journal(root)

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


def has_no_journal(path: str) -> bool:
    """Whether this is on an ext4 that is known to have no journal. Linux tells; no answer is no."""
    try:
        device = os.stat(path).st_dev
        name = os.path.basename(os.readlink(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"))
        os.stat(f"/proc/fs/ext4/{name}")
        return not any(journal.startswith(f"{name}-") for journal in os.listdir("/proc/fs/jbd2"))
    except OSError:
        return False
