"""`workerpool fsck` as it is typed: what it says, and the exit code that a script asks for."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from queuekit.backends.maildir import layout
from queuekit.backends.maildir.backend import FilesystemBackend
from queuekit.testing.jobs import make_job
from workerpool.cli.main import cli


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORKERPOOL_CONFIG", raising=False)
    queue = FilesystemBackend(tmp_path / "spool")
    queue.write(make_job())
    queue.close()
    return tmp_path / "spool"


def fsck(root: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["fsck", "--store", f"dir:{root}", *arguments])


def plant_garbage(root: Path) -> str:
    name = layout.job_filename(make_job())
    (root / "new" / name).write_bytes(b"garbage")
    (root / "new" / name).chmod(0o600)
    return name


def test_a_healthy_store_is_said_to_be_so(root: Path) -> None:
    result = fsck(root)
    assert result.exit_code == 0
    assert result.output == f"{root}: nothing found\n"


def test_a_finding_is_explained_and_offered_for_repair(root: Path) -> None:
    name = plant_garbage(root)
    result = fsck(root)
    assert result.exit_code == 1
    text = " ".join(result.output.split())
    assert f"error not-a-job: new/{name} It cannot be read as a job" in text
    assert "To do: --repair moves it to done/ with a `blocked` record" in text
    assert text.endswith("1 error; --repair can set 1 of them right")


def test_a_repair_says_what_it_did_and_notes_are_no_failure(root: Path) -> None:
    name = plant_garbage(root)
    result = fsck(root, "--repair")
    assert result.exit_code == 0
    assert f"repaired not-a-job: new/{name}" in result.output
    assert "note quarantined" in result.output
    assert (root / "done" / name).read_bytes() == b"garbage"
    assert "--repair" not in result.output.splitlines()[-1]


def test_json_holds_all_of_it(root: Path) -> None:
    name = plant_garbage(root)
    report = json.loads(fsck(root, "--json").stdout)
    assert (report["ok"], report["errors"], report["warnings"], report["repairable"]) == (False, 1, 0, 1)
    assert report["findings"][0]["path"] == f"new/{name}"
    report = json.loads(fsck(root, "--json", "--repair").stdout)
    assert (report["ok"], report["errors"], report["notes"], report["repairable"]) == (True, 0, 1, 0)
    assert report["repaired"][0]["kind"] == "not-a-job"


def test_a_root_that_nobody_can_mount_is_looked_at_all_the_same(root: Path) -> None:
    root.chmod(0o777)
    assert "error root-open: ." in fsck(root).output
    assert fsck(root, "--repair").exit_code == 0
    assert root.stat().st_mode & 0o777 == 0o775


def test_names_are_shown_without_their_control_codes(root: Path) -> None:
    (root / "new" / "\x1b[31mred").touch(0o600)
    output = fsck(root).output
    assert "\x1b" not in output
    assert "\\x1b[31mred" in output


def test_a_store_that_is_not_there_is_an_error_and_is_not_made(tmp_path: Path, root: Path) -> None:
    result = fsck(tmp_path / "nowhere")
    assert result.exit_code == 3
    assert "there is no queue" in result.output
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("folder", ["", "new", ".workerpool"])
def test_a_folder_that_cannot_be_read_is_one_line_and_no_clean_bill(
    root: Path, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = os.scandir

    def refusing(path: str | int) -> Any:
        if path == os.path.join(root, folder):
            raise PermissionError(13, "Permission denied", path)
        return listed(path)

    monkeypatch.setattr("workerpool.cli.fsck.os.scandir", refusing)
    result = fsck(root)
    assert result.exit_code == 3
    assert result.stderr.count("\n") == 1
    assert "Permission denied" in result.stderr
    assert result.stdout == ""
