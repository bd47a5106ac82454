"""A producer in a process of its own, for tests: `sending_at_will.py ROOT STREAM` sends a job for each line it reads.

The line is the payload. It answers with the job's id and timestamp: `ID PHYSICAL LOGICAL`.
"""

from __future__ import annotations

import sys

from queuekit import QueueKit


def main() -> None:
    """See above."""
    root, stream = sys.argv[1:]
    with QueueKit(root) as queue:
        for line in sys.stdin:
            job_id = queue.submit(stream, line.strip().encode())
            view = queue.look_up(job_id)
            assert view is not None
            at = view.job.submitted_at
            print(job_id, at.physical_time, at.logical_count, flush=True)


if __name__ == "__main__":
    main()
