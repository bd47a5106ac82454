"""A durable job queue that needs no server: in a directory, with the same words over other stores.

See `QueueKit` for how it is used. Names listed here are the public ones.
"""

from typing import TYPE_CHECKING, Any

from queuekit.backends.maildir.backend import FilesystemBackend
from queuekit.backends.maildir.layout import job_filename
from queuekit.backends.memory import MemoryBackend
from queuekit.completion import ArtifactRef, Completion, MissionContext, SignalFile
from queuekit.contract import JobView, Lease, QueueBackend, Tally
from queuekit.errors import (
    BackendUnavailable,
    DecodingFailed,
    DirectoryCreationFailed,
    DrainTimeout,
    IllegalTransition,
    InvalidIdentifier,
    InvalidTerminalStatus,
    JobNotFound,
    LeaseLost,
    QueueError,
    RenameFailed,
    StaleTmpFile,
    UnknownTool,
    WatcherFailed,
    WriteFailed,
)
from queuekit.facade import QueueKit
from queuekit.hlc import HLC, HLCGenerator, sortable_hlc
from queuekit.ids import JobID, SessionID, StreamID, ToolName
from queuekit.job import Claimed, Job
from queuekit.lease import DrainLease
from queuekit.status import ObservationStatus
from queuekit.wire import decode_job, decode_signal, encode_job, encode_signal

if TYPE_CHECKING:
    from queuekit.backends.sql.backend import PersistenceKitBackend as PersistenceKitBackend

__all__ = [
    "HLC",
    "ArtifactRef",
    "BackendUnavailable",
    "Claimed",
    "Completion",
    "DecodingFailed",
    "DirectoryCreationFailed",
    "DrainLease",
    "DrainTimeout",
    "FilesystemBackend",
    "HLCGenerator",
    "IllegalTransition",
    "InvalidIdentifier",
    "InvalidTerminalStatus",
    "Job",
    "JobID",
    "JobNotFound",
    "JobView",
    "Lease",
    "LeaseLost",
    "MemoryBackend",
    "MissionContext",
    "ObservationStatus",
    "QueueBackend",
    "QueueError",
    "QueueKit",
    "RenameFailed",
    "SessionID",
    "SignalFile",
    "StaleTmpFile",
    "StreamID",
    "Tally",
    "ToolName",
    "UnknownTool",
    "WatcherFailed",
    "WriteFailed",
    "decode_job",
    "decode_signal",
    "encode_job",
    "encode_signal",
    "job_filename",
    "sortable_hlc",
]


def __getattr__(name: str) -> Any:
    """`PersistenceKitBackend` is imported when it is first asked for: SQLAlchemy is an extra, and slow to import."""
    if name == "PersistenceKitBackend":
        from queuekit.backends.sql.backend import PersistenceKitBackend

        return PersistenceKitBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
