"""`workerpool send`: what is accepted is a good job, and what is not leaves no trace (CASES C12, C42)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from queuekit import FilesystemBackend, Job, QueueKit
from workerpool.cli.main import cli

CONFIG = '[store]\nmax_job_bytes = "1KiB"\n[streams.mail]\nhandler = "handlers:mail"\n'


class Place:
    """A folder with a config.toml whose queue is beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.spool, self.config = folder, folder / "spool", folder / "config.toml"
        self.config.write_text(CONFIG)

    def send(self, *arguments: str, input: bytes | None = None) -> Result:
        return CliRunner().invoke(cli, ["send", *arguments, "--config", str(self.config)], input=input)

    def send_lines(self, content: bytes, *arguments: str) -> Result:
        file = self.folder / "jobs.jsonl"
        file.write_bytes(content)
        return self.send("mail", "--jsonl", str(file), *arguments)

    def jobs(self) -> list[Job]:
        with QueueKit(self.spool) as queue:
            return [claimed.job for claimed in queue.drain()]

    def files(self) -> list[str]:
        return [name for folder in ("new", "tmp", "later") for name in self.names(folder)]

    def names(self, folder: str) -> list[str]:
        return os.listdir(self.spool / folder) if (self.spool / folder).exists() else []


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def refused(result: Result, code: int = 2) -> str:
    """The one line on standard error that says why."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    [line] = result.stderr.splitlines()
    return line


def test_forgotten_quotes_are_told_as_such(place: Place) -> None:
    for words in (("hello", "world"), ("hello", "big", "world")):
        result = place.send("mail", *words)
        assert result.exit_code == 2
        assert "text with spaces needs quotes" in result.stderr
        assert f"'{' '.join(words)}'" in result.stderr
    assert place.files() == []
    absent = place.send("mail", "hello", "absent.toml")
    assert "absent.toml" in absent.stderr
    assert "with spaces" not in absent.stderr


def test_a_mistake_at_the_end_of_a_line_is_told_with_its_column(place: Place) -> None:
    assert "(column 12)" in refused(place.send_lines(b'{"payload":\n'))
    assert "(column 12)" in refused(place.send_lines(b'{"payload":'))


# -- one job


def test_it_prints_the_id_of_a_job_that_is_there(place: Place) -> None:
    result = place.send("mail", "hello")
    [job] = place.jobs()
    assert (job.id, job.stream_id, job.payload, job.priority) == (result.stdout.strip(), "mail", b"hello", 50)


def test_payloads_come_from_files_and_standard_input_as_they_are(place: Place) -> None:
    (place.folder / "blob").write_bytes(b"\0\xff\n")
    place.send("mail", f"@{place.folder / 'blob'}")
    place.send("mail", "-", input=b"\xfe\n")
    place.send("mail")
    assert sorted(job.payload for job in place.jobs()) == [b"", b"\0\xff\n", b"\xfe\n"]


def test_what_it_carries_along(place: Place) -> None:
    place.send("mail", "x", "--priority", "-7", "--ext", 'a={"b":[1]}', "--ext", 'c="d"', "--id", "job 1")
    [job] = place.jobs()
    assert (job.id, job.priority, job.extensions) == ("job 1", -7, {"a": {"b": [1]}, "c": "d"})


@pytest.mark.parametrize("option", [("--delay", "5m"), ("--at", "2199-12-01T03:00+01:00")])
def test_a_put_off_job_waits_in_later(place: Place, option: tuple[str, str]) -> None:
    assert place.send("mail", "x", *option).exit_code == 0
    assert place.jobs() == []
    [name] = place.names("later")
    assert "-s-" in name


def test_a_time_is_taken_with_its_zone(place: Place) -> None:
    place.send("mail", "x", "--at", "2199-12-01T03:00+01:00")
    place.send("mail", "x", "--at", "2199-12-01T02:00Z")
    assert [name[:16] for name in place.names("later")] == ["0007255447200000"] * 2


def test_a_time_that_is_over_means_now(place: Place) -> None:
    place.send("mail", "x", "--at", "2001-01-01T00:00Z")
    assert len(place.jobs()) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mali", "x"], "did you mean 'mail'?"),
        (["other", "x"], "there are mail"),
        (["mail", "x" * 1025], "max_job_bytes"),
        (["mail", "x", "--id", "a/b"], "path separator"),
        (["mail", "x", "--id", ""], "empty"),
        (["mail", "@/does/not/exist"], "No such file"),
        (["mail", "--jsonl", "/does/not/exist"], "No such file"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(place: Place, arguments: list[str], said: str) -> None:
    assert said in refused(place.send(*arguments))
    assert not place.spool.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--delay", "5"],
        ["--delay", "-5m"],
        ["--at", "2026-12-01T03:00"],
        ["--at", "soon"],
        ["--delay", "1m", "--at", "2199-01-01T00:00Z"],
        ["--ext", "a"],
        ["--ext", "a=b"],
        ["--ext", "a=NaN"],
        ["--ext", "delivery={}"],
        ["--ext", "a=1", "--ext", "a=2"],
        ["--priority", "high"],
        ["--priority", str(2**63)],
        ["--jsonl", "x", "--id", "y"],
    ],
)
def test_options_that_make_no_sense_are_refused(place: Place, arguments: list[str]) -> None:
    result = place.send("mail", *([] if "--jsonl" in arguments else ["x"]), *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert not place.spool.exists()


def test_an_id_that_the_store_knows_is_not_sent_twice(place: Place) -> None:
    assert place.send("mail", "x", "--id", "one").exit_code == 0
    assert "already" in refused(place.send("mail", "y", "--id", "one"))
    assert [job.payload for job in place.jobs()] == [b"x"]


def test_without_a_configuration_a_store_takes_any_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(cli, ["send", "any", "x", "--store", "dir:q"]).exit_code == 0
    with QueueKit(tmp_path / "q") as queue:
        assert queue.pending_count("any") == 1


def test_the_store_option_wins_over_the_file(place: Place) -> None:
    place.send("mail", "x", "--store", f"dir:{place.folder / 'other'}")
    assert len(os.listdir(place.folder / "other" / "new")) == 1
    assert not place.spool.exists()


def test_a_missing_configuration_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "config.toml: there is no such file" in refused(CliRunner().invoke(cli, ["send", "mail", "x"]))


def test_an_unusable_store_is_exit_3(place: Place) -> None:
    (place.folder / "file").write_text("")
    assert "cannot use the queue folder" in refused(place.send("mail", "x", "--store", f"{place.folder}/file/q"), 3)


@pytest.mark.parametrize("store", ["postgresql:///db?host=/nowhere", "sqlite:/proc/nowhere/jobs.db"])
def test_a_database_that_cannot_be_reached_is_exit_3(place: Place, store: str) -> None:
    assert "the queue is not available" in refused(place.send("mail", "x", "--store", store), 3)


@pytest.mark.parametrize(
    "mistake",
    ["[defaults]\ntimout = 5", "[streem.mail]\nhandler = 'a:b'", '[lease]\nttl = "5"', "[lease]\nttl = true"],
)
def test_send_judges_the_configuration_like_run(place: Place, mistake: str) -> None:
    place.config.write_text(f"{CONFIG}{mistake}\n")
    sent = place.send("mail", "x")
    run = CliRunner().invoke(cli, ["run", str(place.config)])
    assert (sent.exit_code, run.exit_code) == (2, 2)
    assert sent.stderr == run.stderr
    assert len(sent.stderr.splitlines()) == 1
    assert not place.spool.exists()


# -- a file of jobs


def test_a_batch_is_sent_in_its_order(place: Place) -> None:
    lines = [
        {"payload": "text"},
        {"payload": {"b": 1, "a": "ü"}, "priority": 3, "extensions": {"k": 1}, "id": "own"},
        {"payload": ""},
        {"payload": None},
    ]
    result = place.send_lines(b"\n".join(json.dumps(line).encode() for line in lines) + b"\n\n", "--priority", "9")
    jobs = place.jobs()
    assert result.exit_code == 0
    assert [job.payload for job in jobs] == [b"text", '{"b":1,"a":"ü"}'.encode(), b"", b"null"]
    assert [job.priority for job in jobs] == [9, 3, 9, 9]
    assert jobs[1].extensions == {"k": 1}
    assert result.stdout.split() == [job.id for job in jobs]
    assert jobs[1].id == "own"
    assert "4 of 4 jobs sent" in result.stderr


def test_a_batch_comes_from_standard_input_too(place: Place) -> None:
    assert place.send("mail", "--jsonl", "-", input=b'{"payload":"a"}').exit_code == 0
    assert [job.payload for job in place.jobs()] == [b"a"]


def test_a_batch_is_put_off_as_a_whole(place: Place) -> None:
    place.send_lines(b'{"payload":"a"}\n{"payload":"b"}', "--delay", "1h")
    assert len(place.names("later")) == 2


def test_with_a_batch_the_second_argument_is_the_configuration(place: Place) -> None:
    (place.folder / "jobs").write_text('{"payload":"a"}')
    arguments = ["send", "mail", "--jsonl", str(place.folder / "jobs"), str(place.config)]
    assert CliRunner().invoke(cli, arguments).exit_code == 0
    assert len(place.jobs()) == 1


GOOD = b'{"payload":"good"}\n'


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "is not JSON"),
        (b"[]", "must be an object"),
        (b'"text"', "must be an object"),
        (b'{"payload":NaN}', "NaN is not JSON"),
        (b'{"payload":"x","extensions":{"a":Infinity}}', "Infinity is not JSON"),
        (b'{"payload":[1e999]}', "not finite"),
        (b'{"payload":"x","extensions":{"a":1e999}}', "finite"),
        (b'\xef\xbb\xbf{"payload":"x"}', "byte order mark"),
        (b'{"payload":"\xe4"}', "is not UTF-8"),
        (b'{"payload":"\\ud800"}', "not valid Unicode"),
        (b'{"payload":"%s"}' % (b"x" * 1025), "1025 bytes"),
        (b'{"payload":"%s"}' % (b"x" * 3_000_000), "longer than any job"),
        (b"[" * 200_000, "nests too deeply"),
        (b'{"priority":1}', 'no "payload"'),
        (b'{"payload":"x","payload":"y"}', "stands twice"),
        (b'{"payload":"x","prioritty":1}', "did you mean 'priority'?"),
        (b'{"payload":"x","priority":1.5}', "priority"),
        (b'{"payload":"x","priority":true}', "priority"),
        (b'{"payload":"x","priority":9223372036854775808}', "priority"),
        (b'{"payload":"x","extensions":[]}', '"extensions" must be an object'),
        (b'{"payload":"x","extensions":{"delivery":{}}}', "the queue's own"),
        (b'{"payload":"x","id":7}', '"id" must be text'),
        (b'{"payload":"x","id":"a/b"}', "path separator"),
        (b'{"payload":"x","id":"%s"}' % (b"x" * 300), "file name"),
    ],
)
def test_a_bad_line_stops_the_whole_batch_before_it_begins(place: Place, line: bytes, said: str) -> None:
    why = refused(place.send_lines(GOOD + line + b"\n" + GOOD))
    assert why.startswith(f"{place.folder / 'jobs.jsonl'}:2: ")
    assert said in why
    assert len(why) < 500
    assert not place.spool.exists()


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_an_empty_batch_is_a_mistake(place: Place, content: bytes) -> None:
    assert "holds no jobs" in refused(place.send_lines(content))
    assert not place.spool.exists()


def test_two_lines_of_one_batch_cannot_be_the_same_job(place: Place) -> None:
    why = refused(place.send_lines(b'{"payload":"x","id":"a"}\n' + GOOD + b'{"payload":"y","id":"a"}\n'))
    assert ":3: has the id of line 1" in why


def test_only_the_first_mistakes_are_shown(place: Place) -> None:
    result = place.send_lines(b"{\n" * 100)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 5


def test_an_interrupt_is_obeyed_between_chunks_and_says_how_many_were_accepted(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = FilesystemBackend.write_batch

    def write_and_be_interrupted(self: FilesystemBackend, jobs: Any) -> int:
        os.kill(os.getpid(), 2)
        return write(self, jobs)

    monkeypatch.setattr(FilesystemBackend, "write_batch", write_and_be_interrupted)
    result = place.send_lines(GOOD * 4100, "--store", f"dir:{place.spool}")
    assert result.exit_code == 130
    assert "interrupted: 2,000 jobs of 4,100 accepted; go on with line 2001" in result.stderr
    assert len(result.stdout.split()) == len(place.names("new")) == 2000
    assert place.names("tmp") == []


# -- waiting for the end


@pytest.mark.parametrize(("status", "code"), [("done", 0), ("needs_context", 0), ("blocked", 1)])
def test_waiting_prints_how_it_ended(place: Place, status: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    look = QueueKit.signal

    def work_first(self: QueueKit, job_id: str) -> Any:
        if self.drain("mail"):
            self.reply(job_id, status)
        return look(self, job_id)

    monkeypatch.setattr(QueueKit, "signal", work_first)
    result = place.send("mail", "x", "--id", "j", "--wait")
    assert result.exit_code == code
    assert result.stdout.splitlines() == ["j", f"j {status}"]
    assert "no pool runs now" in result.stderr
