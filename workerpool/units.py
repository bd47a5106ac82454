"""Durations and sizes as people write them: `"250ms"`, `"1m30s"`, `"7d"`; `"64MiB"`, `"1.5GB"`; `"0"` for none.

The config file, the environment and the command line use the same words. Everything else computes in float seconds
and int bytes. A `ValueError` of these functions is a complete sentence for the person who wrote the text.
"""

from __future__ import annotations

import re

import durationpy

MAX_SECONDS = 3650 * 86400.0
"""No duration is longer (ten years): every clock and selector can count to it."""

MAX_BYTES = 2**50
"""No size is larger."""

DURATION_PATTERN = r"(?:[0-9]+(?:\.[0-9]+)?(?:ms|us|µs|s|m|h|d|w))+"
SIZE_PATTERN = r"([0-9]+(?:\.[0-9]+)?) ?(B|[kKMGT]B|[KMGT]iB)"

_SIZE_UNITS = {"B": 1} | {
    unit: base**power
    for power, letter in enumerate("KMGT", start=1)
    for unit, base in ((f"{letter}B", 1000), (f"{letter}iB", 1024))
}
_DURATION_UNITS = (
    ("d", 86_400_000_000),
    ("h", 3_600_000_000),
    ("m", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1000),
    ("us", 1),
)
_DURATION_EXAMPLES = 'write a duration such as "250ms", "15s", "1m30s" or "7d"'
_SIZE_EXAMPLES = 'write a size such as "512KiB", "64MiB" or "2GB"'
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_DURATION = re.compile(DURATION_PATTERN)
_SIZE = re.compile(SIZE_PATTERN)


def parse_duration(text: str) -> float:
    """Seconds. Raises `ValueError` for a missing or unknown unit, a negative one, and one over `MAX_SECONDS`."""
    if text == "0":
        return 0.0
    _refuse_bare_or_negative(text, unit="s")
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{_shown(text)} is not a duration: {_DURATION_EXAMPLES}")
    try:
        seconds = durationpy.from_str(text).total_seconds()
    except durationpy.DurationError:
        seconds = MAX_SECONDS + 1
    if seconds > MAX_SECONDS:
        raise ValueError(f"{_shown(text)} is too long: 3650d is the most")
    return float(seconds)


def parse_size(text: str) -> int:
    """Bytes. Raises `ValueError` for a missing or unknown unit, a negative one, and one over `MAX_BYTES`."""
    if text == "0":
        return 0
    _refuse_bare_or_negative(text, unit="MiB")
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{_shown(text)} is not a size: {_SIZE_EXAMPLES}")
    number, unit = match.groups()
    size = float(number) * _SIZE_UNITS["KB" if unit == "kB" else unit]
    if size > MAX_BYTES:
        raise ValueError(f"{_shown(text)} is too large: 1024TiB is the most")
    return int(size)


def format_duration(seconds: float) -> str:
    """Text that `parse_duration` reads back to the microsecond: `"7d"`, `"1m30s"`, `"250ms"`; `"0"` for none."""
    rest = round(seconds * 1_000_000)
    parts = []
    for unit, size in _DURATION_UNITS:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0"


def format_size(size: int) -> str:
    """Text that `parse_size` reads back exactly: the largest binary unit that divides it, else plain bytes."""
    if not size:
        return "0"
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size % _SIZE_UNITS[unit] == 0:
            return f"{size // _SIZE_UNITS[unit]}{unit}"
    return f"{size}B"


def _refuse_bare_or_negative(text: str, *, unit: str) -> None:
    if text.startswith("-"):
        raise ValueError(f"{_shown(text)} must not be negative")
    if _NUMBER.fullmatch(text):
        raise ValueError(f'{_shown(text)} has no unit: write e.g. "{text[:20]}{unit}"')


def _shown(text: str) -> str:
    return f'"{text}"' if len(text) <= 40 and text.isprintable() else ascii(text[:40])
