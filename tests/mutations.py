"""Damage for what is read from disk: seeded mutations of good files, as many as a test asks for.

`FUZZ_SEED` rolls the same ones again; the seed is printed. An input that was found is kept in `fixtures/hostile/`,
where it is tried as it is, and mutated with the rest.
"""

from __future__ import annotations

import itertools
import os
import random
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

COUNTS = [3_000, pytest.param(100_000, marks=[pytest.mark.torture, pytest.mark.timeout(3600)])]
KEPT = Path(__file__).parents[1] / "fixtures" / "hostile"
_MOST_MIB = 200
_TOKENS = [
    *(b"null", b"true", b"NaN", b"-Infinity", b"1e400", b"-0.0", b"-1", b"0", b"18446744073709551616"),
    *(b"9" * 5000, b"1" * 25, b"[" * 20_000, b"{" * 5000, b'{"a":' * 600, b"\x7f" * 300, b"=" * 9),
    *(b"]", b"}", b"[]", b"{}", b'"', b'\\"', b",", b":", b"\\ud800", b"\\u0000", b"\\", b"%", b" ", b"/", b"../"),
    *(b"\0", b"\n", b"\r\n", b"\xef\xbb\xbf", b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\xaf", b"\x1b[2J"),
    *(b'"""', b"'''", b"#", b"[a]", b"[[a]]", b"a.b = 1\n", b"2020-01-01", b"0x", b"1_0"),
]


def dice() -> random.Random:
    """Random numbers with a seed that is printed."""
    seed = int(os.environ.get("FUZZ_SEED") or random.SystemRandom().randrange(2**32))
    print(f"FUZZ_SEED={seed}")
    return random.Random(seed)


def kept(kind: str) -> list[bytes]:
    """What was found before, of one kind (`job`, `config`, …)."""
    return [path.read_bytes() for path in sorted(KEPT.glob(f"{kind}-*"))]


def damaged(good: Sequence[bytes], count: int) -> Iterator[bytes]:
    """`count` inputs, each made from one of these by one to four changes."""
    rolls = dice()
    for _ in range(count):
        data = bytearray(rolls.choice(good))
        for _ in range(rolls.randint(1, 4)):
            _change(data, good, rolls)
        yield bytes(data)


def _change(data: bytearray, good: Sequence[bytes], rolls: random.Random) -> None:
    at = rolls.randint(0, len(data))
    to = min(len(data), at + rolls.choice([0, 1, 2, 8, 64, len(data)]))
    match rolls.randrange(7):
        case 0 if data:
            data[min(at, len(data) - 1)] ^= 1 << rolls.randrange(8)
        case 1:
            data[at:to] = b""
        case 2:
            data[at:at] = data[at:to]
        case 3:
            data[at:to] = rolls.choice(_TOKENS)
        case 4:
            data[at:to] = rolls.randbytes(rolls.randint(1, 9))
        case 5:
            other = rolls.choice(good)
            place = rolls.randint(0, len(other))
            data[at:to] = other[place : place + rolls.randint(1, 40)]
        case _:
            del data[at:]


def try_all(kind: str, good: Sequence[bytes], count: int, read: Callable[[bytes], object]) -> None:
    """Give `read` every damaged input; it raises for none of them, and the process does not grow.

    A failure names the input, which belongs into `fixtures/hostile/` then.
    """
    found = kept(kind)
    before = _resident_mib()
    for data in itertools.chain(found, damaged([*good, *found], count)):
        try:
            read(data)
        except Exception as error:
            raise AssertionError(f"{type(error).__name__} for {data[:2000]!r} ({len(data)} bytes)") from error
    assert _resident_mib() - before < _MOST_MIB


def _resident_mib() -> float:
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (2**20 if sys.platform == "darwin" else 2**10)
