"""Whether two stores say the same of a job: its values, where it is, how it ended, what is kept of it. No I/O.

Stores keep a job each in a form of its own, so what they show is compared, in one form that is the same for the same
values only.
"""

from __future__ import annotations

import json

from queuekit.contract import JobView
from queuekit.lifecycle import State
from queuekit.wire import encode_job, encode_signal

Likeness = tuple[bytes, State, int, bool, bytes, str]


def likeness(view: JobView) -> Likeness:
    """What is equal for two views exactly when they say the same. An empty dossier is none."""
    later = view.state is State.LATER
    return (
        encode_job(view.job),
        view.state,
        max(view.due_ms or 0, 0) if later else 0,
        later and view.retry,
        encode_signal(view.signal) if view.signal is not None and view.state is State.DONE else b"",
        json.dumps(dict(view.dossier), sort_keys=True, default=str) if view.dossier else "",
    )


def alike(one: JobView, other: JobView) -> bool:
    """Whether two views say the same of the same job."""
    return likeness(one) == likeness(other)
