"""An estate whose queue is in a database: the same pools, the same oracle, asked of rows instead of files."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pool import Counter, Estate

from queuekit.completion import SignalFile
from queuekit.contract import JobView
from queuekit.lifecycle import State


class DatabaseEstate(Estate):
    """`url`: of the store. Boards are beside the configuration, as for every store that is no folder."""

    def __init__(
        self, folder: Path, url: str, streams: Mapping[str, Mapping[str, Any]], **tables: Mapping[str, Any]
    ) -> None:
        super().__init__(folder, streams, **tables)
        self.url = url
        self.configure(streams, **tables)

    @property
    def boards(self) -> str:
        return str(self.folder / ".workerpool")

    def signal_of(self, job_id: str) -> SignalFile | None:
        return self.queue.signal(job_id)

    def finished(self, *job_ids: str) -> Callable[[], bool]:
        return lambda: all(self.queue.signal(each) for each in job_ids)

    def dossier(self, job_id: str) -> Any:
        view = self.queue.look_up(job_id)
        return None if view is None else view.dossier

    def check(self, sent: Iterable[str]) -> Counter:
        views = list(self.queue.backend.jobs(set(State)))
        found = collections.Counter(str(view.job.id) for view in views if isinstance(view, JobView))
        assert len(found) == len(views), "a row holds no job"
        assert max(found.values(), default=1) == 1, f"listed twice: {found.most_common(3)}"
        lost = set(sent) - set(found)
        assert not lost, f"{len(lost)} jobs are lost: {sorted(lost)[:5]}"
        ended = [view for view in views if isinstance(view, JobView) and view.state is State.DONE]
        assert all(view.signal for view in ended), "ended without a record"
        return collections.Counter(_FOLDERS[view.state] for view in views if isinstance(view, JobView))

    def check_settled(self, sent: Sequence[str]) -> None:
        assert self.check(sent) == collections.Counter(done=len(set(sent)))


_FOLDERS = {State.NEW: "new", State.CUR: "cur", State.LATER: "later", State.DONE: "done"}
