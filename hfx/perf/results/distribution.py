"""Many times as one Distribution, by HdrHistogram: 1 microsecond to 1 hour, three significant digits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hdrh.histogram import HdrHistogram

from hfx.perf.results.schema import Distribution

LOWEST, HIGHEST, DIGITS = 1, 3_600_000_000, 3  # microseconds
MILLI = 1e3  # microseconds in a millisecond


def distribution(seconds: Iterable[float]) -> Distribution | None:
    """The distribution of times in seconds; None of none. What is longer than an hour counts as one."""
    histogram, times = HdrHistogram(LOWEST, HIGHEST, DIGITS), list(seconds)
    for each in times:
        histogram.record_value(min(max(round(each * 1e6), LOWEST), HIGHEST))
    return _of(histogram, 1e3 * sum(times) / len(times)) if times else None


def merged(parts: Sequence[Distribution]) -> Distribution | None:
    """All events of several distributions as one."""
    if not parts:
        return None
    histogram = HdrHistogram(LOWEST, HIGHEST, DIGITS)
    for part in parts:
        histogram.add(HdrHistogram.decode(part.hdr))
    return _of(histogram, sum(part.mean * part.count for part in parts) / sum(part.count for part in parts))


def cumulative(found: Distribution, points: int = 100) -> list[tuple[float, float]]:
    """(milliseconds, share of events that took no longer), rising, about as many as `points`."""
    percents = sorted([*(100 * each / points for each in range(points)), 99.5, 99.9, 100.0])
    at = HdrHistogram.decode(found.hdr).get_percentile_to_value_dict(percents)  # one pass for all of them
    return [(at[percent] / MILLI, percent / 100) for percent in percents]


def _of(histogram: Any, mean: float) -> Distribution:
    """The histogram's own mean walks all of its buckets, which takes longer than many a measurement's pause."""
    at = histogram.get_percentile_to_value_dict([50, 90, 95, 99])
    return Distribution(
        count=int(histogram.get_total_count()),
        mean=mean,
        min=histogram.get_min_value() / MILLI,
        max=histogram.get_max_value() / MILLI,
        p50=at[50] / MILLI,
        p90=at[90] / MILLI,
        p95=at[95] / MILLI,
        p99=at[99] / MILLI,
        hdr=histogram.encode().decode(),
    )
