"""Numbers as people read them: three significant digits, units that fit. It must not know what a number means."""

from __future__ import annotations

import math

from hfx.perf.report.figures import Unit
from hfx.perf.results import Spread

NOTHING = "–"  # was not measured
SIZES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def number(value: float | None) -> str:
    """VALUE in three significant digits, without an exponent: 0.0123, 1.23, 12.3, 1,230."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    rounded = round(value, 2 - magnitude)
    if rounded and math.floor(math.log10(abs(rounded))) > magnitude:  # 9.996 is 10.0
        magnitude += 1
    return f"{rounded:,.{max(0, min(2 - magnitude, 12))}f}"


def percent(value: float | None) -> str:
    """A share as a percentage; what is not all is never called 100 %, what is not nothing never 0 %."""
    if value is None:
        return NOTHING
    if 0.9995 <= value < 1:
        return "> 99.9 %"
    if 0 < value < 0.0001:
        return "< 0.01 %"
    return f"{number(100 * value)} %"


def size(value: float | None) -> str:
    """Bytes in the largest unit that leaves a number above 1."""
    if value is None:
        return NOTHING
    for unit, name in SIZES:
        if value >= unit:
            return f"{number(value / unit)} {name}"
    return f"{value:.0f} B"


def count(value: int | None) -> str:
    """An exact number of things."""
    return NOTHING if value is None else f"{value:,}"


def shown(value: float | None, unit: Unit) -> str:
    """A figure's VALUE in a table whose head names the unit."""
    if unit == "share":
        return percent(value)
    return size(value) if unit == "bytes" else number(value)


def ratio(value: float | None) -> str:
    """A ratio: 2.13×."""
    return NOTHING if value is None else f"{number(value)}×"


def spread(found: Spread | None, unit: Unit) -> str:
    """The median, and least to most where there were several rounds."""
    if found is None:
        return NOTHING
    return _with_range(*(shown(value, unit) for value in (found.median, found.least, found.most)))


def ratio_spread(found: Spread | None) -> str:
    """A ratio over rounds, as `spread`."""
    if found is None:
        return NOTHING
    return _with_range(*(ratio(value) for value in (found.median, found.least, found.most)))


def _with_range(middle: str, least: str, most: str) -> str:
    """The median with its range; a unit stands once, and a range that is none is left out."""
    if least == middle == most:
        return middle
    unit = next((word for word in (" %", "×", *(f" {name}" for _, name in SIZES)) if middle.endswith(word)), "")
    short = least.removesuffix(unit) if most.endswith(unit) and least.endswith(unit) else least
    return (
        f"{middle} ({short}–{most.removesuffix(unit)})" if short != least or not unit else f"{middle} ({least}–{most})"
    )


def heading(title: str, unit: Unit) -> str:
    """A column's head: the title, with the unit where it does not say so itself."""
    return f"{title} ms" if unit == "ms" else title
