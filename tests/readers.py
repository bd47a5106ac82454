"""What is read from disk, one reader for each kind of file: how strangers' bytes reach the decoders.

`readers(folder)` gives for each kind a function `read(data) -> bool`: True when the data was read, False when it was
refused with the documented error. Any other exception is a fault. What can be read is also counted, named and written
again, as a retry, a listing or `status` does. `folder`: a private one, for kinds that are read from a path.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable
from pathlib import Path

from queuekit.backends.maildir import layout
from queuekit.completion import SignalFile
from queuekit.contract import JobView
from queuekit.errors import DecodingFailed
from queuekit.hlc import HLC
from queuekit.job import Delivery
from queuekit.lease import Record, judge
from queuekit.lifecycle import State
from queuekit.locks import Life
from queuekit.status import ObservationStatus
from queuekit.testing.jobs import make_job
from queuekit.wire import decode_artifacts, decode_extensions, decode_job, decode_signal, encode_job, encode_signal
from workerpool import pauses
from workerpool.board import Board, BoardError, Kind, find_boards
from workerpool.cli.show import details
from workerpool.cli.story import Scene, tell
from workerpool.config_file import load_config
from workerpool.config_source import readable_tables
from workerpool.errors import ConfigError

FIXTURES = Path(__file__).parents[1] / "fixtures"
NOW = 1_800_000_000_000
_EARLIER = '{"status": "blocked", "completed_at": {"physical_time": 5, "logical_count": 0, "node_id": 1}}'
_DOSSIERS = [
    {"blocked_at_ms": NOW, "error": "Traceback\nValueError: no", "reason": "retries", "attempts": 2, "crashes": 0},
    {
        **{"blocked_at_ms": NOW, "attempts": 2, "crashes": 1, "errors": ["one", "two"], "earlier_ends": [_EARLIER]},
        "runs": [{"run": 1, "ended_ms": NOW, "seconds": 1.5}, {"run": 2, "ended_ms": NOW, "halved_from": 8}],
    },
    {"ended": "cancelled", "at_ms": NOW, "by": "me"},
]

Reader = Callable[[bytes], bool]


def readers(folder: Path) -> dict[str, Reader]:
    """Every kind with its reader."""
    return {
        "job": read_job,
        "signal": read_signal,
        "extensions": read_extensions,
        "artifacts": read_artifacts,
        "lease": read_lease,
        "name": read_name,
        "config": functools.partial(read_config, folder),
        "board": functools.partial(read_board, folder),
        "pause": functools.partial(read_pause, folder),
        "dossier": read_dossier,
    }


def good(kind: str, folder: Path) -> list[bytes]:
    """Sound examples of a kind, to be damaged."""
    match kind:
        case "job" | "signal":
            return [path.read_bytes() for path in sorted((FIXTURES / f"{kind}s").glob("*.file"))]
        case "name":
            return [path.read_text().strip().encode() for path in sorted((FIXTURES / "jobs").glob("*.name"))]
        case "config":
            return [path.read_bytes() for path in sorted((FIXTURES.parent / "config").glob("*.toml"))]
        case "board":
            return [_a_board(folder)]
        case "pause":
            return [_a_pause(folder)]
        case "dossier":
            return [json.dumps(each).encode() for each in _DOSSIERS]
    return {
        "extensions": [json.dumps({"a": [1, {"b": None}]}).encode(), b'{"delivery":{"attempt":2,"errors":["no"]}}'],
        "artifacts": [b'[{"type":"file_path","value":"/x"}]', b"[]"],
        "lease": [b"pid-1-a\n1700000000.5", b"pid-4711-0123456789abcdef\n1e9", b"x\n0"],
    }[kind]


# -- what a queue reads


def read_job(data: bytes) -> bool:
    try:
        job = decode_job(data)
    except DecodingFailed:
        return False
    Delivery.of(job)
    layout.job_filename(job)
    again = decode_job(encode_job(job))
    assert again == job or job != job
    return True


def read_signal(data: bytes) -> bool:
    """A checkpoint and an intent are such files, too."""
    try:
        signal = decode_signal(data)
    except DecodingFailed:
        return False
    assert decode_signal(encode_signal(signal)) == signal
    return True


def read_extensions(data: bytes) -> bool:
    try:
        decode_extensions(data.decode(errors="replace"))
    except DecodingFailed:
        return False
    return True


def read_artifacts(data: bytes) -> bool:
    try:
        decode_artifacts(data.decode(errors="replace"))
    except DecodingFailed:
        return False
    return True


def read_lease(data: bytes) -> bool:
    for life in Life:
        judge(data, owner="pid-1-me", now=1.7e9, ttl=15.0, life=life, unchanged=0.0)
    return Record.decode(data) is not None


def read_name(data: bytes) -> bool:
    """True when the name is clearly one stream's."""
    name = data.replace(b"/", b"").replace(b"\0", b"").decode(errors="surrogateescape")
    layout.suggests(name, "encode")
    layout.is_clear(name, "encode")
    layout.tail(name)
    layout.split_later(name)
    layout.split_claim(name)
    layout.split_checkpoint(name)
    layout.quarantine_signal_filename(name)
    return layout.clear_stream(name) is not None


# -- what a pool reads


def read_config(folder: Path, data: bytes) -> bool:
    """As a whole, and as `status` reads one with mistakes."""
    path = folder / "config.toml"
    path.write_bytes(data)
    readable_tables(str(path), ("store", "streams", "handlers"))
    try:
        load_config(path, environ={})
    except ConfigError:
        return False
    return True


def read_board(folder: Path, data: bytes) -> bool:
    """Also by who finds and sweeps them."""
    path = folder / "board-1-1"
    path.write_bytes(data)
    try:
        board = Board.attach(str(path))
    except (BoardError, OSError):
        return False
    try:
        for each in board.rows():
            each.owner_is_running()
    finally:
        board.close()
    find_boards(str(folder))
    return True


def read_pause(folder: Path, data: bytes) -> bool:
    """Whatever it says, the stream is paused; and its time is one that can be shown."""
    (folder / "pauses").mkdir(mode=0o700, exist_ok=True)
    (folder / "pauses" / "encode").write_bytes(data)
    found = pauses.find(str(folder), "encode")
    assert found is not None
    assert 0 <= found.since_ms <= 10**14
    return bool(found.user)


def read_dossier(data: bytes) -> bool:
    """`show` tells of the job all the same, in lines for a terminal and as JSON."""
    try:
        dossier = json.loads(data)
    except (ValueError, RecursionError):
        return False
    show(dossier)
    return isinstance(dossier, dict)


def show(dossier: object) -> None:
    """As `show` and `show --json` do, for a job that is blocked."""
    job = Delivery(attempt=2, errors=("one", "two")).onto(make_job("j", "encode"))
    signal = SignalFile(job_id=job.id, status=ObservationStatus.BLOCKED, completed_at=HLC(NOW, 0, 1))
    kept = dossier if isinstance(dossier, dict) else None
    view = JobView(job=job, state=State.DONE, signal=signal, dossier=kept)
    scene = Scene(config=_config(), pools=[], pause=None, now_ms=NOW)
    told = [text for _, text in tell(view, scene)]
    assert all(line.isprintable() for text in told for line in text.split("\n"))
    json.dumps(details(view, scene))


@functools.cache
def _config() -> object:
    return load_config({"store": {"url": "dir:/x"}, "streams": {"encode": {"handler": "h:f", "retries": 3}}})


def _a_board(folder: Path) -> bytes:
    made = Board.create(str(folder), 3, "/some/config.toml")
    with contextlib.closing(made):
        made.row(0).take(kind=Kind.STREAM, stream="encode")
        data = Path(made.path).read_bytes()
    Path(made.path).unlink()
    return data


def _a_pause(folder: Path) -> bytes:
    pauses.pause(str(folder), "encode")
    return (folder / "pauses" / "encode").read_bytes()
