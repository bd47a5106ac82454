"""The golden pairs of this repository, and those that the first implementation recorded, in both directions."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from queuekit.backends.maildir.layout import job_filename
from queuekit.completion import ArtifactRef, ArtifactType, SignalFile
from queuekit.hlc import HLC
from queuekit.ids import JobID, StreamID
from queuekit.job import Job
from queuekit.status import ObservationStatus
from queuekit.wire import check_sendable, decode_job, decode_signal, encode_job, encode_signal

REPOSITORY = Path(__file__).parents[3]
FIXTURES = REPOSITORY / "fixtures"
RECORDED = Path(os.environ.get("QUEUEKIT_CONFORMANCE") or REPOSITORY.parent / "shared" / "conformance")


def inputs(folder: str) -> list[Path]:
    return sorted((FIXTURES / folder).glob("*.input.json"))


def case(path: Path) -> str:
    return path.name.removesuffix(".input.json")


def sibling(path: Path, suffix: str) -> Path:
    return path.with_name(case(path) + suffix)


def line(path: Path) -> str:
    return path.read_text(encoding="utf-8").removesuffix("\n")


def hlc(value: dict[str, int]) -> HLC:
    return HLC(value["physical_time"], value["logical_count"], value["node_id"])


def payload(value: str | dict[str, Any]) -> bytes:
    return bytes.fromhex(value) if isinstance(value, str) else bytes.fromhex(value["hex"]) * value["times"]


def job_of(path: Path) -> Job:
    value = json.loads(path.read_bytes())
    return Job(
        id=JobID(value["id"]),
        stream_id=StreamID(value["stream_id"]),
        submitted_at=hlc(value["submitted_at"]),
        priority=value["priority"],
        payload=payload(value["payload"]),
        extensions=value["extensions"],
    )


def signal_of(path: Path) -> SignalFile:
    value = json.loads(path.read_bytes())
    return SignalFile(
        job_id=JobID(value["job_id"]),
        status=ObservationStatus(value["status"]),
        completed_at=hlc(value["completed_at"]),
        artifacts=tuple(ArtifactRef(ArtifactType(each["type"]), each["value"]) for each in value["artifacts"]),
    )


def assert_is_the_file(data: bytes, path: Path) -> None:
    file, digest = sibling(path, ".file"), sibling(path, ".sha256")
    if digest.exists():
        assert f"{hashlib.sha256(data).hexdigest()} {len(data)}" == line(digest)
    else:
        assert data == file.read_bytes()


def test_the_fixtures_are_all_there() -> None:
    """A lost folder must not pass as a green run."""
    counts = {folder: len(inputs(folder)) for folder in ("jobs", "signals", "values")}
    assert counts == {"jobs": 22, "signals": 12, "values": 6}
    statuses = {signal_of(path).status for path in inputs("signals")}
    types = {artifact.type for path in inputs("signals") for artifact in signal_of(path).artifacts}
    assert (statuses, types) == (set(ObservationStatus), set(ArtifactType))


@pytest.mark.parametrize("path", inputs("jobs"), ids=case)
def test_a_job_is_written_and_read_as_its_fixture_says(path: Path) -> None:
    job = job_of(path)
    check_sendable(job)
    data = encode_job(job)
    assert_is_the_file(data, path)
    assert job_filename(job) == line(sibling(path, ".name"))
    again = decode_job(data)
    assert again == job
    assert repr(again.extensions) == repr(dict(sorted(again.extensions.items())))
    assert encode_job(again) == data


@pytest.mark.parametrize("path", inputs("signals"), ids=case)
def test_a_signal_is_written_and_read_as_its_fixture_says(path: Path) -> None:
    signal = signal_of(path)
    data = sibling(path, ".file").read_bytes()
    assert encode_signal(signal) == data
    assert decode_signal(data) == signal
    assert f"{signal.job_id}.signal" == line(sibling(path, ".name"))


@pytest.mark.parametrize("path", inputs("values"), ids=case)
def test_what_others_write_is_read_with_its_values(path: Path) -> None:
    job = decode_job(sibling(path, ".file").read_bytes())
    assert job == job_of(path)
    assert decode_job(encode_job(job)) == job


def test_floats_stay_floats() -> None:
    """Equal values could hide a change of type: 1.0 == 1."""
    job = decode_job((FIXTURES / "values" / "floats.file").read_bytes())
    assert {type(value) for value in job.extensions.values()} == {float}
    assert str(job.extensions["negative zero"]) == "-0.0"


@pytest.fixture(scope="module")
def recorded() -> Path:
    if RECORDED.is_dir():
        return RECORDED
    if os.environ.get("REQUIRE_ALL") == "1":
        pytest.fail(f"the recorded pairs are not at {RECORDED} (set QUEUEKIT_CONFORMANCE)")
    pytest.skip(f"the recorded pairs are not at {RECORDED} (set QUEUEKIT_CONFORMANCE)")


@pytest.mark.parametrize("number", range(1, 6))
def test_the_recorded_job(recorded: Path, number: int) -> None:
    value = json.loads((recorded / f"job_00{number}_input.json").read_bytes())
    node = value["submitted_at"]["node_id"]
    value["submitted_at"]["node_id"] = int.from_bytes(node.to_bytes(4, "big"), "big", signed=True)
    job = Job(
        id=value["id"],
        stream_id=value["stream_id"],
        submitted_at=hlc(value["submitted_at"]),
        priority=value["priority"],
        payload=bytes.fromhex(value["payload_bytes_hex"]),
        extensions=value["extensions"],
    )
    data = (recorded / f"job_00{number}_file.json").read_bytes()
    assert encode_job(job) == data
    assert decode_job(data) == job
    assert job_filename(job) == line(recorded / f"job_00{number}_filename.txt")


@pytest.mark.parametrize("number", range(1, 6))
def test_the_recorded_signal(recorded: Path, number: int) -> None:
    value = json.loads((recorded / f"signal_00{number}_input.json").read_bytes())
    node = value["completed_at"]["node_id"]
    value["completed_at"]["node_id"] = int.from_bytes(node.to_bytes(4, "big"), "big", signed=True)
    signal = SignalFile(
        job_id=JobID(value["job_id"]),
        status=ObservationStatus(value["status"]),
        completed_at=hlc(value["completed_at"]),
        artifacts=tuple(ArtifactRef(ArtifactType(each["type"]), each["value"]) for each in value["artifacts"]),
    )
    data = (recorded / f"signal_00{number}_output.json").read_bytes()
    assert encode_signal(signal) == data
    assert decode_signal(data) == signal
