"""Plans (when requests are sent), limits (how long), and SLOs; and parsing them from text.

A plan is closed (callers that wait for their answers) or open (requests at given times). The texts are durations
(`10s`, `200ms`), rates, arrivals, trace files and SLOs.
"""

from __future__ import annotations

import csv
import itertools
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, TypeVar, get_args

from hfx.errors import UsageError
from hfx.rows import Place, RowError

if TYPE_CHECKING:
    from hfx.perf.results import Load

Arrivals = Literal["constant", "poisson", "burst", "trace"]
MOST_CALLERS = 100_000
LONGEST_UNTIL_STABLE = 60.0  # seconds, if there is no other limit


@dataclass(frozen=True)
class Closed:
    """A closed loop: each of `callers` sends its next request when its last request is answered."""

    callers: int

    def __post_init__(self) -> None:
        if not 1 <= self.callers <= MOST_CALLERS:
            raise UsageError(f"{self.callers} callers are out of range.", f"Give 1 to {MOST_CALLERS}.")

    def load(self, data: str, limit: str, case: str = "") -> Load:
        """Return this plan as the Load of a result file. `data` and `limit` are descriptions."""
        from hfx.perf.results import Load  # imported here, as the load generator's process does not need the schema

        return Load("closed", concurrency=self.callers, data=data, limit=limit, case=case)


@dataclass(frozen=True)
class Open:
    """An open loop: requests are sent at their times, whether earlier requests are answered or not.

    `arrivals` is one of: "constant" (`rate` per second, evenly spaced); "poisson" (exponential gaps with the mean 1 /
    `rate`, drawn from `seed`); "burst" (all requests at once, or with `burst` this many at a time, at intervals that
    give the `rate`); "trace" (at the ascending times of `trace`, in seconds).
    """

    rate: float | None = None
    arrivals: Arrivals = "constant"
    trace: tuple[float, ...] = ()
    seed: int = 0
    burst: int | None = None

    def __post_init__(self) -> None:
        if self.rate is not None and not 0 < self.rate < math.inf:
            raise UsageError(f"A rate of {self.rate:g} requests per second is out of range.", "Give a positive number.")
        if self.arrivals == "trace":
            if self.rate is not None:
                raise UsageError("A trace has its own times.", "Leave the rate out.")
            if not self.trace or any(later < earlier for earlier, later in itertools.pairwise(self.trace)):
                raise UsageError("The times of a trace must rise, and there must be one.", "Sort them.")
        elif self.rate is None and (self.arrivals != "burst" or self.burst is not None):
            raise UsageError(f"{self.arrivals.title()} arrivals need a rate.", "Give --rate, in requests a second.")
        if self.burst is not None and (self.arrivals != "burst" or self.burst < 1):
            raise UsageError(f"A burst of {self.burst} requests is out of range.", "Give burst:N with N from 1 up.")

    @property
    def at_once(self) -> bool:
        """Whether all requests are due at the same moment."""
        return self.arrivals == "burst" and self.rate is None

    def load(self, data: str, limit: str, case: str = "") -> Load:
        """Return this plan as the Load of a result file. `data` and `limit` are descriptions."""
        from hfx.perf.results import Load

        words = f"burst of {self.burst}" if self.burst else "all at once" if self.at_once else self.arrivals
        return Load("open", rate=self.mean_rate, arrivals=words, data=data, limit=limit, case=case)

    @property
    def mean_rate(self) -> float | None:
        """Requests per second; for a trace, their mean; None if all requests are sent at once."""
        if self.arrivals != "trace":
            return self.rate
        seconds = self.trace[-1] - self.trace[0]
        return (len(self.trace) - 1) / seconds if seconds > 0 else None

    def times(self, count: int | None = None) -> Iterator[float]:
        """Yield when each of `count` requests is due, in seconds from the start.

        None: without end, or to the trace's end.
        """
        return itertools.islice(self._all(), count)

    def _all(self) -> Iterator[float]:
        if self.arrivals == "trace":
            return iter(self.trace)
        if self.rate is None:
            return itertools.repeat(0.0)
        if self.arrivals == "poisson":
            rate, chance = self.rate, random.Random(self.seed)
            return itertools.accumulate((chance.expovariate(rate) for _ in itertools.count()), initial=0.0)
        together, rate = self.burst or 1, self.rate
        return (number // together * together / rate for number in itertools.count())


Plan = Closed | Open


@dataclass(frozen=True)
class LoadLimits:
    """How long a load lasts: `requests` or `seconds` that count, whichever ends first, after a warm-up.

    With `stable`, the load lasts until the throughput and the median latency of three consecutive windows differ by at
    most `stable` per cent. Only these windows count, and each window has at least `window` seconds. `timeout` is the
    timeout of a request in seconds.
    """

    requests: int | None = None
    seconds: float | None = None
    warmup_requests: int = 0
    warmup_seconds: float = 0.0
    stable: float | None = None
    window: float = 2.0
    timeout: float = 60.0

    def __post_init__(self) -> None:
        if self.requests is not None and self.requests < 1:
            raise UsageError(f"With {self.requests} requests nothing is measured.", "Give at least 1.")
        for name in ("seconds", "stable", "window", "timeout"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise UsageError(f"The limit {name} is {value!r}.", "Give a positive number.")
        if self.warmup_requests < 0 or not 0 <= self.warmup_seconds < math.inf:
            raise UsageError("A warm-up can't be shorter than none.", "Give a number of requests, or seconds.")

    @property
    def warms_up(self) -> bool:
        """Whether there is a warm-up."""
        return bool(self.warmup_requests or self.warmup_seconds)

    @property
    def most_seconds(self) -> float | None:
        """The longest time during which requests that count are sent; None if there is no limit in seconds."""
        unbounded = self.stable is not None and self.seconds is None and self.requests is None
        return LONGEST_UNTIL_STABLE if unbounded else self.seconds

    @property
    def description(self) -> str:
        """The limits as text, for a result file."""
        parts = [f"{self.requests} request{'' if self.requests == 1 else 's'}"] if self.requests else []
        parts += [f"{self.most_seconds:g} s"] if self.most_seconds else []
        most = " or ".join(parts)
        if self.stable is None:
            return most
        return f"until stable within {self.stable:g} %" + (f", {most} at most" if most else "")


# Parsing

Number = TypeVar("Number", int, float)
MOST_STEPS = 1000
TIME, GAP = "time", "gap"
GRAMMAR = "Give numbers (1,2,4), doubling (1:64:2x) or steps (1:16:4)."
# Units in microseconds, so that the parsed float is the float nearest to the decimal text.
UNITS = {"us": 1, "µs": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "min": 60_000_000, "h": 3_600_000_000}
PATTERN = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*([a-zµ]*)\s*")


def parse_seconds(text: str, what: str = "duration", *, unit: str = "s") -> float:
    """Parse a duration, and return seconds.

    A number without a unit has the unit `unit`; if that is empty, it is an error.

    Raises UsageError, which names the duration as `what`.
    """
    found = PATTERN.fullmatch(text)
    value = float(found[1]) if found else math.nan
    scale = UNITS.get(found[2] or unit) if found else None
    if scale is None or not 0 < value < math.inf:
        raise UsageError(f"The {what} is {text!r}.", "Give a positive number with us, ms, s, m or h, such as 200ms.")
    return value * scale / UNITS["s"]


def parse_warmup(text: str) -> tuple[int, float]:
    """Return (requests, seconds) of a warm-up: "20" is 20 requests, "2s" two seconds, "0" none. Raises UsageError."""
    bare = text.strip()
    if _is_digits(bare):
        return int(bare), 0.0
    try:
        return 0, parse_seconds(text, "warm-up", unit="")
    except UsageError as error:
        raise UsageError(error.message, "Give a number of requests (20) or a time with its unit (2s).") from None


def parse_concurrency(text: str) -> tuple[int, ...]:
    """Parse numbers of callers: "1,2,4", "1:64:2x" (1, 2, 4 … 64) or "1:16:4" (1, 5, 9, 13). Raises UsageError."""
    return _several(text, _whole, "concurrency")


def parse_rates(text: str) -> tuple[float, ...]:
    """Parse requests per second, in the syntax of `parse_concurrency`, with fractions allowed. Raises UsageError."""
    return _several(text, float, "rate")


def parse_open(rate: float | None, arrivals: str, trace: Path | None = None, seed: int = 0) -> Open:
    """Return an open plan. `arrivals` is "constant", "poisson", "burst", "burst:16" (16 at a time) or "trace" (a file).

    Raises UsageError.
    """
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
    """Return the send times in a file, in seconds from the first: a number per line, or the column `time` of a CSV.

    In a column `gap` (or below a line `gap`), the numbers are the seconds since the previous request. Empty lines and
    lines that begin with `#` are skipped. Raises RowError, which names the line.
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
            raise RowError(path, f"{cell!r} is not a time.", "Give a number of seconds.", Place(line, line))
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
    if not 0 < len(values) <= MOST_STEPS:  # a step that does not increase would never end
        raise ValueError(text)
    return values


def _whole(text: str) -> int:
    if not _is_digits(text):
        raise ValueError(text)
    return int(text)


def _is_digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _cells(path: Path) -> list[tuple[int, list[str]]]:
    """Return (line number from 1, cells) of each line that is not empty or a comment. Raises RowError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        rows = [[cell.strip() for cell in next(csv.reader([line.strip()]), [])] for line in lines]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RowError(path, f"it can't be read: {error}.", "Give a file of times.") from error
    return [(number, row) for number, row in enumerate(rows, 1) if row and not row[0].startswith("#")]


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


# Service levels

BOUNDED = ("ttft", "tpot", "latency")
BOUND = re.compile(r"\s*([a-z_]+)\s*<=?\s*(\S.*?)\s*")
SLO_FIX = f"Give limits of {', '.join(BOUNDED)}, e.g. 'ttft<200ms,tpot<50ms,latency<2s'."


@dataclass(frozen=True)
class Slo:
    """A service level objective. `bounds` maps BOUNDED names to seconds that a request must stay below.

    `text` is the text from which it was parsed.
    """

    text: str
    bounds: Mapping[str, float]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `ttft<200ms,tpot<50ms,latency<2s`, with times in us, ms or s. Raises UsageError."""
        found: dict[str, float] = {}
        for part in text.split(","):
            match = BOUND.fullmatch(part)
            if match is None or match[1] not in BOUNDED:
                raise UsageError(f"The SLO has a part {part.strip()!r} that can't be read.", SLO_FIX)
            if match[1] in found:
                raise UsageError(f"The SLO limits {match[1]} twice.", SLO_FIX)
            found[match[1]] = parse_seconds(match[2], f"SLO's {match[1]}", unit="")
        return cls(text.replace(" ", ""), found)

    def kept(self, latency: float, ttft: float = math.nan, tpot: float = math.nan) -> bool:
        """Return whether a successful request met all bounds.

        Times are in seconds; NaN means that there is no such time.

        `latency` and `ttft` (time to first token) count from the moment when the request was due. `tpot` is the mean
        time between tokens; a text of one token meets any bound on it.
        """
        times = {"latency": latency, "ttft": ttft, "tpot": 0.0 if math.isnan(tpot) and not math.isnan(ttft) else tpot}
        return all(times[name] < seconds for name, seconds in self.bounds.items())
