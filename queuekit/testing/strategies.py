"""Hypothesis strategies for the values of a queue. Needs hypothesis; nothing but tests may import this module.

Everything that they draw may be sent: it passes `wire.check_sendable`, and the file name fits.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from queuekit.completion import ArtifactRef, ArtifactType, SignalFile
from queuekit.hlc import HLC
from queuekit.ids import JobID, StreamID
from queuekit.job import Job
from queuekit.status import ObservationStatus

_INT32 = st.integers(-(2**31), 2**31 - 1)
_INT64 = st.integers(-(2**63), 2**63 - 1)
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_NAME_CHARACTERS = st.one_of(
    st.sampled_from("ab0-._ "),
    st.characters(exclude_categories=["Cs"], exclude_characters="/\\\x7f", min_codepoint=0x20),
)


def _is_usable(name: str) -> bool:
    return name not in {".", ".."} and not name.endswith(".signal") and len(name.encode()) <= 80


def identifiers() -> st.SearchStrategy[str]:
    """Text that may be a stream or job id: hyphens, dots, spaces and any Unicode; up to 80 bytes."""
    return st.text(_NAME_CHARACTERS, min_size=1, max_size=20).filter(_is_usable)


def streams() -> st.SearchStrategy[StreamID]:
    """Stream ids."""
    return identifiers().map(StreamID)


def job_ids() -> st.SearchStrategy[JobID]:
    """Job ids, as the queue makes them or of any other kind."""
    return st.one_of(st.uuids(version=4).map(lambda each: JobID(each.hex)), identifiers().map(JobID))


def hlcs() -> st.SearchStrategy[HLC]:
    """Timestamps over the whole range of each part, the normal range included often."""
    physical = st.one_of(st.integers(1_600_000_000_000, 2_000_000_000_000), _INT64)
    return st.builds(HLC, physical, st.one_of(st.integers(0, 9), _INT32), _INT32)


def json_values() -> st.SearchStrategy[Any]:
    """What JSON can hold: integers of 64 bits, finite floats, valid Unicode."""
    scalars = st.one_of(st.none(), st.booleans(), _INT64, st.floats(allow_nan=False, allow_infinity=False), _TEXT)
    return st.recursive(
        scalars,
        lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_TEXT, inner, max_size=4)),
        max_leaves=12,
    )


def extensions() -> st.SearchStrategy[dict[str, Any]]:
    """A job's extensions; the reserved key `delivery` is not among them."""
    return st.dictionaries(_TEXT.filter(lambda key: key != "delivery"), json_values(), max_size=4)


def jobs(
    stream_ids: st.SearchStrategy[StreamID] | None = None, ids: st.SearchStrategy[JobID] | None = None
) -> st.SearchStrategy[Job]:
    """Jobs of the given streams and ids (default: any)."""
    return st.builds(
        Job,
        id=ids if ids is not None else job_ids(),
        stream_id=stream_ids if stream_ids is not None else streams(),
        submitted_at=hlcs(),
        priority=st.one_of(st.just(50), _INT64),
        payload=st.binary(max_size=200),
        extensions=extensions(),
    )


def artifacts() -> st.SearchStrategy[ArtifactRef]:
    """Pointers of every type to anything."""
    return st.builds(ArtifactRef, st.sampled_from(ArtifactType), _TEXT)


def signals() -> st.SearchStrategy[SignalFile]:
    """Records of how jobs ended, with any terminal status."""
    return st.builds(
        SignalFile,
        job_id=job_ids(),
        status=st.sampled_from([status for status in ObservationStatus if status.is_terminal]),
        completed_at=hlcs(),
        artifacts=st.lists(artifacts(), max_size=3).map(tuple),
    )
