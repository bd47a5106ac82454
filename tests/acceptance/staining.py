"""A handler that says what could forge a line or take over a terminal, wherever a handler can say something."""

from __future__ import annotations

import logging
import os
import time
import warnings

from queuekit import ArtifactRef, Job
from workerpool import Discard, JobContext, Retry

EVIL = (
    "\x1b]0;owned\x07\x1b[2J\x1b[31mRED\x9b2J\x9d0;owned\x9c\r\n2026-11-30 00:00:00 info pool FORGED\n"
    "\x00\x7f\x85\u2028\u202eRLO\u2066\ufeff"
)
"""Terminal sequences of both kinds, line ends of all kinds, a forged line, marks that turn text, an invisible one."""
EVIL_NAME = "o\x9b2J\x9d0;owned\x9c\x85\u2028\u202eRLO\u2066"
"""What of it an identifier may hold."""


def stain(job: Job, ctx: JobContext) -> None:
    """Do what the payload says, in the words of `EVIL`; a payload that is `EVIL` itself ends well."""
    match job.payload:
        case b"raise":
            raise Stained(EVIL)
        case b"retry":
            raise Retry(after=3600, reason=EVIL)
        case b"discard":
            raise Discard(EVIL)
        case b"die":
            os.write(2, EVIL.encode())
            os._exit(7)
        case b"wait":
            ctx.progress(1, 2)
            while not ctx.should_stop:
                time.sleep(0.01)
        case b"tell":
            ctx.logger.warning(EVIL)
            ctx.logger.warning("%s", EVIL, extra={"told": EVIL})
            logging.getLogger(EVIL).error("its own logger: %r %s", EVIL, EVIL, exc_info=ValueError(EVIL))
            warnings.warn(EVIL, stacklevel=1)
            ctx.artifact(ArtifactRef.file_path(EVIL))
            ctx.submit(EVIL_NAME, EVIL.encode(), extensions={EVIL: EVIL})


class Stained(Exception):
    """Its name and module are the attacker's, too."""


Stained.__name__ = Stained.__qualname__ = EVIL.replace("\x00", "")
Stained.__module__ = EVIL
