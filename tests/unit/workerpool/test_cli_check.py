"""`workerpool check` and `init`: every problem at once, and user code that cannot harm."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from workerpool.cli.check import effective, to_toml, why_not_importable
from workerpool.cli.main import COMMANDS, cli
from workerpool.config_file import load_config

GOOD = '[streams.good]\nhandler = "fine:handle"\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "fine.py").write_text("def handle(job): pass\n")
    return tmp_path


def check(folder: Path, config: str, *options: str) -> Result:
    (folder / "config.toml").write_text(config)
    return CliRunner().invoke(cli, ["check", str(folder / "config.toml"), *options])


def test_all_is_well(folder: Path) -> None:
    result = check(folder, GOOD)
    assert result.exit_code == 0
    assert "all is well" in result.stdout
    assert not (folder / "spool").exists()


def test_what_it_prints_is_the_same_configuration(folder: Path) -> None:
    keys = 'max_memory = "3MiB"\ntimeout = "90s"\nsoft_timeout = "250ms"\n'
    text = f'{GOOD}[streams."a.b"]\nhandler = "fine:handle"\n{keys}'
    printed = check(folder, text).stdout
    (folder / "printed.toml").write_text(printed)
    first, second = load_config(folder / "config.toml"), load_config(folder / "printed.toml")
    assert to_toml(effective(first)) == to_toml(effective(second))
    assert first.streams == second.streams
    assert (first.store, first.shutdown, first.retention) == (second.store, second.shutdown, second.retention)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os; os._exit(7)", "ended the process (exit code 7)"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("raise ValueError('no')", "ValueError: no"),
        ("def other(job): pass", "has no 'handle'"),
        ("import os; os.kill(os.getpid(), 11)", "SIGSEGV"),
        ("def handle(): pass", "it takes no job"),
    ],
)
def test_a_handler_that_cannot_be_loaded_is_a_problem_of_its_stream(folder: Path, code: str, said: str) -> None:
    (folder / "bad.py").write_text(f"{code}\n")
    result = check(folder, f'{GOOD}[streams.bad]\nhandler = "bad:handle"\n')
    assert result.exit_code == 2
    assert "streams.bad.handler" in result.stderr
    assert said in result.stderr
    assert "streams.good" not in result.stderr


def test_a_handler_whose_import_hangs_is_given_up(folder: Path) -> None:
    (folder / "hang.py").write_text("import time\ntime.sleep(1000)\n")
    assert "takes longer than 0.2 s" in str(why_not_importable("hang:handle", (str(folder),), seconds=0.2))


def test_every_problem_is_reported_at_once(folder: Path) -> None:
    (folder / "file").write_text("")
    text = f'{GOOD}[streams.bad]\nhandler = "absent:handle"\n[store]\nurl = "dir:file/spool"\n'
    result = check(folder, text, "--json")
    told = json.loads(result.stdout)
    assert result.exit_code == 2
    assert told["ok"] is False
    assert ["absent" in problem for problem in told["problems"]] == [True, False]
    assert "file" in told["problems"][1]


def test_only_the_store_is_unusable(folder: Path) -> None:
    (folder / "file").write_text("")
    assert check(folder, GOOD, "--store", f"dir:{folder}/file/spool").exit_code == 3


def test_a_bad_configuration_is_told_as_json_too(folder: Path) -> None:
    result = check(folder, "[streams.s]\n", "--json")
    assert result.exit_code == 2
    assert "handler" in json.loads(result.stdout)["problems"][0]


def test_no_password_is_printed(folder: Path) -> None:
    result = check(folder, GOOD, "--store", "postgresql://me:secret@localhost/db", "--json")
    assert "me:***@" in result.stdout
    assert "secret" not in result.output


def test_a_problem_has_the_line_of_its_key_and_hides_the_configuration(folder: Path) -> None:
    result = check(folder, f'{GOOD}[streams.bad]\nhandler = "fine:handel"\n')
    assert result.exit_code == 2
    assert result.stdout == ""
    [line] = result.stderr.splitlines()
    assert line.startswith(f"{folder}/config.toml:4: streams.bad.handler: 'fine:handel': ")
    assert line.endswith("fine has no 'handel', did you mean 'handle'?")


def test_a_handler_from_the_environment_has_no_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKERPOOL_STREAMS_GOOD_HANDLER", "fine:absent")
    assert check(folder, GOOD).stderr.startswith(f"{folder}/config.toml: streams.good.handler: 'fine:absent': ")


def test_a_dot_for_the_colon_of_a_handler(folder: Path) -> None:
    assert "did you mean 'fine:handle'?" in check(folder, '[streams.s]\nhandler = "fine.handle"\n').stderr


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ('[http]\nlisten = "127.0.0.1:1"\n', "config.toml:4: http.listen: this version serves no page"),
    ],
)
def test_what_this_version_cannot_do_is_told_with_its_line(folder: Path, key: str, said: str) -> None:
    assert said in check(folder, GOOD + key).stderr


def test_advice_names_every_store_that_there_is(folder: Path) -> None:
    said = check(folder, f'{GOOD}[store]\nurl = "redis://localhost"\n').stderr
    assert "use dir:PATH, sqlite:PATH or postgresql://user@host/database" in said


def test_an_import_error_begins_with_the_exception_and_has_only_the_users_frames(folder: Path) -> None:
    (folder / "bad.py").write_text("import worse\n")
    (folder / "worse.py").write_text("def (:\n")
    said = check(folder, '[streams.s]\nhandler = "bad:handle"\n').stderr
    assert "importing bad failed: SyntaxError: " in said.splitlines()[0]
    assert "import worse" in said
    assert "importlib" not in said


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("hooks:tell", None),
        ("hooks:Place.tell", None),
        ("hooks:tel", "did you mean 'tell'?"),
        ("gone:tell", "no module"),
    ],
)
def test_hooks_are_imported_too(folder: Path, spec: str, said: str | None) -> None:
    (folder / "hooks.py").write_text("def tell(metric): pass\nclass Place:\n    tell = staticmethod(tell)\n")
    result = check(folder, f'{GOOD}[telemetry]\nhooks = ["log", "{spec}"]\n')
    if said is None:
        assert result.exit_code == 0, result.stderr
    else:
        assert result.exit_code == 2
        assert "config.toml:4: telemetry.hooks: " in result.stderr
        assert said in result.stderr


def test_a_mistyped_command() -> None:
    result = CliRunner().invoke(cli, ["ruun"])
    assert result.exit_code == 2
    assert "did you mean 'run'?" in result.stderr
    assert "did you mean" not in CliRunner().invoke(cli, ["xyzzy"]).stderr


def test_the_changelog_lists_every_command() -> None:
    log = (Path(__file__).parents[3] / "CHANGELOG.md").read_text()
    assert [name for name in COMMANDS if f"`{name}`" not in log] == []


# -- init


def init(folder: Path) -> Result:
    return CliRunner().invoke(cli, ["init", str(folder)])


def test_init_writes_files_that_only_their_owner_can_change(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        result = init(tmp_path / "new")
    finally:
        os.umask(before)
    assert result.exit_code == 0
    for name in ("config.toml", "handlers.py"):
        assert not stat.S_IMODE((tmp_path / "new" / name).stat().st_mode) & 0o022
    assert load_config(tmp_path / "new" / "config.toml").retention.done == 7 * 86400


@pytest.mark.parametrize("name", ["config.toml", "handlers.py"])
def test_init_overwrites_nothing_and_then_writes_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    result = init(tmp_path)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert os.listdir(tmp_path) == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_init_where_no_folder_can_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = init(tmp_path / "file" / "x")
    assert result.exit_code == 2
    assert result.exception is None or isinstance(result.exception, SystemExit)


# -- what could not be made


@pytest.mark.parametrize("scheme", ["dir", "sqlite"])
def test_a_store_that_could_not_be_made_is_found_by_trying(folder: Path, scheme: str) -> None:
    """Modes do not tell: on some filesystems nobody may make anything, whatever they say."""
    result = check(folder, f'{GOOD}[store]\nurl = "{scheme}:/proc/nope"\n')
    assert result.exit_code == 3
    assert "store: cannot make /proc/nope: " in result.stderr


def test_trying_leaves_nothing_behind(folder: Path) -> None:
    assert check(folder, f'{GOOD}[store]\nurl = "sqlite:./new/jobs.db"\n').exit_code == 0
    assert set(os.listdir(folder)) - {"__pycache__"} == {"config.toml", "fine.py"}


@pytest.mark.parametrize("command", ["status", "jobs", "check"])
def test_a_file_where_a_folder_should_be_is_called_that(folder: Path, command: str) -> None:
    (folder / "file").write_text("")
    for url in ("dir:./file/spool", "sqlite:./file/jobs.db"):
        (folder / "config.toml").write_text(f'{GOOD}[store]\nurl = "{url}"\n')
        result = CliRunner().invoke(cli, [command, str(folder / "config.toml")])
        assert result.exit_code == 3
        assert f"{folder / 'file'} is not a folder" in result.stderr
        assert "yet" not in result.stderr


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("absent/pool.log", "there is no folder"),
        ("sub", "{folder}/sub cannot be used: not a regular file"),
        ("/proc/nope", "cannot make /proc/nope"),
    ],
)
def test_a_log_file_that_could_not_be_written_is_a_problem(folder: Path, file: str, reason: str) -> None:
    (folder / "sub").mkdir()
    result = check(folder, f'{GOOD}[log]\nfile = "{file}"\n')
    assert result.exit_code == 2
    assert f"config.toml:4: log.file: {reason.format(folder=folder)}" in result.stderr


def test_handlers_are_tried_although_there_are_other_mistakes(folder: Path) -> None:
    text = f'{GOOD}[streams.bad]\nhandler = "absent:handle"\n[lease]\nttl = "soon"\n'
    for options in ((), ("--json",)):
        result = check(folder, text, *options)
        assert result.exit_code == 2
        said = result.stdout if options else result.stderr
        assert "config.toml:6: lease.ttl" in said
        assert "streams.bad.handler: 'absent:handle': there is no module absent" in said.replace("\\'", "'")
        assert "streams.good" not in said


def test_nothing_is_imported_for_a_file_that_others_can_write(folder: Path) -> None:
    (folder / "fine.py").write_text("raise AssertionError('was executed')")
    (folder / "config.toml").write_text(GOOD)
    (folder / "config.toml").chmod(0o666)
    result = CliRunner().invoke(cli, ["check", str(folder / "config.toml")])
    assert result.exit_code == 2
    assert "was executed" not in result.stderr
