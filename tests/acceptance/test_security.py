"""What another user of the machine can do to a pool, which is nothing; and to whoever runs one in a place of his."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from databases import DatabaseEstate
from pool import PATIENCE, Estate, Pool, is_dead, until

from queuekit import DirectoryCreationFailed, QueueKit, WriteFailed
from queuekit.backends.sql.leases import alive_folder
from queuekit.errors import BackendUnavailable

OTHER = 65534
SECRET = "s3cret-of-a-payload"
COMMAND = str(Path(sys.executable).with_name("workerpool"))
FILE, FOLDER = 0o600, 0o700

needs_root = pytest.mark.needs("root")  # to act as a second user


def as_other(act: Callable[[], Any]) -> Any:
    """What `act` returns in a process of another user without any rights; it may use nothing but what is loaded."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(OTHER)
            os.setuid(OTHER)
            os.umask(0)
            os.write(writer, json.dumps(act()).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    with open(reader, "rb") as file:
        told = file.read()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    return json.loads(told)


def let_in(folder: Path) -> None:
    """Everybody may pass, as below a home with mode 0755."""
    folder.chmod(0o755)
    for above in folder.parents:
        if above.stat().st_uid == os.geteuid() and not above.stat().st_mode & stat.S_ISVTX:
            above.chmod(above.stat().st_mode | 0o011)


def attempts(path: str, is_folder: bool, theirs: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """What somebody could do about a path. `theirs`: a folder of his own."""
    if is_folder:
        yield "list", lambda: os.listdir(path)
        yield "plant a file in", lambda: os.close(os.open(f"{path}/planted", os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        yield "plant a link in", lambda: os.symlink("/etc/passwd", f"{path}/link")
        yield "plant a folder in", lambda: os.mkdir(f"{path}/folder")
    else:
        yield "read", lambda: os.close(os.open(path, os.O_RDONLY))
        yield "write", lambda: os.close(os.open(path, os.O_WRONLY))
        yield "link", lambda: os.link(path, f"{theirs}/{os.path.basename(path)}")
        yield "remove", lambda: os.unlink(path)
    yield "rename", lambda: os.rename(path, f"{path}-renamed")
    yield "open up", lambda: os.chmod(path, 0o777)


def successes(paths: list[tuple[str, bool]], theirs: str) -> list[str]:
    """Everything that somebody could do about these paths, in words."""
    done = []
    for path, is_folder in paths:
        for what, act in attempts(path, is_folder, theirs):
            try:
                act()
            except OSError:
                continue
            done.append(f"{what} {path}")
    return done


def everything_in(folder: Path) -> list[tuple[str, bool]]:
    return [(str(each), each.is_dir()) for each in sorted(folder.rglob("*"))]


def is_the_pools(path: str) -> bool:
    """Whether it is none of what the estate itself writes: its configuration, the handlers' history, the output."""
    return (
        "/spool" in path
        or "/.workerpool" in path
        or "jobs.db" in path
        or "drain.lease" in path
        or path.endswith("/pool.log")
    )


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    folder = tmp_path / "theirs"
    folder.mkdir()
    os.chown(folder, OTHER, OTHER)
    return folder


def run_all_kinds(estate: Estate, pool: Pool) -> None:
    """One job that ends well, one blocked (with a dossier), one running, one retrying, one that waits."""
    until(pool.is_working("encode"), "the stream")
    done = estate.send(note=SECRET)
    blocked = estate.send(do="raise", note=SECRET)
    until(estate.finished(done, blocked), "two ends")
    running = estate.send(do="wait", file=str(estate.folder / "gate"), note=SECRET)
    until(estate.started(running), "a run")
    estate.send(note=SECRET)
    subprocess.run(
        [COMMAND, "pause", "dreaming", "--config", estate.config],
        check=True,
        capture_output=True,
        env=estate.environment(),
        timeout=PATIENCE,
    )


@needs_root
@pytest.mark.parametrize("umask", ["000", "022", "077"])
@pytest.mark.parametrize("store", ["folder", "sqlite"])
def test_a_second_user_can_neither_read_nor_plant_nor_stop_anything(
    tmp_path: Path, theirs: Path, umask: str, store: str
) -> None:
    """C72, T15: whatever the umask, every folder is 0700 and every file 0600, and nothing can be done about them."""
    streams: dict[str, dict[str, Any]] = {"encode": {"retries": 0}, "dreaming": {}}
    tables = {"log": {"file": str(tmp_path / "pool.log")}}
    estate = (
        Estate(tmp_path, streams, **tables)
        if store == "folder"
        else DatabaseEstate(tmp_path, f"sqlite:{tmp_path}/data/deep/jobs.db", streams, **tables)
    )
    before = os.umask(int(umask, 8))
    try:
        with estate:
            pool = estate.start()
            run_all_kinds(estate, pool)
            let_in(tmp_path)
            paths = [each for each in everything_in(tmp_path) if is_the_pools(each[0])]
            assert len(paths) > 15
            modes = {path: stat.S_IMODE(os.lstat(path).st_mode) for path, _ in paths}
            assert modes == {path: FOLDER if is_folder else FILE for path, is_folder in paths}
            if store == "sqlite":
                assert {stat.S_IMODE(os.stat(tmp_path / each).st_mode) for each in ("data", "data/deep")} == {FOLDER}
            assert as_other(lambda: successes(paths, str(theirs))) == []
            assert as_other(lambda: signalled(pool.tree())) == []
            (tmp_path / "gate").touch()
            assert pool.stop() == 0
    finally:
        os.umask(before)


def signalled(pids: list[int]) -> list[str]:
    """The processes that could be sent a signal, or looked into."""
    done = []
    for pid in pids:
        for number in (0, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL):
            try:
                os.kill(pid, number)
            except PermissionError:
                continue
            done.append(f"signal {number} to {pid}")
        for name in ("environ", "fd", "mem"):
            try:
                os.close(os.open(f"/proc/{pid}/{name}", os.O_RDONLY))
            except OSError:
                continue
            done.append(f"/proc/{pid}/{name}")
    return done


# -- places where another user was first


@pytest.fixture
def sticky(tmp_path: Path) -> Path:
    """A folder like /tmp."""
    folder = tmp_path / "sticky"
    folder.mkdir()
    folder.chmod(0o1777)
    let_in(tmp_path)
    return folder


def run(config: Path, *flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, "run", "--burst", str(config), *flags],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        stdin=subprocess.DEVNULL,
        env=os.environ | environment,
    )


def configured(folder: Path, url: str, **tables: str) -> Path:
    (folder / "code").mkdir()
    (folder / "code" / "tasks.py").write_text("def run(job): pass\n")
    (folder / "config.toml").write_text(
        f'[store]\nurl = "{url}"\n[handlers]\npath = ["code"]\n[streams.encode]\nhandler = "tasks:run"\n'
        '[lease]\nttl = "1s"\n' + "".join(f"[{name}]\n{text}\n" for name, text in tables.items())
    )
    return folder / "config.toml"


def sent(url: str) -> None:
    with QueueKit.open(url) as queue:
        queue.submit("encode", SECRET.encode())


@needs_root
def test_a_root_in_a_sticky_folder_is_as_private_as_elsewhere(sticky: Path, theirs: Path) -> None:
    sent(f"dir:{sticky}/spool")
    paths = [(str(sticky / "spool"), True), *everything_in(sticky / "spool")]
    assert as_other(lambda: successes(paths, str(theirs))) == []


@needs_root
@pytest.mark.parametrize("folder", ["tmp", "new", "cur", "done", "claim", "later", ".workerpool", ".workerpool/lease"])
@pytest.mark.parametrize("kind", ["folder", "link"])
def test_folders_of_a_root_that_another_user_made_are_refused(
    sticky: Path, theirs: Path, folder: str, kind: str
) -> None:
    """C71. The root itself is open to all here, with the sticky bit: the worst that is not refused as a whole."""

    def plant() -> None:
        os.makedirs(sticky / os.path.dirname(folder), exist_ok=True)
        os.mkdir(sticky / folder, 0o777) if kind == "folder" else os.symlink(theirs, sticky / folder)

    as_other(plant)
    with pytest.raises(DirectoryCreationFailed) as refusal:
        sent(f"dir:{sticky}")
    if kind == "folder":
        assert f"it belongs to uid {OTHER}, and this is uid 0" in str(refusal.value)
    assert os.listdir(theirs) == []


def test_a_folder_of_a_root_that_others_can_write_is_refused(tmp_path: Path) -> None:
    sent(f"dir:{tmp_path}/spool")
    (tmp_path / "spool" / "new").chmod(0o777)
    with pytest.raises(DirectoryCreationFailed, match=r"others can write it \(mode 0777\): chmod o-w it"):
        sent(f"dir:{tmp_path}/spool")


@needs_root
@pytest.mark.parametrize("kind", ["file", "link", "hard link", "fifo"])
def test_a_planted_lease_neither_stops_the_stream_nor_reaches_a_victim(
    sticky: Path, tmp_path: Path, theirs: Path, kind: str
) -> None:
    """However fresh another user keeps it, it counts as nobody's after a ttl."""
    victim = theirs / "victim"
    victim.write_text("pid-1-theirs\n99999999999.0")
    os.chown(victim, OTHER, OTHER)
    victim.chmod(0o600)
    lease = sticky / "encode.drain.lease"

    def plant() -> None:
        match kind:
            case "file":
                with open(lease, "w") as file:
                    file.write("pid-1-theirs\n99999999999.0")
            case "link":
                os.symlink(victim, lease)
            case "hard link":
                os.link(victim, lease)
            case _:
                os.mkfifo(lease)

    as_other(plant)
    sent(f"dir:{sticky}")
    config = configured(tmp_path, f"dir:{sticky}")
    done = run(config)
    assert done.returncode == 0, done.stderr
    assert len(os.listdir(sticky / "done")) == 2
    assert victim.read_text() == "pid-1-theirs\n99999999999.0"
    assert stat.S_IMODE(victim.stat().st_mode) == 0o600


@needs_root
@pytest.mark.parametrize("kind", ["folder", "link"])
def test_a_pools_folder_that_another_user_made_is_refused(sticky: Path, theirs: Path, kind: str) -> None:
    """Beside a config.toml in a folder like /tmp: there he could say what is paused, and whom `stop` shall kill."""
    config = configured(sticky, f"sqlite:{theirs.parent}/data/jobs.db")
    place = sticky / ".workerpool"
    as_other(lambda: os.mkdir(place, 0o755) if kind == "folder" else os.symlink(theirs, place))
    done = run(config)
    assert done.returncode == 3
    assert f"cannot use {place}: it belongs to uid {OTHER}" in done.stderr
    assert os.listdir(theirs) == []


@needs_root
@pytest.mark.parametrize("name", ["jobs.db", "jobs.db-wal", "jobs.db-shm", "jobs.db-journal"])
def test_a_database_is_not_kept_where_others_can_add_files(sticky: Path, theirs: Path, name: str) -> None:
    """SQLite would replay a journal that another user puts there; and there is no moment at which to look for one."""
    victim = theirs / "victim"
    victim.write_text("untouched")
    as_other(lambda: os.symlink(victim, sticky / name))
    with pytest.raises(BackendUnavailable, match="can be written by others: chmod o-w it, or choose another folder"):
        sent(f"sqlite:{sticky}/jobs.db")
    assert victim.read_text() == "untouched"


@needs_root
def test_another_users_database_is_refused(tmp_path: Path) -> None:
    sent(f"sqlite:{tmp_path}/jobs.db")
    os.chown(tmp_path / "jobs.db", OTHER, OTHER)
    with pytest.raises(BackendUnavailable, match=f"belongs to uid {OTHER} and this is uid 0: one user a queue"):
        sent(f"sqlite:{tmp_path}/jobs.db")


@needs_root
@pytest.mark.parametrize("kind", ["folder", "link", "file"])
def test_a_planted_alive_folder_is_refused_with_a_way_out(
    sticky: Path, theirs: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = sticky / f"queuekit-{os.getuid()}"

    def plant() -> None:
        match kind:
            case "folder":
                os.mkdir(place, 0o700)
            case "link":
                os.symlink(theirs, place)
            case _:
                os.close(os.open(place, os.O_CREAT | os.O_WRONLY))

    as_other(plant)
    monkeypatch.setattr("tempfile.tempdir", str(sticky))
    with pytest.raises(WriteFailed) as refusal:
        alive_folder()
    if kind != "file":
        assert f"of uid {OTHER}, and must be a private folder of uid 0" in str(refusal.value)
        assert "set TMPDIR to a folder of your own" in str(refusal.value)
    assert os.listdir(theirs) == []
    monkeypatch.setattr("tempfile.tempdir", str(sticky.parent))
    assert stat.S_IMODE(os.stat(alive_folder()).st_mode) == FOLDER


@needs_root
@pytest.mark.parametrize("kind", ["file", "link", "hard link", "fifo"])
def test_a_planted_log_file_gets_no_line(sticky: Path, tmp_path: Path, theirs: Path, kind: str) -> None:
    victim = theirs / "victim"
    victim.write_text("untouched")
    os.chown(victim, OTHER, OTHER)
    log = sticky / "pool.log"

    def plant() -> None:
        match kind:
            case "file":
                os.close(os.open(log, os.O_CREAT | os.O_WRONLY, 0o666))
            case "link":
                os.symlink(victim, log)
            case "hard link":
                os.link(victim, log)
            case _:
                os.mkfifo(log)

    as_other(plant)
    config = configured(tmp_path, f"dir:{tmp_path}/spool", log=f'file = "{log}"')
    sent(f"dir:{tmp_path}/spool")
    done = run(config)
    assert done.returncode == 0
    assert f"cannot log to {log}, so here: " in done.stderr
    assert victim.read_text() == "untouched"
    if kind == "file":
        assert log.read_bytes() == b""


# -- code that others could write


def make_open(path: Path) -> None:
    path.chmod(path.stat().st_mode | stat.S_IWOTH)


@pytest.mark.parametrize("what", ["config.toml", "code", "code/tasks.py", "code/helper.py", "."])
@pytest.mark.parametrize("command", ["run --burst", "check", "reload", "replay"])
def test_code_that_others_can_write_is_refused_before_it_runs(tmp_path: Path, what: str, command: str) -> None:
    """Also what the handler imports, and the folder above."""
    config = configured(tmp_path, f"dir:{tmp_path}/spool")
    (tmp_path / "code" / "helper.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\n")
    (tmp_path / "code" / "tasks.py").write_text("import helper\ndef run(job): pass\n")
    with QueueKit.open(f"dir:{tmp_path}/spool") as queue:
        job_id = queue.submit("encode", b"x")
    make_open(tmp_path / what)
    words = [*command.split(), "--config", str(config), *([str(job_id)] if command == "replay" else [])]
    done = subprocess.run(
        [COMMAND, *words], capture_output=True, text=True, check=False, timeout=PATIENCE, stdin=subprocess.DEVNULL
    )
    assert done.returncode != 0, done.stdout
    if command != "reload":  # which says first that no pool runs
        assert "chmod o-w" in done.stderr + done.stdout
    assert not (tmp_path / "imported").exists()
    assert len(os.listdir(tmp_path / "spool" / "done")) == 0


def test_a_reload_does_not_import_what_others_can_write(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate()
    pool = estate.start()
    until(pool.is_working("encode"), "the stream")
    worker = pool.worker_pid()
    (estate.folder / "fresh.py").write_text(f"open({str(estate.folder / 'imported')!r}, 'w')\ndef act(job): pass\n")
    make_open(estate.folder / "fresh.py")
    estate.configure({"encode": {"handler": "fresh:act"}})
    pool.tell(signal.SIGHUP)
    until(lambda: "fresh.py" in pool.log, "the refusal")
    done = estate.send()
    until(estate.finished(done), "a job")
    assert not is_dead(worker)
    assert not (estate.folder / "imported").exists()


@needs_root
def test_a_module_planted_in_a_sticky_folder_is_not_imported(sticky: Path, tmp_path: Path) -> None:
    """A package is found before the module of its name."""
    config = configured(tmp_path, f"dir:{tmp_path}/spool")
    config.write_text(config.read_text().replace('["code"]', f'["{sticky}"]'))
    (sticky / "tasks.py").write_text("def run(job): pass\n")
    sent(f"dir:{tmp_path}/spool")

    def plant() -> None:
        os.mkdir(sticky / "tasks")
        with open(sticky / "tasks" / "__init__.py", "w") as file:
            file.write(f"open({str(tmp_path / 'imported')!r}, 'w')\ndef run(job): pass\n")

    as_other(plant)
    done = run(config)
    assert done.returncode == 2
    assert "so anybody's modules would run here" in done.stderr
    assert not (tmp_path / "imported").exists()


# -- links that lead there, in the owner's own hands


def test_a_root_a_configuration_and_handlers_may_be_behind_links(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    config = configured(real, "dir:../linked-spool")
    config.write_text(config.read_text().replace('["code"]', f'["{tmp_path}/linked-code"]'))
    (real / "spool").mkdir()
    (tmp_path / "linked-spool").symlink_to(real / "spool")
    (tmp_path / "linked-code").symlink_to(real / "code")
    (tmp_path / "linked.toml").symlink_to(config)
    sent(f"dir:{tmp_path}/linked-spool")
    config.write_text(config.read_text().replace("dir:../linked-spool", f"dir:{tmp_path}/linked-spool"))
    done = run(tmp_path / "linked.toml")
    assert done.returncode == 0, done.stderr
    assert len(os.listdir(real / "spool" / "done")) == 2


def test_no_file_of_a_root_is_written_or_read_through_a_link(tmp_path: Path) -> None:
    """C71: every file that a used root has, replaced by a link to a victim; nothing of it turns up anywhere."""
    url = f"dir:{tmp_path}/spool"
    config = configured(tmp_path, url, log=f'file = "{tmp_path}/pool.log"')
    sent(url)
    assert run(config).returncode == 0
    sent(url)
    victim = tmp_path / "victim"
    victim.write_text("untouched-victim")
    victim.chmod(0o640)
    root = tmp_path / "spool"
    names = [path for path, is_folder in everything_in(root) if not is_folder]
    assert len(names) >= 6
    seldom = (str(root / ".workerpool" / name) for name in ("latency", "reserve", "lease/encode.fence.tmp"))
    for path in [*names, *seldom]:
        Path(path).unlink(missing_ok=True)
        Path(path).symlink_to(victim)
    done = run(config)
    assert "Traceback" not in done.stderr
    assert victim.read_text() == "untouched-victim"
    assert stat.S_IMODE(victim.stat().st_mode) == 0o640
    told = [done.stdout, done.stderr, *(each.read_text(errors="replace") for each in root.rglob("*") if is_plain(each))]
    assert not any("untouched-victim" in text for text in told)


def is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


# -- passwords


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows a command line that can be changed")
def test_ps_shows_no_password() -> None:
    """After the first instant, in which the interpreter starts."""
    url = "postgresql://me:hunter2@192.0.2.1:5432/db?sslpassword=hunter3"  # an address that never answers
    process = subprocess.Popen([COMMAND, "status", "--store", url], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        line = Path(f"/proc/{process.pid}/cmdline")
        until(lambda: b"***" in line.read_bytes() or process.poll() is not None, "the new title")
        if process.poll() is None:
            assert b"hunter" not in line.read_bytes()
    finally:
        process.kill()
        told, _ = process.communicate(timeout=PATIENCE)
    assert b"hunter" not in told
