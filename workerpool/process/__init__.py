"""Process mechanism: the one place with fork, wait, process groups, prctl and signal set-up.

Policy (who is started, restarted or killed, and when) is `master/state.py` and `stream/state.py`; here is only how.

| module | gives |
| --- | --- |
| `identity` | `start_identity`, `is_running`, `NOT_THERE`: telling a process from a later one with the same pid |
| `parent` | the death signal, the subreaper, `parent_is_alive` |
| `spawn` | `spawn` and `Child`: fork with signals blocked and a child that starts clean |
| `reap` | `reap`, `halts` and `Exit`: who ended, and how; who was stopped |
| `kill` | `kill_group`, `kill_process`, `kill_strays`, `end_left_overs`, `child_pids`: never a stranger |
| `signals` | `SignalPipe`: signals as bytes of a pipe, for a loop |
| `descriptors` | `can_open`, `open_descriptors`, `descriptor_limit`, `standard_descriptors`, `unread_bytes`: ours |
| `title` | `set_title`, `show_as`: what `ps` shows |
| `wait` | `wait_readable`, `wait_writable`: for one descriptor |
| `channel` | `Channel`: framed messages between a stream process and its worker |
"""

from workerpool.process.channel import Channel, ChannelError, Frame, frame_limit
from workerpool.process.descriptors import (
    KeptStandard,
    can_open,
    descriptor_limit,
    open_descriptors,
    standard_descriptors,
    unread_bytes,
)
from workerpool.process.identity import NOT_THERE, boot_id, is_running, start_identity
from workerpool.process.kill import child_pids, end_left_overs, has_children, kill_group, kill_process, kill_strays
from workerpool.process.parent import become_subreaper, parent_is_alive
from workerpool.process.reap import Exit, halts, reap
from workerpool.process.signals import SignalPipe
from workerpool.process.spawn import Child, spawn
from workerpool.process.title import set_title, show_as
from workerpool.process.wait import wait_readable, wait_writable

__all__ = [
    "NOT_THERE",
    "Channel",
    "ChannelError",
    "Child",
    "Exit",
    "Frame",
    "KeptStandard",
    "SignalPipe",
    "become_subreaper",
    "boot_id",
    "can_open",
    "child_pids",
    "descriptor_limit",
    "end_left_overs",
    "frame_limit",
    "halts",
    "has_children",
    "is_running",
    "kill_group",
    "kill_process",
    "kill_strays",
    "open_descriptors",
    "parent_is_alive",
    "reap",
    "set_title",
    "show_as",
    "spawn",
    "standard_descriptors",
    "start_identity",
    "unread_bytes",
    "wait_readable",
    "wait_writable",
]
