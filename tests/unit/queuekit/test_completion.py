"""Artifacts, and the mission context's JSON."""

from __future__ import annotations

from typing import Any

import pytest

from queuekit.completion import ArtifactRef, ArtifactType, MissionContext

MISSION = {
    "missionPath": "/m",
    "worktree": "/w",
    "branch": "main",
    "autonomyProfile": "careful",
    "riskClass": "low",
    "baseCommit": "abc",
    "priorTrajectoryID": "t-1",
    "inheritedSkills": ["read", "write"],
}


def test_an_artifact_is_made_by_the_name_of_its_type() -> None:
    made = [
        ArtifactRef.file_path("/x"),
        ArtifactRef.commit_hash("abc"),
        ArtifactRef.signal_file("a.signal"),
        ArtifactRef.trajectory_step_id("step-1"),
    ]
    assert [(str(each.type), each.value) for each in made] == [
        ("file_path", "/x"),
        ("commit_hash", "abc"),
        ("signal_file", "a.signal"),
        ("trajectory_step_id", "step-1"),
    ]
    assert {each.type for each in made} == set(ArtifactType)


class TestMissionContext:
    def test_it_reads_and_writes_camel_case(self) -> None:
        mission = MissionContext.from_json_object(MISSION)
        assert (mission.mission_path, mission.prior_trajectory_id) == ("/m", "t-1")
        assert mission.inherited_skills == ("read", "write")
        assert mission.to_json_object() == MISSION

    def test_what_may_be_absent_is_left_out_or_empty(self) -> None:
        required = {key: MISSION[key] for key in list(MISSION)[:6]}
        mission = MissionContext.from_json_object(required)
        assert (mission.prior_trajectory_id, mission.inherited_skills) == (None, ())
        assert mission.to_json_object() == {**required, "inheritedSkills": []}

    def test_null_is_absent(self) -> None:
        mission = MissionContext.from_json_object({**MISSION, "priorTrajectoryID": None, "inheritedSkills": None})
        assert (mission.prior_trajectory_id, mission.inherited_skills) == (None, ())

    def test_unknown_keys_are_ignored(self) -> None:
        assert MissionContext.from_json_object({**MISSION, "colour": 1}).to_json_object() == MISSION

    @pytest.mark.parametrize("key", list(MISSION)[:6])
    def test_a_missing_or_wrong_key_is_named(self, key: str) -> None:
        without = {name: value for name, value in MISSION.items() if name != key}
        for body in (without, {**MISSION, key: 7}, {**MISSION, key: None}):
            with pytest.raises(ValueError, match=key):
                MissionContext.from_json_object(body)

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("priorTrajectoryID", 7),
            ("inheritedSkills", "read"),
            ("inheritedSkills", ""),
            ("inheritedSkills", False),
            ("inheritedSkills", {}),
            ("inheritedSkills", ["read", 7]),
        ],
    )
    def test_a_wrong_optional_is_named(self, key: str, value: object) -> None:
        with pytest.raises(ValueError, match=key):
            MissionContext.from_json_object({**MISSION, key: value})

    @pytest.mark.parametrize("body", [None, [], "text", 7])
    def test_anything_but_an_object_is_refused(self, body: Any) -> None:
        with pytest.raises(ValueError, match="object"):
            MissionContext.from_json_object(body)
