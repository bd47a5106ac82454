"""REQUIRE_ALL=1: nothing is skipped unnoticed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CASES = {
    "a_test": "import pytest\ndef test_it():\n    pytest.skip('no server')\n",
    "a_mark": "import pytest\n@pytest.mark.skipif(True, reason='no server')\ndef test_it(): pass\n",
    "a_module": "import pytest\npytest.skip('no server', allow_module_level=True)\n",
    "an_import": "import pytest\npytest.importorskip('no_such_module')\n",
    "an_expected_failure": "import pytest\n@pytest.mark.xfail\ndef test_it():\n    raise RuntimeError\n",
}


@pytest.mark.parametrize(
    ("require_all", "summary"), [("0", "4 skipped, 1 xfailed, exit 0"), ("1", "1 failed, 1 xfailed, 3 errors, exit 1")]
)
def test_what_a_skip_counts_as(tmp_path: Path, require_all: str, summary: str) -> None:
    for name in ("conftest.py", "needs.py"):
        shutil.copy(Path(__file__).parents[1] / name, tmp_path / name)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for name, source in CASES.items():
        (tmp_path / f"test_{name}.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-q", "--continue-on-collection-errors", str(tmp_path)]
    environment = os.environ | {"REQUIRE_ALL": require_all, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    run = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert re.sub(r" in .*", "", run.stdout.splitlines()[-1]) + f", exit {run.returncode}" == summary
