"""What fuzzing has found worth keeping: each input is read, or refused, as the end of its name says (T14)."""

from __future__ import annotations

from pathlib import Path

import pytest
from mutations import KEPT
from readers import readers

from workerpool.cli.pools import read_pools

FILES = sorted(KEPT.iterdir())


def test_every_kind_has_some_of_both_ends(tmp_path: Path) -> None:
    """Names say nothing of a file's content, so any of the kinds must have some that are read."""
    kinds = {path.name.partition("-")[0] for path in FILES}
    assert kinds == set(readers(tmp_path))
    assert {path.suffix for path in FILES} == {".read", ".refused"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_kept_input_ends_as_its_name_says(tmp_path: Path, path: Path) -> None:
    kind = path.name.partition("-")[0]
    assert readers(tmp_path)[kind](path.read_bytes()) is (path.suffix == ".read")


@pytest.mark.parametrize("path", [path for path in FILES if path.name.startswith("board-")], ids=lambda path: path.name)
def test_a_kept_board_is_shown_as_a_dead_pools(tmp_path: Path, path: Path) -> None:
    """Its bytes name pids; nobody may believe that they are a living pool's."""
    (tmp_path / "board-1-1").write_bytes(path.read_bytes())
    assert not [pool for pool in read_pools(str(tmp_path)) if pool.alive]
