"""Handlers that use up or spoil the process that they run in: its descriptors, its memory, its pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import psutil
import pytest
from pool import Estate, lines_of, until

LIMITED = ["sh", "-c", 'ulimit -n "$0" && exec "$@"']


def write_handler(estate: Estate, body: Sequence[str]) -> None:
    """Have the estate's stream run this: a function's body, with its history noted before and after it."""
    lines = [
        "def handle(job, ctx):",
        "    acting.note('start', job.id, ctx.attempt)",
        *(f"    {line}" for line in body),
    ]
    lines += ["    acting.note('end', job.id, ctx.attempt)", ""]
    head = ["import os, time", "import acting", "from acting import told", "KEPT = []", ""]
    (estate.folder / "spoiling.py").write_text("\n".join([*head, *lines]))


def test_a_job_that_leaks_descriptors_blocks_none_of_those_behind_it(make_estate: Callable[..., Estate]) -> None:
    """The handler cannot even open a file of its own when its turn comes: that charges nobody."""
    estate = make_estate({"encode": {"handler": "spoiling:handle"}})
    write_handler(estate, ["KEPT.extend(open('/dev/null') for _ in range(300))"])
    sent = estate.send_many(20)
    pool = estate.start("--burst", before=[*LIMITED, "1024"])
    assert pool.wait() == 0
    assert {estate.status_of(job) for job in sent} == {"done"}
    assert "Traceback" not in pool.log
    assert len(list(lines_of(pool.log, "is replaced: it has no descriptors left"))) >= 4
    assert not list(lines_of(pool.log, "failed, again in"))
    estate.check_settled(sent)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("act", "cause"),
    [
        ("os.closerange(3, 200)", "the handler had closed its worker's pipe"),
        ("os.closerange(3, 200); time.sleep(1000)", "the handler had closed its worker's pipe"),
        ("[os.write(fd, b'x' * 9) for fd in sockets()]", "the handler had written into its worker's pipe"),
    ],
    ids=["closes", "closes and stays", "writes"],
)
def test_each_worker_that_a_job_makes_useless_is_charged_to_it(
    make_estate: Callable[..., Estate], act: str, cause: str, workers: int
) -> None:
    """The handler runs as often as it is counted, `max_crashes` times, and the record does not speak of SIGKILL."""
    keys = {"handler": "spoiling:handle", "workers": workers, "max_crashes": 2, "retries": 9}
    estate = make_estate({"encode": keys})
    write_handler(estate, ["if told(job):", f"    {act}"])
    with (estate.folder / "spoiling.py").open("a") as file:
        file.write(
            "def sockets():\n"
            "    import stat\n"
            "    return [fd for fd in range(3, 100) if os.path.exists(f'/dev/fd/{fd}')\n"
            "            and stat.S_ISSOCK(os.fstat(fd).st_mode)]\n"
        )
    before = estate.send_many(10)
    guilty = estate.send(spoil=True)
    behind = estate.send_many(10)
    assert estate.run("--burst").code == 6
    assert estate.status_of(guilty) == "blocked"
    assert len(estate.runs()[guilty]) == 2
    dossier = estate.dossier(guilty)
    assert (dossier["cause"], dossier["crashes"]) == ("crashed too often", 2)
    assert cause in dossier["error"]
    assert "SIGKILL" not in dossier["error"]
    assert {len(estate.runs()[job]) for job in (*before, *behind)} == {1}
    estate.check_settled([*before, guilty, *behind])


@pytest.mark.skipif(sys.platform != "linux", reason="memory is as Linux counts it")
def test_a_fast_leak_is_held_within_a_bound_and_told_by_its_growth(make_estate: Callable[..., Estate]) -> None:
    """Up to `max_memory` and 256 MiB, however fast it comes; nothing is said of what jobs need."""
    estate = make_estate({"encode": {"handler": "spoiling:handle", "max_memory": "100MiB"}})
    write_handler(
        estate,
        [
            "KEPT.append(bytearray(b'x') * (30 << 20))",
            "acting.note('rss', int(open('/proc/self/statm').read().split()[1]) * 4096 >> 20)",
        ],
    )
    sent = estate.send_many(30)
    pool = estate.run("--burst")
    assert pool.code == 0
    assert {len(estate.runs()[job]) for job in sent} == {1}
    most = max(int(mib) for *_, mib in estate.notes("rss"))
    assert most < 100 + 256 + 100
    assert len({pid for pid, *_ in estate.notes("rss")}) >= 3
    assert "less than jobs need" not in pool.log
    assert list(lines_of(pool.log, "is replaced: it has grown by", "MiB after"))


@pytest.mark.skipif(sys.platform != "linux", reason="titles are Linux's")
def test_each_process_is_shown_by_what_it_is_for(make_estate: Callable[..., Estate]) -> None:
    estate = make_estate({"encode": {"workers": 2}, "dreaming": {}})
    pool = estate.start()
    until(pool.is_working("encode", "dreaming"), "the pool")
    until(lambda: len(pool.tree()) == 6, "every worker")
    assert sorted(psutil.Process(pid).cmdline()[0] for pid in pool.tree()) == [
        "workerpool: master",
        "workerpool: stream dreaming",
        "workerpool: stream encode",
        "workerpool: worker dreaming-1",
        "workerpool: worker encode-1",
        "workerpool: worker encode-2",
    ]
    assert len(estate.processes()) == 6  # they are found by their environment: that is as it was
    assert "SPT_NOENV" not in psutil.Process(pool.pid).environ()
    assert pool.stop() == 0
