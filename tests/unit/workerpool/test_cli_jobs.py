"""`jobs`, `show`, `retry`, `release`, `cancel`, `prune` on a store without a pool."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from queuekit import ArtifactRef, Completion, ObservationStatus, QueueKit
from queuekit.clock import ProcessClock
from queuekit.ids import JobID, StreamID
from queuekit.job import Job
from workerpool.cli import views
from workerpool.cli.main import cli


class Store:
    """A queue with helpers that leave jobs in each state."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.queue = QueueKit(folder)

    def run(self, *arguments: str, input: str | None = None) -> Result:
        return CliRunner().invoke(cli, [*arguments, "--store", f"dir:{self.folder}"], input=input)

    def read(self, *arguments: str) -> dict[str, Any]:
        result = self.run(*arguments, "--json")
        assert result.exit_code == 0, result.output
        read: dict[str, Any] = json.loads(result.stdout)
        return read

    def states(self, *options: str) -> dict[str, str]:
        return {job["id"]: job["state"] for job in self.read("jobs", *options)["jobs"]}

    def running(self, stream: str = "s") -> str:
        id = self.queue.submit(stream, b"x")
        assert any(claimed.job.id == id for claimed in self.queue.drain(stream))
        return id

    def ended(self, status: str, stream: str = "s", **dossier: object) -> str:
        id = self.running(stream)
        completion = Completion(JobID(id), ObservationStatus(status), (ArtifactRef.file_path("/out"),), dossier or None)
        assert self.queue.reply_batch([completion]) == 1
        return id

    def retrying(self) -> str:
        id = self.running()
        self.queue.backend.defer(id, 2**42, error="ValueError: the first\nsecond line")
        return id


def job(id: str, stream: str = "s") -> Job:
    return Job(id=JobID(id), stream_id=StreamID(stream), submitted_at=ProcessClock().send(), payload=b"x")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.chdir(tmp_path)
    made = Store(tmp_path / "spool")
    yield made
    made.queue.close()


def test_jobs_lists_every_state_by_its_word(store: Store) -> None:
    expected = {
        store.ended("done"): "done",
        store.ended("done_with_concerns"): "done_with_concerns",
        store.ended("needs_context"): "needs_context",
        store.ended("blocked"): "blocked",
        store.retrying(): "retrying",
        store.running(): "running",
        store.queue.submit("s", delay=60): "scheduled",
        store.queue.submit("s"): "pending",
    }
    assert store.states() == expected
    for id, word in expected.items():
        assert store.states("--state", word) == {id: word}
    assert list(store.states("--state", "failed").values()) == ["blocked"]


def test_jobs_of_one_stream_only(store: Store) -> None:
    one = store.queue.submit("a")
    store.queue.submit("a-b")
    assert list(store.states("--stream", "a")) == [one]


def test_the_list_is_cut_and_says_so(store: Store) -> None:
    ids = [store.queue.submit("s") for _ in range(3)]
    assert list(store.states("--limit", "2")) == ids[:2]
    assert store.read("jobs", "--limit", "2")["more"] is True
    assert "--limit 0" in store.run("jobs", "--limit", "2").stdout
    assert store.read("jobs", "--limit", "3")["more"] is False


def test_the_whole_id_is_in_the_list(store: Store) -> None:
    id = store.queue.submit("s")
    assert id in store.run("jobs").stdout


def test_jobs_counts_the_run_that_decided_and_has_its_error(store: Store) -> None:
    store.ended("blocked", cause="retries exhausted", error="E: no", errors=["E: 1", "E: no"], attempts=2, crashes=1)
    [told] = store.read("jobs")["jobs"]
    assert (told["failed_runs"], told["crashes"], told["error"]) == (2, 1, "E: no")
    assert told["errors"] == ["E: 1", "E: no"]
    assert "E: no" in store.run("jobs").stdout


@pytest.mark.parametrize("width", [20, 40, 80, 100, 200])
def test_ids_and_headers_are_never_cut_however_narrow_the_terminal(width: int) -> None:
    ids = [f"{place:032x}" for place in range(3)]
    drawn = views.Fitted(
        *("id", "stream", "state", "sent", "last error"),
        lesser=("sent", "last error", "stream", "state"),
        elastic="last error",
    )
    for id in ids:
        drawn.add(views.whole(id), *map(views.text, ("a-stream", "done_with_concerns", "3s ago", "ValueError: " * 9)))
    page = io.StringIO()
    Console(width=width, file=page).print(drawn)
    said = page.getvalue()
    for id in ids:
        assert id in ("".join(said.split()) if width < 32 else said)
    assert max(map(len, said.splitlines())) <= width
    if width >= 80:
        assert "…" not in said.splitlines()[0]
        assert "stream" in said.splitlines()[0]


def test_a_stream_that_is_not_configured_is_pointed_at(store: Store) -> None:
    (store.folder.parent / "config.toml").write_text('[streams.encode]\nhandler = "handlers:encode"\n')
    assert "did you mean 'encode'?" in store.run("jobs", "--stream", "encod").stderr
    assert store.run("jobs", "--stream", "encode").stderr == ""


# -- show


def test_show_tells_of_a_blocked_job(store: Store) -> None:
    id = store.ended("blocked", cause="retries exhausted", error="E: no", errors=["E: no"], attempts=4, crashes=1)
    said = store.run("show", id).stdout
    for part in ("blocked", "4 runs, 1 of them", "E: no", "retries exhausted", "/out", f"workerpool retry {id}"):
        assert part in said
    told = store.read("show", id)
    assert (told["state"], told["failed_runs"], told["crashes"]) == ("blocked", 4, 1)
    assert told["artifacts"] == [{"type": "file_path", "value": "/out"}]
    assert told["dossier"]["cause"] == "retries exhausted"


@pytest.mark.parametrize(
    ("attempts", "crashes", "said"),
    [
        (1, 1, "1 run, charged as a crash"),
        (3, 1, "3 runs, 1 of them charged as a crash"),
        (3, 2, "3 runs, 2 of them charged as crashes"),
        (3, 0, "3 runs"),
    ],
)
def test_show_tells_how_many_runs_died(store: Store, attempts: int, crashes: int, said: str) -> None:
    id = store.ended("blocked", cause="x", error="E", errors=["E"] * attempts, attempts=attempts, crashes=crashes)
    [line] = [line for line in store.run("show", id).stdout.splitlines() if line.startswith("  failed")]
    assert line == f"  {'failed':<9} {said}"


def test_show_tells_of_a_job_that_waits_to_run_again(store: Store) -> None:
    id = store.retrying()
    said = store.run("show", id).stdout
    for part in ("retrying", "run 1", "ValueError: the first", "second line", f"workerpool release {id}"):
        assert part in said


def test_show_keeps_the_earlier_end_of_a_retried_job(store: Store) -> None:
    id = store.ended("blocked")
    store.queue.retry(id)
    said = store.run("show", id).stdout
    assert "pending" in said
    assert "ended blocked" in said


def test_show_tells_of_a_running_job_and_a_scheduled_one(store: Store) -> None:
    assert "claimed" in store.run("show", store.running()).stdout
    assert "as its sender wished" in store.run("show", store.queue.submit("s", delay=60)).stdout


@pytest.mark.parametrize(("payload", "said"), [(b"", "0 bytes"), (b"\x1b[2J", "\\x1b[2J"), (b"\xff\xfe", "not text")])
def test_show_shows_a_payload_without_letting_it_act(store: Store, payload: bytes, said: str) -> None:
    shown = store.run("show", store.queue.submit("s", payload)).stdout
    assert said in shown
    assert "\x1b" not in shown


def test_show_of_what_was_never_sent(store: Store) -> None:
    result = store.run("show", "nothing")
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert store.run("show", "a/b").exit_code == 2


def quarantined(store: Store) -> str:
    name = f"0000000000000001-00000001-0000000001-s-{'ab' * 16}"
    (store.folder / "new" / name).write_text("{")
    assert store.queue.drain("s") == []
    return name


def test_show_finds_a_file_that_was_put_aside_by_its_name_and_by_the_id_in_it(store: Store) -> None:
    name = quarantined(store)
    for typed in (name, "ab" * 16):
        shown = store.run("show", typed)
        assert shown.exit_code == 0, shown.output
        assert "blocked (quarantined)" in shown.stdout
        assert "could not be read as a job" in shown.stdout
    assert store.read("show", name)["quarantined"] is True


def test_jobs_lists_what_was_put_aside_as_blocked(store: Store) -> None:
    name = quarantined(store)
    blocked = store.ended("blocked")
    listed = {job["id"]: job for job in store.read("jobs", "--state", "blocked", "--stream", "s")["jobs"]}
    assert {id: job["quarantined"] for id, job in listed.items()} == {name: True, blocked: False}
    assert "quarantined" in store.run("jobs").stdout
    assert store.states("--state", "done") == {}
    assert store.run("retry", "--all-blocked", "--yes").stdout == f"{blocked} pending again\n"


# -- acting


def test_retry_makes_an_ended_job_pending(store: Store) -> None:
    id = store.ended("blocked")
    assert store.run("retry", id).exit_code == 0
    assert store.states() == {id: "pending"}


def test_release_runs_a_deferred_job_now_and_leaves_a_running_one_alone(store: Store) -> None:
    deferred, running = store.retrying(), store.running()
    result = store.run("release", deferred, running)
    assert result.exit_code == 1
    assert "it is in flight, left there by somebody who is gone" in result.stderr
    assert store.states() == {deferred: "pending", running: "running"}


def test_cancel_ends_what_has_not_started_and_refuses_the_rest(store: Store) -> None:
    running, pending = store.running(), store.queue.submit("s")
    result = store.run("cancel", running, pending, "nothing")
    assert result.exit_code == 1
    assert [line.split(":")[0] for line in result.stderr.splitlines()] == [running, "nothing"]
    assert store.states() == {running: "running", pending: "blocked"}
    assert "cancelled" in store.run("show", pending).stdout


def test_many_ids_from_standard_input_need_a_yes(store: Store) -> None:
    ids = [store.ended("done"), store.ended("done")]
    refused = store.run("retry", input="\n".join(ids))
    assert refused.exit_code == 2
    assert "--yes" in refused.stderr
    assert set(store.states().values()) == {"done"}
    assert store.run("retry", "--yes", input="\n".join(ids)).exit_code == 0
    assert set(store.states().values()) == {"pending"}


def test_all_blocked_takes_those_of_one_stream_and_needs_a_yes(store: Store) -> None:
    mine, other, done = store.ended("blocked", "a"), store.ended("blocked", "b"), store.ended("done", "a")
    assert store.run("retry", "--all-blocked").exit_code == 2
    assert store.run("retry", "--all-blocked", "--stream", "a", "--yes").exit_code == 0
    assert store.states() == {mine: "pending", other: "blocked", done: "done"}


def test_prune_removes_what_ended_long_enough_ago(store: Store) -> None:
    pending, _ = store.queue.submit("other"), store.ended("done")
    assert "0 jobs removed" in store.run("prune").stdout
    assert "1 job removed" in store.run("prune", "--older-than", "0").stdout
    assert store.states() == {pending: "pending"}
    assert store.run("prune", "--older-than", "soon").exit_code == 2


def test_prune_keeps_what_ended_blocked_unless_it_is_asked_for(store: Store) -> None:
    cancelled = store.queue.submit("s")
    store.queue.cancel(cancelled)
    blocked, done = store.ended("blocked"), store.ended("done_with_concerns")
    assert "1 job removed" in store.run("prune", "--older-than", "0").stdout
    assert set(store.states()) == {blocked, cancelled}
    refused = store.run("prune", "--older-than", "0", "--state", "blocked")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "add --yes" in refused.stderr
    assert set(store.states()) == {blocked, cancelled}
    assert "2 jobs removed" in store.run("prune", "--older-than", "0", "--state", "failed", "--yes").stdout
    assert done not in store.states()


def test_prune_of_one_state_leaves_the_others(store: Store) -> None:
    kept = {store.ended("done"), store.ended("blocked")}
    store.ended("needs_context")
    assert "1 job removed" in store.run("prune", "--older-than", "0", "--state", "needs_context").stdout
    assert set(store.states()) == kept


@pytest.mark.parametrize("verb", ["retry", "release", "cancel"])
def test_what_was_put_aside_is_no_unknown_job(store: Store, verb: str) -> None:
    name = f"0000000000000001-00000001-0000000001-s-{'ab' * 16}"
    (store.folder / "new" / name).write_bytes(b"{")
    assert store.queue.drain("s") == []
    for typed in (name, "ab" * 16):
        result = store.run(verb, typed)
        assert result.exit_code == 1
        assert "quarantined: it could not be read as a job" in result.stderr
        assert f"`workerpool show {typed}`" in result.stderr


# -- cancelled jobs, ids cut short


def test_a_cancelled_job_is_told_as_one_and_not_revived_with_the_blocked(store: Store) -> None:
    cancelled, blocked = store.queue.submit("s"), store.ended("blocked", "t")
    store.queue.cancel(cancelled)
    listed = {job["id"]: job["cancelled"] for job in store.read("jobs")["jobs"]}
    assert listed == {cancelled: True, blocked: False}
    assert "cancelled" in store.run("jobs", "--stream", "s").stdout
    assert store.run("retry", "--all-blocked", "--yes").exit_code == 0
    assert store.states() == {cancelled: "blocked", blocked: "pending"}
    assert store.run("retry", cancelled).exit_code == 0
    assert store.states()[cancelled] == "pending"


def test_the_beginning_of_an_id_is_enough_while_it_is_clear(store: Store) -> None:
    store.queue.send(job("abcd-1"))
    store.queue.send(job("abcd-2"))
    other = store.queue.submit("s")
    assert f"job {other} " in store.run("show", other[:8]).stdout
    ambiguous = store.run("cancel", "abcd", other[:8])
    assert ambiguous.exit_code == 1
    assert "begins the ids of 2 jobs" in ambiguous.stderr
    assert "abcd-1, abcd-2" in ambiguous.stderr
    assert ambiguous.stdout == f"{other} cancelled\n"
    assert store.run("show", "abcd").exit_code == 2
    assert store.run("retry", other[:4]).stdout == f"{other} pending again\n"
    assert store.run("show", other[:3]).exit_code == 1


def test_a_whole_id_goes_before_a_longer_one_that_it_begins(store: Store) -> None:
    store.queue.send(job("abcd"))
    store.queue.send(job("abcde"))
    assert store.run("cancel", "abcd").stdout == "abcd cancelled\n"
    assert store.run("cancel", "abcde").stdout == "abcde cancelled\n"


def test_what_the_stream_is_called_begins_no_id(store: Store) -> None:
    store.queue.submit("encode")
    assert store.run("show", "encode").exit_code == 1


def test_a_retry_that_was_cut_off_is_told_and_can_be_gone_on_with(store: Store) -> None:
    id = store.ended("blocked")
    [name] = [path.name for path in (store.folder / "done").iterdir() if path.suffix != ".signal" and id in path.name]
    signal = next(path for path in (store.folder / "done").iterdir() if path.name.startswith(id))
    signal.rename(store.folder / ".workerpool" / "retry" / name)  # what a retry does first
    shown = store.run("show", id).stdout
    assert "a retry of it was cut off; a running pool or `workerpool fsck --repair` finishes it" in shown
    assert f"workerpool retry {id}" in shown
    assert "will not run again" not in shown
    assert store.read("show", id)["retry_cut_off"] is True
    assert store.run("retry", id).exit_code == 0
    assert (store.read("show", id)["state"], store.read("show", id)["retry_cut_off"]) == ("pending", False)
