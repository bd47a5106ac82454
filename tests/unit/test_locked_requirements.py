"""What is installed is what was locked: every requirement has one version and its hashes, and comes from the index."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

HERE = Path(__file__).parents[2]
PINNED = re.compile(
    r"([A-Za-z0-9._-]+)(\[[a-z,]+\])?==([0-9][A-Za-z0-9.+!-]*)( ; .+)?((?: --hash=sha256:[0-9a-f]{64})+)"
)


def locked(name: str) -> list[str]:
    """Each requirement of a lock file in one line."""
    return re.sub(r" *\\\n *", " ", (HERE / "requirements" / name).read_text()).splitlines()


@pytest.mark.parametrize("name", ["run.txt", "dev.txt"])
def test_every_requirement_has_a_version_and_hashes_and_no_other_source(name: str) -> None:
    lines = locked(name)
    assert len(lines) > 5
    assert [line for line in lines if not PINNED.fullmatch(line)] == []


def test_everything_that_the_project_asks_for_is_locked() -> None:
    project = tomllib.loads((HERE / "pyproject.toml").read_text())
    wanted = {"run.txt": project["project"]["dependencies"], "dev.txt": project["dependency-groups"]["dev"]}
    for name, requirements in wanted.items():
        names = {found[1].lower() for line in locked(name) if (found := PINNED.fullmatch(line))}
        asked = {re.split(r"[\[>=<; ]", each)[0].lower() for each in requirements}
        assert asked - names == set()


def test_the_environment_is_made_from_the_lock_with_its_hashes() -> None:
    for place in ("Makefile", ".ci/run"):
        text = (HERE / place).read_text()
        installs = [line for line in text.splitlines() if "pip install" in line and " -r " in line]
        assert installs
        assert all("--require-hashes" in line for line in installs)
