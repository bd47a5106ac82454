"""The ground floor of the SQL stores, on real databases: transactions, threads, forks, locks, lost servers."""

from __future__ import annotations

import errno
import json
import os
import select
import sqlite3
import stat
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pysqlite3
import pytest
import sqlalchemy as sa
from postgres import Server

from queuekit.backends.sql import sqlite
from queuekit.backends.sql.database import Database
from queuekit.backends.sql.leases import refuse_if_leased_by_file
from queuekit.backends.sql.postgres import PostgresDatabase
from queuekit.backends.sql.sqlite import Library, SqliteDatabase
from queuekit.contract import Watcher
from queuekit.errors import BackendUnavailable, JobNotFound, QueueError, WriteFailed
from queuekit.testing.jobs import DEADLINE, wait_until
from queuekit.watch import wait_loop
from queuekit.watch.base import Place

NUMBERS = sa.Table("numbers", sa.MetaData(), sa.Column("number", sa.Integer, primary_key=True))
Open = Callable[..., Database]


@pytest.fixture(params=["sqlite", "postgresql"])
def open_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Open the same database of this test again and again, with keywords as of `Database`."""
    opened: list[Database] = []
    if request.param == "sqlite":
        path = tmp_path / "store" / "jobs.db"
        make: Open = lambda **keywords: SqliteDatabase(path, **keywords)  # noqa: E731
    else:
        url = request.getfixturevalue("postgres_url")
        make = lambda **keywords: PostgresDatabase(url, **keywords)  # noqa: E731

    def open_another(**keywords: Any) -> Database:
        opened.append(make(**keywords))
        return opened[-1]

    yield open_another
    for database in opened:
        database.close()


@pytest.fixture
def database(open_database: Open) -> Database:
    """One, with an empty table."""
    database = open_database()
    database.run(NUMBERS.create)
    return database


@pytest.fixture
def sqlite_database(tmp_path: Path) -> Iterator[SqliteDatabase]:
    database = SqliteDatabase(tmp_path / "store" / "jobs.db")
    database.run(NUMBERS.create)
    yield database
    database.close()


@pytest.fixture
def postgres_database(postgres_url: str) -> Iterator[PostgresDatabase]:
    database = PostgresDatabase(postgres_url)
    database.run(NUMBERS.create)
    yield database
    database.close()


def add(number: int) -> Callable[[sa.Connection], None]:
    """Work that inserts one row."""

    def work(connection: sa.Connection) -> None:
        connection.execute(NUMBERS.insert().values(number=number))

    return work


def numbers(database: Database) -> list[int]:
    statement = sa.select(NUMBERS.c.number).order_by(NUMBERS.c.number)
    return database.run(lambda connection: list(connection.scalars(statement)), write=False)


def in_child(act: Callable[[], object]) -> Any:
    """What `act` answers in a forked child, by way of JSON; an assertion when it raised there."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            try:
                answer = json.dumps({"value": act()})
            except BaseException:
                answer = json.dumps({"error": traceback.format_exc()})
            os.write(writing, answer.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = json.loads(pipe.read() or '{"error": "it died"}')
    os.waitpid(pid, 0)
    assert "error" not in answer, answer["error"]
    return answer["value"]


def descriptors() -> set[str]:
    """What this process has open: paths, and the inodes of sockets."""
    links = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            links.add(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    return links


# -- one transaction


def test_a_transaction_is_committed_when_run_returns(database: Database, open_database: Open) -> None:
    assert database.run(lambda connection: connection.scalar(sa.select(sa.literal(7)))) == 7
    database.run(add(1))
    assert numbers(open_database()) == [1]


@pytest.mark.parametrize("raised", [JobNotFound("j"), LookupError("mine"), KeyboardInterrupt()])
def test_what_the_work_raises_is_passed_on_and_undoes_it(database: Database, raised: BaseException) -> None:
    def work(connection: sa.Connection) -> None:
        add(1)(connection)
        raise raised

    with pytest.raises(type(raised)) as caught:
        database.run(work)
    assert caught.value is raised
    database.run(add(2))
    assert numbers(database) == [2]


def test_an_error_of_the_driver_comes_out_as_the_callers_own(database: Database) -> None:
    database.run(add(1))

    def work(connection: sa.Connection) -> None:
        add(2)(connection)
        add(1)(connection)

    with pytest.raises(WriteFailed, match="could not write job") as caught:
        database.run(work, failure=lambda sentence: WriteFailed("job", sentence))
    assert database.name in str(caught.value)
    assert "\n" not in str(caught.value)
    assert type(caught.value.__cause__).__name__ in ("IntegrityError", "UniqueViolation")
    assert numbers(database) == [1]


def test_without_a_wish_it_is_backend_unavailable(database: Database) -> None:
    with pytest.raises(BackendUnavailable, match="nonsense"):
        database.run(lambda connection: connection.exec_driver_sql("SELECT * FROM nonsense"))


def test_a_transaction_inside_another_is_a_mistake(database: Database) -> None:
    with pytest.raises(RuntimeError, match="inside a transaction"):
        database.run(lambda _: database.run(add(1)))
    database.run(add(2))
    assert numbers(database) == [2]


def test_a_closed_database_says_so(database: Database) -> None:
    database.close()
    database.close()
    database.notify(["encode"])
    with pytest.raises(BackendUnavailable, match="it is closed"):
        database.run(add(1))


def test_closing_inside_a_transaction_waits_for_its_end(database: Database, open_database: Open) -> None:
    def work(connection: sa.Connection) -> None:
        database.close()
        add(1)(connection)

    database.run(work)
    assert numbers(open_database()) == [1]
    with pytest.raises(BackendUnavailable, match="it is closed"):
        database.run(add(2))


def test_an_unknown_durability_is_refused(open_database: Open) -> None:
    with pytest.raises(ValueError, match="durability is one of full, batch, none"):
        open_database(durability="total")


def test_the_databases_clock_is_in_ms_since_the_epoch(database: Database) -> None:
    before = time.time_ns() // 1_000_000
    told = database.run(lambda connection: connection.scalar(sa.select(database.now_ms)), write=False)
    assert before - 1 <= told <= time.time_ns() // 1_000_000 + 1


def test_a_select_can_ask_for_locks_everywhere(database: Database) -> None:
    database.run(add(1))
    statement = sa.select(NUMBERS.c.number)
    for locking in (statement.with_for_update(skip_locked=True), statement.with_for_update(read=True)):
        assert database.run(lambda connection, locking=locking: connection.scalar(locking)) == 1


# -- several at a time


def test_each_thread_has_its_own_connection(database: Database) -> None:
    meeting = threading.Barrier(3, timeout=DEADLINE)
    seen: list[object] = []

    def work(connection: sa.Connection) -> None:
        seen.append(connection)
        meeting.wait()

    threads = [threading.Thread(target=database.run, args=(work,), kwargs={"write": False}) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, seen))) == 3


def test_connections_of_threads_that_ended_are_closed(database: Database) -> None:
    def in_thread() -> list[object]:
        used: list[object] = []
        thread = threading.Thread(
            target=database.run, args=(lambda connection: used.append(connection.connection.driver_connection),)
        )
        thread.start()
        thread.join()
        return used

    (first,) = in_thread()
    in_thread()
    with pytest.raises((pysqlite3.ProgrammingError, sqlite3.ProgrammingError, Exception), match="closed"):
        first.execute("SELECT 1")  # type: ignore[attr-defined]


def test_nobody_loses_an_update_of_another_process(database: Database) -> None:
    database.run(add(0))
    locked = sa.select(NUMBERS.c.number).with_for_update()

    def count(connection: sa.Connection) -> None:
        now = connection.scalars(locked).one()
        connection.execute(NUMBERS.update().values(number=now + 1))

    def count_on() -> None:
        for _ in range(25):
            database.run(count)

    children = [threading.Thread(target=in_child, args=(count_on,)) for _ in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert numbers(database) == [100]


# -- forks


def test_both_sides_of_a_fork_go_on(database: Database) -> None:
    database.run(add(1))
    assert in_child(lambda: (database.run(add(2)), numbers(database))[1]) == [1, 2]
    database.run(add(3))
    assert numbers(database) == [1, 2, 3]


def test_a_child_has_no_connection_of_its_parents(open_database: Open) -> None:
    database = open_database()
    before = descriptors()
    database.run(NUMBERS.create)
    database.run(add(1))
    opened = descriptors() - before
    assert opened
    inherited = in_child(lambda: sorted(opened & descriptors()))
    assert inherited == []
    assert numbers(database) == [1]


def test_a_child_that_ends_as_python_does_leaves_the_parents_session_alone(database: Database) -> None:
    database.run(add(1))
    pid = os.fork()
    if pid == 0:
        try:
            database.close()
            for held in list(vars(database)):
                delattr(database, held)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    database.run(add(2))
    assert numbers(database) == [1, 2]


def test_forks_beside_busy_threads(database: Database) -> None:
    """C31: producers in other threads never stop, children come and go, and each of them works."""
    stop = threading.Event()
    produced: list[int] = []

    def produce(first: int) -> None:
        number = first
        while not stop.is_set():
            database.run(add(number))
            produced.append(number)
            number += 1

    before = descriptors()
    producers = [threading.Thread(target=produce, args=(first,)) for first in (1_000_000, 2_000_000)]
    for producer in producers:
        producer.start()
    try:
        for number in range(12):

            def work_in_child(number: int = number, opened: frozenset[str] = frozenset(descriptors())) -> list[str]:
                inherited = (opened - before) & descriptors()
                database.run(add(number))
                return sorted(link for link in inherited if link.startswith("socket") or ".db" in link)

            in_child(work_in_child)
    finally:
        stop.set()
        for producer in producers:
            producer.join()
    assert numbers(database) == [*range(12), *sorted(produced)]
    assert len(produced) > 2


def test_no_descriptor_of_the_file_is_in_a_child_of_busy_threads(sqlite_database: SqliteDatabase) -> None:
    stop = threading.Event()

    def produce() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            sqlite_database.run(add(number))

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        for _ in range(20):
            found = in_child(lambda: [link for link in descriptors() if link.startswith(sqlite_database.path)])
            assert found == []
    finally:
        stop.set()
        producer.join()
    check = sqlite_database.run(lambda connection: connection.exec_driver_sql("PRAGMA integrity_check").scalar())
    assert check == "ok"


def test_a_child_forked_inside_a_transaction_is_told(database: Database) -> None:
    def in_forked() -> str:
        return "unreachable"

    def work(connection: sa.Connection) -> None:
        add(1)(connection)
        pid = os.fork()
        if pid == 0:
            try:
                add(2)(connection)
            except (RuntimeError, sa.exc.DBAPIError):
                os._exit(3)
            os._exit(4)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3

    database.run(work)
    assert numbers(database) == [1]


def test_a_child_that_returns_from_its_parents_work_commits_nothing(database: Database) -> None:
    pids: list[int] = []

    def work(connection: sa.Connection) -> None:
        add(1)(connection)
        pids.append(os.fork())

    try:
        database.run(work)
    except RuntimeError as error:
        os._exit(5 if not pids[0] and "forked inside a transaction" in str(error) else 6)
    except BaseException:
        if not pids[0]:
            os._exit(7)
        raise
    if not pids[0]:
        os._exit(8)
    assert os.waitstatus_to_exitcode(os.waitpid(pids[0], 0)[1]) == 5
    assert numbers(database) == [1]


def test_a_child_of_an_sqlite_transaction_may_never_use_the_file(sqlite_database: SqliteDatabase) -> None:
    def work(connection: sa.Connection) -> str:
        add(1)(connection)

        def child() -> str:
            try:
                threading.Thread(target=str).start()
                return refusal_of(sqlite_database)
            except RuntimeError as error:
                return str(error)

        return str(in_child(child))

    assert "forked inside a transaction" in sqlite_database.run(work)
    assert numbers(sqlite_database) == [1]


def refusal_of(database: Database) -> str:
    """What another thread is told when it uses the database."""
    told: list[str] = []

    def use() -> None:
        try:
            database.run(add(9))
        except QueueError as error:
            told.append(str(error))

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    return "".join(told)


# -- waking


def woken(watcher: Watcher) -> bool:
    return bool(select.select([watcher], [], [], DEADLINE)[0])


def quiet(watcher: Watcher) -> bool:
    return not select.select([watcher], [], [], 0)[0]


def test_a_notified_commit_wakes_at_once(database: Database, open_database: Open) -> None:
    other = open_database()
    watcher = database.watcher()
    try:
        for number, sender in enumerate((database, other, other, database)):
            watcher.read()
            sender.run(add(number))
            sender.notify(["encode"])
            assert woken(watcher)
            assert numbers(database)[-1] == number
            watcher.read()
            assert quiet(watcher)
            assert watcher.check()
    finally:
        watcher.close()
        watcher.close()


def test_a_commit_in_the_users_own_transaction_is_noticed(database: Database, open_database: Open) -> None:
    other = open_database()
    seen: list[list[int]] = []
    watching = watch_numbers(database, seen)
    wait_until(lambda: seen[-1:] == [[]])

    def work(connection: sa.Connection) -> None:
        add(1)(connection)
        other.notify_within(connection, ["encode"])

    other.run(work)
    wait_until(lambda: seen[-1] == [1])
    watching()


def test_a_notice_that_is_rolled_back_is_none(postgres_database: PostgresDatabase) -> None:
    watcher = postgres_database.watcher()

    def work(connection: sa.Connection) -> None:
        postgres_database.notify_within(connection, ["encode"])
        raise LookupError

    with pytest.raises(LookupError):
        postgres_database.run(work)
    assert quiet(watcher)
    postgres_database.notify(["x" * 300] * 50 + [f"{n:0300}" for n in range(50)])
    assert woken(watcher)
    watcher.close()


def watch_numbers(database: Database, seen: list[list[int]]) -> Callable[[], None]:
    """Look at the numbers at every wake, in a thread; what is returned ends that."""
    stop = threading.Event()
    watcher = database.watcher()

    def look(_: tuple[str, ...]) -> None:
        seen.append(numbers(database))

    thread = threading.Thread(target=wait_loop, args=(watcher, look, stop), kwargs={"scan": 3600.0, "check": 3600.0})
    thread.start()

    def end() -> None:
        stop.set()
        thread.join()
        watcher.close()

    return end


@pytest.mark.parametrize("mode", ["WAL", "DELETE"])
def test_a_commit_long_after_its_writes_is_noticed(tmp_path: Path, mode: str) -> None:
    """Nobody tells of this one: it is a transaction of a program that knows nothing of queues."""
    path = tmp_path / "jobs.db"
    foreign = sqlite.library().module.connect(path, isolation_level=None)
    foreign.execute(f"PRAGMA journal_mode={mode}")
    database = SqliteDatabase(path)
    database.run(NUMBERS.create)
    seen: list[list[int]] = []
    end = watch_numbers(database, seen)
    wait_until(lambda: seen != [])
    foreign.execute("BEGIN IMMEDIATE")
    foreign.execute("INSERT INTO numbers VALUES (1)")
    foreign.execute("COMMIT")
    wait_until(lambda: seen[-1] == [1])
    foreign.execute("PRAGMA cache_size=1")
    if mode == "WAL":
        foreign.execute("BEGIN IMMEDIATE")
        looks = len(seen)
        for number in range(2, 5000):
            foreign.execute("INSERT INTO numbers VALUES (?)", (number,))
        wait_until(lambda: len(seen) > looks)
        foreign.execute("COMMIT")
        wait_until(lambda: len(seen[-1]) == 4999)
    end()
    foreign.close()
    database.close()


def test_an_idle_sqlite_watcher_sleeps_although_others_read_and_make_files(sqlite_database: SqliteDatabase) -> None:
    numbers(sqlite_database)
    watcher = sqlite_database.watcher()
    assert watcher.kind == "inotify"
    assert watcher.timeout() is None
    numbers(sqlite_database)
    Path(sqlite_database.folder, "other").write_text("x")
    in_child(lambda: numbers(sqlite_database))
    numbers(sqlite_database)
    while not quiet(watcher):  # the fork closed all connections, and with them the -wal
        watcher.read()
    numbers(sqlite_database)
    Path(sqlite_database.folder, "another").write_text("x")
    assert quiet(watcher)
    watcher.close()


def test_an_sqlite_watcher_that_may_not_watch_a_new_wal_polls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from queuekit.backends.sql.watch_inotify import SqliteInotifyWatcher

    def refused(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path, wal = tmp_path / "jobs.db", tmp_path / "jobs.db-wal"
    path.touch()
    watcher = SqliteInotifyWatcher(Place(str(tmp_path), str(path)), 0.2, wal=True)
    with monkeypatch.context() as kernel:
        kernel.setattr("queuekit.watch.inotify.INotify.add_watch", refused)
        wal.touch()
        for _ in range(3):
            assert watcher.read() == ()
            assert watcher.timeout() is not None
            assert quiet(watcher)
    watcher.read()
    wal.write_text("x")
    assert not quiet(watcher)
    watcher.close()


def test_an_sqlite_watcher_follows_a_replaced_file(sqlite_database: SqliteDatabase) -> None:
    watcher = sqlite_database.watcher()
    sqlite_database.close()
    os.unlink(sqlite_database.path)
    assert woken(watcher)
    watcher.read()
    assert watcher.timeout() is not None
    assert not watcher.check()
    successor = SqliteDatabase(sqlite_database.path)
    assert not watcher.check()
    assert watcher.check()
    successor.notify(["encode"])
    assert woken(watcher)
    watcher.close()
    successor.close()


def test_where_events_are_silent_it_polls(sqlite_database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queuekit.backends.sql.watch.filesystem_type", lambda _: "overlay")
    watcher = sqlite_database.watcher()
    assert (watcher.kind, watcher.timeout()) == ("poll", 0.05)
    watcher.close()
    watcher = sqlite_database.watcher(poll=0.5)
    assert watcher.timeout() == 0.5
    watcher.close()


# -- SQLite: files and journals


def test_file_and_folder_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        database = SqliteDatabase(tmp_path / "store" / "jobs.db")
        database.run(NUMBERS.create)
        files = {each.name: stat.S_IMODE(each.stat().st_mode) for each in (tmp_path / "store").iterdir()}
    finally:
        os.umask(before)
    assert files == {"jobs.db": 0o600, "jobs.db-wal": 0o600, "jobs.db-shm": 0o600}
    assert stat.S_IMODE((tmp_path / "store").stat().st_mode) == 0o700
    assert database.folder == str(tmp_path / "store")
    database.close()


def test_a_connection_that_may_only_read_is_replaced(sqlite_database: SqliteDatabase) -> None:
    """SQLite opens a file so that it cannot open for writing at that moment; found by failing its `openat` (T6)."""
    sqlite_database.run(add(1))
    sqlite_database.run(lambda connection: connection.exec_driver_sql("PRAGMA query_only = ON"), write=False)
    sqlite_database.run(add(2))
    assert numbers(sqlite_database) == [1, 2]


def test_a_folder_that_cannot_be_listed_for_leases_is_an_error_of_ours(tmp_path: Path) -> None:
    """Not one of the system, as it comes: found by failing its `getdents64` (T6)."""
    with pytest.raises(BackendUnavailable, match=r"cannot list .*: No such file"):
        refuse_if_leased_by_file(None, str(tmp_path / "gone"))


def test_several_may_make_it_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "store" / "jobs.db"

    def make() -> int:
        database = SqliteDatabase(path)
        return database.run(lambda connection: int(connection.exec_driver_sql("SELECT 1").scalar() or 0))

    answers: list[int] = []
    threads = [threading.Thread(target=lambda: answers.append(in_child(make))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [1] * 6
    assert [each.name for each in path.parent.iterdir() if each.name.endswith(".tmp")] == []


def test_what_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    for content in (b"short", b"something else\n" * 1000):
        path.write_bytes(content)
        database = SqliteDatabase(path)
        with pytest.raises(BackendUnavailable, match=r"notes\.txt: file is not a database"):
            database.run(add(1))
        database.close()
        assert path.read_bytes() == content
        assert os.listdir(tmp_path) == ["notes.txt"]


def make_link(path: Path) -> None:
    path.with_name("real.db").touch()
    path.symlink_to("real.db")


def make_writable(path: Path) -> None:
    path.touch()
    path.chmod(0o666)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (make_link, "is a link"),
        (make_writable, "can be written by others"),
        (lambda path: path.mkdir(), "is not a file"),
        (os.mkfifo, "is not a file"),
        (lambda path: path.parent.chmod(0o777), "can be written by others"),
    ],
)
def test_what_must_not_be_used_is_refused(tmp_path: Path, make: Callable[[Path], None], reason: str) -> None:
    path = tmp_path / "jobs.db"
    make(path)
    with pytest.raises(BackendUnavailable, match=reason):
        SqliteDatabase(path)


@pytest.mark.parametrize("filesystem", ["nfs4", "CIFS", "fuse.sshfs", "9p"])
def test_network_filesystems_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filesystem: str) -> None:
    monkeypatch.setattr(sqlite, "filesystem_type", lambda _: filesystem)
    with pytest.raises(BackendUnavailable, match=f"is on {filesystem}, where SQLite's locks cannot be trusted"):
        SqliteDatabase(tmp_path / "jobs.db")
    assert os.listdir(tmp_path) == []


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BackendUnavailable, match=r"jobs\.db: "):
        SqliteDatabase(tmp_path / "file" / "jobs.db")


def test_a_file_that_is_gone_is_not_made_again_behind_anybodys_back(sqlite_database: SqliteDatabase) -> None:
    os.unlink(sqlite_database.path)
    with pytest.raises(BackendUnavailable, match="No such file"):
        sqlite_database.run(add(1))
    assert not os.path.exists(sqlite_database.path)


def test_a_replaced_store_is_opened_anew(sqlite_database: SqliteDatabase, tmp_path: Path) -> None:
    sqlite_database.run(add(1))
    os.rename(sqlite_database.folder, tmp_path / "away")
    other = SqliteDatabase(sqlite_database.path)
    other.run(NUMBERS.create)
    other.run(add(2))
    other.close()
    assert numbers(sqlite_database) == [2]


def test_no_database_is_made_beside_the_journal_of_one_that_is_gone(sqlite_database: SqliteDatabase) -> None:
    """SQLite would take it for the new one's, and write old pages into it."""
    sqlite_database.run(add(1))
    os.unlink(sqlite_database.path)
    with pytest.raises(BackendUnavailable, match=r"jobs\.db-wal is of a database that is gone"):
        SqliteDatabase(sqlite_database.path)
    assert not os.path.exists(sqlite_database.path)


def pragma(database: Database, name: str) -> object:
    return database.run(lambda connection: connection.exec_driver_sql(f"PRAGMA {name}").scalar(), write=False)


def use_library(monkeypatch: pytest.MonkeyPatch, *, fixed: bool) -> Library:
    """Let databases be opened by the test's library as if it had the fault, or had it not."""
    library = Library(sqlite.library().module)
    library.version = (3, 53, 0) if fixed else (3, 40, 1)
    monkeypatch.setattr(sqlite, "library", lambda: library)
    return library


@pytest.mark.parametrize(
    ("fixed", "durability", "mode", "synchronous"),
    [
        (True, "full", "wal", 2),
        (True, "batch", "wal", 2),
        (True, "none", "wal", 0),
        (False, "full", "delete", 3),
        (False, "none", "delete", 0),
    ],
)
def test_a_new_file_gets_the_mode_that_its_library_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fixed: bool, durability: str, mode: str, synchronous: int
) -> None:
    use_library(monkeypatch, fixed=fixed)
    database = SqliteDatabase(tmp_path / "jobs.db", durability=durability)
    assert (pragma(database, "journal_mode"), pragma(database, "synchronous")) == (mode, synchronous)
    assert database.journal_reason.startswith(f"{mode.upper()} with synchronous=")
    assert ("can corrupt a WAL database" in database.journal_reason) is not fixed
    database.close()


def test_an_existing_file_keeps_its_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_library(monkeypatch, fixed=False)
    SqliteDatabase(tmp_path / "jobs.db").close()
    use_library(monkeypatch, fixed=True)
    database = SqliteDatabase(tmp_path / "jobs.db")
    assert (pragma(database, "journal_mode"), pragma(database, "synchronous")) == ("delete", 3)
    assert "the file was made in it" in database.journal_reason
    database.close()


def test_a_library_with_the_fault_switches_a_wal_database_that_nobody_has_open(
    sqlite_database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite_database.run(add(1))
    sqlite_database.close()
    use_library(monkeypatch, fixed=False)
    database = SqliteDatabase(sqlite_database.path)
    assert numbers(database) == [1]
    assert (pragma(database, "journal_mode"), pragma(database, "synchronous")) == ("delete", 3)
    database.close()


def test_a_library_with_the_fault_refuses_a_wal_database_that_is_open(
    sqlite_database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite_database.run(add(1))
    path = sqlite_database.path
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, path, "SELECT count(*) FROM numbers"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == b"ready\n"
        sqlite_database.close()
        use_library(monkeypatch, fixed=False)
        database = SqliteDatabase(path)
        with pytest.raises(BackendUnavailable, match=r"in WAL mode and open elsewhere.*install the package pysqlite3"):
            database.run(add(2))
        assert holder.stdin
        holder.stdin.close()
        holder.wait()
    assert numbers(database) == [1]
    database.close()


HOLD = """
import sys
import pysqlite3
connection = pysqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute(sys.argv[2]).fetchall()
print("ready", flush=True)
sys.stdin.read()
"""


def test_the_lock_of_another_process_is_waited_for(sqlite_database: SqliteDatabase) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, sqlite_database.path, "BEGIN IMMEDIATE"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == b"ready\n"
        impatient = SqliteDatabase(sqlite_database.path, patience=0.3)
        with pytest.raises(BackendUnavailable, match=r"locked by somebody else for 0\.3 s"):
            impatient.run(add(1))
        assert numbers(impatient) == []
        attempts: list[int] = []

        def work(connection: sa.Connection) -> None:
            attempts.append(1)
            add(2)(connection)

        thread = threading.Thread(target=sqlite_database.run, args=(work,))
        thread.start()
        assert in_child(lambda: "forks go on") == "forks go on"
        assert attempts == []
        assert holder.stdin
        holder.stdin.close()
        thread.join()
    assert (attempts, numbers(sqlite_database)) == ([1], [2])
    impatient.close()


def test_the_wal_stays_small(sqlite_database: SqliteDatabase) -> None:
    blob = b"x" * 2**20
    sqlite_database.run(lambda connection: connection.exec_driver_sql("CREATE TABLE blobs (blob BLOB)"))
    for _ in range(40):
        sqlite_database.run(lambda connection: connection.exec_driver_sql("INSERT INTO blobs VALUES (?)", (blob,)))
    assert os.path.getsize(f"{sqlite_database.path}-wal") < 16 * 2**20


# -- PostgreSQL: servers


def test_a_password_is_never_told(own_postgres: Callable[..., Server]) -> None:
    database = PostgresDatabase("postgresql://me:secret@127.0.0.1:1/db", patience=0.1)
    assert database.name == "postgresql://me@127.0.0.1:1/db"
    with pytest.raises(BackendUnavailable) as caught:
        database.run(add(1))
    assert "secret" not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(ValueError, match="no PostgreSQL URL") as bad:
        PostgresDatabase("postgresql://me:secret@[half/db")
    assert "secret" not in str(bad.value)


@pytest.mark.parametrize("state", ["40001", "40P01"])
def test_serialization_failures_and_deadlocks_are_run_again_whole(
    postgres_database: PostgresDatabase, state: str
) -> None:
    attempts: list[int] = []

    def work(connection: sa.Connection) -> None:
        attempts.append(1)
        add(len(attempts))(connection)
        if len(attempts) < 4:
            connection.exec_driver_sql(f"DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{state}'; END $$")

    postgres_database.run(work)
    assert numbers(postgres_database) == [4]


def test_a_serialization_failure_at_commit_is_run_again_too(postgres_database: PostgresDatabase) -> None:
    at_commit(postgres_database, "IF new.number = 1 THEN RAISE EXCEPTION USING ERRCODE = '40001'; END IF")
    attempts: list[int] = []

    def work(connection: sa.Connection) -> None:
        attempts.append(1)
        add(len(attempts))(connection)

    postgres_database.run(work)
    assert numbers(postgres_database) == [2]


def test_failures_without_end_come_out_when_the_patience_is_over(postgres_url: str) -> None:
    database = PostgresDatabase(postgres_url, patience=0.2)
    with pytest.raises(BackendUnavailable, match="again"):
        database.run(
            lambda connection: connection.exec_driver_sql(
                "DO $$ BEGIN RAISE EXCEPTION 'again' USING ERRCODE = '40001'; END $$"
            )
        )
    database.close()


def at_commit(database: Database, statement: str) -> None:
    """Let every insert into the table do something at its transaction's end."""
    database.run(
        lambda connection: connection.exec_driver_sql(
            f"""
            CREATE FUNCTION act() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {statement}; RETURN NULL; END $$;
            CREATE CONSTRAINT TRIGGER act AFTER INSERT ON numbers DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION act()
            """
        )
    )


def test_a_connection_that_was_cut_meanwhile_is_replaced(postgres_database: PostgresDatabase) -> None:
    for number in range(10):
        postgres_database.run(add(number))
        cut_others(postgres_database)
    assert numbers(postgres_database) == [*range(10)]


def cut_others(database: PostgresDatabase) -> None:
    """Terminate every other session of the database, and wait until they are gone."""
    terminate = (
        "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    other = PostgresDatabase(database._conninfo)
    other.run(lambda connection: connection.exec_driver_sql(terminate).scalar())
    other.close()


def test_work_that_is_cut_off_before_its_commit_is_run_again_whole(postgres_database: PostgresDatabase) -> None:
    attempts: list[int] = []

    def work(connection: sa.Connection) -> None:
        attempts.append(1)
        add(len(attempts))(connection)
        if len(attempts) == 1:
            cut_others(postgres_database)
        add(10)(connection)

    postgres_database.run(work)
    assert numbers(postgres_database) == [2, 10]


def test_a_connection_lost_while_committing_is_never_tried_again(postgres_database: PostgresDatabase) -> None:
    at_commit(postgres_database, "PERFORM pg_terminate_backend(pg_backend_pid())")
    attempts: list[int] = []

    def work(connection: sa.Connection) -> None:
        attempts.append(1)
        add(1)(connection)

    with pytest.raises(WriteFailed, match="what was done is unknown"):
        postgres_database.run(work, failure=lambda sentence: WriteFailed("job", sentence))
    assert attempts == [1]
    assert numbers(postgres_database) == []


def test_a_lock_is_not_waited_for_longer_than_the_patience(postgres_url: str) -> None:
    database, impatient = PostgresDatabase(postgres_url), PostgresDatabase(postgres_url, patience=0.2)
    database.run(NUMBERS.create)
    database.run(add(1))
    locked = sa.select(NUMBERS).with_for_update()

    def work(connection: sa.Connection) -> None:
        connection.execute(locked)
        thread = threading.Thread(target=lambda: told.append(refusal_of_locked()))
        thread.start()
        thread.join()

    def refusal_of_locked() -> str:
        with pytest.raises(BackendUnavailable) as caught:
            impatient.run(lambda connection: connection.execute(locked))
        return str(caught.value)

    told: list[str] = []
    database.run(work)
    assert "lock timeout" in told[0]
    assert numbers(impatient) == [1]
    database.close()
    impatient.close()


def test_a_server_that_is_down_is_asked_now_and_then(own_postgres: Callable[..., Server]) -> None:
    server = own_postgres()
    database = PostgresDatabase(server.url())
    database.run(NUMBERS.create)
    watcher = database.watcher()
    descriptor = watcher.fileno()
    server.stop("immediate")
    with pytest.raises(BackendUnavailable):
        database.run(add(1))
    wait_until(lambda: "; trying again in " in refusal_of(database))
    assert woken(watcher)
    wait_until(lambda: watcher.read() == () and not watcher.check())
    server.start()
    wait_until(lambda: works(database))
    wait_until(lambda: watcher.read() == () and watcher.check())
    assert watcher.fileno() == descriptor
    database.notify(["encode"])
    assert woken(watcher)
    watcher.close()
    database.close()


def works(database: Database) -> bool:
    try:
        numbers(database)
    except BackendUnavailable:
        return False
    return True


def test_a_listener_that_was_cut_off_comes_back(postgres_database: PostgresDatabase) -> None:
    watcher = postgres_database.watcher()
    for _ in range(5):
        cut_others(postgres_database)
        assert woken(watcher)
        wait_until(lambda: watcher.read() == () and not watcher.check())
        wait_until(lambda: watcher.read() == () and watcher.check())
        assert quiet(watcher)
        postgres_database.notify(["encode"])
        assert woken(watcher)
        watcher.read()
    watcher.close()


def test_a_listener_in_a_forked_child_leaves_its_parents_alone(postgres_database: PostgresDatabase) -> None:
    before = descriptors()
    watcher = postgres_database.watcher()
    sockets = {link for link in descriptors() - before if link.startswith("socket")}
    assert sockets

    def child() -> list[str]:
        watcher.read()
        watcher.close()
        return sorted(sockets & descriptors())

    assert in_child(child) == []
    postgres_database.notify(["encode"])
    assert woken(watcher)
    watcher.read()
    assert watcher.check()
    watcher.close()


def test_a_server_that_stands_still_is_given_up(own_postgres: Callable[..., Server]) -> None:
    server = own_postgres()
    database = PostgresDatabase(server.url(), patience=0.2)
    database.run(NUMBERS.create)
    watcher = database.watcher()
    server.pause()
    with pytest.raises(BackendUnavailable, match=r"does not answer for 3\.2 s"):
        database.run(add(1))
    with pytest.raises(BackendUnavailable, match="timeout"):
        database.run(add(2))
    with pytest.raises(BackendUnavailable, match="trying again"):
        database.run(add(3))
    stuck = database.watcher()
    assert not stuck.check()
    server.resume()
    wait_until(lambda: works(database))
    database.run(add(4))
    assert numbers(database)[-1] == 4
    wait_until(lambda: stuck.read() == () and stuck.check())
    while not quiet(watcher) or not quiet(stuck):
        watcher.read()
        stuck.read()
    database.notify(["encode"])
    assert woken(watcher)
    assert woken(stuck)
    watcher.close()
    stuck.close()
    database.close()


def test_a_commit_to_a_server_that_stands_still_is_unknown(own_postgres: Callable[..., Server]) -> None:
    server = own_postgres()
    database = PostgresDatabase(server.url(), patience=0.2)
    database.run(NUMBERS.create)
    attempts: list[int] = []

    def work(connection: sa.Connection) -> None:
        attempts.append(1)
        add(1)(connection)
        server.pause()

    with pytest.raises(BackendUnavailable, match="what was done is unknown"):
        database.run(work)
    server.resume()
    wait_until(lambda: works(database))
    assert attempts == [1]
    assert numbers(database) in ([], [1])
    database.close()


@pytest.mark.parametrize(("durability", "setting"), [("full", "on"), ("batch", "on"), ("none", "off")])
def test_commits_are_synced_unless_that_is_not_wanted(postgres_url: str, durability: str, setting: str) -> None:
    database = PostgresDatabase(postgres_url, durability=durability)
    shown = database.run(lambda connection: connection.exec_driver_sql("SHOW synchronous_commit").scalar())
    assert shown == setting
    database.notify(["encode"])
    shown = database.run(lambda connection: connection.exec_driver_sql("SHOW synchronous_commit").scalar())
    assert shown == setting
    database.close()


def test_the_servers_own_settings_do_not_weaken_it(postgres_url: str) -> None:
    database = PostgresDatabase(
        postgres_url + "&options=-csynchronous_commit%3Doff%20-cdefault_transaction_isolation%3Dserializable"
    )
    shown = database.run(
        lambda connection: (
            connection.exec_driver_sql("SHOW synchronous_commit").scalar(),
            connection.exec_driver_sql("SHOW transaction_isolation").scalar(),
        )
    )
    assert shown == ("on", "read committed")
    database.close()


def test_importing_queuekit_loads_no_sql() -> None:
    code = "import sys, queuekit; print(sorted({'sqlalchemy', 'psycopg', 'sqlite3'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
