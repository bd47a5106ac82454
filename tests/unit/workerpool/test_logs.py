"""What the log promises: one whole line per record that cannot be forged, wherever the file is, and no exception."""

from __future__ import annotations

import json
import logging
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from workerpool import logs
from workerpool.config import LogConfig, LogFormat, LogLevel

LOG = logging.getLogger("workerpool.test")
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (debug|info|warning|error|critical) \S+ .*")


@pytest.fixture(autouse=True)
def _root_logger() -> Iterator[None]:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    for handler in [each for each in root.handlers if each not in before]:
        root.removeHandler(handler)
        handler.close()
    root.setLevel(level)
    logging.captureWarnings(False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "pool.log"


def configure(file: Path | str, form: str = "text", level: str = "info", name: str = "encode-1") -> None:
    logs.configure(LogConfig(format=LogFormat(form), level=LogLevel(level), file=str(file)), name)


def objects(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_text_line_has_time_level_process_and_message(file: Path) -> None:
    configure(file)
    LOG.warning("took over %s", "encode")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d warning encode-1 took over encode\n", file.read_text())


@pytest.mark.parametrize("text", ["a\n12:00:00 error master forged", "\x1b[2Jgone", "a\rb", "a\u2028b", "\udcff"])
def test_what_is_logged_cannot_forge_a_line_or_reach_the_terminal(file: Path, text: str) -> None:
    configure(file)
    LOG.info("%s", text)
    written = file.read_text()
    assert written.count("\n") == 1
    assert LINE.fullmatch(written[:-1])
    assert written[:-1].isprintable()


def test_the_lines_of_a_traceback_are_indented(file: Path) -> None:
    configure(file)
    try:
        raise ValueError("bad\n12:00:00 error master forged")
    except ValueError:
        LOG.exception("failed")
    first, *rest = file.read_text().splitlines()
    assert LINE.fullmatch(first)
    assert rest
    assert all(line.startswith("    ") for line in rest)


def test_json_keeps_structured_extras(file: Path) -> None:
    configure(file, "json")
    LOG.info("hello\nworld", extra={"job_id": "j1", "attempt": 2})
    [line] = objects(file)
    assert line["message"] == "hello\nworld"
    assert (line["job_id"], line["attempt"]) == ("j1", 2)
    assert (line["level"], line["process"], line["pid"]) == ("info", "encode-1", os.getpid())
    assert line["logger"] == "workerpool.test"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])


def test_json_has_the_exception_in_the_same_line(file: Path) -> None:
    configure(file, "json")
    try:
        raise ValueError("bad")
    except ValueError:
        LOG.exception("failed")
    [line] = objects(file)
    assert line["message"] == "failed"
    assert "ValueError: bad" in line["exception"]


@pytest.mark.parametrize("value", [float("nan"), object(), {1, 2}, {("a", 1): 2}, b"\xff", "\udcff"])
def test_extras_that_json_does_not_have_become_text(file: Path, value: object) -> None:
    configure(file, "json")
    LOG.info("odd", extra={"value": value})
    assert not {"NaN"} & set(file.read_text().split())
    [line] = objects(file)
    assert line["message"] == "odd"
    assert line["value"]


@pytest.mark.parametrize("form", ["text", "json"])
def test_arguments_that_do_not_fit_raise_nothing_and_say_so(file: Path, form: str) -> None:
    configure(file, form)
    ours = next(each for each in logging.getLogger().handlers if isinstance(each, logs.LineHandler))
    ours.handle(LOG.makeRecord(LOG.name, logging.INFO, __file__, 1, "%d jobs", ("no",), None))  # pytest's own raises
    LOG.info("next")
    first, second = file.read_text().splitlines()
    assert "%d jobs (not complete: TypeError" in first
    assert "next" in second


def test_less_severe_records_are_not_written(file: Path) -> None:
    configure(file, level="warning")
    LOG.info("no")
    LOG.warning("yes")
    assert file.read_text().endswith("yes\n")
    assert "no\n" not in file.read_text()


def test_configuring_again_replaces_the_name(file: Path) -> None:
    configure(file, name="master")
    configure(file, name="stream-encode")
    LOG.info("once")
    assert [line.split()[3:] for line in file.read_text().splitlines()] == [["stream-encode", "once"]]


def test_the_file_is_for_its_owner_only_under_any_umask(file: Path) -> None:
    before = os.umask(0)
    try:
        configure(file)
        LOG.info("x")
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_rotated_file_is_noticed_at_the_next_line(file: Path) -> None:
    configure(file)
    LOG.info("first")
    file.rename(file.with_suffix(".1"))
    LOG.info("second")
    assert file.with_suffix(".1").read_text().endswith("first\n")
    assert file.read_text().endswith("second\n")


def test_reopen_goes_on_in_the_same_file(file: Path) -> None:
    configure(file)
    LOG.info("first")
    logs.reopen()
    LOG.info("second")
    assert len(file.read_text().splitlines()) == 2


def test_a_link_is_not_followed(file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "precious"
    target.write_text("mine")
    file.symlink_to(target)
    configure(file)
    LOG.info("hello")
    LOG.info("again")
    assert target.read_text() == "mine"
    complaint, *lines = capfd.readouterr().err.splitlines()
    assert complaint.startswith(f"cannot log to {file}")
    assert [line.split()[-1] for line in lines] == ["hello", "again"]


def test_a_folder_that_is_not_there_costs_no_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    configure(tmp_path / "absent" / "pool.log")
    LOG.info("hello")
    assert capfd.readouterr().err.endswith("encode-1 hello\n")


def test_a_descriptor_that_became_something_else_is_left_alone(file: Path, tmp_path: Path) -> None:
    """A forked child finds its descriptors replaced; what took the number must neither be written to nor closed."""
    configure(file)
    LOG.info("parent")
    [number] = [fd for fd in map(int, os.listdir("/dev/fd")) if leads_to(fd, file)]
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT, 0o600)
    os.dup2(other, number)
    try:
        LOG.info("child")
        assert os.fstat(number).st_ino == os.fstat(other).st_ino
        assert (tmp_path / "other").read_text() == ""
    finally:
        os.close(number)
        os.close(other)
    assert file.read_text().splitlines()[1].endswith("child")


def leads_to(fd: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), file.stat())
    except OSError:
        return False


def test_without_a_file_lines_go_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    configure("")
    LOG.info("hello")
    assert capfd.readouterr().err.endswith("info encode-1 hello\n")


def test_auto_is_json_where_no_terminal_is(capfd: pytest.CaptureFixture[str]) -> None:
    configure("", "auto")
    LOG.info("hello")
    assert json.loads(capfd.readouterr().err)["message"] == "hello"


def test_a_line_about_a_job_names_it(file: Path) -> None:
    configure(file)
    LOG.info("half of it", extra={"job_id": "j\n1", "stream": "encode"})
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d info encode-1 job j\\n1: half of it\n", file.read_text())


def test_auto_is_settled_where_standard_error_is_and_the_rest_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    auto = LogConfig(format=LogFormat.AUTO, level=LogLevel.DEBUG, file="")
    for terminal, form in ((True, LogFormat.TEXT), (False, LogFormat.JSON)):
        monkeypatch.setattr(os, "isatty", lambda fd, answer=terminal: answer)
        assert logs.settled(auto) == LogConfig(format=form, level=LogLevel.DEBUG, file="")
        chosen = LogConfig(format=LogFormat.TEXT, level=LogLevel.INFO, file="/x")
        assert logs.settled(chosen) is chosen


# -- what is too much, and what is not ours to write to

NASTY = "a\n12:00 error master forged\r\x1b[2J\x07\x00\x7f\x9b31m\u202e\u2028\udcff"


class Unspeakable:
    def __repr__(self) -> str:
        raise RuntimeError(NASTY)


@pytest.mark.parametrize("form", ["text", "json"])
def test_ten_megabytes_of_nasty_text_become_a_bearable_line(file: Path, form: str) -> None:
    """In the message, the job's id, an extra and an exception; both ends of each are kept."""
    configure(file, form)
    huge = f"begin {NASTY * 200_000} end"
    try:
        raise ValueError(huge)
    except ValueError:
        LOG.exception("said: %s", huge, extra={"job_id": huge, "more": huge})
    written = file.read_bytes()
    assert len(written) < 1_000_000
    first, *rest = written.decode().removesuffix("\n").split("\n")
    assert all(line.isprintable() for line in (first, *rest))
    assert "begin a" in first
    assert "characters left out" in first
    assert first.count("forged") < 2000
    if form == "json":
        assert not rest
        told = json.loads(first)
        assert told["message"].endswith(" end")
        assert told["more"].endswith(" end")
        assert told["exception"].endswith(" end")
    else:
        assert LINE.fullmatch(first)
        assert all(line.startswith("    ") for line in rest)


@pytest.mark.parametrize("form", ["text", "json"])
def test_many_and_unspeakable_extras_cost_one_bearable_line(file: Path, form: str) -> None:
    configure(file, form)
    LOG.info("many", extra={f"key{number}": [NASTY * 1000] for number in range(300)})
    LOG.info("none", extra={"it": Unspeakable(), "number": 10**5000, "deep": {"it": Unspeakable()}})
    lines = file.read_text().splitlines()
    assert [("many" in line, "none" in line) for line in lines] == [(True, False), (False, True)]
    assert max(map(len, lines)) < 1_000_000


def test_a_file_with_a_second_name_is_not_written_to(
    file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Somebody may have linked it to another file of this user's."""
    (tmp_path / "victim").write_text("untouched")
    file.hardlink_to(tmp_path / "victim")
    configure(file)
    LOG.info("hello")
    assert (tmp_path / "victim").read_text() == "untouched"
    told = capfd.readouterr().err
    assert f"cannot log to {file}, so here: it has a second name" in told
    assert "hello" in told


@pytest.mark.needs("root")
def test_another_users_file_is_not_written_to(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file.touch()
    os.chown(file, 65534, 65534)
    configure(file)
    LOG.info("secret")
    assert not file.read_bytes()
    told = capfd.readouterr().err
    assert f"cannot log to {file}, so here: it belongs to uid 65534" in told
    assert "secret" in told
