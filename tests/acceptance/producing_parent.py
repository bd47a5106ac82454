"""A program that produces jobs from several threads, and forks a pool beside them: `producing_parent.py CONFIG URL N`.

The queue object is in use by the threads before, at and after the fork. Prints the pool's pid, then the ids sent.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from queuekit import QueueKit
from workerpool import run_pool

THREADS = 4
STREAMS = ("encode", "link", "mail", "thumb")


def main() -> None:
    """See above; ends when the pool has."""
    config, url, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    queue = QueueKit.open(url)
    busy = threading.Barrier(THREADS + 1)
    sent: list[list[str]] = [[] for _ in range(THREADS)]
    threads = [threading.Thread(target=produce, args=(queue, busy, count // THREADS, ids)) for ids in sent]
    for thread in threads:
        thread.start()
    busy.wait()
    pool = os.fork()
    if pool == 0:
        os._exit(run_pool(config))
    print(pool, flush=True)
    for thread in threads:
        thread.join()
    print(*(id for ids in sent for id in ids), flush=True)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(pool, signal.SIGTERM))
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pool, 0)[1]))


def produce(queue: QueueKit, busy: threading.Barrier, count: int, ids: list[str]) -> None:
    """Send so many, one by one, over all streams in turn."""
    for number in range(count):
        ids.append(str(queue.submit(STREAMS[number % len(STREAMS)], b"{}")))
        if number == 10:
            busy.wait()


if __name__ == "__main__":
    main()
