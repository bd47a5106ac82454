"""What the parts of the master share: the streams and their processes, and how far the end of the pool has come.

The loop makes one `Desk` and hands it to its parts. A part acts when its turn comes (`act(now)`, monotonic seconds) and
says when it wants the next one (`next()`; None: only after an event).
"""

from __future__ import annotations

import dataclasses
import selectors
from collections.abc import Callable, Sequence

from workerpool.board import Board
from workerpool.config import PoolConfig, StreamConfig
from workerpool.master.state import Burst, Ending, StreamState
from workerpool.process import Channel, Child
from workerpool.systemd import Notifier
from workerpool.trouble import Trouble

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_OTHER_POOL, EXIT_GAVE_UP, EXIT_BLOCKED = 0, 1, 2, 4, 5, 6
SPARE_ROWS = 4


@dataclasses.dataclass(slots=True)
class Member:
    """One stream and its process. `first_row`, `rows`: its place on the board; `left`: what waits, paused.

    `starting`: the system's trouble with making the process, none of the stream's own; `asked`: the configuration that
    it was told to take on and has not said anything of yet; `dying`: why its process ends, as that has said itself;
    `lacks_store`: because it cannot open the store.
    """

    config: StreamConfig
    state: StreamState
    first_row: int
    rows: int
    starting: Trouble
    asked: StreamConfig | None = None
    dying: str = ""
    lacks_store: bool = False
    child: Child | None = None
    channel: Channel | None = None
    done: int = 0
    blocked: int = 0
    retried: int = 0
    left: int = 0
    base: tuple[int, int, int] = (0, 0, 0)  # counts of processes of this stream that have ended

    @property
    def counts(self) -> tuple[int, int, int]:
        """Jobs done, blocked and retried by this run."""
        base = self.base
        return base[0] + self.done, base[1] + self.blocked, base[2] + self.retried


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """What the master needs of the outside: how to be a stream process or the reporter, how to read the config.

    `move_on`: makes a new board in the root that is there now, another one; raises `QueueError` or `OSError`;
    `keep`: descriptors that children keep open; `notifier`: the way to the service manager.
    """

    board: Board
    be_stream: Callable[[StreamConfig, Channel, int, int], int]
    be_reporter: Callable[[], int] | None
    reload: Callable[[], PoolConfig] | None
    move_on: Callable[[], Board]
    keep: Sequence[int]
    notifier: Notifier


@dataclasses.dataclass(slots=True, kw_only=True)
class Desk:
    """One pool.

    `quiet`: nothing is claimed; `moving`: nothing is started, the root is another one; `code`: what the pool will exit
    with, as far as that is known; `former_counts`: of streams that were removed and whose place is another's.
    """

    pool: PoolConfig
    place: Workplace
    selector: selectors.BaseSelector
    burst: Burst | None
    members: dict[str, Member] = dataclasses.field(default_factory=dict)
    ending: Ending = Ending.NOT
    code: int = EXIT_OK
    quiet: bool = False
    moving: bool = False
    former_counts: tuple[int, int, int] = (0, 0, 0)

    @property
    def is_ending(self) -> bool:
        """Whether the pool was told to end, or has a reason of its own."""
        return self.ending is not Ending.NOT

    @property
    def states(self) -> list[StreamState]:
        """How each stream is doing."""
        return [member.state for member in self.members.values()]

    @property
    def counts(self) -> tuple[int, int, int]:
        """Jobs done, blocked and retried by this run."""
        each = [self.former_counts, *(member.counts for member in self.members.values())]
        return sum(c[0] for c in each), sum(c[1] for c in each), sum(c[2] for c in each)

    def tell(self, words: dict[str, object]) -> None:
        """Pass an order on to every stream process; it travels with the end of the turn."""
        for member in self.members.values():
            if member.channel is not None:
                member.channel.send(words)


def rows_of(config: StreamConfig) -> int:
    """How many rows of the board a stream gets: its own, its workers', and some for a reload that wants more."""
    return 1 + max(1, config.workers) + max(SPARE_ROWS, config.workers)
