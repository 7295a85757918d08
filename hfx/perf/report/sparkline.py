"""A row of numbers as one line of a terminal."""

from __future__ import annotations

from collections.abc import Sequence

BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float | None], width: int = 40) -> str:
    """The last WIDTH of VALUES as bars between 0 and their most; a gap where one is None."""
    shown = values[-width:]
    most = max((value for value in shown if value is not None), default=0.0)
    return "".join(" " if value is None else _bar(value, most) for value in shown)


def _bar(value: float, most: float) -> str:
    if most <= 0:
        return BARS[0]
    return BARS[min(len(BARS) - 1, max(0, round(value / most * (len(BARS) - 1))))]
