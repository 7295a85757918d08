"""Numbers as they are printed: three significant digits, units that fit, no time below the clock's resolution."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

from hfx.perf.results import Spread

Unit = Literal["number", "ms", "share", "bytes", "ratio"]

NOTHING = "–"  # not measured
RESOLUTION_MS = 0.01  # of the load generator: shorter times are those of its event loop
BARS = "▁▂▃▄▅▆▇█"


def number(value: float | None) -> str:
    """`value` in three significant digits, without an exponent: 0.0123, 1.23, 12.3, 1,230."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    rounded = round(value, 2 - magnitude)
    if rounded and math.floor(math.log10(abs(rounded))) > magnitude:  # 9.996 is 10.0
        magnitude += 1
    return f"{rounded:,.{max(0, min(2 - magnitude, 12))}f}"


def milliseconds(value: float | None) -> str:
    """A time in milliseconds: at most two decimals, and a bound where it is below the clock's resolution."""
    if value is not None and 0 < value < RESOLUTION_MS:
        return f"< {RESOLUTION_MS:g}"
    return number(value) if value is None or value >= 1 else f"{value:.2f}"


def percent(value: float | None) -> str:
    """A share as a percentage; 100 % and 0 % only where they are exact."""
    if value is None:
        return NOTHING
    if 0.9995 <= value < 1:
        return "> 99.9 %"
    if 0 < value < 0.0001:
        return "< 0.01 %"
    return f"{number(100 * value)} %"


def size(value: float | None) -> str:
    """Bytes in the largest binary unit that leaves a number above 1."""
    if value is None:
        return NOTHING
    for exponent, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if value >= 1 << exponent:
            return f"{number(value / (1 << exponent))} {unit}"
    return f"{value:.0f} B"


def ratio(value: float | None) -> str:
    """A ratio: 2.13×."""
    return NOTHING if value is None else f"{number(value)}×"


def spread(figure: Spread | None, unit: Unit) -> str:
    """The median, with least and most where there were several rounds; a unit that is printed stands once."""
    if figure is None:
        return NOTHING
    median, least, most = (FORMATS[unit](value) for value in (figure.median, figure.least, figure.most))
    if least == median == most:
        return median
    suffix = median.lstrip("0123456789.,<> ")
    short = least.removesuffix(suffix).strip() if most.endswith(suffix) else least
    return f"{median} ({short}–{most.removesuffix(suffix).strip()})"


def sparkline(values: Sequence[float | None], width: int = 40) -> str:
    """The last `width` of `values` as bars between 0 and their most; a gap for None."""
    last = values[-width:]
    most = max((value for value in last if value is not None), default=0.0) or 1.0
    return "".join(" " if value is None else BARS[round(value / most * (len(BARS) - 1))] for value in last)


FORMATS: dict[Unit, Callable[[float | None], str]] = {
    "number": number, "ms": milliseconds, "share": percent, "bytes": size, "ratio": ratio,
}  # fmt: skip
