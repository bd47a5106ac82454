"""Finding handlers: what is refused and why, what a signature means, and how each form is called."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from workerpool.handlers import Handler, HandlerError, SoftTimeout, load_handler


@pytest.fixture(autouse=True)
def _untouched_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    return tmp_path


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o644)
    return path


def refusal(spec: str, folder: Path) -> str:
    with pytest.raises(HandlerError) as caught:
        load_handler(spec, [str(folder)])
    assert caught.value.spec == spec
    return caught.value.reason


def test_it_is_imported_from_the_given_folder(folder: Path) -> None:
    write(folder, "wp_tasks.py", "def encode(job): return job * 2")
    assert load_handler("wp_tasks:encode", [str(folder)]).call(21, None) == 42


def test_packages_and_nested_names(folder: Path) -> None:
    write(folder, "wp_pack/__init__.py", "")
    write(folder, "wp_pack/inner.py", "class Box:\n    @staticmethod\n    def run(job): return 'ran'")
    assert load_handler("wp_pack.inner:Box.run", [str(folder)]).call(None, None) == "ran"


def test_the_given_folder_comes_before_installed_modules(folder: Path) -> None:
    write(folder, "wp_first.py", "def run(job): return 'mine'")
    other = folder / "installed"
    write(folder, "installed/wp_first.py", "def run(job): return 'theirs'")
    sys.path.insert(0, str(other))
    assert load_handler("wp_first:run", [str(folder)]).call(None, None) == "mine"


def test_neither_the_current_folder_nor_pythonpath_is_looked_at(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, by_variable, mine = folder / "here", folder / "variable", folder / "mine"
    for place in (here, by_variable):
        write(place.parent, f"{place.name}/wp_{place.name}.py", "def run(job): pass")
    mine.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("PYTHONPATH", str(by_variable))
    sys.path[:0] = ["", str(by_variable)]
    assert "no module wp_here" in refusal("wp_here:run", mine)
    assert "no module wp_variable" in refusal("wp_variable:run", mine)
    assert load_handler("wp_here:run", [str(here)])


@pytest.mark.parametrize(
    "spec", ["", "tasks", "tasks:", ":run", "tasks.py:run()", "tasks/x:run", "..tasks:run", "a b:c"]
)
def test_a_malformed_name(spec: str, folder: Path) -> None:
    assert 'must look like "package.module:callable"' in refusal(spec, folder)


def test_what_is_wrong_is_said(folder: Path) -> None:
    write(folder, "wp_wrong.py", "number = 7\ndef gen(job): yield\nasync def agen(job): yield\n")
    assert "no module wp_absent" in refusal("wp_absent:run", folder)
    assert "has no 'run'" in refusal("wp_wrong:run", folder)
    assert "of type int, which cannot be called" in refusal("wp_wrong:number", folder)
    assert "generator" in refusal("wp_wrong:gen", folder)
    assert "generator" in refusal("wp_wrong:agen", folder)
    assert "is not there" in refusal("wp_wrong:run", folder / "absent")


@pytest.mark.parametrize("text", ["1 / 0", "import sys; sys.exit(3)", "raise KeyboardInterrupt", "def ("])
def test_a_failing_import_is_told_with_its_traceback(folder: Path, text: str) -> None:
    write(folder, "wp_broken.py", text)
    reason = refusal("wp_broken:run", folder)
    assert "importing wp_broken failed" in reason
    assert "wp_broken.py" in reason or "SyntaxError" in reason or "Interrupt" in reason


def test_a_file_that_others_may_write_is_not_executed(folder: Path) -> None:
    marker = folder / "executed"
    path = write(folder, "wp_open.py", f"open({str(marker)!r}, 'w')\ndef run(job): pass")
    path.chmod(0o666)
    assert f"everybody may write to {path}" in refusal("wp_open:run", folder)
    assert not marker.exists()


def test_a_package_that_others_may_write_is_not_executed(folder: Path) -> None:
    marker = folder / "executed"
    write(folder, "wp_openpack/__init__.py", f"open({str(marker)!r}, 'w')")
    write(folder, "wp_openpack/tasks.py", "def run(job): pass")
    (folder / "wp_openpack").chmod(0o777)
    assert "everybody may write to" in refusal("wp_openpack.tasks:run", folder)
    assert not marker.exists()


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
def test_a_folder_that_others_may_write_is_refused_sticky_or_not(folder: Path, mode: int) -> None:
    """In a sticky one they cannot change `wp_sticky.py`, but make `wp_sticky/`, which is found before it."""
    write(folder, "wp_sticky.py", "def run(job): return 'ok'")
    folder.chmod(mode)
    assert f"{folder} can be written by every user" in refusal("wp_sticky:run", folder)
    folder.chmod(0o755)
    assert load_handler("wp_sticky:run", [str(folder)]).call(None, None) == "ok"


def test_a_folder_below_one_that_others_may_write_is_refused(folder: Path) -> None:
    """They could put another folder in its place."""
    inner = folder / "inner"
    write(inner, "wp_inner.py", "def run(job): return 'ok'")
    folder.chmod(0o777)
    assert f"can be replaced by every user: {folder} has the mode 0777" in refusal("wp_inner:run", inner)


@pytest.mark.parametrize("late", [False, True])
def test_what_a_handler_imports_is_looked_at_too(folder: Path, late: bool) -> None:
    marker = folder / "executed"
    helper = write(folder, f"wp_helper_{late}.py", f"open({str(marker)!r}, 'w')")
    helper.chmod(0o666)
    load = f"import {helper.stem}"
    write(folder, f"wp_user_{late}.py", f"def run(job):\n    {load}" if late else f"{load}\ndef run(job): pass")
    if late:
        handler = load_handler(f"wp_user_{late}:run", [str(folder)])
        with pytest.raises(ImportError, match=f"everybody may write to {helper}"):
            handler.call(None, None)
    else:
        assert f"everybody may write to {helper}" in refusal(f"wp_user_{late}:run", folder)
    assert not marker.exists()


class PlainCallable:
    def __call__(self, job: object, ctx: object) -> object:
        return job, ctx


class AsyncCallable:
    async def __call__(self, job: object) -> object:
        return job


async def async_handler(job: object, ctx: object) -> object:
    await asyncio.sleep(0)
    return job, ctx


def with_options(job: object, verbose: bool = False) -> object:
    return job, verbose


def with_default_ctx(job: object, ctx: object = None) -> object:
    return job, ctx


def with_keyword(job: object, *, ctx: object) -> object:
    return job, ctx


def with_rest(*args: object) -> object:
    return args


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda job: job, "J"),
        (lambda job, context: (job, context), ("J", "C")),
        (PlainCallable(), ("J", "C")),
        (AsyncCallable(), "J"),
        (async_handler, ("J", "C")),
        (with_options, ("J", False)),
        (with_default_ctx, ("J", "C")),
        (with_keyword, ("J", "C")),
        (with_rest, ("J", "C")),
        (str, "J"),
    ],
)
def test_each_form_gets_what_it_asks_for(function: Callable[..., Any], expected: object) -> None:
    handler = Handler("m:f", function)
    assert handler.call("J", "C") == expected
    handler.close()


@pytest.mark.parametrize("function", [lambda: None, lambda job, ctx, more: None, lambda job, *, key: None])
def test_forms_that_nobody_can_call_are_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(HandlerError):
        Handler("m:f", function)


def test_async_runs_share_one_loop() -> None:
    loops = []

    async def remember(job: object) -> None:
        loops.append(asyncio.get_running_loop())

    handler = Handler("m:f", remember)
    handler.call(1, None)
    handler.call(2, None)
    handler.close()
    assert loops[0] is loops[1]
    assert loops[0].is_closed()


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
def test_an_async_handler_that_raises_anything_leaves_the_loop_usable(error: BaseException) -> None:
    async def handle(job: object) -> object:
        if job == "bad":
            raise error
        return "fine"

    handler = Handler("m:f", handle)
    with pytest.raises(type(error)):
        handler.call("bad", None)
    assert handler.call("good", None) == "fine"
    handler.close()


def test_a_soft_timeout_cancels_an_async_handler_and_is_told_from_its_own_timeouts() -> None:
    noted = []

    async def hang(job: object) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            noted.append("cancelled")
            raise

    async def own(job: object) -> None:
        raise TimeoutError("mine")

    with pytest.raises(SoftTimeout) as caught:
        Handler("m:f", hang).call(None, None, 0.01)
    assert caught.value.seconds == 0.01
    assert noted == ["cancelled"]
    with pytest.raises(TimeoutError, match="mine"):
        Handler("m:f", own).call(None, None, 60)


def test_the_umask_of_a_shared_group_is_accepted(folder: Path) -> None:
    path = write(folder, "wp_group.py", "def run(job): return os_name\nimport os\nos_name = os.name")
    path.chmod(0o664)
    assert load_handler("wp_group:run", [str(folder)]).call(None, None) == os.name
