"""A handler that logs: so many numbered lines, each with a check of its own, of all lengths."""

from __future__ import annotations

import hashlib
import json
import random

from queuekit import Job
from workerpool import JobContext

LONGEST = 15_000  # characters of padding, more than a pipe takes in one piece


def talk(job: Job, ctx: JobContext) -> None:
    """Log as many lines as the payload says, by the talker that it names."""
    told = json.loads(job.payload)
    dice = random.Random(told["talker"])
    for number in range(told["lines"]):
        ctx.logger.info("%s", line(told["talker"], number, padding_of(dice)))


def padding_of(dice: random.Random) -> str:
    """Mostly short, at times long."""
    return chr(dice.randrange(0x61, 0x7B)) * (dice.randrange(LONGEST) if dice.random() < 0.02 else dice.randrange(80))


def line(talker: int, number: int, padding: str) -> str:
    """`said TALKER NUMBER CHECK PADDING`."""
    return f"said {talker} {number} {_check(talker, number, padding)} {padding}."


def read(text: str) -> tuple[int, int] | None:
    """Who said this line, and its number; None when it is not as it was said."""
    said, talker, number, check, padding = (text.split(" ", 4) + [""] * 4)[:5]
    if said != "said" or not talker.isdecimal() or not number.isdecimal() or not padding.endswith("."):
        return None
    return (int(talker), int(number)) if check == _check(int(talker), int(number), padding[:-1]) else None


def _check(talker: int, number: int, padding: str) -> str:
    return hashlib.sha256(f"{talker} {number} {padding}".encode()).hexdigest()[:16]
