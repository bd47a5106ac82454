"""How a job ended, in the words of the wire format."""

from __future__ import annotations

import enum

from queuekit.errors import InvalidTerminalStatus


class ObservationStatus(enum.StrEnum):
    """The status of a job as a signal records it. Every member but `RUNNING` is terminal."""

    RUNNING = "running"
    DONE = "done"
    DONE_WITH_CONCERNS = "done_with_concerns"
    NEEDS_CONTEXT = "needs_context"
    BLOCKED = "blocked"

    @property
    def is_terminal(self) -> bool:
        """Whether a job can end with it."""
        return self is not ObservationStatus.RUNNING


def check_terminal(status: ObservationStatus | str) -> ObservationStatus:
    """The status as an enum member; raises `InvalidTerminalStatus` for `running` and for unknown words."""
    try:
        member = ObservationStatus(status)
    except ValueError:
        raise InvalidTerminalStatus(str(status)) from None
    if not member.is_terminal:
        raise InvalidTerminalStatus(member)
    return member
