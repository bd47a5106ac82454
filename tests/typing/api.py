"""The public names as a user's program calls them. Only type-checked, never run."""

from __future__ import annotations

import threading

from queuekit import (
    HLC,
    ArtifactRef,
    Claimed,
    Completion,
    DrainLease,
    FilesystemBackend,
    HLCGenerator,
    Job,
    JobID,
    MemoryBackend,
    ObservationStatus,
    QueueBackend,
    QueueKit,
    SessionID,
    SignalFile,
    StreamID,
    decode_job,
    decode_signal,
    encode_job,
    encode_signal,
    job_filename,
    sortable_hlc,
)
from workerpool import Discard, JobContext, Outcome, Retry, run_pool


def produce(queue: QueueKit) -> JobID:
    job = Job(id=JobID.generate(), stream_id=StreamID("encode"), submitted_at=HLCGenerator(1).send(5))
    queue.send(job)
    count: int = queue.send_batch([job])
    assert count == 1
    return queue.submit("encode", b"x", priority=10, extensions={"k": [1, None]}, delay=1.5)


def consume(queue: QueueKit) -> None:
    lease = queue.lease("encode", ttl=10.0)
    if lease.try_acquire():
        queue.reclaim_in_flight("encode", lease=lease)
    batch: list[Claimed] = queue.drain("encode", 10, lease=lease)
    for claimed in batch:
        session: SessionID = claimed.session_id
        queue.reply(claimed.job.id, ObservationStatus.DONE, [ArtifactRef.file_path("/x")], lease=lease)
        queue.reply_session(session, "done", lease=lease)
    queue.reply_batch([Completion(JobID("a"), ObservationStatus.BLOCKED)])
    queue.watch(lambda job, session: print(job.id, session), threading.Event(), stream="encode")
    queue.await_drain("encode", timeout=3.0)


def resume(queue: QueueKit) -> dict[str, bytes]:
    seen: bytes | None = queue.checkpoints.read("place", "encode")
    moved: bool = queue.checkpoints.compare_and_swap("place", "encode", seen, b"1")
    return queue.checkpoints.list("encode") if moved and queue.checkpoints.delete("place", "encode") else {}


def formats(job: Job, signal: SignalFile) -> tuple[str, str]:
    assert decode_job(encode_job(job)) == job
    assert decode_signal(encode_signal(signal)) == signal
    return job_filename(job), sortable_hlc(HLC(1, 2, 3))


def mount() -> list[QueueKit]:
    backend: QueueBackend = FilesystemBackend("spool", durability="batch")
    DrainLease("spool", "encode", "token").heartbeat(now=1.0)
    return [QueueKit("spool"), QueueKit(backend=backend), QueueKit(backend=MemoryBackend()), QueueKit.open("dir:spool")]


def handle(job: Job, ctx: JobContext) -> Outcome | ObservationStatus | None:
    if ctx.attempt > 3:
        raise Discard("too often")
    if ctx.should_stop:
        raise Retry(after=5.0)
    ctx.progress(1, 2)
    ctx.artifact(ArtifactRef.commit_hash("abc"))
    follow_up: JobID = ctx.submit("dreaming", job.payload)
    ctx.logger.info("submitted %s at fence %d", follow_up, ctx.fence)
    return Outcome(ObservationStatus.DONE_WITH_CONCERNS)


def pool() -> int:
    return run_pool("config.toml", burst=True, only=["encode"])
