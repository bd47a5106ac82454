"""The log of a pool's processes: one line per record, whole, from any process, to standard error or one shared file.

`configure` is called in each process after its fork, with the name that the lines carry. Text looks like

    2026-11-30 14:05:44 info encode-1 hello, world

with `job ID:` before the message where the record has a `job_id`, as those of `ctx.logger` do (what comes before it
names the stream). JSON has the keys `time` (UTC), `level`, `process`, `pid`, `logger`, `message`, the record's extras,
and `exception`. A record is written by one `os.write` to a descriptor in append mode, without a buffer that a fork
could double or a lock that it could leave locked. So the lines of many processes do not tear each other; only into a
pipe or a socket the system writes no more than 4096 bytes in one piece, and what is longer may be mixed with others'.
What was logged cannot forge a line: control characters are escaped, and the lines of a traceback are indented. Of a
text over 16,000 characters the middle is left out, and said.

The file is opened with mode 0600, never through a link, and opened anew whenever its path leads to another file (a log
rotation needs no signal) or the descriptor is not the file any more (it is parked in a forked child). It must be this
user's or root's, with no second name: in /tmp another user may have put it there. When it cannot be written, lines go
to standard error. Logging never raises into whoever logs.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import logging
import os
import stat
import time
from typing import Any

from workerpool.config import LogConfig, LogFormat

_OPEN = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_RETRY_SECONDS = 1.0
_STDERR = 2
_LONGEST_TEXT = 16_000  # characters of one text of a record
_LONGEST_RECORD = 8 * _LONGEST_TEXT
_OWN_KEYS = 8  # those that every JSON line begins with, and the exception's


def configure(config: LogConfig, process_name: str) -> None:
    """Send everything that this process logs to where `config` says, under `process_name`.

    Replaces what an earlier call set up, here or in the parent. A file that cannot be opened is complained about on
    standard error, and tried again while lines are written.
    """
    handler = LineHandler(config.file)
    handler.setFormatter(_formatter(config, process_name))
    root = logging.getLogger()
    for old in [each for each in root.handlers if isinstance(each, LineHandler)]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(config.level.value.upper())
    logging.captureWarnings(True)


def settled(config: LogConfig) -> LogConfig:
    """The same with `auto` decided by this process's standard error: for a child whose own is a pipe to it."""
    return config if config.format is not LogFormat.AUTO else dataclasses.replace(config, format=_form(config))


def reopen() -> None:
    """Open the log file anew with the next line."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, LineHandler):
            handler.reopen()


def announce(logger: logging.Logger, text: str) -> None:
    """Log a warning that answers somebody: a terminal gets it also when the log goes elsewhere, or leaves it out."""
    logger.warning("%s", text)
    if os.isatty(_STDERR) and not (logger.isEnabledFor(logging.WARNING) and _is_logged_to_stderr()):
        _write(_STDERR, f"{one_line(text)}\n".encode(errors="backslashreplace"))


def _is_logged_to_stderr() -> bool:
    return any(isinstance(each, LineHandler) and each.is_stderr for each in logging.getLogger().handlers)


def one_line(text: str) -> str:
    """`text` with everything that is not printable escaped: line ends, terminal sequences, lone surrogates."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def shortened(text: str, limit: int = _LONGEST_TEXT) -> str:
    """At most about `limit` characters of a text: its beginning and its end, and how much is left out between them."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} …{len(text) - 2 * half} characters left out… {text[-half:]}"


class LineHandler(logging.Handler):
    """Writes each record as one piece. `path`: the file; "" = standard error."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._file = _File(path) if path else None

    @property
    def is_stderr(self) -> bool:
        """Whether it writes to standard error, and to no file."""
        return self._file is None

    def emit(self, record: logging.LogRecord) -> None:
        """Write it; whatever goes wrong is said in the line itself, or lost."""
        try:
            line = self.format(record)
        except Exception as error:  # noqa: BLE001  arguments that do not fit the text must not hurt who logs them
            line = self._format_bare(record, error)
        data = f"{line}\n".encode(errors="backslashreplace")
        if self._file is None or not self._file.write(data):
            _write(_STDERR, data)

    def _format_bare(self, record: logging.LogRecord, error: Exception) -> str:
        """The line of a record that cannot be formatted as it is: its bare text, and why."""
        facts = {"name": record.name, "levelname": record.levelname, "levelno": record.levelno}
        text = f"{record.msg if isinstance(record.msg, str) else type(record.msg).__name__} (not complete: {error!r})"
        return self.format(logging.makeLogRecord(facts | {"msg": text, "created": record.created}))

    def reopen(self) -> None:
        """Open the file anew with the next line."""
        if self._file is not None:
            self._file.close()

    def close(self) -> None:
        """Close the file."""
        self.reopen()
        super().close()


class _File:
    """A log file by its path: always the file that is there now."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1
        self._facts: os.stat_result | None = None
        self._not_before = 0.0

    def write(self, data: bytes) -> bool:
        """Append; whether that worked."""
        try:
            if not self._is_current():
                self.close()
                if not self._open():
                    return False
        except OSError:
            return False
        return _write(self._fd, data)

    def close(self) -> None:
        """Close the descriptor, unless it has become something else (parked after a fork, or used again)."""
        fd, facts, self._fd, self._facts = self._fd, self._facts, -1, None
        try:
            if fd >= 0 and facts is not None and os.path.samestat(os.fstat(fd), facts):
                os.close(fd)
        except OSError:  # it is closed already
            return

    def _is_current(self) -> bool:
        if self._fd < 0:
            return False
        try:
            return os.path.samestat(os.fstat(self._fd), os.stat(self._path, follow_symlinks=False))
        except OSError:
            return False

    def _open(self) -> bool:
        """Open the file; a failure is said once, and the next try waits a second."""
        now = time.monotonic()
        if now < self._not_before:
            return False
        try:
            self._fd = os.open(self._path, _OPEN, 0o600)
            self._facts = os.fstat(self._fd)
            reason = why_unfit(self._facts)
            if not reason:
                self._not_before = 0.0
                return True
        except OSError as error:
            reason = error.strerror or str(error)
        if not self._not_before:
            _write(_STDERR, f"cannot log to {one_line(self._path)}, so here: {reason}\n".encode())
        self.close()
        self._not_before = now + _RETRY_SECONDS
        return False


def why_unfit(facts: os.stat_result) -> str:
    """Why nothing is to be written to an open file; "" when it may be."""
    if not stat.S_ISREG(facts.st_mode):
        return "not a regular file"
    if facts.st_uid not in {os.geteuid(), 0}:
        return f"it belongs to uid {facts.st_uid}"
    return "it has a second name, and may be another file" if facts.st_nlink > 1 else ""


def _write(fd: int, data: bytes) -> bool:
    """One write; what a short one left over follows at once, or the next line would be glued to it."""
    try:
        written = os.write(fd, data)
        while written < len(data):
            written += os.write(fd, data[written:])
    except OSError:  # nobody reads, or the disk is full: a log line is not worth a process
        return False
    return True


# -- what a line looks like


def _formatter(config: LogConfig, process_name: str) -> logging.Formatter:
    return _TextFormatter(process_name) if _form(config) is LogFormat.TEXT else _json_formatter(process_name)


def _form(config: LogConfig) -> LogFormat:
    if config.format is not LogFormat.AUTO:
        return config.format
    return LogFormat.TEXT if not config.file and os.isatty(_STDERR) else LogFormat.JSON


class _TextFormatter(logging.Formatter):
    """`YYYY-MM-DD HH:MM:SS level process message`; a traceback follows, each of its lines indented."""

    def __init__(self, process_name: str) -> None:
        super().__init__()
        self._process = one_line(process_name)

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        job = record.__dict__.get("job_id")
        about = f"job {one_line(shortened(str(job), 500))}: " if job else ""
        message = one_line(shortened(record.getMessage()))
        lines = [f"{clock} {record.levelname.lower()} {self._process} {about}{message}"]
        told = [self.formatException(record.exc_info)] if record.exc_info else []
        told += [record.stack_info] if record.stack_info else []
        return "\n".join(lines + [f"    {one_line(line)}" for text in told for line in shortened(text).split("\n")])


def _json_formatter(process_name: str) -> logging.Formatter:
    from pythonjsonlogger.json import JsonFormatter

    class Lines(JsonFormatter):
        def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802
            moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
            return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

        def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
            first = {"time": log_data.pop("time"), "level": log_data.pop("level").lower(), "process": process_name}
            return first | {"pid": log_data.pop("pid")} | log_data

    names = {
        "asctime": "time",
        "levelname": "level",
        "process": "pid",
        "name": "logger",
        "exc_info": "exception",
        "stack_info": "stack",
    }
    return Lines(
        "%(asctime)s %(levelname)s %(process)d %(name)s %(message)s",
        rename_fields=names,
        json_serializer=_serialize,
    )


def _serialize(values: dict[str, Any], **options: Any) -> str:
    """JSON that every reader takes: extras that JSON does not have (NaN, any object, odd keys) as text.

    So are extras that are too large, and what is too much even then is left out.
    """
    short = {key: shortened(value) if isinstance(value, str) else value for key, value in values.items()}
    try:
        line = json.dumps(short, allow_nan=False, **options)
    except (ValueError, TypeError, RecursionError):
        line = ""
    if not 0 < len(line) <= _LONGEST_RECORD:
        line = json.dumps({shortened(str(key), 200): _plain(value) for key, value in short.items()})
    if len(line) > 2 * _LONGEST_RECORD:
        line = json.dumps({str(key): _plain(value) for key, value in list(short.items())[:_OWN_KEYS]})
    return line.replace("\x7f", "\\u007f")


def _plain(value: object) -> str | int:
    """As it is, or as text."""
    return value if isinstance(value, str) or (isinstance(value, int) and -(2**63) <= value < 2**63) else _text(value)


def _text(value: object) -> str:
    try:
        return shortened(repr(value))
    except Exception as error:  # noqa: BLE001  what cannot say what it is must not hurt who logs it
        return f"a {type(value).__name__} that cannot be shown: {type(error).__name__}"
