"""Checkpoints: whether each can be read, and is the one that its name says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from queuekit.backends.maildir import layout
from queuekit.backends.maildir.checkpoints import checkpoint_in
from queuekit.backends.maildir.fsck.finding import Finding, finding
from queuekit.backends.maildir.fsck.look import Look, Progress, in_portions, path_of, present
from queuekit.errors import DecodingFailed


def check(look: Look, names: Sequence[str], progress: Progress | None) -> Iterator[Finding]:
    """Everything that is wrong with checkpoints. They are replaced by one rename, so one look at each is enough."""
    for name in in_portions(names, len(names), "reading checkpoints", progress):
        path = path_of("checkpoints", name)
        try:
            if layout.split_checkpoint(name) is not None:
                checkpoint_in(look, name)
            elif present(look, "checkpoints", name):
                yield finding("not-a-name", path, "its name is not that of a checkpoint")
        except FileNotFoundError:
            continue  # deleted since it was listed
        except OSError as error:
            yield finding("unreadable-now", path, f"the checkpoint cannot be read: {error.strerror}")
        except DecodingFailed as error:
            yield finding("checkpoint-unreadable", path, f"it is no checkpoint: {error.reason}")
