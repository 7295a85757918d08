"""Many times as one Distribution, by HdrHistogram: 1 microsecond to 1 hour, three significant digits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hfx.perf.results.schema import Distribution

LOWEST, HIGHEST, DIGITS = 1, 3_600_000_000, 3  # microseconds
MILLI = 1e3  # microseconds in a millisecond


def distribution(seconds: Iterable[float]) -> Distribution | None:
    """The distribution of times in seconds; None of none. What is longer than an hour counts as one."""
    histogram, times = _empty(), list(seconds)
    for each in times:
        histogram.record_value(min(max(round(each * 1e6), LOWEST), HIGHEST))
    return _of(histogram, 1e3 * sum(times) / len(times)) if times else None


def merged(parts: Sequence[Distribution]) -> Distribution | None:
    """All events of several distributions as one."""
    if not parts:
        return None
    histogram = _empty()
    for part in parts:
        histogram.add(_decoded(part))
    return _of(histogram, sum(part.mean * part.count for part in parts) / sum(part.count for part in parts))


def cumulative(found: Distribution, points: int = 100) -> list[tuple[float, float]]:
    """(milliseconds, share of events that took no longer), rising, about as many as `points`."""
    shares = sorted([*(each / points for each in range(points)), 0.995, 0.999, 1.0])
    at = _decoded(found).get_percentile_to_value_dict([100 * share for share in shares])  # one pass for all of them
    return [(at[100 * share] / MILLI, share) for share in shares]


def _empty() -> Any:
    from hdrh.histogram import HdrHistogram

    return HdrHistogram(LOWEST, HIGHEST, DIGITS)


def _decoded(found: Distribution) -> Any:
    from hdrh.histogram import HdrHistogram

    return HdrHistogram.decode(found.hdr)


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
