"""`fsck` on databases: each fault is named, repaired where that is sure, and nothing of a job is lost by it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result

from queuekit import QueueKit
from queuekit.backends.sql import schema
from queuekit.backends.sql.fsck import examine, repair
from queuekit.contract import JobView, PutAside
from queuekit.errors import BackendUnavailable
from queuekit.lifecycle import State
from queuekit.status import ObservationStatus
from queuekit.testing.jobs import make_job
from workerpool.cli.main import cli


class Place:
    """A queue in a database, and a way round it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.queue = QueueKit.open(url)
        self.backend: Any = self.queue.backend

    def send(self, job_id: str, state: State = State.NEW) -> None:
        self.backend.write(make_job(job_id, job_id), due_ms=4_000_000_000 * 1000 if state is State.LATER else None)
        if state in {State.CUR, State.DONE}:
            self.queue.drain(job_id)
        if state is State.DONE:
            self.queue.reply(job_id, ObservationStatus.DONE)

    def change(self, job_id: str, **columns: Any) -> None:
        """What a hand or another program may do."""
        table = schema.jobs
        update = sa.update(table).where(table.c.id == job_id).values(**columns)
        self.backend.database.run(lambda connection: connection.execute(update).close())

    def do(self, statement: str) -> None:
        self.backend.database.run(lambda connection: connection.exec_driver_sql(statement).close())

    def found(self, *, deep: bool = True) -> dict[str, list[str]]:
        """The kinds that fsck finds, with their places; what is merely in flight unheld left out."""
        found: dict[str, list[str]] = {}
        for each in examine(self.url, deep=deep):
            if each.kind not in {"in-flight-unheld", "due-far"}:
                found.setdefault(each.kind, []).append(each.path)
        return found

    def repair(self) -> list[str]:
        """What was done."""
        done = repair(self.url, examine(self.url, deep=True))
        assert all(each.done for each in done)
        return [each.kind for each in done]

    def view(self, job_id: str) -> JobView:
        view = self.backend.look_up(job_id)
        assert view is not None
        return view


@pytest.fixture
def place(url: str) -> Iterator[Place]:
    made = Place(url)
    yield made
    made.queue.close()


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Place]:
    """One in SQLite, whose columns take values of any type."""
    made = Place(f"sqlite:{tmp_path}/jobs.db")
    yield made
    made.queue.close()


def test_a_healthy_store_has_nothing_to_be_found(place: Place) -> None:
    for state in State:
        place.send(str(state), state)
    place.send("again", State.DONE)
    place.queue.retry("again")
    assert place.backend.checkpoints.compare_and_swap("mark", "pending", None, b"1")
    assert place.found() == {}


def test_a_status_that_nobody_knows_is_ended_so_that_it_is_seen_and_can_be_retried(place: Place) -> None:
    place.send("a")
    place.change("a", status="nwe")
    assert place.queue.tally().pending == 0
    assert place.found(deep=False) == {"status-unknown": ["job a"]}
    assert place.repair() == ["status-unknown"]
    assert place.found() == {}
    view = place.view("a")
    assert view.signal is not None
    assert (view.signal.status, view.dossier and view.dossier["error"]) == ("blocked", "its status was 'nwe'")
    place.queue.retry("a")
    assert [each.job.id for each in place.queue.drain("a")] == ["a"]


@pytest.mark.parametrize("state", [State.NEW, State.LATER])
def test_an_unreadable_row_is_put_aside_with_its_bytes(place: Place, state: State) -> None:
    place.send("a", state)
    place.change("a", extensions="{", payload=b"\x00 the bytes")
    assert place.found() == {"not-a-job": ["job a"]}
    assert place.repair() == ["not-a-job"]
    assert place.found() == {"quarantined": ["stream a"]}
    (aside,) = place.backend.jobs({State.DONE})
    assert isinstance(aside, PutAside)
    assert (aside.name, aside.size) == ("a", len(b"\x00 the bytes"))
    assert place.queue.tally().outstanding == 0


def test_an_unreadable_row_in_flight_is_left_to_the_next_holder(place: Place) -> None:
    place.send("a", State.CUR)
    place.change("a", extensions="{")
    assert place.found() == {"not-a-job": ["job a"]}
    assert place.repair() == []


def test_a_job_without_a_due_time_becomes_due(place: Place) -> None:
    place.send("a", State.LATER)
    place.change("a", not_before=None, deferral=None)
    assert place.found() == {"due-missing": ["job a"], "deferral-unknown": ["job a"]}
    assert sorted(place.repair()) == ["deferral-unknown", "due-missing"]
    assert place.found() == {}
    assert [each.job.id for each in place.queue.drain("a")] == ["a"]


def test_columns_of_another_state_are_cleared_and_the_state_stays(place: Place) -> None:
    for state in (State.NEW, State.CUR, State.DONE):
        place.send(str(state), state)
    place.change("pending", session_id="one", claimed_by="two", not_before=5, signal_status="done", completed_at=7)
    place.change("running", deferral="r", artifacts="[]")
    place.change("finished", not_before=5)
    assert place.found(deep=False) == {"column-left": ["job finished", "job pending", "job running"]}
    assert place.repair() == ["column-left"] * 3
    assert place.found() == {}
    assert {str(state): place.view(str(state)).state for state in (State.NEW, State.CUR, State.DONE)} == {
        "pending": State.NEW,
        "running": State.CUR,
        "finished": State.DONE,
    }
    place.queue.reply("running", "done")  # its claim is as it was


def test_a_claim_without_a_session_is_named(place: Place) -> None:
    place.send("a", State.CUR)
    place.change("a", session_id=None)
    assert place.found() == {"in-flight-unclaimed": ["job a"]}
    assert place.repair() == []


def test_jobs_in_flight_that_nobody_holds_are_a_note(place: Place) -> None:
    place.send("a", State.CUR)
    (found,) = examine(place.url)
    assert (found.kind, found.path, found.severity.value, found.count) == ("in-flight-unheld", "stream a", "note", 1)
    lease = place.queue.lease("a")
    assert lease.try_acquire()
    assert examine(place.url) == []
    lease.release()


@pytest.mark.parametrize("status", [None, "running", "well"])
def test_an_end_without_a_record_that_can_be_read_gets_one(place: Place, status: str | None) -> None:
    place.send("a", State.DONE)
    place.change("a", signal_status=status)
    kind = "no-record" if status is None else "signal-unreadable"
    assert place.found(deep=False) == {kind: ["job a"]}
    assert place.repair() == [kind]
    assert place.found() == {}
    view = place.view("a")
    assert view.signal is not None
    assert view.signal.status is ObservationStatus.BLOCKED
    assert view.dossier is not None
    assert status is None or repr(status) in view.dossier["error"]


def test_a_record_with_unreadable_artifacts_is_found_when_ends_are_read(place: Place) -> None:
    place.send("a", State.DONE)
    place.change("a", artifacts="[{")
    assert place.found(deep=False) == {}
    assert place.found() == {"signal-unreadable": ["job a"]}
    assert place.repair() == ["signal-unreadable"]
    assert "[{" in (place.view("a").dossier or {})["error"]


def test_an_unreadable_dossier_is_named(place: Place) -> None:
    place.send("a")
    place.change("a", dossier="{")
    assert place.found() == {"dossier-unreadable": ["job a"]}


def test_a_fault_that_is_gone_is_not_repaired(place: Place) -> None:
    place.send("a")
    place.change("a", status="nwe")
    found = examine(place.url)
    place.change("a", status="new")
    assert repair(place.url, found) == []
    assert place.view("a").state is State.NEW


def test_a_missing_index_is_made(place: Place) -> None:
    place.do("DROP INDEX idx_queuekit_pending")
    assert place.found() == {"index-missing": ["idx_queuekit_pending"]}
    assert place.repair() == ["index-missing"]
    assert place.found() == {}


def test_statistics_of_an_almost_empty_table_are_taken_again(file: Place) -> None:
    file.send("a")
    file.do("ANALYZE")
    file.queue.send_batch([make_job() for _ in range(2000)])
    assert file.found() == {"statistics-small": ["sqlite_stat1"]}
    assert file.repair() == ["statistics-small"]
    assert file.found() == {}


def test_values_of_the_wrong_type_are_found(file: Place) -> None:
    for name, state in {"a": State.LATER, "b": State.NEW, "c": State.DONE}.items():
        file.send(name, state)
    file.do("UPDATE queuekit_jobs SET not_before = 'soon' WHERE id = 'a'")
    file.do("UPDATE queuekit_jobs SET physical_time = 'then' WHERE id = 'b'")
    file.do("UPDATE queuekit_jobs SET status = x'00' WHERE id = 'c'")
    assert file.found() == {"due-missing": ["job a"], "not-a-job": ["job b"], "status-unknown": ["job c"]}
    assert sorted(file.repair()) == ["due-missing", "not-a-job", "status-unknown"]
    assert file.found() == {"quarantined": ["stream b"]}


def test_a_damaged_file_is_told_and_left_alone(file: Place, tmp_path: Path) -> None:
    file.queue.send_batch([make_job(payload=bytes(500)) for _ in range(500)])
    file.queue.close()
    path = tmp_path / "jobs.db"
    whole = bytearray(path.read_bytes())
    middle = len(whole) // 2 // 4096 * 4096
    whole[middle : middle + 3 * 4096] = bytes(3 * 4096)
    path.write_bytes(whole)
    found = examine(file.url)
    assert {each.kind for each in found} == {"damaged"}
    assert not any(each.repairable for each in found)
    assert path.read_bytes() == whole


def test_what_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailable, match="there is no queue"):
        examine(f"sqlite:{tmp_path}/nothing.db")
    assert not (tmp_path / "nothing.db").exists()


def test_a_database_without_our_tables_is_no_queue_and_gets_none(postgres_url: str) -> None:
    with pytest.raises(BackendUnavailable, match="there is no queue"):
        examine(postgres_url)
    with pytest.raises(BackendUnavailable, match="there is no queue"):
        examine(postgres_url)


def test_tables_of_another_port_are_looked_at_once_they_are_ours(postgres_url: str) -> None:
    from queuekit.backends.sql.postgres import PostgresDatabase

    database = PostgresDatabase(postgres_url)
    database.run(schema.MIGRATIONS[0])
    assert [each.kind for each in examine(postgres_url)] == ["schema-old"]
    QueueKit.open(postgres_url).close()
    assert examine(postgres_url) == []
    database.close()


# -- the command


def fsck(place: Place, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["fsck", "--store", place.url, *arguments])


def test_the_command_explains_and_repairs(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORKERPOOL_CONFIG", raising=False)
    assert fsck(place).exit_code == 0
    assert fsck(place).output.endswith(": nothing found\n")
    place.send("a")
    place.change("a", status="nwe")
    told = fsck(place)
    assert told.exit_code == 1
    assert "error status-unknown: job a" in told.output
    assert told.output.endswith("1 error; --repair can set 1 of them right\n")
    report = json.loads(fsck(place, "--repair", "--json").stdout)
    assert (report["ok"], report["repaired"][0]["kind"], report["findings"]) == (True, "status-unknown", [])


def test_the_command_says_that_a_store_is_not_there(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["fsck", "--store", f"sqlite:{tmp_path}/nothing.db"])
    assert result.exit_code == 3
    assert "there is no queue in" in result.output
    assert list(tmp_path.iterdir()) == []
