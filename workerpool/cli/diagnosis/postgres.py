"""A store in PostgreSQL: what was seen, and what that means. No I/O."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Mapping

from workerpool.cli import words
from workerpool.cli.diagnosis.finding import Finding, Part, error, note, ok, warning
from workerpool.cli.diagnosis.sqlite import judge_version

OLDEST = 120_000
"""The oldest server version that has what is used here."""
_SKEW_SECONDS = 2.0
_SLOW_MS = 20.0
_MANY_DEAD = 100_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Postgres:
    """`number`: the server's version as it counts itself; `round_trip_ms`: each of some; `ahead`: seconds by which its
    clock is ahead of ours, known to `uncertain`; `notify_ms`: None: it did not come; `settings`: as our session has
    them; `connections`: open now, and `connections_free`: how many this role may still open here, by the least of the
    limits; `needed`: by this pool, whether it runs or not; `schema`: its version, None: it may not be read; `bytes`: of
    the database; `dead_rows`, `live_rows`: of the jobs' table as the server estimates them."""

    name: str
    version: str
    number: int
    standby: bool
    encoding: str
    round_trip_ms: tuple[float, ...]
    ahead: float
    uncertain: float
    notify_ms: float | None
    settings: Mapping[str, str]
    connections: int
    connections_free: int
    needed: int
    pool_runs: bool
    schema: int | None
    known: int
    missing_privileges: tuple[str, ...]
    bytes: int
    dead_rows: int
    live_rows: int
    durability: str = "full"


def judge(postgres: Postgres) -> Iterator[Finding]:
    """What the facts mean."""
    yield from _judge_server(postgres)
    if postgres.schema is not None:
        yield from judge_version(postgres.schema, postgres.known, postgres.name)
    yield from _judge_privileges(postgres)
    yield _judge_round_trip(postgres)
    yield _judge_notify(postgres)
    yield _judge_clock(postgres)
    yield from _judge_settings(postgres)
    yield _judge_connections(postgres)
    yield from _judge_table(postgres)


def _judge_server(postgres: Postgres) -> Iterator[Finding]:
    found = f"{postgres.name} answers: PostgreSQL {postgres.version}, {words.size(postgres.bytes)}"
    if postgres.standby:
        means = "it is a read-only standby: nothing can be sent or settled"
        yield error("store", found, means, "let the URL name the primary (target_session_attrs=read-write)", Part.STORE)
    elif postgres.number < OLDEST:
        yield error("store", found, "it is too old", "upgrade it to a version that is maintained", Part.STORE)
    else:
        yield ok("store", found)
    if postgres.encoding != "UTF8":
        yield error(
            "store",
            f"the database's encoding is {postgres.encoding}",
            "jobs with other characters are refused",
            "make one with ENCODING 'UTF8'",
        )


def _judge_privileges(postgres: Postgres) -> Iterator[Finding]:
    if postgres.missing_privileges:
        missing = ", ".join(postgres.missing_privileges)
        yield error("rights", f"this role lacks {missing}", "no pool can work with it", f"GRANT {missing}", Part.STORE)


def _judge_round_trip(postgres: Postgres) -> Finding:
    median = statistics.median(postgres.round_trip_ms)
    found = f"a round trip takes {median:.2f} ms, at worst {max(postgres.round_trip_ms):.2f} ms"
    if median > _SLOW_MS:
        return warning("network", found, "each claim and each reply waits for some", "use batches, or move nearer")
    return ok("network", found)


def _judge_notify(postgres: Postgres) -> Finding:
    if postgres.notify_ms is None:
        return warning(
            "events",
            "LISTEN and NOTIFY do not come through",
            "an idle pool notices a job only when it looks by itself; a pooler in transaction mode does that",
            "let the URL lead to the server itself, or to a pooler in session mode",
        )
    return ok("events", f"a NOTIFY to ourselves came after {postgres.notify_ms:.2f} ms")


def _judge_clock(postgres: Postgres) -> Finding:
    zone = postgres.settings.get("TimeZone", "")
    side = "ahead of" if postgres.ahead >= 0 else "behind"
    sure = f"known to {words.duration(postgres.uncertain)}"
    found = f"the server's clock is {words.duration(abs(postgres.ahead))} {side} this machine's ({sure})"
    if abs(postgres.ahead) - postgres.uncertain > _SKEW_SECONDS:
        return warning(
            "clock",
            found,
            "leases go by the server's alone, but jobs sent with a delay are due by so much early or late",
            "have both kept by NTP (timedatectl set-ntp true)",
        )
    return ok("clock", f"{found}; its time zone ({zone}) does not matter, times are ms since 1970")


def _judge_settings(postgres: Postgres) -> Iterator[Finding]:
    settings = postgres.settings
    found = f"fsync={settings.get('fsync')}, synchronous_commit={settings.get('synchronous_commit')} in our sessions"
    if settings.get("fsync") == "off":
        yield warning(
            "durability", found, "a power cut at the server may destroy the database", "fsync = on, and reload"
        )
    elif settings.get("synchronous_commit") == "off":
        why = "as [store] durability asks" if postgres.durability == "none" else "although durability was asked for"
        yield warning("durability", found, f"a crash of the server may lose the last moments, {why}")
    elif settings.get("full_page_writes") == "off":
        yield warning("durability", f"{found}, full_page_writes=off", "a power cut may leave torn pages")
    else:
        yield ok("durability", found)
    if settings.get("autovacuum") == "off":
        yield warning("vacuum", "autovacuum is off", "claims become slower and slower", "autovacuum = on, and reload")


def _judge_connections(postgres: Postgres) -> Finding:
    found = (
        f"{words.number(postgres.connections, 'open connection')} at the server, {postgres.connections_free:,} more "
        f"may be; this pool takes {postgres.needed:,} (two a stream: one to work, one to listen)"
    )
    if postgres.needed > postgres.connections_free and not postgres.pool_runs:
        means = "some of its streams will not get one, and try again and again"
        return warning("limits", found, means, "raise max_connections (or the role's or database's limit)")
    return ok("limits", found)


def _judge_table(postgres: Postgres) -> Iterator[Finding]:
    if postgres.dead_rows > _MANY_DEAD and postgres.dead_rows > postgres.live_rows:
        yield note(
            "vacuum",
            f"the jobs' table has about {postgres.dead_rows:,} dead rows beside {postgres.live_rows:,} living ones",
            "claims are slower than they need to be, until it is vacuumed",
            'psql -c "VACUUM ANALYZE queuekit_jobs"',
        )
