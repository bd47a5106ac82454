"""The command's first moments: an interrupt while it is loaded."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, signal, sys

module, sys.argv[1] = sys.argv[1], "--version"

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from workerpool.__main__ import main
main()
"""


def enter(module: str, action: signal.Handlers = signal.SIG_DFL) -> subprocess.CompletedProcess[str]:
    """Start the command, which is interrupted when it first imports `module`; `action`: what it inherits for that."""

    def inherit() -> None:
        signal.signal(signal.SIGINT, action)

    command = [sys.executable, "-c", PROGRAM, module]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, preexec_fn=inherit)


@pytest.mark.parametrize("module", ["workerpool.cli.main", "click", "queuekit", "queuekit.errors", "workerpool.errors"])
def test_an_interrupt_while_the_command_is_loaded_ends_it_without_a_word(module: str) -> None:
    ended = enter(module)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")


def test_who_ignores_interrupts_is_not_interrupted() -> None:
    ended = enter("click", signal.SIG_IGN)
    assert (ended.returncode, ended.stderr) == (0, "")


SWALLOWING = """
import os, signal, sys

class Swallowing:
    def find_spec(self, name, path=None, target=None):
        if name == "workerpool.assemble":
            try:
                os.kill(os.getpid(), signal.SIGINT)
                signal.sigtimedwait([], 0)
            except BaseException:
                pass

sys.meta_path.insert(0, Swallowing())
from workerpool.__main__ import main
main()
"""


def test_an_interrupt_while_a_pool_is_loaded_is_obeyed_whoever_passes_over_exceptions(tmp_path: Path) -> None:
    """Found as T10's 90th interrupt: it had come in the middle of somebody's code, and the pool worked on."""
    (tmp_path / "handlers.py").write_text("def work(job):\n    pass\n")
    config = tmp_path / "config.toml"
    config.write_text('[store]\nurl = "dir:./spool"\n[streams.encode]\nhandler = "handlers:work"\n')
    command = [sys.executable, "-c", SWALLOWING, "run", str(config), "--burst"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")


def test_nothing_is_loaded_before_the_command_sees_to_interrupts() -> None:
    program = "import sys; before = {*sys.modules}; import workerpool; print(*sorted({*sys.modules} - before))"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert set(said.stdout.split()) <= {"workerpool", "__future__"}


def test_the_package_gives_its_names_and_no_others() -> None:
    program = "import workerpool; print([n for n in dir(workerpool) if n[0] != '_'], workerpool.Retry.__name__)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert said.stdout.strip() == "['Discard', 'JobContext', 'Outcome', 'Retry', 'run_pool'] Retry"
    wrong = subprocess.run(
        [sys.executable, "-c", "import workerpool; workerpool.nothing"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "AttributeError: module 'workerpool' has no attribute 'nothing'" in wrong.stderr
