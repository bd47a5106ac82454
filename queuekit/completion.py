"""How a job ended: the signal that stays in done/, the artifacts it names, and what a consumer says to end one."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any

from queuekit.hlc import HLC
from queuekit.ids import JobID
from queuekit.status import ObservationStatus


class ArtifactType(enum.StrEnum):
    """What an artifact's value points at."""

    FILE_PATH = "file_path"
    COMMIT_HASH = "commit_hash"
    SIGNAL_FILE = "signal_file"
    TRAJECTORY_STEP_ID = "trajectory_step_id"


@dataclasses.dataclass(frozen=True, slots=True)
class ArtifactRef:
    """A pointer to something that a job left behind; on the wire `{"type": …, "value": …}`."""

    type: ArtifactType
    value: str

    @classmethod
    def file_path(cls, value: str) -> ArtifactRef:
        """A file."""
        return cls(ArtifactType.FILE_PATH, value)

    @classmethod
    def commit_hash(cls, value: str) -> ArtifactRef:
        """A commit."""
        return cls(ArtifactType.COMMIT_HASH, value)

    @classmethod
    def signal_file(cls, value: str) -> ArtifactRef:
        """Another job's signal."""
        return cls(ArtifactType.SIGNAL_FILE, value)

    @classmethod
    def trajectory_step_id(cls, value: str) -> ArtifactRef:
        """A step of a recorded trajectory."""
        return cls(ArtifactType.TRAJECTORY_STEP_ID, value)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SignalFile:
    """The durable record of a job's end, `done/<job id>.signal`."""

    job_id: JobID
    status: ObservationStatus
    completed_at: HLC
    artifacts: tuple[ArtifactRef, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Completion:
    """One reply of a batch. `dossier` (JSON values) is kept beside the record of a job that ends `blocked`."""

    job_id: JobID
    status: ObservationStatus
    artifacts: Sequence[ArtifactRef] = ()
    dossier: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MissionContext:
    """A payload type that callers of the first implementation use; the envelope knows nothing of it.

    JSON keys are camelCase (`missionPath`, `priorTrajectoryID`, …); see `to_json_object`.
    """

    mission_path: str
    worktree: str
    branch: str
    autonomy_profile: str
    risk_class: str
    base_commit: str
    prior_trajectory_id: str | None = None
    inherited_skills: tuple[str, ...] = ()

    def to_json_object(self) -> dict[str, Any]:
        """Its JSON object; `priorTrajectoryID` is left out when there is none."""
        body: dict[str, Any] = {key: getattr(self, name) for name, key in _MISSION_KEYS.items()}
        if self.prior_trajectory_id is not None:
            body["priorTrajectoryID"] = self.prior_trajectory_id
        body["inheritedSkills"] = list(self.inherited_skills)
        return body

    @classmethod
    def from_json_object(cls, body: Mapping[str, Any]) -> MissionContext:
        """The inverse; raises `ValueError` naming the key that is missing or of a wrong type."""
        if not isinstance(body, Mapping):
            raise ValueError("mission context: must be an object")
        values: dict[str, Any] = {}
        for name, key in _MISSION_KEYS.items():
            if not isinstance(body.get(key), str):
                raise ValueError(f"mission context: {key} must be a string")
            values[name] = body[key]
        prior, skills = body.get("priorTrajectoryID"), body.get("inheritedSkills")
        if prior is not None and not isinstance(prior, str):
            raise ValueError("mission context: priorTrajectoryID must be a string or absent")
        skills = [] if skills is None else skills
        if not isinstance(skills, list) or not all(isinstance(skill, str) for skill in skills):
            raise ValueError("mission context: inheritedSkills must be a list of strings")
        return cls(**values, prior_trajectory_id=prior, inherited_skills=tuple(skills))


_MISSION_KEYS = {
    "mission_path": "missionPath",
    "worktree": "worktree",
    "branch": "branch",
    "autonomy_profile": "autonomyProfile",
    "risk_class": "riskClass",
    "base_commit": "baseCommit",
}
