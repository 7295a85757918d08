"""The time between the tokens of a request over the load."""

from __future__ import annotations

from hfx.perf.report.charts.chart import Chart
from hfx.perf.report.charts.over_load import over_load
from hfx.perf.results.schema import Result


def chart(result: Result) -> Chart | None:
    """Median and p99 of each way; None without streams under two loads."""
    return over_load(result, "tpot", "each-token", "Time for each further token")
