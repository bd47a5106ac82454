"""What this instance has claimed and not yet settled: a book kept in memory. No I/O.

Without leases another process may reply to what was claimed here, and nobody says so. Such claims are of use for a
while: they tell a late reply of ours from a stranger's. So the newest `KEPT` of those whose job has left cur/ are kept;
whoever claims looks from time to time which these are (`has_grown`, `long_gone`, `reviewed`).
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Collection, Iterable

from queuekit.clock import Due
from queuekit.completion import Completion
from queuekit.hlc import HLC
from queuekit.ids import SessionID
from queuekit.job import Job

KEPT = 10_000


@dataclasses.dataclass(slots=True)
class Claim:
    """One job in cur/ that is ours (or that a reply from elsewhere is for).

    `receipt`: the ctime of its file when it was claimed without a lease, which every later move changes; `fence`: the
    number of the take-over under which it was claimed; `job`: kept under a lease only. `reply` (with its signal's
    bytes) and `deferral` (a name in later/ and the bytes there): an act begun and not acknowledged, so that the same
    one repeated is known for what it is. `due`: when it was to be run again, as reckoned when that was first said.
    `moved`: that act has taken the job out of cur/, so one that is there again is a new claim, whoever's. `lost`: it
    was ours and its receipt fits no more.
    """

    name: str
    stream: str
    job_id: str
    session: SessionID
    receipt: int | None
    fence: int
    job: Job | None
    submitted_at: HLC
    reply: tuple[Completion, bytes] | None = None
    deferral: tuple[str, bytes] | None = None
    due: Due | None = None
    moved: bool = False
    lost: bool = False


class Claims:
    """The book: by job id, by session and by file name. Safe to use from several threads."""

    def __init__(self) -> None:
        self._by_name: dict[str, Claim] = {}
        self._by_id: dict[str, list[Claim]] = {}
        self._sessions: dict[SessionID, dict[str, Claim]] = {}
        self._guard = threading.Lock()
        self._reviewed = 0
        self.taking = ""  # the name that is being claimed just now: ours already, whoever looks

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, name: str) -> bool:
        claim = self._by_name.get(name)
        return name == self.taking or (claim is not None and not claim.lost)

    def had(self, name: str) -> bool:
        """Whether it is or was ours: then no reply of this instance passes for one from elsewhere."""
        return name in self._by_name

    def add(self, claim: Claim) -> None:
        """Note a fresh claim. An earlier one of the same file has been taken from us meanwhile: it is forgotten."""
        with self._guard:
            earlier = self._by_name.get(claim.name)
            if earlier is not None:
                self._drop(earlier)
            self._by_name[claim.name] = claim
            self._by_id.setdefault(claim.job_id, []).append(claim)
            self._sessions.setdefault(claim.session, {})[claim.name] = claim

    def find(self, job_id: str, stream: str | None) -> Claim | None:
        """The oldest claim of this id (in this stream)."""
        with self._guard:
            for claim in self._by_id.get(job_id, ()):
                if stream is None or claim.stream == stream:
                    return claim
            return None

    def of_session(self, session: SessionID) -> list[Claim]:
        """The claims of one drain call that are not settled."""
        with self._guard:
            return list(self._sessions.get(session, {}).values())

    def drop(self, claim: Claim) -> None:
        """Forget a claim; nothing happens when it is forgotten already."""
        with self._guard:
            self._drop(claim)

    def lose(self, claim: Claim) -> None:
        """The job has moved on without us. One with a receipt is remembered as lost, until it is claimed anew."""
        claim.lost = claim.receipt is not None
        if not claim.lost:
            self.drop(claim)

    def drop_all(self, claims: Iterable[Claim]) -> None:
        """Forget many."""
        with self._guard:
            self._drop_all(claims)

    def drop_stream(self, stream: str) -> None:
        """Forget every claim of a stream: its lease is lost, or was won anew."""
        with self._guard:
            self._drop_all([claim for claim in self._by_name.values() if claim.stream == stream])

    # -- staying small

    @property
    def has_grown(self) -> bool:
        """Whether it is twice what it was after the last review, and so time for the next one."""
        return len(self._by_name) >= 2 * max(KEPT, self._reviewed)

    def long_gone(self, in_flight: Collection[str]) -> list[Claim]:
        """Claims without a lease whose job is not among these names, but for the newest `KEPT` of them."""
        with self._guard:
            claims = list(self._by_name.values())
        gone = [claim for claim in claims if claim.name not in in_flight and _is_unleased(claim)]
        return gone[: max(0, len(gone) - KEPT)]

    def reviewed(self) -> None:
        """What is left is what there is."""
        self._reviewed = len(self._by_name)

    def _drop_all(self, claims: Iterable[Claim]) -> None:
        for claim in claims:
            self._drop(claim)

    def _drop(self, claim: Claim) -> None:
        if self._by_name.get(claim.name) is not claim:
            return
        del self._by_name[claim.name]
        same_id = self._by_id[claim.job_id]
        same_id.remove(claim)
        if not same_id:
            del self._by_id[claim.job_id]
        session = self._sessions[claim.session]
        del session[claim.name]
        if not session:
            del self._sessions[claim.session]


def _is_unleased(claim: Claim) -> bool:
    return claim.receipt is not None or not claim.session
