"""Durations as people write them: `10`, `10s`, `200ms`, `2m`."""

from __future__ import annotations

import math
import re

from hfx.errors import UsageError

# Microseconds: the quotient is then the nearest number to what was written.
UNITS = {"us": 1, "µs": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "min": 60_000_000, "h": 3_600_000_000}
PATTERN = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*([a-zµ]*)\s*")


def parse_seconds(text: str, what: str = "duration", *, unit: str = "s") -> float:
    """TEXT in seconds; a bare number is of UNIT, and without UNIT refused. Raises UsageError naming WHAT."""
    found = PATTERN.fullmatch(text)
    value = float(found[1]) if found else math.nan
    scale = UNITS.get(found[2] or unit) if found else None
    if scale is None or not 0 < value < math.inf:
        raise UsageError(f"The {what} is {text!r}.", "Give a positive number with us, ms, s, m or h, such as 200ms.")
    return value * scale / UNITS["s"]


def parse_warmup(text: str) -> tuple[int, float]:
    """`20` is 20 requests, `2s` two seconds, `0` no warm-up: (requests, seconds). Raises UsageError."""
    bare = text.strip()
    if bare.isascii() and bare.isdigit():
        return int(bare), 0.0
    try:
        return 0, parse_seconds(text, "warm-up", unit="")
    except UsageError as error:
        raise UsageError(error.message, "Give a number of requests (20) or a time with its unit (2s).") from None
