"""Loads as they are written: durations (`10s`, `200ms`), callers, rates, arrivals, and files of times."""

from __future__ import annotations

import csv
import itertools
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar, get_args

from hfx.errors import UsageError
from hfx.perf.load.plans import MOST_CALLERS, Arrivals, Open
from hfx.rows import Place, RowError, lines

Number = TypeVar("Number", int, float)
MOST_STEPS = 1000
TIME, GAP = "time", "gap"
GRAMMAR = "Give numbers (1,2,4), doubling (1:64:2x) or steps (1:16:4)."
# Microseconds: the quotient is then the nearest number to what was written.
UNITS = {"us": 1, "µs": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "min": 60_000_000, "h": 3_600_000_000}
PATTERN = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*([a-zµ]*)\s*")


def parse_seconds(text: str, what: str = "duration", *, unit: str = "s") -> float:
    """`text` in seconds; a bare number is of `unit`, and without one refused. Raises UsageError naming `what`."""
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


def parse_concurrency(text: str) -> tuple[int, ...]:
    """`1,2,4` as it stands, `1:64:2x` as 1, 2, 4 … 64, `1:16:4` as 1, 5, 9, 13. Raises UsageError."""
    found = _several(text, _whole, "concurrency")
    if any(each > MOST_CALLERS for each in found):
        raise UsageError(f"The concurrency {text!r} is above {MOST_CALLERS}.", "Give fewer callers.")
    return found


def parse_rates(text: str) -> tuple[float, ...]:
    """The same of requests a second, which may be fractions."""
    return _several(text, float, "rate")


def parse_open(rate: float | None, arrivals: str, trace: Path | None = None, seed: int = 0) -> Open:
    """A plan of `arrivals`: `constant`, `poisson`, `burst`, `burst:16` (so many at a time) or `trace` (of a file)."""
    kind, _, size = arrivals.partition(":")
    known = next((each for each in get_args(Arrivals) if each == kind), None)
    if known is None or (size and (known != "burst" or not _is_digits(size))):
        raise UsageError(
            f"There are no arrivals {arrivals!r}.", f"Give {', '.join(get_args(Arrivals))}, or burst:N for N at a time."
        )
    if (known == "trace") != (trace is not None):
        raise UsageError("A trace is a file of times.", "Give the arrivals trace and its file, or neither.")
    times = parse_trace(trace) if trace is not None else ()
    return Open(rate, known, times, seed, int(size) if size else None)


def parse_trace(path: Path) -> tuple[float, ...]:
    """The times of a file, the first as 0: a number of seconds a line, or the column `time` of a CSV.

    A line `gap`, or such a column, makes the numbers the seconds since the request before. Empty lines and lines that
    begin with `#` are skipped. Raises UsageError with the line that is wrong.
    """
    numbered = [(line, row) for line, row in _cells(path) if row and not row[0].startswith("#")]
    column, is_gap = 0, False
    if numbered and not _is_number(numbered[0][1][0]):
        (_, header), *numbered = numbered
        column, is_gap = _column(path, [name.strip().lower() for name in header])
    values = [_value(path, line, row, column) for line, row in numbered]
    times = list(itertools.accumulate(values)) if is_gap else values
    for (line, _), earlier, later in zip(numbered[1:], times, times[1:], strict=False):
        if later < earlier:
            fix = f"Sort them, or head them {GAP!r} for gaps."
            raise RowError(path, "the times go back.", fix, Place(line, line))
    if not times:
        raise RowError(path, "it has no times.", "Give a number of seconds a line.")
    return tuple(each - times[0] for each in times)


def _several(text: str, number: Callable[[str], Number], what: str) -> tuple[Number, ...]:
    try:
        found = [value for part in text.split(",") for value in _part(part.strip(), number)]
    except ValueError:
        raise UsageError(f"The {what} {text!r} can't be read.", GRAMMAR) from None
    if any(not 0 < value < math.inf for value in found):
        raise UsageError(f"The {what} {text!r} is not above zero.", GRAMMAR)
    return tuple(dict.fromkeys(found))


def _part(text: str, number: Callable[[str], Number]) -> list[Number]:
    if ":" not in text:
        return [number(text)]
    first, last, step = text.split(":")
    grow: Callable[[Number], Number]
    if step.endswith("x"):
        factor = number(step[:-1])
        grow, grows = (lambda value: value * factor), factor > 1
    else:
        by = number(step)
        grow, grows = (lambda value: value + by), by > 0
    value, end = number(first), number(last)
    if not grows or not 0 < value <= end < math.inf:
        raise ValueError(text)
    found = []
    while value <= end:
        found.append(value)
        value = grow(value)
        if len(found) > MOST_STEPS:
            raise ValueError(text)
    return found


def _whole(text: str) -> int:
    if not _is_digits(text):
        raise ValueError(text)
    return int(text)


def _is_digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _cells(path: Path) -> Iterator[tuple[int, list[str]]]:
    try:
        with path.open("rb") as file:
            for line in lines(file):
                if isinstance(line.text, UsageError):
                    raise RowError(path, line.text.message, line.text.fix, Place(line.number, line.number))
                yield line.number, next(csv.reader([line.text.strip()]), [])
    except OSError as error:
        raise RowError(path, f"it can't be read: {error.strerror}.", "Give a file of times.") from error


def _column(path: Path, header: list[str]) -> tuple[int, bool]:
    for name in (TIME, GAP):
        if name in header:
            return header.index(name), name == GAP
    raise RowError(path, f"it has no column {TIME} or {GAP}, but {', '.join(header)}.", "Head the times so.")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _value(path: Path, line: int, row: list[str], column: int) -> float:
    try:
        value = float(row[column])
    except (ValueError, IndexError):
        value = math.nan
    if not -math.inf < value < math.inf:
        shown = row[column] if column < len(row) else ""
        raise RowError(path, f"{shown!r} is no time.", "Give a number of seconds.", Place(line, line))
    return value
