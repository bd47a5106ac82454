"""A pool of worker processes over a durable queue: `workerpool run config.toml`, or `run_pool` from a program.

What handlers use is here; see `workerpool.worker.context.JobContext` for their second argument.
"""

from workerpool.assemble import run_pool
from workerpool.outcome import Discard, Outcome, Retry
from workerpool.worker.context import JobContext

__all__ = ["Discard", "JobContext", "Outcome", "Retry", "run_pool"]
