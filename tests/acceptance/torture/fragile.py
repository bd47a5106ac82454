"""A handler of the tests whose module kills whoever imports it, until it is mended; it notes each try."""

from __future__ import annotations

import os
from pathlib import Path

from acting import act, note

note("import", "fragile")
if not Path(os.environ["ACTING_HISTORY"]).with_name("mended").exists():
    os._exit(7)

__all__ = ["act"]
