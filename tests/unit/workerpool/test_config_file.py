"""Each test writes a config.toml as a person would get it wrong, and reads the lines that they would get."""

import os
import stat
import textwrap
import tomllib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workerpool.config import Durability, LogFormat, LogLevel
from workerpool.config_file import load_config
from workerpool.errors import ConfigError
from workerpool.trust import why_unsafe

GOOD = """
[streams.encode]
handler = "handlers:encode"
"""


@pytest.fixture
def folder(tmp_path):
    os.chmod(tmp_path, 0o700)
    return tmp_path


@pytest.fixture
def load(folder, monkeypatch):
    """Reads a text as `config.toml` in the current folder."""
    monkeypatch.chdir(folder)

    def read(text, *, environ=None, **more):
        path = folder / "config.toml"
        path.write_text(textwrap.dedent(text))
        path.chmod(0o600)
        return load_config("config.toml", environ=environ or {}, **more)

    return read


@pytest.fixture
def lines(load):
    """The lines of the refusal of a text."""

    def read(text, **more):
        with pytest.raises(ConfigError) as refusal:
            load(text, **more)
        return str(refusal.value).splitlines()

    return read


# -- a good file


def test_the_smallest_file_gets_every_default(load, folder):
    config = load(GOOD)
    stream = config.streams[0]
    assert config.path == str(folder / "config.toml")
    assert config.base == str(folder)
    assert config.store.url == f"dir:{folder}/spool"
    assert config.store.durability is Durability.FULL
    assert config.store.max_job_bytes == 64 * 2**20
    assert config.handlers.path == (str(folder),)
    assert (stream.name, stream.handler, stream.workers, stream.batch_size) == ("encode", "handlers:encode", 1, 1)
    assert (stream.batch_wait, stream.timeout, stream.soft_timeout) == (0, 0, 0)
    assert (stream.retries, stream.backoff, stream.max_backoff, stream.max_crashes) == (3, 1, 300, 2)
    assert (stream.max_jobs, stream.max_memory, stream.exclusive) == (0, 0, True)
    assert (config.lease.ttl, config.watch.poll, config.watch.scan) == (15, 0.2, 30)
    assert (config.shutdown.soft, config.shutdown.hard) == (20, 25)
    assert (config.retention.done, config.retention.blocked) == (0, 0)
    assert (config.telemetry.hooks, config.telemetry.interval) == (("log",), 30)
    assert (config.http.listen, config.log.file) == ("", "")
    assert (config.log.format, config.log.level) == (LogFormat.AUTO, LogLevel.INFO)


def test_a_stream_inherits_what_it_does_not_set(load):
    config = load(
        """
        [defaults]
        workers = 4
        retries = 9
        [streams.a]
        handler = "h:a"
        [streams.b]
        handler = "h:b"
        workers = 0
        """
    )
    assert [(stream.name, stream.workers, stream.retries) for stream in config.streams] == [("a", 4, 9), ("b", 0, 9)]


@pytest.mark.parametrize(
    ("keys", "effective"),
    [('timeout = "10s"', 9), ('timeout = "10s"\nsoft_timeout = "4s"', 4), ('soft_timeout = "4s"', 4), ("", 0)],
)
def test_the_soft_timeout_in_effect(load, keys, effective):
    assert load(GOOD + keys).streams[0].soft_timeout == pytest.approx(effective)


@pytest.mark.parametrize(
    ("url", "resolved"),
    [
        ("dir:./spool", "dir:{folder}/spool"),
        ("jobs", "dir:{folder}/jobs"),
        ("../jobs", "dir:{parent}/jobs"),
        ("dir:/var/spool/x", "dir:/var/spool/x"),
        ("sqlite:jobs.db", "sqlite:{folder}/jobs.db"),
        ("sqlite:///var/jobs.db", "sqlite:/var/jobs.db"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
    ],
)
def test_a_store_is_found_relative_to_the_file(load, folder, url, resolved):
    config = load(GOOD + f'[store]\nurl = "{url}"')
    assert config.store.url == resolved.format(folder=folder, parent=folder.parent)


def test_paths_are_relative_to_the_file_not_to_the_current_folder(folder, monkeypatch):
    (folder / "deep").mkdir(mode=0o700)
    (folder / "deep" / "jobs").mkdir(mode=0o700)
    (folder / "deep" / "config.toml").write_text(GOOD + '[handlers]\npath = ["jobs"]\n[log]\nfile = "pool.log"')
    monkeypatch.chdir(folder)
    config = load_config("deep/config.toml", environ={})
    assert config.handlers.path == (f"{folder}/deep/jobs",)
    assert config.log.file == f"{folder}/deep/pool.log"


def test_a_mapping_is_judged_like_a_file(folder):
    with pytest.raises(ConfigError) as refusal:
        load_config({"streams": {"a": {"handlr": "h:a"}}}, environ={}, base=folder)
    assert str(refusal.value) == "config: streams.a.handlr: unknown key, did you mean 'handler'?"
    config = load_config({"streams": {"a": {"handler": "h:a"}}, "handlers": {"path": (".",)}}, environ={}, base=folder)
    assert config.path is None
    assert config.store.url == f"dir:{folder}/spool"


def test_sending_needs_no_streams(load):
    assert load("", streams_required=False).streams == ()


# -- one mistake, one line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("timout = 5", "config.toml:4: streams.encode.timout: unknown key, did you mean 'timeout'?"),
        ("max-jobs = 5", "config.toml:4: streams.encode.max-jobs: unknown key, did you mean 'max_jobs'?"),
        (
            '[streem.mail]\nhandler = "h:m"',
            "config.toml:4: streem: unknown table 'streem', did you mean 'streams'?",
        ),
        ('[lease]\nsoft = "5s"', "config.toml:5: lease.soft: does not belong here, but into [shutdown]"),
        (
            "[store]\nworkers = 2",
            "config.toml:5: store.workers: does not belong here, but into [defaults] or [streams.NAME]",
        ),
        (
            '[defaults]\nhandler = "h:m"',
            "config.toml:5: defaults.handler: does not belong here, but into [streams.NAME]",
        ),
        ('[lease]\nttl = "5"', 'config.toml:5: lease.ttl: "5" has no unit: write e.g. "5s"'),
        ("[lease]\nttl = 5", 'config.toml:5: lease.ttl: must be text with a unit, e.g. "5s", not 5'),
        ("[lease]\nttl = true", 'config.toml:5: lease.ttl: must be text with a unit, e.g. "5s", not true'),
        ("[lease]\nttl = -1", 'config.toml:5: lease.ttl: must be text with a unit, e.g. "5s", not -1'),
        ('[lease]\nttl = "-1s"', 'config.toml:5: lease.ttl: "-1s" must not be negative'),
        ('[lease]\nttl = "10ms"', "config.toml:5: lease.ttl: must be at least 1s"),
        (
            "[store]\nmax_job_bytes = 5",
            'config.toml:5: store.max_job_bytes: must be text with a unit, e.g. "5MiB", not 5',
        ),
        ("workers = true", "config.toml:4: streams.encode.workers: must be a whole number, not true"),
        ("workers = 2.0", "config.toml:4: streams.encode.workers: must be a whole number, not 2.0"),
        ("workers = -1", "config.toml:4: streams.encode.workers: must be at least 0"),
        ("batch_size = 0", "config.toml:4: streams.encode.batch_size: must be at least 1"),
        ("exclusive = 1", "config.toml:4: streams.encode.exclusive: must be true or false, not 1"),
        (
            "exclusive = false",
            "config.toml:4: streams.encode.exclusive: false needs a postgresql: store; "
            "on others a stream has one consumer",
        ),
        (
            'timeout = "5s"\nsoft_timeout = "6s"',
            "config.toml:5: streams.encode.soft_timeout: soft_timeout (6s) is longer than timeout (5s)",
        ),
        (
            'backoff = "10m"',
            "config.toml:4: streams.encode.backoff: max_backoff (5m) is shorter than backoff (10m)",
        ),
        (
            '[shutdown]\nhard = "10s"',
            "config.toml:5: shutdown.hard: hard (10s) is shorter than soft (20s)",
        ),
        ('[shutdown]\nsoft = "1m"', "config.toml:5: shutdown.soft: hard (25s) is shorter than soft (1m)"),
        ('[shutdown]\nhrad = "10s"', "config.toml:5: shutdown.hrad: unknown key, did you mean 'hard'?"),
        (
            '[store]\ndurability = "ful"',
            "config.toml:5: store.durability: must be 'full', 'batch' or 'none', not 'ful', did you mean 'full'?",
        ),
        ('[store]\nurl = "sqlit:x"', "config.toml:5: store.url: unknown store 'sqlit:', did you mean 'sqlite'?"),
        (
            '[store]\nurl = "postgres://h/d"',
            "config.toml:5: store.url: unknown store 'postgres:', did you mean 'postgresql'?",
        ),
        ('[store]\nurl = ""', "config.toml:5: store.url: must name the store, e.g. dir:./spool"),
        ('[store]\nurl = "dir://spool"', "config.toml:5: store.url: write dir:PATH, without a host"),
        (
            '[store]\nurl = "sqlite::memory:"',
            "config.toml:5: store.url: an SQLite store must be a file: processes cannot share one in memory",
        ),
        ('[store]\nestate = ""', "config.toml:5: store.estate: must not be empty"),
        (
            '[telemetry]\nhooks = ["log", "promtheus"]',
            "config.toml:5: telemetry.hooks[1]: unknown hook 'promtheus', did you mean 'prometheus'?",
        ),
        ('[telemetry]\nhooks = "log"', "config.toml:5: telemetry.hooks: must be a list, not 'log'"),
        (
            '[http]\nlisten = ":9191"',
            'config.toml:5: http.listen: must be "host:port", e.g. "127.0.0.1:9191" '
            "(every address: \"0.0.0.0:9191\"), not ':9191'",
        ),
        (
            '[log]\nlevel = "inof"',
            "config.toml:5: log.level: must be 'debug', 'info', 'warning', 'error' or 'critical', not 'inof', "
            "did you mean 'info'?",
        ),
        (
            '[streams.b]\nhandler = "nosuch"',
            """config.toml:5: streams.b.handler: must be "package.module:callable", not 'nosuch'""",
        ),
        (
            '[streams.b]\nhandler = "a b:c"',
            """config.toml:5: streams.b.handler: must be "package.module:callable", not 'a b:c'""",
        ),
        ("[streams.b]", 'config.toml:4: streams.b.handler: is missing: name it as "package.module:callable"'),
        ('[streams.b]\nhandlr = "h:b"', "config.toml:5: streams.b.handlr: unknown key, did you mean 'handler'?"),
        (
            '[streams.b.c]\nhandler = "h:b"',
            'config.toml:4: streams.b.c: a stream holds no tables; a name with a dot is quoted: [streams."b.c"]',
        ),
        (
            '[streams.b]\nhandler = "h:b"\n[streams.b.lease]\nttl = "1s"',
            "config.toml:6: streams.b.lease: stands in another table: it is written [lease]",
        ),
        ('[streams."a/b"]\nhandler = "h:b"', 'config.toml:4: streams."a/b": cannot name a stream: path separator'),
        (
            '[streams."x.signal"]\nhandler = "h:b"',
            'config.toml:4: streams."x.signal": a stream\'s name cannot end in .signal, which marks how a job ended',
        ),
        (
            f'[streams.{"x" * 153}]\nhandler = "h:b"',
            f"config.toml:4: streams.{'x' * 153}: a stream's name takes at most 152 bytes",
        ),
        ('[mail]\nhandler = "h:m"', "config.toml:4: mail: unknown table 'mail', did you mean [streams.mail]?"),
    ],
)
def test_one_mistake_is_one_line(lines, text, line):
    """C12: refused before anything is started, with file, line, table and key; `send` and `run` read it alike."""
    assert lines(GOOD + text) == [line]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 'config.toml: streams: no stream is configured: add [streams.NAME] with handler = "module:callable"'),
        ('[streem.mail]\nhandler = "h:m"', "config.toml:1: streem: unknown table 'streem', did you mean 'streams'?"),
        ('[mail]\nhandler = "h:m"', "config.toml:1: mail: unknown table 'mail', did you mean [streams.mail]?"),
        ("streams = 3", "config.toml:1: streams: must be a table of streams, each written as [streams.NAME]"),
        ("[[streams]]\nx=1", "config.toml:1: streams: must be a table of streams, each written as [streams.NAME]"),
        ("[streams]\nmail = 3", "config.toml:2: streams.mail: must be a table, [streams.mail], not 3"),
        (
            'url = "x"' + GOOD,
            "config.toml:1: url: stands outside of its table: it belongs into [store]",
        ),
        ('lease = "15s"' + GOOD, "config.toml:1: lease: must be a table, [lease], not '15s'"),
        ("[streams.a\n", "config.toml:1: is not valid TOML: "),
        ("a = 1\na = 2\n", "config.toml:2: is not valid TOML: "),
        ("a = " + "[" * 9000, "config.toml: nests too deeply"),
    ],
)
def test_a_mistake_in_the_shape_is_one_line(lines, text, line):
    """C12: tables that are misspelt or misplaced."""
    found = lines(text)
    assert len(found) == 1
    assert found[0].startswith(line)


def test_streams_that_would_share_a_lease_file_are_refused_together(lines):
    """C12."""
    found = lines('[streams."a.b"]\nhandler = "h:a"\n[streams.a_b]\nhandler = "h:b"\n')
    assert found == ['config.toml:3: streams.a_b: has the same lease file as stream "a.b" (a_b): rename one']


def test_a_mistake_in_the_defaults_is_told_once_for_all_streams(lines):
    found = lines(
        """
        [defaults]
        timeout = "5s"
        soft_timeout = "6s"
        retires = 3
        [streams.a]
        handler = "h:a"
        [streams.b]
        handler = "h:b"
        """
    )
    assert found == [
        "config.toml:4: defaults.soft_timeout: soft_timeout (6s) is longer than timeout (5s)",
        "config.toml:5: defaults.retires: unknown key, did you mean 'retries'?",
    ]


def test_seven_mistakes_are_seven_lines_in_the_order_of_the_file(lines):
    found = lines(
        """
        [store]
        durability = "ful"

        [streams.encode]
        handlr = "handlers:encode"
        timout = "5s"
        workers = "2"

        [lease]
        ttl = 15
        soft = "20s"

        [streem.dreaming]
        handler = "handlers:dream"
        """
    )
    assert [line.partition(" ")[0] for line in found] == [f"config.toml:{n}:" for n in (3, 6, 7, 8, 11, 12, 14)]
    assert [line.split(": ")[1] for line in found] == [
        "store.durability",
        "streams.encode.handlr",
        "streams.encode.timout",
        "streams.encode.workers",
        "lease.ttl",
        "lease.soft",
        "streem",
    ]


# -- environment and flags


def test_a_flag_beats_the_environment_beats_the_file_beats_the_default(load):
    text = GOOD + '[lease]\nttl = "2s"\n[watch]\nscan = "2s"\n[log]\nlevel = "error"'
    environ = {"WORKERPOOL_LEASE_TTL": "3s", "WORKERPOOL_WATCH_SCAN": "3s"}
    config = load(text, environ=environ, overrides={"lease.ttl": "4s"})
    assert (config.lease.ttl, config.watch.scan, config.log.level, config.watch.poll) == (4, 3, LogLevel.ERROR, 0.2)


def test_the_environment_gives_numbers_truth_values_and_lists(load):
    environ = {
        "WORKERPOOL_DEFAULTS_WORKERS": "7",
        "WORKERPOOL_DEFAULTS_EXCLUSIVE": "false",
        "WORKERPOOL_STORE_URL": "postgresql://h/d",
        "WORKERPOOL_TELEMETRY_HOOKS": "log, prometheus",
        "WORKERPOOL_STREAMS_ENCODE_RETRIES": "0",
        "WORKERPOOL_CONFIG": "elsewhere.toml",
        "PATH": "/bin",
    }
    config = load(GOOD, environ=environ)
    stream = config.streams[0]
    assert (stream.workers, stream.exclusive, stream.retries) == (7, False, 0)
    assert config.telemetry.hooks == ("log", "prometheus")


def test_a_path_from_outside_is_relative_to_the_current_folder(folder, monkeypatch):
    (folder / "deep").mkdir(mode=0o700)
    (folder / "deep" / "config.toml").write_text(GOOD)
    monkeypatch.chdir(folder)
    config = load_config("deep/config.toml", environ={"WORKERPOOL_LOG_FILE": "x.log"}, overrides={"store.url": "jobs"})
    assert config.log.file == f"{folder}/x.log"
    assert config.store.url == f"dir:{folder}/jobs"


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("WORKERPOOL_LEASE_TTL", "5", '"5" has no unit: write e.g. "5s"'),
        ("WORKERPOOL_LEASE_TLL", "5s", "unknown variable, did you mean 'WORKERPOOL_LEASE_TTL'?"),
        ("WORKERPOOL_STROE_URL", "x", "unknown variable, did you mean 'WORKERPOOL_STORE_URL'?"),
        ("WORKERPOOL_DEFAULTS_WORKERS", "two", "must be a whole number, not 'two'"),
        ("WORKERPOOL_DEFAULTS_EXCLUSIVE", "maybe", "must be true or false, not 'maybe'"),
        ("WORKERPOOL_STREAMS_NOSUCH_RETRIES", "1", "unknown variable"),
    ],
)
def test_a_wrong_variable_is_one_line_that_names_it(lines, name, value, line):
    found = lines(GOOD, environ={name: value})
    assert len(found) == 1
    assert found[0].startswith(f"environment: {name}: {line}")


def test_variables_of_a_container_platform_are_no_mistakes(load):
    names = ("WORKERPOOL_HTTP_SERVICE_HOST", "WORKERPOOL_HTTP_PORT", "WORKERPOOL_LOG_PORT_80_TCP", "WORKERPOOL_HOME")
    assert load(GOOD, environ=dict.fromkeys(names, "x")).streams


def test_a_variable_that_may_mean_two_streams_is_refused(lines):
    text = '[streams.a-b]\nhandler = "h:a"\n[streams."a b"]\nhandler = "h:b"\n'
    assert lines(text, environ={"WORKERPOOL_STREAMS_A_B_WORKERS": "1"}) == [
        'environment: WORKERPOOL_STREAMS_A_B_WORKERS: may mean streams.a-b.workers or streams."a b".workers: '
        "set it in the file"
    ]


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("lease.tll", "unknown key, did you mean 'ttl'?"),
        ("leese.ttl", "unknown table 'leese', did you mean 'lease'?"),
        ("streams.nosuch.workers", "there is no such stream in the configuration"),
    ],
)
def test_a_wrong_flag_is_one_line_that_names_it(lines, key, line):
    assert lines(GOOD, overrides={key: "5s"}) == [f"command line: {key}: {line}"]


def test_a_flag_reaches_a_stream_with_dots_in_its_name(load):
    config = load('[streams."a.b"]\nhandler = "h:a"', overrides={"streams.a.b.workers": "3"})
    assert config.streams[0].workers == 3


# -- files that cannot be used


def test_a_missing_file_is_one_clear_line(folder):
    with pytest.raises(ConfigError) as refusal:
        load_config(folder / "nosuch.toml", environ={})
    assert str(refusal.value) == f"{folder}/nosuch.toml: there is no such file (`workerpool init DIR` writes one)"


def test_a_folder_a_pipe_and_a_huge_file_are_refused_without_reading_them(folder):
    os.mkfifo(folder / "pipe")
    (folder / "huge").touch()
    os.truncate(folder / "huge", 2**30)
    for name, reason in [("", "is a folder"), ("pipe", "is not a regular file"), ("huge", "is over 1 MiB large")]:
        with pytest.raises(ConfigError, match=reason):
            load_config(folder / name, environ={})


def test_a_file_that_is_not_utf_8_is_refused_with_its_line(folder):
    (folder / "config.toml").write_bytes(b"# fine\n# caf\xe9\n")
    with pytest.raises(ConfigError, match=r"config\.toml:2: is not UTF-8 text"):
        load_config(folder / "config.toml", environ={})


def test_a_byte_order_mark_and_other_line_ends_do_no_harm(folder):
    (folder / "config.toml").write_bytes(b"\xef\xbb\xbf\r\n[streams.a]\r\nhandlr = 'h:a'\r\n")
    with pytest.raises(ConfigError, match=r"config\.toml:3: streams\.a\.handlr"):
        load_config(folder / "config.toml", environ={})


def test_a_file_that_others_can_write_is_refused(load, folder):
    load(GOOD)
    (folder / "config.toml").chmod(0o666)
    with pytest.raises(ConfigError) as refusal:
        load_config("config.toml", environ={})
    assert str(refusal.value) == "config.toml: can be written by every user (mode 0666): chmod o-w it"


def test_a_folder_that_others_can_write_is_refused_unless_sticky(load, folder):
    folder.chmod(0o777)
    with pytest.raises(ConfigError) as refusal:
        load(GOOD)
    assert str(refusal.value) == (
        f"config.toml: its folder {folder} can be written by every user (mode 0777): chmod o-w it"
    )
    folder.chmod(0o1777)
    (folder / "code").mkdir()
    assert load(GOOD + '[handlers]\npath = ["code"]').streams


def test_code_is_not_imported_from_a_folder_that_others_can_add_to(load, folder):
    """`tasks/` would be found before `tasks.py`, and `json.py` before Python's own."""
    folder.chmod(0o1777)
    with pytest.raises(
        ConfigError, match=r"path\[0\]: .* can be written by every user \(mode 1777\), so anybody's mod"
    ):
        load(GOOD)


def test_a_linked_file_is_only_as_safe_as_the_folder_it_is_in(folder):
    (folder / "open").mkdir()
    (folder / "open").chmod(0o777)
    (folder / "open" / "real.toml").write_text(GOOD)
    (folder / "config.toml").symlink_to("open/real.toml")
    with pytest.raises(ConfigError, match=r"open can be written by every user"):
        load_config(folder / "config.toml", environ={})


ME, ROOT, OTHER = os.geteuid(), 0, os.geteuid() + 1


@pytest.mark.parametrize(
    ("mode", "uid", "reason"),
    [
        (stat.S_IFREG | 0o600, ME, None),
        (stat.S_IFREG | 0o664, ROOT, None),
        (stat.S_IFDIR | 0o1777, ROOT, None),
        (stat.S_IFREG | 0o600, OTHER, "belongs to another user"),
        (stat.S_IFDIR | 0o1777, OTHER, "belongs to another user"),
        (stat.S_IFREG | 0o602, ME, "can be written by every user"),
        (stat.S_IFREG | 0o1602, ME, "can be written by every user"),
        (stat.S_IFDIR | 0o777, ROOT, "can be written by every user"),
    ],
)
def test_who_could_change_what_is_run(mode, uid, reason):
    found = why_unsafe(os.stat_result((mode, 0, 0, 1, uid, 0, 0, 0, 0, 0)))
    assert (found is None) if reason is None else found.startswith(reason)


def test_folders_of_handlers_must_exist_and_be_closed_to_others(lines, folder):
    (folder / "open").mkdir()
    (folder / "open").chmod(0o777)
    assert lines(GOOD + '[handlers]\npath = [".", "nosuch", "open", "config.toml"]') == [
        f"config.toml:5: handlers.path[1]: {folder}/nosuch cannot be used: No such file or directory",
        f"config.toml:5: handlers.path[2]: {folder}/open can be written by every user (mode 0777): chmod o-w it",
        f"config.toml:5: handlers.path[3]: {folder}/config.toml is not a folder",
    ]


# -- hostile content

WORDS = [
    *("store", "streams", "lease", "defaults", "handlers", "url", "ttl", "handler", "path", "workers", "timeout", "x"),
    *("[", "]", "[[", "]]", "{", "}", "=", ".", ",", "#", "\n", '"', "'", '"""', "'''", "\\", " ", "\0", "é", "\ud7ff"),
    *("1", "-1", "1e999", "nan", "true", "2020-01-01", '"5s"', '"h:f"', "9" * 30, '"dir:x"', "[streams.a]\n"),
]


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(WORDS), max_size=25).map("".join))
def test_any_text_is_accepted_or_refused_in_words(folder, text):
    path = folder / "config.toml"
    path.write_bytes(text.encode())
    try:
        config = load_config(path, environ={})
    except ConfigError as refusal:
        message = str(refusal)
    else:
        message = None
        assert {stream.name for stream in config.streams} == set(tomllib.loads(text)["streams"])
    assert message is None or all(line.startswith(str(path)) for line in message.splitlines())


trees = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), st.just("h:f")),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(WORDS[:12]) | st.text(), inner, max_size=4)
    ),
    max_leaves=8,
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(WORDS[:5]) | st.text(), trees, max_size=5))
def test_any_mapping_is_accepted_or_refused_in_words(folder, content):
    try:
        config = load_config(content, environ={}, base=folder)
    except ConfigError as refusal:
        message = str(refusal)
    else:
        message = None
        assert config.streams
    assert message is None or message.startswith("config: ")
