"""Inside a worker that is to be killed: follows the handler line by line, and kills the process at one of them.

Only lines of the user's own files count: those below the folders that handlers are imported from, and of the handler's
own package where that is installed; never of other installed packages, the standard library, or this one. Python's
trace function is called before a line is executed. It sees every thread that the handler starts, and no process: in one
that is forked the trap is off. The kill is SIGKILL: no `finally`, no buffer that is flushed. At a time it is an alarm
of the kernel's, whose default action is the same; if the handler sets an alarm of its own, `rig` kills a little later.

The trap is armed when the worker names the job on its board, just before the handler is called, and disarmed when it
takes it back, just before the outcome is sent.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import struct
import sys
import sysconfig
import threading
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any

import queuekit
from workerpool.board import Board, Row
from workerpool.torture.points import Place, Point, PointKind

_TIMES = struct.Struct("=dd")
_LENGTH = struct.Struct("=H")
_PLACE_AT = _TIMES.size + _LENGTH.size
_LONGEST_PLACE = 1024
_SHORTEST_ALARM = 1e-6
_INSTALLED = {"site-packages", "dist-packages"}


class Notes:
    """What a worker leaves for whoever has started it, in memory that both map: it is there whatever kills the worker.

    Make it before the fork; use it for one worker.
    """

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, _PLACE_AT + _LONGEST_PLACE)

    def start(self) -> None:
        """The handler is called now."""
        self._map[: _TIMES.size] = _TIMES.pack(time.monotonic(), 0.0)

    def fire(self) -> None:
        """The trap kills now."""
        self._map[: _TIMES.size] = _TIMES.pack(self.started, time.monotonic())

    def be_at(self, place: bytes) -> None:
        """This line is to be executed next."""
        place = place[:_LONGEST_PLACE]
        self._map[_PLACE_AT : _PLACE_AT + len(place)] = place
        self._map[_TIMES.size : _PLACE_AT] = _LENGTH.pack(len(place))

    @property
    def started(self) -> float:
        """When the handler was called, monotonic seconds; 0 = not yet."""
        return float(_TIMES.unpack_from(self._map)[0])

    @property
    def fired(self) -> float:
        """When the trap killed, monotonic seconds; 0 = it did not."""
        return float(_TIMES.unpack_from(self._map)[1])

    @property
    def place(self) -> str:
        """The last line that was about to be executed, as a point's name; "" = none was."""
        length = min(_LENGTH.unpack_from(self._map, _TIMES.size)[0], _LONGEST_PLACE)
        return bytes(self._map[_PLACE_AT : _PLACE_AT + length]).decode(errors="replace")

    def close(self) -> None:
        """Unmap it."""
        self._map.close()


class OwnFiles:
    """Which files are the user's, and how they are named: by their path below the folder that they are imported from.

    `folders`: absolute; `module`: the handler's, imported already.
    """

    def __init__(self, folders: Sequence[str], module: str) -> None:
        self._roots = [os.path.realpath(folder) for folder in folders]
        self._package = _package_folder(module)
        self._names: dict[str, str | None] = {}

    def name(self, filename: str) -> str | None:
        """The name of a code object's file; None when it is not the user's."""
        if filename not in self._names:
            self._names[filename] = self._find(filename)
        return self._names[filename]

    def _find(self, filename: str) -> str | None:
        if filename.startswith("<"):
            return None
        path = os.path.realpath(filename)
        if self._package is not None and _is_below(path, self._package):
            return os.path.relpath(path, os.path.dirname(self._package))
        if any(_is_below(path, folder) for folder in _FOREIGN):
            return None
        root = max((root for root in self._roots if _is_below(path, root)), key=len, default=None)
        if root is None:
            return None
        name = os.path.relpath(path, root)
        return None if _INSTALLED & set(name.split(os.sep)) else name


def _package_folder(module: str) -> str | None:
    """The folder of the outermost package of a module; None for a module of its own."""
    file: str | None = getattr(sys.modules.get(module.partition(".")[0]), "__file__", None)
    if file is None or os.path.basename(file) != "__init__.py":
        return None
    return os.path.dirname(os.path.realpath(file))


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


_FOREIGN = [
    os.path.dirname(os.path.dirname(os.path.realpath(__file__))),
    os.path.realpath(queuekit.__path__[0]),
    *(os.path.realpath(sysconfig.get_paths()[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
]


class Trap:
    """Follows one run of a handler in this process, and ends it at `point`.

    `point`: None = nowhere. `counts`: a file that is written at
    the end of a run that was not killed, with the lines and how often each was executed; None = not wanted.
    """

    def __init__(
        self, point: Point | None, *, folders: Sequence[str], module: str, notes: Notes, counts: str | None
    ) -> None:
        self._point = point
        self._folders = folders
        self._module = module
        self._notes = notes
        self._counts_file = counts
        self._counts: dict[Place, int] = {}
        self._files: OwnFiles
        self._armed = False
        self._wanted: Place | None = (point.file, point.line) if point and point.kind is PointKind.LINE else None

    def arm(self) -> None:
        """From now on lines are followed."""
        self._files = OwnFiles(self._folders, self._module)
        os.register_at_fork(after_in_child=self._stop)
        self._armed = True
        self._notes.start()
        threading.settrace(self._on_call)
        sys.settrace(self._on_call)
        if self._point is not None and self._point.kind is PointKind.TIME:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, max(self._point.ms / 1000, _SHORTEST_ALARM))

    def disarm(self) -> None:
        """No more; a point at the end kills here."""
        if not self._armed:
            return
        self._stop()
        if self._point is not None and self._point.kind is PointKind.TIME:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if self._point is not None and self._point.kind is PointKind.END:
            self._fire()
        if self._counts_file is not None:
            with open(self._counts_file, "w", encoding="utf-8") as file:
                json.dump([[*place, count] for place, count in self._counts.items()], file)

    def _stop(self) -> None:
        self._armed = False
        sys.settrace(None)
        threading.settrace(None)

    def _on_call(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        return self._on_line if self._armed and self._files.name(frame.f_code.co_filename) else None

    def _on_line(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if not self._armed:
            return None
        name = self._files.name(frame.f_code.co_filename) if event == "line" else None
        if name is not None:
            self._count((name, frame.f_lineno))
        return self._on_line

    def _count(self, place: Place) -> None:
        hit = self._counts[place] = self._counts.get(place, 0) + 1
        self._notes.be_at(f"{place[0]}:{place[1]}#{hit}".encode(errors="replace"))
        if place == self._wanted and self._point is not None and hit == self._point.hit:
            self._fire()

    def _fire(self) -> None:
        self._notes.fire()
        os.kill(os.getpid(), signal.SIGKILL)


class TrappedRow(Row):
    """A worker's row on the board that arms the trap when a job is named there, and disarms it when that has ended."""

    def __init__(self, board: Board, index: int, trap: Trap) -> None:
        super().__init__(board, index)
        self._trap = trap

    def start_job(self, job_id: str, now_ns: int | None = None) -> None:
        """Arms the trap afterwards."""
        super().start_job(job_id, now_ns)
        self._trap.arm()

    def end_job(self, *, done: int = 0, failed: int = 0) -> None:
        """Disarms the trap first: what it kills there was still running."""
        self._trap.disarm()
        super().end_job(done=done, failed=failed)
