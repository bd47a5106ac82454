"""What `doctor` makes of facts: facts in, findings out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import pytest

from queuekit.locks import Life
from workerpool.cli.diagnosis import folder, machine, postgres, sqlite, tenants
from workerpool.cli.diagnosis.finding import Finding, Level, Part, error, exit_code, note, ok, warning

MACHINE = machine.Machine(
    system="Linux 6.1",
    python="3.12.1",
    versions={"workerpool": "0.1.0"},
    descriptors=20_000,
    descriptors_needed=50,
    processes=None,
    processes_needed=4,
    pool_runs=False,
    wall=1_800_000_000.0,
    monotonic_ns=1.0,
    boot_id="b",
)
DISK = machine.Disk(
    folder="/q",
    filesystem="ext4",
    bytes_free=10 * 2**30,
    bytes_total=100 * 2**30,
    files_free=10**6,
    files_total=10**7,
    read_only=False,
)
PROBE = folder.Probe(exclusive=True, locks=True, sync_ms=(0.5, 0.6, 0.7), means="inotify", event_ms=0.1, refusal="")
FOLDER = folder.Folder(root="/q", filesystem="ext4", probe=PROBE)
LEASE = tenants.Lease(stream="a", owner="pid-7-x", pid=7, age=1.0, life=Life.HELD)
SQLITE = sqlite.Sqlite(
    path="/q/j.db",
    library="SQLite 3.53.0 of sqlite3",
    fixed=True,
    filesystem="ext4",
    journal="WAL with synchronous=FULL, because it is fixed",
    version=2,
    known=2,
)
POSTGRES = postgres.Postgres(
    name="postgresql:///db",
    version="18.1",
    number=180_001,
    standby=False,
    encoding="UTF8",
    round_trip_ms=(0.2, 0.3, 0.4),
    ahead=0.01,
    uncertain=0.001,
    notify_ms=0.2,
    settings={
        "fsync": "on",
        "synchronous_commit": "on",
        "full_page_writes": "on",
        "autovacuum": "on",
        "TimeZone": "UTC",
    },
    connections=3,
    connections_free=90,
    needed=4,
    pool_runs=False,
    schema=2,
    known=2,
    missing_privileges=(),
    bytes=2**23,
    dead_rows=0,
    live_rows=0,
)
JUDGES: list[tuple[Any, Any]] = [
    (MACHINE, machine.judge),
    (DISK, machine.judge_disk),
    (FOLDER, folder.judge),
    (SQLITE, sqlite.judge),
    (POSTGRES, postgres.judge),
]


def bad(findings: Iterable[Finding]) -> list[tuple[str, str]]:
    return [(each.level.value, each.topic) for each in findings if each.level is not Level.OK]


@pytest.mark.parametrize(("facts", "judge"), JUDGES)
def test_what_is_as_it_should_be_is_ok(facts: Any, judge: Any) -> None:
    findings = list(judge(facts))
    assert findings
    assert bad(findings) == []
    assert not any(each.means or each.to_do for each in findings)


@pytest.mark.parametrize(
    ("facts", "judge", "changes", "expected"),
    [
        (MACHINE, machine.judge, {"wall": 0.0}, [("error", "clock")]),
        (MACHINE, machine.judge, {"wall": 9e9}, [("error", "clock")]),
        (MACHINE, machine.judge, {"boot_id": ""}, [("warning", "clock")]),
        (MACHINE, machine.judge, {"monotonic_ns": 15.6e6}, [("warning", "clock")]),
        (MACHINE, machine.judge, {"descriptors": 49}, [("error", "limits")]),
        (MACHINE, machine.judge, {"descriptors": 50}, [("warning", "limits")]),
        (MACHINE, machine.judge, {"descriptors": 114}, []),
        (MACHINE, machine.judge, {"processes": 3}, [("error", "limits")]),
        (MACHINE, machine.judge, {"processes": 4}, []),
        (MACHINE, machine.judge, {"processes": 0, "pool_runs": True}, []),
        (DISK, machine.judge_disk, {"read_only": True}, [("error", "disk")]),
        (DISK, machine.judge_disk, {"bytes_free": 2**20}, [("error", "disk")]),
        (DISK, machine.judge_disk, {"bytes_free": 2**26}, [("warning", "disk")]),
        (DISK, machine.judge_disk, {"bytes_free": 2**29}, [("warning", "disk")]),
        (DISK, machine.judge_disk, {"files_free": 3}, [("error", "disk")]),
        (DISK, machine.judge_disk, {"files_free": 1_000}, [("warning", "disk")]),
        (DISK, machine.judge_disk, {"files_free": 0, "files_total": 0}, []),
        (FOLDER, folder.judge, {"filesystem": "xfs"}, []),
        (FOLDER, folder.judge, {"filesystem": "tmpfs"}, [("warning", "filesystem")]),
        (FOLDER, folder.judge, {"filesystem": "vfat"}, [("warning", "filesystem")]),
        (FOLDER, folder.judge, {"filesystem": "nfs4"}, [("warning", "filesystem")]),
        (FOLDER, folder.judge, {"filesystem": "fuse.sshfs"}, [("warning", "filesystem")]),
        (FOLDER, folder.judge, {"filesystem": "zfs"}, [("note", "filesystem")]),
        (FOLDER, folder.judge, {"filesystem": ""}, [("note", "filesystem")]),
        (FOLDER, folder.judge, {"no_journal": True}, [("note", "filesystem")]),
        (FOLDER, folder.judge, {"trouble": ("/q is not a folder",)}, [("error", "store")]),
        (FOLDER, folder.judge, {"missing": ("new",), "probe": None}, [("note", "store")]),
        (FOLDER, folder.judge, {"missing": ("new",), "others": ("thesis.doc",), "probe": None}, [("warning", "store")]),
        (FOLDER, folder.judge, {"loose": (("/q/new", 0o755),)}, [("note", "modes")]),
        (FOLDER, folder.judge, {"reserve": False}, [("note", "reserve")]),
        (FOLDER, folder.judge, {"reserve": False, "pool_runs": True}, [("warning", "reserve")]),
        (SQLITE, sqlite.judge, {"fixed": False}, [("note", "sqlite")]),
        (SQLITE, sqlite.judge, {"trouble": "it is a link"}, [("error", "store")]),
        (SQLITE, sqlite.judge, {"durability": "none"}, [("warning", "journal")]),
        (SQLITE, sqlite.judge, {"version": 3}, [("error", "schema")]),
        (SQLITE, sqlite.judge, {"version": 1}, [("note", "schema")]),
        (SQLITE, sqlite.judge, {"version": 0}, [("note", "schema")]),
        (SQLITE, sqlite.judge, {"wal_size": 2**30}, [("warning", "size")]),
        (SQLITE, sqlite.judge, {"size": 2**28, "empty_bytes": 2**27 + 1}, [("note", "size")]),
        (SQLITE, sqlite.judge, {"complaint": "row 7 missing from index"}, [("error", "integrity")]),
        (SQLITE, sqlite.judge, {"complaint": None, "check_seconds": 2.0}, [("note", "integrity")]),
        (SQLITE, sqlite.judge, {"filesystem": "tmpfs"}, [("warning", "filesystem")]),
        (SQLITE, sqlite.judge, {"mode": 0o644}, [("note", "modes")]),
        (POSTGRES, postgres.judge, {"standby": True}, [("error", "store")]),
        (POSTGRES, postgres.judge, {"number": 90_624}, [("error", "store")]),
        (POSTGRES, postgres.judge, {"encoding": "LATIN1"}, [("error", "store")]),
        (POSTGRES, postgres.judge, {"schema": 9}, [("error", "schema")]),
        (POSTGRES, postgres.judge, {"missing_privileges": ("UPDATE ON queuekit_jobs",)}, [("error", "rights")]),
        (POSTGRES, postgres.judge, {"round_trip_ms": (40.0, 41.0)}, [("warning", "network")]),
        (POSTGRES, postgres.judge, {"notify_ms": None}, [("warning", "events")]),
        (POSTGRES, postgres.judge, {"ahead": -3.0}, [("warning", "clock")]),
        (POSTGRES, postgres.judge, {"ahead": 3.0, "uncertain": 2.0}, []),
        (POSTGRES, postgres.judge, {"connections_free": 3}, [("warning", "limits")]),
        (POSTGRES, postgres.judge, {"connections_free": 3, "pool_runs": True}, []),
        (POSTGRES, postgres.judge, {"connections_free": 4}, []),
        (POSTGRES, postgres.judge, {"schema": None}, []),
        (POSTGRES, postgres.judge, {"dead_rows": 200_000, "live_rows": 10}, [("note", "vacuum")]),
        (POSTGRES, postgres.judge, {"dead_rows": 200_000, "live_rows": 10**6}, []),
    ],
)
def test_what_is_not_is_told(facts: Any, judge: Any, changes: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    findings = list(judge(dataclasses.replace(facts, **changes)))
    assert bad(findings) == expected
    assert all(each.means for each in findings if each.level in {Level.WARNING, Level.ERROR})


@pytest.mark.parametrize(
    ("name", "value", "topic"),
    [
        ("fsync", "off", "durability"),
        ("synchronous_commit", "off", "durability"),
        ("full_page_writes", "off", "durability"),
        ("autovacuum", "off", "vacuum"),
    ],
)
def test_settings_of_the_server_that_endanger_jobs_are_warned_of(name: str, value: str, topic: str) -> None:
    changed = dataclasses.replace(POSTGRES, settings={**POSTGRES.settings, name: value})
    assert bad(postgres.judge(changed)) == [("warning", topic)]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"exclusive": False}, [("note", "filesystem")]),
        ({"locks": False}, [("error", "filesystem")]),
        ({"sync_ms": (80.0, 90.0, 100.0)}, [("warning", "sync")]),
        ({"sync_ms": (0.001, 0.001, 0.002)}, [("note", "sync")]),
        ({"sync_ms": ()}, []),
        ({"event_ms": None}, [("warning", "events")]),
        ({"event_ms": None, "refusal": "inotify: the limit is reached"}, [("note", "events")]),
    ],
)
def test_what_the_filesystem_cannot_do_is_told(changes: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    seen = dataclasses.replace(FOLDER, probe=dataclasses.replace(PROBE, **changes))
    assert bad(folder.judge(seen)) == expected


def test_a_file_in_memory_syncs_at_once_and_that_is_no_suspicion() -> None:
    seen = dataclasses.replace(FOLDER, filesystem="tmpfs", probe=dataclasses.replace(PROBE, sync_ms=(0.001,)))
    assert bad(folder.judge(seen)) == [("warning", "filesystem")]


@pytest.mark.parametrize(
    ("instances", "watches", "short"),
    [(125, 10, ""), (126, 10, "fs.inotify.max_user_instances"), (10, 998, "fs.inotify.max_user_watches")],
)
def test_inotify_that_will_not_do_for_all_streams_names_the_limit(instances: int, watches: int, short: str) -> None:
    used = folder.Inotify(instances=instances, max_instances=128, watches=watches, max_watches=1000)
    findings = list(folder.judge(dataclasses.replace(FOLDER, inotify=used, streams=3)))
    told = [each for each in findings if each.level is Level.WARNING]
    assert [short in each.to_do for each in told] == ([True] if short else [])
    running = dataclasses.replace(FOLDER, inotify=used, streams=3, pool_runs=True)
    assert bad(folder.judge(running)) == []


@pytest.mark.parametrize(
    ("changes", "level", "said"),
    [
        ({}, "ok", "it lives"),
        ({"age": 40.0}, "warning", "it lives"),
        ({"life": Life.DEAD}, "note", "who is dead"),
        ({"life": Life.UNKNOWN}, "note", "held by pid 7"),
        ({"life": Life.UNKNOWN, "age": 40.0}, "note", "renewed 40s ago"),
        ({"life": Life.UNKNOWN, "age": -60.0}, "warning", "renewed 1m in the future"),
        ({"age": None}, "ok", "held by pid 7; it lives"),
        ({"pid": None, "owner": "host\n7", "age": None}, "ok", "held by host\\n7"),
        ({"shared": True}, "ok", "stream a is shared by pid 7"),
    ],
)
def test_a_lease_is_told_with_its_holder_and_whether_it_lives(changes: dict[str, Any], level: str, said: str) -> None:
    (finding,) = tenants.judge_leases([dataclasses.replace(LEASE, **changes)], ttl=15.0)
    assert finding.level.value == level
    assert said in finding.found


def test_pools_that_run_and_those_that_were_killed() -> None:
    running = tenants.Pool(pid=5, alive=True, in_order=False, config="/c.toml", streams=("a", "b"))
    killed = dataclasses.replace(running, pid=4, alive=False)
    ended = dataclasses.replace(killed, pid=3, in_order=True)
    assert [each.found for each in tenants.judge_pools([running, killed])] == ["pool 5 runs here by /c.toml: a, b"]
    assert bad(tenants.judge_pools([ended])) == []
    assert bad(tenants.judge_pools([killed])) == [("note", "pool")]


def test_jobs_that_nobody_here_works_are_told() -> None:
    counts = tenants.Jobs(streams=("a", "b"), configured=("a",), pending=3, claimed=1, later=0, ended=9, at_least=True)
    first, stranger = tenants.judge_jobs(counts)
    assert first.found == "2 streams with jobs to do: at least 3 pending, 1 claimed, 0 put off, 9 ended"
    assert stranger.level is Level.NOTE
    assert stranger.found == "the configuration does not name b"
    assert bad(tenants.judge_jobs(dataclasses.replace(counts, configured=()))) == []


def test_mistakes_of_the_configuration_and_who_could_change_it_are_errors() -> None:
    good = machine.Config(path="/c.toml", streams=2)
    assert bad(machine.judge_config(good)) == []
    for changed in (
        dataclasses.replace(good, problems=("c.toml:3: no",)),
        dataclasses.replace(good, unsafe=(("/c.toml", "can be written by every user"),)),
    ):
        findings = list(machine.judge_config(changed))
        assert bad(findings) == [("error", "config")]
        assert exit_code(findings) == 2


def test_the_exit_code_is_that_of_the_worst_error() -> None:
    findings = [ok("a", "b"), note("a", "b"), warning("a", "b", "c")]
    assert exit_code(findings) == 0
    assert exit_code([*findings, error("a", "b")]) == 1
    assert exit_code([error("a", "b", part=Part.CONFIG), error("a", "b")]) == 2
    assert exit_code([error("a", "b", part=Part.STORE), error("a", "b", part=Part.CONFIG)]) == 3
