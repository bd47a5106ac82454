"""The handler of `minimal.toml` and `full.toml`: it greets whoever the payload names."""

from __future__ import annotations

from queuekit import Job
from workerpool import JobContext


def hello(job: Job, ctx: JobContext) -> None:
    """Log a greeting. The payload is a name in UTF-8; anything else fails, is retried, and ends blocked."""
    ctx.logger.info("hello, %s", job.payload.decode() or "world")
