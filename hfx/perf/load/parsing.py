"""Loads as they are written: durations (`10s`, `200ms`), callers, rates, arrivals, and files of times."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, get_args

from hfx.errors import UsageError
from hfx.perf.load.plans import Arrivals, Open
from hfx.rows import Place, RowError

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
    """`1,2,4` as it stands, `1:64:2x` as 1, 2, 4 … 64, `1:16:4` as 1, 5, 9, 13. Raises UsageError for other text."""
    return _several(text, _whole, "concurrency")


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
    rows = _cells(path)
    column, is_gap = 0, False
    if rows and _number(rows[0][1][0]) is None:
        (_, header), *rows = rows
        names = [name.lower() for name in header]
        name = next((name for name in (TIME, GAP) if name in names), None)
        if name is None:
            raise RowError(path, f"it has no column {TIME} or {GAP}, but {', '.join(names)}.", "Head the times so.")
        column, is_gap = names.index(name), name == GAP
    times: list[float] = []
    for line, row in rows:
        cell = row[column] if column < len(row) else ""
        if (value := _number(cell)) is None:
            raise RowError(path, f"{cell!r} is no time.", "Give a number of seconds.", Place(line, line))
        last = times[-1] if times else value
        times.append((last + value if times else 0.0) if is_gap else value)
        if times[-1] < last and len(times) > 1:
            fix = f"Sort them, or head them {GAP!r} for gaps."
            raise RowError(path, "the times go back.", fix, Place(line, line))
    if not times:
        raise RowError(path, "it has no times.", "Give a number of seconds a line.")
    return tuple(each - times[0] for each in times)


def _several(text: str, number: Callable[[str], Number], what: str) -> tuple[Number, ...]:
    try:
        return tuple(dict.fromkeys(value for part in text.split(",") for value in _part(part.strip(), number)))
    except ValueError:
        raise UsageError(f"The {what} {text!r} can't be read.", GRAMMAR) from None


def _part(text: str, number: Callable[[str], Number]) -> list[Number]:
    first, *rest = text.split(":")
    if not rest:
        return [number(first)]
    last, step = rest
    value, end, by = number(first), number(last), number(step.removesuffix("x"))
    values: list[Number] = []
    while value <= end and len(values) <= MOST_STEPS:
        values.append(value)
        value = value * by if step.endswith("x") else value + by
    if not 0 < len(values) <= MOST_STEPS:  # steps that do not grow never end
        raise ValueError(text)
    return values


def _whole(text: str) -> int:
    if not _is_digits(text):
        raise ValueError(text)
    return int(text)


def _is_digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _cells(path: Path) -> list[tuple[int, list[str]]]:
    """The cells of each line with its number, from 1."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RowError(path, f"it can't be read: {error}.", "Give a file of times.") from error
    rows = [[cell.strip() for cell in next(csv.reader([line.strip()]), [])] for line in lines]
    return [(number, row) for number, row in enumerate(rows, 1) if row and not row[0].startswith("#")]


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
